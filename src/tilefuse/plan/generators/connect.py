"""Greedy connecting: patterns grow along edges and between siblings while the cost model says that one kernel is faster than two.

    {a} -> {b} -> {c}      {a, b} -> {c}      {a, b, c}

Smaller unions are tried before larger ones; among equal sizes, the union that saves most bytes comes first. A chain of n nodes is thus
joined in log n rounds, and a pattern is scheduled about as often as it doubles. The schedule gives the edges inside a pattern their levels.
Source: Welder (OSDI 2023), 3.1, connecting of tile graphs.
"""
from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from itertools import pairwise

from tilefuse.base import trace
from tilefuse.base.candidate import Reason, Rejected
from tilefuse.base.options import Options
from tilefuse.base.search.limits import SEARCH
from tilefuse.ir.graph import Graph
from tilefuse.plan.assemble import Chosen
from tilefuse.plan.generators.found import Found
from tilefuse.plan.generators.light import flops_per_element, light_nodes
from tilefuse.plan.generators.units import Unit, Units, values_in_memory
from tilefuse.plan.pattern import Pattern, View
from tilefuse.plan.price.price import Priced, Pricer, require


def steps_before(graph: Graph) -> dict[str, int]:
    """Number of products and reductions on the longest path to each node, itself included."""
    steps_to: dict[str, int] = {}
    for node in graph.nodes:
        steps_to[node.name] = max((steps_to.get(v, 0) for v in node.reads()), default=0) + (node.category in ("library", "reduce"))
    return steps_to


class Connecting:
    """One run of greedy connecting over a graph."""

    def __init__(self, graph: Graph, views: dict[str, View], pricer: Pricer, options: Options, light: set[str] | None = None) -> None:
        self._graph = graph
        self._views = views
        self._pricer = pricer
        self._options = options
        self._light = light_nodes(graph, values_in_memory(graph, views), pricer.device) - views.keys() if light is None else light
        self._units = Units(graph, self._light, views)
        self._priced: dict[int, Priced] = {}
        self._generator: dict[int, str] = {}
        self._queue: list[tuple[int, int, int, int]] = []
        self._rejected: dict[tuple[str, str], Rejected] = {}
        self._num_rejected = 0
        self._steps: list[tuple[str, ...]] = []
        self._recomputed: set[str] = set()
        # Each reader of a value is a sibling of the next reader only, in graph order: a value with thousands of readers (a mask, a step
        # size) costs thousands of trials instead of millions.
        self._siblings: dict[str, dict[str, None]] = {}
        self._depth = steps_before(graph)
        self._values: dict[int, tuple[set[str], dict[str, int]]] = {}

    def run(self, merge: bool = True) -> Found:
        """Prices single units, merges, recomputes where cheaper."""
        self._price_units()
        if merge:
            self._merge_all()
            self._recompute()
        return self._result()

    def resume(self, kernels: Sequence[tuple[str, tuple[int, ...], Priced]], recompute: bool) -> Found:
        """Starts from kernels that were decided elsewhere (generator, numbers of units, price) instead of merging.

        recompute: maps are recomputed where that is cheaper; not for packed kernels, which are priced in another way.
        Requires: every unit has a schedule alone; the kernels are disjoint and free of cycles.
        """
        priced_by_core: dict[tuple[str, ...], tuple[str, Priced]] = {}
        for unit in self._units.units.values():
            if not unit.is_library:
                alone = require(self._pricer.price(self._units.pattern(unit)), unit.core[-1])
                priced_by_core[unit.core] = ("recompute" if unit.extra else "single", alone)
        for generator, members, priced in kernels:
            priced_by_core[self._units.union([self._units.units[m] for m in members]).core] = (generator, priced)
        self._units.regroup(members for _, members, _ in kernels)
        for number, unit in self._units.units.items():
            if not unit.is_library:
                self._generator[number], self._priced[number] = priced_by_core[unit.core]
        if recompute:
            self._recompute()
        return self._result()

    def continue_from(self, kernels: Iterable[tuple[str, tuple[str, ...], Priced]], merge: bool = True,
                      recompute: bool = True) -> Found | Rejected:
        """Starts from the kernels of another plan (generator, core nodes, price); merges and recomputes where that is cheaper.

        Returns the plan, whose `steps` are the merges beyond those kernels; or the reason why a unit outside of them has no schedule.
        Requires: the kernels are disjoint and free of cycles.
        """
        unit_of = self._units.unit_of
        kernel_by_core = {core: (generator, priced) for generator, core, priced in kernels}
        self._units.regroup(tuple(sorted({unit_of[n] for n in core})) for core in kernel_by_core)
        for number, unit in self._units.units.items():
            if unit.core in kernel_by_core:
                self._generator[number], self._priced[number] = kernel_by_core[unit.core]
            elif not unit.is_library:
                alone = self._pricer.price(self._units.pattern(unit))
                if isinstance(alone, Rejected):
                    return alone
                self._generator[number], self._priced[number] = "recompute" if unit.extra else "single", alone
        if merge:
            self._merge_all()
        if merge and recompute:
            self._recompute()
        return self._result()

    def _price_units(self) -> None:
        """Prices every unit alone. A light node that some user cannot absorb is kept in memory instead, and pricing starts again."""
        while True:
            pinned: set[str] = set()
            for number, unit in self._units.units.items():
                if unit.is_library:
                    continue
                priced = self._pricer.price(self._units.pattern(unit))
                if isinstance(priced, Rejected) and unit.extra:
                    pinned.update(v for n in unit.core for v in self._units.reads(n) if v in self._light)
                    self._note(unit.extra[-1], unit.core[-1], priced)
                    continue
                self._priced[number] = require(priced, unit.core[-1])
                self._generator[number] = "recompute" if unit.extra else "single"
            if not pinned:
                return
            self._light -= pinned
            self._priced.clear()
            self._units = Units(self._graph, self._light, self._views)

    # The queue

    def _merge_all(self) -> None:
        """Merges until no union of neighbours is cheaper."""
        self._fill_queue()
        while self._queue:
            _, _, first, second = heapq.heappop(self._queue)
            if first in self._units.units and second in self._units.units:
                self._try(first, second)

    def _fill_queue(self) -> None:
        for first, followers in self._units.contracted.successors.items():
            for second in followers:
                self._push(first, second)
        for readers in self._units.users.values():
            for a, b in pairwise(readers):
                self._siblings.setdefault(a, {})[b] = None
                self._siblings.setdefault(b, {})[a] = None
                self._push(self._units.unit_of[a], self._units.unit_of[b])

    def _push(self, a: int, b: int) -> None:
        first, second = self._units.units[a], self._units.units[b]
        if a == b or not (self._can_join(first) and self._can_join(second)) or first.is_library and second.is_library:
            return
        size = len(first.core) + len(second.core)
        if size > self._options.max_kernel_nodes:
            return
        shared_bytes = self._shared_bytes(a, b)
        if self._units.contracted.position[a] > self._units.contracted.position[b]:
            a, b = b, a
        heapq.heappush(self._queue, (size.bit_length(), -shared_bytes, a, b))

    def _can_join(self, unit: Unit) -> bool:
        return not unit.is_library or len(unit.core) == 1 and self._pricer.calls_us(unit.core) > 0

    def _us(self, number: int) -> float:
        """Cost of a unit as it stands. Units: microseconds."""
        if number in self._priced:
            return self._priced[number].cost.us
        unit = self._units.units[number]
        return self._pricer.call_or_kernel(unit.core, self._units.kernel(unit))[0]

    def _shared_bytes(self, first: int, second: int) -> int:
        """Bytes of the values that both units touch: a common kernel reads them once or not at all."""
        touched, _ = self._touched(first)
        _, sources = self._touched(second)
        return sum([sources[v] for v in sources if v in touched])

    def _touched(self, number: int) -> tuple[set[str], dict[str, int]]:
        """Values that a unit computes or reads, and the bytes of those that it reads. Cached, since every neighbour asks."""
        cached = self._values.get(number)
        if cached is None:
            unit = self._units.units[number]
            sources = {v: self._graph.type_of(v).num_bytes for v in self._units.sources(unit)}
            cached = self._values[number] = ({*unit.core, *sources}, sources)
        return cached

    def _push_neighbours(self, number: int) -> None:
        contracted = self._units.contracted
        near = dict.fromkeys((*contracted.predecessors[number], *contracted.successors[number]))
        for name in self._units.units[number].core:
            for sibling in self._siblings.get(name, ()):
                near[self._units.unit_of[sibling]] = None
        for other in near:
            self._push(number, other)

    # One trial

    def _try(self, a: int, b: int) -> None:
        contracted = self._units.contracted
        if contracted.position[a] > contracted.position[b]:
            a, b = b, a
        first, second = self._units.units[a], self._units.units[b]
        between = contracted.between(a, b)
        if between is None:
            self._note(first.core[-1], second.core[-1], Rejected(Reason.NOT_CONVEX, "a path leaves the pattern and comes back"))
            return
        steps = self._steps_apart(a, b)
        if steps > SEARCH.generators.steps_apart:
            detail = f"one would wait for the other: {steps} products and reductions lie between them"
            self._note(first.core[-1], second.core[-1], Rejected(Reason.NOT_TRIED, detail))
            return
        joined = self._units.joined(first, second)
        priced = self._pricer.price(self._units.pattern(joined))
        if isinstance(priced, Rejected):
            self._note(first.core[-1], second.core[-1], priced)
            return
        apart_us = self._us(a) + self._us(b)
        if priced.cost.us >= apart_us:
            why = Rejected(Reason.WORSE_THAN_INCUMBENT, f"one kernel {priced.cost.us:.3f} us, two kernels {apart_us:.3f} us")
            self._note(first.core[-1], second.core[-1], why)
            return
        number = self._units.merge(a, b, joined, between)
        self._priced.pop(a, None)
        self._priced.pop(b, None)
        self._values.pop(a, None)
        self._values.pop(b, None)
        self._priced[number] = priced
        self._generator[number] = "connect"
        self._steps.append(joined.core)
        self._push_neighbours(number)

    def _steps_apart(self, a: int, b: int) -> int:
        """Difference in depth (products and reductions on the longest path) of two units; 0 where one reads the other or nothing waits for
        the earlier one."""
        contracted = self._units.contracted
        if b in contracted.successors[a]:
            return 0
        depth = [max(self._depth[n] for n in self._units.units[u].core) for u in (a, b)]
        early = a if depth[0] < depth[1] else b
        return abs(depth[0] - depth[1]) if contracted.successors[early] else 0

    def _note(self, first: str, second: str, why: Rejected) -> None:
        self._num_rejected += 1
        self._rejected[first, second] = why
        trace.current().line("rejected", f"{{%{first}, %{second}}}: {why}")

    # Recomputation of whole maps

    def _recompute(self) -> None:
        """Recomputes maps that are written for other kernels inside those kernels, where that lowers the total time."""
        for node in self._graph.nodes:
            if node.kind == "map" and node.name in self._units.unit_of and node.name not in self._units.escaping:
                if flops_per_element(node, self._pricer.device) <= self._pricer.device.fitted.recomputation.map_flops:
                    self._recompute_one(node.name)

    def _recompute_one(self, name: str) -> None:
        units = self._units
        home = units.unit_of[name]
        outside = list(dict.fromkeys(u for r in units.users[name] if (u := units.unit_of[r]) != home))
        if not outside or any(units.units[u].is_library for u in outside):
            return
        chain = self._chain(name, units.units[home])
        if chain is None:
            return
        own, moved = units.units[home], set(chain)
        # The users keep their own copy; the home unit keeps one only if it uses it itself.
        changed = {u: Unit(units.units[u].core, (*units.units[u].extra, *chain)) for u in outside}
        rest = tuple(n for n in own.core if n not in moved)
        alone = Unit(rest, own.extra)
        if not moved.isdisjoint(units.sources(alone)):
            changed[home] = Unit(rest, (*own.extra, *chain))
        elif rest:
            changed[home] = alone
        self._take_if_cheaper(chain, home, changed)

    def _chain(self, name: str, own: Unit) -> tuple[str, ...] | None:
        """The maps of a unit that compute a value from values in memory, ending in it; None where other nodes of the unit need one of them.

            scaled = conv * s     shifted = scaled + b     gated = sigmoid(shifted)        gated is computed again from conv
        """
        units = self._units
        in_memory = set(units.pattern(own).written) - {name}
        chain, todo, flops = {name}, [name], 0
        while todo:
            inner = todo.pop()
            node = self._graph.node_by_name[inner]
            flops += flops_per_element(node, self._pricer.device)
            too_many = flops > self._pricer.device.fitted.recomputation.map_flops
            if node.kind != "map" or too_many or any(v in units.light for v in units.reads(inner)):
                return None
            for v in units.sources(Unit((inner,), ())):
                if v in own.extra:
                    return None
                if v in own.core and v not in in_memory and v not in chain:
                    chain.add(v)
                    todo.append(v)
        if any(not chain.issuperset(units.users[n]) for n in chain if n != name):
            return None
        return tuple(n for n in own.core if n in chain)

    def _take_if_cheaper(self, chain: tuple[str, ...], home: int, changed: dict[int, Unit]) -> None:
        units = self._units
        if home in changed and not units.pattern(changed[home]).written:
            return
        involved = dict.fromkeys((home, *changed))
        before_us = sum(self._priced[u].cost.us for u in involved)
        priced: dict[int, Priced] = {}
        for number, unit in changed.items():
            outcome = self._pricer.price(units.pattern(unit))
            if isinstance(outcome, Rejected):
                return
            priced[number] = outcome
        if sum(p.cost.us for p in priced.values()) >= before_us * (1 - self._pricer.device.fitted.cost.resolution):
            return
        self._recomputed.update(chain)
        users = {u: None for n in chain for u in units.users[n] if u not in chain}
        for value in units.sources(Unit(chain, ())):
            for n in chain:
                units.users[value].pop(n, None)
            units.users[value].update(users)
        for n in chain:
            units.users[n] = {}
            del units.unit_of[n]
        for number, unit in changed.items():
            units.units[number] = unit
            self._priced[number] = priced[number]
            self._generator[number] = "recompute" if self._generator[number] == "single" else self._generator[number]
        if home not in changed:
            del units.units[home], self._priced[home]

    def _result(self) -> Found:
        chosen: list[Chosen] = []
        for number in self._units.contracted.ordered():
            unit = self._units.units.get(number)
            if unit is None:
                continue
            if unit.is_library:
                pattern = self._units.kernel(unit)
                _, kernel = self._pricer.call_or_kernel(unit.core, pattern)
                call = Chosen("library", Pattern(unit.core, unit.core), None)
                chosen.append(call if kernel is None else Chosen("product", pattern, kernel))
            else:
                chosen.append(Chosen(self._generator[number], self._units.pattern(unit), self._priced[number], unit.core))
        objective_us = sum(c.priced.cost.us for c in chosen if c.priced is not None)
        light = frozenset(self._light | self._recomputed)
        return Found(chosen, objective_us, self._rejected, self._num_rejected, tuple(self._steps), light)
