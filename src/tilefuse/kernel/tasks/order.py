"""The order in which blocks take the tasks of a kernel, and the mapping from a task's number to its body, its member and its own number.

    LSTM of 3 steps      step 0: 16 tasks of body 0, 4 of body 1      step 1: the same with the next members      step 2: ...
    one `Round`          repeats 3, stretches ((body 0, 16 tasks), (body 1, 4 tasks)):     step = number / 20, rest = number % 20

Generated code computes the mapping from such ranges, so it does not grow with the number of steps and reads no table.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tilefuse.kernel.tasks.mixture import Mixture
from tilefuse.target.memory import LINE_BYTES


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive tasks of one member of one group: its tasks 0 .. num_tasks - 1."""

    group: int
    member: int
    num_tasks: int


@dataclass(frozen=True, slots=True)
class Stretch:
    """One segment of each repetition of a round: its member is `first_member` + repetition * `member_step`."""

    group: int
    first_member: int
    member_step: int
    num_tasks: int


@dataclass(frozen=True, slots=True)
class Round:
    """`repeats` repetitions of stretches, one after the other."""

    repeats: int
    stretches: tuple[Stretch, ...]

    @property
    def tasks_each(self) -> int:
        """Tasks of one repetition."""
        return sum(s.num_tasks for s in self.stretches)

    @property
    def num_tasks(self) -> int:
        """Tasks of all repetitions."""
        return self.repeats * self.tasks_each


@dataclass(frozen=True, slots=True)
class TaskOrder:
    """How the blocks of a kernel take the tasks of its groups (`Kernel.tasks`).

    segments      in order; together all members of all groups, each once
    counters      parameter of the counters, u32: the number of the next task, the number of blocks that are done, then those of tasks.
                  The last block to end sets all of them to zero again. Each has `COUNTER_WORDS` words
    num_counters  of `counters`
    names         a text for each group, for messages and timelines
    aliases       (parameter, parameter that it is a window of, first element) of parameters that lie in one another's memory
    limit_ms      longest wait of a task before the kernel stops with a message; 0: for ever
    recorded      whether the kernel records the start and the end of every task, and where it ran, in an array of its module
    mixture       the order in place of `segments`, which are empty then: tasks of several bodies side by side
    """

    segments: tuple[Segment, ...]
    counters: str
    num_counters: int
    names: tuple[str, ...]
    aliases: tuple[tuple[str, str, int], ...] = ()
    limit_ms: int = 0
    recorded: bool = False
    mixture: Mixture | None = None

    @property
    def num_tasks(self) -> int:
        """Tasks of all segments, or of the mixture."""
        return sum(s.num_tasks for s in self.segments) if self.mixture is None else self.mixture.num_tasks

    def places(self) -> Iterator[tuple[int, int, int]]:
        """(group, member, task) of every task, in order. Cost: linear in the tasks."""
        if self.mixture is not None:
            yield from self.mixture.places()
        for s in self.segments:
            for task in range(s.num_tasks):
                yield s.group, s.member, task

    @property
    def counter_words(self) -> int:
        """Words of all counters."""
        return self.num_counters * COUNTER_WORDS


# Counters before those of tasks: the next task, and the blocks that are done.
OWN_COUNTERS = 2
# Words from one counter to the next: a line each, so that blocks that poll one counter do not delay additions to another.
COUNTER_WORDS = LINE_BYTES // 4
# Numbers of a task's record: start and end in nanoseconds, multiprocessor.
RECORD_FIELDS = 3


def records_symbol(kernel: str) -> str:
    """Symbol of the array with the records of a kernel's tasks."""
    return f"{kernel}_task_records"


def rounds_of(segments: Sequence[Segment]) -> tuple[Round, ...]:
    """The segments as rounds, in the same order: repetitions that differ only in their members, by a constant step each, become one.

    Cost: quadratic in the number of segments at most, linear for orders that repeat.
    """
    rounds: list[Round] = []
    place = 0
    while place < len(segments):
        best = Round(1, (_stretch(segments[place], 0),))
        for period in range(1, (len(segments) - place) // 2 + 1):
            if segments[place + period].group != segments[place].group:
                continue
            repeats = _repetitions(segments, place, period)
            if repeats > 1 and repeats * period > best.repeats * len(best.stretches):
                steps = [segments[place + period + n].member - segments[place + n].member for n in range(period)]
                best = Round(repeats, tuple(_stretch(segments[place + n], step) for n, step in enumerate(steps)))
        rounds.append(best)
        place += best.repeats * len(best.stretches)
    return tuple(rounds)


def _stretch(s: Segment, step: int) -> Stretch:
    return Stretch(s.group, s.member, step, s.num_tasks)


def _repetitions(segments: Sequence[Segment], place: int, period: int) -> int:
    """How often the `period` segments at `place` follow each other, with members a constant step apart."""
    first = segments[place:place + period]
    repeats = 1
    steps: list[int] = []
    while True:
        following = segments[place + repeats * period:place + (repeats + 1) * period]
        if len(following) < period or any((a.group, a.num_tasks) != (b.group, b.num_tasks) for a, b in zip(first, following, strict=True)):
            return repeats
        moved = [b.member - a.member for a, b in zip(first, following, strict=True)]
        if repeats == 1:
            steps = moved
        elif moved != [step * repeats for step in steps]:
            return repeats
        repeats += 1


def place_of(rounds: Sequence[Round], number: int) -> tuple[int, int, int]:
    """(group, member, task) of a task's number, as generated code computes it."""
    for r in rounds:
        if number >= r.num_tasks:
            number -= r.num_tasks
            continue
        repetition, rest = divmod(number, r.tasks_each)
        for s in r.stretches:
            if rest < s.num_tasks:
                return s.group, s.first_member + repetition * s.member_step, rest
            rest -= s.num_tasks
    raise IndexError(number)
