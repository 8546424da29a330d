"""Arrays to graph and back: the graph that computes arrays, its structure as a key, and arrays of a graph that a pass made."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from tilefuse.arrays.array import Array
from tilefuse.arrays.nodes import Applied, ArrayNode, Source, common_device, number_of_template, renamed, template_of, user_place
from tilefuse.base.errors import InternalError
from tilefuse.ir.building.build import GraphBuilder
from tilefuse.ir.building.tensor_complex import physical
from tilefuse.ir.graph import Graph

# Held while a structure and its graph are made, and while nodes get their values or forget how they came about: another thread's
# evaluation of a shared array between two visits would make the visits differ.
walking = threading.RLock()


@dataclass(frozen=True)
class ArrayGraph:
    """A graph with the meaning of its names: `leaves` in input order, `arrays` for every value."""

    graph: Graph
    leaves: tuple[ArrayNode, ...]
    arrays: Mapping[str, Array]


def graph_of(arrays: Sequence[Array], name: str = "arrays") -> tuple[Graph, tuple[ArrayNode, ...]]:
    """The graph that computes `arrays` (its results, in order) and the leaves behind its inputs."""
    graph = named_graph(arrays, name)
    return graph.graph, graph.leaves


def named_graph(arrays: Sequence[Array], name: str = "arrays", through: bool = False) -> ArrayGraph:
    """As `graph_of`, with the array of every value.

    through: arrays that were computed already are taken apart too, as far as they know how they were computed (for gradients);
    else they are inputs.
    Exact: equal structures give equal graphs, whatever ran before.
    """
    builder = GraphBuilder(name)
    names: dict[ArrayNode, str] = {}
    leaves: list[ArrayNode] = []
    ordered = in_order([a.node for a in arrays], through)
    for node in ordered:
        if is_leaf(node, through):
            node_name = node.name if isinstance(node, Source) else ""
            have = physical(node.type)
            names[node] = builder.input(node_name or "x", have.dtype, have.shape)
            leaves.append(node)
    for node in ordered:
        if node not in names:
            assert isinstance(node, Applied)
            local = {f"_{n}": names[o] for n, o in enumerate(node.operands)}
            names[node] = builder.add(renamed(node.node, local, builder.fresh(node.node.name), node.span))
    graph = builder.finish([names[a.node] for a in arrays])
    return ArrayGraph(graph, tuple(leaves), {value: Array(node) for node, value in names.items()})


def arrays_of(graph: Graph, leaves: Sequence[ArrayNode], existing: Mapping[str, Array] | None = None) -> tuple[Array, ...]:
    """The results of a graph as arrays, over the nodes behind its inputs.

    existing: arrays of values that are there already (the forward values of a gradient graph); they keep their identity.
    """
    if len(leaves) != len(graph.inputs):
        raise InternalError(f"graph @{graph.name} has {len(graph.inputs)} inputs, {len(leaves)} leaves are given")
    known: dict[str, ArrayNode] = {i.name: leaf for i, leaf in zip(graph.inputs, leaves, strict=True)}
    known |= {name: array.node for name, array in (existing or {}).items()}
    place = user_place()
    for node in graph.nodes:
        if node.name in known:
            continue
        template, number, values = template_of(node)
        operands = tuple(known[v] for v in values)
        device = common_device(operands) if operands else leaves[0].device if leaves else ""
        where = (node.span.source, node.span.line) if node.span is not None else place
        known[node.name] = Applied(template, number, operands, device, where)
    return tuple(Array(known[r]) for r in graph.results)


def is_leaf(node: ArrayNode, through: bool = False) -> bool:
    """Whether the graph ends at this node."""
    if isinstance(node, Source):
        return True
    return node.buffer is not None and not (through and (node.operands or not node.node.reads()))


def operands_below(node: ArrayNode, through: bool = False) -> tuple[ArrayNode, ...]:
    """The operands with which the graph goes on below this node; none where it ends."""
    return () if isinstance(node, Source) or is_leaf(node, through) else node.operands


def in_order(nodes: Sequence[ArrayNode], through: bool = False) -> list[ArrayNode]:
    """All nodes that these need, operands first, in an order that depends on the structure alone."""
    seen: set[ArrayNode] = set()
    ordered: list[ArrayNode] = []
    stack: list[ArrayNode] = list(reversed(nodes))
    while stack:
        top = stack[-1]
        if top in seen:
            stack.pop()
            continue
        missing = [o for o in operands_below(top, through) if o not in seen]
        if missing:
            stack.extend(missing)
            continue
        stack.pop()
        seen.add(top)
        ordered.append(top)
    return ordered


def nodes_outside(arrays: Sequence[Array], own: Collection[ArrayNode | None]) -> tuple[ArrayNode, ...]:
    """The nodes below these arrays that depend on none of the leaves `own`."""
    inside: set[ArrayNode] = set()
    outside: list[ArrayNode] = []
    for node in in_order([a.node for a in arrays]):
        if node in own or any(o in inside for o in operands_below(node)):
            inside.add(node)
        else:
            outside.append(node)
    return tuple(outside)


def structure_of(nodes: Sequence[ArrayNode]) -> tuple[tuple[object, ...], list[ArrayNode]]:
    """A key that is equal for equal programs of equal operand types and strides, and the leaves in the order of the graph's inputs.

    Cost: one visit of the nodes, about a microsecond per node.
    """
    at: dict[ArrayNode, int] = {}
    parts: list[object] = []
    leaves: list[ArrayNode] = []
    stack: list[ArrayNode] = list(reversed(nodes))
    while stack:
        top = stack[-1]
        if top in at:
            stack.pop()
            continue
        buffer = top.buffer
        if buffer is None and top.__class__ is Applied:
            # Plain loops: this visit is the whole cost of a known structure, and one generator for it and `in_order` took twice as long.
            height = len(stack)
            for operand in top.operands:
                if operand not in at:
                    stack.append(operand)
            if len(stack) > height:
                continue
            if top.number < 0:  # a view whose data went away
                top.number = number_of_template(top.node)
            parts.append(top.number)
            for operand in top.operands:
                parts.append(at[operand])
        else:
            leaves.append(top)
            parts.append(-1 - top.type_number if buffer is None or buffer.is_contiguous() else (top.type_number, buffer.stride()))
        stack.pop()
        at[top] = len(at)
    parts.append(tuple([at[n] for n in nodes]))
    return tuple(parts), leaves
