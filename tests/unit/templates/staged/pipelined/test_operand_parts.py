"""Pipelined products of f32 operands as high and low parts: kernels on the checking host executor against f64, faults, tiles, prices."""
from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.mutation.test_pipeline_faults import changed
from tests.unit.templates.host_build import Library, compiler, library_of
from tests.unit.templates.staged.pipelined.product_graphs import gated, pair, plain
from tests.unit.templates.staged.pipelined.test_pipelined import Case
from tests.unit.templates.stitched_cases import in_double
from tilefuse.base.candidate import Rejected
from tilefuse.ir.dtype import F32
from tilefuse.ir.graph import Graph
from tilefuse.ir.interpret import interpret
from tilefuse.kernel.ir import Barrier, Kernel
from tilefuse.kernel.pipeline import WarpgroupProduct, WarpgroupWait
from tilefuse.kernel.tensor_map import ProxyFence
from tilefuse.kernel.visit import statements
from tilefuse.target.device import H200
from tilefuse.templates.staged.pipelined.compose import compose_product
from tilefuse.templates.staged.pipelined.record import Pipelined
from tilefuse.templates.staged.pipelined.template import schedule_product

needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
# Error of an element over the magnitudes of its products: low times low and the roundings of low parts, then sums in f32.
PARTS, UNIT = 2.0**-19, 2.0**-24

PARTS_CASES = {
    "two warpgroups": Case(lambda: plain(200, 136, 136, F32), Pipelined(128, 128, 32, 3, 2, 2, 3)),
    "one warpgroup, a tile that hangs over": Case(lambda: plain(70, 72, 100, F32), Pipelined(64, 64, 32, 4, 1, 1, 2)),
    "two panels a slot": Case(lambda: plain(130, 72, 136, F32), Pipelined(64, 64, 64, 3, 1, 1, 1)),
    "a batch": Case(lambda: plain(66, 72, 40, F32, lead=(3,))),
    "odd rows in memory": Case(lambda: plain(67, 33, 71, F32), by_threads=2),
    "a bias, an activation, a residual": Case(lambda: gated(136, 72, 72, F32)),
    "a gated pair": Case(lambda: pair(70, 72, 72, F32), Pipelined(64, 64, 32, 3, 1, 1, 2)),
    "one element": Case(lambda: plain(1, 1, 1, F32)),
}


def drawn(graph: Graph) -> dict[str, np.ndarray]:
    """Seeded inputs."""
    random = np.random.default_rng(7)
    return {v.name: random.standard_normal(v.type.shape).astype(np.float32) for v in graph.inputs}


LEFT_OUT = (ProxyFence, Barrier, WarpgroupWait)
BOUNDARIES = "infinities and NaNs"


def without(kernel: Kernel, left_out: type) -> Kernel:
    """A kernel without the last statement of a kind before its products."""
    order = list(statements(kernel.body))
    product = next(n for n, s in enumerate(order) if isinstance(s, WarpgroupProduct))
    before = [s for s in order[:product] if isinstance(s, left_out)]
    return replace(kernel, body=changed(kernel.body, lambda s: () if s is before[-1] else None))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    """The kernels of all cases, of a product of boundary values, and those with faults, with every access checked."""
    kernels = {name: compose_product(c.program(), H200) for name, c in PARTS_CASES.items()}
    kernels[BOUNDARIES] = compose_product(Case(lambda: plain(64, 64, 64, F32)).program(), H200)
    kernels |= {f"no {kind.__name__}": without(kernels["two warpgroups"], kind) for kind in LEFT_OUT}
    return library_of(kernels, tmp_path_factory.mktemp("parts"))


def run_checked(library: Library, name: str, values: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], int, str]:
    """Results by the value that they are, the checker's status and its report."""
    kernel = library.kernels[name]
    memory, status, report = library.run(name, {b.name: values[b.origin].ravel() for b in kernel.parameters if b.role == "in"})
    return {b.origin: memory[b.name] for b in kernel.parameters if b.role == "out"}, status, report


@needs_compiler
@pytest.mark.parametrize("name", PARTS_CASES)
def test_kernel_is_as_exact_as_f32(name: str, library: Library) -> None:
    """Every element against f64, with every access checked: a product of tf32 alone is wrong by 2^-11."""
    graph = PARTS_CASES[name].program().graph
    values = drawn(graph)
    got, status, report = run_checked(library, name, values)
    assert status == 0, report
    double = {n: v.astype(np.float64) for n, v in values.items()}
    wanted = interpret(in_double(graph), double)
    magnitudes = interpret(in_double(graph), {n: np.abs(v) for n, v in double.items()})
    for result, value, magnitude in zip(graph.results, wanted, magnitudes, strict=True):
        error = np.abs(got[result].astype(np.float64) - np.asarray(value).ravel())
        # Gated units and activations have slopes below 2, and are no larger than the sums' magnitudes.
        bound = 2 * (PARTS + 200 * UNIT) * np.maximum(np.abs(np.asarray(magnitude)).max(), 1.0) * 2
        assert error.max() <= bound
        assert error.mean() < 2.0**-20 * np.maximum(np.abs(np.asarray(magnitude)).mean(), 1.0)


@needs_compiler
def test_infinities_and_nans_are_those_of_f32(library: Library) -> None:
    """The low part of an infinite number is no number, and no element may show it."""
    values = drawn(plain(64, 64, 64, F32))
    values["x"][3, 5], values["x"][7, 0], values["w"][9, 11] = np.inf, -np.inf, np.nan
    values["x"][11, 2] = np.finfo(np.float32).max
    got, status, report = run_checked(library, BOUNDARIES, values)
    assert status == 0, report
    with np.errstate(invalid="ignore"):
        want = (values["x"].astype(np.float64) @ values["w"].astype(np.float64).T).ravel()
    (result,) = got.values()
    bounded = np.abs(want) < np.finfo(np.float32).max
    assert (np.isnan(result) == np.isnan(want)).all() and (result[np.isinf(want)] == want[np.isinf(want)]).all()
    assert np.isfinite(result[bounded]).all()


@needs_compiler
@pytest.mark.parametrize("left_out", LEFT_OUT)
def test_order_of_low_parts_and_products_is_checked(left_out: type, library: Library) -> None:
    """Products read what other threads have stored, while those of the slot before are in flight."""
    _, status, report = run_checked(library, f"no {left_out.__name__}", drawn(PARTS_CASES["two warpgroups"].graph()))
    assert status > 0 and report


def test_warpgroups_do_not_take_turns() -> None:
    """Low parts have one place for both."""
    refused = schedule_product(plain(264, 136, 72, F32), {}, H200, Pipelined(64, 64, 32, 3, 2, 1, 2, pingpong=True))
    assert isinstance(refused, Rejected) and "low parts" in str(refused)


def test_columns_that_are_contiguous_are_refused() -> None:
    """Warpgroup instructions take f32 operands in one layout."""
    refused = schedule_product(plain(128, 128, 128, F32, (False, False)), {}, H200)
    assert isinstance(refused, Rejected) and "not contiguous along the inner axis" in str(refused)
