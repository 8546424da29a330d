"""Views: maps whose elements are elements of other values. They are folded into the subscripts of their users.

General maps are never folded into their users here: the planner and the scheduler decide which values share a kernel, and at which level
they travel.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from tilefuse.base.construction import replace
from tilefuse.ir.affine import Affine, axis, is_within, row_major_strides, substitute
from tilefuse.ir.graph import Graph, Node, Type
from tilefuse.ir.layouts import window_of
from tilefuse.ir.scalar import Expr, Guard, Index, Lookup, Read, substitute_axes, transform, walk
from tilefuse.ir.verify import verify_node
from tilefuse.passes.analyses import (
    expressions_of,
    has_divisions,
    index_atoms,
    is_computed_view,
    is_guarded_view,
    is_pure_view,
    user_counts,
)
from tilefuse.passes.manager import Pass, PassContext, Properties, Property, register_pass

# A composed subscript tuple with more axes, divisions and remainders stays a view of its own: chains of incompatible reshapes could
# otherwise double it at every step.
MAX_INDEX_ATOMS = 24
# A body that folding a guarded view would grow to more expression nodes stays unchanged.
MAX_BODY_NODES = 400
# A guarded view is folded into at most this many users, each reading it at most twice; beyond that one copy is cheaper.
MAX_GUARDED_USERS = 3
MAX_GUARDED_READS = 2
# A reduction reads a concatenation of more parts from memory: every term of its loop would begin with a choice between them.
# H200, sums down 20 concatenated steps of a recurrence: 300 us folded, 5 us from memory.
MAX_PARTS_OF_A_SUM = 4
# Limit on the evaluations of one guarded read per element (windows over a padded image); up to here cheaper than memory.
MAX_PAD_REPEATS = 32


@dataclass(frozen=True, slots=True)
class ViewTable:
    """Facts that inlining needs of a graph: views by name, with their current bodies.

    reshaped: operands of library operators, and views of which such operands are other shapes.
    """

    graph: Graph
    counts: Mapping[str, int]
    library_operands: frozenset[str]
    reshaped: frozenset[str]
    views: dict[str, Node]

    def note(self, node: Node) -> None:
        """Notes a node that later nodes may read through."""
        if is_pure_view(node) or is_computed_view(node) or self._guarded_worthwhile(node):
            self.views[node.name] = node

    def _guarded_worthwhile(self, node: Node) -> bool:
        """Guarded views that are stored anyway (escaping, or operands of library calls) are read and not evaluated again."""
        return (is_guarded_view(node) and self.counts.get(node.name, 0) <= MAX_GUARDED_USERS
                and node.name not in self.graph.escaping and node.name not in self.library_operands)

    def stay_one(self, view: Node, user: Node) -> bool:
        """Whether view and user are two shapes of one stored value: a result of the graph, and the operand of a library operator (or a
        shape between the two).

        Read through the view, the operand would be a second copy in memory.
        """
        return view.name in self.graph.escaping and user.name in self.reshaped and _is_reshape(self.graph, view, user)


def view_table(graph: Graph) -> ViewTable:
    """An empty table for the graph."""
    operands = frozenset(v for n in graph.nodes if n.operands for v in n.operands)
    reshaped = set(operands)
    for node in reversed(graph.nodes):
        if node.name in reshaped and is_pure_view(node) and isinstance(node.body, Read):
            base = graph.node_by_name.get(node.body.value)
            if base is not None and is_pure_view(base) and _is_reshape(graph, base, node):
                reshaped.add(base.name)
    return ViewTable(graph, user_counts(graph), operands, frozenset(reshaped), {})


def _is_reshape(graph: Graph, view: Node, user: Node) -> bool:
    """Whether the elements of the user are those of the view, in the same row-major order."""
    if view.type.num_elements != user.type.num_elements or not is_pure_view(user):
        return False
    return window_of(graph, user, row_major_strides(view.type.shape)) == (0, row_major_strides(user.type.shape))


def _fits(view: Node, user: Node, reads: int) -> bool:
    """Whether a view may be folded into a user that reads it this many times."""
    if not isinstance(view.body, Guard) or is_computed_view(view):
        return True
    if reads > MAX_GUARDED_READS:
        return False
    leaves = sum(isinstance(x, Read) for x in walk(view.body))
    if leaves > MAX_PARTS_OF_A_SUM and user.category in ("reduce", "scan"):
        return False
    evaluations, elements = prod(user.extents.values()), view.type.num_elements
    return evaluations <= elements * (MAX_PAD_REPEATS if leaves <= 1 else 1)


def _lookup_through(view: Node, subscripts: tuple[Expr, ...], types: Mapping[str, Type], extents: Mapping[str, int]) -> Lookup | None:
    """The lookup made directly in the view's operand; None unless the view only permutes, drops or repeats whole dimensions of subscripts
    that data gives, because clamping must mean the same. Others may become any indices within their dimensions.

    extents: of the user's axes.
    """
    if not isinstance(view.body, Read):
        return None
    by_axis = dict(zip(view.axes, subscripts, strict=True))
    known = {a: s.affine for a, s in by_axis.items() if isinstance(s, Index) and is_within(s.affine, view.extents[a], extents)}
    inner: list[Expr] = []
    for e, extent in zip(view.body.index, types[view.body.value].shape, strict=True):
        name = next(iter(e.axes()), "")
        if e.axes() <= known.keys():
            inner.append(Index(substitute(e, known, extents)))
        elif e == axis(name) and view.extents[name] == extent:
            inner.append(by_axis[name])
        else:
            return None
    return Lookup(view.body.value, tuple(inner))


def inline_into(node: Node, table: ViewTable, types: Mapping[str, Type]) -> Node:
    """`node` with the views it reads folded in; `node` itself where nothing was folded."""
    used = [v for v in node.reads() if v in table.views]
    if not used or node.category == "library" or 0 in node.extents.values():
        return node
    reads = dict.fromkeys(used, 0)
    for e in expressions_of(node):
        for x in walk(e):
            if isinstance(x, (Read, Lookup)) and x.value in reads:
                reads[x.value] += 1
    chosen = {v: table.views[v] for v in used if _fits(table.views[v], node, reads[v]) and not table.stay_one(table.views[v], node)}
    if not chosen:
        return node
    return _fold(node, chosen, types)


def _fold(node: Node, chosen: Mapping[str, Node], types: Mapping[str, Type]) -> Node:
    extents = node.extents
    doubtful = False

    def one(e: Expr) -> Expr:
        nonlocal doubtful
        match e:
            case Read(value, index) if value in chosen:
                view = chosen[value]
                assert view.body is not None
                new = substitute_axes(view.body, dict(zip(view.axes, index, strict=True)), extents)
                if isinstance(new, Read) and index_atoms(new) > max(MAX_INDEX_ATOMS, index_atoms(e)):
                    return e
                doubtful = doubtful or not isinstance(new, Read) or any(has_divisions(a) for a in new.index)
                return new
            case Lookup(value, subscripts) if value in chosen:
                return _lookup_through(chosen[value], subscripts, types, extents) or e
        return e

    body = None if node.body is None else transform(node.body, one)
    target = tuple(transform(e, one) for e in node.target)
    if body is node.body and all(a is b for a, b in zip(target, node.target, strict=True)):
        return node
    new = replace(node, body=body, target=target)
    if new.kind == "gather" and body is not None and not any(isinstance(x, Lookup) for x in walk(body)):
        new = replace(new, kind="map")
    if sum(1 for e in expressions_of(new) for _ in walk(e)) > max(MAX_BODY_NODES, sum(1 for e in expressions_of(node) for _ in walk(e))):
        return node
    # Intervals of a composed subscript can be wider than the view's own; a subscript that cannot be proved in range is not folded.
    if doubtful and any(verify_node(new, dict(types))):
        return node
    return new


def inlinable_reads(graph: Graph) -> Iterator[tuple[str, str]]:
    """(user, view) for every read that `inline-views` would still fold."""
    table = view_table(graph)
    types = graph.type_by_name
    for node in graph.nodes:
        new = inline_into(node, table, types)
        if new is not node:
            yield from ((node.name, v) for v in node.reads() if v in table.views and v not in new.reads())
        table.note(node)


@register_pass
@dataclass(frozen=True)
class InlineViews(Pass):
    """Read through views: a view's subscripts are substituted into the users' bodies, and the view is left for removal.

    Pure views (a read) and computed views (no read, cheap) are folded into every map, gather, reduce, scan and scatter. Guarded views
    (padding, concatenation) are folded where evaluating them costs less than a copy: at most three users that read it at most twice, unless
    it must be stored anyway; several reads (a concatenation) only where no element is evaluated twice, and few in a reduction.
    Lookups are folded through views that permute or drop whole dimensions of subscripts that data gives. Library operands stay: the
    planner makes strided views of them. A library operand that reshapes a result of the graph is not read through it: both are one copy
    in memory.

        %t: f32[4, 8] = map [i, j] { %x[j, i] }          (left for remove-dead-nodes)
        %y: f32[4, 8] = map [i, j] { exp(%t[i, j]) }  ->  %y: f32[4, 8] = map [i, j] { exp(%x[j, i]) }

    Exact: bit for bit.
    """

    name: ClassVar[str] = "inline-views"
    establishes: ClassVar[Properties] = frozenset({Property.VIEWS_INLINED})
    preserves: ClassVar[Properties] = frozenset({Property.PRIMITIVE_OPS_ONLY})

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        # Dead views of the first round change the number of users, so repeat until nothing changes (two or three rounds).
        for _ in range(8):
            new = self._round(graph, ctx)
            if new is graph:
                break
            graph = new
        return return_sources(graph)

    def _round(self, graph: Graph, ctx: PassContext) -> Graph:
        table = view_table(graph)
        types = graph.type_by_name
        nodes: list[Node] = []
        changed = 0
        for node in graph.nodes:
            new = inline_into(node, table, types)
            changed += new is not node
            nodes.append(new)
            table.note(new)
        if not changed:
            return graph
        ctx.count("folded", changed)
        return replace(graph, nodes=tuple(nodes))


def return_sources(graph: Graph) -> Graph:
    """The graph with results that copy an internal value replaced by that value, unless it is a result already."""
    nodes = graph.node_by_name
    renamed: dict[str, str] = {}
    for name in graph.results:
        node = nodes.get(name)
        if node is None or not is_identity(node):
            continue
        assert isinstance(node.body, Read)
        source = node.body.value
        # A slice from the start reads at the same subscripts, but is not the whole value.
        if source in nodes and nodes[source].type == node.type and source not in graph.escaping and source not in renamed.values():
            renamed[name] = source
    if not renamed:
        return graph
    results = tuple(renamed.get(r, r) for r in graph.results)
    return replace(graph, results=results, updates=tuple((i, renamed.get(v, v)) for i, v in graph.updates))


def is_identity(node: Node) -> bool:
    """Whether the map copies one value element by element."""
    if not is_pure_view(node) or not isinstance(node.body, Read):
        return False
    expected: tuple[Affine, ...] = tuple(axis(a) for a in node.axes)
    return len(node.body.index) == len(expected) and all(
        e == w or (extent == 1 and e == Affine()) for e, w, extent in zip(node.body.index, expected, node.type.shape, strict=True))

