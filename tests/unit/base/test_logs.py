"""Logs by name: the grammar of TORCH_LOGS, one logger a name, nothing shown and nothing in a program's way by default."""
from __future__ import annotations

import logging
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tilefuse
from tilefuse.base.errors import OptionError
from tilefuse.base.logs import NAMES, from_environment, help_text, is_shown, log_of, parse_logs


@pytest.fixture(autouse=True)
def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TILEFUSE_LOGS", raising=False)
    tilefuse.set_logs()


def test_names_with_marks_are_levels() -> None:
    assert parse_logs(" +plan, recompiles ,-cache,help") == {"plan": logging.DEBUG, "recompiles": logging.INFO, "cache": logging.ERROR}
    with pytest.raises(OptionError, match=r"unknown log 'recompile'(.|\n)*did you mean recompiles"):
        parse_logs("+recompile")


def test_nothing_is_shown_by_default_nor_where_a_program_shows_all_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        assert not any(is_shown(name) for name in NAMES)
        log_of("plan").info("hidden")
    assert caplog.records == []
    # A program that wants ours sets the level of the logger, as logging has it.
    with caplog.at_level(logging.INFO, logger="tilefuse.plan"):
        log_of("plan").info("two kernels")
    assert [r.getMessage() for r in caplog.records] == ["two kernels"]


def test_set_logs_shows_lines_and_writes_them_to_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    tilefuse.set_logs("all,-cache", out=str(tmp_path / "run.log"), recompiles=logging.DEBUG)
    for name in ("cache", "plan", "recompiles"):
        log_of(name).info("first of %s", name)
        log_of(name).debug("details of %s", name)
    wanted = "[tilefuse plan] first of plan\n[tilefuse recompiles] first of recompiles\n[tilefuse recompiles] details of recompiles\n"
    assert capsys.readouterr().err == wanted == (tmp_path / "run.log").read_text(encoding="utf-8")
    tilefuse.set_logs()
    log_of("plan").info("no more")
    assert capsys.readouterr().err == "" and logging.getLogger("tilefuse").handlers == []


def test_names_of_models_do_nothing_to_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    tilefuse.set_logs(plan=True)
    log_of("plan").info("%s", "\x1b[2Jmodel")
    assert "\x1b" not in capsys.readouterr().err


def test_help_and_bad_files(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    tilefuse.set_logs("help")
    assert capsys.readouterr().err == help_text() + "\n"
    assert all(re.search(rf"^  {name} ", help_text(), re.MULTILINE) for name in NAMES)
    with pytest.raises(OptionError, match="cannot be written"):
        tilefuse.set_logs("plan", out=str(tmp_path / "no" / "run.log"))


def test_the_environment_goes_before_the_program(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TILEFUSE_LOGS", "plan")
    from_environment({"TILEFUSE_LOGS": "plan"})
    tilefuse.set_logs("cache")
    assert "set_logs changes nothing" in capsys.readouterr().err and is_shown("plan") and not is_shown("cache")
    from_environment({"TILEFUSE_LOGS": "no such name"})  # left to the first compile, which raises


def test_importing_with_the_variable_loads_no_torch() -> None:
    code = "import tilefuse, sys; print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                         env={"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path), "TILEFUSE_LOGS": "help"})
    assert run.stdout == "False\n" and "graph_breaks" in run.stderr
