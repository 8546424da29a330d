"""The last step of greedy planning: kernels that do not depend on each other share a launch where that is cheaper.

    before   k0(a -> b)  k1(c -> d)  library(b)  k2(e -> f)          k1 and k2 have time until the library call is done, and longer
    after    k0(a -> b)  library(b)  k1+k2(c, e -> d, f)

Every kernel has a range of depths: after the kernels that it reads, before the kernels that read it. Kernels with a common depth and no
path between them are packed there. The ranges of all other kernels are narrowed accordingly, so that a later packing closes no cycle
through an earlier one. Kernels are packed where launches dominate their time (few bytes), and where they compute the same on many tensors
(an optimiser's step).

The generator `packing.py` proposes unions of kernels of equal depth to the integer program, which decides under a ceiling on memory and may
undo fusions for them. Greedy planning solves no program: it decides here, also for kernels of different depths.
"""
from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from tilefuse.base.candidate import Rejected
from tilefuse.base.search.limits import SEARCH
from tilefuse.ir.graph import Graph
from tilefuse.ir.order import topological_order
from tilefuse.plan.assemble import Chosen
from tilefuse.plan.generators.updates_last import updates_last
from tilefuse.plan.pattern import Pattern, View, read_values
from tilefuse.plan.price.price import Priced, Pricer
from tilefuse.plan.select.memory import Life, more_with_packing, most_live
from tilefuse.templates.packed.packed import MAX_OPERANDS
from tilefuse.templates.registry import kernel_template, template_named


def pack_kernels(graph: Graph, views: Mapping[str, View], chosen: Sequence[Chosen], pricer: Pricer,
                 given_up: Collection[str] = ()) -> list[Chosen]:
    """The cover with independent kernels packed, in an order of execution that stays close to the given one.

    A kernel that updates an input is not packed with readers of the old contents, which would have to be copied. Where waiting for the last
    of many parts holds too much memory, kernels do not wait; those of a backward part wait for half as many steps at each try.
    given_up: inputs that only the call holds; their memory is free after their last use.
    Requires: `chosen` is in order of execution.
    Cost: about linear in the patterns' reads, and one schedule for each distinct set of kernels tried.
    """
    chosen = updates_last(graph, views, chosen)
    peak_bytes = live_peak_bytes(graph, views, chosen, given_up)
    allowed_bytes = peak_bytes + more_with_packing(live_peak_bytes(graph, views, chosen), peak_bytes if given_up else None)
    wait = len(chosen)
    while True:
        draft = _Draft(graph, views, list(chosen), pricer, wait, frozenset(given_up))
        draft.pack_all()
        if not draft.packed:
            return list(chosen)
        packed = draft.ordered()
        if live_peak_bytes(graph, views, packed, given_up) <= allowed_bytes:
            return packed
        if not wait:
            return list(chosen)
        wait = min(wait, draft.deepest) // 2 if given_up else 0


@dataclass
class _Draft:
    """A cover during packing. Items have their numbers in `chosen`; packed kernels get new numbers after them.

    wait: how much deeper than its operands require a kernel may stand, which keeps the operands alive for longer. Kernels that read only
    inputs which stay alive anyway may stand at any depth.
    """

    graph: Graph
    views: Mapping[str, View]
    chosen: list[Chosen]
    pricer: Pricer
    wait: int
    given_up: frozenset[str] = frozenset()
    deepest: int = 0
    frees: list[bool] = field(default_factory=list)
    before: list[list[int]] = field(default_factory=list)
    after: list[list[int]] = field(default_factory=list)
    earliest: list[int] = field(default_factory=list)
    latest: list[int] = field(default_factory=list)
    packed: list[tuple[list[int], Pattern, Priced]] = field(default_factory=list)
    taken: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        writer = {v: n for n, item in enumerate(self.chosen) for v in item.pattern.written}
        updates = {target: writer[value] for target, value in self.graph.updates if value in writer}
        needed: list[dict[int, None]] = [{} for _ in self.chosen]
        for n, item in enumerate(self.chosen):
            read = read_values(self.graph, self.views, item.pattern)
            self.frees.append(any(v in writer or v in self.given_up for v in read))
            for v in read:
                if writer.get(v, n) != n:
                    needed[n][writer[v]] = None
                if updates.get(v, n) > n:
                    needed[updates[v]][n] = None
        for n, producers in enumerate(needed):
            self.before.append(list(producers))
            self.after.append([])
            for p in producers:
                self.after[p].append(n)
        for n in range(len(self.chosen)):
            self.earliest.append(max((self.earliest[p] + 1 for p in self.before[n]), default=0))
        self.deepest = max(self.earliest, default=0)
        self.latest = [self.deepest] * len(self.chosen)
        for n in reversed(range(len(self.chosen))):
            self.latest[n] = min((self.latest[s] - 1 for s in self.after[n]), default=self.deepest)

    def pack_all(self) -> None:
        """Packs equal kernels where some are large or are staged kernels, then small kernels of all kinds."""
        alike: dict[object, list[int]] = {}
        small: dict[int, None] = {}
        for n, item in enumerate(self.chosen):
            # No program is built for a packed kernel yet: most of them enter no plan.
            if item.priced is None or template_named(item.priced.figures.template).packs:
                continue
            program = self.pricer.as_part(item.priced.program)
            if kernel_template(program.choice).part_refusal(program) is not None:
                continue
            alike.setdefault(_likeness(item), []).append(n)
            if program.bytes_moved < self.pricer.device.fitted.packed.small_bytes:
                small[n] = None
        for members in alike.values():
            if len(members) > 1 and (not small.keys() >= set(members) or any(map(self._has_stages, members))):
                self._pack_among(members)
        self._pack_among([n for n in small if n not in self.taken])

    def _has_stages(self, n: int) -> bool:
        """Whether the blocks of a kernel compute stages, whose waits those of others hide."""
        priced = self.chosen[n].priced
        return priced is not None and bool(kernel_template(priced.program.choice).work(priced.program, self.pricer.device).blocks)

    def _pack_among(self, members: list[int]) -> None:
        """Packs kernels whose ranges of depths meet, always at the smallest last depth of the remaining ones."""
        waiting = [(self._latest(n), n) for n in members]
        heapify(waiting)
        coming = sorted(members, key=lambda n: (-self.earliest[n], -n))
        unplaced = dict.fromkeys(members)
        begun: dict[int, None] = {}
        tries: dict[int, int] = {}
        while waiting:
            depth, n = heappop(waiting)
            if n not in unplaced:
                continue
            if self._latest(n) != depth:
                heappush(waiting, (self._latest(n), n))
                continue
            while coming and self.earliest[coming[-1]] <= depth:
                begun[coming.pop()] = None
            together = [n, *(m for m in begun if m != n and self.earliest[m] <= depth <= self._latest(m))]
            done = self._pack(together, depth)
            for m in together:
                tries[m] = tries.get(m, 0) + 1
            for m in (n, *done, *(m for m in together if tries[m] == SEARCH.packing.tried_depths)):
                unplaced.pop(m, None)
                begun.pop(m, None)

    def _latest(self, n: int) -> int:
        return min(self.latest[n], self.earliest[n] + self.wait) if self.frees[n] else self.latest[n]

    def _pack(self, members: list[int], depth: int) -> list[int]:
        """Packs kernels that can stand at `depth`; returns the packed ones."""
        done: list[int] = []
        todo = list(self._portions(members))
        while todo:
            candidates = todo.pop(0)
            saved = (self.earliest[:], self.latest[:])
            part = self._standing(candidates, depth) if len(candidates) > 1 else []
            if len(part) < 2:
                self.earliest, self.latest = saved
                continue
            pattern = self._joined(part)
            priced = self.pricer.price(pattern, limited=False)
            apart_us = sum(p.cost.us for n in part if (p := self.chosen[n].priced) is not None)
            if isinstance(priced, Rejected) or priced.cost.us >= apart_us:
                self.earliest, self.latest = saved
                if isinstance(priced, Rejected):
                    todo += self._by_template(candidates)
                continue
            self.packed.append((part, pattern, priced))
            self.taken.update(part)
            done += part
        return done

    def _standing(self, members: list[int], depth: int) -> list[int]:
        """Kernels that can all stand at `depth`, placed one after the other: a kernel that depends on a placed one cannot."""
        standing = []
        for n in members:
            if self.earliest[n] <= depth <= self._latest(n):
                self._fix(n, depth)
                standing.append(n)
        return standing

    def _by_template(self, members: list[int]) -> list[list[int]]:
        """The kernels grouped by template; empty where all have the same one."""
        members_by_template: dict[str, list[int]] = {}
        for n in members:
            priced = self.chosen[n].priced
            assert priced is not None
            members_by_template.setdefault(priced.program.template, []).append(n)
        return list(members_by_template.values()) if len(members_by_template) > 1 else []

    def _portions(self, members: list[int]) -> Iterable[list[int]]:
        """The kernels in portions that one launch can hold, equal kernels next to each other."""
        order: dict[object, int] = {}
        for n in members:
            order.setdefault(_likeness(self.chosen[n]), len(order))
        portion: list[int] = []
        operands = 0
        kinds: dict[object, None] = {}
        for n in sorted(members, key=lambda m: (order[_likeness(self.chosen[m])], m)):
            priced = self.chosen[n].priced
            assert priced is not None
            num_operands = len(priced.boundary)
            kind = _likeness(self.chosen[n])
            if portion and (operands + num_operands > MAX_OPERANDS or kind not in kinds and len(kinds) == SEARCH.packing.bodies):
                yield portion
                portion, operands, kinds = [], 0, {}
            portion.append(n)
            operands += num_operands
            kinds[kind] = None
        yield portion

    def _joined(self, members: Iterable[int]) -> Pattern:
        place = self.graph.position_by_name
        patterns = [self.chosen[n].pattern for n in members]
        nodes = sorted({n for p in patterns for n in p.nodes}, key=place.__getitem__)
        return Pattern(tuple(nodes), tuple(sorted((v for p in patterns for v in p.written), key=place.__getitem__)))

    def _fix(self, n: int, depth: int) -> None:
        """Fixes item `n` at `depth`: its producers stand before, its users after it."""
        self.earliest[n] = self.latest[n] = depth
        todo = [n]
        while todo:
            m = todo.pop()
            for s in self.after[m]:
                if self.earliest[s] <= self.earliest[m]:
                    self.earliest[s] = self.earliest[m] + 1
                    todo.append(s)
        todo = [n]
        while todo:
            m = todo.pop()
            for p in self.before[m]:
                if self.latest[p] >= self.latest[m]:
                    self.latest[p] = self.latest[m] - 1
                    todo.append(p)

    def ordered(self) -> list[Chosen]:
        """The new cover in an order of execution: each packed kernel at the place of its last member, or as soon after as possible."""
        items = {n: item for n, item in enumerate(self.chosen) if n not in self.taken}
        home = {n: n for n in items}
        place = {n: n for n in items}
        for number, (members, pattern, priced) in enumerate(self.packed, len(self.chosen)):
            items[number] = Chosen("pack", pattern, priced)
            place[number] = max(members)
            home |= dict.fromkeys(members, number)
        feeds: dict[int, dict[int, None]] = {n: {} for n in items}
        for n, producers in enumerate(self.before):
            for p in producers:
                feeds[home[p]][home[n]] = None
        order = topological_order(feeds, place.__getitem__)
        assert len(order) == len(items), "packing has closed a cycle"
        return [items[n] for n in order]


def _likeness(item: Chosen) -> object:
    """Equal for kernels that one body can probably serve, by a cheap test."""
    assert item.priced is not None
    program = item.priced.program
    likeness = kernel_template(program.choice).likeness(program)
    return id(item.priced) if likeness is None else likeness


def live_peak_bytes(graph: Graph, views: Mapping[str, View], chosen: Sequence[Chosen], given_up: Collection[str] = ()) -> int:
    """Peak bytes of values, neither inputs nor results, alive at one time when the patterns run in this order. Units: bytes.

    given_up: inputs that live until their last use. With any, results count from the step that writes them.
    """
    escaping = {views[v].base if v in views else v for v in graph.escaping}
    last: dict[str, int] = {}
    for n, item in enumerate(chosen):
        last.update(dict.fromkeys((*item.pattern.written, *read_values(graph, views, item.pattern)), n))
    lives = [Life(n, last[value], graph.type_of(value).num_bytes)
             for n, item in enumerate(chosen) for value in item.pattern.written if value not in escaping]
    if given_up:
        lives += [Life(n, len(chosen), graph.type_of(value).num_bytes)
                  for n, item in enumerate(chosen) for value in item.pattern.written if value in escaping]
        lives += [Life(0, last.get(value, 0), graph.type_of(value).num_bytes) for value in given_up]
    return most_live(lives)[0]
