"""Completion in a real bash: commands, options, names and values of -O, model files, factories; and the examples of --help."""
from __future__ import annotations

import os
import pty
import select
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tilefuse.base.options import option_table
from tilefuse.tools import cli, completion
from tilefuse.tools.examples import EXAMPLES, SHORT

TIMEOUT_S = 30.0


class Shell:
    """An interactive bash with the completion of `tilefuse`, in a folder."""

    def __init__(self, folder: Path) -> None:
        command = folder / "bin" / "tilefuse"
        command.parent.mkdir()
        command.write_text(f"#!/bin/sh\nexec {shlex.quote(sys.executable)} -m tilefuse.tools \"$@\"\n")
        command.chmod(0o755)
        source = str(Path(completion.__file__).parents[2])
        environment = {**os.environ, "PATH": f"{command.parent}:{os.environ['PATH']}", "PYTHONPATH": source, "PS1": "", "PS2": "",
                       "TERM": "dumb", "HISTFILE": "/dev/null"}
        script = subprocess.run([str(command)], env={**environment, "_TILEFUSE_COMPLETE": "source_bash"}, capture_output=True, text=True,
                                check=True).stdout
        (folder / "bin" / "completion.sh").write_text(script)
        self.process, self.handle = pty.fork()
        if self.process == 0:
            os.chdir(folder)
            os.execvpe("bash", ["bash", "--norc", "--noprofile", "-i"], environment)
        self._type("bind 'set enable-bracketed-paste off'; bind 'set bell-style none'; stty -echo; . bin/completion.sh; echo rea''dy\n")
        self._until("ready")

    def completed(self, line: str) -> str:
        """The line after the tabulator key; what bash would run is printed by an `echo` that is put before it."""
        self._type(f"{line}\t")
        time.sleep(0.05)
        self._type("\x01echo '<'\x05'>'\n")
        return self._until(">").rpartition("<")[2].removesuffix(">").strip()

    def close(self) -> None:
        """Ends the shell."""
        self._type("\x03\nexit\n")
        os.close(self.handle)
        os.waitpid(self.process, 0)

    def _type(self, text: str) -> None:
        os.write(self.handle, text.encode())

    def _until(self, end: str) -> str:
        text, deadline = "", time.monotonic() + TIMEOUT_S
        while True:
            lines = [line for line in text.replace("\r", "").split("\n") if "echo" not in line]
            if any(line.endswith(end) for line in lines):
                return next(line for line in lines if line.endswith(end))
            if not select.select([self.handle], [], [], max(deadline - time.monotonic(), 0))[0]:
                raise AssertionError(f"bash said {text!r}")
            text += os.read(self.handle, 65536).decode(errors="replace")


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    if shutil.which("bash") is None:
        pytest.skip("no bash")
    folder = tmp_path_factory.mktemp("shell")
    (folder / "model.onnx").write_bytes(b"")
    (folder / "notes.md").write_text("")
    (folder / "zoo.py").write_text("import nothing_there\ndef make_small(): ...\nclass Net: ...\ndef _hidden(): ...\n")
    made = Shell(folder)
    yield made
    made.close()


@pytest.mark.parametrize(("typed", "completed"), (
    ("tilefuse expl", "tilefuse explain"),
    ("tilefuse run --save-o", "tilefuse run --save-outputs"),
    ("tilefuse run mod", "tilefuse run model.onnx"),
    ("tilefuse run zoo.py:make", "tilefuse run zoo.py:make_small"),
    ("tilefuse run model.onnx -O eager_rounding=t", "tilefuse run model.onnx -O eager_rounding=true"),
    ("tilefuse explain model.onnx --target h2", "tilefuse explain model.onnx --target h200"),
))
def test_bash_completes(shell: Shell, typed: str, completed: str) -> None:
    assert shell.completed(typed) == completed


def test_options_are_offered_with_their_values() -> None:
    offered = [value for value, _ in completion.option_values("")]
    assert {v.partition("=")[0] for v in offered} == {row.name for row in option_table()}
    assert {"planner=ilp", "fuse=true", "fuse=false", "plan_seconds="} <= set(offered)
    assert [v for v, _ in completion.option_values("eager-r")] == ["eager_rounding=true", "eager_rounding=false"]


def test_other_values_are_offered() -> None:
    assert completion.devices("h") == ["host"] and "h200" in completion.targets("h")
    assert completion.pipelines("decompose,merge-eq") == ["decompose,merge-equal-nodes"]


def test_models_are_files_folders_and_what_a_python_file_defines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    for name in ("a.onnx", "b.pt2", "c.txt", "d.md", "sub/e.onnx", ".hidden.onnx"):
        (tmp_path / name).write_text("")
    (tmp_path / "wrong.py").write_text("def (")
    assert completion.models("") == ["a.onnx", "b.pt2", "c.txt", "sub/", "wrong.py:"]
    assert completion.models("sub/") == ["sub/e.onnx"] and completion.models("none/") == []
    assert completion.models("wrong.py:") == [] and completion.kept_files("a") == ["a.onnx"]


@pytest.mark.parametrize(("words", "place", "joined", "kept"), (
    ("tilefuse run -O cache =", 4, "tilefuse run -O cache=", "cache="),
    ("tilefuse run -O cache = of", 5, "tilefuse run -O cache=of", "cache="),
    ("tilefuse run a : b -O c", 6, "tilefuse run a:b -O c", ""),
    ("tilefuse ru", 1, "tilefuse ru", ""),
))
def test_words_that_bash_cut_are_joined(words: str, place: int, joined: str, kept: str) -> None:
    environment = {"COMP_WORDS": words.replace(" ", "\n"), "COMP_CWORD": str(place)}
    assert completion.joined_words(environment) == kept
    assert environment["COMP_WORDS"].split("\n") == joined.split(" ")
    assert int(environment["COMP_CWORD"]) == len(joined.split(" ")) - 1


def test_every_command_has_examples_that_it_reads(capsys: pytest.CaptureFixture[str]) -> None:
    names = {command.name for command in cli.app.registered_commands}
    assert set(EXAMPLES) <= set(SHORT) == names and all(len(text) <= 60 for text in SHORT.values())
    for name in sorted(names):
        assert cli.main([name, "--help"]) == 0
        told = capsys.readouterr().out
        flags = {word for word in told.replace(",", " ").split() if word.startswith("-")}
        lines = [line.strip() for line in told.splitlines() if f"{line.strip()} ".startswith(f"tilefuse {name} ")]
        assert lines and set(EXAMPLES.get(name, ())) <= set(lines), "examples are printed as they are written"
        for line in lines:
            words = shlex.split(line.partition("|")[0].partition(">")[0])
            assert words[:2] == ["tilefuse", name]
            assert {word for word in words if word.startswith("-")} <= flags, line
