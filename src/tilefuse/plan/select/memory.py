"""Peak memory of a choice of kernels, and conditions that keep it below a ceiling.

Intermediate values live from the kernel that writes them to the last one that reads them; kernels run in the order of their last nodes.
Where a choice needs too much memory, the program gets a row for the moment of its peak: the bytes of the values that cross this moment in
the graph's own order, plus the change that every candidate makes to them.

    moment t, between b and c in a b c d:   bytes(a, read by c) + bytes(b, read by d)        ceiling - base >= sum of the changes:
    {a, c} holds a on chip: - bytes(a)      {b, d}: - bytes(b)      {b, c}, written at c: - bytes(b)      {x, c}: x lives on: + bytes(x)

The changes of two candidates that touch one value are added, which is not exact: such a row leads to good choices soon, but may forbid the
best one. So the combination itself is forbidden too, unless another candidate that touches the same values is chosen, and the program is
solved once more without the rows that are not exact (`Row.exact`).
"""
from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tilefuse.base.construction import quickly_built
from tilefuse.base.search.limits import SEARCH
from tilefuse.plan.generators.units import Units
from tilefuse.plan.select.ilp import Column, Row

# Tolerance by which the solver may violate a row.
ROW_TOLERANCE = 1e-5


@quickly_built
@dataclass(frozen=True, slots=True)
class Stored:
    """A value that is neither input nor result, with the units that write and read it. Units: bytes."""

    name: str
    num_bytes: int
    writer: int
    readers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Life:
    """A value's bytes from the step that writes it to the last one that reads it, both included. Units: bytes."""

    written: int
    freed: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class Peak:
    """The moment with most live bytes: the unit before it (the last of the kernel that then runs), and the live values."""

    num_bytes: int
    moment: int
    live: tuple[Stored, ...]


class PeakMemory:
    """The separator of the integer program for a ceiling on intermediate values. Units: bytes."""

    def __init__(self, units: Units, columns: Sequence[Column], ceiling_bytes: int) -> None:
        self.stored = stored_values(units)
        self._units = units
        self._columns = columns
        self._ceiling_bytes = ceiling_bytes
        self._touching: dict[int, list[Stored]] = {}
        for value in self.stored:
            for unit in dict.fromkeys((value.writer, *value.readers)):
                self._touching.setdefault(unit, []).append(value)

    def __call__(self, taken: Sequence[int]) -> list[Row]:
        """A row that this choice violates; none where its peak is below the ceiling."""
        highest = peak(self._units, self.stored, [self._columns[c].members for c in taken])
        if highest.num_bytes <= self._ceiling_bytes:
            return []
        base = sum(v.num_bytes for v in self.stored if v.writer <= highest.moment <= max(v.readers))
        changes = [self.change_bytes(column.members, highest.moment) for column in self._columns]
        # As a share of the ceiling: the solver's tolerances suit numbers around one.
        terms = tuple((c, change / self._ceiling_bytes) for c, change in enumerate(changes) if change)
        row = Row(terms, 1 - base / self._ceiling_bytes, exact=False)
        chosen = set(taken)
        guide = [row] if sum(k for c, k in terms if c in chosen) > row.upper + ROW_TOLERANCE else []
        touched = {u for v in highest.live for u in (v.writer, *v.readers)}
        near = [c for c, column in enumerate(self._columns) if not touched.isdisjoint(column.members)]
        near_chosen = [c for c in near if c in chosen]
        return [*guide, Row(tuple((c, 1.0 if c in chosen else -1.0) for c in near), len(near_chosen) - 1.0)]

    def change_bytes(self, members: Sequence[int], moment: int) -> int:
        """Change that a candidate alone makes to the bytes alive at a moment."""
        inside, last = set(members), max(members)
        change = 0
        for value in {v.name: v for m in members for v in self._touching.get(m, ())}.values():
            outside = [r for r in value.readers if r not in inside]
            before = value.writer <= moment <= max(value.readers)
            written = last if value.writer in inside else value.writer
            freed = max(outside, default=-1) if value.writer in inside else max([*outside, last])
            after = written <= moment <= freed
            change += value.num_bytes * (after - before)
        return change


def more_with_packing(live_bytes: int, held_bytes: int | None) -> float:
    """Bytes by which packing may raise the peak of a program. Units: bytes.

    live_bytes: the program's peak of intermediate values. held_bytes: all bytes that a backward part holds at its peak; None for other
    programs.
    """
    extra_bytes = live_bytes * SEARCH.selection.more_live_share + SEARCH.selection.more_live_bytes
    return extra_bytes if held_bytes is None else min(extra_bytes, held_bytes * SEARCH.selection.more_held_share)


def stored_values(units: Units) -> list[Stored]:
    """Values that one unit writes for another, and that do not go to the caller."""
    stored: list[Stored] = []
    for value, users in units.users.items():
        if value in units.unit_of and value not in units.escaping and users:
            readers = tuple(dict.fromkeys(units.unit_of[u] for u in users))
            stored.append(Stored(value, units.graph.type_of(value).num_bytes, units.unit_of[value], readers))
    return stored


def peak(units: Units, stored: Sequence[Stored], groups: Sequence[Sequence[int]], given_up: Collection[str] = ()) -> Peak:
    """The peak where each of the groups is one kernel and all other units run alone. Cost: linear.

    given_up: inputs that live until their last use. With any, results count from the step that writes them.
    """
    order = units.ordered(groups)
    step_of = {unit: step for step, group in enumerate(order) for unit in group}
    waiting: list[Stored] = []
    lives: list[Life] = []
    for value in stored:
        written, freed = step_of[value.writer], max(step_of[r] for r in value.readers)
        if any(step_of[r] != written for r in value.readers):
            waiting.append(value)
            lives.append(Life(written, freed, value.num_bytes))
    most, at = most_live([*lives, *_held_lives(units, step_of, len(order), given_up)])
    if not most or not order:
        return Peak(most, 0, ())
    return Peak(most, max(order[at]), tuple(v for v, life in zip(waiting, lives, strict=True) if life.written <= at <= life.freed))


def _held_lives(units: Units, step_of: Mapping[int, int], end: int, given_up: Collection[str]) -> list[Life]:
    """Lives of inputs that only the call holds and, beside such inputs, of results."""
    if not given_up:
        return []
    lives = [Life(step_of[units.unit_of[v]], end, units.graph.type_of(v).num_bytes) for v in sorted(units.escaping) if v in units.unit_of]
    for value in given_up:
        last = max((step_of[units.unit_of[u]] for u in units.users.get(value, ())), default=0)
        lives.append(Life(0, last, units.graph.type_of(value).num_bytes))
    return lives


def most_live(lives: Iterable[Life]) -> tuple[int, int]:
    """Most bytes alive at one step, and the first step with that many. Cost: n log n. Units: bytes."""
    change: dict[int, int] = {}
    for life in lives:
        change[life.written] = change.get(life.written, 0) + life.num_bytes
        change[life.freed + 1] = change.get(life.freed + 1, 0) - life.num_bytes
    live = most = at = 0
    for step in sorted(change):
        live += change[step]
        if live > most:
            most, at = live, step
    return most, at
