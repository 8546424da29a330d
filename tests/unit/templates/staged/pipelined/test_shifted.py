"""Left operands whose rows begin anywhere in memory: kernels on the checking host executor, neighbours that are no numbers, choices."""
from __future__ import annotations

import ctypes
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.mutation.test_pipeline_faults import changed
from tests.unit.templates.host_build import CHECKED_FLAGS, build_together, call, compiler, run
from tests.unit.templates.staged.pipelined.product_graphs import plain
from tests.unit.templates.staged.pipelined.test_pipelined import ROUNDOFF, Case, drawn
from tests.unit.templates.stitched_cases import in_double
from tilefuse.ir.dtype import BF16, F16
from tilefuse.ir.interpret import interpret
from tilefuse.ir.scalar import NUMPY_DTYPES
from tilefuse.kernel.ir import Barrier
from tilefuse.kernel.tensor_map import ProxyFence
from tilefuse.target.device import H200
from tilefuse.templates.staged.pipelined.compose import compose_product
from tilefuse.templates.staged.pipelined.record import Pipelined
from tilefuse.templates.staged.pipelined.shifted.rows import ShiftedRows
from tilefuse.templates.staged.pipelined.template import plan_of

ALONG = (False, False)
SHIFTED_CASES = {
    "odd rows, more than whole steps": Case(lambda: plain(135, 72, 71, F16, ALONG), Pipelined(64, 64, 64, 3, 1, 2, 3)),
    "odd rows, whole steps": Case(lambda: plain(136, 72, 67, BF16, ALONG), Pipelined(64, 64, 64, 3, 1, 2, 3)),
    "odd rows and columns": Case(lambda: plain(301, 133, 131, BF16, ALONG), Pipelined(128, 128, 64, 3, 2, 1, 3)),
    "odd rows and columns, in turn": Case(lambda: plain(301, 133, 131, F16, ALONG), Pipelined(64, 128, 64, 3, 2, 2, 3, pingpong=True)),
    "two rows of instructions, two panels": Case(lambda: plain(1100, 64, 203, BF16, ALONG), Pipelined(128, 64, 128, 2, 1, 1, 3)),
    "fewer rows than a step": Case(lambda: plain(5, 72, 131, F16, ALONG), Pipelined(64, 64, 64, 3, 1, 1, 3)),
    "rows of four bytes": Case(lambda: plain(70, 72, 66, F16, ALONG), Pipelined(64, 64, 64, 3, 1, 1, 3)),
    "an inner axis shorter than a slot": Case(lambda: plain(70, 72, 37, BF16, ALONG), Pipelined(64, 64, 64, 3, 1, 1, 3)),
    "an inner axis that ends with a slot": Case(lambda: plain(70, 72, 121, BF16, ALONG), Pipelined(64, 64, 64, 3, 1, 1, 3)),
    "a batch of odd elements": Case(lambda: plain(67, 72, 35, F16, ALONG, lead=(3,)), Pipelined(64, 64, 64, 3, 1, 1, 2)),
    "parts of the inner axis": Case(lambda: plain(70, 136, 331, F16, ALONG), Pipelined(64, 128, 64, 2, 1, 1, 12, cluster=2, split=2)),
    "parts in a workspace": Case(lambda: plain(70, 133, 331, F16, ALONG), Pipelined(64, 64, 64, 2, 1, 1, 9, split=3)),
}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """All kernels with every access checked, in one source."""
    kernels = [(compose_product(c.program(), H200), True) for c in SHIFTED_CASES.values()]
    return build_together(kernels, tmp_path_factory.mktemp("shifted"), CHECKED_FLAGS)


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize("name", SHIFTED_CASES)
def test_kernel_computes_every_element(name: str, library: ctypes.CDLL) -> None:
    """Every element of every result against f64, with every access checked."""
    program = SHIFTED_CASES[name].program()
    assert plan_of(program).form.shifted is not None
    graph, kernel = program.graph, compose_product(program, H200)
    values = drawn(graph)
    arrays = {b.name: values[b.origin].ravel() for b in kernel.parameters if b.role == "in"}
    memory, status, report = call(getattr(library, f"{kernel.name}_{[*SHIFTED_CASES].index(name)}"), kernel, arrays)
    assert status == 0, report
    double = in_double(graph)
    wanted = interpret(double, {i.name: values[i.name].astype(NUMPY_DTYPES[i.type.dtype.name]) for i in double.inputs})
    for result, want in zip(graph.results, wanted, strict=True):
        got = memory[next(b.name for b in kernel.parameters if b.origin == result)]
        bound = ROUNDOFF[graph.type_of(result).dtype.name] * max(1.0, float(np.abs(want).max()))
        np.testing.assert_allclose(np.asarray(got, np.float64).reshape(want.shape), want, atol=bound, rtol=0)


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
def test_neighbouring_rows_that_are_no_numbers_reach_no_other_row(tmp_path: Path) -> None:
    """A row of NaN and a row of infinite elements: their own results are no numbers, and those of all other rows are finite and right."""
    program = Case(lambda: plain(75, 72, 131, F16, ALONG), Pipelined(64, 64, 64, 3, 1, 1, 3)).program()
    kernel = compose_product(program, H200)
    values = drawn(program.graph)
    values["x"][17], values["x"][40] = np.nan, np.inf
    others = np.setdiff1d(np.arange(75), (17, 40))
    arrays = {b.name: values[b.origin].ravel() for b in kernel.parameters if b.role == "in"}
    memory, status, report = run(kernel, arrays, tmp_path, check=True)
    assert status == 0, report
    got = next(memory[b.name] for b in kernel.parameters if b.role == "out").astype(np.float64).reshape(75, 72)
    wanted = values["x"].astype(np.float64)[others] @ values["w"].astype(np.float64)
    assert not np.isfinite(got[[17, 40]]).any()
    assert np.abs(got[others] - wanted).max() <= 4 * ROUNDOFF["f16"] * np.abs(wanted).max()


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize(("dropped", "message"), [(ProxyFence, "product of elements that a thread stored without a fence"),
                                                  (Barrier, "race, read and write")])
def test_checker_finds_zeros_that_products_may_miss(dropped: type, message: str, tmp_path: Path) -> None:
    """Consumers that clear elements of other rows without a fence, or without meeting the threads whose products read them."""
    case = SHIFTED_CASES["odd rows, whole steps"]
    kernel = compose_product(case.program(), H200)
    kernel = replace(kernel, body=changed(kernel.body, lambda s: () if isinstance(s, dropped) else None))
    arrays = {b.name: drawn(case.graph())[b.origin].ravel() for b in kernel.parameters if b.role == "in"}
    _, status, report = run(kernel, arrays, tmp_path, check=True)
    assert status > 0 and message in report


def test_rows_of_a_tile_lie_whole_granules_apart() -> None:
    """Steps and tensors of rows of several lengths; other operands come as before."""
    def rows_of(rows: int, columns: int, inner: int, turned: tuple[bool, bool] = ALONG) -> ShiftedRows | None:
        return plan_of(Case(lambda: plain(rows, columns, inner, F16, turned)).program()).form.shifted

    odd, even, fours = rows_of(4095, 72, 4099), rows_of(70, 72, 66), rows_of(70, 72, 68)
    assert odd is not None and odd.step == 8 and odd.tensors == ((512, 4095 * 4099 - 511 * 8 * 4099), (511, 4095 * 4099 - 510 * 8 * 4099))
    assert even is not None and even.step == 4 and fours is not None and fours.step == 2
    assert rows_of(70, 72, 72) is None and rows_of(70, 71, 72, (False, True)) is None
    # Reads behind the last row's end would leave the value's memory.
    assert all((n - 1) * odd.step * odd.pitch + length == odd.end for n, length in odd.tensors)

