"""Column reductions of data that a row kernel reads anyway are split, so that the row kernel carries their partial sums.

    c[j] = sum_i f(i, j)      ->      p[g, j] = sum_(t < L) f(t*G + g, j)      each of G groups of rows sums its own
                                      c[j]    = sum_g p[g, j]                  a small second kernel

In a row kernel with one group of rows per block, p is one register accumulator per column (layer norm's backward then reads its two large
operands once instead of twice). Alone, p is an ordinary column reduction with more, shorter columns.

The pass stands in this room and not among `passes`, because the number of groups is the row template's (`domain/carried.py`).
"""
from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from math import prod
from typing import ClassVar

from tilefuse.base.search.limits import SEARCH
from tilefuse.domain.carried import num_groups, written_rows
from tilefuse.domain.coordinates import over_is_contiguous
from tilefuse.ir.affine import axis, delinearise
from tilefuse.ir.graph import Graph, Node, Type
from tilefuse.ir.monoids import MONOIDS
from tilefuse.ir.names import free_name
from tilefuse.ir.ops import dtype_of
from tilefuse.ir.scalar import Bound, Guard, Read, reads, substitute_axes
from tilefuse.passes.manager import DevicePass, PassContext, Properties, Property, register_pass
from tilefuse.target.device import DeviceSpec


@register_pass
@dataclass(frozen=True)
class SplitCrossReductions(DevicePass):
    """Split column reductions that share a large operand with a row reduction, so that the row kernel carries their partial sums.

    Exact: no; sums are associated differently.
    """

    name: ClassVar[str] = "split-cross-reductions"
    preserves: ClassVar[Properties] = frozenset({
        Property.NO_DEAD_NODES, Property.PRIMITIVE_OPS_ONLY, Property.UPDATES_SEPARATE, Property.FILLS_SEPARATE})
    exact: ClassVar[bool] = False
    for_fusion: ClassVar[bool] = True

    def rewrite(self, graph: Graph, device: DeviceSpec, ctx: PassContext) -> Graph:
        """The graph with such reductions split into two nodes; `graph` itself where there is none."""
        return split_cross_reductions(graph, device)


def split_cross_reductions(graph: Graph, device: DeviceSpec) -> Graph:
    """The graph with every column reduction that shares a large operand with a row reduction split in two; the same object if none."""
    rows: dict[tuple[int, int], list[tuple[str, set[str]]]] = {}
    for node in graph.nodes:
        if node.category == "reduce" and prod(e for _, e in node.over) >= 32 and over_is_contiguous(node):
            shape = (node.type.num_elements, prod(e for _, e in node.over))
            rows.setdefault(shape, []).append((node.name, _sources(graph, node, shape[0] * shape[1])))
    chosen: list[tuple[Node, set[str]]] = []
    for node in graph.nodes:
        if node.kind != "reduce.sum" or not node.axes or not node.type.dtype.is_float or over_is_contiguous(node):
            continue
        count, length = prod(e for _, e in node.over), node.type.num_elements
        shared = rows.get((count, length))
        if not shared or not num_groups(count, length, device, node.type.dtype.itemsize):
            continue
        sources, later = _sources(graph, node, count * length), _users_of(graph, node.name)
        # A row reduction that needs the whole column sums (w = A (A^T y)) cannot stand in their kernel.
        if any(sources & read and name not in later for name, read in shared):
            chosen.append((node, sources))
    if not chosen:
        return graph
    split: dict[str, tuple[Node, Node]] = {}
    names = {node.name for node, _ in chosen}
    ordinary_by_size: dict[tuple[int, int], set[int]] = {}
    for node, sources in chosen:
        count, length = prod(e for _, e in node.over), node.type.num_elements
        alone = all(other is node or not sources & read for other, read in chosen)
        written = any(_leaves_elements(graph, name, count * length, names) for name, read in rows[count, length] if sources & read)
        light = alone and written and all(graph.type_of(v).dtype.itemsize < 4 for v in sources)
        operands = sources.union(*(read for _, read in rows[count, length] if sources & read))
        rows_written = written_rows([graph.type_of(v).dtype.itemsize for v in operands], several=not alone) if written else None
        groups = num_groups(count, length, device, node.type.dtype.itemsize, light, rows_written)
        if (count, length) not in ordinary_by_size:
            alike = [other for other, _ in chosen if (prod(e for _, e in other.over), other.type.num_elements) == (count, length)]
            ordinary_by_size[count, length] = _ordinary_groups(graph, alike, count * length)
        split[node.name] = _split(graph, node, groups, ordinary_by_size[count, length])
    nodes = tuple(part for node in graph.nodes for part in split.get(node.name, (node,)))
    return replace(graph, nodes=nodes)


def _leaves_elements(graph: Graph, reduction: str, num_elements: int, sums: set[str]) -> bool:
    """Whether anything besides the column sums needs elements that depend on a row reduction."""
    later = _users_of(graph, reduction)
    full = {n.name for n in graph.nodes if n.name in later and n.category == "map" and n.type.num_elements == num_elements}
    return bool(full & set(graph.results)) or any(not full.isdisjoint(n.reads()) for n in graph.nodes if n.name not in sums)


def _users_of(graph: Graph, name: str) -> set[str]:
    """Names of the nodes that need a value, directly or through other nodes."""
    users = {name}
    for node in graph.nodes:
        if not users.isdisjoint(node.reads()):
            users.add(node.name)
    return users - {name}


def _sources(graph: Graph, node: Node, num_elements: int) -> set[str]:
    """Values of `num_elements` elements, other than maps, from which the node's body is computed."""
    return _reached(graph, node, num_elements)[0]


def _full_values(graph: Graph, node: Node, num_elements: int) -> set[str]:
    """Values of `num_elements` elements from which the node's body is computed, maps on the way among them."""
    sources, crossed = _reached(graph, node, num_elements)
    return sources | crossed


def _reached(graph: Graph, node: Node, num_elements: int) -> tuple[set[str], set[str]]:
    """Values of `num_elements` elements that the node's body is computed from, and those maps on the way that have as many."""
    assert node.body is not None
    sources: set[str] = set()
    seen: set[str] = set()
    todo = [(v, 0) for v in reads(node.body)]
    while todo:
        value, depth = todo.pop()
        if value in seen:
            continue
        seen.add(value)
        inner = graph.node_by_name.get(value)
        if inner is not None and inner.category == "map" and depth < SEARCH.generators.crossed_maps and inner.body is not None:
            todo.extend((v, depth + 1) for v in reads(inner.body))
        elif graph.type_of(value).num_elements == num_elements:
            sources.add(value)
    return sources, {v for v in seen - sources if graph.type_of(v).num_elements == num_elements}


def _ordinary_groups(graph: Graph, nodes: Sequence[Node], num_elements: int) -> set[int]:
    """Numbers of groups at which partial sums of `nodes` would have the subscripts of an ordinary reduction over the first axes.

    They are the rows that the last axes hold, of the reductions and of the values that they read, also through views. All reductions of
    one row kernel avoid the same numbers, so that they have the same groups.
    """
    numbers: set[int] = set()
    for node in nodes:
        assert node.body is not None
        over, length = tuple(e for _, e in node.over), node.type.num_elements
        numbers |= {prod(over[n:]) for n in range(1, len(over))}
        for shape in (graph.type_of(v).shape for v in _full_values(graph, node, num_elements)):
            numbers |= {prod(shape[n:]) // length for n in range(1, len(shape)) if prod(shape[n:]) % length == 0}
    return {n for n in numbers if n > 1}


def _split(graph: Graph, node: Node, groups: int, ordinary: Set[int]) -> tuple[Node, Node]:
    """The partial sums by groups of every `groups`-th row, and their sum under the node's own name. ordinary: numbers that are avoided."""
    assert node.body is not None
    shape = tuple(e for _, e in node.over)
    count = prod(shape)
    while groups in ordinary:
        groups -= 1
    span = -(-count // groups)
    axes_in_use = set(node.axes) | {a for a, _ in node.over}
    group, step = free_name("g", axes_in_use), free_name("t", axes_in_use)
    extents = dict(zip(node.axes, node.type.shape)) | {group: groups, step: span}
    flat = axis(step) * groups + axis(group)
    where = delinearise(flat, shape, extents)
    body = substitute_axes(node.body, dict(zip((a for a, _ in node.over), where, strict=True)), extents)
    dtype = dtype_of(node.body, lambda v: graph.type_of(v).dtype)
    if groups * span > count:
        body = Guard((Bound(flat, 0, count),), body, MONOIDS["sum"].identity(dtype)[0])
    name = free_name(node.name + "_partial", set(graph.type_by_name))
    partial = replace(node, name=name, type=Type(node.type.dtype, (groups, *node.type.shape)), axes=(group, *node.axes),
                      over=((step, span),), body=body)
    whole = replace(node, over=((group, groups),), body=Read(name, (axis(group), *(axis(a) for a in node.axes))))
    return partial, whole

