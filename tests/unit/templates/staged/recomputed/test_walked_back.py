"""Walks between several products: their kernels on the checking host executor against f64, their tiles as text, and forms that are none."""
from __future__ import annotations

import ctypes
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.unit.templates.host_build import CHECKED_FLAGS, build_together, call, compiler
from tests.unit.templates.staged.recomputed.back_graphs import Gradient
from tests.unit.templates.stitched_graphs import attention
from tilefuse.base.candidate import Reason, Rejected
from tilefuse.base.errors import NameLookupError, OptionError, UserError
from tilefuse.domain.roofline import price_work
from tilefuse.domain.tile import Level, TileProgram
from tilefuse.ir.dtype import BF16, F16, F32
from tilefuse.target.device import H200
from tilefuse.templates.notation import parse_template
from tilefuse.templates.staged.online.products import ROW, WALK
from tilefuse.templates.staged.recomputed.compose import compose_back
from tilefuse.templates.staged.recomputed.form import BackForm, back_form
from tilefuse.templates.staged.recomputed.plan import BackPlan
from tilefuse.templates.staged.recomputed.record import WalkedBack
from tilefuse.templates.staged.recomputed.template import WalkedBackTemplate, back_by_hand, schedule_back, walked_back_of

needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")

CASES = {
    "keys, several turns": (Gradient(rows=150, keys=90, inner=64), WalkedBack(32, 2, 2, 2, 1, 2)),
    "keys, vectors by copies": (Gradient(rows=152, keys=90, inner=64), WalkedBack(48, 1, 2, 3, 1, 3)),
    "keys, whole turns": (Gradient(rows=128, keys=64, inner=32, dtype=BF16), WalkedBack(32, 1, 1, 2, 1, 2)),
    "keys, width 128": (Gradient(rows=70, keys=130, inner=128, heads=1, dtype=BF16), WalkedBack(16, 2, 1, 2, 1, 2)),
    "keys, odd width": (Gradient(rows=70, keys=40, inner=72, heads=1), WalkedBack(32, 1, 1, 2, 1, 1)),
    "keys, causal": (Gradient(scores=("causal",), rows=200, keys=200), WalkedBack(32, 1, 2, 3, 2, 3)),
    "keys, window": (Gradient(scores=("window", "causal"), rows=180, keys=180, dtype=BF16), WalkedBack(16, 1, 1, 2, 1, 4)),
    "keys, first columns and window": (Gradient(scores=("first", "causal"), rows=180, keys=180, dtype=BF16), WalkedBack(16, 1, 1, 2, 1, 4)),
    "queries, first columns and window": (Gradient("queries", ("first", "causal"), rows=180, keys=180), WalkedBack(16, 1, 1, 2, 1, 4)),
    "keys, prefix": (Gradient(scores=("prefix",), rows=150, keys=150, window=50), WalkedBack(32, 1, 1, 2, 1, 3)),
    "keys, causal, heads that share them": (Gradient(scores=("causal",), rows=96, keys=130, group=3), WalkedBack(16, 1, 2, 3, 1, 3)),
    "keys, causal, shared, turns that divide no head": (Gradient(scores=("causal",), rows=40, keys=56, group=2, dtype=BF16),
                                                        WalkedBack(32, 1, 1, 2, 1, 2)),
    "keys, bias": (Gradient(scores=("dense", "causal")), WalkedBack(32, 1, 1, 2, 1, 2)),
    "keys, mask": (Gradient(scores=("hidden",)), WalkedBack(32, 1, 1, 2, 1, 2)),
    "keys, cap": (Gradient(scores=("cap", "causal"), rows=72), WalkedBack(32, 1, 1, 2, 1, 2)),
    "queries, several turns": (Gradient("queries", rows=150, keys=190, inner=64), WalkedBack(32, 2, 2, 2, 1, 2)),
    "queries, width 128": (Gradient("queries", rows=70, keys=130, inner=128, dtype=BF16), WalkedBack(48, 1, 1, 2, 1, 2)),
    "queries, one row": (Gradient("queries", rows=1, keys=77, inner=40), WalkedBack(16, 1, 1, 2, 1, 2)),
    "queries, causal": (Gradient("queries", ("causal",), rows=200, keys=200), WalkedBack(32, 1, 1, 2, 2, 3)),
    "queries, window": (Gradient("queries", ("causal", "window"), rows=180, keys=180), WalkedBack(16, 1, 1, 2, 1, 4)),
    "keys, dropped": (Gradient(rows=152, keys=96, inner=64, drop=0.3), WalkedBack(32, 2, 2, 2, 1, 2)),
    "keys, dropped, causal": (Gradient(scores=("causal",), rows=200, keys=200, drop=0.1), WalkedBack(32, 1, 2, 3, 2, 3)),
    "keys, dropped, heads that share them": (Gradient(scores=("causal",), rows=96, keys=132, group=3, drop=0.5),
                                             WalkedBack(16, 1, 2, 3, 1, 3)),
    "keys, dropped, number by number": (Gradient(rows=70, keys=90, drop=0.3, dtype=BF16), WalkedBack(32, 2, 2, 2, 1, 2)),
    "queries, dropped": (Gradient("queries", rows=150, keys=192, inner=64, drop=0.3), WalkedBack(48, 2, 2, 2, 1, 2)),
    "queries, dropped, causal": (Gradient("queries", ("causal",), rows=200, keys=200, drop=0.2), WalkedBack(32, 1, 1, 2, 2, 3)),
    "queries, dropped, number by number": (Gradient("queries", rows=70, keys=77, drop=0.3), WalkedBack(16, 1, 1, 2, 1, 2)),
    "queries, mask": (Gradient("queries", ("hidden", "causal"), dtype=BF16), WalkedBack(32, 1, 1, 2, 1, 2)),
    "keys, narrower values": (Gradient(scores=("causal",), rows=100, keys=130, inner=48, width=16), WalkedBack(32, 1, 1, 2, 1, 2)),
    "keys, wider values": (Gradient(rows=70, keys=90, inner=24, width=136, dtype=BF16), WalkedBack(32, 1, 1, 2, 1, 2)),
    "keys, values of an odd width": (Gradient(rows=70, keys=90, inner=24, width=40), WalkedBack(32, 2, 1, 2, 1, 2)),
    "queries, narrower values": (Gradient("queries", rows=70, keys=90, inner=72, width=32), WalkedBack(32, 1, 1, 2, 1, 2)),
    "keys, bias by copies": (Gradient(scores=("dense",), rows=150, keys=88), WalkedBack(32, 1, 1, 2, 1, 2, bias_ring=True)),
    "keys, bias and mask by copies": (Gradient(scores=("dense", "hidden"), rows=100, keys=208, dtype=BF16),
                                      WalkedBack(48, 2, 1, 2, 1, 3, bias_ring=True)),
    "queries, bias by copies": (Gradient("queries", ("dense", "causal"), rows=150, keys=152),
                                WalkedBack(48, 1, 2, 3, 1, 2, bias_ring=True)),
    "queries, bias and mask by copies": (Gradient("queries", ("dense", "hidden"), rows=100, keys=208, beside=("elements", "sums")),
                                         WalkedBack(64, 2, 1, 2, 1, 2, bias_ring=True)),
    "queries, bias that no copies bring": (Gradient("queries", ("dense",), rows=70, keys=81),
                                           WalkedBack(32, 1, 1, 2, 1, 2, bias_ring=True)),
    "queries, columns that heads share": (Gradient("queries", ("dense", "padding"), heads=4, rows=70, keys=88),
                                          WalkedBack(32, 1, 1, 2, 1, 2, bias_ring=True)),
    "keys, columns that heads share": (Gradient(scores=("padding", "dense"), heads=4, rows=72, keys=80, dtype=BF16),
                                       WalkedBack(32, 1, 1, 2, 1, 2)),
    "keys, lowest numbers added": (Gradient(scores=("padding",), heads=4, rows=72, keys=80, dtype=BF16, lowest=True),
                                   WalkedBack(32, 1, 1, 2, 1, 2)),
    "queries, lowest numbers added": (Gradient("queries", ("dense", "padding"), heads=4, rows=70, keys=88, dtype=BF16, lowest=True),
                                      WalkedBack(32, 1, 1, 2, 1, 2)),
    "queries, elements": (Gradient("queries", rows=150, keys=190, inner=64, beside=("elements",)), WalkedBack(32, 2, 2, 2, 1, 2)),
    "queries, elements, odd": (Gradient("queries", ("dense",), rows=49, keys=49, inner=32, beside=("elements",), dtype=BF16),
                               WalkedBack(64, 1, 1, 2, 1, 2)),
    "queries, elements, causal": (Gradient("queries", ("hidden", "causal", "dense"), rows=100, keys=100, beside=("elements", "sums")),
                                  WalkedBack(32, 1, 1, 2, 1, 2)),
    "queries, elements in f32": (Gradient("queries", ("cap",), rows=70, keys=91, beside=("elements", "wide")),
                                 WalkedBack(32, 1, 1, 2, 1, 2)),
    "queries, sums": (Gradient("queries", ("causal",), rows=150, keys=150, beside=("sums",), dtype=BF16), WalkedBack(32, 2, 1, 2, 1, 2)),
    "keys, elements": (Gradient(rows=70, keys=90, beside=("elements",)), WalkedBack(32, 1, 1, 2, 1, 2)),
    "keys, sums": (Gradient(scores=("causal",), rows=150, keys=130, beside=("sums",)), WalkedBack(32, 1, 1, 2, 1, 2)),
}


def scheduled(name: str) -> TileProgram:
    """The tile program of a case."""
    of, choice = CASES[name]
    made = schedule_back(of.graph(), {}, H200, choice)
    assert isinstance(made, TileProgram), made
    return made


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The checked kernels of all cases, compiled together."""
    return build_together([(compose_back(scheduled(name), H200), True) for name in CASES], tmp_path_factory.mktemp("back"),
                          CHECKED_FLAGS)


@needs_compiler
@pytest.mark.parametrize("name", CASES)
def test_kernel_computes_the_gradients(name: str, library: ctypes.CDLL) -> None:
    """Every element of every result, with every access of the kernel checked: within the rounding of powers and results to 16 bits."""
    of, _ = CASES[name]
    program = scheduled(name)
    kernel = compose_back(program, H200)
    values, expected = of.drawn(seed=len(name))
    given = {b.name: values[b.origin].ravel() for b in kernel.parameters if b.role == "in"}
    memory, status, report = call(getattr(library, f"{kernel.name}_{list(CASES).index(name)}"), kernel, given)
    assert status == 0, report
    name_by_origin = {b.origin: b.name for b in kernel.parameters}
    for result, gradient in zip(program.graph.results, of.names, strict=True):
        got, exact = memory[name_by_origin[result]].astype(np.float64), expected[gradient].ravel()
        assert np.abs(got - exact).max() <= (2.0**-9 if of.dtype == F16 else 2.0**-6) * max(np.abs(exact).max(), 1.0)


def test_lanes_draw_for_each_other() -> None:
    """Numbers that follow each other are those of neighbouring rows where scores are turned; others are drawn one by one, and cost more."""
    draws = {name: [d.along for d in walked_back_of(scheduled(name)).draws] for name in CASES if "dropped" in name}
    assert draws == {name: [] if "number by number" in name else [ROW if name.startswith("keys") else WALK] for name in draws}
    us = []
    for of in (Gradient(heads=64, rows=1024, keys=1024, inner=64), Gradient(heads=64, rows=1024, keys=1024, inner=64, drop=0.1),
               Gradient(heads=64, rows=1024, keys=1022, inner=64, drop=0.1)):
        program = schedule_back(of.graph(), {}, H200, WalkedBack(64, 2, 2, 4, 1, 132))
        assert isinstance(program, TileProgram), program
        us.append(price_work(walked_back_of(program).work, H200).us)
    assert us[0] < us[1] < us[2]


PACKED = {
    "keys, packed": (Gradient(rows=72, keys=80, inner=64, dtype=BF16), WalkedBack(32, 1, 2, 2, 1, 2)),
    "queries, packed": (Gradient("queries", ("causal",), rows=72, keys=80, inner=64), WalkedBack(16, 1, 1, 2, 1, 2)),
}


def in_memory(x: np.ndarray, strides: tuple[int, ...]) -> np.ndarray:
    """The values where strides put them, zeros between."""
    flat = np.zeros(1 + sum((n - 1) * s for n, s in zip(x.shape, strides, strict=True)), x.dtype)
    np.lib.stride_tricks.as_strided(flat, x.shape, [s * x.itemsize for s in strides])[...] = x
    return flat


@needs_compiler
@pytest.mark.parametrize("name", PACKED)
def test_operands_and_results_lie_in_packed_projections(name: str, tmp_path: Path) -> None:
    """Queries, keys and values of all heads in one row, gradients in rows of all heads: no copies before or behind the kernel."""
    of, choice = PACKED[name]
    row = of.heads * of.inner
    layouts = dict.fromkeys("qkv", (of.inner, 3 * row, 1)) | {"g": (of.inner, row, 1)}
    layouts |= dict.fromkeys(of.graph().results, (of.inner, row, 1))
    program = schedule_back(of.graph(), layouts, H200, choice)
    assert isinstance(program, TileProgram), program
    kernel = compose_back(program, H200)
    library = build_together([(kernel, True)], tmp_path, CHECKED_FLAGS)
    values, expected = of.drawn(seed=3)
    given = {b.name: in_memory(values[b.origin], layouts[b.origin]) if b.origin in layouts else values[b.origin].ravel()
             for b in kernel.parameters if b.role == "in"}
    memory, status, report = call(getattr(library, f"{kernel.name}_0"), kernel, given)
    assert status == 0, report
    buffers = {b.origin: b.name for b in kernel.parameters}
    for result, gradient in zip(program.graph.results, of.names, strict=True):
        exact, flat = expected[gradient], memory[buffers[result]]
        got = np.lib.stride_tricks.as_strided(flat, exact.shape, [s * flat.itemsize for s in layouts[result]]).astype(np.float64)
        assert np.abs(got - exact).max() <= (2.0**-9 if of.dtype == F16 else 2.0**-6) * max(np.abs(exact).max(), 1.0)


# -- forms -----------------------------------------------------------------------------------------------------------------


def form_of(of: Gradient) -> BackForm:
    """The form of a gradient."""
    form = back_form(of.graph(), {})
    assert isinstance(form, BackForm), form
    return form


def test_operands_of_scores_and_of_elements_are_one() -> None:
    """Queries and gradients come once a turn for four products; keys' kernel owns keys and values. Values of the queries' kernel come for
    scores alone."""
    keys, queries = form_of(Gradient(inner=64)), form_of(Gradient("queries", inner=64))
    assert [o.operand.value for o in keys.walked] == ["q", "g"] and keys.rights == (0, 1) and sorted(keys.weights) == [0, 1]
    assert [o.operand.value for o in keys.own] == ["k", "v"]
    assert [o.operand.value for o in queries.walked] == ["k", "v"] and queries.rights == (0, 1) and queries.weights == (0,)


def test_masks_bound_both_walks() -> None:
    """A causal mask begins the rows of a column, and ends the columns of a row; turns that it hides are left out. The last turn of a tile
    counts as one that is cut."""
    keys, queries = (form_of(Gradient(of, ("causal",))) for of in ("keys", "queries"))
    assert keys.limit is not None and keys.limit.bounds.starts and not keys.limit.bounds.ends
    assert queries.limit is not None and queries.limit.bounds.ends and not queries.limit.bounds.starts
    square = Gradient(scores=("causal",), rows=512, keys=512)
    made = schedule_back(square.graph(), {}, H200, WalkedBack(64, 1, 1, 2, 1, 2))
    assert isinstance(made, TileProgram)
    plan = walked_back_of(made)
    assert (plan.all_turns, plan.whole_turns) == (2 * 36, 2 * 21) and not plan.longest_last


def test_masks_of_heads_that_share_keys_bound_each() -> None:
    """Rows of a group's heads are segments of the walk, of which a causal mask begins each; turns that divide none take all columns."""
    shared = Gradient(scores=("causal",), rows=96, keys=130, group=3)
    form = form_of(shared)
    alone = form_of(replace(shared, group=1)).limit
    assert form.segments == 3 and form.limit is not None and alone is not None and form.limit.bounds == alone.bounds
    # Of three tiles of 64 columns, the first has all rows of a head, the second its last 32, and the third none, which is a turn.
    for columns, segments, turns in ((32, 3, 2 * 3 * (3 + 1 + 1)), (64, 1, 2 * 3 * 5)):
        made = schedule_back(shared.graph(), {}, H200, WalkedBack(columns, 1, 1, 2, 1, 2))
        assert isinstance(made, TileProgram)
        plan = walked_back_of(made)
        assert (plan.segments, plan.all_turns) == (segments, turns) and (plan.form.limit is None) == (segments == 1)


def test_elements_that_no_mask_makes_zero_keep_all_turns() -> None:
    """The gradient of the values alone vanishes under the mask; a sum of scores beside it does not."""
    b_form = form_of(replace(Gradient(scores=("window",)), rows=64, keys=64))
    assert b_form.limit is not None
    assert form_of(Gradient(scores=("hidden",))).limit is None


@pytest.mark.parametrize(("graph", "told"), [
    (attention(2, 70, 16, F16), "several on one side"), (Gradient(dtype=F32).graph(), "f32")])
def test_other_patterns(graph: object, told: str) -> None:
    """Attention itself, one product on either side; types that the tensor cores do not multiply in one."""
    made = schedule_back(graph, {}, H200)  # type: ignore[arg-type]
    assert isinstance(made, Rejected) and told in str(made)


def test_too_wide_results() -> None:
    """Sums of 256 columns of two results leave no room for two fillings, and no registers."""
    made = schedule_back(Gradient(inner=256, rows=64, keys=64).graph(), {}, H200)
    assert isinstance(made, Rejected)
    made = schedule_back(Gradient(inner=256, rows=64, keys=64).graph(), {}, H200, WalkedBack(16, 1, 1, 2, 1, 1))
    assert isinstance(made, Rejected) and made.reason is Reason.REGISTERS


# -- texts -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_a_template_gives_its_program_back(name: str) -> None:
    """The program's own notation, parsed."""
    program = scheduled(name)
    again = back_by_hand(program, parse_template(program.notation), H200)
    assert (again.choice, again.notation) == (program.choice, program.notation)


TILE = "matmul [GRID,GRID-CTA_128,LOOP_64];"


def long_walk() -> TileProgram:
    """Gradients of 64 heads, 4096 rows and keys."""
    made = schedule_back(Gradient(heads=64, rows=4096, keys=4096, inner=64).graph(), {}, H200, WalkedBack(64, 2, 1, 3, 1, 132))
    assert isinstance(made, TileProgram)
    return made


def test_a_template_changes_tiles() -> None:
    """Columns a turn, rows, slots and blocks that a user writes."""
    written = "matmul [GRID,GRID-CTA_64,LOOP_48]R; kept_slots=2; slots=4; warpgroups=1; cta_num=7; cta_size=256;"
    assert back_by_hand(long_walk(), parse_template(written), H200).choice == WalkedBack(48, 1, 2, 4, 1, 7)


@pytest.mark.parametrize(("written", "error", "told"), [
    ("matmul [GRID,GRID-CTA_128,LOOP_100];", UserError, "100 columns"),
    ("matmul [GRID,GRID-CTA_100,LOOP_64];", UserError, "rows of 100"),
    (f"{TILE} matmul_2 [GRID,GRID-CTA_128,WARP,LOOP_32];", UserError, "columns of 64 and of 32"),
    (f"{TILE} slots=1;", UserError, "1 slots"),
    (f"{TILE} slots=40;", UserError, "bytes of slots"),
    ("matmul [GRID,GRID-CTA_128,LOOP_160];", UserError, "registers a thread"),
    (f"{TILE} band=3;", UserError, "a band of 3 among 64"),
    (f"{TILE} cta_size=512;", UserError, "cta_size of 512"),
    ("other [GRID];", NameLookupError, "%other"),
    (f"{TILE} left_slots=2;", OptionError, "left_slots"),
])
def test_templates_that_cannot_be_met(written: str, error: type[Exception], told: str) -> None:
    """The error names the number."""
    with pytest.raises(error) as raised:
        back_by_hand(long_walk(), parse_template(written), H200)
    assert told in str(raised.value)


def test_what_explanations_show() -> None:
    """Scores and elements in registers, operands of rows and of turns in shared memory; masks' turns are counted."""
    template, program = WalkedBackTemplate(), scheduled("keys, causal")
    plan = program.internal
    assert isinstance(plan, BackPlan)
    tree = template.stage_tree(program)
    assert tree is not None and tree.shared_bytes == sum(p.num_bytes for p in template.staging(program).places)
    assert "turns of all tiles" in str(tree)
    assert {e.level for e in program.levels} == {Level.REGISTER}
    assert template.resources(program, H200).shared_bytes == plan.shared_bytes
    assert program.choice not in template.neighbours(program, H200)


def test_vectors_of_shared_lead_places_come_by_copies() -> None:
    """A mask of columns that two heads share: the first axis of its tensor map is half of the lead place."""
    of, choice = CASES["queries, columns that heads share"]
    program = schedule_back(of.graph(), {}, H200, choice)
    assert isinstance(program, TileProgram), program
    vectors = {v.read.value: v for v in walked_back_of(program).vectors}
    assert vectors["padding"].extents == (2, 88) and vectors["padding"].strides == (88, 1)
