"""The proof in bundles: it agrees with the proof task by task, on random programs with and without faults, and on chains in groups."""
from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from tests.unit.kernel.tasks.random_programs import FAULTS, safe_program, with_fault
from tilefuse.kernel.tasks.bundles import Bundle, prove_bundles
from tilefuse.kernel.tasks.program import Need, Task, TaskProgram, Touch
from tilefuse.kernel.tasks.proof import prove

PROGRAMS = 10_000


def in_bundles(program: TaskProgram) -> list[Bundle]:
    """Tasks with equal waits and publications as one bundle each."""
    places: dict[tuple[tuple[Need, ...], tuple[int, ...]], list[int]] = {}
    for n, task in enumerate(program.tasks):
        places.setdefault((task.needs, task.publishes), []).append(n)
    return [Bundle(f"bundle {k}", needs, publishes, tuple(own), tuple(program.tasks[n].touches for n in own))
            for k, ((needs, publishes), own) in enumerate(places.items())]


def test_random_programs() -> None:
    """Both proofs pass the same programs and refuse the same ones, of each kind of fault many."""
    draw = Random(22)
    refused: Counter[str] = Counter()
    for _ in range(PROGRAMS // len(FAULTS)):
        program = safe_program(draw)
        assert prove_bundles(in_bundles(program)) == []
        for fault in FAULTS:
            faulty = with_fault(program, fault, draw)
            if faulty is not None:
                verdict = bool(prove_bundles(in_bundles(faulty)))
                assert verdict == bool(prove(faulty)), faulty
                refused[fault] += verdict
    assert all(refused[fault] > 100 for fault in FAULTS), refused


def chain(groups: int, tasks: tuple[int, int, int], slots: tuple[int, int]) -> list[list[Task]]:
    """Tasks of a chain in groups, by body: producers of group g write slot g of %v, products read it and write slot g of %m, users read
    that. Counters: g of producers, groups + g of products, 2 groups + g of users. The order is `in_order`'s."""
    bodies: list[list[Task]] = [[], [], []]
    for g in range(groups):
        v, m = g % slots[0], g % slots[1]
        before = (Need(groups + g - slots[0], tasks[1]),) if g >= slots[0] else ()
        free = (Need(2 * groups + g - slots[1], tasks[2]),) if g >= slots[1] else ()
        for t in range(tasks[0]):
            bodies[0].append(Task(f"p{g}.{t}", before, (g,), (Touch("v", 64 * v + 8 * t, 64 * v + 8 * t + 8, True),)))
        for t in range(tasks[1]):
            bodies[1].append(Task(f"x{g}.{t}", (Need(g, tasks[0]), *free), (groups + g,),
                                (Touch("v", 64 * v, 64 * v + 8 * tasks[0], False), Touch("m", 64 * m + 8 * t, 64 * m + 8 * t + 8, True))))
        for t in range(tasks[2]):
            bodies[2].append(Task(f"u{g}.{t}", (Need(groups + g, tasks[1]),), (2 * groups + g,),
                                (Touch("m", 64 * m, 64 * m + 8 * tasks[1], False),)))
    return bodies


def in_order(bodies: list[list[Task]], tasks: tuple[int, int, int], groups: int, ahead: int) -> list[Task]:
    """Producers `ahead` groups ahead, users a group behind the products."""
    order: list[Task] = []
    for g in range(-ahead, groups + 1):
        for body, group in ((0, g + ahead), (1, g), (2, g - 1)):
            if 0 <= group < groups:
                order += bodies[body][group * tasks[body]:(group + 1) * tasks[body]]
    return order


@pytest.mark.parametrize("fault", ["", "dropped publish", "count one too low", "swapped order", "reused slot"])
def test_chains(fault: str) -> None:
    """Rings that are used again and again: whole ones pass, every planted fault is found, as by the proof task by task."""
    draw = Random(7)
    for _ in range(60):
        tasks = draw.randint(1, 3), draw.randint(1, 3), draw.randint(1, 3)
        groups, ahead = draw.randint(4, 8), draw.randint(1, 2)
        slots = ahead + 1, 2
        order = in_order(chain(groups, tasks, slots), tasks, groups, ahead)
        waiting = [n for n, t in enumerate(order) if t.needs]
        match fault:
            case "dropped publish":
                n = draw.choice([n for n, t in enumerate(order) if not t.name.startswith(("u", f"x{groups - 1}"))])
                order[n] = replace(order[n], publishes=())
            case "count one too low":
                n = draw.choice(waiting)
                order[n] = replace(order[n], needs=tuple(Need(x.counter, x.value - 1) for x in order[n].needs))
            case "swapped order":
                first = next(n for n, t in enumerate(order) if t.name.startswith("x"))
                order.insert(0, order.pop(first))
            case "reused slot":
                order = in_order(chain(groups, tasks, (ahead + 1, 1)), tasks, groups, ahead)
                order = [replace(t, needs=t.needs[:1]) if t.name.startswith("x") else t for t in order]
        program = TaskProgram(tuple(order))
        findings = prove_bundles(in_bundles(program))
        assert bool(findings) == bool(prove(program)) == bool(fault), (fault, findings)
