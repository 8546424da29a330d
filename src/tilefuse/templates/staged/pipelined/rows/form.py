"""Reductions over whole rows of a product, in the order in which a kernel computes them.

    stage       reductions that need no other's result after the one before: one exchange between the blocks of a cluster
    pass        once over the sums of a tile; the value that later passes need of an element replaces its sum
    squares     squared deviations need the mean of the block's part of the row first: a second pass of the same stage

    y = softmax(x w)        stage 0: maximum, the product's rounded elements stay      stage 1: sum, the exponentials stay      y from them

Partial results have one element for each row and each group of columns, of a width that divides them; a later kernel combines these:

    m[t, i] = max j < 256: y[i, 256 t + j]      s[t, i] = sum j < 256: exp(y[i, 256 t + j] - m[t, i])
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.domain.contraction import COLUMN
from tilefuse.ir.affine import Affine, axis, substitute
from tilefuse.ir.dtype import F32
from tilefuse.ir.graph import Graph, Node
from tilefuse.ir.scalar import Read, walk
from tilefuse.templates.staged.pipelined.elements import Elements, Point
from tilefuse.templates.staged.pipelined.points import RowPoints, point_of

# The reduction whose partial results are computed about a mean that is known.
SQUARES = "m2"


@dataclass(frozen=True)
class RowPass:
    """One pass over the sums of a tile.

    reductions  names of those whose partial results it computes
    squares     whether it adds up squared deviations from the mean of the block's part of the row
    source      the value whose elements the sums' registers hold when the pass begins; "": the sums
    target      the value that they hold behind it
    computed    maps that it computes for each element
    """

    reductions: tuple[str, ...]
    squares: bool
    source: str
    target: str
    computed: tuple[str, ...]


@dataclass(frozen=True)
class RowStage:
    """Reductions that one exchange finishes, and the maps over rows that are computed from them once a row.

    totals  for each reduction by squares the sum of the same elements, where the stage has one
    """

    reductions: tuple[str, ...]
    values: tuple[str, ...]
    passes: tuple[RowPass, ...]
    totals: Mapping[str, str]


@dataclass(frozen=True)
class RowForm:
    """All stages, and the results behind them.

    source    the value whose elements the sums' registers hold behind the last stage
    points    axes of the reductions over the product's
    places    subscripts over the product's axes of the values that kernels keep for each element or row
    elements  results with an element for each element of the product
    computed  maps that these results still compute for each element
    width     columns of a group that is reduced together; 0: whole rows
    """

    stages: tuple[RowStage, ...]
    source: str
    points: Mapping[str, Point]
    places: Mapping[str, tuple[Affine, ...]]
    elements: tuple[str, ...]
    computed: tuple[str, ...]
    width: int


def reduced_elements(graph: Graph, products: tuple[Node, ...], shape: Mapping[str, int]) -> tuple[Elements, RowPoints] | Rejected:
    """Where results and reductions of products lie, as of `elements_of`; every product is read as a whole."""
    names = tuple(n.name for n in products)
    for node in products:
        if node.type.shape != products[0].type.shape:
            return Rejected(Reason.OTHER_TEMPLATE, f"%{node.name} has other columns than %{names[0]}, and their rows are reduced together")
    rows = row_points(graph, names, shape)
    if isinstance(rows, Rejected):
        return rows
    points: dict[str, Point] = {}
    windows: dict[str, int] = dict(rows.windows)
    for name in graph.results:
        place: tuple[Point, Mapping[str, int]] | Rejected = ({}, dict(shape)) if name in names else (rows.points[name], windows) \
            if name in rows.points else point_of(graph, names, graph.node_by_name[name], shape, rows)
        if isinstance(place, Rejected):
            return place
        if place[1] != windows:
            return Rejected(Reason.DOMAIN_MISMATCH, f"%{name} has another part of the product %{names[0]} than the reductions")
        points[name] = place[0]
    return Elements(tuple((name, 0) for name in names), shape, windows, points), rows


def row_points(graph: Graph, products: tuple[str, ...], extents: Mapping[str, int]) -> RowPoints | Rejected:
    """Where the reductions behind products lie; each reduces all columns of a row or those of one group, and nothing else."""
    rows = RowPoints({}, {})
    for node in graph.nodes:
        if node.category != "reduce":
            continue
        place = point_of(graph, products, node, extents, rows)
        if isinstance(place, Rejected):
            return place
        point, sizes = place
        width = _width(node, point)
        if width is None or width and node.detail == SQUARES:
            return Rejected(Reason.OTHER_TEMPLATE, f"%{node.name} is a {node.kind} over other elements than those of whole rows")
        if rows.windows and (sizes, width) != (rows.windows, rows.width):
            return Rejected(Reason.DOMAIN_MISMATCH, f"%{node.name} has another part of the product %{products[0]} than other reductions")
        rows = RowPoints({**rows.points, node.name: point}, sizes, width)
    return rows


def _width(node: Node, point: Point) -> int | None:
    """Columns that a reduction combines; 0 for whole rows, None for others than those of a row."""
    if any(point[a].axes() - {COLUMN} for a, _ in node.over):
        return None
    outside = [a for a in node.axes if COLUMN in point[a].axes()]
    if not outside:
        return 0
    within, width = node.over[0]
    is_group = len(outside) == len(node.over) == 1 and point[outside[0]] == axis(COLUMN) // width and point[within] == axis(COLUMN) % width
    return width if is_group else None


def is_of_row(e: Affine, width: int) -> bool:
    """Whether a subscript over the product's axes is the same for all columns that are reduced together."""
    if COLUMN not in e.axes() or not width:
        return COLUMN not in e.axes()
    return "within" not in substitute(e, {COLUMN: axis("group") * width + axis("within")}, {"within": width}).axes()


def row_form(graph: Graph, elements: Elements, rows: RowPoints, down: Mapping[str, Point]) -> RowForm:
    """The stages of products' reductions. rows: where these lie; down: axes of sums down the columns, behind all stages."""
    results, points = elements.points, rows.points
    reader = _Reader(graph, frozenset(p for p, _ in elements.slices), elements.extents, {**points, **results, **down}, rows.width)
    reductions = [n.name for n in graph.nodes if n.name in points]
    of_tiles = tuple(r for r in results if r not in points and reader.reaches([r], ""))
    stages: list[RowStage] = []
    source, last = "", max((reader.ready[r] for r in reductions), default=0)
    for number in range(1, last + 1):
        here = tuple(r for r in reductions if reader.ready[r] == number)
        later = [r for r in reductions if reader.ready[r] > number]
        squares = tuple(r for r in here if _by_squares(graph, graph.node_by_name[r]))
        passes: list[RowPass] = []
        for group, needed in ((here, squares), (squares, ())):
            if not group:
                continue
            target = reader.nearest(source, [*needed, *later, *of_tiles, *down], number - 1)
            computed = reader.computed([*group, *([target] if target else [])], source)
            passes.append(RowPass(group, group is squares, source, target, computed))
            source = target
        values = reader.row_values(number)
        stages.append(RowStage(here, values, tuple(passes), _totals(graph, here, squares)))
    places = {n: next(iter(p)) for n, p in reader.places.items() if len(p) == 1}
    return RowForm(tuple(stages), source, points, places, of_tiles, reader.computed((*of_tiles, *down), source), rows.width)


def _by_squares(graph: Graph, node: Node) -> bool:
    assert node.body is not None
    return node.detail == SQUARES and node.type.dtype == F32


def _totals(graph: Graph, here: Iterable[str], squares: Iterable[str]) -> dict[str, str]:
    nodes = [graph.node_by_name[r] for r in here]
    sums = {(n.body, n.axes, n.over): n.name for n in nodes if n.detail == "sum"}
    twins = {s: sums.get((n.body, n.axes, n.over)) for s in squares for n in [graph.node_by_name[s]]}
    return {s: total for s, total in twins.items() if total is not None}


class _Reader:
    """Questions about the values behind a product: their operands, and when they can be computed."""

    def __init__(self, graph: Graph, products: frozenset[str], extents: Mapping[str, int], roots: Mapping[str, Point],
                 width: int) -> None:
        self.graph, self.products, self.width = graph, products, width
        # Exchanges that must have ended before a value is known.
        self.ready: dict[str, int] = {}
        for n in graph.nodes:
            self.ready[n.name] = max((self.ready.get(v, 0) for v in n.reads()), default=0) + (n.category == "reduce")
        self.places = self._places(extents, roots)

    def _places(self, extents: Mapping[str, int], roots: Mapping[str, Point]) -> dict[str, set[tuple[Affine, ...]]]:
        """Subscripts over the product's axes at which each value is read or written."""
        graph = self.graph
        places: dict[str, set[tuple[Affine, ...]]] = {n.name: set() for n in graph.nodes}
        waiting = [(r, point) for r, point in roots.items() if r not in self.products]
        for name, point in waiting:
            places[name].add(tuple(point[a] for a in graph.node_by_name[name].axes))
        while waiting:
            name, point = waiting.pop()
            body = graph.node_by_name[name].body
            assert body is not None
            for e in walk(body):
                if not isinstance(e, Read) or e.value not in places:
                    continue
                index, inner = tuple(substitute(i, point, extents) for i in e.index), graph.node_by_name[e.value]
                if index not in places[e.value]:
                    places[e.value].add(index)
                    if inner.category == "map" or inner.category == "gather":
                        waiting.append((e.value, dict(zip(inner.axes, index, strict=True))))
        return places

    def reaches(self, names: Iterable[str], source: str) -> bool:
        """Whether values need elements of the product, where those of `source` and reductions are known; `names` themselves are not."""
        return any(self._needs(name, source, True) for name in names)

    def _needs(self, name: str, source: str, is_root: bool) -> bool:
        if name == source:
            return False
        if name in self.products:
            return True
        node = self.graph.node_by_name.get(name)
        if node is None or node.category == "reduce" and not is_root:
            return False
        return any(self._needs(v, source, False) for v in node.reads())

    def nearest(self, source: str, values: list[str], exchanges: int) -> str:
        """The value nearest to `values` from whose elements all of these can be computed, after so many exchanges.

        Its elements replace those of `source` in the registers of the sums, so they must be exact in f32.
        """
        if not self.reaches(values, ""):
            return source
        for node in reversed(self.graph.nodes):
            dtype, name = node.type.dtype, node.name
            fits = dtype.is_float and dtype.bits <= F32.bits and len(self.places[name]) == 1 or name in self.products
            if node.category in ("reduce",) or not fits or self.ready[name] > exchanges or not self.reaches([name], ""):
                continue
            if name == source or not self.reaches(values, name) and (not source or not self.reaches([name], source)):
                return name
        return source

    def computed(self, names: Iterable[str], source: str) -> tuple[str, ...]:
        """Maps that are computed for each element on the way to values, in order of the graph; reductions by their bodies."""
        seen: set[str] = set()
        waiting = [(n, True) for n in names]
        while waiting:
            name, is_root = waiting.pop()
            node = self.graph.node_by_name.get(name)
            if node is None or name in seen or name == source or name in self.products or not self._needs(name, "", is_root):
                continue
            seen.add(name)
            waiting += [(v, False) for v in node.reads()]
        return tuple(n.name for n in self.graph.nodes if n.name in seen)

    def row_values(self, exchanges: int) -> tuple[str, ...]:
        """Maps over rows that are known after so many exchanges and not before, which values of other kinds read, or which are results."""
        graph = self.graph
        values = []
        for n in graph.nodes:
            is_row = n.category == "map" and self.ready[n.name] == exchanges and not self.reaches([n.name], "")
            single = len(self.places[n.name]) == 1 and all(is_of_row(e, self.width) for p in self.places[n.name] for e in p)
            readers = [graph.node_by_name[u] for u in graph.users_by_name[n.name]]
            read = n.name in graph.results or any(u.category == "reduce" or self.reaches([u.name], "") for u in readers)
            if is_row and single and read:
                values.append(n.name)
        return tuple(values)
