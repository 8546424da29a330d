"""The task program of a kernel of tasks: waits and publications as they stand in its bodies, and the elements that each task touches.

Accesses are evaluated, not assumed: for every task all threads, loop variables and guards around an access give the elements that it may
touch. Only memory that some task writes counts. A subscript that data decide, or an access with too many points, touches the whole buffer.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from tilefuse.base.errors import InternalError
from tilefuse.ir.affine import Affine, FloorDiv, substitute
from tilefuse.ir.scalar import Bound
from tilefuse.kernel.asynchronous import AsyncCopy, BulkCopy
from tilefuse.kernel.ir import (
    Atomic,
    For,
    FromMemory,
    Group,
    If,
    IfValue,
    Kernel,
    Let,
    Load,
    Member,
    OfTwo,
    Stmt,
    Store,
    VectorLoad,
    VectorStore,
)
from tilefuse.kernel.tasks.bundles import Bundle
from tilefuse.kernel.tasks.order import OWN_COUNTERS
from tilefuse.kernel.tasks.program import Need, Task, TaskProgram, Touch
from tilefuse.kernel.tasks.statements import Await, Publish
from tilefuse.kernel.tasks.tables import changed_slots
from tilefuse.kernel.visit import bodies, parts

Numbers = NDArray[np.int64]
TASK = "tf_task"
# Points of one access, over all tasks of a member, that are evaluated one by one; beyond them it touches the whole buffer.
MOST_POINTS = 1 << 24


@dataclass(frozen=True, slots=True)
class Access:
    """One access to a slot, with the loops, names and guards around it, the outermost first."""

    slot: str
    index: Affine
    width: int
    writes: bool
    context: tuple[For | Let | Bound, ...]
    anywhere: bool = False


def program_of(kernel: Kernel) -> TaskProgram:
    """The task program of a kernel. Raises: InternalError where a body waits behind accesses, or publishes before its last one."""
    order = kernel.tasks
    assert order is not None, "a kernel of tasks"
    members: dict[tuple[int, int], _MemberTasks] = {}
    reading = _Reading(kernel)
    tasks: list[Task] = []
    for group, member, task in order.places():
        if (group, member) not in members:
            members[group, member] = reading.member(group, member)
        m = members[group, member]
        tasks.append(Task(f"task {len(tasks)} ({order.names[group]}, member {member}, part {task})", m.needs, m.publishes, m.touches[task]))
    return TaskProgram(tuple(tasks))


def bundles_of(kernel: Kernel) -> list[Bundle]:
    """The task program of a kernel in bundles, one a member. Requires: all its waits and publications are the same for a member's tasks.

    Raises: as `program_of`.
    """
    order = kernel.tasks
    assert order is not None, "a kernel of tasks"
    places: dict[tuple[int, int], list[int]] = {}
    for n, (group, member, _) in enumerate(order.places()):
        places.setdefault((group, member), []).append(n)
    reading = _Reading(kernel)
    bundles = []
    for (group, member), own in places.items():
        m = reading.member(group, member)
        bundles.append(Bundle(f"member {member} of {order.names[group]}", m.needs, m.publishes, tuple(own), m.touches))
    return bundles


@dataclass(frozen=True, slots=True)
class _MemberTasks:
    """Waits and publications of each of a member's tasks, and the elements that each of them touches."""

    needs: tuple[Need, ...]
    publishes: tuple[int, ...]
    touches: tuple[tuple[Touch, ...], ...]


class _Reading:
    """Task programs read from one kernel: members that touch the same elements share their touches."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.order = kernel.tasks
        assert self.order is not None, "a kernel of tasks"
        self.changed = shared_slots(kernel)
        self.window_of = {window: (base, first) for window, base, first in self.order.aliases}
        self.own_names = [_numbers_of_accesses(group, self.changed, kernel.launch.num_threads) for group in kernel.groups]
        self.regions: dict[tuple[int, tuple[int, ...]], list[list[tuple[str, int, int, bool]]]] = {}
        self.touches: dict[tuple[int, tuple[int, ...], tuple[str, ...]], tuple[tuple[Touch, ...], ...]] = {}
        for group in kernel.groups:
            _check_body(kernel, group, self.changed)

    def member(self, group_number: int, member_number: int) -> _MemberTasks:
        """Waits, publications and touches of a member."""
        group = self.kernel.groups[group_number]
        member = group.members[member_number]
        numbers = dict(zip((name for name, _ in group.numbers), member.numbers, strict=True))
        own = group_number, tuple(numbers[n] for n in self.own_names[group_number])
        if own not in self.regions:
            free = frozenset(numbers) - set(self.own_names[group_number])
            self.regions[own] = _regions(self.kernel, group, self.changed, numbers, free)
        key = *own, member.arguments
        if key not in self.touches:
            self.touches[key] = self._touches(group, member, self.regions[own])
        needs = tuple(Need(n - OWN_COUNTERS, value(a.value, numbers)) for a in group.body if isinstance(a, Await)
                      for n in range(value(a.index, numbers), value(a.index, numbers) + value(a.count, numbers)))
        publishes = tuple(value(p.index, numbers) - OWN_COUNTERS for p in group.body if isinstance(p, Publish))
        return _MemberTasks(needs, publishes, self.touches[key])

    def _touches(self, group: Group, member: Member, regions: list[list[tuple[str, int, int, bool]]]) -> tuple[tuple[Touch, ...], ...]:
        parameter_of = dict(zip((slot.name for slot in group.slots), member.arguments, strict=True))
        of_tasks = []
        for runs in regions[:member.num_blocks]:
            touches = []
            for slot, first, last, writes in runs:
                base, offset = self.window_of.get(parameter_of[slot], (parameter_of[slot], 0))
                touches.append(Touch(base, first + offset, last + offset, writes))
            of_tasks.append(tuple(touches))
        return tuple(of_tasks)


def shared_slots(kernel: Kernel) -> frozenset[str]:
    """Slots whose memory more than one task may touch, of which one writes.

    In a mixture the members of a body are parts of one launch, whose blocks write elements of their own, as those of every kernel do. A
    result that no body reads and one body writes is therefore left out.
    """
    changed = changed_slots(kernel)
    if kernel.tasks is None or kernel.tasks.mixture is None:
        return changed
    touching: dict[str, set[int]] = {}
    read: set[str] = set()
    for number, group in enumerate(kernel.groups):
        arguments = {slot.name: group.members[0].arguments[n] for n, slot in enumerate(group.slots)}
        for a in accesses(group.body):
            if a.slot in arguments:
                touching.setdefault(arguments[a.slot], set()).add(number)
                read |= set() if a.writes else {arguments[a.slot]}
    alone = {p for p, groups in touching.items() if len(groups) == 1 and p not in read}
    return frozenset(slot.name for g in kernel.groups for n, slot in enumerate(g.slots)
                     if slot.name in changed and g.members[0].arguments[n] not in alone)


def value(e: Affine, env: Mapping[str, int]) -> int:
    """An index expression at one point. Raises: InternalError for a name without a value."""
    return int(_value(e, {name: np.asarray(v, dtype=np.int64) for name, v in env.items()}))


def _check_body(kernel: Kernel, group: Group, changed: frozenset[str]) -> None:
    """Raises: InternalError where a body awaits behind an access of changed memory, or touches it behind a publication."""
    touching = [any(a.slot in changed for a in accesses((s,))) for s in group.body]
    waits = [n for n, s in enumerate(group.body) if isinstance(s, Await)]
    ends = [n for n, s in enumerate(group.body) if isinstance(s, Publish)]
    first = touching.index(True) if True in touching else len(touching)
    last = len(touching) - 1 - touching[::-1].index(True) if True in touching else -1
    inner = [s for s in parts(group.body) if isinstance(s, Await | Publish)]
    if len(inner) != len(waits) + len(ends) or any(n > first for n in waits) or any(n < last for n in ends):
        number = kernel.groups.index(group)
        raise InternalError(f"kernel {kernel.name}: body {number} waits behind its first access, or publishes before its last")


def accesses(body: Iterable[Stmt], context: tuple[For | Let | Bound, ...] = ()) -> Iterator[Access]:
    """All accesses of statements to buffers, in order."""
    for s in body:
        yield from _own(s, context)
        match s:
            case Let():
                context = (*context, s)
            case For():
                yield from accesses(s.body, (*context, s))
            case If(bounds, inner, other):
                yield from accesses(inner, (*context, *bounds))
                yield from accesses(other, context)
            case _:
                for inner in bodies(s):
                    yield from accesses(inner, context)


def _own(s: Stmt, context: tuple[For | Let | Bound, ...]) -> Iterator[Access]:
    match s:
        case VectorLoad(buffer=buffer, index=index, width=width, dynamic=dynamic):
            yield Access(buffer, index, width, False, context, bool(dynamic))
        case VectorStore(buffer, index, _, _, width):
            yield Access(buffer, index, width, True, context)
        case Store(buffer, index, _, dynamic) | Atomic(_, buffer, index, _, dynamic):
            yield Access(buffer, index, 1, True, context, bool(dynamic))
        case AsyncCopy(_, _, buffer, index, width) | BulkCopy(_, _, buffer, index, width):
            yield Access(buffer, index, width, False, context)
    inner = s.condition if isinstance(s, IfValue) else () if bodies(s) else s
    for e in parts(inner):
        if isinstance(e, Load):
            yield Access(e.buffer, e.index, 1, False, context, bool(e.dynamic))


def _numbers_of_accesses(group: Group, changed: frozenset[str], threads: int) -> list[str]:
    """The group's numbers on which the elements of some access to changed memory depend."""
    used: set[str] = set()
    names = {name for name, _ in group.numbers}
    for a in dict.fromkeys(a for a in accesses(group.body) if a.slot in changed):
        inner = inlined(a, dict(group.numbers) | {TASK: max(m.num_blocks for m in group.members), "thread": threads})
        used |= {name for name in names & _names_of(a) - used if step_of(a, name) != 0 and step_of(inner, name) != 0}
    return [name for name, _ in group.numbers if name in used]


def step_of(a: Access, name: str, by: int = 1) -> int | None:
    """Elements by which an access moves where a name grows by `by`: the same at every point; None where that is not known.

        tile // 4 + tile % 4, tile by 8      2          tile // 4, tile by 3      not known
    """
    moved = _moved_names(a, name, by)
    return None if moved is None else _step(a.index, moved)


def inlined(a: Access, extents: Mapping[str, int]) -> Access:
    """The access with the index expressions that names around it stand for, simplified. extents: of names that are bound outside.

        r = tile // 14 % 14, s = tile % 14, index r * 14 + s      ->      index tile % 196
    """
    known = dict(extents)
    for s in a.context:
        match s:
            case Let(name, _, extent):
                known[name] = extent
            case For(var, start, stop) if start.is_const and stop.is_const and start.const == 0:
                known[var] = stop.const
    index = a.index
    for s in reversed(a.context):
        if isinstance(s, Let) and isinstance(s.value, Affine):
            index = substitute(index, {s.name: s.value}, known)
    return replace(a, index=index)


def steps_of(kernel: Kernel, name: str, by: int, slots: Set[str]) -> set[tuple[str, int | None]]:
    """(slot, step) of all accesses to some slots: the elements by which each moves where a name grows by `by`, None where not known."""
    extents = {"block": kernel.launch.num_blocks, "thread": kernel.launch.num_threads}
    touching = dict.fromkeys(a for a in accesses(kernel.body) if a.slot in slots)
    return {(a.slot, None if a.anywhere else step_of(inlined(a, extents), name, by)) for a in touching}


def span_of(body: tuple[Stmt, ...], slot: str, threads: int, num_blocks: int) -> tuple[int, int] | None:
    """First element that blocks 0 .. num_blocks - 1 touch of a slot, and that behind the last one; None where that is not known."""
    context = (Let("block", Affine(((TASK, 1),)), num_blocks),)
    first, last = 0, 0
    for n, a in enumerate(dict.fromkeys(a for a in accesses(body, context) if a.slot == slot)):
        points = None if a.anywhere else _points(a, threads, np.arange(num_blocks), {})
        if points is None:
            return None
        index, holds = points
        if holds.any():
            low, high = int(index[holds].min()), int(index[holds].max()) + a.width
            first, last = (min(first, low), max(last, high)) if n else (low, high)
    return first, last


def _moved_names(a: Access, name: str, by: int) -> dict[str, int | None] | None:
    """By name how far the names around an access move where one of them grows; None where a loop then has other bounds."""
    moved: dict[str, int | None] = {name: by}
    for s in a.context:
        match s:
            case Let(own, Affine() as term):
                moved[own] = _step(term, moved)
            case Let(own, term):
                moved[own] = None if any(moved.get(x, 0) != 0 for x in term.axes()) else 0
            case For(_, start, stop) if any(moved.get(x, 0) != 0 for x in start.axes() | stop.axes()):
                return None
    return moved


def _step(e: Affine, moved: Mapping[str, int | None]) -> int | None:
    """How far an index expression moves with its names; None where that differs from point to point."""
    total = 0
    for atom, coefficient in e.terms:
        if isinstance(atom, str):
            part = moved.get(atom, 0)
        else:
            inner = _step(atom.of, moved)
            whole = inner is not None and inner % atom.by == 0
            part = None if not whole or inner is None else inner // atom.by if isinstance(atom, FloorDiv) else 0
        if part is None:
            return None
        total += coefficient * part
    return total


def _without_moving_guards(a: Access, names: Set[str]) -> Access:
    """The access without guards that hold for some values of the names alone: it may touch more elements then, and no others."""
    moved = [m for m in (_moved_names(a, name, 1) for name in names) if m is not None]
    still = tuple(s for s in a.context if not isinstance(s, Bound) or all(_step(s.index, m) == 0 for m in moved))
    return replace(a, context=still)


def _regions(kernel: Kernel, group: Group, changed: frozenset[str], numbers: Mapping[str, int],
             free: Set[str] = frozenset()) -> list[list[tuple[str, int, int, bool]]]:
    """For each task of a member with these numbers the runs of elements that it touches: (slot, first, last + 1, writes).

    free: numbers of which the runs are independent; guards that depend on them are taken to hold.
    """
    num_tasks = max(m.num_blocks for m in group.members)
    size = {slot.name: slot.num_elements for slot in group.slots}
    counters = {s.counter for s in group.body if isinstance(s, Await | Publish)}
    touched: list[dict[tuple[str, bool], list[tuple[int, int]]]] = [{} for _ in range(num_tasks)]
    for a in dict.fromkeys(a for a in accesses(group.body) if a.slot in changed and a.slot not in counters):
        a = _without_moving_guards(a, free)
        for task, runs in enumerate(_runs(a, kernel.launch.num_threads, num_tasks, size[a.slot], numbers)):
            touched[task].setdefault((a.slot, a.writes), []).extend(runs)
    return [[(slot, first, last, writes) for (slot, writes), runs in of_task.items() for first, last in _joined(runs)]
            for of_task in touched]


@dataclass(frozen=True, slots=True)
class Stretch:
    """Elements start .. start + length - 1 of a slot that a task reads, as far as the buffer reaches; `start` names the task."""

    slot: str
    start: Affine
    length: int


def stretches(group: Group, threads: int, num_tasks: int, slots: Set[str]) -> list[Stretch]:
    """For those of the slots of which each task reads one run of elements, equally long and a constant step apart: the run.

    Four tasks stand for all: the runs decide no result (they are fetched ahead), so that nothing is proved of the others.
    """
    tasks = np.array(sorted({0, min(1, num_tasks - 1), num_tasks // 2, num_tasks - 1}))
    size = {slot.name: slot.num_elements for slot in group.slots}
    runs: dict[str, list[list[tuple[int, int]]] | None] = {}
    for a in dict.fromkeys(a for a in accesses(group.body) if a.slot in slots and not a.writes):
        points = None if a.anywhere else _points(a, threads, tasks, {})
        before = runs.get(a.slot, [[] for _ in tasks])
        if points is None or before is None:
            runs[a.slot] = None
        else:
            own = _listed_runs(*points, a.width, size[a.slot])
            runs[a.slot] = [_joined([*x, *y]) for x, y in zip(before, own, strict=True)]
    read = []
    for slot, of_tasks in runs.items():
        if of_tasks is None or any(len(r) != 1 for r in of_tasks):
            continue
        firsts, lasts = ([r[0][n] for r in of_tasks] for n in (0, 1))
        step, length = firsts[min(1, len(firsts) - 1)] - firsts[0], lasts[0] - firsts[0]
        at_step = all(f == firsts[0] + step * int(t) for f, t in zip(firsts, tasks, strict=True))
        if at_step and all(e == min(f + length, size[slot]) for f, e in zip(firsts, lasts, strict=True)):
            read.append(Stretch(slot, Affine(((TASK, step),) if step else (), firsts[0]), length))
    return read


def _joined(runs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Runs of elements in order, those that meet as one."""
    joined: list[tuple[int, int]] = []
    for first, last in sorted(runs):
        if joined and first <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    return joined


def _runs(a: Access, threads: int, num_tasks: int, size: int, numbers: Mapping[str, int]) -> list[list[tuple[int, int]]]:
    """For each task the runs of elements of one access, within the buffer."""
    whole = [[(0, size)]] * num_tasks
    points = None if a.anywhere else _points(a, threads, np.arange(num_tasks), numbers)
    return whole if points is None else _listed_runs(*points, a.width, size)


def _listed_runs(index: Numbers, holds: NDArray[np.bool_], width: int, size: int) -> list[list[tuple[int, int]]]:
    """For each row of starts of accesses that hold the runs of elements, within the buffer."""
    listed = []
    for row, inside in zip(index, holds, strict=True):
        starts = np.unique(row[inside])
        breaks = np.flatnonzero(np.diff(starts) > width) + 1
        firsts = starts[np.concatenate(([0], breaks))] if starts.size else starts
        lasts = starts[np.concatenate((breaks - 1, [starts.size - 1]))] + width if starts.size else starts
        listed.append([(max(int(f), 0), min(int(e), size)) for f, e in zip(firsts, lasts, strict=True)])
    return listed


def _points(a: Access, threads: int, tasks: Numbers, numbers: Mapping[str, int]) -> tuple[Numbers, NDArray[np.bool_]] | None:
    """Elements of an access and whether its guards hold, one row a task; None where they are not known or too many."""
    needed = _names_of(a)
    known = {TASK, "thread", "rank", *numbers} | {s.var if isinstance(s, For) else s.name for s in a.context if not isinstance(s, Bound)}
    if not needed <= known or any(isinstance(s, Let) and s.name in needed and isinstance(s.value, FromMemory) for s in a.context):
        return None
    env: dict[str, Numbers] = {}
    conditions: list[NDArray[np.bool_]] = []
    axes = [name for name in (TASK, "thread") if name in needed or name == TASK]
    axes += [s.var for s in a.context if isinstance(s, For) and s.var in needed]

    def along(name: str, values: Numbers) -> Numbers:
        return values.reshape([-1 if n == axes.index(name) else 1 for n in range(len(axes))])

    env[TASK] = along(TASK, tasks)
    env |= {name: np.asarray(n, dtype=np.int64).reshape((1,) * len(axes)) for name, n in numbers.items()}
    if "thread" in axes:
        env["thread"] = along("thread", np.arange(threads))
    shape = [v.size for v in env.values()]
    for s in a.context:
        match s:
            case For(var, start, stop, step) if var in needed:
                if isinstance(step, Affine):
                    return None
                first, end = _value(start, env), _value(stop, env)
                trips = int(max(0, np.max((end - first + step - 1) // step)))
                shape.append(trips)
                if prod(shape) > MOST_POINTS:
                    return None
                env[var] = first + step * along(var, np.arange(trips))
                conditions.append(env[var] < end)
            case Let(name, term) if name in needed:
                env[name] = _let(term, env)
            case Bound() if not s.index.axes() - env.keys():
                at = _value(s.index, env)
                conditions.append((at >= s.low) & (at < s.high))
    full = np.broadcast_shapes(*(v.shape for v in env.values()))
    index = np.broadcast_to(_value(a.index, env), full).reshape(tasks.size, -1)
    holds = np.ones(full, dtype=bool)
    for c in conditions:
        holds = holds & c
    return index, holds.reshape(tasks.size, -1)


def _names_of(a: Access) -> set[str]:
    """Names that the elements of an access, or the guards around it, depend on."""
    needed = set(a.index.axes())
    for s in a.context:
        if isinstance(s, Bound):
            needed |= s.index.axes()
    for s in reversed(a.context):
        match s:
            case Let(name, term) if name in needed:
                needed |= term.axes()
            case For(var, start, stop) if var in needed:
                needed |= start.axes() | stop.axes()
    return needed


def _let(term: Affine | OfTwo | FromMemory, env: Mapping[str, Numbers]) -> Numbers:
    match term:
        case Affine():
            return _value(term, env)
        case OfTwo(function, left, right):
            x, y = _value(left, env), _value(right, env)
            return {"product": np.multiply, "least": np.minimum, "greatest": np.maximum, "quotient": np.floor_divide,
                    "remainder": np.remainder}[function](x, y)
    raise InternalError(f"{term!r} is no index expression")


def _value(e: Affine, env: Mapping[str, Numbers]) -> Numbers:
    total: Numbers = np.asarray(e.const, dtype=np.int64)
    for atom, coefficient in e.terms:
        if isinstance(atom, str):
            if atom == "rank":
                continue
            if atom not in env:
                raise InternalError(f"index {atom} of a task has no value")
            part = env[atom]
        else:
            inner = _value(atom.of, env)
            part = inner // atom.by if isinstance(atom, FloorDiv) else inner % atom.by
        total = total + coefficient * part
    return total

