"""Orders steps so that large operands are released before large results are allocated, where that lowers the peak of memory.

    gy 77 MiB, and x 77 MiB that the forward part kept:       held while each step runs
    gx = product(gy, w)     77 MiB more                       231        gw = product(gy, x)     155, then x is let go
    gw = product(gy, x)     1 MiB, x is let go           ->   232        gx = product(gy, w)     155
"""
from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from tilefuse.base.search.limits import SEARCH
from tilefuse.plan.pattern import LibraryCall, Plan, PlanStep, outside_reads
from tilefuse.target.memory import SMALL_TENSOR_BYTES


def in_release_order(plan: Plan, given_up: Collection[str]) -> Plan:
    """The plan with memory-releasing steps moved forward to where memory is full; the given plan where that does not lower the peak.

    given_up: inputs that only the call holds.
    """
    if not given_up or plan.graph.updates:
        return plan
    flow = _Flow.of(plan, given_up)
    usual = list(range(len(plan.steps)))
    most = flow.peak_bytes(usual)
    lowest = flow.peak_bytes(flow.ordered(0))
    if lowest > most - SMALL_TENSOR_BYTES:
        return plan
    # A step moves only where memory would otherwise exceed the lowest peak.
    order = flow.ordered(lowest)
    if flow.peak_bytes(order) > lowest:
        order = flow.ordered(0)
    return replace(plan, steps=tuple(plan.steps[n] for n in order))


@dataclass(slots=True)
class _Flow:
    """Values that each step reads and writes, and the bytes of those that only the call holds; a view counts as its base."""

    read: list[tuple[str, ...]] = field(default_factory=list)
    written: list[tuple[str, ...]] = field(default_factory=list)
    size: dict[str, int] = field(default_factory=dict)
    readers: dict[str, set[int]] = field(default_factory=dict)
    before: list[set[int]] = field(default_factory=list)
    given_up: frozenset[str] = frozenset()
    returned: frozenset[str] = frozenset()

    @classmethod
    def of(cls, plan: Plan, given_up: Collection[str]) -> _Flow:
        """The flow of a plan. given_up: inputs that only the call holds."""
        flow = cls()
        graph, base = plan.graph, {v.value: v.base for v in plan.views}
        writer: dict[str, int] = {}
        for number, step in enumerate(plan.steps):
            read, results = _operands(plan, step), _results(step)
            flow.read.append(tuple(dict.fromkeys(base.get(v, v) for v in read)))
            flow.written.append(results)
            flow.before.append({writer[v] for v in flow.read[-1] if v in writer})
            writer.update(dict.fromkeys(results, number))
            for value in flow.read[-1]:
                flow.readers.setdefault(value, set()).add(number)
        flow.given_up = frozenset(given_up)
        flow.size = {v: graph.type_of(v).num_bytes for v in (*writer, *given_up)}
        flow.returned = frozenset(base.get(v, v) for v in graph.results)
        return flow

    def ordered(self, allowed_bytes: int) -> list[int]:
        """The steps in their order, except where more than `allowed_bytes` would be held: there a ready step comes first that releases more
        than it allocates, and allocates no more than the step in turn."""
        unread = {v: len(readers) for v, readers in self.readers.items()}
        live = sum(n for v, n in self.size.items() if v in self.given_up)
        done: set[int] = set()
        order: list[int] = []

        def run(number: int) -> None:
            nonlocal live
            live += self._making(number) - self._letting_go(number, unread)
            for value in self.read[number]:
                unread[value] -= 1
            done.add(number)
            order.append(number)

        def gain(number: int) -> int:
            return self._letting_go(number, unread) - self._making(number)

        for number in range(len(self.read)):
            while number not in done and live + self._making(number) > allowed_bytes:
                near = range(number + 1, min(number + SEARCH.selection.steps_ahead, len(self.read)))
                ready = [n for n in near if n not in done and self.before[n] <= done and gain(n) > max(0, gain(number))
                         and self._making(n) <= self._making(number)]
                if not ready:
                    break
                run(max(ready, key=gain))
            if number not in done:
                run(number)
        return order

    def peak_bytes(self, order: list[int]) -> int:
        """Peak of bytes held while a step runs."""
        unread = {v: len(readers) for v, readers in self.readers.items()}
        live = most = sum(n for v, n in self.size.items() if v in self.given_up)
        for number in order:
            most = max(most, live + self._making(number))
            live += self._making(number) - self._letting_go(number, unread)
            for value in self.read[number]:
                unread[value] -= 1
        return most

    def _making(self, number: int) -> int:
        return sum(self.size[v] for v in self.written[number])

    def _letting_go(self, number: int, unread: dict[str, int]) -> int:
        """Bytes that nothing reads after this step if it runs now, including its own unread results."""
        freed_bytes = sum(self.size[v] for v in self.read[number] if unread[v] == 1 and v in self.size and v not in self.returned)
        return freed_bytes + sum(self.size[v] for v in self.written[number] if v not in self.readers and v not in self.returned)


def _operands(plan: Plan, step: PlanStep) -> Sequence[str]:
    return step.operands if isinstance(step, LibraryCall) else tuple(outside_reads(plan.graph, step.pattern.nodes))


def _results(step: PlanStep) -> tuple[str, ...]:
    return tuple(v for _, v in step.results) if isinstance(step, LibraryCall) else tuple(step.pattern.written)
