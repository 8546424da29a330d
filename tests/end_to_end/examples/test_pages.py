"""The commands and programs of the README and of docs/ run as they are written, in a folder with the files that they name."""
from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from benchmarks.__main__ import main as benchmarks
from tilefuse.tools import cli

ROOT = Path(__file__).resolve().parents[3]
PAGES = ("README.md", "CONTRIBUTING.md", "docs/command_line.md", "docs/installation.md", "docs/planning.md", "docs/layout.md",
         "docs/blas.md", "docs/training.md", "docs/view.md", "docs/results.md", "docs/comparing.md",
         "docs/tasks.md")
# Settings that a page leaves to the reader: shorter runs, and no figures of this machine in the user's folder.
SHORTER = {"60": "1", "calibrate": "calibrate --most-mib 1"}


def blocks(page: str, language: str) -> list[str]:
    """The code blocks of a page in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def commands(page: str) -> list[str]:
    """Command lines of tilefuse in the page's blocks, without their comments."""
    lines = [line.partition("  #")[0].partition(" #")[0].strip() for b in blocks(page, "(?:sh|text)") for line in b.splitlines()]
    return [line for line in lines if line.startswith("tilefuse ")]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the examples and a small `model.onnx` that takes an image, as the working folder."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 3, 224, 224]) for n in "xy")
    nodes = [helper.make_node("Sigmoid", ["x"], ["s"]), helper.make_node("Mul", ["x", "s"], ["y"])]
    model = helper.make_model(helper.make_graph(nodes, "swish", [x], [y]), opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "model.onnx")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TILEFUSE_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("page", [p for p in PAGES if commands(p)])
def test_every_command_of_a_page_runs(page: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for line in commands(page):
        command, _, target = line.partition(" > ")
        words = [w for word in shlex.split(command)[1:] for w in SHORTER.get(word, word).split()]
        status = cli.main(words)
        out, err = capsys.readouterr()
        assert status == 0, f"{line}\n{out}\n{err}"
        if target:
            (folder / target.strip()).write_text(out, encoding="utf-8")


@pytest.mark.slow
def test_the_programs_of_the_readme_run(folder: Path) -> None:
    given = {"image": np.zeros((1, 3, 224, 224), np.float32)}
    for text in blocks("README.md", "python"):
        exec(compile(text, "README.md", "exec"), dict(given))
    assert (folder / "model.tilefuse").exists()


@pytest.mark.slow
@pytest.mark.parametrize("number", range(2))
def test_the_programs_of_the_page_on_training_run(number: int) -> None:
    texts = blocks("docs/training.md", "python")
    assert len(texts) == 2
    exec(compile(texts[number], "docs/training.md", "exec"), {})


def test_the_program_of_the_page_on_tasks_runs(folder: Path) -> None:
    (text,) = blocks("docs/tasks.md", "python")
    exec(compile(text, "docs/tasks.md", "exec"), {})
    assert (folder / "tasks.json").stat().st_size > 100


@pytest.mark.slow
def test_the_programs_of_the_page_on_scripts_run(folder: Path) -> None:
    texts = blocks("docs/blas.md", "python")
    assert len(texts) == 3
    for text in texts:
        exec(compile(text, "docs/blas.md", "exec"), {})


@pytest.mark.parametrize("page", PAGES)
def test_every_benchmark_that_a_page_names_exists(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    named = re.findall(r"`[^`]*python -m benchmarks ([^`]*)`", (ROOT / page).read_text(encoding="utf-8"))
    for words in map(str.split, named):
        if words[0] in ("patterns", "models", "stitched", "workloads", "arrays", "blas", "calls", "sizes", "products"):
            assert benchmarks([*words, "--list"]) == 0
            assert capsys.readouterr().out.strip()
        else:
            assert words[0] in ("compiler", "planner", "search", "tables", "readme", "show", "join", "prune")
