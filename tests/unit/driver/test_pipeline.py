"""The order of passes of a compile: what options do to its texts, where it stops, what it leaves in the dump folder."""
from __future__ import annotations

import json
from pathlib import Path

import pytest

import tilefuse
from tests.laws.changed_graphs import CHANGED
from tests.unit.plan.graphs import softmax
from tilefuse.base import trace
from tilefuse.base.errors import OptionError, PipelineError
from tilefuse.base.options import Options
from tilefuse.driver.compile import prepare
from tilefuse.driver.pipeline import DEVICE_PIPELINE, context_of, device_pipeline, order_text, run_passes
from tilefuse.driver.reuse.known_programs import is_keepable
from tilefuse.ir.text import print_graph
from tilefuse.passes.manager import PASSES, DevicePass, PassContext, Pipeline
from tilefuse.target.device import H200
from tilefuse.tools import cli


def test_options_of_a_compile_become_options_of_its_passes() -> None:
    made = str(device_pipeline(Options(float32_products="tf32", channels_last="never")))
    assert "state-precision{products=tf32" in made and made.count("{channels_last=never}") == 4
    assert device_pipeline(Options(device_passes=made)) == device_pipeline(Options(float32_products="tf32", channels_last="never"))


def test_unfused_graphs_have_no_passes_for_fusion() -> None:
    names = [item.name for item in device_pipeline(Options(fuse=False)).passes]
    left_out = {item.name for item in Pipeline.parse(DEVICE_PIPELINE).passes} - set(names)
    default = {item.name for item in Pipeline.parse(DEVICE_PIPELINE).passes}
    assert left_out == {name for name, kind in PASSES.items() if issubclass(kind, DevicePass) and kind.for_fusion and name in default}
    assert names.count("plan-layouts") == 1


@pytest.mark.parametrize("stop", ["remove-dead-nodes", "separate-updates", "pad-products"])
def test_layouts_are_planned_wherever_the_order_stops(stop: str) -> None:
    seen: list[str] = []
    options = Options(stop_after=stop)
    context = context_of(H200, options)
    context.on_pass = lambda record: seen.append(record.name)
    graph = run_passes(CHANGED["pad-products"].graph, context, options)
    assert context.layouts.graph is graph and stop in seen
    assert ("split-convolution-biases" in seen) is (stop == "remove-dead-nodes")


@pytest.mark.parametrize(("given", "words"), [
    ({"stop_after": "pad-product"}, "did you mean pad-products"), ({"device_passes": "plan-layouts"}, "updated inputs apart"),
    ({"device_passes": "separate-updates,split-lon-scans"}, "did you mean split-long-scans")])
def test_wrong_orders_are_told(given: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        prepare(softmax(), constants={}, device=H200, options=Options(**given))  # type: ignore[arg-type]


def test_a_pass_that_reads_layouts_needs_them_planned() -> None:
    with pytest.raises(PipelineError, match="depends on the attribute 'layouts'.*\n.*plan-layouts"):
        Pipeline.parse("split-channel-sums,plan-layouts").run(softmax(), PassContext())


def test_an_order_of_ones_own_is_followed() -> None:
    case = CHANGED["pad-products"].graph
    without = DEVICE_PIPELINE.replace("pad-products,", "")
    assert any(n.name.endswith("_padded") for n in prepare(case, constants={}, device=H200, options=Options()).graph.nodes)
    left = prepare(case, constants={}, device=H200, options=Options(device_passes=without))
    assert not any(n.name.endswith("_padded") for n in left.graph.nodes)


def test_programs_of_a_users_pass_are_not_kept_whichever_option_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from tilefuse.driver.reuse import known_programs

    monkeypatch.setattr(known_programs, "enabled", True)
    monkeypatch.setattr(known_programs, "PASSES", {**PASSES})

    @tilefuse.graph_pass("of-a-user")
    def of_a_user(graph: object) -> object:
        return graph

    try:
        known_programs.PASSES["of-a-user"] = PASSES["of-a-user"]
    finally:
        del PASSES["of-a-user"]
    assert is_keepable(Options(device_passes=DEVICE_PIPELINE)) and is_keepable(Options())
    assert not is_keepable(Options(passes="of-a-user")) and not is_keepable(Options(device_passes="of-a-user,plan-layouts"))


def test_the_dump_has_the_graph_after_each_pass_that_changed_it(tmp_path: Path) -> None:
    options = Options(dump_dir=str(tmp_path))
    with trace.tracing(trace.Trace(options)):
        prepare(CHANGED["pad-products"].graph, constants={}, device=H200, options=options)
    files = sorted(p.name for p in (tmp_path / "g_0" / "passes").iterdir())
    number = order_text(Options()).split(",").index("pad-products") + 1
    assert f"{number}_pad-products.txt" in files and not any("order-updates" in name for name in files)
    assert "%w_padded" in (tmp_path / "g_0" / "1_passed.txt").read_text()


def test_the_command_line_prints_the_order_and_rewrites_for_a_device(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["opt", "--order", "-O", "fuse=false", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"order": order_text(Options(fuse=False))}
    path = tmp_path / "graph.txt"
    path.write_text(print_graph(CHANGED["pad-products"].graph))
    for flags, is_padded in ((["--target", "h200"], True), ([], False), (["--passes", "pad-products"], False),
                             (["--passes", "pad-products", "--target", "h200"], True)):
        assert cli.main(["opt", str(path), *flags]) == 0
        assert ("_padded" in capsys.readouterr().out) is is_padded
