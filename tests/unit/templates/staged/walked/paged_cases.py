"""Pipelined walks over keys and values in pages, to be run: pages longer and shorter than turns, ends in memory, heads as rows, parts."""
from __future__ import annotations

from tests.unit.templates.staged.walked.variants import Variant, variates
from tests.unit.templates.staged.walked.walk_cases import Case
from tilefuse.ir.dtype import BF16, F16
from tilefuse.templates.staged.walked.record import PipelinedWalk

PAGED_CASES = {name: Case(v.graph, wanted, 2.0**-8 if v.dtype == F16 else 2.0**-5, variates) for name, v, wanted in (
    ("pages shorter than a turn", Variant(page=16, keys=96), PipelinedWalk(32, 1, 2, 2, 1, 3)),
    ("many short pages a turn", Variant(page=8, keys=256, rows=5), PipelinedWalk(128, 1, 2, 2, 1, 2)),
    ("pages longer than a turn", Variant(page=64, keys=192, inner=72, width=80), PipelinedWalk(32, 2, 2, 2, 1, 3)),
    ("pages that divide no turn", Variant(page=24, keys=120), PipelinedWalk(32, 1, 1, 3, 1, 3)),
    ("a page for each batch", Variant(page=64, keys=64, batch=3), PipelinedWalk(32, 1, 2, 2, 1, 3)),
    ("a part of a page behind the end", Variant(page=16, keys=88, rows=3), PipelinedWalk(32, 1, 2, 2, 1, 2)),
    ("ends in memory", Variant(("lengths",), page=16, batch=4, rows=1, keys=96), PipelinedWalk(32, 1, 2, 2, 1, 6)),
    ("ends in memory, parts, heads as rows", Variant(("lengths",), page=16, batch=5, heads=8, group=4, rows=1, keys=96, safe=True),
     PipelinedWalk(32, 1, 2, 2, 1, 7, parts=3, heads=4)),
    ("later keys hidden, ends in memory, heads as rows", Variant(("lengths_and_rows", "cap"), page=8, batch=3, heads=4, group=2, rows=4,
                                                                 keys=104, dtype=BF16), PipelinedWalk(16, 1, 1, 2, 1, 3, parts=2, heads=2)),
    ("many queries, later keys hidden", Variant(("causal",), page=16, batch=2, rows=160, keys=160, group=2),
     PipelinedWalk(32, 2, 2, 2, 2, 3)),
    ("a bias through a ring", Variant(("dense",), page=16, rows=20, keys=96), PipelinedWalk(32, 1, 1, 2, 1, 2, bias_slots=2)),
)}
