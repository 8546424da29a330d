"""Pipelined walks of few rows to be run: axes in parts, some without turns, heads as rows of one tile, ends that memory holds."""
from __future__ import annotations

from tests.unit.templates.online_cases import with_hidden_rows, with_lowest
from tests.unit.templates.online_graphs import masked, with_logarithm, without_maximum
from tests.unit.templates.staged.walked.variants import Variant, variates
from tests.unit.templates.staged.walked.walk_cases import Case
from tests.unit.templates.stitched_cases import with_specials
from tests.unit.templates.stitched_graphs import attention, normal
from tilefuse.ir.building.tensor import TensorBuilder
from tilefuse.ir.dtype import BF16, F16, F32
from tilefuse.ir.graph import Graph
from tilefuse.templates.staged.walked.record import PipelinedWalk


def grouped_rows(rows: int, keys: int, turned: bool = False, logs: bool = False) -> Graph:
    """Heads that share keys as dimensions of their own beside their rows, which the products have as one; `turned`: results by rows, then
    heads."""
    b = TensorBuilder("grouped")
    q = b.input("q", F16, (2, 8, rows, 16))
    k, v = (b.input(name, F16, (2, keys, 2, 16)) for name in "kv")
    s = b.matmul(b.reshape(q, (2, 2, 4 * rows, 16)), b.permute(k, (0, 2, 3, 1)))
    s = b.reshape(b.elementwise("mul", s, b.full((1, 1, 1, 1), 0.25, F16)), (2, 2, 4, rows, keys))
    y = b.matmul(b.reshape(b.softmax(s, -1), (2, 2, 4 * rows, keys)), b.permute(v, (0, 2, 1, 3)))
    y = b.reshape(y, (2, 8, rows, 16))
    results = [b.permute(y, (0, 2, 1, 3)) if turned else y]
    return normal(b, [*results, b.logsumexp(b.cast(s, F32), (4,))] if logs else results)


PART_CASES = {
    "grouped rows": Case(lambda: grouped_rows(3, 97), PipelinedWalk(16, 1, 2, 2, 1, 3, parts=2), 2.0**-7),
    "grouped rows, results turned": Case(lambda: grouped_rows(5, 40, turned=True), PipelinedWalk(48, 1, 1, 2, 1, 2), 2.0**-7),
    "grouped rows, logarithms": Case(lambda: grouped_rows(20, 64, logs=True), PipelinedWalk(32, 1, 1, 2, 1, 2), 2.0**-7),
    "more parts than are loaded together": Case(lambda: attention(2, 1, 64, BF16, keys=570), PipelinedWalk(16, 1, 2, 3, 1, 5, parts=18),
                                                2.0**-6),
    "two warpgroups, later keys hidden": Case(lambda: attention(1, 200, 64, F16, causal=True), PipelinedWalk(32, 2, 2, 3, 1, 4, parts=4),
                                              2.0**-8),
    "logarithms, columns beside": Case(lambda: with_logarithm(2, 7, 300, 24, 40, F16), PipelinedWalk(32, 1, 2, 2, 1, 3, parts=3), 2.0**-8),
    "infinities": Case(lambda: attention(1, 6, 8, F16, keys=39), PipelinedWalk(16, 1, 1, 2, 1, 3, parts=3), 2.0**-8, with_specials),
    "no maximum": Case(lambda: without_maximum(9, 56, 16, 8, F16), PipelinedWalk(32, 1, 1, 2, 1, 4, parts=2), 2.0**-6),
    "added mask": Case(lambda: masked(17, 48, 16, 8, BF16), PipelinedWalk(16, 1, 1, 2, 1, 2, parts=3), 2.0**-5, with_hidden_rows),
    "lowest numbers added": Case(lambda: masked(17, 48, 16, 8, BF16), PipelinedWalk(16, 1, 1, 2, 1, 2, parts=3), 2.0**-5, with_lowest),
} | {name: Case(v.graph, wanted, 2.0**-8 if v.dtype == F16 else 2.0**-5, variates) for name, v, wanted in (
    ("a part without turns", Variant(("causal",), group=2, rows=7, keys=97, width=40, logs="written"),
     PipelinedWalk(16, 1, 2, 2, 1, 5, parts=3)),
    ("window", Variant(("window",), rows=150, keys=150), PipelinedWalk(16, 1, 1, 2, 2, 3, parts=4)),
    ("first columns and window", Variant(("first_and_window",), rows=150, keys=200), PipelinedWalk(16, 1, 1, 2, 2, 3, parts=3)),
    ("first columns of memory and window, one row", Variant(("ends_and_window", "behind"), batch=3, rows=2, keys=150),
     PipelinedWalk(16, 1, 2, 2, 1, 5, parts=3)),
    ("masks through rings", Variant(("hidden", "of_batch"), batch=2, keys=160, safe=True),
     PipelinedWalk(32, 2, 1, 2, 2, 3, bias_slots=2, parts=2)),
    ("heads as rows", Variant(heads=8, group=4, rows=1, keys=97), PipelinedWalk(16, 1, 2, 2, 1, 6, heads=4)),
    ("heads as rows, later keys hidden, logarithms", Variant(("causal",), batch=2, heads=8, group=4, rows=3, keys=97, logs="written"),
     PipelinedWalk(16, 1, 2, 2, 1, 7, parts=3, heads=4)),
    ("some heads of a group as rows", Variant(("around",), heads=8, group=4, rows=3, keys=97, window=40),
     PipelinedWalk(16, 1, 2, 2, 1, 7, parts=3, heads=2)),
    ("six heads as rows, slopes", Variant(("slopes",), batch=2, heads=6, group=6, rows=1, keys=97, dtype=BF16),
     PipelinedWalk(16, 1, 2, 2, 1, 7, parts=2, heads=6)),
    ("heads as rows, two warpgroups, biases", Variant(("of_heads", "temperature", "padding"), batch=2, heads=4, group=2, rows=40, keys=97,
                                                      safe=True), PipelinedWalk(32, 2, 2, 2, 1, 7, parts=2, heads=2)),
    ("ends in memory", Variant(("lengths",), batch=4, rows=1, keys=97), PipelinedWalk(16, 1, 2, 2, 1, 6)),
    ("ends in memory, parts, heads as rows", Variant(("lengths",), batch=5, heads=8, group=4, rows=1, keys=97, safe=True),
     PipelinedWalk(16, 1, 2, 2, 1, 7, parts=3, heads=4)),
    ("ends in memory that fall with rows", Variant(("lengths_and_rows",), batch=5, heads=8, group=4, rows=3, keys=97, logs="written"),
     PipelinedWalk(16, 1, 2, 2, 1, 7, parts=3, heads=4)),
    ("a start and ends in memory", Variant(("behind", "lengths_and_rows", "cap"), batch=3, rows=70, keys=97),
     PipelinedWalk(16, 1, 2, 2, 1, 7, parts=2)),
)}
