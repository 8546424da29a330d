"""Pipelined products with sums down the columns of their results: kernels on the checking host executor, forms, what is refused."""
from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tests.unit.templates.host_build import CHECKED_FLAGS, build_together, call, compiler
from tests.unit.templates.staged.pipelined.product_graphs import column_summed, gated, gelu_gradient, pair, plain
from tests.unit.templates.staged.pipelined.row_cases import ROUNDOFF, RowCase
from tests.unit.templates.staged.pipelined.row_graphs import stored_groups
from tilefuse.base.candidate import Rejected
from tilefuse.domain.roofline import price_work
from tilefuse.domain.tile import TileProgram
from tilefuse.domain.work import Work
from tilefuse.ir.dtype import BF16, F16, F32
from tilefuse.ir.graph import Graph
from tilefuse.target.device import H200
from tilefuse.templates.staged.pipelined.compose import compose_product
from tilefuse.templates.staged.pipelined.record import Pipelined
from tilefuse.templates.staged.pipelined.template import plan_of, schedule_product

IN_TURN = Pipelined(64, 64, 64, 3, 2, 1, 3, pingpong=True)
CASES: dict[str, RowCase] = {
    "a product": RowCase(lambda: column_summed(plain(208, 136, 72)), Pipelined(64, 128, 64, 3, 1, 1, 3)),
    "a product in turn": RowCase(lambda: column_summed(plain(208, 136, 72, BF16)), IN_TURN),
    "two warpgroups": RowCase(lambda: column_summed(plain(272, 72, 40)), Pipelined(128, 64, 64, 2, 2, 1, 2)),
    "two rows of instructions": RowCase(lambda: column_summed(plain(304, 200, 40)), Pipelined(256, 64, 64, 2, 2, 1, 5)),
    "odd columns": RowCase(lambda: column_summed(plain(80, 67, 72)), Pipelined(64, 128, 64, 2, 1, 1, 2)),
    "one group of rows": RowCase(lambda: column_summed(plain(16, 8, 8)), Pipelined(64, 64, 64, 2, 1, 1, 1)),
    "columns before groups": RowCase(lambda: column_summed(plain(80, 72, 72), groups_last=True), Pipelined(64, 64, 64, 2, 1, 1, 2)),
    "a batch": RowCase(lambda: column_summed(plain(80, 72, 40, F16, lead=(2,))), Pipelined(64, 64, 64, 2, 1, 1, 4)),
    "whole numbers": RowCase(lambda: column_summed(plain(208, 136, 72)), IN_TURN, exact=True),
    "gradient of GELU": RowCase(lambda: column_summed(gelu_gradient(208, 136, 72)), IN_TURN, amplified=32),
    "two results": RowCase(lambda: column_summed(gated(208, 136, 72)), Pipelined(64, 128, 64, 3, 1, 1, 2), amplified=32),
    "a gated pair": RowCase(lambda: column_summed(pair(80, 72, 72, BF16)), Pipelined(64, 64, 64, 3, 1, 1, 2), amplified=32),
    "tf32": RowCase(lambda: column_summed(pair(80, 72, 40, F32, precision="tf32")), Pipelined(64, 64, 32, 3, 1, 1, 2), amplified=32),
    "special rows": RowCase(lambda: column_summed(plain(80, 72, 72)), Pipelined(64, 64, 64, 2, 1, 1, 2), special=True),
}


def scores_last(rows: int, columns: int, inner: int) -> Graph:
    """Groups of columns of a product, which is the last result."""
    graph = stored_groups(rows, columns, inner, 32)
    return replace(graph, results=(*graph.results[1:], graph.results[0]))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """All kernels with every access checked, in one source."""
    return build_together([(compose_product(c.program(), H200), True) for c in CASES.values()], tmp_path_factory.mktemp("columns"),
                          CHECKED_FLAGS)


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize("name", CASES)
def test_kernel_adds_columns(name: str, library: ctypes.CDLL) -> None:
    """Every element and every sum against f64, with every access checked; sums are those of the elements as they are stored."""
    case, place = CASES[name], list(CASES).index(name)
    graph, kernel = case.program().graph, compose_product(case.program(), H200)
    inputs = case.inputs(graph)
    arrays = {b.name: inputs[b.origin].ravel() for b in kernel.parameters if b.role == "in"}
    memory, status, report = call(getattr(library, f"{kernel.name}_{place}"), kernel, arrays)
    assert status == 0, report
    made = {b.origin: memory[b.name] for b in kernel.parameters}
    case.check(graph, inputs, [made[r] for r in graph.results])
    last = graph.results[-2]
    *lead, rows, columns = graph.type_of(last).shape
    elements = made[last].astype(np.float64).reshape(*lead, rows // 16, 16, columns)
    sums, sizes = elements.sum(-2), np.abs(elements).sum(-2)
    got = made["parts"].astype(np.float64).reshape(graph.type_of("parts").shape)
    got = np.swapaxes(got, -1, -2) if graph.type_of("parts").shape[-2:] != sums.shape[-2:] else got
    finite = np.isfinite(sums)
    assert (np.isfinite(got) == finite).all() and (np.abs(got - sums) <= 16 * 2.0**-24 * sizes)[finite].all()


def test_bounds_of_a_case_are_those_of_rows() -> None:
    """Inputs and bounds are those of reduced rows; here they are the types of the cases."""
    assert {c.graph().type_of("x").dtype.name for c in CASES.values()} <= ROUNDOFF.keys()


def test_the_form_and_the_price_of_column_sums() -> None:
    """16 rows of a warp; the kernel costs a little more than without the sums, and less than reading its results again."""
    graph = column_summed(gelu_gradient(8192, 3072, 768))
    with_sums, alone = (schedule_product(g, {}, H200) for g in (graph, gelu_gradient(8192, 3072, 768)))
    assert isinstance(with_sums, TileProgram) and isinstance(alone, TileProgram)
    plan = plan_of(with_sums)
    assert set(plan.form.down.points) == {"parts"} and plan.form.row_results == () and not plan.choice.swapped
    more = price_work(plan.work, H200).us - price_work(plan_of(alone).work, H200).us
    read = graph.type_of(graph.results[0]).num_bytes
    again_us = price_work(Work(read_bytes=read, global_bytes=read), H200).us
    assert 0 < more < again_us


def test_explanations_tell_the_sums() -> None:
    """A stage of its own behind the results."""
    tree = str(CASES["a product"].program().levels) + CASES["a product"].program().notation
    assert "parts" in tree


@pytest.mark.parametrize(("graph", "told"), [
    (lambda: column_summed(plain(72, 64, 64)), "does not"), (lambda: column_summed(scores_last(64, 64, 64)), "parts of which are reduced"),
], ids=["rows that are no whole groups", "groups of columns"])
def test_patterns_that_are_none(graph: Callable[[], Graph], told: str) -> None:
    """The reason names what stands in the way."""
    rejected = schedule_product(graph(), {}, H200)
    assert isinstance(rejected, Rejected) and told in rejected.detail, rejected


@pytest.mark.parametrize("choice", [
    Pipelined(64, 64, 64, 2, 1, 1, 4, split=2), Pipelined(64, 16, 64, 2, 1, 1, 2, swapped=True),
], ids=["parts of the inner axis", "swapped"])
def test_tiles_that_add_no_columns(choice: Pipelined) -> None:
    """The reason names the columns of a stage."""
    rejected = schedule_product(column_summed(plain(208, 136, 256)), {}, H200, choice)
    assert isinstance(rejected, Rejected) and "column sums are of 64 columns" in rejected.detail, rejected
