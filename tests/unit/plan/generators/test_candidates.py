"""Candidates: a set is tried once, with its reason where it is none, and structures are scheduled within the limit."""
from __future__ import annotations

import pytest

from tests.unit.plan.graphs import layers, softmax
from tests.unit.plan.proposals import candidates_of
from tests.unit.plan.stand_in import schedule_by_rows
from tilefuse.base.candidate import Reason, Rejected
from tilefuse.ir.text import parse_graph
from tilefuse.plan.generators.candidates import Candidate


def test_the_score_is_the_time_saved() -> None:
    made = candidates_of(softmax())
    found = made.offer((0, 1, 2, 3), "test")
    assert isinstance(found, Candidate)
    assert found.score_us == pytest.approx(sum(made.alone[n].cost.us for n in range(4)) - found.priced.cost.us) and found.score_us > 0


def test_a_set_is_tried_once() -> None:
    calls: list[object] = []

    def schedule(*arguments: object) -> object:
        calls.append(arguments)
        return schedule_by_rows(*arguments)  # type: ignore[arg-type]

    made = candidates_of(softmax(), schedule)  # type: ignore[arg-type]
    before = len(calls)
    assert made.offer((0, 1), "first") is made.offer((1, 0, 1), "second")
    assert len(calls) == before + 1 and made.counts() == (("first", 1),)


def test_reasons_are_kept() -> None:
    made = candidates_of(layers(2))
    across = made.offer((1, 4), "test")
    assert isinstance(across, Rejected) and across.reason is Reason.NOT_CONVEX
    call = made.offer((1, 2), "test")
    assert isinstance(call, Rejected) and call.reason is Reason.LIBRARY_CALL and "%p0" in call.detail
    assert [why.reason for _, why in made.rejected.values()] == [Reason.NOT_CONVEX, Reason.LIBRARY_CALL]


def test_beyond_the_limit_only_known_structures_are_taken() -> None:
    """The second layer's pair is like the first one's; the triple is new."""
    made = candidates_of(layers(4), max_new=1)
    assert isinstance(made.offer((3, 4), "test"), Candidate)
    assert isinstance(made.offer((7, 8), "test"), Candidate)
    refused = made.offer((3, 4, 5), "test")
    assert isinstance(refused, Rejected) and refused.reason is Reason.NOT_TRIED
    made.allow(1)
    assert isinstance(made.offer((7, 8, 9), "test"), Candidate)


def test_a_value_needed_inside_and_outside_is_written_once() -> None:
    graph = parse_graph("""graph @g(%x: f32[64, 64], const %w: f32[64, 64]) -> (f32[64, 64]) {
      %a: f32[64, 64] = map [i, j] { add(%x[i, j], %x[j, i]) }
      %b: f32[64, 64] = map [i, j] { exp(%a[i, j]) }
      %p: f32[64, 64] = library.matmul (%a, %b)
      return %p
    }""")
    found = candidates_of(graph).offer((0, 1), "test")
    assert isinstance(found, Candidate) and found.priced.program.graph.results == ("a", "b")
