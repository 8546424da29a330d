"""Pipelined walks whose powers are dropped at random, to be run: words of bits, masks, parts, heads as rows, pages."""
from __future__ import annotations

from tests.unit.templates.staged.walked.variants import Variant, variates
from tests.unit.templates.staged.walked.walk_cases import Case
from tilefuse.ir.dtype import BF16, F16
from tilefuse.templates.staged.walked.record import PipelinedWalk

DROPPED = {name: Case(v.graph, wanted, 2.0**-7 if v.dtype == F16 else 2.0**-5, variates) for name, v, wanted in (
    ("one turn", Variant(drop=0.1, keys=32), PipelinedWalk(32, 1, 1, 2, 1, 2)),
    ("several turns, two batches", Variant(drop=0.5, batch=2, keys=96), PipelinedWalk(32, 1, 2, 2, 1, 3)),
    ("more groups of columns than a word holds", Variant(drop=0.1, keys=320, rows=9), PipelinedWalk(160, 1, 1, 2, 1, 2)),
    ("two warpgroups, rows and columns beyond the end", Variant(drop=0.2, rows=130, keys=100), PipelinedWalk(48, 2, 2, 2, 1, 3)),
    ("later keys hidden", Variant(("causal",), drop=0.1, rows=150, keys=152, logs="written"), PipelinedWalk(32, 1, 2, 2, 1, 3)),
    ("rows that are hidden whole", Variant(("hidden",), drop=0.1, keys=96, safe=True), PipelinedWalk(32, 1, 1, 2, 1, 2, bias_slots=2)),
    ("ends in memory, parts, heads as rows", Variant(("lengths",), drop=0.3, batch=3, heads=4, group=4, rows=3, keys=96, dtype=BF16),
     PipelinedWalk(32, 1, 1, 2, 1, 5, parts=2, heads=4)),
    ("pages", Variant(drop=0.1, page=16, keys=96), PipelinedWalk(32, 1, 1, 2, 1, 2)),
    ("rows that begin within four numbers", Variant(drop=0.1, keys=98), PipelinedWalk(32, 1, 1, 2, 1, 2)),
)}
