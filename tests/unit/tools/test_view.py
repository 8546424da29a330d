"""What `tilefuse view` takes: a model, an explanation in a file, two of them; and what it refuses."""
from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import tilefuse
from tests.unit.pages.models import attention
from tilefuse.base.errors import OptionError, UserError
from tilefuse.pages import libraries
from tilefuse.tools import cli
from tilefuse.tools.view import read_explanation, shown_programs

needs_packages = pytest.mark.skipif(bool(libraries.missing()), reason=f"packages of pages are missing: {', '.join(libraries.missing())}")
MODEL = str(Path(__file__).parents[3] / "examples" / "attention.txt")


def programs_of(page: Path) -> list[dict[str, Any]]:
    """What a page carries."""
    found = re.search(r'id="data">(.*?)</script>', page.read_text(encoding="utf-8"), re.DOTALL)
    assert found
    made: list[dict[str, Any]] = json.loads(found[1])["programs"]
    return made


@needs_packages
def test_a_plan_and_an_explanation_in_a_file_stand_side_by_side(tmp_path: Path) -> None:
    before = tmp_path / "before.json"
    before.write_text(json.dumps(attention().explain(json=True)), encoding="utf-8")
    status = cli.main(["view", str(before), MODEL, "--target", "h200", "-O", "fuse=false", "--out", str(tmp_path / "both.html")])
    first, second = programs_of(tmp_path / "both.html")
    assert status == 0 and (first["side"], second["side"]) == (0, 1)
    assert first["explanation"]["num_kernels"] < second["explanation"]["num_kernels"]


@needs_packages
def test_a_measured_run_has_a_time_for_every_step(tmp_path: Path) -> None:
    softmax = str(Path(MODEL).with_name("softmax.txt"))
    status = cli.main(["view", softmax, "--device", "host", "--measure", "--out", str(tmp_path / "page.html")])
    (told,) = programs_of(tmp_path / "page.html")
    assert status == 0 and len(told["times"]) == len(told["explanation"]["steps"]) > 0
    assert told["call_us"] > 0 and all(t["us"] > 0 for t in told["times"])


def test_a_file_that_is_no_explanation_is_named(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.json"
    wrong.write_text("[1]", encoding="utf-8")
    with pytest.raises(UserError, match="wrong.json is no explanation"):
        read_explanation(wrong)
    with pytest.raises(UserError, match="nowhere.json"):
        read_explanation(tmp_path / "nowhere.json")


def test_a_device_that_is_not_here_is_not_measured() -> None:
    with pytest.raises(OptionError, match="h200"):
        shown_programs(MODEL, (), "", (), "h200", True)


@needs_packages
def test_a_model_in_parts_shows_each(tmp_path: Path) -> None:
    """The explanation of a model that runs in parts has those of its programs; a page has one of each."""
    from tilefuse.driver.explain.explain import joined_explanations

    part = attention().explain(json=True)
    joined = tmp_path / "joined.json"
    joined.write_text(json.dumps(joined_explanations("both", "h200", [part, part], (), ())), encoding="utf-8")
    assert cli.main(["view", str(joined), "--out", str(tmp_path / "page.html")]) == 0
    told = programs_of(tmp_path / "page.html")
    assert [p["label"] for p in told] == ["both 1 of 2", "both 2 of 2"] and told[0]["drawing"] == told[1]["drawing"]


def test_a_saved_program_is_shown_as_it_was_planned(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU()).eval()
    with torch.no_grad():
        made = tilefuse.compile(model, [torch.zeros(4, 8)], device="host")
    made.save(tmp_path / "saved")
    (told,) = shown_programs(str(tmp_path / "saved"), [], "", [], "", False)
    assert told["label"] == "saved" and told["explanation"]["kernels"] == made.explain(json=True)["kernels"]
    assert all(told["sources"][k["name"]] for k in told["explanation"]["kernels"])
