"""Pipelined walks compile for an H200: scores, powers and sums in registers, nothing spilled."""
from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tests.compile_only.assembler import assembled, without_spills
from tests.compile_only.machine_code import products_in
from tests.unit.templates.staged.walked.bounded_cases import Bounded
from tests.unit.templates.staged.walked.variants import Variant
from tests.unit.templates.stitched_graphs import attention
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.dtype import BF16, F16, F32
from tilefuse.kernel.widths import with_index_bits
from tilefuse.printers.cuda import print_cuda
from tilefuse.target.device import H200
from tilefuse.templates.staged.walked.compose import compose_walk
from tilefuse.templates.staged.walked.record import PipelinedWalk
from tilefuse.templates.staged.walked.template import schedule_walk


@pytest.mark.parametrize(("width", "causal", "choice"), [
    (64, False, PipelinedWalk(112, 3, 2, 4, 1, 132, True)), (64, True, PipelinedWalk(128, 2, 2, 4, 64, 132, True)),
    (64, False, PipelinedWalk(208, 2, 2, 3, 1, 132)), (128, True, PipelinedWalk(128, 2, 2, 2, 64, 132, True)),
    (128, False, PipelinedWalk(64, 3, 1, 2, 1, 132, True)), (256, False, PipelinedWalk(48, 2, 1, 2, 1, 132)),
])
def test_no_register_spills(width: int, causal: bool, choice: PipelinedWalk) -> None:
    """One instruction for 16 inner elements, in every form of a turn; none serialised."""
    program = schedule_walk(attention(64, 4096, width, BF16 if causal else F16, causal=causal), {}, H200, choice)
    assert isinstance(program, TileProgram), program
    kernel = with_index_bits(compose_walk(program, H200))
    code, report = assembled(print_cuda(kernel, H200), "sm_90a")
    assert without_spills(report), report
    assert "serialized" not in report
    # Scores of the last turn and of each loop over turns; products of these, and of the first turn. Tiles of a mask as tall as wide are cut
    # by it in their last turn alone.
    forms = 3 if causal and choice.columns < choice.rows else 2
    assert products_in(code, kernel.name)["HGMMA"] == forms * (width + choice.columns) // 16


def test_random_numbers_beside_a_mask_of_columns() -> None:
    """Loads of columns and the generator need registers at one time: the tile that plans take spills five, and of 208 columns 21."""
    of = Variant(("padding",), batch=4, heads=16, rows=1024, keys=1024, inner=64, width=64, dtype=BF16, drop=0.1)
    program = schedule_walk(of.graph(), {}, H200)
    assert isinstance(program, TileProgram), program
    _, report = assembled(print_cuda(with_index_bits(compose_walk(program, H200)), H200), "sm_90a")
    spilled = re.search(r"(\d+) bytes spill stores", report)
    assert spilled is not None and int(spilled.group(1)) <= 8 * F32.itemsize, report


LONG = Variant(batch=2, heads=32, rows=4096, keys=4096, inner=64, width=64)
ONE_ROW = Variant(batch=2, heads=32, rows=1, keys=4096, inner=128, width=128)
ROWS_OF_197 = Variant(("dense",), batch=64, heads=12, rows=197, keys=197, inner=64, width=64)


@pytest.mark.parametrize(("variant", "choice"), [
    (replace(LONG, scores=("window",), window=1024), PipelinedWalk(64, 3, 2, 4, 16, 132)),
    (replace(LONG, scores=("prefix",), window=1000), PipelinedWalk(128, 2, 2, 4, 64, 132)),
    (replace(LONG, scores=("slopes", "causal")), PipelinedWalk(128, 2, 2, 4, 64, 132)),
    (replace(LONG, scores=("cap", "causal")), PipelinedWalk(128, 2, 2, 4, 64, 132)),
    (replace(LONG, scores=("dense",), safe=True), PipelinedWalk(112, 3, 2, 2, 1, 132, bias_slots=2)),
    (replace(LONG, scores=("hidden",)), PipelinedWalk(128, 2, 2, 2, 1, 132, bias_slots=2)),
    (ROWS_OF_197, PipelinedWalk(112, 2, 2, 4, 1, 132, bias_slots=2)),
    (ROWS_OF_197, PipelinedWalk(208, 2, 2, 2, 1, 132, bias_slots=1)),
    (replace(LONG, logs="operator"), PipelinedWalk(112, 3, 2, 4, 1, 132)),
    (replace(LONG, scores=("causal",), group=4), PipelinedWalk(128, 2, 2, 4, 64, 132)),
    (replace(ONE_ROW, group=4), PipelinedWalk(128, 1, 1, 3, 1, 128, parts=8, heads=4)),
    (replace(ONE_ROW, scores=("lengths",), group=4, safe=True), PipelinedWalk(176, 1, 1, 2, 1, 132, parts=8, heads=4)),
    (replace(ONE_ROW, rows=16, inner=256, width=256), PipelinedWalk(64, 1, 1, 2, 1, 128, parts=2)),
    (replace(ONE_ROW, scores=("lengths",), group=4, safe=True, page=16), PipelinedWalk(176, 1, 1, 2, 1, 132, parts=8, heads=4)),
    (replace(LONG, scores=("causal",), group=4, page=64), PipelinedWalk(128, 2, 2, 4, 64, 132)),
    (replace(LONG, drop=0.1), PipelinedWalk(208, 2, 2, 3, 1, 132)), (replace(LONG, drop=0.1), PipelinedWalk(112, 3, 2, 4, 1, 132)),
    (replace(LONG, scores=("causal",), drop=0.1), PipelinedWalk(128, 2, 2, 4, 64, 132)),
], ids=["window", "prefix", "slopes", "cap", "bias", "mask", "bias by threads", "bias by threads, one slot", "logarithms", "groups",
        "parts", "parts, ends in memory", "wide parts of 16 rows", "pages, parts, ends in memory", "pages, many queries",
        "dropout", "dropout, three warpgroups", "dropout, later keys hidden"])
def test_variants_spill_nothing(variant: Variant, choice: PipelinedWalk) -> None:
    """Masks, biases in shared memory and functions of scores leave scores, powers and sums in registers."""
    program = schedule_walk(variant.graph(), {}, H200, choice)
    assert isinstance(program, TileProgram), program
    kernel = with_index_bits(compose_walk(program, H200))
    assert kernel.index_bits == 32
    _, report = assembled(print_cuda(kernel, H200), "sm_90a")
    assert without_spills(report), report
    assert "serialized" not in report


@pytest.mark.parametrize(("variant", "choice"), [
    (replace(LONG, scores=("documents",)), None), (replace(LONG, scores=("same",), inner=128, width=128), None),
    (replace(LONG, scores=("documents", "window"), window=1024), None), (replace(LONG, scores=("hidden",)), None),
    (replace(LONG, scores=("documents",), group=4, inner=128, width=128), PipelinedWalk(128, 2, 1, 2, 1, 132)),
    (replace(LONG, scores=("cap", "documents")), PipelinedWalk(64, 2, 2, 4, 1, 132)),
    (replace(LONG, scores=("documents",), rows=3999, keys=3999, inner=128, width=128), None),
], ids=["documents", "documents, width 128", "window", "mask", "groups", "cap", "odd lengths"])
def test_walks_that_memory_bounds_spill_nothing(variant: Variant, choice: PipelinedWalk | None) -> None:
    """Bounds of blocks of rows, and the masks of single warpgroups."""
    program = Bounded(variant, choice).program()
    kernel = with_index_bits(compose_walk(program, H200))
    assert kernel.index_bits == 32
    _, report = assembled(print_cuda(kernel, H200), "sm_90a")
    assert without_spills(report), report
    assert "serialized" not in report
