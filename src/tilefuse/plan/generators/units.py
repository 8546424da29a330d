"""Units: the parts of a graph during planning. A unit is a future pattern, one library call, or one node alone.

`Units` keeps the contracted graph, the values that each unit writes, and the units that use them. It makes no decision.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tilefuse.base.construction import quickly_built
from tilefuse.ir.graph import Graph, library_call_key
from tilefuse.ir.order import topological_order
from tilefuse.plan.generators.light import closure
from tilefuse.plan.generators.order import ContractedGraph
from tilefuse.plan.generators.updates_last import orders
from tilefuse.plan.pattern import Pattern, View
from tilefuse.plan.rewrites.views import is_window


@quickly_built
@dataclass(frozen=True, slots=True)
class Unit:
    """core: nodes this unit is responsible for, in graph order; extra: nodes it recomputes besides."""

    core: tuple[str, ...]
    extra: tuple[str, ...]
    is_library: bool = False


def values_in_memory(graph: Graph, views: dict[str, View]) -> set[str]:
    """Values that are in memory in every plan: library calls read them, or they go to the caller."""
    needed = set(graph.escaping)
    for node in graph.nodes:
        if node.category == "library":
            needed.update(node.reads())
    return {views[v].base if v in views else v for v in needed}


class Units:
    """All units of a graph. `light` nodes are recomputed in every unit that uses them; `views` have no unit."""

    def __init__(self, graph: Graph, light: set[str], views: dict[str, View]) -> None:
        self.graph = graph
        self.light = light
        self.views = views
        self._reads = {n.name: n.reads() for n in graph.nodes}
        self._calls = frozenset(n.name for n in graph.nodes if n.category == "library")
        self._windows = frozenset(v for v, view in views.items() if is_window(graph, view))
        self.escaping = frozenset(self.memory(v) for v in graph.escaping)
        needed = values_in_memory(graph, views)
        in_memory = {n.name for n in graph.nodes if n.name not in views and (n.name not in light or n.name in needed)}
        self.unit_of: dict[str, int] = {}
        self.units: dict[int, Unit] = {}
        calls: dict[tuple[object, ...], int] = {}
        for node in graph.nodes:
            if node.name not in in_memory:
                continue
            number = len(self.units)
            if node.category == "library":
                number = calls.setdefault(library_call_key(node), number)
                before = self.units[number].core if number in self.units else ()
                self.units[number] = Unit((*before, node.name), (), is_library=True)
            else:
                self.units[number] = Unit((node.name,), tuple(self._sorted(closure((node.name,), light, self.reads))))
            self.unit_of[node.name] = number
        self.users = self._users()
        self.contracted = ContractedGraph(len(self.units), self._edges())

    def reads(self, name: str) -> tuple[str, ...]:
        """Values that a node uses."""
        return self._reads[name]

    def memory(self, value: str) -> str:
        """The value whose memory `value` lies in: itself, or the base of the view that it is."""
        return self.views[value].base if value in self.views else value

    def sources(self, unit: Unit) -> dict[str, None]:
        """Values in memory that the unit reads and does not compute (an ordered set)."""
        inside = {*unit.core, *unit.extra}
        return {self.memory(v): None for n in (*unit.extra, *unit.core) for v in self._reads[n] if v not in inside}

    def pattern(self, unit: Unit) -> Pattern:
        """The unit's nodes, and those of its values that are used outside."""
        core, users, escaping = set(unit.core), self.users, self.escaping
        written = tuple(n for n in unit.core if n in escaping or not core.issuperset(users[n]))
        views = tuple(self._views_inside(unit)) if self.views else ()
        nodes = unit.core if not (unit.extra or views) else tuple(self._sorted(dict.fromkeys((*unit.core, *unit.extra, *views))))
        return Pattern(nodes, written)

    def _views_inside(self, unit: Unit) -> Iterator[str]:
        """Views that products of a kernel read. The kernel reads the viewed value or computes it.

        A window onto a value from outside stays an operand, so that steps which differ only in the window's start are equal kernels.
        """
        if unit.is_library or self._calls.isdisjoint(unit.core):
            return
        inside = {*unit.core, *unit.extra}
        stack = [v for n in unit.core if n in self._calls for v in self._reads[n]]
        while stack:
            value = stack.pop()
            if value in self.views and (value not in self._windows or self.views[value].base in inside):
                yield value
                stack.extend(self._reads[value])

    def kernel(self, unit: Unit) -> Pattern:
        """The unit's pattern as a kernel, also where the unit is a call."""
        return self.pattern(Unit(unit.core, unit.extra))

    def joined(self, first: Unit, second: Unit) -> Unit:
        """Both units as one. A node that one recomputed and the other is responsible for is computed once."""
        core = tuple(self._sorted((*first.core, *second.core)))
        inside = set(core)
        return Unit(core, tuple(self._sorted({n for n in (*first.extra, *second.extra) if n not in inside})))

    def union(self, units: Sequence[Unit]) -> Unit:
        """Any number of units as one, as `joined` does it with two."""
        core = tuple(self._sorted(n for u in units for n in u.core))
        inside = set(core)
        return Unit(core, tuple(self._sorted({n for u in units for n in u.extra if n not in inside})),
                    len(units) == 1 and units[0].is_library)

    def ordered(self, groups: Iterable[Sequence[int]]) -> list[tuple[int, ...]]:
        """All units in an order of execution in which each group runs at once, sorted by last member as far as dependences allow.

        Requires: groups are disjoint and together free of cycles; units that are in none run alone.
        """
        order, num_groups = self._ordered(groups)
        assert len(order) == num_groups, "the groups wait for each other"
        return order

    def have_an_order(self, groups: Iterable[Sequence[int]]) -> bool:
        """Whether each group of units can run at once, so that no two groups wait for each other. Requires: groups are disjoint."""
        order, num_groups = self._ordered(groups)
        return len(order) == num_groups

    def _ordered(self, groups: Iterable[Sequence[int]]) -> tuple[list[tuple[int, ...]], int]:
        """Groups and lone units in an order of execution, up to the first cycle; and their total number."""
        group_of: dict[int, tuple[int, ...]] = {unit: (unit,) for unit in self.units}
        for group in groups:
            group_of.update(dict.fromkeys(group, tuple(group)))
        successors: dict[tuple[int, ...], dict[tuple[int, ...], None]] = {g: {} for g in group_of.values()}
        for unit, followers in self.contracted.successors.items():
            for following in followers:
                before, after = group_of[unit], group_of[following]
                if before != after:
                    successors[before][after] = None
        return topological_order(successors, max), len(successors)

    def regroup(self, groups: Iterable[Sequence[int]]) -> None:
        """Merges each group of units at once; groups are numbered anew, in an order of execution. Requires: as `ordered`."""
        order = self.ordered(groups)
        number_of = {unit: n for n, group in enumerate(order) for unit in group}
        arcs = ((number_of[a], number_of[b]) for a, followers in self.contracted.successors.items() for b in followers)
        self.units = {n: self.union([self.units[u] for u in group]) for n, group in enumerate(order)}
        self.unit_of = {name: n for n, unit in self.units.items() for name in unit.core}
        self.contracted = ContractedGraph(len(order), sorted({(a, b) for a, b in arcs if a != b}))

    def merge(self, first: int, second: int, unit: Unit, between: tuple[list[int], list[int]]) -> int:
        """Replaces two units by their union; returns its number."""
        number = self.contracted.merge(first, second, between)
        del self.units[first], self.units[second]
        self.units[number] = unit
        for name in unit.core:
            self.unit_of[name] = number
        return number

    def _sorted(self, names: Iterable[str]) -> list[str]:
        return sorted(names, key=self.graph.position_by_name.__getitem__)

    def _users(self) -> dict[str, dict[str, None]]:
        """For every value in memory the core nodes that read it, directly or by recomputing light nodes."""
        users: dict[str, dict[str, None]] = {name: {} for name in self.graph.type_by_name}
        for unit in self.units.values():
            for name in unit.core:
                alone = Unit((name,), () if unit.is_library else unit.extra, unit.is_library)
                for value in self.sources(alone):
                    users[value][name] = None
        return users

    def _edges(self) -> dict[tuple[int, int], None]:
        edges: dict[tuple[int, int], None] = {}
        for value, readers in self.users.items():
            if value in self.unit_of:
                for reader in readers:
                    if self.unit_of[value] != self.unit_of[reader]:
                        edges[self.unit_of[value], self.unit_of[reader]] = None
        for reader, update in orders(self.graph, self.users):
            before, after = self.unit_of[reader], self.unit_of.get(update, -1)
            if before < after:
                edges[before, after] = None
        return edges
