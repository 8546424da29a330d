"""Waits between the tasks of a chain in groups: the price beside a simulation of workers that take tasks in their order."""
from __future__ import annotations

import heapq
from collections import Counter
from random import Random
from typing import Any

import pytest

from tests.unit.templates.tasks.chain_cases import winograd
from tilefuse.target.device import H200
from tilefuse.templates.tasks.chains.price import groups_between, waiting_factor
from tilefuse.templates.tasks.chains.record import PRODUCER, PRODUCT, USER, GroupedChain, Rhythm, mixture_of


def chain(workers: int, rhythm: Rhythm, tasks: tuple[int, int, int], groups: int) -> GroupedChain:
    """The record of a chain with so many tasks a group; nothing here asks for its bodies."""
    bodies: Any = (None, None, None)
    return GroupedChain(256, workers, rhythm, bodies, ("v", "m"), groups, tasks, (1, 1, 1))


def factor(choice: GroupedChain) -> float:
    """Its waiting factor."""
    return waiting_factor(choice.workers, [choice.tasks(n) for n in range(3)], choice.rhythm, choice.groups)


def simulated(choice: GroupedChain) -> float:
    """Time of all tasks in times of one task, where each takes as long as another and holds its worker while it waits."""
    sizes = [choice.tasks(n) for n in range(3)]
    left = Counter({(body, group): sizes[body] for body in range(3) for group in range(choice.groups)})
    done_at: dict[tuple[int, int], float] = {}
    latest: Counter[tuple[int, int]] = Counter()
    free = [0.0] * choice.workers
    for body, group, _ in mixture_of(choice).places():
        waits = {PRODUCER: [(PRODUCT, group - choice.rhythm.slots[0])],
                 PRODUCT: [(PRODUCER, group), (USER, group - choice.rhythm.slots[1])], USER: [(PRODUCT, group)]}[body]
        begun = max([heapq.heappop(free), *(done_at[w] for w in waits if w[1] >= 0)])
        heapq.heappush(free, begun + 1)
        latest[body, group] = max(latest[body, group], begun + 1)  # type: ignore[assignment]
        left[body, group] -= 1
        if not left[body, group]:
            done_at[body, group] = latest[body, group]
    return max(done_at.values())


RHYTHMS = {
    "tasks far apart": (264, Rhythm(64, 1, 6, 6, (13, 13)), (16, 12, 16)),
    "of 264 workers 176": (264, Rhythm(128, 2, 4, 2, (10, 10)), (16, 12, 16)),
    "of 264 workers 88": (264, Rhythm(64, 2, 4, 2, (10, 10)), (8, 6, 8)),
    "small rings": (132, Rhythm(64, 1, 6, 6, (8, 8)), (8, 9, 8)),
    "users close behind": (132, Rhythm(64, 1, 8, 2, (16, 16)), (8, 9, 8)),
}


@pytest.mark.parametrize("name", RHYTHMS)
def test_workers_that_wait_are_counted(name: str) -> None:
    """Within a fifth of the simulated time: groups side by side, and shares that are rounded down, move tasks inside a round."""
    workers, rhythm, tasks = RHYTHMS[name]
    choice = chain(workers, rhythm, tasks, 400)
    own = sum(tasks) * choice.groups / workers
    assert 0.8 <= own * factor(choice) / simulated(choice) <= 1.25
    assert (factor(choice) == 1.0) == (name == "tasks far apart")


def test_random_rhythms() -> None:
    """The factor is too low by the places of tasks inside a round, and is never too high."""
    random = Random(4)
    ratios = []
    for _ in range(60):
        together, ahead, rounds = random.choice((1, 1, 2)), random.randint(2, 8), random.randint(1, 4)
        slots = ahead + together + random.randint(1, 8), (rounds + 1) * together + random.randint(1, 8)
        choice = chain(random.choice((66, 132, 264)), Rhythm(64, together, max(ahead, together), rounds, slots),
                       tuple(random.randint(4, 32) for _ in range(3)), 300)  # type: ignore[arg-type]
        ratios.append(sum(choice.blocks) * choice.groups / choice.workers * factor(choice) / simulated(choice))
    assert min(ratios) > 0.75 and max(ratios) < 1.1


def test_groups_that_are_all_under_way_wait_for_no_slot() -> None:
    assert factor(chain(264, Rhythm(64, 1, 3, 3, (3, 3)), (8, 6, 8), 3)) == 1.0


def test_chains_keep_their_workers_busy_where_rings_fit() -> None:
    """The rings of the groups under way fit a share of L2, so that no worker waits."""
    choice = winograd(9, 8, 16, 29, 1, 4, True).program().choice
    assert isinstance(choice, GroupedChain)
    assert groups_between(choice.handed_bytes(0) + choice.handed_bytes(1), H200) > choice.groups
    assert factor(choice) == 1.0
