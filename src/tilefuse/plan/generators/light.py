"""Light nodes: nodes that each user computes for itself, because that reads no more bytes than reading the finished value.

They are casts to a wider type, fills, index values, and broadcasts of small tensors. Storing their result would cost one write and, for
every user, a read at least as long as reading their operands.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Set

from tilefuse.ir.graph import Graph, Node
from tilefuse.ir.ops import SCALAR_OPS
from tilefuse.ir.scalar import Call, Guard, walk
from tilefuse.target.device import DeviceSpec


def flops_per_element(node: Node, device: DeviceSpec) -> int:
    """Operations of one evaluation of the node's body, including selects and guards. Source: `RecomputationFigures.guard_flops`."""
    if node.body is None:
        return 0
    guard_flops = device.fitted.recomputation.guard_flops
    return sum(guard_flops if isinstance(e, Guard) else SCALAR_OPS[e.fn].flops for e in walk(node.body)
               if isinstance(e, Guard) or isinstance(e, Call) and e.fn in SCALAR_OPS)


def light_nodes(graph: Graph, in_memory: Set[str], device: DeviceSpec) -> set[str]:
    """Maps with few operations that read no more bytes than they produce. A light node's inputs are counted through to values in memory.

    in_memory: values that are written in every plan, because library calls or the caller read them. Such a node is light only where it is
    computed from inputs of the graph alone: recomputing it from another intermediate could force that one into memory too. An update of an
    input is never light: recomputing it needs the old contents, so the input could not be overwritten.
    """
    light: set[str] = set()
    flops: dict[str, int] = {}
    sources: dict[str, frozenset[str]] = {}
    inputs = {i.name for i in graph.inputs}
    updates = {value for _, value in graph.updates}
    for node in graph.nodes:
        if node.kind != "map" or node.name in updates:
            continue
        reads = node.reads()
        below = frozenset(s for v in reads for s in sources.get(v, (v,)))
        total = flops_per_element(node, device) + sum(flops.get(v, 0) for v in reads)
        cheap = total <= device.fitted.recomputation.light_flops and sum(graph.type_of(v).num_bytes for v in below) <= node.type.num_bytes
        if cheap and (node.name not in in_memory or below <= inputs):
            light.add(node.name)
            flops[node.name] = total
            sources[node.name] = below
    return light


def closure(nodes: Iterable[str], light: set[str], reads: Callable[[str], tuple[str, ...]]) -> dict[str, None]:
    """The light nodes that `nodes` need, directly or through other light nodes (an ordered set)."""
    needed: dict[str, None] = {}
    stack = [v for n in nodes for v in reads(n) if v in light]
    while stack:
        value = stack.pop()
        if value not in needed:
            needed[value] = None
            stack.extend(v for v in reads(value) if v in light)
    return needed
