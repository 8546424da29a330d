"""Tiles of pipelined products: the search that stops early finds what trying all of them finds."""
from __future__ import annotations

import pytest

from tests.unit.templates.staged.pipelined.product_graphs import gated, pair, plain
from tests.unit.templates.staged.pipelined.row_graphs import soft
from tilefuse.domain.roofline import blocks_us, price_work
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.graph import Graph
from tilefuse.target.device import H200
from tilefuse.templates.levels import boundary_work
from tilefuse.templates.staged.pipelined.bounds.least_time import LeastTimes
from tilefuse.templates.staged.pipelined.choose import candidates, is_cheaper_unscattered
from tilefuse.templates.staged.pipelined.form import form_for
from tilefuse.templates.staged.pipelined.template import plan_of, schedule_product
from tilefuse.templates.staged.pipelined.thread_work import result_operations

FORMS = {
    "large": plain(4096, 4096, 4096), "results that take longer than products": gated(16384, 3072, 64), "few rows": plain(16, 4096, 4096),
    "few tiles": plain(256, 256, 8192), "batch": plain(512, 512, 64, lead=(64,)), "one tile": plain(33, 40, 72),
    "by threads": plain(67, 33, 71), "a gated pair": pair(512, 1024, 512), "rows in clusters": soft(8192, 1000, 2048),
}


def own_us(program: TileProgram) -> float:
    """Price of its work. Units: microseconds."""
    return price_work(plan_of(program).work, H200).us


@pytest.mark.parametrize("name", FORMS)
def test_no_other_tile_takes_less_time(name: str) -> None:
    """Every candidate's time is above its bound, and none is below that of the tile that is taken."""
    graph: Graph = FORMS[name]
    chosen = schedule_product(graph, {}, H200)
    assert isinstance(chosen, TileProgram)
    form = plan_of(chosen).form
    others = [p for c in candidates(form, H200) if isinstance(p := schedule_product(graph, {}, H200, c), TileProgram)]
    assert len(others) > 5
    flops, floor = result_operations(form, H200), price_work(boundary_work(form.graph), H200)
    for other in others:
        price_us, blocks, _ = LeastTimes(plan_of(other).form, flops, floor, H200).of(plan_of(other).choice)
        assert own_us(other) >= price_us * (1 - 1e-12)
        assert sum(blocks_us(b, H200) for b in plan_of(other).work.blocks) >= blocks * (1 - 1e-12)
    assert own_us(chosen) == min(map(own_us, others))
    # What the bounds of one tile leave behind for the next changes none.
    choices = list(candidates(form, H200))
    together = {c.swapped: LeastTimes(form_for(form, c.swapped), flops, floor, H200) for c in choices}
    for c in choices:
        assert together[c.swapped].of(c) == LeastTimes(form_for(form, c.swapped), flops, floor, H200).of(c)


@pytest.mark.parametrize(("rows", "columns", "inner", "scattered"), [
    (128, 768, 512, False), (8192, 1000, 512, False), (8192, 1000, 2048, True), (16384, 4096, 2048, True)])
def test_whether_scattered_clusters_are_cheapest(rows: int, columns: int, inner: int, scattered: bool) -> None:
    """The question has the answer of the whole search. Few clusters of many blocks run at once where hardware places them."""
    chosen = schedule_product(soft(rows, columns, inner), {}, H200)
    assert isinstance(chosen, TileProgram)
    assert plan_of(chosen).choice.scattered is scattered
    assert is_cheaper_unscattered(plan_of(chosen).form, H200) is not scattered
