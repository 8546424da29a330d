"""Layers of a chain that differ in nothing but their weights: one loop computes them, so that the kernel's text has one of them.

    left 1, product 1 | left 2, product 2 | left 3, product 3      ->      for layer < 3: left, product with the layer's weights

Straight code of three layers of 256 x 256 in f16 takes the compiler 4.5 s of one core, the loop 1.6 s.
"""
from __future__ import annotations

import re
from collections.abc import Hashable

from tilefuse.ir.graph import Graph, Input, Node
from tilefuse.ir.text import print_graph
from tilefuse.templates.staged.chain.plan import ChainPlan


def num_repeated(plan: ChainPlan, first: int) -> int:
    """Number of layers from `first` on, at least 1, that one loop computes with the maps ahead of them.

    Right operands that stay have slots of their own, and maps that read other values read other ones in each layer.
    """
    count, key = 1, _form_key(plan, first)
    while (key is not None and first + count < len(plan.layers) and plan.layers[first + count - 1].results is None
           and _form_key(plan, first + count) == key):
        count += 1
    return count


def _form_key(plan: ChainPlan, number: int) -> Hashable | None:
    """Equal for layers, with the maps ahead of them, of equal statements up to names; None for those that no loop computes."""
    layer, ahead = plan.layers[number], plan.layers[number - 1].ahead
    assert ahead is not None, "only the last layer has no maps ahead of another"
    maps = _maps_behind(ahead.form.product, ahead.form.graph)
    if plan.stays or maps is None or layer.form.num_leads > 1:
        return None
    right = layer.right
    return (_text(maps), plan.layers[number - 1].columns, layer.columns, layer.form.inner, layer.ring, right.lines, right.elements,
            right.panel_lines, right.width, right.operand.inner_is_contiguous, right.operand.dtype)


def _maps_behind(product: Node, graph: Graph) -> Graph | None:
    """The maps on a product's sums as a graph of the sums; None where they read other values as well."""
    behind, known = list[Node](), {product.name}
    for node in graph.nodes:
        if node.name == product.name or known.isdisjoint(node.reads()):
            continue
        if not known.issuperset(node.reads()):
            return None
        known.add(node.name)
        behind.append(node)
    return Graph("maps", (Input(product.name, product.type),), tuple(behind), graph.results)


def _text(graph: Graph) -> str:
    """The graph with its values named by their first appearance."""
    numbers: dict[str, int] = {}
    return re.sub(r"%[\w.]+", lambda m: f"%{numbers.setdefault(m.group(), len(numbers))}", print_graph(graph))
