"""Bounds of all tiles of a stitched kernel at once: never above those of the tiles' own regions, and seldom below."""
from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from tests.laws.random_graphs import random_graph
from tests.laws.random_products import random_joins, random_layers, random_products
from tests.unit.templates import stitched_graphs
from tilefuse.base.candidate import Rejected
from tilefuse.domain.roofline import least_blocks_us
from tilefuse.ir.dtype import F16
from tilefuse.ir.graph import Graph
from tilefuse.ir.text import parse_graph
from tilefuse.target.device import H200
from tilefuse.templates.staged.stitched.choose import Search
from tilefuse.templates.staged.stitched.cut import Stitcher
from tilefuse.templates.staged.stitched.least import least_stages_us
from tilefuse.templates.staged.stitched.record import Stitched
from tilefuse.templates.staged.stitched.stage_work import least_cycles, least_of_tiles

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
    """The object that cuts a pattern; None where stages cannot compute it."""
    stitcher = Stitcher(graph, H200.fitted.stitch)
    return None if isinstance(stitcher.analyse(), Rejected) else stitcher


def check_tiles(stitcher: Stitcher, random: Random, count: int) -> tuple[int, int]:
    """Compares the bounds of random tiles of few extents with those of their regions: tiles that have regions, and those of them whose
    bounds are equal but for rounding."""
    shape = stitcher.graph.type_of(stitcher.anchor).shape
    extents = [sorted({1, n, *(random.randint(1, n) for _ in range(3))}) for n in shape]
    tiles = dict.fromkeys(tuple(random.choice(e) for e in extents) for _ in range(count))
    choices = [Stitched(t, threads) for t in tiles for threads in (128, 512)]
    checked = equal = 0
    for choice, us in zip(choices, least_stages_us(stitcher, choices, H200), strict=True):
        regions = stitcher.regions(choice.tiles)
        if isinstance(regions, Rejected):
            continue
        cycles = least_cycles(stitcher, regions, H200)
        of_regions_us = least_blocks_us(least_of_tiles(cycles, choice.threads, stitcher.least_wait, H200), H200)
        assert 0 < us <= of_regions_us, (choice, cycles)
        checked, equal = checked + 1, equal + (us > of_regions_us * (1 - 1e-6))
    return checked, equal


@pytest.mark.parametrize("name", list(GRAPHS))
def test_bounds_of_random_tiles(name: str) -> None:
    """Also of tiles that no search tries."""
    stitcher = stitcher_of(GRAPHS[name])
    assert stitcher is not None
    checked, _ = check_tiles(stitcher, Random(7), 80)
    assert checked


@pytest.mark.parametrize("drawn", [random_products, random_layers, random_joins, lambda r: random_graph(r, num_nodes=9)])
def test_bounds_of_random_graphs(drawn: Callable[[Random], Graph]) -> None:
    """Products among maps and reductions, values side by side, and graphs of every kind of node."""
    checked = equal = 0
    for seed in range(150):
        random = Random(seed)
        stitcher = stitcher_of(drawn(random))
        if stitcher is not None:
            tiles, alike = check_tiles(stitcher, random, 24)
            checked, equal = checked + tiles, equal + alike
    assert checked > 100 and equal > checked / 5


def test_few_tiles_of_a_search_have_regions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those whose bounds exceed the best price have none."""
    worked_out: list[tuple[int, ...]] = []
    regions_of = Stitcher._regions_of
    monkeypatch.setattr(Stitcher, "_regions_of", lambda s, tiles: (worked_out.append(tiles), regions_of(s, tiles))[1])
    stitcher = stitcher_of(stitched_graphs.two_results(128, 64, 128))
    assert stitcher is not None
    sizes = (1, 2, 4, 8, 16, 32, 64, 128)
    best = Search(stitcher, H200, True).cheapest([Stitched((r, c), 128) for r in sizes for c in sizes])
    assert not isinstance(best, Rejected) and best.choice.tiles in worked_out
    assert len(worked_out) < len(sizes) ** 2 / 2
