"""Prices of pipelined walks against times measured on an H200 and an H100: the records have near tiles of every case."""
from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from statistics import geometric_mean, quantiles

import pytest

from benchmarks.attention.tiles import NEAR, RECORDS, TimedTile, fitted, priced, timed_tiles, with_figures
from tilefuse.base.candidate import Rejected
from tilefuse.target.catalog import device_by_name
from tilefuse.target.device import H200
from tilefuse.templates.staged.walked.choose import WalkSearch, candidates
from tilefuse.templates.staged.walked.plan import WalkPlan
from tilefuse.templates.staged.walked.record import PipelinedWalk
from tilefuse.templates.staged.walked.walk_work import TurnScores

DEVICES = {name: device_by_name(name) for name in ("h100", "h200")}


@cache
def tiles_by_case() -> dict[tuple[str, str, str], list[TimedTile]]:
    """Every timed tile by case, device and run."""
    tiles = list(timed_tiles(RECORDS))
    return {key: [t for t in tiles if (t.case, t.device, t.run) == key] for key in dict.fromkeys((t.case, t.device, t.run) for t in tiles)}


def test_the_cheapest_tile_is_among_the_fastest() -> None:
    """Within 5 % of the fastest timed tile in nine tenths of the cases, and nowhere far from it."""
    losses = [min(tiles, key=lambda t: t.price_us(DEVICES[t.device]) or math.inf).measured_us / min(t.measured_us for t in tiles)
              for tiles in tiles_by_case().values()]
    assert len(losses) > 60
    assert sum(x <= NEAR for x in losses) >= 0.9 * len(losses) and max(losses) < 1.2 and geometric_mean(losses) < 1.02


def test_prices_are_near_their_times() -> None:
    """Half of all prices lie within a tenth of the measured time."""
    ratios = [us / t.measured_us for tiles in tiles_by_case().values() for t in tiles if (us := t.price_us(DEVICES[t.device]))]
    low, _, high = quantiles(ratios, n=4)
    assert low >= 0.9 and high <= 1.07
    assert len(ratios) > 360


@pytest.mark.parametrize(("case", "columns", "warpgroups"), [
    ("bf16/window1024/1x16x8192x64", 128, 2), ("f16/plain/4x16x4096x64", 112, 3), ("bf16/causal/4x16x4096x64", 96, 3),
    ("bf16/causal/4x16x4096x128", 128, 2), ("f16/bias/64x12x197x64", 112, 2)])
def test_tiles_that_plans_take(case: str, columns: int, warpgroups: int) -> None:
    """Among all tiles, not only those that were timed: few masked turns, scores of 160 columns and more never with two warpgroups here."""
    choice = priced(case).cheapest(H200)
    assert (choice.columns, choice.warpgroups) == (columns, warpgroups), choice


@pytest.mark.parametrize("case", ["bf16/window1024/1x16x8192x64", "f16/plain/4x16x4096x64", "bf16/causal/4x16x4096x128",
                                  "f16/bias/64x12x197x64"])
def test_no_price_is_below_its_bounds(case: str) -> None:
    """Every tile that is tried, those in bands among them."""
    search = WalkSearch(priced(case).form, {}, H200)
    checked = 0
    for choice in candidates(priced(case).form, {}, H200):
        bound = search.least(choice)
        if isinstance(bound, Rejected):
            continue
        ranked = search.ranked(choice, bound, None)
        assert not isinstance(ranked, Rejected)
        price, plan = ranked
        assert 0 < bound[0] <= price[0] and 0 < bound[1] <= price[1], choice
        assert plan.choice == replace(choice, blocks=plan.choice.blocks)
        checked += 1
    assert checked > 20


def planned(case: str, columns: int, warpgroups: int, left_slots: int = 2, bias_slots: int = 0) -> WalkPlan:
    """A tile's plan with its work."""
    plan = priced(case).plan(PipelinedWalk(columns, warpgroups, left_slots, 2, 1, 132, bias_slots=bias_slots), H200)
    assert isinstance(plan, WalkPlan), plan
    return plan


def cycles(plan: WalkPlan) -> float:
    """Cycles of the block with the most turns."""
    block, = plan.work.blocks
    return sum(s.busy_cycles + s.wait_cycles for s in block.tile)


def test_turns_that_a_mask_cuts_cost_their_comparisons() -> None:
    """Two masks of the same turns: the one with more comparisons takes longer, and without cut turns both take the same."""
    scores = priced("bf16/window1024/1x16x8192x64").scores
    assert isinstance(scores, TurnScores) and scores.cut.flops > scores.whole.flops
    plain = priced("f16/plain/4x16x4096x64").scores
    assert plain.cut == plain.whole == scores.whole
    narrow = with_figures(H200, {"mask_instructions": 0.0})
    choice = PipelinedWalk(128, 2, 2, 4, 16, 132)
    cheap, dear = (priced("bf16/window1024/1x16x8192x64").plan(choice, d) for d in (narrow, H200))
    assert isinstance(cheap, WalkPlan) and isinstance(dear, WalkPlan) and cycles(cheap) < cycles(dear)


def test_one_slot_of_queries_waits_for_each_tile() -> None:
    """The copy of the next tile's begins when a tile ends."""
    one, two = planned("f16/plain/4x16x4096x64", 128, 2, 1), planned("f16/plain/4x16x4096x64", 128, 2, 2)
    tiles, _ = one.most_loaded
    assert cycles(one) - cycles(two) == pytest.approx(tiles * H200.fitted.walks.left_wait_cycles)


def test_loads_wait_where_registers_are_taken() -> None:
    """A bias that threads load: wide turns leave few registers for loads in flight; a ring needs none."""
    figures = H200.fitted.walks
    slow = with_figures(H200, {"load_wait_cycles": 2 * figures.load_wait_cycles})
    waits = {}
    for columns in (112, 208):
        choice = PipelinedWalk(columns, 2, 2, 2, 1, 132)
        one, two = (priced("f16/bias/64x12x197x64").plan(choice, d) for d in (H200, slow))
        assert isinstance(one, WalkPlan) and isinstance(two, WalkPlan)
        waits[columns] = (cycles(two) - cycles(one)) / one.most_loaded[1]
    assert waits[208] > 2 * waits[112] > 0


def test_least_squares_find_figures_again() -> None:
    """From other shares they come back to prices that are as near."""
    tiles = [t for key, of_case in tiles_by_case().items() if key[0] in ("f16/plain/4x16x4096x128", "bf16/plain/4x16x4096x64",
                                                                        "bf16/plain/16x16x512x64") for t in of_case]
    away = {n: with_figures(d, {"busy_shares.1": 0.5, "busy_shares.2": 0.9}) for n, d in DEVICES.items()}

    def squares(value_by_name: dict[str, float]) -> float:
        return sum((t.price_us(with_figures(away[t.device], value_by_name)) / t.measured_us - 1) ** 2 for t in tiles)

    assert squares(fitted(tiles, ("busy_shares.1", "busy_shares.2"), away, 5)) < squares({}) / 5
