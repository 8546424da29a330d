"""Index expressions in normal form, and guards without bounds that always hold."""
from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from tilefuse.ir.affine import Affine, Extents, simplify
from tilefuse.ir.dtype import I64
from tilefuse.ir.graph import Graph, Node
from tilefuse.ir.ranges import Facts, always, assume, deny, never
from tilefuse.ir.scalar import Bound, Const, Expr, Guard, Index, Read, children, const, rebuild
from tilefuse.passes.manager import Pass, PassContext, Properties, Property, register_pass


def simplify_indices(e: Expr, extents: Extents, facts: Facts = ()) -> Expr:
    """`e` with every index expression simplified and every guard freed of bounds that always hold; `e` itself if nothing changed.

    Exact: bit for bit at every point of the domain. Requires: all extents at least 1.
    """
    match e:
        case Const():
            return e
        case Read(value, index):
            new = _affines(index, extents)
            return e if new is index else Read(value, new)
        case Index(affine):
            simple = simplify(affine, extents)
            return const(simple.const, I64) if simple.is_const else e if simple == affine else Index(simple)
        case Guard():
            return _guard(e, extents, facts)
    return rebuild(e, tuple(simplify_indices(x, extents, facts) for x in children(e)))


def _affines(index: tuple[Affine, ...], extents: Extents) -> tuple[Affine, ...]:
    new = tuple(simplify(a, extents) for a in index)
    return index if new == index else new


def _guard(e: Guard[Expr], extents: Extents, facts: Facts) -> Expr:
    narrowed: list[Bound] = []
    for bound in e.bounds:
        simple = simplify(bound.index, extents)
        bound = bound if simple == bound.index else Bound(simple, bound.low, bound.high)
        if never(bound, extents, facts):
            return simplify_indices(e.otherwise, extents, facts)
        if not always(bound, extents, facts):
            _intersect(narrowed, bound)
    if not narrowed:
        return simplify_indices(e.then, extents, facts)
    then = simplify_indices(e.then, extents, assume(narrowed, facts))
    otherwise = simplify_indices(e.otherwise, extents, deny(narrowed, extents, facts))
    if then == otherwise:
        return then
    if isinstance(then, Guard) and then.otherwise == otherwise:
        # Nested guards with one alternative are one guard with all bounds.
        for bound in then.bounds:
            _intersect(narrowed, bound)
        then = then.then
    if tuple(narrowed) == e.bounds and then is e.then and otherwise is e.otherwise:
        return e
    return Guard(tuple(narrowed), then, otherwise)


def _intersect(bounds: list[Bound], bound: Bound) -> None:
    """Adds a bound; one on the same index expression up to a constant is narrowed instead."""
    for n, other in enumerate(bounds):
        if other.index.terms == bound.index.terms:
            shift = other.index.const - bound.index.const
            bounds[n] = Bound(other.index, max(other.low, bound.low + shift), min(other.high, bound.high + shift))
            return
    bounds.append(bound)


def simplify_node(node: Node) -> Node:
    """`node` with body and target subscripts simplified; `node` itself if nothing changed."""
    extents = node.extents
    if node.category == "library" or 0 in extents.values():
        return node
    body = None if node.body is None else simplify_indices(node.body, extents)
    target = tuple(simplify_indices(e, extents) for e in node.target)
    if body is node.body and all(a is b for a, b in zip(target, node.target, strict=True)):
        return node
    return replace(node, body=body, target=target)


@register_pass
@dataclass(frozen=True)
class SimplifyIndex(Pass):
    """Bring every index expression into normal form for the given extents, and drop settled guards.

    (6*i + j) // 6 with j < 6 becomes i; k*m*(x // m) + k*(x % m) becomes k*x; axes of extent 1 become 0. A guard that always holds is
    replaced by its branch, one that never holds by the other; bounds implied by the guards around are dropped.
    Exact: bit for bit.
    """

    name: ClassVar[str] = "simplify-index"
    establishes: ClassVar[Properties] = frozenset({Property.AFFINE_INDICES_NORMAL})
    preserves: ClassVar[Properties] = frozenset({Property.PRIMITIVE_OPS_ONLY})

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        nodes = tuple(ctx.once(self, n, simplify_node) for n in graph.nodes)
        changed = sum(a is not b for a, b in zip(nodes, graph.nodes, strict=True))
        if not changed:
            return graph
        ctx.count("simplified", changed)
        return replace(graph, nodes=nodes)
