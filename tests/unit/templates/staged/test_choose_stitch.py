"""The search for a stitched kernel's tiles: what cannot be the fastest is not placed, and the fastest is found all the same."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from tests.laws.random_products import random_layers, random_products
from tests.unit.templates import stitched_graphs
from tilefuse.base.candidate import Rejected
from tilefuse.domain.regions import num_elements
from tilefuse.ir.dtype import F16, F32
from tilefuse.ir.graph import Graph
from tilefuse.ir.text import parse_graph
from tilefuse.target.device import H200
from tilefuse.templates.staged.stitched import choose as search
from tilefuse.templates.staged.stitched.plan import StitchPlan
from tilefuse.templates.staged.stitched.record import Stitched
from tilefuse.templates.staged.stitched.stage_work import least_cycles, least_of_cut, least_of_tiles

GRAPHS = {
    "attention": stitched_graphs.attention(64, 96, 16, F32),
    "layers": stitched_graphs.clamped_layers(1 << 14, (64, 64, 64, 64), F16),
    "chain": stitched_graphs.normed_chain(32, 64, 3),
    "odd": stitched_graphs.clamped_layers(77, (24, 40, 24), F32),
    "cell": stitched_graphs.lstm_cell(48, 32),
}


def chosen(graph: Graph, monkeypatch: pytest.MonkeyPatch) -> tuple[search.PricedStitch | Rejected, int]:
    """The choice, and how many candidates were placed."""
    placed = []
    priced = search.Search.priced
    with monkeypatch.context() as patch:
        patch.setattr(search.Search, "priced", lambda *a: (placed.append(a), priced(*a))[1])
        return search.choose_stitch(graph, H200), len(placed)


def without_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that cuts and places every candidate."""
    monkeypatch.setattr(search.Search, "least_us", lambda *_: (0.0, 0.0))
    monkeypatch.setattr(search, "least_stages_us", lambda _, choices, __: [0.0] * len(choices))


@pytest.mark.parametrize("name", list(GRAPHS))
def test_bounds_change_the_work_and_not_the_choice(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against a search that places every cut."""
    quick, some = chosen(GRAPHS[name], monkeypatch)
    without_bounds(monkeypatch)
    whole, every = chosen(GRAPHS[name], monkeypatch)
    assert isinstance(quick, search.PricedStitch) and isinstance(whole, search.PricedStitch)
    assert (quick.choice, quick.us) == (whole.choice, whole.us)
    assert some <= every


@pytest.mark.parametrize("drawn", [random_products, random_layers])
def test_no_price_is_below_its_bounds(drawn: Callable[[Random], Graph], monkeypatch: pytest.MonkeyPatch) -> None:
    """Random products: all candidates are placed, and each costs what its tiles and its stages cost at least, or more."""
    least_us, priced = search.Search.least_us, search.Search.priced
    checked = 0

    def compared(self: search.Search, choice: Stitched, cut: StitchPlan) -> object:
        nonlocal checked
        stitcher, device = self._stitcher, self._device
        regions = stitcher.regions(choice.tiles)
        assert not isinstance(regions, Rejected)
        cycles = least_cycles(stitcher, regions, device)
        tiles = least_of_tiles(cycles, choice.threads, stitcher.least_wait, device)
        bounds = [least_us(self, tiles), least_us(self, least_of_cut(stitcher, cut, cycles, tiles, device))]
        found = priced(self, choice, cut)
        if isinstance(found, search.PricedStitch):
            assert all(us <= found.us and hidden_us <= found.hidden_us for us, hidden_us in bounds), (found.choice, tiles, bounds)
            checked += 1
        return found

    without_bounds(monkeypatch)
    monkeypatch.setattr(search.Search, "priced", compared)
    for seed in range(60):
        search.choose_stitch(drawn(Random(seed)), H200)
    assert checked > 300


def test_tiles_that_cannot_use_the_matrix_unit_are_not_placed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the candidates for layers of 16 bits."""
    _, some = chosen(GRAPHS["layers"], monkeypatch)
    without_bounds(monkeypatch)
    _, every = chosen(GRAPHS["layers"], monkeypatch)
    assert 2 * some <= every


def test_tiles_that_bring_too_much_are_not_even_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """One row a block brings all weights for every row: its stages are not looked for."""
    cut = search.Stitcher.cut
    cuts = []
    monkeypatch.setattr(search.Stitcher, "cut", lambda *a: (cuts.append(a), cut(*a))[1])
    _, placed = chosen(GRAPHS["layers"], monkeypatch)
    found = len(cuts)
    without_bounds(monkeypatch)
    chosen(GRAPHS["layers"], monkeypatch)
    assert placed <= found < (len(cuts) - found) / 2


def test_threads_of_few_blocks_do_not_decide_by_their_loads() -> None:
    """96 blocks: twice the threads would have twice the loads in flight, if threads loaded; copies of tiles do, and stages decide."""
    graph = parse_graph((Path(__file__).parents[4] / "examples/attention.txt").read_text(encoding="utf-8"))
    stages_us = {}
    for threads in (128, 256):
        candidate = search.choose_stitch(graph, H200, Stitched((1, 64, 64), threads))
        assert isinstance(candidate, search.PricedStitch)
        stages_us[threads] = candidate.hidden_us
    chosen = search.choose_stitch(graph, H200)
    assert isinstance(chosen, search.PricedStitch) and chosen.choice.tiles == (1, 64, 64)
    assert chosen.choice.threads == min(stages_us, key=stages_us.__getitem__) == 128


@pytest.mark.parametrize("drawn", [random_products, random_layers, lambda _: stitched_graphs.attention(64, 96, 16, F32),
                                   lambda _: stitched_graphs.clamped_layers(256, (256, 512, 256), F16)])
def test_tiles_refused_as_too_large_fit_nowhere(drawn: Callable[[Random], Graph], monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices of little shared memory: tiles that would be refused unplaced are placed, and refused by their place."""
    priced, too_large, refusals = search.Search.priced, search._too_large, 0

    def compared(self: search.Search, choice: Stitched, cut: StitchPlan) -> object:
        nonlocal refusals
        stitcher, regions = self._stitcher, self._stitcher.regions(choice.tiles)
        assert not isinstance(regions, Rejected)
        operands = [(v.value, num_elements(v.region) * v.dtype.itemsize) for v in regions.values if v.value in stitcher.shared_operands]
        mapped = [(cut.pieces[k].value, cut.pieces[k].num_bytes) for s in cut.stages if s.kind == "map" for k in s.pieces]
        is_too_large = too_large([*operands, *mapped], self._device) is not None
        outcome = priced(self, choice, cut)
        assert not is_too_large or isinstance(outcome, Rejected), f"{choice} of {stitcher.graph.name} is placed"
        refusals += is_too_large
        return outcome

    monkeypatch.setattr(search, "_too_large", lambda *_: None)
    monkeypatch.setattr(search.Search, "priced", compared)
    without_bounds(monkeypatch)
    for seed in range(8):
        for limit in (256, 2048, 24576):
            search.choose_stitch(drawn(Random(seed)), replace(H200, shared_bytes_per_block=limit))
    assert refusals
