"""The explanation at a terminal: every section appears, lines fit, are whole in pipes, and begin with the word to grep for."""
from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.pages.models import encoder, resnet
from tilefuse.driver.explain.explain import joined_explanations
from tilefuse.runtime.summary import bytes_text, places_of, steps_of, summary_lines, time_text, times_by_cause
from tilefuse.tools import cli
from tilefuse.tools.explain import explanation_lines
from tilefuse.tools.lines import cut_line, wrapped

EXPLANATION: dict[str, Any] = {
    "name": "softmax", "device": "h200", "unfused_kernels": 4, "unfused_bytes": 4096,
    "totals": {"kernels_us": 2.5, "library_us": 4.0, "num_at_least": 1, "us": 6.5, "unfused_us": 13.0, "kernel_bytes": 4096,
               "library_bytes": 2097152, "copy_bytes": 0, "bytes": 2101248, "unfused_bytes": 2101248},
    "kernels": [{
        "name": "k_n0", "step": "k0", "template": "row", "nodes": [f"n{i}" for i in range(9)], "bytes_read": 2048, "bytes_written": 2048,
        "limit_us": 0.25, "predicted_us": 2.5, "bound_by": "bandwidth", "notation": "y [GRID,WARP];",
        "figures": {"launch": 0.5, "global time": 2.0, "L2 time": 1.0, "bandwidth share": 0.125, "busy multiprocessors": 2},
        "launch": {"num_blocks": 2, "num_threads": 32, "shared_bytes": 3072, "shared_requested_bytes": 4096},
        "edges": [{"producer": "n0", "user": "n1", "level": "register"}, {"producer": "n1", "user": "n2", "level": "warp"},
                  {"producer": "n0", "user": "n2", "level": "register"}]}],
    "library": [{"operator": "aten.foo.default", "operands": ["a", "b"], "results": [[0, "c"]], "bytes": 2097152, "predicted_us": 4.0,
                 "at_least": True}],
    "rejected": [{"first": "n8", "second": "c[bold]\x1b[31m", "reason": "library-call", "detail": "foo is a library call"}] * 5,
    "num_rejected": 12, "fallbacks": [{"operator": "aten.foo", "reason": "no rule"}], "notes": ["a note"],
    "figures": {"launch": {"unit": "us", "origin": "measured here"}, "bandwidth share": {"unit": "1", "origin": "loads"}},
}


def test_the_summary_tells_counts_causes_and_places() -> None:
    text = "\n".join(summary_lines(EXPLANATION))
    for piece in ("6.50 us a call predicted, unfused 13.00 us",
                  "1 kernel (4 without fusion), 1 library call, 1 without a prediction, 1 fallback",
                  "2.0 MiB moved", "at least 4.00 us   62%  calls of foo (1 step)", "1.75 us   27%  memory below full bandwidth",
                  "0.50 us    8%  launches", "0.25 us    4%  memory at full bandwidth", "1. at least 4.00 us, 62%: foo (call 0)",
                  "runs in the framework: no rule", "12% of the bytes in flight", "2. 2.50 us, 38%: n0, n1",
                  "(5 such candidates)"):
        assert piece in text, f"{piece}\n{text}"


def test_lines_name_their_subject_and_hold_whole_names() -> None:
    lines = list(explanation_lines(EXPLANATION))
    (kernel,) = [line for line in lines if line.startswith("kernel k0:")]
    assert all(f"%n{i}" in kernel for i in range(9)) and "2 register, 1 warp" in kernel and "source k_n0" in kernel
    (call,) = [line for line in lines if line.startswith("call 0:")]
    assert "takes %a, %b" in call and "gives %c" in call and "aten.foo.default" in call
    assert "fallback aten.foo: no rule" in lines and "note: a note" in lines
    assert sum(line.startswith("not fused %n8") for line in lines) == 3 and any("2 more because of library-call" in line for line in lines)
    assert any("12 candidates, of which 5 are kept" in line for line in lines)
    assert not [line for line in lines if line.startswith(("template", "figures"))]


def test_all_is_told_when_asked_for() -> None:
    lines = list(explanation_lines(EXPLANATION, full=True))
    assert sum(line.startswith("not fused %n8") for line in lines) == 5
    assert "template k0: y [GRID,WARP]; (shared memory of a block: 3.0 KiB allocated, 4.0 KiB requested)" in lines
    assert any(line.startswith("figures k0: launch 0.5 us") and "bandwidth share 0.125" in line for line in lines)
    assert "origin of launch: measured here" in lines


def test_a_terminal_shows_the_costliest_steps_and_says_so() -> None:
    lines = list(explanation_lines(EXPLANATION, most_steps=1))
    assert "2 steps, the 1 costliest" in lines and any("1 steps more" in line for line in lines)
    assert [line[:6] for line in lines if line.startswith(("kernel", "call"))] == ["call 0"]


@pytest.mark.parametrize("model", (resnet, encoder))
def test_causes_of_a_real_model_add_up_to_its_prediction(model: Any) -> None:
    explanation = model().explain(json=True)
    steps = steps_of(explanation)
    assert len(steps) == len(explanation["steps"])
    assert sum(us for us, _, _ in times_by_cause(steps).values()) == pytest.approx(explanation["totals"]["us"], rel=1e-3)
    places = places_of(explanation)
    assert len(places) <= 5 and [p.us for p in places] == sorted((p.us for p in places), reverse=True)
    assert all(p.facts for p in places)


def test_a_model_in_parts_is_summed_up_and_its_parts_are_named() -> None:
    part = encoder().explain(json=True)
    joined = joined_explanations("both", "h200", [part, part], [("aten.foo", "no rule")], [])
    text = "\n".join(summary_lines(joined))
    assert "both on h200, in 2 parts" in text and f"{2 * len(part['kernels'])} kernels" in text and "k1 of part 2" in text
    assert sum(line.startswith("kernel") for line in explanation_lines(joined)) == 2 * len(part["kernels"])


def test_a_file_that_tells_little_has_a_summary() -> None:
    told = {"name": "p", "kernels": [{"name": "k", "bytes_read": 4, "bytes_written": 4, "nodes": ["a"]}], "library": []}
    assert summary_lines(told)[:2] == ["p on ?", "  1 kernel, 0 library calls"]
    assert list(explanation_lines(told))[1].startswith("kernel k: 0.00 us")


def test_lines_are_cut_or_wrapped_to_the_width() -> None:
    line = "    - kernel " + "name_" * 30 + " and words behind it \u5b57\u5b57\u5b57"
    assert len(cut_line(line, 60)) == 60 and cut_line(line, 60).endswith("...") and cut_line("short", 60) == "short"
    pieces = list(wrapped(line, 60))
    assert all(len(p) <= 60 for p in pieces) and pieces[1].startswith("      ")
    assert "".join(pieces).replace(" ", "") == line.replace(" ", "")
    wide = "\u5b57" * 40
    assert list(wrapped(wide, 60)) == ["\u5b57" * 30, "  " + "\u5b57" * 10] and cut_line(wide, 41) == "\u5b57" * 19 + "..."


def test_the_command_shows_no_escapes_of_a_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A name in a graph cannot hold one; a file of an explanation can."""
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(EXPLANATION | {"graph": {"inputs": [], "nodes": [], "results": [], "updates": []}}))
    assert cli.main(["explain", str(file)]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out and "c[bold]\\x1b[31m" in out and out.splitlines()[0].startswith("softmax on h200")
    assert cli.main(["explain", str(file), "--summary"]) == 0
    assert "kernel k0:" not in capsys.readouterr().out


SIZES = ["--shapes", "A:512x512,p:512,r:512"]
BICGK = str(Path(__file__).resolve().parents[3] / "examples" / "bicgk.blas")


@pytest.mark.parametrize("device", [["--target", "h200"], ["--device", "host"]], ids=["routines", "template"])
def test_a_script_is_explained_and_shown_like_a_model(device: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", BICGK, *SIZES, *device, "--summary"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("bicgk.blas on ") and "sgemv + sgemtv" in text and "at bicgk:6-7)" in text
    assert cli.main(["explain", BICGK, *SIZES, *device, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["graph"]["results"]
    pytest.importorskip("netron")
    assert cli.main(["view", BICGK, *SIZES, *device, "--out", str(tmp_path / "plan.html")]) == 0
    assert "sgemtv" in (tmp_path / "plan.html").read_text()


@pytest.mark.parametrize(("command", "piece"), [
    (["explain", BICGK], "--shapes A:1000x1000,p:1000,r:1000"),
    (["explain", BICGK, *SIZES, "--target", "h200", "--why", "q", "s"], "tilefuse blas"),
    (["run", BICGK], "`tilefuse blas` runs and times it"),
    (["view", BICGK, *SIZES, "--measure"], "`tilefuse blas` times it")])
def test_commands_say_which_one_a_script_is_for(command: list[str], piece: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(command) in (cli.USER, cli.UNSUPPORTED)
    assert piece in capsys.readouterr().err


def test_lines_stand_for_a_module_where_there_is_none() -> None:
    nodes = [{"name": n, "kind": "map", "place": f"/models/digits.py:{line}"} for n, line in (("a", 7), ("b", 9))]
    kernel = {"name": "k", "step": "k0", "nodes": ["a", "b"], "predicted_us": 2.0, "limit_us": 1.0}
    told = {"name": "p", "kernels": [kernel], "library": [], "graph": {"inputs": [], "nodes": nodes}}
    assert any(line.endswith("(k0, at digits.py:7-9)") for line in summary_lines(told))
    nodes[1]["place"] = "/models/other.py:9"
    assert any(line.endswith("(k0)") for line in summary_lines(told)), "lines of two files"


def test_values_of_two_parts_with_equal_names_are_two() -> None:
    def part(rejected: list[dict[str, str]]) -> dict[str, Any]:
        kernels = [{"name": f"k_{n}", "step": f"k{i}", "nodes": [n], "predicted_us": 2.0 - i, "limit_us": 1.0} for i, n in enumerate("ab")]
        return {"kernels": kernels, "library": [], "rejected": rejected, "graph": {"inputs": [], "nodes": []}}

    whole = part([{"first": "a", "second": "b", "reason": "domain-mismatch", "detail": "rows of 4 and of 8"}])
    other = {**part([]), "kernels": [k | {"name": f"{k['name']}_2"} for k in part([])["kernels"]]}
    facts = {p.steps[0].label: p.facts for p in places_of({"parts": [whole, other]})}
    assert any("with k1 of part 1 (" in fact for fact in facts["k0 of part 1"])
    assert not [fact for fact in facts["k0 of part 2"] if "not in one kernel" in fact]


def test_byte_counts() -> None:
    assert [bytes_text(n) for n in (0, 1023, 1024, 3 << 20, 5 << 30)] == ["0 B", "1023 B", "1.0 KiB", "3.0 MiB", "5.0 GiB"]


def test_times_have_the_unit_that_leaves_few_digits() -> None:
    assert [time_text(us) for us in (0.5, 3.14159, 163.46, 28037.4, 640308.7, 2.5e6)] == [
        "0.50 us", "3.14 us", "163.5 us", "28.04 ms", "640.3 ms", "2.50 s"]
