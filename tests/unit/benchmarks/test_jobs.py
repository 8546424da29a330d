"""Jobs of a machine that is there for minutes: order, limits of time, and what is left of jobs that were ended."""
from __future__ import annotations

import os
import sys
import tarfile
import time
from pathlib import Path

import pytest

from benchmarks import jobs

PYTHON = sys.executable


def _outcome(text: str, capsys: pytest.CaptureFixture[str]) -> str:
    return next(line for line in capsys.readouterr().out.splitlines() if line.startswith(f"{text}:"))


def test_jobs_prepare_together_and_run_one_after_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"
    code = f"import time; f = open('{log}', 'a'); print('{{}}', file=f, flush=True); time.sleep(0.3); print('/{{}}', file=f)"
    step = f'{PYTHON} -c "{code}"'
    known = {name: jobs.Job(name, step.format(f"run-{name}", f"run-{name}"), step.format(f"make-{name}", f"make-{name}")) for name in "ab"}
    monkeypatch.setattr(jobs, "JOBS", known)
    assert jobs.main(["--out", str(tmp_path / "out"), "a:20", "b:20"]) == 0
    lines = log.read_text().split()
    assert set(lines[:4]) == {"make-a", "make-b", "/make-a", "/make-b"}
    assert lines[4:] == ["run-a", "/run-a", "run-b", "/run-b"]


def test_a_job_that_takes_too_long_is_ended_with_its_children(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    number = tmp_path / "pid"
    slow = f"slow=sh -c 'sleep 60 & echo $! >{number}; echo begun >{{out}}/result; wait':1"
    assert jobs.main(["--out", str(tmp_path / "out"), slow, f"quick={PYTHON} -c 'print(5)':20"]) == 1
    output = capsys.readouterr().out.splitlines()
    assert "status 124 (ended at its time)" in output[0] and "status 0" in output[1]
    child = int(number.read_text())
    for _ in range(100):
        if not _runs(child):
            break
        time.sleep(0.05)
    assert not _runs(child)
    with tarfile.open(tmp_path / "out.tar.gz") as tar:
        assert {"slow/result", "slow/run.log", "quick/run.log"} <= set(tar.getnames())


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{pid}/stat")
    return not state.exists() or state.read_text().rsplit(")", 1)[1].split()[0] != "Z"


def test_an_error_of_a_job_is_the_exit_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert jobs.main(["--out", str(tmp_path / "out"), f"bad={PYTHON} -c 'raise SystemExit(3)':20"]) == 1
    assert "status 3" in _outcome("bad", capsys)


@pytest.mark.parametrize("text", ["gpu-tests", "gpu-tests:", "gpu-tests:0", "no-such:10"])
def test_bad_jobs_say_what_to_write(text: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="gpu-tests"):
        jobs.main(["--out", str(tmp_path), text])


def test_two_trees_need_the_other_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        jobs.main(["--out", str(tmp_path), "before-after:10"])
    assert "--before" in capsys.readouterr().err


@pytest.mark.parametrize("name", jobs.JOBS)
def test_commands_of_jobs_fill_every_place(name: str, tmp_path: Path) -> None:
    values = jobs.Place(jobs.JOBS[name], 30.0, tmp_path / name, "earlier").values()
    for is_prepared in (False, True):
        assert not any("{" in part for part in jobs.JOBS[name].command(is_prepared, values))
    assert values["seconds"] == "24"


def test_suites_accept_the_options_of_their_jobs() -> None:
    from benchmarks.__main__ import parser, select

    for job in jobs.JOBS.values():
        for is_prepared in (False, True):
            command = job.command(is_prepared, dict.fromkeys(("out", "caches", "before", "seconds"), "9"))
            if command[1:3] == ["-m", "benchmarks"]:
                options = parser().parse_args(command[3:])
                assert options.suite == "planner" or select(options), job.name
