"""Rows that are reduced a turn before they are finished: which can be, and which are."""
from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.templates.pattern_graphs import Pattern, cross_entropy, layer_norm, norm_backward, softmax
from tilefuse.domain.resolved import Domain
from tilefuse.domain.tile import TileProgram
from tilefuse.target.device import H200
from tilefuse.templates.pattern import schedule_graph
from tilefuse.templates.rows.legality import runs_ahead
from tilefuse.templates.rows.modes import AheadQueue, Rows


def chosen(pattern: Pattern) -> TileProgram:
    """The program that the H200 is given."""
    made = schedule_graph(pattern.graph, {}, H200)
    assert isinstance(made, TileProgram) and isinstance(made.choice, Rows), made
    return made


def ahead(base: Rows, **others: int) -> Rows:
    """The choice with a queue of three rows that every walk reads."""
    return replace(base, rows=1, mode=AheadQueue(groups=2, slots=3), **others)


def test_the_longest_norms_are_finished_a_turn_later() -> None:
    """Sixteen blocks of a cluster exchange once a row: it waits in the queue meanwhile, whole, beside at least two others. Over fewer
    blocks a row in registers, with the next one on its way, is faster."""
    for pattern in (layer_norm(256, 262144, "f16"), layer_norm(128, 262144), norm_backward(170, 262144, 7, "f16")):
        choice = chosen(pattern).choice
        assert isinstance(choice, Rows) and isinstance(choice.mode, AheadQueue)
        assert choice.cluster > 1 and choice.mode.slots >= 3
    for pattern in (layer_norm(1024, 65536, "f16"), layer_norm(512, 65536), layer_norm(8192, 8192, "f16"),
                    norm_backward(5461, 8192, 131, "f16"), softmax(1024, 65536, "f16")):
        choice = chosen(pattern).choice
        assert isinstance(choice, Rows) and not isinstance(choice.mode, AheadQueue)


@pytest.mark.parametrize(("pattern", "changes", "legal"), [
    (layer_norm(64, 1024), {"threads": 64, "chunks": 4, "vector": 4}, True),
    (layer_norm(64, 1000), {"threads": 64, "chunks": 4, "vector": 4}, False),  # uneven shares of one block: two exchanges
    (layer_norm(64, 1000), {"threads": 64, "chunks": 2, "vector": 4, "cluster": 2}, True),
    (layer_norm(64, 1024), {"threads": 32, "chunks": 8, "vector": 4}, False),  # a warp alone keeps its results in registers
    (norm_backward(64, 1024, 2), {"threads": 64, "chunks": 4, "vector": 4}, True),
    (softmax(64, 1024), {"threads": 64, "chunks": 4, "vector": 4}, False),
    (cross_entropy(64, 1024), {"threads": 64, "chunks": 4, "vector": 4}, False),
], ids=["even", "uneven", "uneven cluster", "one warp", "two sums", "two stages", "values of two components"])
def test_rows_run_ahead_where_one_exchange_is_enough(pattern: Pattern, changes: dict[str, int], legal: bool) -> None:
    """The same before and after squared deviations became a sum of their own."""
    program = chosen(pattern)
    domain, choice = program.internal, program.choice
    assert isinstance(domain, Domain) and isinstance(choice, Rows)
    assert runs_ahead(domain, ahead(choice, **changes)) == legal
