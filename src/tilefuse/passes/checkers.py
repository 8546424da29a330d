"""Checkers of the properties that passes establish and preserve: each gives one text a violation, none where the property holds."""
from __future__ import annotations

from tilefuse.ir.affine import Extents, simplify
from tilefuse.ir.graph import Graph, Node
from tilefuse.ir.ranges import Facts, always, assume, deny, never
from tilefuse.ir.scalar import Bound, Expr, Guard, children
from tilefuse.passes.analyses import affines_of, expressions_of, live_values
from tilefuse.passes.cleanup import merge_key
from tilefuse.passes.decompose import EXPANSIONS
from tilefuse.passes.manager import Property, checks
from tilefuse.passes.separate_fills import shared_fills
from tilefuse.passes.separate_updates import values_apart
from tilefuse.passes.views import inlinable_reads


@checks(Property.NO_DEAD_NODES)
def _dead_nodes(graph: Graph) -> list[str]:
    live = live_values(graph)
    return [f"%{n.name} is not used" for n in graph.nodes if n.name not in live]


@checks(Property.NO_EQUAL_NODES)
def _equal_nodes(graph: Graph) -> list[str]:
    first: dict[object, str] = {}
    keys = [(n.name, merge_key(n)) for n in graph.nodes]
    return [f"%{name} computes the same as %{first[key]}" for name, key in keys if first.setdefault(key, name) != name]


@checks(Property.PRIMITIVE_OPS_ONLY)
def _composites(graph: Graph) -> list[str]:
    return [f"%{n.name} is a library.{n.detail}" for n in graph.nodes if n.category == "library" and n.detail in EXPANSIONS]


@checks(Property.AFFINE_INDICES_NORMAL)
def _indices(graph: Graph) -> list[str]:
    places = [(n, e) for n in graph.nodes if 0 not in n.extents.values() for e in expressions_of(n)]
    return [text for n, e in places for text in _index_findings(n, e, n.extents, ())]


def _index_findings(node: Node, e: Expr, extents: Extents, facts: Facts) -> list[str]:
    messages = [f"%{node.name}: {a} is not in normal form" for a in affines_of(e) if simplify(a, extents) != a]
    if isinstance(e, Guard):
        messages += [f"%{node.name}: {b.low} <= {b.index} < {b.high} is settled" for b in e.bounds if _settled(b, extents, facts)]
        messages += _index_findings(node, e.then, extents, assume(e.bounds, facts))
        return messages + _index_findings(node, e.otherwise, extents, deny(e.bounds, extents, facts))
    return messages + [text for x in children(e) for text in _index_findings(node, x, extents, facts)]


def _settled(bound: Bound, extents: Extents, facts: Facts) -> bool:
    return always(bound, extents, facts) or never(bound, extents, facts)


@checks(Property.VIEWS_INLINED)
def _views(graph: Graph) -> list[str]:
    return [f"%{user} reads the view %{view}" for user, view in inlinable_reads(graph)]


@checks(Property.UPDATES_SEPARATE)
def _updates(graph: Graph) -> list[str]:
    apart, updated = values_apart(graph), {i for i, _ in graph.updates}
    messages = [f"the result %{r} is an updated input or a constant" for r in graph.results if r in apart]
    return messages + [f"%{i} is updated by the updated input %{v}" for i, v in graph.updates if v in updated and v != i]


@checks(Property.FILLS_SEPARATE)
def _fills(graph: Graph) -> list[str]:
    return [f"%{node.name} starts from %{base.name}, which something else needs" for node, base in shared_fills(graph)]
