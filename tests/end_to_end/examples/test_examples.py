"""Every example runs as a user would run it: in a process of its own, from the repository's root."""
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

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
def test_every_graph_runs_and_explains(graph: Path, tmp_path: Path) -> None:
    for command in (("run", str(graph), "--device", "host"), ("explain", str(graph), "--device", "host", "--json")):
        done = run("-m", "tilefuse.tools", *command, folder=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
