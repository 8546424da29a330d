"""Plans and templates in files, and --why, on the command line."""
from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.tools.test_cli import SOFTMAX, Capture
from tilefuse.tools import cli


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "softmax.txt"
    path.write_text(SOFTMAX)
    return str(path)


def test_a_printed_plan_is_read_again(model: str, tmp_path: Path, capsys: Capture) -> None:
    assert cli.main(["explain", model, "--target", "h200", "--plan-text"]) == 0
    text = capsys.readouterr().out
    plan = tmp_path / "plan.txt"
    plan.write_text(text)
    assert cli.main(["explain", model, "--target", "h200", "--plan", str(plan), "--json"]) == 0
    assert [k["generator"] for k in json.loads(capsys.readouterr().out)["kernels"]] == ["text"]
    assert cli.main(["compile", model, "--target", "h200", "--plan", str(plan), "--emit", str(tmp_path / "out")]) == 0


def test_an_edited_plan_runs_on_the_host(model: str, tmp_path: Path, capsys: Capture) -> None:
    plan = tmp_path / "plan.txt"
    plan.write_text("""plan @softmax for host objective 1.0us unfused 1.0us {
      kernel k0 = {%m} -> {%m} by me cost 1.0us from x as a
      kernel k1 = {%e, %s, %y} -> {%y} by me cost 1.0us from x as b
      edge %e -> %s in k1 register
      edge %e -> %y in k1 register
      edge %s -> %y in k1 register
    }""")
    assert cli.main(["run", model, "--device", "host", "--plan", str(plan), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["results"]["y"]["max"] <= 1
    plan.write_text(plan.read_text().replace("%m} -> {%m}", "%q} -> {%q}"))
    assert cli.main(["run", model, "--device", "host", "--plan", str(plan)]) == 2
    assert "kernel k0 names %q" in capsys.readouterr().err


def test_a_template_in_a_file_changes_the_kernel(model: str, tmp_path: Path, capsys: Capture) -> None:
    template = tmp_path / "t.txt"
    template.write_text("# half a warp a row\ns [GRID-CTA_2,WARP_2]W; vector=1;\n")
    assert cli.main(["explain", model, "--target", "h200", "--template", str(template), "--json"]) == 0
    (kernel,) = json.loads(capsys.readouterr().out)["kernels"]
    assert kernel["launch"]["num_threads"] == 4 and "s [GRID-CTA_2,WARP_2]W;" in kernel["notation"]


@pytest.mark.parametrize(("text", "message"), [
    ("s [GRID,CTB_4];", "t.txt:1:9"), ("s [GRID,CTA_4096];", "4096 threads a block"), ("q [GRID];", "no kernel computes %q")])
def test_a_wrong_template_is_the_users(text: str, message: str, model: str, tmp_path: Path, capsys: Capture) -> None:
    template = tmp_path / "t.txt"
    template.write_text(text)
    assert cli.main(["compile", model, "--target", "h200", "--template", str(template), "--emit", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err


def test_files_that_are_not_there_are_named(model: str, capsys: Capture) -> None:
    assert cli.main(["explain", model, "--plan", "nowhere.txt"]) == 2
    assert "cannot read the plan nowhere.txt" in capsys.readouterr().err


def test_why_answers_as_text_and_as_data(model: str, capsys: Capture) -> None:
    assert cli.main(["explain", model, "--target", "h200", "--why", "m", "%y"]) == 0
    assert "%m and %y: one kernel (k0)" in capsys.readouterr().out
    assert cli.main(["explain", model, "--target", "h200", "--why", "m", "y", "--json", "-O", "fuse=false"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["together"] is False and found["decided_by"]
    assert cli.main(["explain", model, "--target", "h200", "--why", "m", "yy"]) == 2
    assert "did you mean y" in capsys.readouterr().err
