"""Chains: sets of nodes from a product to the last of the products behind it, which one kernel may hold in registers.

    h = relu(x v)   ->   g = relu(h w)   ->   y = g u        {x v, h, h w, g, g u}

No part of such a set is worth a kernel alone where the library multiplies as fast: only together do the values between never reach memory.
Chains are therefore proposed as a whole. The scheduler decides whether the set has the right form (`templates/staged/chain/form.py`).
"""
from __future__ import annotations

from tilefuse.base.search.limits import SEARCH
from tilefuse.ir.graph import Graph, Node
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.staged.chain.choose import may_be_chained


def find_chains(graph: Graph, device: DeviceSpec) -> tuple[tuple[str, ...], ...]:
    """The longest chains of a graph, each in graph order. Cost: linear in the nodes, times the number of nodes between products."""
    if device.kind != "cuda":
        return ()
    products = [n for n in graph.nodes if n.kind == "library.matmul" and may_be_chained(n, graph, device)]
    between_by_product: dict[str, tuple[str, frozenset[str]]] = {}
    for node in products:
        before = _product_before(node, graph)
        if before is not None and may_be_chained(graph.node_by_name[before[0]], graph, device):
            between_by_product[node.name] = before
    readers: dict[str, list[str]] = {}
    for name, (first, _) in between_by_product.items():
        readers.setdefault(first, []).append(name)
    follower = {before: names[0] for before, names in readers.items() if len(names) == 1}
    chains: list[tuple[str, ...]] = []
    for node in products:
        if node.name in follower.values() or node.name not in follower:
            continue
        inside, last = {node.name}, node.name
        while last in follower:
            last = follower[last]
            inside |= {last} | between_by_product[last][1]
        chains.append(tuple(n.name for n in graph.in_order(inside)))
    return tuple(chains)


def _product_before(node: Node, graph: Graph) -> tuple[str, frozenset[str]] | None:
    """The one product that a product's left operand is computed from by maps, and these maps; None where it is no such product."""
    before: dict[str, None] = {}
    between: dict[str, None] = {}
    waiting = [node.operands[0]]
    while waiting:
        name = waiting.pop()
        inner = graph.node_by_name.get(name)
        if inner is None or name in between:
            continue
        if inner.kind == "library.matmul":
            before[name] = None
            continue
        if inner.category != "map" or len(between) == SEARCH.generators.between:
            # A value of other kernels, such as the result of a reduction.
            continue
        between[name] = None
        waiting += inner.reads()
    needed = _reading(between, before, graph)
    return (next(iter(before)), needed) if len(before) == 1 else None


def _reading(between: dict[str, None], products: dict[str, None], graph: Graph) -> frozenset[str]:
    """Those of the maps that depend on the products; the others are values of their own."""
    reading: set[str] = set()
    for node in graph.in_order(between):
        if any(v in reading or v in products for v in node.reads()):
            reading.add(node.name)
    return frozenset(reading)
