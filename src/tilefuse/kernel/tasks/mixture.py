"""Orders in which tasks of several bodies are mixed: rounds of columns, in each of which every body has its share of tasks.

    one round, 4 columns      body 0: 8 tasks    body 1: 4 tasks    body 2: 6 tasks
    column 0   0 0 1 2        column 1   0 0 1 2 2        column 2   0 0 1 2        column 3   0 0 1 2 2

A body's tasks come in a sequence of their own: member after member, or `together` members at a time, of which each has one task in turn.
Generated code computes the place of a task from these few numbers, however many tasks there are.
Source: the task mapping of the mega-kernel paper, algorithm 1; its quotients are rounded down at the end of each column, so that a round is
whole.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

# Largest product of two numbers of a round that generated code forms in 32 bits.
MOST_IN_ROUND = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Share:
    """Tasks of one body in each round: from number `first` of its sequence on, `count` a round."""

    group: int
    first: int
    count: int


@dataclass(frozen=True, slots=True)
class Phase:
    """`repeats` rounds of `columns` columns. Column c has tasks n * c // columns to n * (c + 1) // columns - 1 of a share of n tasks."""

    repeats: int
    columns: int
    shares: tuple[Share, ...]

    @property
    def tasks_each(self) -> int:
        """Tasks of one round."""
        return sum(s.count for s in self.shares)

    @property
    def num_tasks(self) -> int:
        """Tasks of all rounds."""
        return self.repeats * self.tasks_each


@dataclass(frozen=True, slots=True)
class TaskSequence:
    """The sequence of one body's tasks: `members` members of `tasks` tasks each, `together` of them at a time.

        together 1   (member 0: tasks 0, 1, 2) (member 1: tasks 0, 1, 2)
        together 2   task 0 of members 0 and 1, task 1 of members 0 and 1, ..
    """

    members: int
    tasks: int
    together: int = 1

    def place(self, number: int) -> tuple[int, int]:
        """(member, task) of a task's number in the sequence."""
        some, rest = divmod(number, self.tasks * self.together)
        beside = min(self.together, self.members - some * self.together)
        return some * self.together + rest % beside, rest // beside


@dataclass(frozen=True, slots=True)
class Mixture:
    """Phases in order, and the sequence of each group's tasks. Each task of each sequence stands in one phase, once."""

    phases: tuple[Phase, ...]
    sequences: tuple[TaskSequence, ...]

    @property
    def num_tasks(self) -> int:
        """Tasks of all phases."""
        return sum(p.num_tasks for p in self.phases)

    def places(self) -> Iterator[tuple[int, int, int]]:
        """(group, member, task) of every task, in order. Cost: linear in the tasks."""
        for phase in self.phases:
            for turn in range(phase.repeats):
                for column in range(phase.columns):
                    for s in phase.shares:
                        start = s.first + turn * s.count
                        for n in range(s.count * column // phase.columns, s.count * (column + 1) // phase.columns):
                            yield (s.group, *self.sequences[s.group].place(start + n))

    def place(self, number: int) -> tuple[int, int, int]:
        """(group, member, task) of one task, as generated code computes it. Raises: IndexError where there is no such task."""
        for phase in self.phases:
            if number >= phase.num_tasks:
                number -= phase.num_tasks
                continue
            turn, rest = divmod(number, phase.tasks_each)
            column = rest * phase.columns // phase.tasks_each
            while column_start(phase, column) > rest:
                column -= 1
            while column_start(phase, column + 1) <= rest:
                column += 1
            rest -= column_start(phase, column)
            for s in phase.shares:
                before = s.count * column // phase.columns
                own = s.count * (column + 1) // phase.columns - before
                if rest < own:
                    return s.group, *self.sequences[s.group].place(s.first + turn * s.count + before + rest)
                rest -= own
        raise IndexError(number)


def column_start(phase: Phase, column: int) -> int:
    """Tasks of a round before a column."""
    return sum(s.count * column // phase.columns for s in phase.shares)


def joined_rounds(rounds: Sequence[tuple[int, tuple[tuple[int, int], ...]]]) -> tuple[Phase, ...]:
    """Rounds of (columns, ((group, count), ..)) as phases: equal rounds that follow each other become one."""
    phases: list[Phase] = []
    done: dict[int, int] = {}
    for columns, counts in rounds:
        counts = tuple((g, n) for g, n in counts if n)
        if not counts:
            continue
        last = phases[-1] if phases else None
        if last is not None and last.columns == columns and tuple((s.group, s.count) for s in last.shares) == counts:
            phases[-1] = Phase(last.repeats + 1, columns, last.shares)
        else:
            phases.append(Phase(1, columns, tuple(Share(g, done.get(g, 0), n) for g, n in counts)))
        for g, n in counts:
            done[g] = done.get(g, 0) + n
    return tuple(phases)
