"""Prices of walks between several products against times measured on an H200."""
from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import benchmarks
from benchmarks.attention.cases import attention_of
from benchmarks.attention.gradients import graph_of
from tests.unit.templates.staged.recomputed.back_graphs import Gradient
from tilefuse.domain.roofline import price_work
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.dtype import BF16
from tilefuse.plan.walks import find_walks
from tilefuse.target.device import H200
from tilefuse.templates.levels import boundary_work
from tilefuse.templates.pattern import pattern_graph
from tilefuse.templates.staged.recomputed.back_work import with_work
from tilefuse.templates.staged.recomputed.choose import fit_back
from tilefuse.templates.staged.recomputed.form import BackForm, back_form
from tilefuse.templates.staged.recomputed.plan import BackPlan
from tilefuse.templates.staged.recomputed.record import WalkedBack
from tilefuse.templates.staged.recomputed.template import schedule_back, walked_back_of

RECORD = Path(benchmarks.__path__[0]) / "results" / "gradients-h200-20261129-kernels.jsonl"
CASES = ("bf16/causal/4x16x4096x64", "f16/plain/4x16x4096x128", "bf16/causal/16x16x1024x128", "f16/plain/64x16x128x128",
         "f16/plain/64x12x197x64")


@cache
def forms(case: str) -> dict[int, BackForm]:
    """The queries' and the keys' kernel of a case, by their weighted products."""
    graph = graph_of(attention_of(case))
    found = [back_form(pattern_graph(graph, walk), {}) for walk in find_walks(graph, H200)]
    return {len(f.online.weighted): f for f in found if isinstance(f, BackForm)}


def planned(case: str, weighted: int, choice: WalkedBack) -> BackPlan:
    """A kernel of a case with its work."""
    form = forms(case)[weighted]
    plan = fit_back(form, {}, choice, H200)
    assert isinstance(plan, BackPlan), plan
    return with_work(plan, boundary_work(form.online.graph), H200)


def test_prices_are_near_their_times() -> None:
    """Kernels of long and short rows, wide and narrow turns, plain and causal: all within a quarter, an eighth on average."""
    rows = [r for r in map(json.loads, RECORD.read_text(encoding="utf-8").splitlines()) if r["who"] == "ours" and r["case"] in CASES]
    logs = []
    for r in rows:
        for n, (kernel, us) in enumerate(zip(r["kernels"][1:], r["kernel_us"][1:], strict=True)):
            choice = WalkedBack(**{name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", kernel)})
            logs.append(math.log(price_work(planned(r["case"], n + 1, choice).work, H200).us / us))
    assert len(logs) == 2 * len(CASES) and max(map(abs, logs)) < 0.25
    assert math.sqrt(sum(x * x for x in logs) / len(logs)) < 0.125


def test_scores_of_few_columns_wait_for_both_operands() -> None:
    """Two thirds of the columns take more than three quarters of the tensor cores' time: instructions read their left operand again."""
    def tensor(columns: int) -> float:
        turn = planned("f16/plain/4x16x4096x128", 2, WalkedBack(columns, 2, 1, 2, 1, 132)).work.around[-1]
        return sum(cycles for path in turn.paths[2:3] for _, cycles in path)

    assert 0.75 * tensor(48) < tensor(32) < tensor(48)


def test_traffic_does_not_hide_the_start_and_the_last_turn() -> None:
    """Short rows: the bytes decide, and what is around them comes on top."""
    plan = planned("f16/plain/64x16x128x128", 2, WalkedBack(32, 2, 2, 2, 1, 132))
    assert price_work(plan.work, H200).us > price_work(replace(plan.work, around=()), H200).us + 1.0


def test_copies_bring_biases_where_that_is_cheaper() -> None:
    """A bias of rows and columns comes through the ring in the cheapest tiles of both kernels; rows of 81 elements have no tensor map."""
    for of in ("keys", "queries"):
        program = schedule_back(Gradient(of, ("dense",), 384, 512, 512, 64, BF16).graph(), {}, H200)
        assert isinstance(program, TileProgram), program
        plan = walked_back_of(program)
        assert plan.choice.bias_ring and len(plan.biases) == 1 and plan.biases[0].is_turned == (of == "keys") and not plan.loads
        loaded = fit_back(plan.form, {}, replace(plan.choice, bias_ring=False), H200)
        assert isinstance(loaded, BackPlan) and loaded.loads == 1
        work = with_work(loaded, boundary_work(plan.form.online.graph), H200).work
        assert price_work(work, H200).us > 1.05 * price_work(plan.work, H200).us
    odd = schedule_back(Gradient("queries", ("dense",), 384, 512, 81, 64, BF16).graph(), {}, H200)
    assert isinstance(odd, TileProgram) and not walked_back_of(odd).biases and walked_back_of(odd).loads == 1
