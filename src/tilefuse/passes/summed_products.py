"""Turns sums of many small products into one long product: the weight gradients that a recurrent net's backward pass sums over its steps.

    a1 @ b1 + a2 @ b2 + a3 @ b3                        ->      [a1 a2 a3] @ [b1; b2; b3]
    sum over rows of b1 + ... of b2 + ... of b3        ->      sum over rows of [b1; b2; b3]         where that is laid end to end anyway
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from tilefuse.ir.affine import axis
from tilefuse.ir.graph import Graph, Node
from tilefuse.ir.scalar import Call, Expr, Guard, Lookup, Read, children, rebuild, substitute_axes, walk
from tilefuse.passes.analyses import live_values, user_counts
from tilefuse.passes.decompose import Rewriter
from tilefuse.passes.manager import Pass, PassContext, Properties, Property, register_pass

# Names of the axes in which matrices are compared.
ROW, COLUMN = "row", "column"


@register_pass
@dataclass(frozen=True)
class MergeSummedProducts(Pass):
    """Join products whose results are only added up into one product of operands laid end to end, and sums of these operands' rows.

    min_terms: fewer terms stay apart. max_bytes: a term with larger operands stays a call of its own. Units: bytes.
    Exact: no; the terms are summed in another order.
    Cost: about linear in the nodes; the copies that concatenate the operands move less than the terms' own calls.
    """

    name: ClassVar[str] = "merge-summed-products"
    preserves: ClassVar[Properties] = frozenset({Property.NO_DEAD_NODES, Property.PRIMITIVE_OPS_ONLY, Property.AFFINE_INDICES_NORMAL})
    exact: ClassVar[bool] = False

    min_terms: int = 3
    max_bytes: int = 4 << 20

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        counts = user_counts(graph)
        sums = sums_of(graph, counts)
        plans = {root: groups for root, total in sums.items() if (groups := self._groups(graph, total.terms, counts))}
        if not plans:
            return graph
        rows = _rows_of_operands(graph, plans, sums, counts)
        replaced = {t for groups in plans.values() for group in groups for t in group}
        replaced |= {t for row_sum in rows.values() for terms in row_sum.groups.values() for t in terms} | rows.keys()
        replaced |= {n for root in (*plans, *rows) for n in sums[root].inner}
        live = live_values(graph)  # a dead view may still look at a term
        b = Rewriter(graph)
        operands: dict[Place, str] = {}
        for node in graph.nodes:
            if node.name in plans:
                b.prefix, b.span = f"{node.name}_", node.span
                joined = []
                for number, group in enumerate(plans[node.name]):
                    left, right, product = _joined(b, [graph.node_by_name[t] for t in group])
                    operands |= {(node.name, number, 0): left, (node.name, number, 1): right}
                    joined.append(product)
                self._add_up(b, node.name, [*joined, *(t for t in sums[node.name].terms if t not in replaced)])
                ctx.count("joined", sum(map(len, plans[node.name])))
            elif node.name in live and node.name not in replaced:
                b.add(node)
            for root, row_sum in rows.items():
                if row_sum.after == node.name:
                    b.prefix, b.span = f"{root}_", graph.node_by_name[root].span
                    joined = [b.reduce(operands[place], "sum", (0,)) for place in row_sum.groups]
                    self._add_up(b, root, [*joined, *(t for t in sums[root].terms if t not in replaced)])
                    ctx.count("row sums", sum(map(len, row_sum.groups.values())))
        return replace(graph, nodes=tuple(b.nodes))

    def _add_up(self, b: Rewriter, root: str, terms: Sequence[str]) -> None:
        total, *others = terms
        for other in others:
            total = b.elementwise("add", total, other)
        b.rename_last(total, root)
        b.prefix = ""

    def _groups(self, graph: Graph, terms: Sequence[str], counts: Mapping[str, int]) -> list[list[str]]:
        """The terms that can be joined, grouped by kind."""
        terms_by_kind: dict[object, list[str]] = {}
        for name in terms:
            node = graph.node_by_name.get(name)
            if node is None or counts.get(name, 0) != 1 or name in graph.escaping:
                continue
            kind = _kind(graph, node)
            if kind is not None and sum(graph.type_of(v).num_bytes for v in node.reads()) <= self.max_bytes:
                terms_by_kind.setdefault(kind, []).append(name)
        return [group for group in terms_by_kind.values() if len(group) >= self.min_terms]


@dataclass(frozen=True, slots=True)
class Sum:
    """A tree of additions: its terms, and the inner additions, whose values have no other user."""

    terms: tuple[str, ...]
    inner: tuple[str, ...]


# An operand of a joined product: the sum's root, the number of the group, and 0 for the left or 1 for the right operand.
Place = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class RowSums:
    """Terms of one sum that are sums over the rows of joined products' operands; `after` is the node after which all of them are
    available."""

    after: str
    groups: Mapping[Place, Sequence[str]]


def sums_of(graph: Graph, counts: Mapping[str, int]) -> dict[str, Sum]:
    """The trees of additions of whole tensors, by the name of the last addition; a tree within a larger one is not listed."""
    addends = {n.name: addends_of for n in graph.nodes if (addends_of := terms_of(n))}
    inside = {v for pair in addends.values() for v in pair if v in addends and counts.get(v) == 1 and v not in graph.escaping}
    sums: dict[str, Sum] = {}
    for root in addends:
        if root in inside:
            continue
        terms: list[str] = []
        inner: list[str] = []
        todo = [root]
        while todo:
            value = todo.pop()
            if value != root and value not in inside:
                terms.append(value)
                continue
            if value != root:
                inner.append(value)
            todo.extend(reversed(addends[value]))
        sums[root] = Sum(tuple(terms), tuple(inner))
    return sums


def terms_of(node: Node) -> tuple[str, ...]:
    """The two values that a node adds element by element; empty for any other node."""
    if node.category != "map" or not isinstance(node.body, Call) or node.body.fn != "add":
        return ()
    here = tuple(map(axis, node.axes))
    first, second = node.body.args
    if isinstance(first, Read) and isinstance(second, Read) and first.index == here == second.index and first.value != second.value:
        return first.value, second.value
    return ()


def _kind(graph: Graph, node: Node) -> object | None:
    """Equal for terms that can be joined: products of two matrices with one result type and precision; None for other nodes."""
    if node.kind != "library.matmul" or len(node.type.shape) != 2:
        return None
    operands = tuple(graph.type_of(v) for v in node.operands)
    if any(len(t.shape) != 2 for t in operands):
        return None
    return node.type, tuple(t.dtype for t in operands), tuple(a for a in node.attributes if not a[0].startswith("transpose_"))


def _operand_rows(graph: Graph, group: Sequence[str]) -> list[tuple[Expr, ...]]:
    """Matrices that a group of products concatenates, for the left and for the right operand: the element at (row, column) of each matrix
    whose rows are summed."""
    here = (axis(ROW), axis(COLUMN))
    nodes = [graph.node_by_name[t] for t in group]
    left = tuple(_seen_through(graph, Read(n.operands[0], here if n.attribute("transpose_a") else here[::-1])) for n in nodes)
    right = tuple(_seen_through(graph, Read(n.operands[1], here[::-1] if n.attribute("transpose_b") else here)) for n in nodes)
    return [left, right]


def _seen_through(graph: Graph, e: Expr) -> Expr:
    """An element with every view on the way expanded: maps that choose and read, and compute nothing."""
    match e:
        case Read(value, index):
            node = graph.node_by_name.get(value)
            if node is None or node.kind != "map" or node.body is None or any(isinstance(x, Call | Lookup) for x in walk(node.body)):
                return e
            return _seen_through(graph, substitute_axes(node.body, dict(zip(node.axes, index, strict=True))))
        case Guard():
            return rebuild(e, tuple(_seen_through(graph, x) for x in children(e)))
    return e


def _rows_of_operands(graph: Graph, plans: Mapping[str, Sequence[Sequence[str]]], sums: Mapping[str, Sum],
                      counts: Mapping[str, int]) -> dict[str, RowSums]:
    """The trees of additions that sum the rows of matrices which some group of products concatenates."""
    laid: dict[tuple[Expr, ...], Place] = {}
    for root, groups in plans.items():
        for number, group in enumerate(groups):
            for place, matrices in enumerate(_operand_rows(graph, group)):
                if len(set(matrices)) == len(matrices):
                    laid.setdefault(matrices, (root, number, place))
    position = graph.position_by_name
    row_sums: dict[str, RowSums] = {}
    for root, tree in sums.items():
        terms = _row_sums(graph, tree.terms, counts, laid) if root not in plans else {}
        if terms:
            after = max((root, *(p for p, _, _ in terms)), key=position.__getitem__)
            # The sum moves behind the product, so nothing may need it earlier.
            if root not in graph.escaping and all(position[u] > position[after] for u in graph.users_by_name[root]):
                row_sums[root] = RowSums(after, terms)
    return row_sums


def _row_sums(graph: Graph, terms: Sequence[str], counts: Mapping[str, int],
              laid: Mapping[tuple[Expr, ...], Place]) -> dict[Place, list[str]]:
    """The terms that are sums over the rows of concatenated matrices, by operand."""
    term_of: dict[Expr, str] = {}
    for name in terms:
        node = graph.node_by_name.get(name)
        if node is None or node.kind != "reduce.sum" or counts.get(name, 0) != 1 or name in graph.escaping:
            continue
        if len(node.axes) == 1 == len(node.over) and node.body is not None:
            at = {node.over[0][0]: axis(ROW), node.axes[0]: axis(COLUMN)}
            term_of.setdefault(_seen_through(graph, substitute_axes(node.body, at)), name)
    return {place: [term_of.pop(m) for m in matrices] for matrices, place in laid.items() if all(m in term_of for m in matrices)}


def _joined(b: Rewriter, terms: Sequence[Node]) -> tuple[str, str, str]:
    """One product for all terms of a group, after its operands: the terms' operands, concatenated along the summed axis, which comes
    first."""
    left = b.concatenate([_turned(b, n.operands[0], not n.attribute("transpose_a")) for n in terms], 0)
    right = b.concatenate([_turned(b, n.operands[1], bool(n.attribute("transpose_b"))) for n in terms], 0)
    return left, right, b.matmul(left, right, transpose_a=True, precision=str(terms[0].attribute("precision", "default")))


def _turned(b: Rewriter, value: str, turn: bool) -> str:
    return b.permute(value, (1, 0)) if turn else value
