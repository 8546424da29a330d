"""Pipelined walks over keys and values in pages, to be run: pages longer and shorter than turns, ends in memory, heads as rows, parts."""
from __future__ import annotations

import numpy as np

from tests.unit.templates.staged.walked.variants import Variant, variates
from tests.unit.templates.staged.walked.walk_cases import Case
from tests.unit.templates.stitched_graphs import normal
from tilefuse.ir.building.tensor import TensorBuilder
from tilefuse.ir.dtype import BF16, F16, I32, I64
from tilefuse.ir.graph import Graph
from tilefuse.templates.staged.walked.record import PipelinedWalk


def one_cache() -> Graph:
    """Pages that hold keys and values, numbered from a page on, and at least 0 before that."""
    b = TensorBuilder("cache")
    q, cache, table = b.input("q", F16, (3, 4, 2, 32)), b.input("cache", F16, (40, 2, 16, 2, 32)), b.input("numbers", I32, (3, 6))
    least = b.elementwise("maximum", b.cast(table, I64), b.full((1, 1), 0, I64))
    pages = b.take(cache, b.elementwise("add", least, b.full((1, 1), 1, I64)), 0, wrap=True, checked=True)
    sides = (b.slice(pages, [0, 0, n, 0, 0, 0], [3, 6, n + 1, 16, 2, 32]) for n in (0, 1))
    k, v = (b.repeat_interleave(b.permute(b.reshape(x, (3, 96, 2, 32)), (0, 2, 1, 3)), 2, 1) for x in sides)
    s = b.elementwise("mul", b.matmul(q, k, transpose_b=True), b.full((1, 1, 1, 1), 0.25, F16))
    return normal(b, [b.matmul(b.softmax(s, -1), v)])


def numbers(random: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Normal variates; numbers of pages from -8 to 38."""
    return random.integers(-8, 39, shape) if name == "numbers" else variates(random, name, shape)


PAGED_CASES = {
    "keys and values in one cache, numbers computed": Case(one_cache, PipelinedWalk(48, 1, 1, 2, 1, 3, heads=2), 2.0**-7, numbers),
} | {name: Case(v.graph, wanted, 2.0**-8 if v.dtype == F16 else 2.0**-5, variates) for name, v, wanted in (
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
