"""Tuning times the library's calls of products: stored by their key, used by later compiles, compared with the kernels that hold them."""
from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.driver.measure.test_measured_planning import NO_TIME, Rule, memory, product_and_map, told
from tilefuse.base.candidate import Rejected
from tilefuse.base.options import Options
from tilefuse.domain.tile import TileProgram
from tilefuse.driver import compile as compile_
from tilefuse.driver.measure import measure
from tilefuse.driver.measure.tune import Outcome, Tuner
from tilefuse.driver.measure.tuning_results import TuningResults, export_results, import_results
from tilefuse.driver.planning import plan_on_device
from tilefuse.driver.reuse import known_programs
from tilefuse.ir.graph import Graph
from tilefuse.ir.text import parse_graph, print_graph
from tilefuse.plan.pattern import MEASUREMENT, Plan
from tilefuse.plan.planner import plan_graph
from tilefuse.plan.price.lone_call import lone_call_of
from tilefuse.plan.price.measure import Timing, is_complex
from tilefuse.plan.price.products import library_product_us
from tilefuse.runtime.calls.library_version import library_version
from tilefuse.target.device import H200
from tilefuse.tools import cli

# By prediction a kernel holds the product of 512 rows, and the library computes that of 1024.
HELD, CALLED = product_and_map(512), product_and_map()


@pytest.fixture
def options(tmp_path: Path) -> Options:
    return Options(cache_dir=str(tmp_path / "cache"))


def compiled(graph: Graph, options: Options) -> Plan:
    return plan_on_device(graph, {}, H200, options, result_layouts={}, layouts={})


def tuned(graph: Graph, measurer: Rule, options: Options, seconds: float = 1e6, again: bool = False,
          clock: Sequence[float] = ()) -> tuple[Tuner, list[Outcome]]:
    ticks = iter(clock)
    tuner = Tuner(H200, measurer, memory(), TuningResults.of(H200, options), clock=lambda: next(ticks, 0.0))
    return tuner, list(tuner.run(lambda results: compiled(graph, replace(options, tuned=results)), seconds, again))


def test_a_call_that_is_faster_than_the_tuned_kernel_takes_its_place(options: Options) -> None:
    assert not compiled(HELD, options).library_calls
    tuner, outcomes = tuned(HELD, Rule(call_us=3.0, kernel_us=9.0), options)
    (call,), (compared,) = tuner.calls, tuner.comparisons
    assert call.products == ("p",) and call.timed.us == 3.0 and not call.known
    assert compared.kernel == outcomes[0].kernel and (compared.kernel_us, compared.calls_us) == (9.0, 3.0)
    assert 0.0 < compared.others_us < 6.0 and not compared.is_kernel_faster
    plan = compiled(HELD, options)
    assert [c.operator for c in plan.library_calls] == ["matmul"] and plan.timed_calls == {"p": 3.0}
    assert told(plan)["time_source"] == MEASUREMENT and told(plan)["predicted_us"] == 3.0
    assert "1 of 1 products that a kernel may hold have a measured call (tilefuse tune)" in plan.notes


def test_a_kernel_that_is_faster_than_the_timed_call_takes_its_place_and_is_tuned_too(options: Options) -> None:
    """The call leads the first plan, its time leads to a kernel, and that kernel is tuned in the same run."""
    assert compiled(CALLED, options).library_calls
    rule = Rule(call_us=40.0, kernel_us=9.0)
    tuner, outcomes = tuned(CALLED, rule, options)
    (compared,) = tuner.comparisons
    assert compared.is_kernel_faster and compared.kernel in {o.kernel for o in outcomes} and len(rule.calls) == 1
    plan = compiled(CALLED, options)
    assert not plan.library_calls and plan.kernels[0].cost.source == MEASUREMENT and plan.kernels[0].cost.us == 9.0
    assert compiled(CALLED, replace(options, tuned=False)).library_calls, "without tuning results the prediction decides"


def test_a_measured_kernel_that_keeps_its_product_stays(options: Options) -> None:
    tuner, _ = tuned(HELD, Rule(call_us=30.0, kernel_us=9.0), options)
    assert [c.is_kernel_faster for c in tuner.comparisons] == [True]
    assert not compiled(HELD, options).library_calls and compiled(HELD, options).timed_calls == {"p": 30.0}


def test_the_row_is_stored_under_the_calls_key_beside_its_prediction(options: Options) -> None:
    tuned(HELD, Rule(3.0, 9.0), options)
    (row,) = TuningResults.of(H200, options).calls()
    assert row.key == lone_call_of("p", HELD, {}, library_version(H200.kind)).key
    assert row.predicted_us == library_product_us(HELD.nodes[0], HELD, H200) and row.label == "matmul f32 512x1024 by 1024x64"
    assert all(t.key != row.key for t in TuningResults.of(H200, options).all())


def test_a_timed_call_is_not_timed_again_unless_asked(options: Options) -> None:
    tuned(HELD, Rule(3.0, 9.0), options)
    later = Rule(5.0, 9.0)
    tuner, _ = tuned(HELD, later, options)
    assert not later.calls and tuner.calls[0].known and tuner.calls[0].timed.us == 3.0
    tuner, _ = tuned(HELD, later, options, again=True)
    assert len(later.calls) == 1 and tuner.calls[0].timed.us == 5.0 and compiled(HELD, options).timed_calls == {"p": 5.0}


def test_a_call_that_does_not_run_is_named_with_its_reason(options: Options) -> None:
    tuner, outcomes = tuned(HELD, Rule(NO_TIME, 9.0), options)
    assert outcomes and not tuner.calls and not TuningResults.of(H200, options).calls()
    assert ("call matmul for %p", "does-not-run: CUBLAS_STATUS_NOT_SUPPORTED") in tuner.untuned


# A product with a map, whose call takes longer, and two products with a softmax between them.
TWO = parse_graph("""graph @two(%x: f32[2048, 512], %w: f32[512, 64], %q: f32[8, 256, 64], %k: f32[8, 64, 256], %v: f32[8, 256, 64])
    -> (f32[2048, 64], f32[8, 256, 64]) {
  %p: f32[2048, 64] = library.matmul (%x, %w) {precision = "default", transpose_a = false, transpose_b = false}
  %y: f32[2048, 64] = map [i, j] { exp(%p[i, j]) }
  %s: f32[8, 256, 256] = library.matmul (%q, %k) {precision = "default", transpose_a = false, transpose_b = false}
  %m: f32[8, 256] = reduce.max [b, i] over [k < 256] { %s[b, i, k] }
  %e: f32[8, 256, 256] = map [b, i, j] { exp(sub(%s[b, i, j], %m[b, i])) }
  %t: f32[8, 256] = reduce.sum [b, i] over [k < 256] { %e[b, i, k] }
  %n: f32[8, 256, 256] = map [b, i, j] { div(%e[b, i, j], %t[b, i]) }
  %z: f32[8, 256, 64] = library.matmul (%n, %v) {precision = "default", transpose_a = false, transpose_b = false}
  return %y, %z
}""")


def test_products_of_complex_patterns_are_timed_first(options: Options) -> None:
    plan = compiled(TWO, options)
    complex_nodes = {n for k in plan.kernels if is_complex(k.program.graph) for n in k.pattern.nodes}
    assert {"s", "z"} <= complex_nodes and "p" not in complex_nodes
    rule = Rule(3.0, 9.0)
    tuner = Tuner(H200, rule, memory(), TuningResults.of(H200, options), clock=lambda: 0.0)
    tuner.time_calls(plan, 1.0)
    assert [c.node.name for c in rule.calls][-1] == "p" and {c.node.name for c in rule.calls} == {"p", "s", "z"}
    assert library_product_us(TWO.node_by_name["p"], TWO, H200) > library_product_us(TWO.node_by_name["z"], TWO, H200)


def test_calls_stop_when_their_time_is_over(options: Options) -> None:
    """The clock jumps after the first call."""
    rule, ticks = Rule(3.0, 9.0), iter([0.0, 0.0])
    tuner = Tuner(H200, rule, memory(), TuningResults.of(H200, options), clock=lambda: next(ticks, 100.0))
    tuner.time_calls(compiled(TWO, options), 10.0)
    assert len(rule.calls) == len(tuner.calls) == 1
    assert [why for _, why in tuner.untuned] == ["no time was left for it"] * 2


def test_an_operand_that_is_a_view_has_the_same_key_in_later_compiles(options: Options) -> None:
    turned = parse_graph("""graph @g(%x: f32[1024, 512], %w: f32[1024, 64]) -> (f32[512, 64]) {
      %t: f32[512, 1024] = map [i, j] { %x[j, i] }
      %p: f32[512, 64] = library.matmul (%t, %w) {precision = "default", transpose_a = false, transpose_b = false}
      return %p
    }""")
    rule = Rule(3.0, 9.0)
    tuned(turned, rule, options)
    assert [c.layouts for c in rule.calls] == [{"t": (1, 512)}] and compiled(turned, options).timed_calls == {"p": 3.0}


def test_measured_prices_leave_no_trace_in_stored_judgements(options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_programs, "enabled", True)
    tuned(HELD, Rule(3.0, 9.0), options)
    assert compiled(HELD, options).library_calls
    TuningResults.of(H200, options).clear()
    before, after = plan_graph(HELD, {}, H200, Options()), compiled(HELD, options)
    assert [(k.program, k.cost) for k in after.kernels] == [(k.program, k.cost) for k in before.kernels]


def test_an_interrupt_keeps_the_calls_that_were_timed(options: Options) -> None:
    class Interrupted(Rule):
        def measure(self, program: TileProgram) -> Timing | Rejected:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tuned(HELD, Interrupted(3.0, 9.0), options)
    assert [t.us for t in TuningResults.of(H200, options).calls()] == [3.0]


def test_times_of_calls_travel_with_the_other_results(options: Options, tmp_path: Path) -> None:
    """A time that the other machine has is kept: it was measured there."""
    tuned(HELD, Rule(3.0, 9.0), options)
    there, path = Options(cache_dir=str(tmp_path / "there")), tmp_path / "results.jsonl"
    num_rows = len(TuningResults.of(H200, options).all()) + 1
    assert export_results(options, path) == num_rows
    assert import_results(there, path) == num_rows and import_results(there, path) == 0
    assert TuningResults.of(H200, there).calls() == TuningResults.of(H200, options).calls()
    assert compiled(HELD, there).timed_calls == {"p": 3.0}


@pytest.mark.parametrize("other", [lambda: product_and_map(512, 1024, 32), lambda: product_and_map(512, 512)])
def test_a_product_of_other_sizes_keeps_its_prediction(other: Callable[[], Graph], options: Options) -> None:
    tuned(HELD, Rule(3.0, 9.0), options)
    assert compiled(other(), options).timed_calls == {}


def test_the_command_shows_calls_and_the_faster_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                     capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TILEFUSE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(compile_, "present_device", lambda *_: (H200, "cuda"))
    monkeypatch.setattr(measure, "KernelMeasurer", lambda *_: Rule(3.0, 9.0))
    model = tmp_path / "product.txt"
    model.write_text(print_graph(HELD))
    assert cli.main(["tune", str(model), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert [(c["products"], c["us"], c["known"]) for c in shown["calls"]] == [(["p"], 3.0, False)]
    assert [(c["products"], c["calls_us"], c["is_kernel_faster"]) for c in shown["kernel_or_call"]] == [(["p"], 3.0, False)]
    assert cli.main(["tune", str(model)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "1 library call timed" in shown and "matmul f32 512x1024 by 64x1024 (known)" in shown and "kernel or call" in shown
    assert cli.main(["tuning", "list"]) == 0
    assert "call matmul f32 512x1024 by 64x1024" in " ".join(capsys.readouterr().out.split())
