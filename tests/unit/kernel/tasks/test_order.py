"""Rounds of a task order: the mapping that generated code computes is the list of segments, and repetitions become one round."""
from __future__ import annotations

from random import Random

from tilefuse.kernel.tasks.order import Round, Segment, Stretch, place_of, rounds_of


def tasks_of(segments: list[Segment]) -> list[tuple[int, int, int]]:
    """Every task of the segments in order."""
    return [(s.group, s.member, t) for s in segments for t in range(s.num_tasks)]


def test_a_recurrence_is_one_round() -> None:
    """32 steps of two bodies behind a start of its own."""
    segments = [Segment(0, 0, 3), *(s for n in range(32) for s in (Segment(1, n, 16), Segment(2, n, 4))), Segment(0, 1, 3)]
    assert rounds_of(segments) == (Round(1, (Stretch(0, 0, 0, 3),)), Round(32, (Stretch(1, 0, 1, 16), Stretch(2, 0, 1, 4))),
                                   Round(1, (Stretch(0, 1, 0, 3),)))


def test_random_orders() -> None:
    """Whatever the order, each number gives its task."""
    draw = Random(3)
    for _ in range(300):
        pattern = [(draw.randrange(3), draw.randint(1, 4)) for _ in range(draw.randint(1, 4))]
        members = [0, 0, 0]
        segments = []
        for group, count in (pattern * draw.randint(1, 4) + pattern[:draw.randint(0, 2)])[:12]:
            segments.append(Segment(group, members[group], count))
            members[group] += 1
        if draw.random() < 0.5:
            draw.shuffle(segments)
        rounds = rounds_of(segments)
        tasks = tasks_of(segments)
        assert [place_of(rounds, n) for n in range(len(tasks))] == tasks
