"""Masks and biases that several walks read, as maps of each: kernels compute them from less instead of reading one value of all scores.

    %m[b, h, r, c] = bias[h, r, c] + padding[b, c]          layers of a model read it         ->        a map of each layer's walk
"""
from __future__ import annotations

from dataclasses import replace

from tilefuse.ir.graph import Graph, Node
from tilefuse.ir.names import free_name
from tilefuse.plan.rewrites.renamed import with_names
from tilefuse.plan.walks import find_walks
from tilefuse.target.device import DeviceSpec


def all_maps_behind(value: str, graph: Graph) -> tuple[Node, ...]:
    """The maps that a value is computed by, in graph order, up to inputs and values that are no maps."""
    names: dict[str, None] = {}
    stack = [value]
    while stack:
        node = graph.node_by_name.get(stack.pop())
        if node is not None and node.category == "map" and node.name not in names:
            names[node.name] = None
            stack += node.reads()
    return tuple(graph.in_order(names))


def maps_behind(value: str, graph: Graph) -> tuple[Node, ...]:
    """The maps that a value is computed by where these read fewer bytes than it has, as the sum of a bias of heads and a mask of columns;
    an empty tuple otherwise."""
    behind = all_maps_behind(value, graph)
    if not behind:
        return ()
    inside = {n.name for n in behind}
    roots = {v for n in behind for v in n.reads() if v not in inside}
    return behind if sum(graph.type_of(v).num_bytes for v in roots) < graph.type_of(value).num_bytes else ()


def with_own_masks(graph: Graph, device: DeviceSpec) -> Graph:
    """The graph with maps of its own for each reader within a walk of a value that maps compute from fewer bytes; the graph itself where
    every such value has one reader.

    Exact: bit for bit.
    """
    inside = {n for walk in find_walks(graph, device) for n in walk}
    names, nodes, shared = set(graph.type_by_name), list[Node](), set[str]()
    for node in graph.nodes:
        if node.name in inside and node.category == "map":
            for value in dict.fromkeys(node.reads()):
                behind = _shared_maps(value, node, inside, graph)
                own = {n.name: free_name(f"{n.name}_for_{node.name}", names) for n in behind}
                nodes += [with_names(n, own) for n in behind]
                node = with_names(node, own) if behind else node
                shared.update(own)
        nodes.append(node)
    return without_unread(replace(graph, nodes=tuple(nodes)), shared) if shared else graph


def without_unread(graph: Graph, names: set[str]) -> Graph:
    """The graph without those nodes among `names` that nothing reads any more."""
    while unread := {n for n in names if n in graph.node_by_name and not graph.users_by_name[n] and n not in graph.escaping}:
        graph = replace(graph, nodes=tuple(n for n in graph.nodes if n.name not in unread))
    return graph


def _shared_maps(value: str, reader: Node, inside: set[str], graph: Graph) -> tuple[Node, ...]:
    """The maps behind a value with an element for each of a reader's, which others read too; none for other values."""
    node = graph.node_by_name.get(value)
    if node is None or value in inside or node.type.num_elements != reader.type.num_elements:
        return ()
    is_shared = len(graph.users_by_name[value]) > 1 or value in graph.escaping
    return maps_behind(value, graph) if is_shared else ()
