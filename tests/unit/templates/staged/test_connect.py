"""Levels of maps between stages as a choice: ranked, written, obeyed; axes as long as shared memory holds by hand."""
from __future__ import annotations

import pytest

from tests.unit.templates.stitched_cases import tiles
from tests.unit.templates.stitched_graphs import lstm_cell, norm_before_product, product_softmax, turned_product
from tilefuse.base.candidate import Reason, Rejected
from tilefuse.domain.tile import Level, TileProgram
from tilefuse.ir.graph import Graph
from tilefuse.target.device import H200
from tilefuse.templates.by_hand import program_by_hand
from tilefuse.templates.compose import compose
from tilefuse.templates.neighbours import neighbours, program_with
from tilefuse.templates.notation import parse_template
from tilefuse.templates.staged.stitched.connect import connections
from tilefuse.templates.staged.stitched.record import Stitched
from tilefuse.templates.staged.stitched.template import schedule_stitched


def scheduled(graph: Graph, choice: Stitched | None = None) -> TileProgram:
    """The program that stages give by themselves, or that of a choice."""
    program = schedule_stitched(graph, {}, H200, choice)
    assert isinstance(program, TileProgram), program
    return program


def choice_of(program: TileProgram) -> Stitched:
    """Its record."""
    assert isinstance(program.choice, Stitched)
    return program.choice


@pytest.mark.parametrize("graph", [norm_before_product(70, 16, 24), lstm_cell(5, 8), product_softmax(40, 16, 24)], ids=lambda g: g.name)
def test_every_other_level_is_ranked_and_written(graph: Graph) -> None:
    """The cheapest first; a kernel of each is what its own notation says, and differs from the first kernel in that map."""
    program = scheduled(graph)
    ranked = connections(graph, H200, choice_of(program))
    assert ranked and [c.us for c in ranked] == sorted(c.us for c in ranked)
    assert {c.choice for c in ranked[:2]} <= set(neighbours(program, H200))
    for c in ranked:
        other = program_with(program, c.choice, H200)
        assert isinstance(other, TileProgram) and c.choice.levels == ((c.value, c.level),)
        assert c.allocated_bytes <= H200.shared_bytes_per_block
        again = program_by_hand(program, parse_template(other.notation), H200)
        assert (again.choice, again.notation) == (other.choice, other.notation)


def test_readers_compute_a_map_whose_level_is_register() -> None:
    """Without its stage and without its shared memory; both are kernels."""
    graph = product_softmax(40, 16, 24)
    program = scheduled(graph, tiles(8, 24))
    given = program_by_hand(program, parse_template("softmax_exp [THREAD]R;"), H200)
    assert choice_of(given).levels == (("softmax_exp", Level.REGISTER),)
    assert "softmax_exp" in program.notation.split("cta_num")[0] and "softmax_exp [THREAD]R" in given.notation
    assert compose(given, H200) != compose(program, H200)
    assert {e.level for e in given.levels if e.producer == "softmax_exp"} == {Level.REGISTER}


def test_products_and_results_have_the_level_of_their_stage() -> None:
    refused = schedule_stitched(product_softmax(40, 16, 24), {}, H200, Stitched((8, 24), 128, 0, (("matmul", Level.REGISTER),)))
    assert isinstance(refused, Rejected) and refused.reason is Reason.ILLEGAL_TEMPLATE and "%matmul" in refused.detail


def test_shared_memory_decides_how_long_a_written_inner_axis_is() -> None:
    """Plans leave 2048 elements to the library; written tiles hold them, and 20000 do not fit."""
    graph = turned_product(8, 2048, 8, (False, False))
    assert isinstance(schedule_stitched(graph, {}, H200), Rejected)
    assert compose(scheduled(graph, tiles(8, 8)), H200).launch.shared_bytes <= H200.shared_bytes_per_block
    longer = schedule_stitched(turned_product(8, 20000, 8, (False, False)), {}, H200, tiles(8, 8))
    assert isinstance(longer, Rejected) and longer.reason is Reason.SHARED_MEMORY and "bytes of shared memory" in longer.detail
