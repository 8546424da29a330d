"""Every program and command of docs/debugging.md runs as it is written, in a folder with the model that the page shows."""
from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.examples.test_pages import blocks, commands, folder
from tilefuse.base.logs import NAMES
from tilefuse.driver import torch_backend
from tilefuse.inspection.explain import TITLES
from tilefuse.tools import cli

PAGE = "docs/debugging.md"
assert folder  # the fixture


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of compiled kernels: the page's programs and its commands compile the same model."""
    return tmp_path_factory.mktemp("kernels")


@pytest.mark.slow
def test_the_programs_of_the_page_run(folder: Path, kernels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("netron")
    monkeypatch.setenv("TILEFUSE_CACHE_DIR", str(kernels))
    texts = blocks(PAGE, "python")
    torch_backend.reset()
    shared: dict[str, Any] = {}
    told = io.StringIO()
    with contextlib.redirect_stdout(told):
        for number, text in enumerate(texts):
            # From a file, as a user's program is: places are its lines.
            (folder / f"net{number}.py").write_text(text, encoding="utf-8")
            exec(compile(text, str(folder / f"net{number}.py"), "exec"), shared)
    torch_backend.reset()
    out = told.getvalue()
    assert "1 graph break" in out and "net0.py:12" in out and "graph break " in out
    assert {"run.trace.json", "run.json", "plan.html", "run.log"} <= {p.name for p in folder.iterdir()}
    fields = set(shared["found"].json()) - {"format", "name", "kind", "device", "repeats"}
    page = (Path(__file__).resolve().parents[3] / PAGE).read_text(encoding="utf-8")
    assert fields == set(re.findall(r"^\| `(\w+)` \|", page.partition("field of `found.json()`")[2].partition("## ")[0], re.MULTILINE))


@pytest.mark.slow
def test_the_commands_of_the_page_run(folder: Path, kernels: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for line in commands(PAGE):
        assert cli.main(shlex.split(line)[1:]) == 0, capsys.readouterr().err
    (folder / "net.py").write_text(blocks(PAGE, "python")[0], encoding="utf-8")
    lines = [line for b in blocks(PAGE, "sh") for line in b.splitlines() if line.startswith("TILEFUSE_LOGS")]
    wanted = {"help": ["names with commas"], "graph_breaks": ["[tilefuse graph_breaks] ", "[tilefuse kernels] kernel", "net.py:12"]}
    assert len(lines) == 2
    for line in lines:
        words = shlex.split(line)
        given = dict(word.split("=", 1) for word in words if "=" in word)
        environment = {**os.environ, **given, "TILEFUSE_CACHE_DIR": str(kernels), "PYTHONPATH": os.pathsep.join(sys.path)}
        run = subprocess.run([sys.executable, *words[words.index("python") + 1:]], env=environment, capture_output=True, text=True,
                             timeout=300)
        assert run.returncode == 0, run.stderr
        assert all(text in run.stderr for text in wanted[given["TILEFUSE_LOGS"].split(",")[0]]), run.stderr
    assert "[tilefuse calls] " in (folder / "run.log").read_text(encoding="utf-8")


def test_the_page_names_every_log_and_every_kind() -> None:
    page = (Path(__file__).resolve().parents[3] / PAGE).read_text(encoding="utf-8")
    assert [name for name in NAMES if f"`{name}`" not in page] == []
    assert [kind for kind in TITLES if not re.search(rf"^\| {kind} \|", page, re.MULTILINE)] == []
