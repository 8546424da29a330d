"""Results whose rows begin anywhere in memory, stored by rows: kernels on the checking host executor, widths of stores, price."""
from __future__ import annotations

import ctypes
import re

import numpy as np
import pytest

from tests.unit.templates.host_build import CHECKED_FLAGS, build_together, call, compiler
from tests.unit.templates.staged.pipelined.byte_graphs import scaled, sums
from tests.unit.templates.staged.pipelined.grouped_cases import GroupedCase, experts, grouped_inputs
from tests.unit.templates.staged.pipelined.product_graphs import column_summed, gated, padded, pair, plain, queries_keys_values
from tests.unit.templates.staged.pipelined.test_pipelined import ROUNDOFF, Case, drawn
from tests.unit.templates.stitched_cases import in_double
from tilefuse.domain.roofline import blocks_us
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.dtype import BF16, F8E4M3, F16, F32, I8
from tilefuse.ir.graph import Graph
from tilefuse.ir.interpret import interpret
from tilefuse.ir.scalar import NUMPY_DTYPES
from tilefuse.kernel.ir import Kernel, Reg, Store, VectorStore
from tilefuse.kernel.visit import statements
from tilefuse.target.device import H200
from tilefuse.templates.staged.pipelined.compose import compose_product
from tilefuse.templates.staged.pipelined.record import Pipelined
from tilefuse.templates.staged.pipelined.template import plan_of, schedule_product

# Bounds of results of 8 bits, relative to the largest element.
ROUNDINGS = ROUNDOFF | {"f8e4m3": 2.0**-4, "i8": 0.5, "i32": 0.0}
ROW_STORE_CASES = {
    "odd columns": Case(lambda: plain(200, 197, 72), Pipelined(64, 128, 64, 3, 1, 2, 5)),
    "odd columns, two warpgroups": Case(lambda: plain(130, 331, 72, BF16), Pipelined(128, 256, 64, 2, 2, 1, 2)),
    "odd columns in turn": Case(lambda: plain(264, 263, 136), Pipelined(64, 128, 64, 3, 2, 1, 3, pingpong=True)),
    "odd columns, two rows of instructions": Case(lambda: plain(301, 133, 72), Pipelined(256, 128, 64, 2, 2, 1, 3)),
    "rows of two odd halves": Case(lambda: plain(130, 198, 72), Pipelined(64, 64, 64, 3, 1, 1, 2)),
    "rows of eight bytes": Case(lambda: plain(130, 196, 72, BF16), Pipelined(64, 128, 64, 3, 1, 1, 2)),
    "rows of tf32": Case(lambda: pair(67, 133, 40, F32, precision="tf32"), Pipelined(64, 64, 32, 3, 1, 1, 2)),
    "rows of tf32 of eight bytes": Case(lambda: pair(67, 198, 40, F32, precision="tf32"), Pipelined(64, 64, 32, 3, 1, 1, 2)),
    "a batch of odd elements": Case(lambda: plain(67, 133, 72, F16, lead=(3,)), Pipelined(64, 64, 64, 3, 1, 1, 2)),
    "a batch of even elements": Case(lambda: plain(66, 133, 72, F16, lead=(2,)), Pipelined(64, 64, 64, 3, 1, 1, 2)),
    "bias, activation, residual": Case(lambda: gated(200, 201, 72), Pipelined(64, 128, 64, 2, 1, 1, 2)),
    "a window, with a bias": Case(lambda: padded(129, 195, 71, (True, False)), Pipelined(128, 64, 64, 3, 2, 1, 2)),
    "a gated pair and its parts": Case(lambda: pair(70, 133, 72, biased=True, kept=True), Pipelined(64, 64, 64, 2, 1, 1, 2)),
    "heads of 65 columns stay direct": Case(lambda: queries_keys_values(66, 3, 65, 72, joined=True), Pipelined(64, 64, 64, 2, 1, 1, 2)),
    "parts in a cluster": Case(lambda: plain(70, 265, 264), Pipelined(64, 128, 64, 2, 1, 1, 12, cluster=2, split=2)),
    "parts in a workspace": Case(lambda: gated(70, 137, 264), Pipelined(64, 64, 64, 2, 1, 1, 9, split=3)),
    "column sums": Case(lambda: column_summed(plain(144, 133, 72)), Pipelined(64, 128, 64, 2, 1, 1, 2)),
    "8-bit floats": Case(lambda: scaled(130, 203, 144, (F8E4M3, F8E4M3), F8E4M3), Pipelined(64, 128, 128, 2, 1, 1, 2)),
    "8-bit integers": Case(lambda: sums(70, 133, 144, (I8, I8)), Pipelined(64, 128, 128, 2, 1, 1, 2)),
}
GROUPED = GroupedCase(lambda: experts(3, 150, 133, 72), (5, 5, 140), Pipelined(64, 128, 64, 2, 1, 1, 2))
# Bytes of the vectors that warps store, and whether single elements lie beside these.
STORED = {"odd columns": (4, True), "rows of two odd halves": (4, False), "rows of eight bytes": (8, False), "rows of tf32": (4, False),
          "rows of tf32 of eight bytes": (8, False), "a batch of odd elements": (2, False), "a batch of even elements": (4, True),
          "8-bit floats": (4, True), "8-bit integers": (4, False)}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """All kernels with every access checked, in one source."""
    kernels = [*(compose_product(c.program(), H200) for c in ROW_STORE_CASES.values()), compose_product(GROUPED.program(), H200)]
    return build_together([(k, True) for k in kernels], tmp_path_factory.mktemp("row_stores"), CHECKED_FLAGS)


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize("name", [*ROW_STORE_CASES, "groups"])
def test_kernel_stores_every_element(name: str, library: ctypes.CDLL) -> None:
    """Every element of every result against f64, with every access checked."""
    case = ROW_STORE_CASES.get(name, GROUPED)
    program = case.program()
    graph, kernel = program.graph, compose_product(program, H200)
    values = grouped_inputs(case, graph) if isinstance(case, GroupedCase) else drawn(graph)
    arrays = {b.name: values[b.origin].ravel() for b in kernel.parameters if b.role == "in"}
    place = [*ROW_STORE_CASES, "groups"].index(name)
    memory, status, report = call(getattr(library, f"{kernel.name}_{place}"), kernel, arrays)
    assert status == 0, report
    double = in_double(graph)
    wanted = interpret(double, {i.name: values[i.name].astype(NUMPY_DTYPES[i.type.dtype.name]) for i in double.inputs})
    name_by_origin = {b.origin: b.name for b in kernel.parameters}
    for result, value in zip(graph.results, wanted, strict=True):
        got = memory[name_by_origin[result]].astype(np.float64)
        error = np.abs(got - np.asarray(value, np.float64).ravel()).max()
        assert error <= 4 * ROUNDINGS[graph.type_of(result).dtype.name] * max(np.abs(value).max(), 1.0)


@pytest.mark.parametrize("name", STORED)
def test_stores_are_as_wide_as_rows_allow(name: str) -> None:
    """The widest aligned store of all rows; words where rows begin inside of one, with single elements before and behind them."""
    program = ROW_STORE_CASES[name].program()
    kernel = compose_product(program, H200)
    result = program.graph.results[-1]
    itemsize = program.graph.type_of(result).dtype.itemsize
    own = [s.width * itemsize for s in statements(kernel.body) if isinstance(s, VectorStore) and s.buffer == _memory(kernel, result)]
    width, has_singles = STORED[name]
    assert own and set(own) == {width}
    assert has_singles == bool(re.search(r"_word(_\d+)?$", "\n".join(_singles(kernel, result)), re.MULTILINE))


def _memory(kernel: Kernel, result: str) -> str:
    return next(b.name for b in kernel.parameters if b.origin == result)


def _singles(kernel: Kernel, result: str) -> list[str]:
    """Register arrays whose elements are stored alone."""
    return [s.value.name for s in statements(kernel.body) if isinstance(s, Store) and s.buffer == _memory(kernel, result)
            and isinstance(s.value, Reg)]


def test_heads_of_odd_columns_have_no_stage() -> None:
    """64 columns of a stage lie in several heads: lanes store their own neighbours."""
    plan = plan_of(ROW_STORE_CASES["heads of 65 columns stay direct"].program())
    assert not plan.staged


def test_odd_rows_cost_little_more_than_even_ones() -> None:
    """Blocks of a padded product of which 4097 columns are stored by rows, beside those of 4104 columns that tensor stores write."""
    def us(graph: Graph) -> float:
        program = schedule_product(graph, {}, H200, Pipelined(256, 128, 64, 4, 2, 16, 132))
        assert isinstance(program, TileProgram), program
        return sum(blocks_us(b, H200) for b in plan_of(program).work.blocks)

    odd, even = us(plain(4095, 4097, 4104, BF16)), us(plain(4095, 4104, 4104, BF16))
    assert even < odd < 1.08 * even
