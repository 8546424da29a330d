"""Python files where a model or a file is asked for: errors name what the file defines, or the command to use."""
from __future__ import annotations

from pathlib import Path

import pytest

from tilefuse.tools import cli


def test_a_python_file_alone_is_answered_with_what_it_defines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "net.py"
    file.write_text("raise SystemExit\ndef net(): ...\nclass Net: ...\ndef _own(): ...\n")
    assert cli.main(["run", str(file)]) == cli.USER
    told = capsys.readouterr().err
    assert f"{file}:net, {file}:Net" in told and "_own" not in told
    file.write_text("x = 1")
    assert cli.main(["explain", str(file)]) == cli.USER and "defines no function" in capsys.readouterr().err


def test_info_of_a_factory_names_the_command_that_takes_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["info", f"{tmp_path}/net.py:net"]) == cli.USER
    assert "tilefuse explain" in capsys.readouterr().err
    assert cli.main(["info", f"{tmp_path}/net.onnx"]) == cli.USER
    assert "tilefuse explain" not in capsys.readouterr().err


def test_compile_says_where_the_program_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph = str(Path(__file__).resolve().parents[3] / "examples" / "softmax.txt")
    assert cli.main(["compile", graph, "--device", "host"]) == 0
    assert "--save FILE" in capsys.readouterr().err
    assert cli.main(["compile", graph, "--device", "host", "--save", str(tmp_path / "p.tilefuse")]) == 0
    assert "--save FILE" not in capsys.readouterr().err
