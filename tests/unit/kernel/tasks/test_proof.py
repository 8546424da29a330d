"""The proof of task programs: safe ones pass, planted faults are found, and on random programs it never passes one an adversary breaks."""
from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from tests.unit.kernel.tasks.random_programs import FAULTS, conflicts, ends_with_tickets, is_safe, safe_program, with_fault
from tilefuse.kernel.tasks.program import Need, Task, TaskProgram, Touch
from tilefuse.kernel.tasks.proof import happens_before, prove

PROGRAMS = 10_000
PRODUCER = Task("p", (), (0,), (Touch("h", 0, 8, True),))
OTHER = Task("q", (), (0,), (Touch("h", 8, 16, True),))
USER = Task("u", (Need(0, 2),), (1,), (Touch("h", 0, 16, False), Touch("y", 0, 4, True)))


def rules(*tasks: Task) -> list[tuple[str, str]]:
    """(rule, task) of each finding."""
    return [(f.rule, f.task) for f in prove(TaskProgram(tasks))]


def test_a_chain_is_proved() -> None:
    """Two producers of halves, a user of the whole that awaits both, and a task behind the user only through it."""
    last = Task("l", (Need(1, 1),), (), (Touch("h", 0, 16, True),))
    program = TaskProgram((PRODUCER, OTHER, USER, last))
    assert prove(program) == []
    assert happens_before(program) == [0, 0, 0b011, 0b111]


@pytest.mark.parametrize(("tasks", "expected"), [
    ((PRODUCER, USER, OTHER), [("endless wait", "u")]),
    ((PRODUCER, OTHER, Task("u", (Need(0, 1),), (), USER.touches)), [("unordered", "u")]),
    ((PRODUCER, OTHER, Task("u", (Need(0, 3),), (), USER.touches)), [("endless wait", "u"), ("unordered", "u")]),
    ((PRODUCER, Task("r", (), (), (Touch("h", 7, 9, False),))), [("unordered", "r")]),
    ((PRODUCER, Task("r", (), (), (Touch("h", 8, 9, False),))), []),
    ((PRODUCER, OTHER, USER, Task("w", (Need(0, 2),), (), (Touch("h", 0, 1, True),))), [("unordered", "w")]),
])
def test_rules(tasks: tuple[Task, ...], expected: list[tuple[str, str]]) -> None:
    """Waits that never end; a count that leaves one producer out; reads beside a writer; a place written before its reader is done."""
    assert rules(*tasks)[:len(expected)] == expected
    assert bool(expected) == bool(rules(*tasks))


def test_random_programs() -> None:
    """Safe programs pass. Every faulty one that an adversary can break is refused, of each kind of fault many."""
    draw = Random(21)
    broken: Counter[str] = Counter()
    for _ in range(PROGRAMS // len(FAULTS)):
        program = safe_program(draw)
        assert prove(program) == [], program
        for fault in FAULTS:
            faulty = with_fault(program, fault, draw)
            if faulty is not None and not is_safe(faulty):
                broken[fault] += 1
                assert prove(faulty), (fault, faulty)
    assert all(broken[fault] > PROGRAMS // len(FAULTS) // 10 for fault in FAULTS), broken


def test_behind_is_what_an_adversary_cannot_avoid() -> None:
    """On safe programs every conflicting pair is in the order that the proof computes."""
    draw = Random(5)
    for _ in range(200):
        program = safe_program(draw)
        assert is_safe(program)
        behind = happens_before(program)
        for b, late in enumerate(program.tasks):
            assert all(behind[b] >> a & 1 for a in range(b) if conflicts(program.tasks[a], late))


def test_tickets_taken_ahead_end() -> None:
    """Blocks hold the numbers of a task and of the next one. A proved program ends with any number of blocks, whenever they start."""
    draw = Random(8)
    for _ in range(1000):
        program = safe_program(draw)
        assert ends_with_tickets(program, draw.randint(1, 5), draw), program
    circle = TaskProgram((Task("u", (Need(0, 1),)), Task("p", (), (0,))))
    assert not ends_with_tickets(circle, 1, draw), "one block never comes to the task that it waits for"
