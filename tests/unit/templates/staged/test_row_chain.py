"""Rows of sums that stay with their warps: which stages become one, which do not, and what lies in shared memory then."""
from __future__ import annotations

import pytest

from tests.unit.templates.stitched_cases import tiles
from tests.unit.templates.stitched_graphs import attention, normal, product_softmax
from tilefuse.base.search.limits import SEARCH
from tilefuse.domain.contraction import Tiling, whole_rows
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.building.tensor import TensorBuilder
from tilefuse.ir.dtype import F16, F32, DType
from tilefuse.ir.graph import Graph
from tilefuse.target.device import H200
from tilefuse.templates.staged.stitched.plan import StitchPlan
from tilefuse.templates.staged.stitched.record import Stitched
from tilefuse.templates.staged.stitched.template import schedule_stitched


def plan_of(graph: Graph, choice: Stitched) -> StitchPlan:
    program = schedule_stitched(graph, {}, H200, choice)
    assert isinstance(program, TileProgram), program
    assert isinstance(program.internal, StitchPlan)
    return program.internal


def kinds(plan: StitchPlan) -> list[str]:
    """The stages, those that reduce rows of sums with a mark."""
    return [s.kind + ("+rows" if s.kind == "product" and s.columns else "") for s in plan.stages]


@pytest.mark.parametrize("dtype", [F32, F16], ids=str)
def test_a_softmax_between_products_is_part_of_the_first(dtype: DType) -> None:
    """All operands are brought on chip before it, nothing but them lies there, and nobody waits between the products."""
    plan = plan_of(attention(2, 64, 32, dtype), tiles(1, 32, 32, threads=64))
    assert kinds(plan) == ["copy", "copy", "copy", "product+rows", "product"]
    assert {p.value for p in plan.pieces if p.stored} == {"q", "k", "v"}
    assert [s.barrier for s in plan.stages] == [False, False, False, True, False]
    (held,) = plan.held
    assert plan.pieces[held].region[-1].extent == 64 and held in plan.stages[3].pieces


def test_a_softmax_that_is_a_result_is_written_from_registers() -> None:
    plan = plan_of(product_softmax(64, 128, 40), tiles(32, 40, threads=64))
    assert kinds(plan) == ["copy", "copy", "product+rows"]
    (written,) = (p for p in plan.pieces if p.written)
    assert not written.stored and plan.stages[-1].tiling is not None and plan.stages[-1].tiling.columns == 5


def test_rows_shared_by_warps_pass_through_shared_memory() -> None:
    """Three warps have no whole rows of two tiles; more columns than a warp has registers for do not stay either."""
    assert kinds(plan_of(product_softmax(64, 128, 48), tiles(32, 48, threads=96)))[-2:] == ["product", "rows"]
    wide = 8 * SEARCH.domain.warp_row_instructions + 8
    assert kinds(plan_of(product_softmax(64, 16, wide), tiles(16, wide, threads=32)))[-2:] == ["product", "rows"]


def test_what_reads_other_places_of_a_row_is_no_part_of_it() -> None:
    """The sum of each element's difference to its neighbour: the neighbour is another lane's."""
    b = TensorBuilder("differences")
    y = b.matmul(b.input("x", F32, (32, 64)), b.input("w", F32, (64, 24)))
    left, right = b.slice(y, [0, 0], [32, 23], [1, 1]), b.slice(y, [0, 1], [32, 24], [1, 1])
    graph = normal(b, [b.reduce(b.elementwise("sub", right, left), "sum", [1])])
    plan = plan_of(graph, tiles(16, threads=32))
    assert "product+rows" not in kinds(plan)


def test_whole_rows_are_shared_out_evenly() -> None:
    t = Tiling("mma", 1, 1)
    found = whole_rows((64, 40), t, 1, 4, 16)
    assert found is not None and (found.rows, found.columns) == (1, 5)
    found = whole_rows((2, 64, 37), t, 1, 4, 16)
    assert found is not None and (found.rows, found.columns) == (2, 5)
    assert whole_rows((64, 40), t, 1, 3, 16) is None and whole_rows((16, 40), t, 1, 4, 16) is None
    assert whole_rows((64, 40), t, 4, 4, 16) is None


