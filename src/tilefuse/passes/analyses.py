"""Analyses of a graph for passes and the manager: live values, views, changed nodes.

Analyses are plain functions of a graph; nothing is cached here that a rewritten graph could make false.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilefuse.ir.affine import Affine, FloorDiv, Mod
from tilefuse.ir.graph import Graph, Node, Type
from tilefuse.ir.ops import flops_of
from tilefuse.ir.scalar import Const, Expr, Guard, Index, Lookup, Read, walk
from tilefuse.ir.verify import Finding, verify, verify_node

# Bodies without any read, of at most this many expression nodes, are recomputed by their users.
COMPUTED_VIEW_NODES = 12
# Limit on their operations: powers, sines and cosines of positions (tables of angles) are values, which the planner keeps in memory or
# computes again by price.
COMPUTED_VIEW_FLOPS = 20


def live_values(graph: Graph) -> set[str]:
    """Names of the values that a result or an update depends on. Cost: linear."""
    live = set(graph.escaping)
    for node in reversed(graph.nodes):
        if node.name in live:
            live.update(node.reads())
    return live


def without_newly_dead(changed: Graph, before: Graph) -> Graph:
    """The graph without nodes that only replaced nodes read. Nodes that were dead before stay for the pass that removes these."""
    dead = live_values(before) - live_values(changed)
    return replace(changed, nodes=tuple(n for n in changed.nodes if n.name not in dead))


def is_pure_view(node: Node) -> bool:
    """Whether every element of the map is one element of another value: its body is a read."""
    return node.kind == "map" and isinstance(node.body, Read)


def is_guarded_view(node: Node) -> bool:
    """Whether the map's body is guards of reads and constants: padding, concatenation, triangles, updates of a slice."""
    return node.kind == "map" and isinstance(node.body, Guard) and all(isinstance(x, (Guard, Read, Const)) for x in walk(node.body))


def is_computed_view(node: Node) -> bool:
    """Whether the map reads nothing and is cheap: constants, positions, masks of positions. Random numbers do not count."""
    if node.kind != "map" or node.body is None:
        return False
    for count, x in enumerate(walk(node.body), 1):
        if count > COMPUTED_VIEW_NODES or isinstance(x, (Read, Lookup)) or (not isinstance(x, (Const, Index)) and _is_random(x)):
            return False
    return flops_of(node.body) <= COMPUTED_VIEW_FLOPS


def _is_random(e: Expr) -> bool:
    return getattr(e, "fn", "").startswith("random_")


def num_atoms(e: Affine) -> int:
    """Number of axes, divisions and remainders in an index expression: roughly its cost in instructions."""
    return sum(1 if isinstance(atom, str) else 1 + num_atoms(atom.of) for atom, _ in e.terms)


def index_atoms(e: Expr) -> int:
    """`num_atoms` summed over all subscripts, positions and bounds of an expression."""
    return sum(num_atoms(a) for x in walk(e) for a in affines_of(x))


def affines_of(e: Expr) -> tuple[Affine, ...]:
    """The index expressions that stand directly in `e`."""
    match e:
        case Read(_, index):
            return index
        case Index(affine):
            return (affine,)
        case Guard(bounds, _, _):
            return tuple(b.index for b in bounds)
    return ()


def expressions_of(node: Node) -> tuple[Expr, ...]:
    """Body and target subscripts."""
    return (*(() if node.body is None else (node.body,)), *node.target)


def has_divisions(e: Affine) -> bool:
    """Whether a division or remainder occurs."""
    return any(isinstance(atom, (FloorDiv, Mod)) for atom, _ in e.terms)


def user_counts(graph: Graph) -> Mapping[str, int]:
    """The number of live nodes that use each value."""
    live = live_values(graph)
    counts: dict[str, int] = {}
    for node in graph.nodes:
        if node.name in live:
            for value in node.reads():
                counts[value] = counts.get(value, 0) + 1
    return counts


# Verification of what changed


def verify_changes(before: Graph, after: Graph) -> list[Finding]:
    """Findings of `after`, provided that `before` has none. A node that is the same object is verified only where the type of an operand
    changed or an operand is gone."""
    old_types = before.type_by_name
    old_nodes = before.node_by_name
    types: dict[str, Type] = {i.name: i.type for i in after.inputs}
    findings: list[Finding] = []
    for node in after.nodes:
        same = old_nodes.get(node.name) is node and all(types.get(v) == old_types[v] for v in node.reads())
        if not same:
            findings.extend(verify_node(node, types))
        if node.name in types:
            findings.append(Finding("one-definition", node.name, f"%{node.name} is defined twice"))
        types[node.name] = node.type
    if after.results != before.results or after.updates != before.updates or any(r not in types for r in after.escaping):
        findings.extend(verify(Graph(after.name, tuple(after.inputs), after.nodes, after.results, after.updates)))
    return findings
