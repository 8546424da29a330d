"""Replay of measured kernels: texts give their kernels back, prices count the conditions of a measurement, lists of plans are compared."""
from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.record import RESULTS, Record
from benchmarks.replay import fit, plans, regret, report
from benchmarks.replay.conditions import measured_parts, resident_share
from benchmarks.replay.kept import program_of, text_of
from benchmarks.replay.rows import half_of, replayed, terms_of
from benchmarks.tuning import CASES
from tilefuse.base.candidate import Rejected
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.dtype import F32
from tilefuse.ir.graph import Graph
from tilefuse.ir.text import parse_graph
from tilefuse.plan.price.cost import AnalyticCost
from tilefuse.target.device import H200
from tilefuse.templates.pattern import schedule_pattern

RECORD = RESULTS / "planner-h200-20261124-172723.json"
PRODUCT = """graph @g(%x: f32[64, 32], %w: f32[32, 48], %b: f32[48]) -> (f32[64, 48]) {
  %p: f32[64, 48] = library.matmul (%x, %w) {precision = "default", transpose_a = false, transpose_b = false}
  %y: f32[64, 48] = map [i, j] { tanh(add(%p[i, j], %b[j])) }
  return %y
}"""
MAPS = """graph @g(%x: f32[640, 64], %z: f32[64, 64], %u: f32[96, 33]) -> (f32[640, 64], f32[64, 64], f32[96]) {
  %a: f32[640, 64] = map [i, j] { tanh(%x[i, j]) }
  %b: f32[64, 64] = map [i, j] { tanh(%z[i, j]) }
  %s: f32[96] = reduce.sum [i] over [k < 33] { %u[i, k] }
  return %a, %b, %s
}"""


def program(graph: Graph, packing: bool = False) -> TileProgram:
    """The kernel that holds a whole graph."""
    found = schedule_pattern(graph, tuple(n.name for n in graph.nodes), {}, H200, packing=packing)
    assert isinstance(found, TileProgram), found
    return found


@pytest.mark.parametrize(("graph", "packing", "template"), [
    (CASES["softmax"][0](64, 512, F32), False, "rows"), (CASES["column_sum"][0](256, 64, F32), False, "columns"),
    (CASES["copy"][0](64, 48, F32), False, "pointwise"), (parse_graph(PRODUCT), False, "stitched"), (parse_graph(MAPS), True, "packed")])
def test_a_text_gives_its_kernel_back(graph: Graph, packing: bool, template: str) -> None:
    """Through JSON, as records keep it: the same notation, launch and price. Parts of different sizes share a body."""
    made = program(graph, packing)
    text = json.loads(json.dumps(text_of(made)))
    again = program_of(text, H200)
    assert isinstance(again, TileProgram) and again.template == template
    assert (again.notation, again.launch) == (made.notation, made.launch)
    assert AnalyticCost(H200).work(again) == AnalyticCost(H200).work(made)


def test_other_tiles_than_the_planner_takes_stay_those_of_the_text() -> None:
    """What was timed counts, not what would be chosen now; a launch that does not fit the notation is refused."""
    text = text_of(program(CASES["copy"][0](64, 48, F32)))
    changed = text | {"notation": text["notation"].replace("CTA_128", "CTA_64").replace("cta_size=128", "cta_size=64").replace(
        f"cta_num={text['launch'][0]}", f"cta_num={2 * text['launch'][0]}"), "launch": [2 * text["launch"][0], 64, 1]}
    made = program_of(changed, H200)
    assert isinstance(made, TileProgram) and made.launch.num_threads == 64
    assert isinstance(program_of(changed | {"launch": text["launch"]}, H200), Rejected)


def test_operands_leave_the_cache_as_their_sets_fill_it() -> None:
    """256 sets of 16 KiB stay in L2, 256 of 512 KiB do not, and the price lies between."""
    shares = [resident_share(num_bytes, H200) for num_bytes in (1 << 14, 1 << 17, 1 << 19)]
    assert shares[0] == 1.0 > shares[1] > shares[2] == 0.0
    small = measured_parts(program(CASES["copy"][0](64, 32, F32)), H200)[0]
    assert H200.graph_launch_us <= small < AnalyticCost(H200).cost(program(CASES["copy"][0](64, 32, F32))).us


def test_prices_count_the_waits_of_small_kernels() -> None:
    """A thread's operations and exchanges of reductions lie behind the traffic, and a launch passes while the kernel ahead ends."""
    for name, shape in (("softmax", (64, 512)), ("column_sum", (256, 64)), ("gelu", (32, 128))):
        made = program(CASES[name][0](*shape, F32)) if name in CASES else program(parse_graph(
            "graph @g(%x: f32[32, 128]) -> (f32[32, 128]) {\n  %y: f32[32, 128] = map [i, j] { tanh(%x[i, j]) }\n  return %y\n}"))
        parts = AnalyticCost(H200).parts(made)
        assert parts.serial_us > 0.0 and parts.starts_early, name


def test_the_record_replays_within_the_bounds_of_its_templates() -> None:
    """A quarter of the kernels of the last whole run: maps, rows and packed kernels within 0.8 to 1.25 at the quartiles."""
    record = Record.load(RECORD)
    cases = {label: case for n, (label, case) in enumerate(record.cases.items()) if "kernel" in case and n % 4 == 0}
    rows, refused = replayed(cases, H200)
    assert len(rows) > 80 and len(refused) <= 1 and {half_of(c) for c in cases.values()} == {"fit", "check"}
    for template in ("pointwise", "rows", "packed"):
        low, _, high = report.quartiles([r for r in rows if r.template == template])
        assert 0.8 <= low <= high <= 1.25, template
    assert report.rank_of(rows) > 0.97
    assert "predicted" in report.worst(rows, 3, H200) and "pointwise" in report.summary(rows) and terms_of(rows[0], H200)
    assert "fastest in" in regret.report(rows, H200)


def test_other_figures_change_the_price() -> None:
    """Names are paths below `device.fitted`."""
    other = fit.with_figures(H200, fit.figures_of_text("waits.operation_cycles=6,endings.last_block_us=2.5"))
    assert fit.figure_of(other, "waits.operation_cycles") == 6.0 and other.fitted.endings.last_block_us == 2.5
    case = next(c for c in Record.load(RECORD).cases.values() if c["template"] == "pointwise" and "kernel" in c)
    rows = {label: replayed({"a": case}, device)[0][0].us for label, device in (("now", H200), ("other", other))}
    assert rows["other"] > rows["now"]


def test_figures_are_fitted_to_one_half() -> None:
    """Starting from a wrong value, the fit comes back near the measured kernels."""
    record = Record.load(RECORD)
    gates = {label: case for label, case in record.cases.items() if label in ("plan-speech k1", "plan-speech k3", "plan-speech k154")}
    for case in gates.values():
        assert "kernel" in case
    wrong = fit.with_figures(H200, {"waits.operation_cycles": 0.5})
    if any(half_of(c) == "fit" for c in gates.values()):
        assert fit.fitted(gates, wrong, ["waits.operation_cycles"])["waits.operation_cycles"] > 1.5


def test_lists_of_plans_are_compared_step_by_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Names of values in a notation do not count; kernels that only one list has are printed with their times."""
    plans.write_list(tmp_path / "a.jsonl", "workloads", "plan-logistic$", H200)
    row = json.loads((tmp_path / "a.jsonl").read_text())
    assert row["name"] == "plan-logistic" and row["plans"][0]["steps"]
    assert plans.compare(tmp_path / "a.jsonl", tmp_path / "a.jsonl") == 0
    row["plans"][0]["steps"][0] = "rows other: [GRID]"
    (tmp_path / "b.jsonl").write_text(json.dumps(row) + "\n")
    assert plans.compare(tmp_path / "a.jsonl", tmp_path / "b.jsonl") == 1
    assert "+ " in capsys.readouterr().out
