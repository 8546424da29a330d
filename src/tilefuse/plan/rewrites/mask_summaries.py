"""Conditions of a mask that read data, bounded by summaries of blocks of rows and of blocks of columns.

    same[r, c] = d[r] == d[c]                          documents

    least[b], greatest[b]                              of d in every block of 64 rows, or columns
    may[b, t]  = least[b] <= greatest[t] and least[t] <= greatest[b]                       false: no element of the two blocks is true
    all[b, t]  = least[b] == greatest[b] == least[t] == greatest[t]                        true: all elements of them are true
    first[b], end[b]    blocks t of columns from the first that may be true to behind the last one
    begin[b], stop[b]   a run of blocks that are all true; none where the true blocks of b are no single run

    same[r, c] = (first <= c // 64 < end) and (begin <= c // 64 < stop or d[r] == d[c])    of the block r // 64

Exact: where a bound is false so is the condition, and in the run it is true. Values are integers, so that every pair is comparable; their
order in memory does not matter. A value that is a condition itself, as a mask in memory, has any and all of
each pair of blocks instead. A kernel that reads the bounds of a block leaves out tiles that they hide, and the condition in tiles
of the run.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from tilefuse.ir.affine import axis, floordiv, number
from tilefuse.ir.dtype import BOOL, I32, I64, DType
from tilefuse.ir.graph import Graph, Node, Type
from tilefuse.ir.monoids import highest, lowest
from tilefuse.ir.names import free_name
from tilefuse.ir.ops import EXCHANGED, NEGATED, dtype_of
from tilefuse.ir.scalar import (
    Bound,
    Call,
    Expr,
    Guard,
    Index,
    Lookup,
    Read,
    call,
    cast,
    children,
    const,
    indexed_axes,
    substitute_axes,
    transform,
    walk,
)
from tilefuse.kernel.pipeline import WARPGROUP_ROWS

# Rows and columns of a block. Units: elements.
BLOCK = WARPGROUP_ROWS
# Names of axes of summaries: blocks of rows and of columns, places within either, the line that a summary of one value goes along.
OF_ROWS, OF_COLUMNS, ROW, COLUMN, LINE = OWN_AXES = ("row_block", "column_block", "in_row_block", "in_column_block", "in_block")


@dataclass(frozen=True)
class Clause:
    """A condition that reads data by the row and by the column: `left` of the row compared with `right` of the column by `fn`, or a value
    of both, as it is or negated (`right` None). e: the whole of it in its node; row, column: axes of the node."""

    e: Expr
    fn: str
    left: Expr
    right: Expr | None
    row: str
    column: str

    @property
    def turned(self) -> Clause:
        """The same condition with rows as columns."""
        row, column = self.column, self.row
        if self.right is None:
            return replace(self, row=row, column=column)
        return replace(self, fn=EXCHANGED[self.fn], left=self.right, right=self.left, row=row, column=column)

    @property
    def opposite(self) -> Clause:
        """The condition that is true where this one is false."""
        if self.right is None:
            return replace(self, e=Call("logical_not", (self.e,)))
        fn = NEGATED[self.fn]
        return replace(self, e=call(fn, self.left, self.right), fn=fn)


def clauses_of(node: Node, graph: Graph) -> tuple[Clause, ...]:
    """The conditions of a map whose last two axes are rows and columns."""
    if node.category != "map" or node.body is None or len(node.axes) < 2 or not set(OWN_AXES).isdisjoint(node.axes):
        return ()
    return tuple(c for e in dict.fromkeys(_unguarded(node.body)) for c in _clause(e, node, graph))


def _unguarded(e: Expr) -> Iterator[Expr]:
    """Parts of an expression that are evaluated at all places, so that their reads are in range."""
    yield e
    if not isinstance(e, Guard):
        for part in children(e):
            yield from _unguarded(part)


def _clause(e: Expr, node: Node, graph: Graph) -> Iterable[Clause]:
    row, column = node.axes[-2:]

    def depends_on(x: Expr, line: str, other: str) -> bool:
        plain = not any(isinstance(y, Guard | Lookup) for y in walk(x))
        axes = indexed_axes(x)
        read = any(line in i.axes() for y in walk(x) if isinstance(y, Read) for i in y.index)
        kind = dtype_of(x, lambda v: graph.type_of(v).dtype)
        return plain and read and other not in axes and (kind.is_integer or kind == BOOL)

    match e:
        case Call(fn, (a, b)) if fn in NEGATED:
            if depends_on(a, row, column) and depends_on(b, column, row):
                yield Clause(e, fn, a, b, row, column)
            elif depends_on(a, column, row) and depends_on(b, row, column):
                yield Clause(e, EXCHANGED[fn], b, a, row, column)
        case Read(value, index) if graph.type_of(value).dtype == BOOL and not _is_map(value, graph):
            places = {a for i in index for a in i.axes()}
            if {row, column} <= places:
                yield Clause(e, "", e, None, row, column)


def _is_map(value: str, graph: Graph) -> bool:
    return value in graph.node_by_name and graph.node_by_name[value].category == "map"


@dataclass
class Summaries:
    """Writer of summaries: their nodes so far, each once. graph: types of the values that they read; taken: names in use."""

    graph: Graph
    taken: set[str]
    nodes: list[Node] = field(default_factory=list)
    known: dict[tuple[object, ...], str] = field(default_factory=dict)

    def bounded(self, clause: Clause, node: Node, hides: bool = False) -> Expr:
        """The condition with its bounds. hides: it hides elements, and the bounds are those of its opposite."""
        return Call("logical_not", (self._with_bounds(clause.opposite, node),)) if hides else self._with_bounds(clause, node)

    def _with_bounds(self, clause: Clause, node: Node) -> Expr:
        row, column = clause.row, clause.column
        leads = tuple(a for a in node.axes[:-2] if node.extents[a] > 1 and a in indexed_axes(clause.e))
        rows, columns = node.extents[row], node.extents[column]
        first, end, begin, stop = self._ends(clause, node, leads)
        at = (*map(axis, leads), floordiv(axis(row), BLOCK, {row: rows}))
        block: Expr = Call("i32", (Index(floordiv(axis(column), BLOCK, {column: columns})),))

        def between(low: str, high: str) -> Expr:
            return call("logical_and", call("ge", block, Read(low, at)), call("lt", block, Read(high, at)))

        return call("logical_and", between(first, end), call("logical_or", between(begin, stop), clause.e))

    def _ends(self, clause: Clause, node: Node, leads: tuple[str, ...]) -> tuple[str, str, str, str]:
        """Names of the first block of columns that may be true of each block of rows, of the end, and of the run of those that are true."""
        extents = {a: node.extents[a] for a in leads}
        row_blocks, blocks = (-(-node.extents[a] // BLOCK) for a in (clause.row, clause.column))
        may, all_ = (self._of_pairs if clause.right is not None else self._of_masks)(clause, node, leads)
        place: Expr = Call("i32", (Index(axis(OF_COLUMNS)),))
        shape, axes, over = (*extents.values(), row_blocks), (*leads, OF_ROWS), ((OF_COLUMNS, blocks),)

        def reduced(stem: str, kind: str, when: Expr, value: Expr, otherwise: int) -> str:
            body = call("select", when, value, const(otherwise, I32))
            return self._node(stem, I32, shape, axes, f"reduce.{kind}", over, body)

        behind, stem = call("add", place, const(1, I32)), node.name
        first, end = reduced(f"{stem}_first", "min", may, place, blocks), reduced(f"{stem}_end", "max", may, behind, 0)
        begin, stop = reduced(f"{stem}_least", "min", all_, place, blocks), reduced(f"{stem}_last", "max", all_, behind, 0)
        count = reduced(f"{stem}_count", "sum", all_, const(1, I32), 0)
        at = tuple(map(axis, axes))
        is_run = call("eq", call("sub", Read(stop, at), Read(begin, at)), Read(count, at))
        begin, stop = (self._node(f"{stem}_{name}", I32, shape, axes, "map", (), call("select", is_run, Read(value, at), const(0, I32)))
                       for name, value in (("begin", begin), ("stop", stop)))
        return first, end, begin, stop

    def _of_pairs(self, clause: Clause, node: Node, leads: tuple[str, ...]) -> tuple[Expr, Expr]:
        """Whether a comparison of values of a block of rows and a block of columns may be true, and whether it is true of all."""
        assert clause.right is not None
        row, column = clause.row, clause.column
        (a, z), (b, y) = (self._ends_of_line(e, node, line, block) for e, line, block in (
            (clause.left, row, OF_ROWS), (clause.right, column, OF_COLUMNS)))
        match clause.fn:
            case "eq":
                one = call("logical_and", call("logical_and", call("eq", a, z), call("eq", b, y)), call("eq", a, b))
                return call("logical_and", call("le", a, y), call("le", b, z)), one
            case "ne":
                several = call("logical_or", call("logical_or", call("ne", a, z), call("ne", b, y)), call("ne", a, b))
                return several, call("logical_or", call("lt", z, b), call("lt", y, a))
            case "lt" | "le":
                return call(clause.fn, a, y), call(clause.fn, z, b)
        return call(clause.fn, z, b), call(clause.fn, a, y)

    def _ends_of_line(self, e: Expr, node: Node, line: str, block: str) -> tuple[Expr, Expr]:
        """Elements of the least and of the greatest value of each block of a line."""
        dtype = dtype_of(e, lambda v: self.graph.type_of(v).dtype)
        if dtype.name not in ("i32", "i64"):
            # Unsigned numbers of 64 bits are compared as unsigned ones.
            wide = dtype if dtype.name == "u64" else I32 if dtype == BOOL else I64
            e, dtype = cast(e, wide), wide
        leads = tuple(a for a in node.axes[:-2] if node.extents[a] > 1 and a in indexed_axes(e))
        at = (*map(axis, leads), axis(block))
        ends = []
        for kind, limit in (("min", highest(dtype)), ("max", lowest(dtype))):
            shape = (*(node.extents[a] for a in leads), -(-node.extents[line] // BLOCK))
            place = axis(OF_ROWS) * BLOCK + axis(LINE)
            body = substitute_axes(e, {a: number(0) for a in indexed_axes(e) - {line, *leads}} | {line: place})
            if node.extents[line] % BLOCK:
                body = Guard((Bound(place, 0, node.extents[line]),), body, limit)
            name = self._node(f"{node.name}_{'lowest' if kind == 'min' else 'highest'}", dtype, shape, (*leads, OF_ROWS), f"reduce.{kind}",
                              ((LINE, BLOCK),), body)
            ends.append(Read(name, at))
        return ends[0], ends[1]

    def _of_masks(self, clause: Clause, node: Node, leads: tuple[str, ...]) -> tuple[Expr, Expr]:
        """Whether a condition in memory may be true of a block of rows and a block of columns, and whether it is true of all."""
        row, column = clause.row, clause.column
        places = {row: axis(OF_ROWS) * BLOCK + axis(ROW), column: axis(OF_COLUMNS) * BLOCK + axis(COLUMN)}
        shape = (*(node.extents[a] for a in leads), *(-(-node.extents[a] // BLOCK) for a in (row, column)))
        at = (*map(axis, leads), axis(OF_ROWS), axis(OF_COLUMNS))
        elements = substitute_axes(clause.e, places)
        facts = tuple(Bound(places[a], 0, node.extents[a]) for a in (row, column) if node.extents[a] % BLOCK)
        summaries: list[Expr] = []
        for kind in ("any", "all"):
            body = Guard(facts, elements, const(kind == "all", BOOL)) if facts else elements
            name = self._node(f"{node.name}_{kind}", BOOL, shape, (*leads, OF_ROWS, OF_COLUMNS), f"reduce.{kind}",
                              ((ROW, BLOCK), (COLUMN, BLOCK)), body)
            summaries.append(Read(name, at))
        return summaries[0], summaries[1]

    def _node(self, stem: str, dtype: DType, shape: tuple[int, ...], axes: tuple[str, ...], kind: str, over: tuple[tuple[str, int], ...],
              body: Expr) -> str:
        key = (dtype, shape, axes, kind, over, body)
        if key not in self.known:
            self.known[key] = free_name(stem, self.taken)
            self.nodes.append(Node(self.known[key], Type(dtype, shape), kind, axes, over, "", body))
        return self.known[key]


def with_bounds(graph: Graph, names: Iterable[str], hides: bool, turned: bool = False) -> tuple[Graph, tuple[str, ...]]:
    """The graph with the conditions of some maps bounded, and the names of the summaries.

    hides: as of `Summaries.bounded`. turned: a walk's rows are the last axis of the maps, and its columns the one before.
    """
    writer, inside = Summaries(graph, set(graph.type_by_name)), set(names)
    nodes: list[Node] = []
    for node in graph.nodes:
        if node.name in inside and node.body is not None:
            before = len(writer.nodes)
            by = {c.e: writer.bounded(c.turned if turned else c, node, hides) for c in clauses_of(node, graph)}
            nodes += writer.nodes[before:]
            node = replace(node, body=transform(node.body, partial(_exchanged, by)))
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes)), tuple(n.name for n in writer.nodes)


def _exchanged(by: Mapping[Expr, Expr], e: Expr) -> Expr:
    return by.get(e, e)
