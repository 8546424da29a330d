"""Every example runs as a user would run it: in a process of its own, from the repository's root."""
from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tilefuse.tools import cli

ROOT = Path(__file__).resolve().parents[3]
SCRIPTS = sorted(p for p in (ROOT / "examples").glob("*.py"))
GRAPHS = sorted((ROOT / "examples").glob("*.txt"))


def run(*command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """The finished process of a Python command with the package on its path."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    return subprocess.run([sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, timeout=170, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda p: p.stem)
def test_every_script_runs(script: Path, tmp_path: Path) -> None:
    done = run(str(script), folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda p: p.stem)
def test_every_graph_runs_and_explains(graph: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first command in a process of its own, as users give it; the second in this one, which has read the libraries already."""
    done = run("-m", "tilefuse.tools", "run", str(graph), "--device", "host", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert cli.main(["explain", str(graph), "--device", "host", "--json"]) == 0, capsys.readouterr().err
    assert json.loads(capsys.readouterr().out)
