"""Mixtures of tasks: each task once, the same place by number and in order, columns with their shares."""
from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from tilefuse.kernel.tasks.mixture import Mixture, Phase, Share, TaskSequence, column_start, joined_rounds


def random_mixture(draw: Random) -> Mixture:
    """Rounds of up to three bodies, and sequences that hold all their tasks."""
    sequences = tuple(TaskSequence(draw.randint(1, 7), draw.randint(1, 5), draw.randint(1, 3)) for _ in range(draw.randint(1, 3)))
    left = [s.members * s.tasks for s in sequences]
    rounds = []
    while any(left):
        counts = [min(n, draw.choice((0, 3, 3, 4, 7))) for n in left]
        rounds.append((draw.choice((1, 3, 4)), tuple(enumerate(counts))))
        left = [n - c for n, c in zip(left, counts, strict=True)]
    return Mixture(joined_rounds(rounds), sequences)


def test_random_mixtures() -> None:
    """A number gives the task at that place, and every task of every member has one number."""
    draw = Random(5)
    for _ in range(300):
        mixture = random_mixture(draw)
        places = list(mixture.places())
        assert [mixture.place(n) for n in range(mixture.num_tasks)] == places
        expected = {(g, m, t) for g, s in enumerate(mixture.sequences) for m in range(s.members) for t in range(s.tasks)}
        assert Counter(places) == Counter(expected)


def test_behind_the_last_task_there_is_none() -> None:
    """A number beyond the order has no task."""
    with pytest.raises(IndexError):
        Mixture((Phase(1, 1, (Share(0, 0, 4),)),), (TaskSequence(2, 2),)).place(4)


def test_columns_have_whole_shares() -> None:
    """8 and 6 tasks beside 4: quotients are rounded down at the end of each column, and the round is whole."""
    phase = Phase(1, 4, (Share(0, 0, 8), Share(1, 0, 4), Share(2, 0, 6)))
    assert [column_start(phase, c) for c in range(5)] == [0, 4, 9, 13, 18]
    order = [group for group, _, _ in Mixture((phase,), (TaskSequence(8, 1), TaskSequence(4, 1), TaskSequence(6, 1))).places()]
    assert order == [0, 0, 1, 2, 0, 0, 1, 2, 2, 0, 0, 1, 2, 0, 0, 1, 2, 2]


def test_equal_rounds_are_one_phase() -> None:
    """Rounds that follow each other with equal counts repeat; bodies without tasks take no part."""
    rounds = [(1, ((0, 6), (1, 0))), *([(2, ((0, 3), (1, 4)))] * 5), (2, ((1, 4),))]
    assert joined_rounds(rounds) == (Phase(1, 1, (Share(0, 0, 6),)), Phase(5, 2, (Share(0, 6, 3), Share(1, 0, 4))),
                                     Phase(1, 2, (Share(1, 20, 4),)))


def test_members_side_by_side() -> None:
    """Two members at a time, of which each has one task in turn; the last one stands alone."""
    sequence = TaskSequence(3, 2, together=2)
    assert [sequence.place(n) for n in range(6)] == [(0, 0), (1, 0), (0, 1), (1, 1), (2, 0), (2, 1)]
