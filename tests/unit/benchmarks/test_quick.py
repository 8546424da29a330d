"""`--quick`: a case of each family, and an end within three minutes whatever the peers take."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks import __main__ as command
from benchmarks import quick, suite
from benchmarks.devices import Place
from benchmarks.record import Record


def names(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert command.main([*arguments, "--list"]) == 0
    return capsys.readouterr().out.split()


def cases(name: str) -> list[dict[str, Any]]:
    return command.select(command.parser().parse_args([name]))


@pytest.mark.parametrize("name", list(command.SUITES))
def test_quick_cases_are_cases_and_no_two_alike(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    everything, chosen = names(capsys, name), names(capsys, name, "--quick")
    assert chosen and set(chosen) <= set(everything)
    kinds = [tuple(c.split("/")[:2]) for c in chosen]
    assert len(set(kinds)) == len(kinds)
    if name in quick.CHOSEN:
        assert tuple(chosen) == quick.CHOSEN[name]
    else:
        family = {c["name"]: c["family"] if name == "patterns" else c["name"].split("/")[0] for c in cases(name)}
        assert [family[c] for c in chosen] == list(dict.fromkeys(family[c] for c in everything))


def test_a_quick_run_has_a_budget_and_searches_no_templates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    class StandIn:
        def __init__(self, record: Record, places: list[Place], peers: list[str], request: dict[str, Any], **settings: Any) -> None:
            seen.update(request, **settings)

        def measure(self, cases: list[Any]) -> None:
            seen["cases"] = len(cases)

    monkeypatch.setattr(suite, "Run", StandIn)
    command.main(["workloads", "--quick", "--devices", "cpu", "--out", str(tmp_path)])
    assert seen["budget_s"] == quick.BUDGET_S and seen["inductor_mode"] == "default" and not seen["apart"] and seen["cases"] == 4
    command.main(["workloads", "--devices", "cpu", "--out", str(tmp_path)])
    assert seen["budget_s"] == 0 and seen["inductor_mode"] != "default" and seen["apart"]


def test_a_budget_and_a_mode_of_ones_own_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[Any] = []
    monkeypatch.setattr(command, "measure_suite", lambda options, peers: parsed.append(options) or 0)
    command.main(["patterns", "--quick", "--budget", "40"])
    command.main(["patterns"])
    assert [o.budget for o in parsed] == [40.0, 0.0]
