"""Reductions over many columns of a product become partial results of groups of columns, so that its elements stay out of memory.

    m[i] = max j: y[i, j]                   p[t, i] = max j < W: y[i, W t + j]                    m[i] = max t: p[t, i]
    s[i] = sum j: exp(y[i, j] - m[i])   ->  q[t, i] = sum j < W: exp(y[i, W t + j] - p[t, i])     s[i] = sum t: q[t, i] exp(p[t, i] - m[i])
    g[i] = y[i, c[i]]                       r[t, i] = sum j < W: c[i] = W t + j ? y[i, c[i]] : 0  g[i] = sum t: r[t, i]

The product's kernel then writes a few values for each row and group instead of W, and a small kernel combines them: a cross-entropy without
its scores. Where the scores are a result, because their gradient reads them later, the kernel writes them as well; the reductions read
only partial results. Source of the combination: Milakov and Gimelshein 2018, arXiv:1805.02867.
"""
from __future__ import annotations

from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import ClassVar

from tilefuse.ir.affine import Affine, axis
from tilefuse.ir.dtype import F32, I32, I64, DType
from tilefuse.ir.graph import Graph, Node, Type
from tilefuse.ir.monoids import MONOIDS
from tilefuse.ir.names import free_name
from tilefuse.ir.ops import dtype_of
from tilefuse.ir.scalar import Bound, Call, Expr, Guard, Index, Lookup, Read, cast, const, reads, substitute_axes, transform, walk
from tilefuse.passes.device.long_products import without_unused
from tilefuse.passes.device.padded_products import with_padded
from tilefuse.passes.device.padding import product_sizes
from tilefuse.passes.device.padding_prices import Padding
from tilefuse.passes.facts import Prices
from tilefuse.passes.manager import DevicePass, PassContext, Properties, Property, register_pass
from tilefuse.target.device import DeviceSpec
from tilefuse.target.memory import ACCESS_BYTES

# Reductions whose partial results have the type of the elements.
KINDS = ("reduce.sum", "reduce.max", "reduce.min")
# Names of the axes of partial results.
GROUP, WITHIN = "t", "j"


@register_pass
@dataclass(frozen=True)
class ReduceProductRows(DevicePass):
    """Reduce rows of a product by groups of columns in the product's own kernel, where that is predicted to be faster.

    Exact: no; sums are associated differently, and exponentials are taken relative to the maximum of their group.
    """

    name: ClassVar[str] = "reduce-product-rows"
    preserves: ClassVar[Properties] = frozenset({Property.PRIMITIVE_OPS_ONLY, Property.UPDATES_SEPARATE, Property.FILLS_SEPARATE})
    exact: ClassVar[bool] = False
    for_fusion: ClassVar[bool] = True
    asks_prices: ClassVar[bool] = True

    def rewrite(self, graph: Graph, device: DeviceSpec, ctx: PassContext) -> Graph:
        """The graph with partial results; `graph` itself where none is faster."""
        assert ctx.prices is not None
        for name in [n.name for n in graph.nodes if n.kind == "library.matmul"]:
            rows = reduced_rows(graph, graph.node_by_name[name])
            if rows is not None:
                graph = _cheaper(graph, rows, device, ctx.prices)
        return graph


@dataclass(frozen=True)
class ReducedRows:
    """A product of which only reductions of rows and single elements of them are used, beside the product itself as a result.

    maps        maps between the product and these, each once, in order of the graph
    reductions  with their bodies over the product and boundary values alone
    tops        for each sum of exponentials relative to a maximum that maximum
    lookups     nodes that read single elements
    is_stored   whether the product is a result, as scores whose gradient is computed later
    """

    product: Node
    maps: tuple[str, ...]
    reductions: dict[str, Expr]
    tops: dict[str, str]
    lookups: tuple[str, ...]
    is_stored: bool = False

    @property
    def axes(self) -> tuple[str, ...]:
        """Axes of the rows, by which bodies are written; the last one is the column."""
        return tuple(f"r{n}" for n in range(len(self.product.type.shape)))


def reduced_rows(graph: Graph, product: Node) -> ReducedRows | None:
    """How the rows of a product are used; None where anything else is.

    Cost: linear in the nodes that depend on the product.
    """
    if len(product.type.shape) < 2 or len(product.operands) != 2 or not product.type.dtype.is_float:
        return None
    rows = ReducedRows(product, (), {}, {}, (), product.name in graph.escaping)
    elements: dict[str, Expr] = {product.name: Read(product.name, tuple(axis(a) for a in rows.axes))}
    maps: list[str] = []
    lookups: list[str] = []
    # Values that need a reduction of the rows.
    late: set[str] = set()
    waiting: list[int] = []  # places of nodes that read one of these values
    reached: set[int] = set()

    def reach_users(value: str) -> None:
        for user in graph.users_by_name[value]:
            place = graph.position_by_name[user]
            if place not in reached:
                reached.add(place)
                heappush(waiting, place)

    reach_users(product.name)
    while waiting:
        node = graph.nodes[heappop(waiting)]
        reach_users(node.name)
        used = elements.keys() & set(node.reads())
        if not used:
            late.add(node.name)
            continue
        body = _over_rows(node, elements, rows.axes)
        if body is not None and node.category == "map" and node.name not in graph.escaping:
            elements[node.name] = body
            maps.append(node.name)
        elif body is not None and node.kind in KINDS and node.name not in rows.reductions:
            rows.reductions[node.name] = body
            late.add(node.name)
        elif _looks_up(node, elements, product.type.shape, late):
            lookups.append(node.name)
            late.add(node.name)
        else:
            return None
    for name, body in rows.reductions.items():
        if late.isdisjoint(reads(body)):
            continue
        top = _top_of(name, body, rows.reductions, graph, rows.axes)
        if top is None:
            return None
        rows.tops[name] = top
    return replace(rows, maps=tuple(maps), lookups=tuple(lookups)) if rows.reductions else None


def _over_rows(node: Node, elements: dict[str, Expr], axes: tuple[str, ...]) -> Expr | None:
    """The body of a map or of a reduction over the last axis, over the product alone; None where it reads other elements."""
    own = (*node.axes, *(a for a, _ in node.over))
    if node.body is None or node.category not in ("map", "reduce") or len(own) != len(axes) or len(node.over) > 1:
        return None
    here = {a: axis(b) for a, b in zip(own, axes, strict=True)}
    if any(isinstance(e, Read) and e.value in elements and e.index != tuple(axis(a) for a in own) or isinstance(e, Lookup | Guard)
           for e in walk(node.body)):
        return None
    body = substitute_axes(node.body, here)
    return transform(body, lambda e: elements[e.value] if isinstance(e, Read) and e.value in elements else e)


def _looks_up(node: Node, elements: dict[str, Expr], shape: tuple[int, ...], late: set[str]) -> bool:
    """Whether a node with an element for each row reads one element of that row, at a place that no reduction decides."""
    if node.body is None or node.category != "gather" or node.type.shape != shape[:-1]:
        return False
    if any(isinstance(e, Read) and e.value in elements for e in walk(node.body)):
        return False
    here = tuple(Index(axis(a)) for a in node.axes)
    places = [e.subscripts for e in walk(node.body) if isinstance(e, Lookup) and e.value in elements]
    return all(p[:-1] == here and late.isdisjoint(reads(p[-1])) and not any(isinstance(e, Lookup) for e in walk(p[-1])) for p in places)


def _top_of(name: str, body: Expr, reductions: dict[str, Expr], graph: Graph, axes: tuple[str, ...]) -> str | None:
    """The maximum M of x if a reduction is the sum of exp(x - M)."""
    if graph.node_by_name[name].kind != "reduce.sum" or not (isinstance(body, Call) and body.fn == "exp"):
        return None
    inner = body.args[0]
    if not (isinstance(inner, Call) and inner.fn == "sub" and isinstance(inner.args[1], Read)):
        return None
    x, top = inner.args
    assert isinstance(top, Read)
    same = top.value in reductions and graph.node_by_name[top.value].kind == "reduce.max" and reductions[top.value] == x
    return top.value if same and top.index == tuple(axis(a) for a in axes[:-1]) else None


# -- the choice --------------------------------------------------------------------------------------------------------------------


def _cheaper(graph: Graph, rows: ReducedRows, device: DeviceSpec, prices: Prices) -> Graph:
    """The graph with partial results of the best width, or `graph` where storing the elements and reading them once costs less."""
    product = rows.product
    stored, name = _as_stored(graph, rows)
    stored_us = prices.product_us(stored.node_by_name[name], stored) + prices.copy_us(product.type.num_bytes, 1)
    best = (stored_us, graph)
    widest = device.fitted.pipelined.group_columns
    for width in (widest, widest // 2):
        if product.type.shape[-1] <= width:
            continue
        rewritten, partial = with_partial_rows(graph, rows, width)
        stored, name = _as_stored(rewritten, rows)
        us = prices.own_product_us(stored, (name, *partial), {})
        if us is not None:
            us += prices.copy_us(sum(rewritten.type_of(p).num_bytes for p in partial), 1)
            us *= device.fitted.pipelined.stored_scores_share
            best = min(best, (us, rewritten), key=lambda b: b[0])
    return best[1]


def _as_stored(graph: Graph, rows: ReducedRows) -> tuple[Graph, str]:
    """The graph with the product as it is stored, and its name: padded, where its rows are no whole 16 bytes, as `pad-products` does it."""
    product = rows.product
    if not rows.is_stored or product.type.shape[-1] * product.type.dtype.itemsize % ACCESS_BYTES == 0:
        return graph, product.name
    padded = with_padded(graph, [Padding(product.name, product_sizes(graph, product), (), 0.0, 0.0, True)], {})
    (name,) = padded.node_by_name[product.name].reads()
    return padded, name


# -- the rewriting -------------------------------------------------------------------------------------------------------------------


def with_partial_rows(graph: Graph, rows: ReducedRows, width: int) -> tuple[Graph, tuple[str, ...]]:
    """The graph with the reductions by groups of `width` columns, and the names of their partial results."""
    names = set(graph.type_by_name)
    parts: dict[str, str] = {}
    nodes: list[Node] = []
    for node in graph.nodes:
        if node.name in rows.reductions:
            partial, whole = _reduction(graph, rows, node, width, parts, names)
            parts[node.name] = partial.name
            nodes += [partial, whole]
        elif node.name in rows.lookups and not rows.is_stored:
            nodes += _lookups(graph, rows, node, width, parts, names)
        elif node.name not in rows.maps or rows.is_stored:
            nodes.append(node)
    rewritten = replace(graph, nodes=tuple(nodes))
    for unused in reversed(rows.maps):
        rewritten = without_unused(rewritten, {unused})
    return rewritten, tuple(parts.values())


def _partial(rows: ReducedRows, name: str, kind: str, body: Expr, dtype: DType, width: int) -> Node:
    """The partial results of a reduction whose body is written over the rows' axes; groups may reach beyond the columns."""
    *lead, columns = rows.product.type.shape
    groups = -(-columns // width)
    column = axis(GROUP) * width + axis(WITHIN)
    body = substitute_axes(body, {rows.axes[-1]: column}, {GROUP: groups, WITHIN: width})
    if columns % width:
        body = Guard((Bound(column, 0, columns),), body, MONOIDS[kind.removeprefix("reduce.")].identity(dtype)[0])
    return Node(name, Type(dtype, (groups, *lead)), kind, (GROUP, *rows.axes[:-1]), ((WITHIN, width),), body=body)


def _reduction(graph: Graph, rows: ReducedRows, node: Node, width: int, parts: dict[str, str], names: set[str]) -> tuple[Node, Node]:
    """The partial results of a reduction, and their combination under its own name."""
    body, dtype = rows.reductions[node.name], node.type.dtype
    name = free_name(f"{node.name}_parts", names)
    groups = -(-rows.product.type.shape[-1] // width)
    at = tuple(axis(a) for a in node.axes)
    element: Expr = Read(name, (axis(GROUP), *at))
    if node.name in rows.tops:
        top = parts[rows.tops[node.name]]
        here = Read(top, (axis(GROUP), *(axis(a) for a in rows.axes[:-1])))
        # Differences from a maximum of -inf would be NaN; with 0 in its place the exponentials are 0.
        shift: Expr = Call("select", (Call("eq", (here, const(float("-inf"), dtype))), const(0, dtype), here))
        assert isinstance(body, Call) and isinstance(body.args[0], Call)
        body = Call("exp", (Call("sub", (body.args[0].args[0], shift)),))
        apart = Call("sub", (Read(top, (axis(GROUP), *at)), Read(rows.tops[node.name], at)))
        element = Call("mul", (element, Call("exp", (apart,))))
    partial = _partial(rows, name, node.kind, body, dtype, width)
    assert dtype_of(body, lambda v: dtype if v in parts.values() else graph.type_of(v).dtype) == dtype
    group = free_name(GROUP, set(node.axes)) if GROUP in node.axes else GROUP
    if group != GROUP:
        element = substitute_axes(element, {GROUP: axis(group)})
    return partial, replace(node, over=((group, groups),), body=element)


def _lookups(graph: Graph, rows: ReducedRows, node: Node, width: int, parts: dict[str, str], names: set[str]) -> list[Node]:
    """A node that reads elements at places that data give, behind the partial results that find these elements."""
    assert node.body is not None
    behind: list[Node] = []
    read_by_lookup: dict[Lookup, Expr] = {}
    columns, last = rows.product.type.shape[-1], rows.axes[-1]
    to_rows: dict[str, Affine] = {a: axis(b) for a, b in zip(node.axes, rows.axes, strict=False)}
    bodies = _elements(graph, rows)
    for e in walk(node.body):
        if not isinstance(e, Lookup) or e.value not in bodies or e in read_by_lookup:
            continue
        dtype = graph.type_of(e.value).dtype
        clamped: Expr = Call("minimum", (Call("maximum", (cast(e.subscripts[-1], I64), const(0, I64))), const(columns - 1, I64)))
        is_here: Expr = Call("eq", (substitute_axes(Call(I32.name, (clamped,)), to_rows), Call(I32.name, (Index(axis(last)),))))
        body: Expr = Call("select", (is_here, _as_f32(bodies[e.value], dtype), const(0, F32)))
        name = free_name(f"{node.name}_parts", names)
        parts[name] = name
        partial = _partial(rows, name, "reduce.sum", body, F32, width)
        whole = Node(free_name(f"{node.name}_element", names), Type(F32, node.type.shape), "reduce.sum", rows.axes[:-1],
                     ((GROUP, partial.type.shape[0]),), body=Read(name, tuple(axis(a) for a in partial.axes)))
        behind += [partial, whole]
        chosen = Read(whole.name, tuple(axis(a) for a in node.axes))
        read_by_lookup[e] = chosen if dtype == F32 else Call(dtype.name, (chosen,))
    body = transform(node.body, lambda e: read_by_lookup[e] if isinstance(e, Lookup) and e in read_by_lookup else e)
    kind = node.kind if any(isinstance(e, Lookup) for e in walk(body)) else "map"
    return [*behind, replace(node, kind=kind, body=body)]


def _elements(graph: Graph, rows: ReducedRows) -> dict[str, Expr]:
    """The product and the maps of its elements, over the product alone."""
    elements: dict[str, Expr] = {rows.product.name: Read(rows.product.name, tuple(axis(a) for a in rows.axes))}
    for name in rows.maps:
        body = _over_rows(graph.node_by_name[name], elements, rows.axes)
        assert body is not None
        elements[name] = body
    return elements


def _as_f32(e: Expr, dtype: DType) -> Expr:
    return e if dtype == F32 else Call(F32.name, (e,))
