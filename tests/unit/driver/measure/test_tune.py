"""Tuning: the fastest candidate is stored for the form, bad ones are counted, and an interrupt loses nothing."""
from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

import tilefuse
from tests.unit.plan.price.test_measure import Memory
from tests.unit.templates.test_by_hand import SOFTMAX
from tilefuse.base.candidate import Reason, Rejected
from tilefuse.base.errors import UserError
from tilefuse.base.options import Options
from tilefuse.domain.tile import TileProgram
from tilefuse.driver.measure.tune import BATCH, Outcome, Tuner, speed_up
from tilefuse.driver.measure.tuning_results import Tuned, TuningResults, export_results, import_results
from tilefuse.ir.graph import Graph
from tilefuse.ir.text import parse_graph, print_graph
from tilefuse.plan.pattern import Plan
from tilefuse.plan.planner import plan_graph
from tilefuse.plan.price.cost import AnalyticCost
from tilefuse.plan.price.measure import Timing
from tilefuse.plan.price.tuned import form_of, with_tuned
from tilefuse.runtime.stores.measurements import Journal
from tilefuse.target.device import H200
from tilefuse.templates.rows.modes import Rows
from tilefuse.tools import cli

LONG = parse_graph(print_graph(SOFTMAX).replace("1024", "16384"))


class Stopwatch:
    """Threads a row decide the time: 256 take 1 us, others 10; `bad` ones do not run; raises an interrupt at its `stop`th candidate."""

    def __init__(self, stop: int = 10**6, bad: int = 0) -> None:
        self.stop, self.bad, self.measured = stop, bad, 0

    def prepare(self, programs: Sequence[TileProgram]) -> None:
        assert len(programs) <= BATCH

    def measure(self, program: TileProgram) -> Timing | Rejected:
        self.measured += 1
        if self.measured == self.stop:
            raise KeyboardInterrupt
        assert isinstance(program.choice, Rows)
        if program.choice.threads == self.bad:
            return Rejected(Reason.DOES_NOT_RUN, "cuLaunchKernelEx failed")
        return Timing(1.0 if program.choice.threads == 256 and program.choice.cluster == 1 else 10.0, 0.1, 11)


def planned(graph: Graph = SOFTMAX) -> Plan:
    return plan_graph(graph, {}, H200, Options())


def tuned(stopwatch: Stopwatch, results: TuningResults, records: Memory | None = None, seconds: float = 1e6,
          clock: Sequence[float] = (), plan: Plan | None = None) -> list[Outcome]:
    ticks = iter(clock)
    tuner = Tuner(H200, stopwatch, records or Memory(), results, clock=lambda: next(ticks, 0.0))
    return list(tuner.tune(plan or planned(), seconds))


def renamed() -> Graph:
    text = print_graph(SOFTMAX).replace("%m", "%top").replace("%e", "%scaled")
    return parse_graph(text.replace("%s:", "%total:").replace("%s[", "%total["))


def test_the_fastest_template_is_stored_and_used_for_every_pattern_of_the_form() -> None:
    results = TuningResults(Journal(None))
    (found,) = tuned(Stopwatch(), results)
    assert found.tuned.us == 1.0 and found.tuned.base_us == 10.0 and found.tuned.done and not found.known
    assert "CTA_256" in found.tuned.template and "n0 [" in found.tuned.template
    assert speed_up([found]) == 10.0
    for graph in (SOFTMAX, renamed()):
        made = with_tuned(planned(graph), results.template, H200, AnalyticCost(H200))
        assert isinstance(made.kernels[0].program.choice, Rows) and made.kernels[0].program.choice.threads == 256
        assert made.notes and made.kernels[0].program.name != planned(graph).kernels[0].program.name
    assert tuned(Stopwatch(), results)[0].known, "tuned to the end"


def test_a_form_knows_shapes_and_layouts_but_no_names() -> None:
    one, other = planned().programs[0], planned(renamed()).programs[0]
    assert form_of(one).key == form_of(other).key and form_of(one).nodes != form_of(other).nodes
    longer = planned(parse_graph(print_graph(SOFTMAX).replace("1024", "2048"))).programs[0]
    assert form_of(longer).key != form_of(one).key


def test_a_stale_result_is_passed_over() -> None:
    plan = planned()
    for text in ("nonsense", "n0 [GRID,CTA_4096];", "n9 [GRID,CTA_64];"):
        assert with_tuned(plan, lambda _, text=text: text, H200, AnalyticCost(H200)) is plan  # type: ignore[misc]
    assert with_tuned(plan, lambda _: None, H200, AnalyticCost(H200)) is plan


def test_candidates_that_do_not_run_are_counted_with_their_reason() -> None:
    (found,) = tuned(Stopwatch(bad=64), TuningResults(Journal(None)))
    assert found.tuned.rejected["does-not-run"] > 0 and found.tuned.us == 1.0


def test_a_kernel_that_does_not_run_itself_is_left_alone() -> None:
    plan = planned()
    choice = plan.kernels[0].program.choice
    assert isinstance(choice, Rows)
    tuner = Tuner(H200, Stopwatch(bad=choice.threads), Memory(), TuningResults(Journal(None)), clock=lambda: 0.0)
    assert list(tuner.tune(plan, 1e6)) == []
    ((kernel, why),) = tuner.untuned
    assert kernel == plan.kernels[0].program.name and "does not run itself" in why and "cuLaunchKernelEx failed" in why


class FewBlocks(Stopwatch):
    """Launches of few blocks take least."""

    def measure(self, program: TileProgram) -> Timing | Rejected:
        return Timing(float(program.launch.num_blocks), 0.1, 11)


def test_packed_kernels_are_tuned_part_by_part_and_known_by_other_names() -> None:
    """Two flat updates of one body and a sum of rows in one launch."""
    text = """graph @parts(%a: f32[3000], %b: f32[640], %x: f32[64, 256]) -> (f32[3000], f32[640], f32[64]) {
      %ua: f32[3000] = map [i] { mul(%a[i], 0.5:f32) }
      %ub: f32[640] = map [i] { mul(%b[i], 0.5:f32) }
      %rx: f32[64] = reduce.sum [i] over [k < 256] { %x[i, k] }
      return %ua, %ub, %rx
    }"""
    results = TuningResults(Journal(None))
    plan = planned(parse_graph(text))
    (found,) = tuned(FewBlocks(), results, plan=plan)
    assert plan.programs[0].template == "packed" and found.tuned.done and found.tuned.us < found.tuned.base_us
    assert found.tuned.template.startswith("pack {") and " ua " not in found.tuned.template
    for other in (text, text.replace("ua", "first").replace("rx", "total")):
        made = with_tuned(planned(parse_graph(other)), results.template, H200, AnalyticCost(H200))
        assert made.kernels[0].program.launch.num_blocks == found.tuned.us < plan.programs[0].launch.num_blocks


def test_an_interrupt_keeps_what_was_found_and_the_next_run_goes_on(tmp_path: Path) -> None:
    path, records = tmp_path / "tuned.jsonl", Memory()
    with pytest.raises(KeyboardInterrupt):
        tuned(Stopwatch(stop=5), TuningResults(Journal(path)), records)
    (kept,) = TuningResults(Journal(path)).all()
    assert not kept.done and kept.trials == 4 and len(records.by_key) == 3
    again = Stopwatch()
    (found,) = tuned(again, TuningResults(Journal(path)), records)
    whole = Stopwatch()
    tuned(whole, TuningResults(Journal(None)))
    assert found.tuned.done and again.measured == whole.measured - 3, "what was timed is not timed again, the base excepted"


def test_time_is_kept_and_an_unfinished_kernel_says_so() -> None:
    """The clock jumps past the deadline after the first batch; a kernel of many candidates is not done by then."""
    (found,) = tuned(Stopwatch(), TuningResults(Journal(None)), seconds=10.0, clock=[0.0, 0.0, 0.0, 100.0, 100.0], plan=planned(LONG))
    assert not found.tuned.done and found.tuned.trials <= 1 + BATCH
    assert tuned(Stopwatch(), TuningResults(Journal(None)), seconds=10.0, clock=[0.0, 50.0, 50.0]) == []


def test_results_travel_as_one_file(tmp_path: Path) -> None:
    here, there = Options(cache_dir=str(tmp_path / "a")), Options(cache_dir=str(tmp_path / "b"))
    results = TuningResults.of(H200, here)
    results.keep(Tuned("k" * 32, "softmax", "n0 [GRID];", 2.0, 3.0, 7, True, {"registers": 2}))
    assert export_results(here, tmp_path / "f.jsonl") == 1
    assert import_results(there, tmp_path / "f.jsonl") == 1 and import_results(there, tmp_path / "f.jsonl") == 0
    assert TuningResults.of(H200, there).all() == results.all()


@pytest.mark.parametrize("text", [
    "x", "[]", '{"device": "h200-132"}',
    '{"device": "../x", "key": "k", "label": "l", "template": "t", "us": 1, "base_us": 1, "trials": 1, "done": true}'])
def test_what_holds_no_results_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "f.jsonl").write_text(text)
    with pytest.raises(UserError, match="holds no tuning results"):
        import_results(Options(cache_dir=str(tmp_path / "a")), tmp_path / "f.jsonl")


def test_tuning_on_the_host_from_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                                  capsys: pytest.CaptureFixture[str]) -> None:
    """Real kernels are compiled and timed; the next compile takes the stored template and computes the same."""
    monkeypatch.setenv("TILEFUSE_CACHE_DIR", str(tmp_path / "cache"))
    model = tmp_path / "softmax.txt"
    model.write_text(print_graph(SOFTMAX))
    assert cli.main(["tune", str(model), "--device", "host", "--seconds", "60", "--json"]) == 0
    (kernel,) = json.loads(capsys.readouterr().out)["kernels"]
    assert kernel["done"] and kernel["trials"] > 1 and kernel["us"] <= kernel["base_us"]
    x = torch.rand(64, 1024)
    assert torch.allclose(tilefuse.compile(SOFTMAX, device="host")(x)[0], torch.softmax(x, -1), atol=1e-6)
    assert cli.main(["tuning", "list"]) == 0 and "1 tuning result " in capsys.readouterr().out.replace("\n", " ")
    assert cli.main(["tuning", "export", str(tmp_path / "f.jsonl")]) == 0
    assert cli.main(["tuning", "clear"]) == 0 and "1 result removed" in capsys.readouterr().err
    assert cli.main(["tuning", "import", str(tmp_path / "f.jsonl")]) == 0 and "1 result added" in capsys.readouterr().err
    assert cli.main(["tuning", "import", str(tmp_path / "nowhere")]) == 2
    assert cli.main(["tune", str(model), "--seconds", "0"]) == 2
