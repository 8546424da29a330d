"""Pipelined walks between products to be run: tiles made by hand, so that turns, ends of tiles and empty rows occur at small sizes."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tests.unit.templates.online_cases import with_hidden_rows
from tests.unit.templates.online_graphs import biased_layers, masked, packed_heads, shared_keys, with_logarithm, without_maximum
from tests.unit.templates.stitched_cases import smooth, with_specials
from tests.unit.templates.stitched_graphs import attention
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.dtype import BF16, F16
from tilefuse.ir.graph import Graph
from tilefuse.ir.layouts import Layouts
from tilefuse.target.device import H200
from tilefuse.templates.staged.walked.program import schedule_walk
from tilefuse.templates.staged.walked.record import PipelinedWalk

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
    "hidden columns": Case(lambda: masked(66, 56, 16, 16, F16, "hidden"), PipelinedWalk(32, 1, 2, 2, 1, 4), 2.0**-8, with_hidden_rows),
    "packed heads": Case(lambda: packed_heads(2, 70, 3, 32, F16), PipelinedWalk(32, 1, 2, 2, 1, 5), 2.0**-9),
    "packed heads, later keys hidden": Case(lambda: packed_heads(2, 100, 2, 64, BF16, causal=True), PipelinedWalk(48, 1, 1, 2, 2, 3),
                                            2.0**-5),
    "infinities": Case(lambda: attention(1, 6, 8, F16, keys=39), PipelinedWalk(16, 1, 1, 2, 1, 1), 2.0**-8, with_specials),
    "no maximum": Case(lambda: without_maximum(9, 56, 16, 8, F16), PipelinedWalk(32, 1, 1, 2, 1, 1), 2.0**-6),
    "layers with biases": Case(lambda: biased_layers(70, 8, 88, 8, F16), PipelinedWalk(48, 1, 1, 2, 1, 2), 2.0**-6),
}


def drawn(case: Case, graph: Graph) -> dict[str, np.ndarray]:
    """Seeded inputs in f64, rounded to the inputs' types by the caller."""
    random = np.random.default_rng(11)
    return {v.name: case.draw(random, v.name, v.type.shape) for v in graph.inputs}
