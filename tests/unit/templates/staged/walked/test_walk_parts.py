"""Walks of few rows: axes in parts, heads as rows of one tile, ends that memory holds; their kernels, their texts, their prices."""
from __future__ import annotations

import ctypes
from dataclasses import replace

import pytest

from benchmarks.attention.cases import attention_of
from benchmarks.attention.tiles import priced
from tests.unit.templates.host_build import CHECKED_FLAGS, build_together, compiler
from tests.unit.templates.staged.walked.part_cases import PART_CASES
from tests.unit.templates.staged.walked.variants import Variant
from tests.unit.templates.staged.walked.walk_cases import Case
from tests.unit.templates.staged.walked.walk_runs import assert_agrees_with_f64
from tests.unit.templates.stitched_graphs import attention
from tilefuse.base.candidate import Rejected
from tilefuse.base.errors import UserError
from tilefuse.domain.roofline import clock_hz, price_candidate
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.dtype import F16
from tilefuse.target.device import H200
from tilefuse.templates.notation import parse_template
from tilefuse.templates.pattern import pattern_graph
from tilefuse.templates.staged.walked.choose import candidates, choose_walk
from tilefuse.templates.staged.walked.compose import compose_walk
from tilefuse.templates.staged.walked.form import WalkForm, walk_form
from tilefuse.templates.staged.walked.plan import WalkPlan
from tilefuse.templates.staged.walked.record import PipelinedWalk
from tilefuse.templates.staged.walked.split.groups import heads_that_share, with_heads
from tilefuse.templates.staged.walked.template import PipelinedWalkTemplate, pipelined_walk_of, walk_by_hand
from tilefuse.templates.staged.walked.tree import walk_tree


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The checked kernels of all cases, compiled together."""
    kernels = [(compose_walk(case.program(), H200), True) for case in PART_CASES.values()]
    return build_together(kernels, tmp_path_factory.mktemp("parts"), CHECKED_FLAGS)


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize("name", PART_CASES)
def test_kernel_computes_the_walk(name: str, library: ctypes.CDLL) -> None:
    """Every element of every result, with every access of the kernel checked, against f64."""
    assert_agrees_with_f64(PART_CASES[name], lambda kernel: getattr(library, f"{kernel}_{list(PART_CASES).index(name)}"))


@pytest.mark.parametrize("name", PART_CASES)
def test_a_template_gives_its_program_back(name: str) -> None:
    """The program's own notation, parsed."""
    program = PART_CASES[name].program()
    again = walk_by_hand(program, parse_template(program.notation), H200)
    assert (again.choice, again.notation) == (program.choice, program.notation)


@pytest.mark.parametrize(("variant", "written", "told"), [
    (Variant(heads=8, group=4, rows=1), "parts=7;", "7 parts of 3 turns"),
    (Variant(heads=8, group=4, rows=1), "parts=0;", "in 0 parts"),
    (Variant(heads=8, group=4, rows=1), "heads=8;", "8 heads in a tile share no %k"),
    (Variant(heads=8, group=4, rows=20), "heads=4;", "20 rows of 4 heads, and a tile has 64"),
    (Variant(heads=6, group=6, rows=3), "heads=6;", "6 heads do not divide a tile of 64 rows"),
    (Variant(("dense",), heads=4, group=2, rows=3, keys=96), "heads=2; bias_slots=2;", "2 slots of biases"),
])
def test_templates_that_cannot_be_met(variant: Variant, written: str, told: str) -> None:
    """The error names the number."""
    program = Case(variant.graph, PipelinedWalk(32, 1, 1, 2, 1, 2), 0.0).program()
    with pytest.raises(UserError) as raised:
        walk_by_hand(program, parse_template(f"matmul [GRID,GRID-CTA_64,LOOP_32]; {written}"), H200)
    assert told in str(raised.value)


# -- forms -------------------------------------------------------------------------------------------------------------------


def form_of(variant: Variant) -> WalkForm:
    """The form of a variant."""
    form = walk_form(variant.graph(), {})
    assert isinstance(form, WalkForm), form
    return form


def test_heads_share_keys_as_far_as_their_group_goes() -> None:
    """Divisors of the group alone, those that fit the rows asked for."""
    assert [heads_that_share(form_of(Variant(heads=8, group=4, rows=1)), most) for most in (64, 3, 1)] == [4, 2, 1]
    assert heads_that_share(form_of(Variant(heads=8, rows=1)), 64) == 1
    assert heads_that_share(form_of(Variant(heads=6, group=6, rows=1)), 64) == 6


def test_keys_are_read_once_for_the_heads_of_a_tile() -> None:
    """A quarter of the turns, each for four heads; rows of a head follow those of its neighbours."""
    graph = Variant(heads=8, group=4, rows=3, keys=96).graph
    plan, alone = (pipelined_walk_of(Case(graph, PipelinedWalk(32, 1, 1, 2, 1, 8, heads=n), 0.0).program()) for n in (4, 1))
    assert (plan.form.online.num_leads, plan.form.online.num_rows, plan.all_turns, alone.all_turns) == (2, 12, 6, 24)
    assert plan.map_of(plan.form.left, plan.left).box == (16, 4, 64)


def test_ends_in_memory_are_bounds_of_columns() -> None:
    """Numbers of the lead place alone: those of a row, or of a column, stay a mask."""
    limit = form_of(Variant(("lengths",), rows=1)).limit
    assert limit is not None
    (edge,) = limit.bounds.edges
    assert edge.slope == 0 and edge.data is not None
    assert "memory ends them" in str(walk_tree(pipelined_walk_of(PART_CASES["ends in memory"].program())))
    assert form_of(Variant(("padding",), rows=1)).limit is None and form_of(Variant(("documents",))).limit is not None


def test_parts_of_a_walk_that_subtracts_another_number() -> None:
    """One maximum for all parts: where it is not subtracted as it is, there are none."""
    form = form_of(Variant(rows=1, keys=300))
    other = replace(form.online, totals=tuple(replace(t, shift=None) if t.monoid == "sum" else t for t in form.online.totals))
    assert any(c.parts > 1 for c in candidates(form, {}, H200))
    assert not any(c.parts > 1 for c in candidates(replace(form, online=other), {}, H200))


# -- prices ------------------------------------------------------------------------------------------------------------------


def test_neighbours_of_heads_in_a_tile_are_those_of_single_heads_too() -> None:
    """Tuning tries whole walks, and twice and half as many parts."""
    template, program = PipelinedWalkTemplate(), PART_CASES["ends in memory, parts, heads as rows"].program()
    tried = template.neighbours(program, H200)
    assert {1, 4} <= {c.heads for c in tried} and {1, 6} <= {c.parts for c in tried}
    assert "in 3 parts" in str(walk_tree(pipelined_walk_of(program)))
    assert isinstance(template.program_with(program, next(c for c in tried if c.heads == 1), H200), TileProgram)


def test_few_heads_are_walked_in_parts() -> None:
    """32 heads on 8, one query of 4096 keys: 8 tiles of the heads of a group, in parts for most multiprocessors."""
    choice = priced("f16/plain/1x32g8x1k4096x128").cheapest(H200)
    assert choice.heads == 4 and 8 * choice.parts == choice.blocks > 0.6 * H200.num_multiprocessors


@pytest.mark.parametrize("case", ["f16/plain/4x32x1k4096x128", "f16/plain/12x1x197x64", "bf16/causal/1x8x1024x64"])
def test_others_are_not(case: str) -> None:
    """One block a tile fills the device, or parts would gain less than they may be off."""
    choice = priced(case).cheapest(H200)
    assert (choice.parts, choice.heads) == (1, 1)


@pytest.mark.parametrize("case", ["f16/plain/8x32g8x1k512x64", "f16/plain/8x32g8x1k8192x128", "f16/plain/64x32g8x1k4096x128"])
def test_heads_share_keys_however_many_tiles_there_are(case: str) -> None:
    """256 and 2048 tiles of single heads fill the device, and read each key four times: tiles of four heads are a quarter of the bytes."""
    shared = priced(case)
    choice = shared.cheapest(H200)
    alone = min(price_candidate(p.work, H200).us for c in candidates(shared.form, {}, H200) if c.heads == 1
                if isinstance(p := shared.plan(c, H200), WalkPlan))
    plan = shared.plan(choice, H200)
    assert isinstance(plan, WalkPlan) and choice.heads == 4 and price_candidate(plan.work, H200).us < 0.75 * alone


def test_parts_even_out_rounds_of_blocks() -> None:
    """96 tiles leave 36 of 132 multiprocessors idle; 384 parts are three rounds, nearly full."""
    choice = priced("f16/plain/12x32g8x1k32768x128").cheapest(H200)
    assert (choice.heads, choice.parts, choice.blocks, choice.left_slots) == (4, 4, 132, 2)


def test_heads_in_a_tile_need_no_parts() -> None:
    """Where parts have no common maximum, tiles of several heads are whole walks."""
    form = form_of(Variant(heads=8, group=4, rows=1, keys=300))
    other = replace(form.online, totals=tuple(replace(t, shift=None) if t.monoid == "sum" else t for t in form.online.totals))
    tried = {(c.heads, c.parts) for c in candidates(replace(form, online=other), {}, H200)}
    assert tried == {(1, 1), (4, 1)}


def test_traffic_does_not_hide_the_start_of_a_block_and_the_last_turn() -> None:
    """The part that decides the price of a long cache is its bytes, then what is around them."""
    plan = priced("f16/plain/1x32x1k8192x128").plan(PipelinedWalk(128, 1, 1, 3, 1, 128, parts=4), H200)
    assert isinstance(plan, WalkPlan)
    hidden = replace(plan.work, around=())
    around_us = sum(s.alone_cycles for s in plan.work.around) / clock_hz(H200) * 1e6
    assert 1.0 < around_us < 2.5
    assert price_candidate(plan.work, H200).us - price_candidate(hidden, H200).us == pytest.approx(around_us, rel=0.3)


def test_more_parts_take_longer_to_combine() -> None:
    """Beyond the parts that are loaded together each group is a further round trip."""
    case = priced("f16/plain/1x8x1k8192x64")
    few, many = (case.plan(PipelinedWalk(64, 1, 1, 2, 1, 8 * n, parts=n), H200) for n in (16, 64))
    assert isinstance(few, WalkPlan) and isinstance(many, WalkPlan)
    waits = [sum(s.wait_cycles for s in p.work.behind or p.work.blocks[0].tile[2:]) for p in (few, many)]
    assert waits[1] > waits[0]


def test_no_tile_is_a_reason() -> None:
    """A pattern whose walk no device of its kind has says why, as before."""
    graph = attention_of("f16/plain/1x8x1k512x64").graph()
    form = walk_form(pattern_graph(graph, tuple(n.name for n in graph.nodes)), {})
    assert isinstance(form, WalkForm)
    device = replace(H200, capabilities=replace(H200.capabilities, warpgroup_products=False))
    assert isinstance(choose_walk(form, {}, device), Rejected)
    assert with_heads(form, 1, 64) is form and isinstance(with_heads(form, 2, 64), Rejected)


def test_sums_of_parts_hold_the_rows_that_results_have() -> None:
    """One row of a tile of 64: nothing of the others leaves the block."""
    plan = pipelined_walk_of(Case(lambda: attention(2, 1, 64, F16, keys=300), PipelinedWalk(48, 1, 1, 2, 1, 4, parts=2), 0.0).program())
    assert plan.sums is not None and plan.sums.elements == 64
    kernel = compose_walk(PART_CASES["logarithms, columns beside"].program(), H200)
    sizes = {b.name: b.num_elements for b in kernel.parameters if b.role == "workspace"}
    assert sizes == {"matmul_1_parts": 2 * 3 * 7 * 40, "totals_of_parts": 2 * 3 * 7 * 3}
