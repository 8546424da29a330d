"""Modes of row kernels: the notation's flat words write each, neighbours of each compose, and what is not legal is refused with numbers."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.unit.templates.composed_cases import ahead, rows
from tests.unit.templates.pattern_graphs import (
    Pattern,
    embedding_sum,
    layer_norm,
    norm_backward,
    row_distances,
    row_sums,
    running_sum,
    softmax,
)
from tilefuse.base.candidate import Reason, Rejected
from tilefuse.base.errors import InternalError, UserError
from tilefuse.domain.domain import find_domain
from tilefuse.domain.resolved import Domain
from tilefuse.domain.tile import Choice, TileProgram
from tilefuse.ir.graph import Graph
from tilefuse.target.catalog import A100
from tilefuse.target.device import H200, DeviceSpec
from tilefuse.templates.by_hand import program_by_hand
from tilefuse.templates.compose import compose
from tilefuse.templates.neighbours import neighbours, program_with
from tilefuse.templates.notation import parse_template
from tilefuse.templates.pattern import schedule_graph
from tilefuse.templates.rows.legality import row_refusal
from tilefuse.templates.rows.modes import (
    AheadQueue,
    Held,
    HeldQueue,
    HeldTurns,
    PieceQueue,
    ReadAgain,
    RowQueue,
    Rows,
    RowSettings,
    Split,
    Streamed,
    rows_of,
    settings_of_rows,
)

CASES = {
    Held: (softmax(64, 1024), rows(4, 64, 4)),
    Streamed: (softmax(64, 1024), rows(4, 64, 4, on_chip=False, batch=2)),
    Split: (row_sums(6, 8192), rows(4, 128, 4, split=4, on_chip=False, batch=4)),
    HeldTurns: (norm_backward(64, 1024, 2), rows(4, 64, 4, groups=2, span=32)),
    ReadAgain: (norm_backward(64, 1024, 2), rows(4, 64, 4, on_chip=False, groups=2, span=32)),
    HeldQueue: (softmax(64, 1024), rows(4, 64, 4, stages=2, groups=4)),
    RowQueue: (softmax(64, 1024), rows(4, 64, 4, on_chip=False, batch=4, stages=2, groups=4)),
    PieceQueue: (norm_backward(64, 1024, 2), rows(4, 64, 4, on_chip=False, stages=6, groups=2, span=32)),
    AheadQueue: (layer_norm(64, 1024), ahead(4, 64, 4, 3, 4)),
}


def program(graph: Graph, choice: Choice | None = None, device: DeviceSpec = H200) -> TileProgram:
    made = schedule_graph(graph, {}, device, choice)
    assert isinstance(made, TileProgram), made
    return made


def domain_of(graph: Graph) -> Domain:
    domain = find_domain(graph, {})
    assert isinstance(domain, Domain)
    return domain


def of_mode(mode: type) -> tuple[TileProgram, Rows]:
    pattern, wanted = CASES[mode]
    choice = wanted(domain_of(pattern.graph))
    assert isinstance(choice, Rows) and isinstance(choice.mode, mode)
    return program(pattern.graph, choice), choice


@pytest.mark.parametrize("mode", CASES, ids=lambda m: m.__name__)
def test_every_mode_is_written_in_the_words_of_the_notation(mode: type) -> None:
    made, choice = of_mode(mode)
    assert isinstance(made.internal, Domain)
    assert rows_of(settings_of_rows(choice), made.internal.num_reduced) == choice
    assert program_by_hand(made, parse_template(made.notation), H200) == made


@pytest.mark.parametrize("mode", CASES, ids=lambda m: m.__name__)
def test_legal_neighbours_of_every_mode_compose(mode: type) -> None:
    made, choice = of_mode(mode)
    found = [program_with(made, near, H200) for near in neighbours(made, H200)]
    legal = [p for p in found if isinstance(p, TileProgram)]
    assert legal[0] == made and (len(legal) > 1 or mode in (HeldTurns, ReadAgain))
    for near in legal:
        assert compose(near, H200).launch.num_threads == near.launch.num_threads
        assert isinstance(near.choice, Rows) and near.choice.carried_rows == choice.carried_rows
    assert all(p.reason is Reason.ILLEGAL_TEMPLATE for p in found if isinstance(p, Rejected))


@pytest.mark.parametrize("changes", [
    {"cluster": 2, "rows": 2}, {"cluster": 2, "mode": Split(2, 4)}, {"rows": 2, "mode": Split(2, 4)}, {"mode": AheadQueue(4, 1)},
    {"rows": 2, "mode": PieceQueue(4, 8)}, {"chunks": 1, "mode": PieceQueue(4, 8)}, {"mode": PieceQueue(4, 3)}], ids=str)
def test_numbers_that_contradict_the_mode_cannot_be_built(changes: dict[str, object]) -> None:
    base = Rows(("i",), ("k",), 4, 64, 1, 4, 2, Held())
    with pytest.raises(InternalError, match="no row kernel is like this"):
        replace(base, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("length", [96, 1000, 4096, 4097, 32768, 65536, 131072, 262144, 524288])
@pytest.mark.parametrize("pattern", [softmax, layer_norm, row_sums, running_sum, row_distances], ids=lambda p: p.__name__)
def test_choosers_choose_what_is_legal(pattern: Callable[[int, int, str], Pattern], length: int) -> None:
    for dtype in ("f16", "f32"):
        made = schedule_graph(pattern(max(300, (1 << 24) // length), length, dtype).graph, {}, H200)
        if isinstance(made, TileProgram) and isinstance(made.choice, Rows):
            assert isinstance(made.internal, Domain) and row_refusal(made.choice, made.internal, H200) is None


SOFTMAX, NORM, SUMS, SCAN = softmax(64, 1024), layer_norm(64, 1024), row_sums(6, 8192), running_sum(64, 1024)
BACKWARD, ODD = norm_backward(64, 1024, 2), softmax(5, 1023)


@pytest.mark.parametrize(("pattern", "text", "message", "hint"), [
    (SOFTMAX, "s [GRID,CTA_64]; stages=2;", "a queue of rows (stages=2) without blocks that walk them in turns", "GRID_n"),
    (SOFTMAX, "s [GRID_4,GRID_2-CTA_64]; on_chip=false; stages=2;", "split over 2 blocks is read once", "stages=0"),
    (SOFTMAX, "s [GRID,GRID_2-CTA_64]; on_chip=false;", "2 blocks share a row whose elements are needed again", "CLUSTER_n"),
    (SOFTMAX, "s [GRID,GRID_2-CTA_64];", "a row split over the grid is not held on chip", "on_chip=false"),
    (SUMS, "s [GRID-CTA_2,GRID_4-CTA_64]; on_chip=false;", "4 blocks share a row through global memory, and each has 2 rows",
     "GRID without CTA"),
    (SOFTMAX, "s [GRID_4,CTA_64]; stages=3; on_chip=false; batch=4; ahead=true;", "their threads exchange once", "ahead=false"),
    (NORM, "s [GRID_4,CTA_64]; stages=1; on_chip=false; ahead=true;", "wait in a queue of two or more", "ahead=false"),
    (NORM, "s [GRID_4,CTA_64]; stages=3; on_chip=true; ahead=true;", "wait in a queue of two or more", "ahead=false"),
    (BACKWARD, "a [GRID_3,CTA_64];", "3 blocks of 32 rows each", "GRID_2, span=32"),
    (SOFTMAX, "s [GRID,CTA_64]; span=7;", "0 blocks of 7 rows each", "span=0"),
    (BACKWARD, "a [GRID_2,CTA_64]; vector=4; stages=3; on_chip=false; batch=1;", "3 slots of one vector a thread, and a row has 4",
     "stages=4 at least"),
    (ODD, "s [GRID_2,CTA_64]; vector=1; stages=2;", "1023 elements of %x are no aligned runs of 16 bytes", "stages=0"),
    (SOFTMAX, "s [GRID_4,CLUSTER_3-CTA_64]; vector=4; stages=2;", "256 vectors, which 3 persistent blocks", "CLUSTER_n"),
    (SCAN, "y [GRID,CTA_64]; on_chip=false; batch=2;", "a scan along rows that 64 threads read in batches of 2", "batch=1"),
    (SCAN, "y [GRID_4,CTA_64]; vector=4; on_chip=false; batch=1; stages=4;", "a scan along rows of which 4 pieces", "on_chip=true"),
])
def test_settings_that_are_no_kernel_are_refused_with_numbers_and_remedy(pattern: Pattern, text: str, message: str, hint: str) -> None:
    with pytest.raises(UserError) as caught:
        program_by_hand(program(pattern.graph), parse_template(text), H200)
    assert message in str(caught.value) and hint in str(caught.value)


def test_rows_that_are_looked_up_have_no_queue() -> None:
    """No copy would be started, and threads wait for one for ever."""
    base = program(embedding_sum(100, 1024, 64).graph)
    with pytest.raises(UserError, match="no operand of a queue has an element for each of a row"):
        program_by_hand(base, parse_template("s [GRID_4,CTA_64]; stages=2;"), H200)


def test_a_device_without_bulk_copies_has_no_queue() -> None:
    base = program(SOFTMAX.graph, device=A100)
    assert all(isinstance(p, Rejected) or isinstance(p.choice, Rows) and not p.choice.slots
               for p in (program_with(base, near, A100) for near in neighbours(base, A100)))
    with pytest.raises(UserError, match="takes asynchronous bulk copies, and a100"):
        program_by_hand(base, parse_template("s [GRID_4,CTA_64]; stages=2;"), A100)


def test_neighbours_of_pieces_hold_a_whole_row() -> None:
    """With fewer slots than a row has pieces, its first walk waits for a piece that only its last walk would send for."""
    base = program(norm_backward(300, 131072, 7).graph)
    assert isinstance(base.choice, Rows) and isinstance(base.choice.mode, PieceQueue)
    found = [near for near in neighbours(base, H200) if isinstance(near, Rows) and isinstance(near.mode, PieceQueue)]
    assert len(found) > 1 and all(near.slots >= near.chunks for near in found)


def test_rows_without_elements_free_their_pieces() -> None:
    """Rows of 2 MiB of which nothing but results is written: their queue stood still after its first turn."""
    made = program(row_distances(300, 524288).graph)
    assert isinstance(made.choice, Rows) and isinstance(made.choice.mode, PieceQueue)


def test_an_odd_row_is_tuned_without_a_queue() -> None:
    """Candidates with queues whose copies are not aligned divided by zero while they were composed."""
    base = program(ODD.graph)
    found = [program_with(base, near, H200) for near in neighbours(base, H200)]
    assert any(isinstance(p, Rejected) and "aligned runs" in p.detail for p in found)
    assert all(compose(p, H200) for p in found if isinstance(p, TileProgram))


def test_settings_say_whole_rows_or_pieces_by_their_batch() -> None:
    settings = RowSettings(("i",), ("k",), 4, 64, 1, 4, 1, 1, False, 2, batch=1, stages=6, groups=4)
    pieces, whole = rows_of(settings, 1024), rows_of(replace(settings, batch=4), 1024)
    uneven = rows_of(settings, 1000)
    assert isinstance(pieces, Rows) and pieces.mode == PieceQueue(4, 6)
    assert isinstance(whole, Rows) and whole.mode == RowQueue(4, 6) and isinstance(uneven, Rows) and uneven.mode == RowQueue(4, 6)
