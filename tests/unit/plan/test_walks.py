"""Operators between two products become one kernel whatever their length; those of no walk stay apart."""
from __future__ import annotations

import pytest

from tests.unit.templates.online_graphs import masked, merged_heads
from tests.unit.templates.stitched_graphs import attention, product_softmax
from tilefuse.base.options import Options
from tilefuse.ir.dtype import BF16, F16, F32, DType
from tilefuse.ir.graph import Graph
from tilefuse.plan.pattern import Plan
from tilefuse.plan.planner import plan_graph
from tilefuse.plan.walks import find_walks
from tilefuse.target.catalog import host_device
from tilefuse.target.device import H200
from tilefuse.templates.staged.online.record import Online
from tilefuse.templates.staged.walked.record import PipelinedWalk


def planned(graph: Graph) -> Plan:
    """The plan for an H200."""
    return plan_graph(graph, {}, H200, Options())


@pytest.mark.parametrize("dtype", [F16, BF16, F32], ids=str)
@pytest.mark.parametrize("length", [1000, 4096])
def test_long_attention_is_one_kernel(dtype: DType, length: int) -> None:
    """No call is left, and the scores' axis is walked."""
    plan = planned(attention(32, length, 64, dtype, causal=dtype is BF16))
    assert not plan.library_calls and len(plan.kernels) == 1
    program = plan.kernels[0].program
    assert isinstance(program.choice, Online if dtype == F32 else PipelinedWalk) and "LOOP" in program.notation


def test_masks_views_and_a_map_behind_join_the_walk() -> None:
    """A mask, heads merged and parted, and what follows the product. Tensor copies bring a computed operand from memory."""
    for graph, computed in ((masked(2048, 2048, 64, 64, F16), 0), (merged_heads(2048, 2048, 64, 64, F16), 1)):
        plan = planned(graph)
        assert not plan.library_calls and len(plan.kernels) == 1 + computed
        assert isinstance(plan.kernels[-1].program.choice, PipelinedWalk)


def test_a_walk_holds_all_between_its_products() -> None:
    graph = attention(4, 512, 64, F16)
    (walk,) = find_walks(graph, H200)
    assert set(walk) == {n.name for n in graph.nodes if n.name not in {"transpose"}}
    assert not find_walks(graph, host_device())


def test_what_ends_in_no_product_is_no_walk() -> None:
    assert not find_walks(product_softmax(512, 64, 512), H200)


def test_wide_operands_stay_with_the_library() -> None:
    """Rows of other operands that no block holds."""
    assert not find_walks(attention(4, 512, 1024, F16), H200)


def test_scores_that_are_written_stay_apart() -> None:
    """A result of the scores' size is in memory anyway."""
    plan = planned(attention(8, 4096, 64, F16, probabilities=True))
    assert plan.library_calls
