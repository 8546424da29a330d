"""Sums of many small products as one long product: what a recurrent net's backward pass adds up for each weight, step by step.

    a1 @ b1 + a2 @ b2 + a3 @ b3      ->      [a1 a2 a3] @ [b1; b2; b3]
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from tilefuse.ir.affine import axis
from tilefuse.ir.graph import Graph, Node
from tilefuse.ir.scalar import Call, Read
from tilefuse.passes.analyses import live_values, user_counts
from tilefuse.passes.decompose import Rewriter
from tilefuse.passes.manager import Pass, PassContext, Properties, Property, register_pass


@register_pass
@dataclass(frozen=True)
class MergeSummedProducts(Pass):
    """Join products whose results are only added up into one product of operands laid end to end.

    min_terms: fewer terms than this stay apart. max_bytes: a term with larger operands is worth a call of its own. Units: bytes.
    Exact: no; the terms are summed in another order.
    Cost: about linear in the nodes; the copies that lay the operands end to end move less than the terms' own calls.
    """

    name: ClassVar[str] = "merge-summed-products"
    preserves: ClassVar[Properties] = frozenset({Property.NO_DEAD_NODES, Property.PRIMITIVE_OPS_ONLY, Property.AFFINE_INDICES_NORMAL})
    exact: ClassVar[bool] = False

    min_terms: int = 3
    max_bytes: int = 4 << 20

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        counts = user_counts(graph)
        sums = sums_of(graph, counts)
        plans = {root: groups for root, found in sums.items() if (groups := self._groups(graph, found.terms, counts))}
        if not plans:
            return graph
        gone = {t for groups in plans.values() for group in groups for t in group} | {n for root in plans for n in sums[root].inner}
        live = live_values(graph)  # a dead view may still look at a term
        b = Rewriter(graph)
        for node in graph.nodes:
            if node.name in plans:
                b.prefix, b.span = f"{node.name}_", node.span
                joined = [_joined(b, [graph.node_by_name[t] for t in group]) for group in plans[node.name]]
                total, *others = [*joined, *(t for t in sums[node.name].terms if t not in gone)]
                for other in others:
                    total = b.elementwise("add", total, other)
                b.rename_last(total, node.name)
                b.prefix = ""
                ctx.count("joined", sum(map(len, plans[node.name])))
            elif node.name in live and node.name not in gone:
                b.add(node)
        return replace(graph, nodes=tuple(b.nodes))

    def _groups(self, graph: Graph, terms: Sequence[str], counts: Mapping[str, int]) -> list[list[str]]:
        """The terms that can be joined, in groups of one kind."""
        found: dict[object, list[str]] = {}
        for name in terms:
            node = graph.node_by_name.get(name)
            if node is None or counts.get(name, 0) != 1 or name in graph.escaping:
                continue
            kind = _kind(graph, node)
            if kind is not None and sum(graph.type_of(v).num_bytes for v in node.reads()) <= self.max_bytes:
                found.setdefault(kind, []).append(name)
        return [group for group in found.values() if len(group) >= self.min_terms]


@dataclass(frozen=True, slots=True)
class Sum:
    """A tree of additions: what is added up, and the additions inside, whose values nobody else sees."""

    terms: tuple[str, ...]
    inner: tuple[str, ...]


def sums_of(graph: Graph, counts: Mapping[str, int]) -> dict[str, Sum]:
    """The trees of additions of whole tensors, by the name of the last addition; a tree within a larger one is not listed."""
    addends = {n.name: found for n in graph.nodes if (found := _addends(n))}
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


def _addends(node: Node) -> tuple[str, ...]:
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


def _joined(b: Rewriter, terms: Sequence[Node]) -> str:
    """One product for all terms of a group; operands end to end along the axis that is summed, which comes first."""
    left = b.concatenate([_turned(b, n.operands[0], not n.attribute("transpose_a")) for n in terms], 0)
    right = b.concatenate([_turned(b, n.operands[1], bool(n.attribute("transpose_b"))) for n in terms], 0)
    return b.matmul(left, right, transpose_a=True, precision=str(terms[0].attribute("precision", "default")))


def _turned(b: Rewriter, value: str, turn: bool) -> str:
    return b.permute(value, (1, 0)) if turn else value
