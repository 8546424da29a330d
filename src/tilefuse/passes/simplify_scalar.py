"""Scalar expressions rewritten by the rules of `scalar_rules.py`, bottom-up, until none matches."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from tilefuse.ir.dtype import DTYPES, DType
from tilefuse.ir.graph import Graph, Node
from tilefuse.ir.ops import dtype_of
from tilefuse.ir.scalar import Expr, Guard, children, rebuild, walk
from tilefuse.passes.manager import Pass, PassContext, Properties, Property, register_pass
from tilefuse.passes.scalar_rules import Rule, rules_for


class Simplifier:
    """Applies rules bottom-up until none matches. `read_dtype` gives the dtypes of values."""

    def __init__(self, rules: Sequence[Rule], read_dtype: Callable[[str], DType]) -> None:
        self.everywhere = tuple(r for r in rules if not r.roots)
        self.by_root: dict[str, list[Rule]] = {}
        for r in rules:
            for root in sorted(r.roots):
                self.by_root.setdefault(root, []).append(r)
        self.read_dtype = read_dtype
        self.counts: dict[str, int] = {}

    def types(self, e: Expr) -> DType:
        """Data type of an expression."""
        return dtype_of(e, self.read_dtype)

    def run(self, e: Expr) -> Expr:
        """`e` simplified; `e` itself if no rule matched. Cost: linear in the expression for each rewrite at a node."""
        parts = children(e)
        if not parts:
            return e
        return self._settle(rebuild(e, tuple(self.run(x) for x in parts)))

    def _settle(self, e: Expr) -> Expr:
        """`e`, whose subexpressions are settled, rewritten until no rule matches."""
        root = "guard" if isinstance(e, Guard) else getattr(e, "fn", "")
        for r in (*self.by_root.get("convert" if root in DTYPES else root, ()), *self.everywhere):
            new = r.apply(e, self.types)
            if new is not None:
                self.counts[r.name] = self.counts.get(r.name, 0) + 1
                # A rule may build new calls below the top, so the whole replacement is settled again.
                return self.run(new)
        return e


def simplify_scalars(e: Expr, read_dtype: Callable[[str], DType], eager_rounding: bool = False) -> Expr:
    """`e` with all rules applied (only exact ones with `eager_rounding`); `e` itself if none matched."""
    return Simplifier(rules_for(eager_rounding), read_dtype).run(e)


@register_pass
@dataclass(frozen=True)
class SimplifyScalar(Pass):
    """Rewrite scalar expressions by the rules of `scalar_rules.py`, bottom-up, until none matches.

    exact_only: only rules that are exact bit for bit; also in force where the compile asks for eager rounding.
    Exact: no. The inexact rules keep f32 precision through f16 and bf16 intermediates, write small powers as products and roots,
        and drop + 0.0.
    """

    name: ClassVar[str] = "simplify-scalar"
    preserves: ClassVar[Properties] = frozenset({Property.PRIMITIVE_OPS_ONLY})
    exact: ClassVar[bool] = False

    exact_only: bool = False

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        types = graph.type_by_name
        simplifier = Simplifier(rules_for(self.exact_only or ctx.eager_rounding), lambda v: types[v].dtype)
        nodes = tuple(ctx.once(self, n, lambda node: self._node(node, simplifier)) for n in graph.nodes)
        for name, times in simplifier.counts.items():
            ctx.count(name, times)
        if all(a is b for a, b in zip(nodes, graph.nodes, strict=True)):
            return graph
        return replace(graph, nodes=nodes)

    def _node(self, node: Node, simplifier: Simplifier) -> Node:
        if node.body is None:
            return node
        body = simplifier.run(node.body)
        target = tuple(simplifier.run(e) for e in node.target)
        if body is node.body and all(a is b for a, b in zip(target, node.target, strict=True)):
            return node
        kind = "map" if node.kind == "gather" and not any(hasattr(x, "subscripts") for x in walk(body)) else node.kind
        return replace(node, kind=kind, body=body, target=target)
