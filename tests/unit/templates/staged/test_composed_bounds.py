"""Bounds of stitched tiles composed from those of others: the same as those of their own regions."""
from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from tests.laws.random_graphs import random_graph
from tests.laws.random_products import random_joins, random_layers, random_products
from tests.unit.templates import stitched_graphs
from tilefuse.base.candidate import Rejected
from tilefuse.ir.dtype import F16
from tilefuse.ir.graph import Graph
from tilefuse.ir.text import parse_graph
from tilefuse.target.device import H200
from tilefuse.templates.staged.stitched.composed import ComposedCycles
from tilefuse.templates.staged.stitched.cut import Stitcher
from tilefuse.templates.staged.stitched.stage_work import least_cycles

# Reads at both ends, in strides, in heads, of a turned value, of constants, at sums of two tiled axes and behind divisions.
READS = parse_graph("""graph @reads(%x: f32[40, 24]) -> (f32[48, 16]) {
  %m: f32[40] = reduce.max [i] over [k < 24] { %x[i, k] }
  %s: f32[24] = reduce.sum [j] over [k < 40] { mul(%x[k, j], %m[k]) }
  %a: f32[48, 24] = map [i, j] { add(guard(0 <= i + -3 < 40 ? %m[i + -3] : 0.0:f32), %s[j]) }
  %n: f32[48] = reduce.sum [i] over [k < 24] { %a[i, k] }
  %b: f32[24, 32] = map [i, j] { mul(%n[2*i], %n[j + 16]) }
  %p: f32[24] = reduce.max [i] over [k < 32] { %b[i, k] }
  %q: f32[48] = map [i] { add(%p[(i // 2)], %n[-1*i + 47]) }
  %y: f32[48, 16] = map [i, j] { add(add(%q[i], %p[((16*i + j) // 32)]), add(%n[(i // 3) + j], mul(%n[2*j + 15], %m[0]))) }
  return %y
}""")

GRAPHS = {
    "attention": stitched_graphs.attention(4, 96, 16, F16),
    "heads": stitched_graphs.heads(64, 4, 16),
    "slice": stitched_graphs.slice_of_a_tile(64, 8, 16),
    "joined": stitched_graphs.joined_operand(64, (16, 32, 16), 24),
    "gram": stitched_graphs.gram(48, 32),
    "beside": stitched_graphs.beside_itself(32),
    "cell": stitched_graphs.lstm_cell(48, 32),
    "norm": stitched_graphs.norm_before_product(40, 32, 24),
    "layers": stitched_graphs.clamped_layers(1 << 14, (64, 64, 64, 64), F16),
    "masked": stitched_graphs.masked_sum(40, 32, 24),
    "reads": READS,
}


def stitcher_of(graph: Graph) -> Stitcher | None:
    """What cuts a pattern; None where stages cannot compute it."""
    stitcher = Stitcher(graph, H200.fitted.stitch)
    return None if isinstance(stitcher.analyse(), Rejected) else stitcher


def check_tiles(stitcher: Stitcher, random: Random, count: int) -> tuple[int, int]:
    """Compares the cycles of random tiles of few extents with those of their regions: tiles, and those of them that were composed."""
    composed, worked_out = ComposedCycles(stitcher, H200), Stitcher(stitcher.graph, H200.fitted.stitch)
    assert worked_out.analyse() is None
    shape = stitcher.graph.type_of(stitcher.anchor).shape
    extents = [sorted({1, n, *(random.randint(1, n) for _ in range(3))}) for n in shape]
    every = [tuple(random.choice(e) for e in extents) for _ in range(count)]
    for tiles in every:
        regions, cycles = worked_out.regions(tiles), composed.of(tiles)
        if isinstance(regions, Rejected):
            assert cycles == regions
        else:
            assert cycles == least_cycles(worked_out, regions, H200), tiles
    return len(set(every)), len(set(every) - stitcher._regions.keys())


@pytest.mark.parametrize("name", list(GRAPHS))
def test_bounds_of_composed_tiles(name: str) -> None:
    """Random tiles, also such as no search tries."""
    stitcher = stitcher_of(GRAPHS[name])
    assert stitcher is not None
    check_tiles(stitcher, Random(7), 80)


@pytest.mark.parametrize("drawn", [random_products, random_layers, random_joins, lambda r: random_graph(r, num_nodes=9)])
def test_bounds_of_random_graphs(drawn: Callable[[Random], Graph]) -> None:
    """Products among maps and reductions, values side by side, and graphs of every kind of node."""
    checked = composed = 0
    for seed in range(150):
        random = Random(seed)
        stitcher = stitcher_of(drawn(random))
        if stitcher is not None:
            tiles, without_regions = check_tiles(stitcher, random, 24)
            checked, composed = checked + tiles, composed + without_regions
    assert checked > 100 and composed > checked / 10


def test_most_tiles_of_a_search_have_no_regions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows and columns of a product: a row and a column of tiles say what all others have."""
    worked_out: list[tuple[int, ...]] = []
    regions_of = Stitcher._regions_of
    monkeypatch.setattr(Stitcher, "_regions_of", lambda s, tiles: (worked_out.append(tiles), regions_of(s, tiles))[1])
    stitcher = stitcher_of(stitched_graphs.two_results(128, 64, 128))
    assert stitcher is not None
    composed = ComposedCycles(stitcher, H200)
    sizes = (1, 2, 4, 8, 16, 32, 64, 128)
    assert not any(isinstance(composed.of((r, c)), Rejected) for r in sizes for c in sizes)
    assert len(worked_out) == 2 * len(sizes) - 1
