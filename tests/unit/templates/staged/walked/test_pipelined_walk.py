"""Pipelined walks between products: forms that are one, their tiles as text, and their kernels on the checking host executor."""
from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tests.unit.templates.host_build import CHECKED_FLAGS, build_together, compiler
from tests.unit.templates.online_graphs import masked, merged_heads, two_of_each
from tests.unit.templates.staged.walked.variants import FIRST, Variant
from tests.unit.templates.staged.walked.walk_cases import CASES, Case
from tests.unit.templates.staged.walked.walk_runs import assert_agrees_with_f64
from tests.unit.templates.stitched_graphs import attention
from tilefuse.base.candidate import Reason, Rejected
from tilefuse.base.errors import NameLookupError, OptionError, UserError
from tilefuse.domain.tile import Level, TileProgram
from tilefuse.ir.dtype import F16
from tilefuse.ir.graph import Graph
from tilefuse.target.device import H200
from tilefuse.templates.notation import parse_template
from tilefuse.templates.staged.walked.compose import compose_walk
from tilefuse.templates.staged.walked.form import WalkForm, walk_form
from tilefuse.templates.staged.walked.limit import turns_of
from tilefuse.templates.staged.walked.plan import WalkPlan
from tilefuse.templates.staged.walked.record import PipelinedWalk
from tilefuse.templates.staged.walked.template import PipelinedWalkTemplate, pipelined_walk_of, schedule_walk, walk_by_hand
from tilefuse.templates.staged.walked.tree import walk_tree
from tilefuse.templates.staged.walked.walk_work import turn_scores

needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The checked kernels of all cases, compiled together."""
    kernels = [(compose_walk(case.program(), H200), True) for case in CASES.values()]
    return build_together(kernels, tmp_path_factory.mktemp("walks"), CHECKED_FLAGS)


@needs_compiler
@pytest.mark.parametrize("name", CASES)
def test_kernel_computes_the_walk(name: str, library: ctypes.CDLL) -> None:
    """Every element of every result, with every access of the kernel checked, against f64."""
    assert_agrees_with_f64(CASES[name], lambda kernel: getattr(library, f"{kernel}_{list(CASES).index(name)}"))


# -- texts -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_a_template_gives_its_program_back(name: str) -> None:
    """The program's own notation, parsed."""
    program = CASES[name].program()
    again = walk_by_hand(program, parse_template(program.notation), H200)
    assert (again.choice, again.notation) == (program.choice, program.notation)


def long_walk() -> TileProgram:
    """The walk of 64 heads, 4096 rows and keys."""
    return Case(lambda: attention(64, 4096, 64, F16), PipelinedWalk(128, 2, 2, 4, 1, 132), 0.0).program()


def test_a_template_changes_tiles() -> None:
    """Columns a turn, rows, slots, order and blocks that a user writes."""
    written = "matmul [GRID,GRID-CTA_192,LOOP_96]R; left_slots=1; slots=3; warpgroups=3; in_turn=true; band=4; cta_num=7; cta_size=512;"
    made = walk_by_hand(long_walk(), parse_template(written), H200)
    assert made.choice == PipelinedWalk(96, 3, 1, 3, 4, 7, True)


TILE = "matmul [GRID,GRID-CTA_128,LOOP_128];"


@pytest.mark.parametrize(("written", "error", "told"), [
    ("matmul [GRID,GRID-CTA_128,LOOP_100];", UserError, "100 columns"),
    ("matmul [GRID,GRID-CTA_100,LOOP_128];", UserError, "rows of 100"),
    (f"{TILE} matmul_1 [GRID,GRID-CTA_128,WARP,LOOP_64];", UserError, "columns of 128 and of 64"),
    (f"{TILE} slots=1;", UserError, "1 slots"),
    (f"{TILE} slots=40;", UserError, "bytes of slots"),
    ("matmul [GRID,GRID-CTA_192,LOOP_128]; warpgroups=3;", UserError, "registers a thread"),
    (f"{TILE} band=3;", UserError, "a band of 3 among 64"),
    (f"{TILE} cta_size=512;", UserError, "cta_size of 512"),
    ("matmul [GRID,GRID-CTA_64,LOOP_128]; warpgroups=1; in_turn=true;", UserError, "there is one"),
    ("other [GRID];", NameLookupError, "%other"),
    (f"{TILE} stages=2;", OptionError, "stages"),
])
def test_templates_that_cannot_be_met(written: str, error: type[Exception], told: str) -> None:
    """The error names the number."""
    with pytest.raises(error) as raised:
        walk_by_hand(long_walk(), parse_template(written), H200)
    assert told in str(raised.value)


# -- choices and forms -----------------------------------------------------------------------------------------------------


def test_masks_end_rows() -> None:
    """Half of the turns of a square mask remain, those that the mask cuts among them; nobody else's mask is one."""
    def plan(**more: bool) -> WalkPlan:
        return pipelined_walk_of(Case(lambda: attention(2, 1024, 64, F16, **more), PipelinedWalk(64, 2, 1, 2, 1, 8), 0.0).program())

    assert plan().all_turns == 2 * 8 * 16
    assert plan(causal=True).all_turns == 2 * sum(2 * n for n in range(1, 9))
    assert "144 of 256 turns of all tiles, 112 of them without the mask" in str(walk_tree(plan(causal=True)))
    added = Case(lambda: masked(64, 64, 16, 16, F16), PipelinedWalk(32, 1, 1, 2, 1, 6), 0.0).program()
    assert pipelined_walk_of(added).form.limit is None


@pytest.mark.parametrize(("scores", "rows", "columns", "window"), [
    (("window",), 512, 64, 100), (("window",), 500, 32, 1), (("around",), 512, 64, 64), (("around",), 330, 48, 7),
    (("prefix",), 512, 64, 130), (("prefix", "around"), 512, 64, 64), (("first_and_window",), 512, 32, 40),
    (("first_and_window",), 700, 16, 3), (("first_and_window", "around"), 512, 64, 64),
])
def test_turns_of_masks(scores: tuple[str, ...], rows: int, columns: int, window: int) -> None:
    """The turns with elements, and those without a hidden one, of the first tiles: never fewer, never more than every element says."""
    form = walk_form(Variant(scores, rows=rows, keys=rows, window=window).graph(), {})
    assert isinstance(form, WalkForm) and form.limit is not None
    found = [turns_of(form.limit.bounds, 64 * n, 64, columns, rows, form.limit.whole) for n in range(-(-rows // 64))]
    kept = np.ones((64 * len(found), -(-rows // columns) * columns), dtype=bool)
    row, column = np.indices(kept.shape)
    for name in scores:
        kept &= {"window": (column <= row) & (row - column < window), "around": abs(row - column) <= window,
                 "prefix": (column <= row) | (column < window),
                 "first_and_window": (column <= row) & ((row - column < window) | (column < FIRST))}[name]
    kept &= column < rows
    for n, t in enumerate(found):
        tiles = kept[64 * n:64 * n + 64].reshape(64, -1, columns)
        some, all_ = tiles.any((0, 2)), tiles.all((0, 2))
        assert (t.first, t.end) == (int(some.argmax()), len(some) - int(some[::-1].argmax()))
        assert t.count == some.sum() and all(all_[t.whole_first:t.whole_end])
        assert t.whole_end - t.whole_first == all_[t.first if "first_and_window" not in scores else t.whole_first:t.end - 1].sum()


def test_tiles_that_a_mask_shortens_are_shared_evenly() -> None:
    """Rounds of blocks in turn backwards: the block with the most turns has few more than the mean."""
    plan = pipelined_walk_of(Case(lambda: attention(64, 4096, 64, F16, causal=True), PipelinedWalk(128, 2, 2, 4, 64, 132), 0.0).program())
    _, most = plan.most_loaded
    assert most < 1.02 * plan.all_turns / 132


@pytest.mark.parametrize(("heads", "rows", "band", "blocks"), [(6, 700, 1, 5), (6, 700, 3, 4), (6, 700, 6, 132), (1, 64, 1, 1)])
def test_the_block_with_the_most_turns(heads: int, rows: int, band: int, blocks: int) -> None:
    """Tiles dealt out one by one: the longest of a band first, every other round in the opposite order."""
    plan = pipelined_walk_of(Case(lambda: attention(heads, rows, 64, F16, causal=True), PipelinedWalk(64, 1, 1, 2, band, blocks),
                                  0.0).program())
    turns = sorted((plan.turns(n) for n in range(plan.row_tiles)), reverse=True)
    loads = [0] * plan.choice.blocks
    for n, tile in enumerate(t for _ in range(heads // band) for t in turns for _ in range(band)):
        round_, block = divmod(n, len(loads))
        loads[-1 - block if round_ % 2 else block] += tile
    assert plan.most_loaded == (-(-plan.num_tiles // len(loads)), max(loads))


def test_neighbours_are_other_programs_of_the_same_pattern() -> None:
    """Tuning tries other tiles."""
    template, program = PipelinedWalkTemplate(), long_walk()
    tried = template.neighbours(program, H200)
    assert program.choice not in tried and len(set(tried)) == len(tried)
    fits = [p for p in (template.program_with(program, c, H200) for c in tried) if isinstance(p, TileProgram)]
    assert len(fits) > 4 and {p.choice.template for p in fits} == {"pipelined_walk"}


def test_work_counts_walked_operands_of_every_tile() -> None:
    """16 tiles of 128 rows multiply 128 x 1024 scores of depth 64 twice."""
    program = Case(lambda: attention(2, 1024, 64, F16), PipelinedWalk(128, 2, 1, 2, 1, 16), 0.0).program()
    work = pipelined_walk_of(program).work
    assert work.operations[0].count == 2 * 2 * 2 * 1024 * 1024 * 64
    assert work.blocks[0].cycles_by_unit()["special"] == pytest.approx(16 * 8 * 128 * 128 / 16 * H200.fitted.walks.busy_shares[1])


@pytest.mark.parametrize(("graph", "told"), [
    (lambda: two_of_each(16, 48, 16, 16, F16), "2 products of scores"), (lambda: attention(2, 64, 16), "multiplies f32"),
    (lambda: attention(2, 64, 20, F16), "no tensor copies"), (lambda: attention(2, 64, 320, F16), "320 columns"),
    (lambda: merged_heads(16, 40, 8, 24, F16), "is computed"),
], ids=["two of each", "f32", "rows of 40 bytes", "wide", "computed values"])
def test_patterns_that_are_none(graph: Callable[[], Graph], told: str) -> None:
    """The reason names what stands in the way."""
    made = schedule_walk(graph(), {}, H200)
    assert isinstance(made, Rejected) and told in made.detail


def test_other_devices_have_none() -> None:
    """Warpgroup products exist on compute capability 9.0 alone."""
    device = replace(H200, capabilities=replace(H200.capabilities, warpgroup_products=False))
    made = schedule_walk(attention(2, 64, 64, F16), {}, device)
    assert isinstance(made, Rejected) and made.reason is Reason.OTHER_TEMPLATE


def test_scores_lie_in_registers() -> None:
    """The tree of stages: scores and powers in registers, operands in rings of shared memory."""
    program = long_walk()
    tree = walk_tree(pipelined_walk_of(program))
    level_by_value = {v.value: v.level for v in tree.values()}
    assert {level_by_value[v] for v in ("matmul", "softmax", "matmul_1")} == {Level.REGISTER}
    assert tree.shared_bytes == program.launch.shared_bytes and {e.level for e in program.levels} == {Level.REGISTER, Level.WARP}


def test_quotients_by_constants_are_factors() -> None:
    """A scale written as a quotient asks nothing of the special unit, and takes no more operations than a product."""
    forms = [walk_form(Variant(scores).graph(), {}) for scores in (("divided",), ())]
    whole = [turn_scores(form).whole for form in forms if isinstance(form, WalkForm)]
    assert whole[0].special == whole[1].special and whole[0].flops == whole[1].flops + 1
