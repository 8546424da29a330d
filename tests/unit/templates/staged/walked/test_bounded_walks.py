"""Walks that summaries of data bound: their kernels on the checking host executor beside the definition in f64, tiles that they skip."""
from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tests.unit.templates.host_build import CHECKED_FLAGS, build_together, call, compiler
from tests.unit.templates.staged.walked.bounded_cases import BOUNDED_CASES, SMALL, Bounded, summarised
from tests.unit.templates.staged.walked.variants import Variant
from tests.unit.templates.stitched_cases import in_double
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.dtype import F16
from tilefuse.ir.interpret import interpret
from tilefuse.ir.scalar import NUMPY_DTYPES
from tilefuse.target.device import H200
from tilefuse.templates.staged.walked.compose import compose_walk
from tilefuse.templates.staged.walked.record import PipelinedWalk
from tilefuse.templates.staged.walked.template import pipelined_walk_of, schedule_walk
from tilefuse.templates.staged.walked.tree import walk_tree


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The checked kernels of all cases, compiled together."""
    kernels = [(compose_walk(case.program(), H200), True) for case in BOUNDED_CASES.values()]
    return build_together(kernels, tmp_path_factory.mktemp("bounded"), CHECKED_FLAGS)


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize("name", BOUNDED_CASES)
def test_kernel_computes_the_definition(name: str, library: ctypes.CDLL) -> None:
    """Every element, with every access of the kernel checked, beside the definition without bounds in f64."""
    case = BOUNDED_CASES[name]
    kernel, values = compose_walk(case.program(), H200), summarised(case)
    given = {b.name: values[b.origin].astype(NUMPY_DTYPES[b.dtype.name]).ravel() for b in kernel.parameters if b.role == "in"}
    memory, status, report = call(getattr(library, f"{kernel.name}_{list(BOUNDED_CASES).index(name)}"), kernel, given)
    assert status == 0, report
    definition = case.graphs[0]
    wide = {n: v if v.dtype.kind in "bi" else v.astype(np.float64) for n, v in case.values().items()}
    [wanted] = interpret(in_double(definition), wide)
    (out,) = (b.name for b in kernel.parameters if b.role == "out")
    got, expected = memory[out].astype(np.float64), np.asarray(wanted).ravel()
    assert (np.isnan(got) == np.isnan(expected)).all()
    error = np.nanmax(np.abs(got - expected), initial=0.0)
    assert error <= 2.0 ** (-8 if case.variant.dtype == F16 else -5) * max(np.nanmax(np.abs(expected), initial=0.0), 1.0)


@pytest.mark.parametrize("name", BOUNDED_CASES)
def test_bounds_leave_the_mask_as_it_is(name: str) -> None:
    """The conditions with bounds are those without, element by element."""
    case = BOUNDED_CASES[name]
    definition, _, walk = case.graphs
    one_, two = (interpret(in_double(g), {n: v if v.dtype.kind in "bi" else v.astype(np.float64) for n, v in values.items()})[0]
                 for g, values in ((definition, case.values()), (walk, summarised(case))))
    np.testing.assert_array_equal(one_, two)


@pytest.mark.parametrize("name", BOUNDED_CASES)
def test_walks_are_bounded(name: str) -> None:
    """Memory bounds every one of them, which explanations say."""
    plan = pipelined_walk_of(BOUNDED_CASES[name].program())
    assert plan.form.limit is not None and plan.form.limit.is_of_blocks
    assert "bound those of every 64 rows at run time" in str(walk_tree(plan))


@pytest.fixture(scope="module")
def far_documents(tmp_path_factory: pytest.TempPathFactory) -> Callable[[dict[str, np.ndarray]], np.ndarray]:
    """A run of the kernel of two documents of 128 rows and 192 rows, which are not causal."""
    case = Bounded(Variant(("same",), heads=1, rows=320, keys=320), SMALL)
    kernel = compose_walk(case.program(), H200)
    built = build_together([(kernel, True)], tmp_path_factory.mktemp("far"), CHECKED_FLAGS)

    def run(changed: dict[str, np.ndarray]) -> np.ndarray:
        halves = np.repeat([3, 8], [128, 192]).astype(np.int32)
        values = case.values() | {"documents_of_rows": halves.reshape(1, 1, 320, 1), "documents_of_columns": halves.reshape(1, 1, 1, 320)}
        values |= dict(zip(case.graphs[1].results, map(np.asarray, interpret(case.graphs[1], values)), strict=True)) | changed
        given = {b.name: values[b.origin].astype(NUMPY_DTYPES[b.dtype.name]).ravel() for b in kernel.parameters if b.role == "in"}
        memory, status, report = call(getattr(built, f"{kernel.name}_0"), kernel, given)
        assert status == 0, report
        (out,) = (b.name for b in kernel.parameters if b.role == "out")
        return memory[out].reshape(320, -1)

    return run


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
def test_tiles_of_other_documents_are_not_computed(far_documents: Callable[[dict[str, np.ndarray]], np.ndarray]) -> None:
    """Values of the second document that are NaN: a computed tile would multiply them by 0."""
    values = np.random.default_rng(1).standard_normal((1, 1, 320, 16))
    values[:, :, 128:] = np.nan
    result = far_documents({"v": values})
    assert np.isfinite(result[:128]).all() and np.isnan(result[128:]).all()


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
def test_tiles_of_the_own_document_carry_no_mask(far_documents: Callable[[dict[str, np.ndarray]], np.ndarray]) -> None:
    """Names that change behind the summaries' back: no element of a whole tile asks for them."""
    changed = np.arange(320).astype(np.int32)
    same = far_documents({"documents_of_rows": changed.reshape(1, 1, 320, 1), "documents_of_columns": changed[::-1].reshape(1, 1, 1, 320)})
    np.testing.assert_array_equal(same, far_documents({}))


@pytest.mark.parametrize(("scores", "reads"), [(("documents",), 4), (("hidden",), 4), (("documents", "hidden"), 8)])
def test_bounds_of_a_form(scores: tuple[str, ...], reads: int) -> None:
    """Each mask has edges of its own, from either side, and those within which it hides nothing."""
    limit = pipelined_walk_of(Bounded(Variant(scores, rows=300, keys=300), SMALL).program()).form.limit
    assert limit is not None
    assert sum(e.rows == 64 for e in limit.whole.edges) == reads and sum(e.rows == 64 for e in limit.bounds.edges) == reads // 2


def test_prices_count_a_share_of_the_turns() -> None:
    """Half of those that the indices leave, in the block with the most of them too; no other walk's turns change."""
    variant = Variant(("documents",), batch=2, heads=8, rows=2048, keys=2048, inner=64, width=64)
    plan = pipelined_walk_of(Bounded(variant, PipelinedWalk(128, 2, 2, 4, 1, 132)).program())
    other = schedule_walk(replace(variant, scores=("causal",)).graph(), {}, H200, PipelinedWalk(128, 2, 2, 4, 1, 132))
    assert isinstance(other, TileProgram)
    causal = pipelined_walk_of(other)
    assert (plan.all_turns, plan.likely_turns) == (causal.all_turns, causal.all_turns // 2)
    assert causal.likely_turns == causal.all_turns and plan.most_loaded[1] == -(-causal.most_loaded[1] // 2)
