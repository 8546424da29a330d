"""Softmax over columns that are joined to the scores of an attention and cut off again: sinks, which take part in sums alone.

    l = [s, sink]     p = softmax(l)     p[:, :n] @ v        ->        t = sum exp(s - m) + exp(sink - m),   m = max(max s, sink)
                                                                       (exp(s - m) / t) @ v

Every map over the joined columns becomes two, one over the columns that the product reads and one over the others; every reduction is
combined from both. The scores then have the columns of the product, as kernels that walk them take them.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import ClassVar

from tilefuse.ir.affine import Affine, axis, number
from tilefuse.ir.graph import Graph, Node, Type
from tilefuse.ir.names import free_name
from tilefuse.ir.scalar import Bound, Call, Expr, Guard, Read, substitute_axes, transform, walk
from tilefuse.passes.analyses import live_values
from tilefuse.passes.manager import Pass, PassContext, Properties, Property, register_pass
from tilefuse.passes.simplify_index import simplify_indices

# Columns up to which a reduction is written out.
FEW_COLUMNS = 8
COMBINING = {"max": "maximum", "min": "minimum", "sum": "add", "prod": "mul"}


@register_pass
@dataclass(frozen=True)
class SplitJoinedColumns(Pass):
    """Split maps and reductions over columns that are joined to a product's, where a product behind them reads those columns alone.

    Exact: sums are in another order.
    """

    name: ClassVar[str] = "split-joined-columns"
    preserves: ClassVar[Properties] = frozenset({Property.PRIMITIVE_OPS_ONLY})
    exact: ClassVar[bool] = False

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        """The graph without joined columns that products leave out."""
        for node in graph.nodes:
            window = _window(graph, node)
            joined = None if window is None else _joined(graph, window)
            if joined is not None:
                ctx.count("split")
                # Names have changed: other windows are looked for in the new graph.
                return self.run(_Splitting(graph, joined).graph(), ctx)
        return graph


@dataclass(frozen=True, slots=True)
class _Window:
    """A view of columns `first` .. + `count` of the `extent` columns of a map, its dimension `place`, for products alone."""

    view: Node
    of: str
    place: int
    first: int
    count: int
    extent: int

    @property
    def others(self) -> int:
        """First of the other columns, which are neighbours."""
        return self.count if self.first == 0 else 0


def _window(graph: Graph, node: Node) -> _Window | None:
    """The window that a node is: some columns from the first one on, or up to the last one, of a map."""
    if node.kind != "map" or not isinstance(node.body, Read) or not graph.users_by_name[node.name] or node.name in graph.results:
        return None
    if any(graph.node_by_name[u].kind != "library.matmul" for u in graph.users_by_name[node.name]):
        return None
    read = node.body
    whole = graph.node_by_name.get(read.value)
    if whole is None or whole.kind != "map" or not node.type.shape:
        return None
    last = axis(node.axes[-1])
    places = [n for n, e in enumerate(read.index) if e - e.const == last]
    if len(places) != 1 or any(node.axes[-1] in e.axes() for n, e in enumerate(read.index) if n != places[0]):
        return None
    first, count, extent = read.index[places[0]].const, node.type.shape[-1], whole.type.shape[places[0]]
    if not 0 < count < extent or first not in (0, extent - count):
        return None
    return _Window(node, whole.name, places[0], first, count, extent)


@dataclass(slots=True)
class _Joined:
    """The maps over the joined columns, each with the dimension that these are, and the reductions over them. `guarded`: whether a choice
    between the window and the other columns occurs."""

    window: _Window
    maps: dict[str, int] = field(default_factory=dict)
    reductions: dict[str, None] = field(default_factory=dict)
    guarded: bool = False


def _joined(graph: Graph, window: _Window) -> _Joined | None:
    """All that has the window's joined columns, None where something else reads it, where it is no choice between columns of a product and
    others, or where a reduction has no two parts."""
    joined = _Joined(window, {window.of: window.place})
    waiting, seen, product = [window.of], set[str](), False
    while waiting:
        node = graph.node_by_name.get(waiting.pop())
        if node is None or node.name in seen:
            continue
        seen.add(node.name)
        product |= node.kind == "library.matmul"
        if node.category == "library" or node.body is None:
            continue
        over = _joined_axis(node, joined)
        if over is None and node.kind.startswith("reduce.") and [e for _, e in node.over] == [window.extent]:
            over = node.over[0][0]
        if over is not None:
            new = _follow(graph, node, over, joined)
            seen -= new
            waiting += new
            if node.over and over == node.over[0][0]:
                joined.reductions[node.name] = None
        waiting += node.reads()
    live = live_values(graph)
    users = {u for v in joined.maps for u in graph.users_by_name[v] if u in live}
    closed = users <= joined.maps.keys() | joined.reductions.keys() | {window.view.name}
    combined = all(graph.node_by_name[r].detail in COMBINING for r in joined.reductions)
    returned = any(v in graph.results for v in joined.maps)
    return joined if product and joined.guarded and closed and combined and not returned else None


def _joined_axis(node: Node, joined: _Joined) -> str | None:
    """The axis of a map that is the joined columns."""
    return node.axes[joined.maps[node.name]] if node.name in joined.maps else None


def _follow(graph: Graph, node: Node, over: str, joined: _Joined) -> set[str]:
    """Notes the maps over all joined columns that a node reads at its own column, and its choices between columns. The answer: new maps."""
    window, new = joined.window, set[str]()
    assert node.body is not None
    for e in walk(node.body):
        match e:
            case Read(value, index):
                maker = graph.node_by_name.get(value)
                places = [n for n, x in enumerate(index) if x == axis(over)]
                if maker is not None and maker.kind == "map" and len(places) == 1 and maker.type.shape[places[0]] == window.extent:
                    new |= set() if value in joined.maps else {value}
                    joined.maps.setdefault(value, places[0])
            case Guard(bounds, _, _) if any(_parts(b, over, window) for b in bounds):
                joined.guarded = True
    return new


def _parts(bound: Bound, over: str, window: _Window) -> bool:
    """Whether a bound holds in the window and not beside it, or the other way round."""
    if bound.index - bound.index.const != axis(over):
        return False
    inside = [bound.low <= x + bound.index.const < bound.high for x in (window.first, window.first + window.count - 1)]
    other = window.extent - window.count
    beside = [bound.low <= x + bound.index.const < bound.high for x in (window.others, window.others + other - 1)]
    return len({*inside}) == len({*beside}) == 1 and inside != beside


class _Splitting:
    """The graph with everything over joined columns in two parts: the window's columns and the others, each counted from 0."""

    def __init__(self, graph: Graph, joined: _Joined) -> None:
        self._graph, self._joined, self._window = graph, joined, joined.window
        taken = set(graph.type_by_name)
        self._names = {v: (free_name(f"{v}_inside", taken), free_name(f"{v}_beside", taken)) for v in (*joined.maps, *joined.reductions)}

    def graph(self) -> Graph:
        """The new graph."""
        nodes: list[Node] = []
        for node in self._graph.nodes:
            if node.name in self._joined.maps:
                nodes += self._maps(node)
            elif node.name in self._joined.reductions:
                nodes += self._reductions(node)
            elif node.name == self._window.view.name:
                assert isinstance(node.body, Read)
                nodes.append(replace(node, body=self._moved(node.body, 0, self._window.first)))
            else:
                nodes.append(node)
        return replace(self._graph, nodes=tuple(nodes))

    def _columns(self) -> Iterator[tuple[int, int, int]]:
        """(number of the part, its first column, its columns)."""
        window = self._window
        yield 0, window.first, window.count
        yield 1, window.others, window.extent - window.count

    def _maps(self, node: Node) -> Iterator[Node]:
        place = self._joined.maps[node.name]
        for part, first, count in self._columns():
            shape = tuple(count if n == place else e for n, e in enumerate(node.type.shape))
            new = replace(node, name=self._names[node.name][part], type=Type(node.type.dtype, shape))
            yield replace(new, body=self._body(node, node.axes[place], part, first, new.extents))

    def _reductions(self, node: Node) -> Iterator[Node]:
        (over, _), = node.over
        names = self._names[node.name]
        for part, first, count in self._columns():
            new = replace(node, name=names[part], over=((over, count),))
            body = self._body(node, over, part, first, new.extents)
            if count > FEW_COLUMNS:
                yield replace(new, body=body)
                continue
            columns = (substitute_axes(body, {over: number(n)}, node.extents) for n in range(count))
            yield replace(new, kind="map", over=(), body=reduce(lambda a, b: Call(COMBINING[node.detail], (a, b)), columns))
        index = tuple(map(axis, node.axes))
        both = tuple(Read(n, index) for n in names)
        yield replace(node, kind="map", over=(), body=Call(COMBINING[node.detail], both))

    def _body(self, node: Node, over: str, part: int, first: int, extents: Mapping[str, int]) -> Expr:
        """A body at the columns of one part."""
        assert node.body is not None
        here = substitute_axes(node.body, {over: axis(over) + first}, extents)
        moved = transform(here, lambda e: self._moved(e, part, first) if isinstance(e, Read) else e)
        return simplify_indices(moved, extents)

    def _moved(self, e: Read, part: int, first: int) -> Read:
        """A read of joined columns as one of a part, whose columns count from its first one."""
        place = self._joined.maps.get(e.value)
        if place is None:
            return e
        index: tuple[Affine, ...] = tuple(x - first if n == place else x for n, x in enumerate(e.index))
        return Read(self._names[e.value][part], index)
