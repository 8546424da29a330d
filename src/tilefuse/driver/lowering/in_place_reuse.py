"""Values written into the memory of an operand at its last use, so that a call holds less memory: an activation over its operand.

    t = product(x, w)   48 MiB            t = product(x, w)
    v = gelu(t)         48 MiB more  ->   v = gelu(t)          in t's memory
    u = product(v, w2)                    u = product(v, w2)

An input that only the call holds is such an operand too: the gradient of the scores over the scores that the forward part saved.
A kernel with this reuse has a source of its own, which is compiled in addition to the ordinary one; so reuse is applied only where the peak
of memory falls.
"""
from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from tilefuse.driver.lowering.in_place_walks import Walks
from tilefuse.ir.layouts import strides_of
from tilefuse.plan.pattern import LibraryCall, Plan, PlannedKernel, outside_reads
from tilefuse.target.memory import SMALL_TENSOR_BYTES

# Minimum reduction of the peak for which memory is reused.
LEAST_BYTES = SMALL_TENSOR_BYTES


@dataclass(slots=True)
class _Lifetimes:
    """Steps at which values (for a view: its base) are computed and last read. `fixed`: values whose memory must not be reused.
    `overwritable`: inputs whose memory may be."""

    plan: Plan
    written: dict[str, int] = field(default_factory=dict)
    last: dict[str, int] = field(default_factory=dict)
    fixed: set[str] = field(default_factory=set)
    overwritable: frozenset[str] = frozenset()
    through_window: set[tuple[str, int]] = field(default_factory=set)

    @classmethod
    def of(cls, plan: Plan, overwritable: Collection[str] = ()) -> _Lifetimes:
        """The lifetimes of a plan's values."""
        lifetimes = cls(plan, overwritable=frozenset(overwritable))
        base = {v.value: v.base for v in plan.windows}
        graph = plan.graph
        for number, step in enumerate(plan.steps):
            match step:
                case PlannedKernel():
                    names = [v for n in step.pattern.nodes for v in graph.node_by_name[n].reads()]
                    lifetimes.through_window.update((base[v], number) for v in names if v in base and v not in step.pattern.nodes)
                    lifetimes.written.update(dict.fromkeys(step.pattern.written, number))
                case LibraryCall():
                    names = list(step.operands)
                    lifetimes.written.update((v, number) for _, v in step.results)
                    if "." in step.operator or not step.runs:
                        # An operator of torch's or of the user's may return its operand, or the same memory twice. Of ours, only parts that
                        # are written where they lie in a value do.
                        lifetimes.fixed.update(v for _, v in step.results)
                        lifetimes.fixed.update(base.get(v, v) for v in names)
            for name in names:
                lifetimes.last[base.get(name, name)] = number
        end = len(plan.steps)
        for name in (base.get(r, r) for r in graph.results):
            lifetimes.last[name] = end
            lifetimes.fixed.add(name)
        lifetimes.fixed.update(name for pair in graph.updates for name in (base.get(v, v) for v in pair))
        lifetimes.fixed.update(i.name for i in graph.inputs if i.name not in lifetimes.overwritable)
        return lifetimes


def reused_storage(plan: Plan, taken: Mapping[str, str], num_bytes: Callable[[str], int], least_bytes: int | None = None,
                   given_up: Collection[str] = (), overwritable: Collection[str] = ()) -> dict[str, str]:
    """Value -> operand whose memory it is written into, in the kernel with the operand's last read, where the peak of memory falls.

    taken: values already written into other memory. num_bytes: of a value's memory. given_up: inputs that only the call holds.
    overwritable: those of them whose memory may be reused, for values that the program does not return.
    """
    least_bytes = LEAST_BYTES if least_bytes is None else least_bytes
    lives = _Lifetimes.of(plan, overwritable)
    in_use = {v for pair in taken.items() for v in pair}
    live_bytes = [0] * (len(plan.steps) + 1)
    for value, first in [*lives.written.items(), *((v, 0) for v in given_up if v in lives.last)]:
        if value not in taken:
            for number in range(first, lives.last.get(value, first) + 1):
                live_bytes[number] += num_bytes(value)
    if max(live_bytes) < 2 * least_bytes:
        return {}
    walks = Walks(plan.graph)
    offers = {n: _offers(plan, n, step, lives, in_use, walks, num_bytes, least_bytes)
              for n, step in enumerate(plan.steps) if isinstance(step, PlannedKernel) and live_bytes[n] >= 2 * least_bytes}
    lowest = max(live - sum(num_bytes(v) for v in offers.get(n, {})) for n, live in enumerate(live_bytes))
    storage_of: dict[str, str] = {}
    for n, offered in offers.items():
        for value, dying in sorted(offered.items(), key=lambda pair: -num_bytes(pair[0])):
            if live_bytes[n] < lowest + least_bytes:
                break
            if value in lives.fixed and _memory_of(dying, storage_of) in lives.overwritable:
                # The caller receives results in memory of their own.
                continue
            storage_of[value] = dying
            live_bytes[n] -= num_bytes(value)
    return storage_of


def _memory_of(value: str, storage_of: Mapping[str, str]) -> str:
    """The value whose memory a value lies in."""
    while value in storage_of:
        value = storage_of[value]
    return value


def _offers(plan: Plan, number: int, step: PlannedKernel, lives: _Lifetimes, in_use: set[str], walks: Walks,
            num_bytes: Callable[[str], int], least_bytes: int) -> dict[str, str]:
    """Values of a kernel that could be written into the memory of an operand without later readers; each operand once."""
    graph = plan.graph
    read = outside_reads(graph, step.pattern.nodes)
    dying = [v for v in read if (v in lives.written or v in lives.overwritable) and lives.last[v] == number and v not in lives.fixed
             and v not in in_use and (v, number) not in lives.through_window and num_bytes(v) >= least_bytes]
    over: dict[str, str] = {}
    for value in step.pattern.written if dying else ():
        if value in in_use or graph.node_by_name[value].category == "scatter":
            continue
        for other in dying:
            if other in over.values() or graph.type_of(other).dtype != graph.type_of(value).dtype or num_bytes(other) != num_bytes(value):
                continue
            alike = graph.type_of(other) == graph.type_of(value) and _strides(plan, other) == _strides(plan, value)
            if walks.lies_under(step, value, other) or alike and walks.may_overwrite(step, value, other):
                over[value] = other
                break
    return over


def _strides(plan: Plan, value: str) -> tuple[int, ...]:
    return strides_of(plan.graph, plan.layouts, value)
