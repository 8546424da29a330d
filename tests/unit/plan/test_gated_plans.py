"""Products of one left operand in plans: gated pairs, projections and halves of one product become one kernel each by their price."""
from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.unit.templates.staged.pipelined.product_graphs import halves, pair, queries_keys_values
from tests.unit.templates.stitched_graphs import normal
from tilefuse.base.options import Options
from tilefuse.ir.building.tensor import TensorBuilder
from tilefuse.ir.dtype import BF16
from tilefuse.ir.graph import Graph
from tilefuse.plan.planner import plan_graph
from tilefuse.plan.price.products import library_product_us
from tilefuse.plan.text.edit import plan_of_outline, setting_of_plan
from tilefuse.plan.text.text import parse_plan, print_plan
from tilefuse.target.catalog import H100
from tilefuse.templates.staged.pipelined.record import Pipelined
from tilefuse.templates.staged.pipelined.template import plan_of


def feed_forward(rows: int, width: int, hidden: int) -> Graph:
    """x + (silu(x gate) * (x up)) down: the second half of a Llama block, without its norm."""
    b = TensorBuilder("feed_forward")
    x = b.input("x", BF16, (rows, width))
    gate, up = (b.matmul(x, b.input(name, BF16, (hidden, width)), transpose_b=True) for name in ("gate", "up"))
    h = b.elementwise("mul", b.elementwise("mul", gate, b.elementwise("sigmoid", gate)), up)
    return normal(b, [b.elementwise("add", x, b.matmul(h, b.input("down", BF16, (width, hidden)), transpose_b=True))])


# By name: the pattern, and its number of products of one left operand.
SHARED: dict[str, tuple[Callable[[], Graph], int]] = {
    "a gated pair": (lambda: pair(8192, 4096, 1024, BF16), 2),
    "a gated pair of a batch": (lambda: pair(2048, 5504, 2048, BF16, lead=(2,)), 2),
    "a gated pair, one product a result": (lambda: pair(8192, 4096, 1024, BF16, biased=True, kept=True), 2),
    "halves of one product": (lambda: halves(8192, 4096, 1024, dtype=BF16), 2),
    "queries, keys and values of three weights": (lambda: queries_keys_values(4096, 16, 128, 2048, joined=False), 3),
    "queries, keys and values of one weight": (lambda: queries_keys_values(4096, 16, 128, 2048, joined=True), 3),
}


@pytest.mark.parametrize("name", SHARED)
def test_products_of_one_left_operand_are_one_kernel(name: str) -> None:
    """It holds all products, costs less than their calls and kernels for the maps, and its text gives it back."""
    graph, num_products = SHARED[name][0](), SHARED[name][1]
    plan = plan_graph(graph, {}, H100, Options())
    (kernel,) = plan.kernels
    assert not plan.library_calls and isinstance(kernel.program.choice, Pipelined)
    assert len(plan_of(kernel.program).form.products) == num_products
    apart = plan_graph(graph, {}, H100, Options().with_overrides(stitch=False))
    calls_us = sum(library_product_us(n, graph, H100) for n in graph.nodes if n.category == "library")
    assert apart.library_calls and kernel.cost.us < calls_us + sum(k.cost.us for k in apart.kernels)
    again = plan_of_outline(parse_plan(print_plan(plan)), setting_of_plan(plan, H100, Options()))
    assert [k.program.notation for k in again.kernels] == [kernel.program.notation]


def test_a_feed_forward_block_is_two_kernels() -> None:
    """The gated pair with its product of both, then the projection back with the residual."""
    plan = plan_graph(feed_forward(4096, 4096, 11008), {}, H100, Options())
    assert not plan.library_calls
    assert [len(plan_of(k.program).form.products) for k in plan.kernels] == [2, 1]
