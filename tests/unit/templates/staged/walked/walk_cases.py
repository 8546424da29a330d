"""Pipelined walks between products to be run: tiles made by hand, so that turns, ends of tiles and empty rows occur at small sizes."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tests.unit.templates.online_cases import with_hidden_rows, with_lowest
from tests.unit.templates.online_graphs import (
    biased_layers,
    kept_scores,
    masked,
    packed_heads,
    shared_keys,
    with_logarithm,
    without_maximum,
)
from tests.unit.templates.staged.walked.variants import Variant, variates
from tests.unit.templates.stitched_cases import smooth, with_specials
from tests.unit.templates.stitched_graphs import attention
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.dtype import BF16, F16
from tilefuse.ir.graph import Graph
from tilefuse.ir.layouts import Layouts
from tilefuse.target.device import H200
from tilefuse.templates.staged.walked.record import PipelinedWalk
from tilefuse.templates.staged.walked.template import schedule_walk

Draw = Callable[[np.random.Generator, str, tuple[int, ...]], np.ndarray]


@dataclass(frozen=True)
class Case:
    """A pattern, its tiles (None: chosen), a bound on its error, its inputs, and strides of its values where they are not dense."""

    graph: Callable[[], Graph]
    wanted: PipelinedWalk | None
    tolerance: float
    draw: Draw = smooth
    layouts: Layouts = field(default_factory=dict)

    def program(self) -> TileProgram:
        """The tile program."""
        made = schedule_walk(self.graph(), self.layouts, H200, self.wanted)
        assert isinstance(made, TileProgram), made
        return made


# A head's rows among those of all heads, of queries, keys and values together.
PACKED = dict.fromkeys("qkv", (3 * 2 * 64 * 100, 64, 3 * 2 * 64, 1))

CASES = {
    "one turn": Case(lambda: attention(2, 40, 16, F16), PipelinedWalk(48, 1, 1, 2, 1, 2), 2.0**-9),
    "several turns": Case(lambda: attention(2, 150, 64, F16), PipelinedWalk(32, 2, 2, 2, 1, 3, True), 2.0**-9),
    "three warpgroups": Case(lambda: attention(1, 200, 64, F16), PipelinedWalk(64, 3, 1, 3, 1, 1, True), 2.0**-9),
    "wide heads": Case(lambda: attention(1, 130, 128, BF16), PipelinedWalk(64, 2, 1, 2, 1, 1), 2.0**-6),
    "unlike widths, logarithms, columns beside": Case(lambda: with_logarithm(2, 70, 90, 24, 40, F16), PipelinedWalk(32, 1, 2, 2, 1, 3),
                                                      2.0**-8),
    "many keys, few rows": Case(lambda: attention(1, 5, 32, F16, keys=300), PipelinedWalk(48, 1, 1, 3, 1, 1), 2.0**-9),
    "later keys hidden": Case(lambda: attention(2, 200, 64, F16, causal=True), PipelinedWalk(32, 1, 2, 3, 2, 3), 2.0**-8),
    "later keys hidden, two warpgroups": Case(lambda: attention(1, 290, 16, BF16, causal=True), PipelinedWalk(64, 2, 1, 2, 1, 2), 2.0**-5),
    "later keys hidden, more keys": Case(lambda: attention(1, 70, 16, F16, causal=True, keys=150), PipelinedWalk(32, 1, 1, 2, 1, 1),
                                         2.0**-8),
    "later keys hidden, fewer keys": Case(lambda: attention(1, 200, 16, F16, causal=True, keys=90), PipelinedWalk(32, 1, 1, 2, 1, 2),
                                          2.0**-8),
    "shared keys, turned values": Case(lambda: shared_keys(72, 72, 16, 64, F16), PipelinedWalk(64, 1, 1, 2, 1, 2), 2.0**-7),
    "added mask": Case(lambda: masked(17, 48, 16, 8, BF16), PipelinedWalk(32, 1, 1, 2, 1, 2), 2.0**-5, with_hidden_rows),
    "lowest numbers added": Case(lambda: masked(17, 48, 16, 8, BF16), PipelinedWalk(16, 1, 1, 2, 1, 2), 2.0**-5, with_lowest),
    "hidden columns": Case(lambda: masked(66, 56, 16, 16, F16, "hidden"), PipelinedWalk(32, 1, 2, 2, 1, 4), 2.0**-8, with_hidden_rows),
    "packed heads": Case(lambda: packed_heads(2, 70, 3, 32, F16), PipelinedWalk(32, 1, 2, 2, 1, 5), 2.0**-9),
    "packed heads, later keys hidden": Case(lambda: packed_heads(2, 100, 2, 64, BF16, causal=True), PipelinedWalk(48, 1, 1, 2, 2, 3),
                                            2.0**-5),
    "infinities": Case(lambda: attention(1, 6, 8, F16, keys=39), PipelinedWalk(16, 1, 1, 2, 1, 1), 2.0**-8, with_specials),
    "no maximum": Case(lambda: without_maximum(9, 56, 16, 8, F16), PipelinedWalk(32, 1, 1, 2, 1, 1), 2.0**-6),
    "scores kept in f32": Case(lambda: kept_scores(70, 90), PipelinedWalk(32, 1, 1, 2, 1, 2), 2.0**-8),
    "layers with biases": Case(lambda: biased_layers(70, 8, 88, 8, F16), PipelinedWalk(48, 1, 1, 2, 1, 2), 2.0**-6),
} | {f"variant: {name}": Case(v.graph, wanted, 2.0**-8 if v.dtype == F16 else 2.0**-5, variates) for name, v, wanted in (
    ("window", Variant(("window",), rows=150, keys=150), PipelinedWalk(16, 1, 1, 2, 2, 3)),
    ("window, two warpgroups", Variant(("window",), heads=1, rows=290, keys=290, window=100, dtype=BF16), PipelinedWalk(32, 2, 1, 2, 1, 2)),
    ("window, fewer keys", Variant(("window",), rows=200, keys=70, window=9), PipelinedWalk(16, 1, 2, 2, 1, 3)),
    ("around", Variant(("around",), rows=150, keys=150), PipelinedWalk(32, 1, 1, 2, 1, 3)),
    ("around, more keys", Variant(("around", "of_columns"), rows=80, keys=210, window=30), PipelinedWalk(16, 1, 1, 3, 1, 3)),
    ("prefix", Variant(("prefix",), rows=150, keys=150, window=50), PipelinedWalk(32, 1, 1, 2, 1, 3)),
    ("prefix and window", Variant(("prefix", "around"), rows=150, keys=150, window=60), PipelinedWalk(32, 1, 1, 2, 1, 3)),
    ("first columns and window", Variant(("first_and_window",), rows=150, keys=150), PipelinedWalk(16, 1, 1, 2, 2, 3)),
    ("first columns and window, two warpgroups", Variant(("first_and_window",), heads=1, rows=390, keys=390, window=33, dtype=BF16),
     PipelinedWalk(32, 2, 1, 2, 1, 2)),
    ("first columns and window, fewer keys", Variant(("first_and_window",), rows=200, keys=110, window=9),
     PipelinedWalk(16, 1, 2, 2, 1, 3)),
    ("first columns of memory and window", Variant(("ends_and_window",), batch=3, rows=190, keys=190), PipelinedWalk(16, 1, 1, 2, 1, 3)),
    ("first columns and window, biases", Variant(("dense", "first_and_window"), rows=150, keys=160, safe=True),
     PipelinedWalk(32, 1, 1, 2, 1, 3, bias_slots=2)),
    ("added triangle", Variant(("added_triangle",), rows=130, keys=130), PipelinedWalk(32, 1, 1, 2, 1, 3)),
    ("documents", Variant(("documents",), rows=130, keys=130, safe=True), PipelinedWalk(32, 1, 1, 2, 1, 3)),
    ("dense bias, zeros in hidden rows", Variant(("dense",), safe=True), PipelinedWalk(32, 1, 1, 2, 1, 3)),
    ("dense bias through a ring", Variant(("dense",), keys=88, safe=True), PipelinedWalk(32, 1, 1, 2, 1, 3, bias_slots=2)),
    ("dense bias that threads bring", Variant(("dense",), keys=97, safe=True), PipelinedWalk(48, 2, 1, 2, 1, 2, bias_slots=2)),
    ("masks that threads bring", Variant(("hidden", "of_heads", "around"), batch=2, keys=90),
     PipelinedWalk(32, 1, 1, 2, 1, 3, bias_slots=1)),
    ("masks through rings", Variant(("hidden", "of_batch", "window"), batch=2, rows=150, keys=160, safe=True),
     PipelinedWalk(32, 2, 1, 2, 2, 3, bias_slots=2)),
    ("bias of heads through a ring", Variant(("of_heads", "cap"), batch=2, rows=130, keys=144, dtype=BF16),
     PipelinedWalk(48, 1, 1, 2, 1, 3, bias_slots=2)),
    ("dense bias, whole tiles", Variant(("dense",), rows=128, keys=96), PipelinedWalk(48, 2, 1, 2, 1, 2)),
    ("bias of heads, later keys hidden", Variant(("of_heads", "causal"), batch=2, keys=70), PipelinedWalk(32, 1, 1, 2, 2, 3)),
    ("bias of batches in f32", Variant(("of_batch",), batch=2, width=24), PipelinedWalk(32, 1, 1, 2, 1, 3)),
    ("biases of rows and columns", Variant(("of_rows", "of_columns"), dtype=BF16), PipelinedWalk(32, 1, 1, 2, 1, 3)),
    ("mask, zeros in hidden rows", Variant(("hidden",), batch=2, safe=True), PipelinedWalk(32, 1, 1, 2, 1, 3)),
    ("padding, zeros in hidden rows", Variant(("padding", "causal"), batch=2, safe=True, keys=70), PipelinedWalk(32, 1, 1, 2, 1, 3)),
    ("slopes", Variant(("slopes", "causal"), batch=2, keys=70, dtype=BF16), PipelinedWalk(32, 1, 1, 2, 1, 3)),
    ("cap, a factor a head", Variant(("temperature", "cap", "causal"), keys=70), PipelinedWalk(32, 1, 1, 2, 1, 3)),
    ("groups of heads", Variant(("causal",), batch=2, heads=6, group=3, keys=70), PipelinedWalk(32, 1, 1, 2, 2, 3)),
    ("one head of keys, logarithms", Variant(("cap",), batch=2, heads=4, group=4, logs="written"), PipelinedWalk(32, 1, 1, 2, 1, 3)),
    ("logarithms of the operator", Variant(("dense",), logs="operator"), PipelinedWalk(32, 1, 1, 2, 1, 3)),
    ("odd widths", Variant(("around",), rows=50, keys=130, inner=72, width=104), PipelinedWalk(32, 1, 1, 2, 1, 2)),
    ("widths of 192 and 40", Variant(rows=50, inner=192, width=40, dtype=BF16), PipelinedWalk(32, 1, 1, 2, 1, 2)),
    ("one row", Variant(("dense",), rows=1, keys=200), PipelinedWalk(64, 1, 1, 2, 1, 2)),
)}


def drawn(case: Case, graph: Graph) -> dict[str, np.ndarray]:
    """Seeded inputs in f64, rounded to the inputs' types by the caller."""
    random = np.random.default_rng(11)
    return {v.name: case.draw(random, v.name, v.type.shape) for v in graph.inputs}
