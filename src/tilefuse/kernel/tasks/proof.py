"""Proof of a task program before it runs: every wait ends, and no two tasks touch a value in an order that nothing establishes.

Blocks take tasks in their order. The lowest task that is not done therefore never waits for a task that no block has taken: if each wait
is satisfied by tasks before it, all waits end, in any order of starting blocks. A wait orders its task behind the tasks that it counts only
where it counts all of them: of five that publish, any four may be done first.

    needs counter 3 = 5, five tasks publish it     behind all five, and behind everything that these are behind
    needs counter 3 = 4, five tasks publish it     behind none of them
"""
from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from tilefuse.kernel.tasks.program import Task, TaskProgram, Touch

# Findings that one proof lists at most.
MOST_FINDINGS = 40


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule that a task program breaks. rule: "endless wait" or "unordered"."""

    rule: str
    task: str
    message: str


def prove(program: TaskProgram) -> list[Finding]:
    """Broken rules of a task program; empty: all its waits end, and every pair of accesses of which one writes is ordered.

    Cost: linear in waits and touches, times a word for every 64 tasks.
    """
    findings: list[Finding] = []
    behind = _behind(program, findings)
    _check_order(program, behind, findings)
    return findings


def happens_before(program: TaskProgram) -> list[int]:
    """For each task the set of tasks that are done before it begins, as a number with one bit a task."""
    return _behind(program, [])


def _behind(program: TaskProgram, findings: list[Finding]) -> list[int]:
    publishers: dict[int, int] = {}
    for task in program.tasks:
        for counter in task.publishes:
            publishers[counter] = publishers.get(counter, 0) + 1
    reached: dict[int, int] = {}
    sets: dict[int, int] = {}  # by counter: its publishers so far, and all that is before them
    behind: list[int] = []
    for number, task in enumerate(program.tasks):
        before = 0
        for need in task.needs:
            if need.value <= 0:
                continue
            if need.value > reached.get(need.counter, 0):
                if len(findings) < MOST_FINDINGS:
                    findings.append(Finding("endless wait", task.name, f"needs {need.value} of counter {need.counter}, which tasks before "
                                            f"it bring to {reached.get(need.counter, 0)}"))
            elif need.value == publishers[need.counter]:
                before |= sets[need.counter]
        behind.append(before)
        for counter in task.publishes:
            reached[counter] = reached.get(counter, 0) + 1
            sets[counter] = sets.get(counter, 0) | before | 1 << number
    return behind


class _Spans:
    """Touches of one value of one kind, for finding those that overlap a range."""

    def __init__(self, touches: list[tuple[int, int, int]]) -> None:
        touches.sort()
        self.firsts = [first for first, _, _ in touches]
        self.touches = touches
        self.longest = max(last - first for first, last, _ in touches)
        self.known: dict[tuple[int, int], int] = {}

    def tasks(self, first: int, last: int) -> int:
        """The set of tasks with a touch that overlaps first .. last - 1."""
        mask = self.known.get((first, last))
        if mask is None:
            mask = 0
            for place in range(bisect_left(self.firsts, first - self.longest + 1), bisect_left(self.firsts, last)):
                if self.touches[place][1] > first:
                    mask |= 1 << self.touches[place][2]
            self.known[first, last] = mask
        return mask


def _check_order(program: TaskProgram, behind: list[int], findings: list[Finding]) -> None:
    """Adds a finding for each task that touches elements which an earlier one writes, or writes elements which that one touches, and
    that is not behind it."""
    lists: dict[tuple[str, bool], list[tuple[int, int, int]]] = {}
    for number, task in enumerate(program.tasks):
        for t in task.touches:
            if t.first < t.last:
                lists.setdefault((t.value, t.writes), []).append((t.first, t.last, number))
    spans = {key: _Spans(touches) for key, touches in lists.items()}
    written = {value for value, writes in lists if writes}
    for number, task in enumerate(program.tasks):
        earlier = (1 << number) - 1
        for t in task.touches:
            if t.value not in written or t.first >= t.last:
                continue
            others = spans[t.value, True].tasks(t.first, t.last)
            if t.writes and (t.value, False) in spans:
                others |= spans[t.value, False].tasks(t.first, t.last)
            loose = others & earlier & ~behind[number]
            if loose:
                findings.append(_unordered(task, t, program.tasks[loose.bit_length() - 1]))
                break
        if len(findings) >= MOST_FINDINGS:
            return


def _unordered(task: Task, t: Touch, other: Task) -> Finding:
    how = "writes" if t.writes else "reads"
    place = f"%{t.value}[{t.first} .. {t.last - 1}]"
    return Finding("unordered", task.name, f"{how} {place}, which {other.name} touches, and no counter orders the two")
