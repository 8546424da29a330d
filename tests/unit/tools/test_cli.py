"""The command line: exit statuses, JSON alone on standard output, messages on standard error, clean interrupts."""
from __future__ import annotations

import errno
import io
import json
import math
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tilefuse import tools
from tilefuse.base import errors
from tilefuse.base.options import option_table
from tilefuse.runtime.stores.cache import CacheWarning
from tilefuse.tools import __main__ as start
from tilefuse.tools import cli
from tilefuse.tools.commands import cache as commands_cache
from tilefuse.tools.console import emit_json
from tilefuse.tools.inputs import read_inputs, write_arrays

SOFTMAX = """graph @softmax(%x: f32[4, 8]) -> (f32[4, 8]) {
  %m: f32[4] = reduce.max [i] over [k < 8] { %x[i, k] }
  %e: f32[4, 8] = map [i, j] { exp(sub(%x[i, j], %m[i])) }
  %s: f32[4] = reduce.sum [i] over [k < 8] { %e[i, k] }
  %y: f32[4, 8] = map [i, j] { div(%e[i, j], %s[i]) }
  return %y
}
"""
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def softmax(tmp_path: Path) -> str:
    path = tmp_path / "softmax.txt"
    path.write_text(SOFTMAX)
    return str(path)


@pytest.mark.parametrize(("error", "status"), [
    (errors.OptionError("x"), 2), (errors.ParseError("x"), 2), (errors.UnsupportedOpError("x"), 3), (errors.InfeasibleError("x"), 3),
    (errors.ToolchainError("x"), 4), (errors.OutOfMemoryError("x"), 4), (errors.VerifyError("x"), 1), (KeyError("x"), 1),
])
def test_every_error_has_its_status(error: Exception, status: int, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr(cli, "app", raising(error))
    assert cli.main([]) == status
    out, err = capsys.readouterr()
    assert out == "" and "error" in err
    assert ("please report" in err) == (status == 1)


def raising(error: BaseException) -> Callable[..., None]:
    def call(**_: object) -> None:
        raise error

    return call


def test_warnings_of_ours_are_one_line(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """Those of others say where they come from."""
    def warn(**_: object) -> None:
        warnings.warn("the folder cannot be written", CacheWarning, stacklevel=1)
        warnings.warn("an old name", FutureWarning, stacklevel=1)

    monkeypatch.setattr(commands_cache, "option_table", warn)
    cli.main(["options"])
    err = capsys.readouterr().err
    assert err.startswith("warning: the folder cannot be written\n") and "test_cli.py" in err and "FutureWarning: an old name" in err


def test_an_interrupt_ends_quietly(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr(cli, "app", raising(KeyboardInterrupt()))
    assert cli.main([]) == 130
    assert "interrupted" in capsys.readouterr().err


def test_an_interrupt_while_the_commands_are_loaded_ends_quietly(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    """Imports take most of a second; Python would show where in them the user lost patience."""
    class Interrupted:
        @staticmethod
        def find_spec(name: str, *_: object) -> None:
            if name == cli.__name__:
                raise KeyboardInterrupt

    monkeypatch.setattr(sys, "meta_path", [Interrupted, *sys.meta_path])
    monkeypatch.delitem(sys.modules, cli.__name__)
    monkeypatch.delattr(tools, "cli")
    assert start.main() == cli.INTERRUPTED == 130
    assert capsys.readouterr().err.startswith("interrupted")


def test_an_interrupt_inside_a_command_says_so_too(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr(commands_cache, "option_table", raising(KeyboardInterrupt()))
    assert cli.main(["options"]) == 130
    assert "interrupted" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["nothing"], ["run"], ["run", "x.onnx", "--repeat", "0"], ["options", "--jsn"]])
def test_wrong_usage_is_the_users(arguments: list[str]) -> None:
    assert cli.main(arguments) == 2


def test_a_missing_file_offers_the_nearest_name(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "squeezenet.onnx").write_bytes(b"")
    assert cli.main(["explain", str(tmp_path / "sqeezenet.onnx")]) == 2
    err = capsys.readouterr().err
    assert "there is no file" in err and "did you mean squeezenet.onnx" in err


def test_something_that_names_no_model_lists_the_forms(capsys: Capture) -> None:
    assert cli.main(["run", "whatever"]) == 2
    assert "package.module:factory" in capsys.readouterr().err


def test_a_factory_in_a_file_is_named_by_the_file(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "beside_it.py").write_text("WIDTH = 8\n")
    model = tmp_path / "my_model.py"
    model.write_text("import torch\nfrom beside_it import WIDTH\n\ndef build():\n    return torch.nn.LayerNorm(WIDTH)\n")
    assert cli.main(["explain", f"{model}:build", "--shapes", "input:4x8", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["kernels"]) == 1
    assert cli.main(["explain", f"{model}:biuld"]) == 2
    assert "did you mean build" in capsys.readouterr().err
    assert cli.main(["explain", f"{tmp_path / 'my_modle.py'}:build"]) == 2
    assert "did you mean my_model.py" in capsys.readouterr().err


def test_options_as_json_are_json_alone(capsys: Capture) -> None:
    assert cli.main(["options", "--json"]) == 0
    out, err = capsys.readouterr()
    assert {"name", "variable", "default", "doc"} <= set(json.loads(out)[0]) and err == ""


def test_cache_lists_and_clears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setenv("TILEFUSE_CACHE_DIR", str(tmp_path))
    assert cli.main(["cache", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["entries"] == []
    assert cli.main(["cache", "clear"]) == 0
    assert cli.main(["cache", "import", str(tmp_path / "none")]) == 2


def test_opt_prints_a_graph_that_parses(softmax: str, capsys: Capture) -> None:
    from tilefuse.ir.text import parse_graph

    assert cli.main(["opt", softmax, "--passes", ""]) == 0
    out = capsys.readouterr().out
    assert parse_graph(out) == parse_graph(SOFTMAX)


def test_opt_names_the_nearest_pass(softmax: str, capsys: Capture) -> None:
    assert cli.main(["opt", softmax, "--passes", "remove-dead-node"]) == 2
    assert "remove-dead-nodes" in capsys.readouterr().err


def test_text_that_does_not_parse_shows_the_line(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "bad.txt"
    path.write_text(SOFTMAX.replace("exp(", "epx("))
    assert cli.main(["opt", str(path)]) == 2
    err = capsys.readouterr().err
    assert "bad.txt:3" in err and "^" in err


def test_the_version_is_told(capsys: Capture) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("tilefuse ")


def test_passes_are_listed_without_a_model(capsys: Capture) -> None:
    assert cli.main(["opt", "--list"]) == 0
    assert "remove-dead-nodes: " in capsys.readouterr().out


@pytest.mark.parametrize(("text", "message"), [
    ("def make(:\n", "SyntaxError"), ("import no_such_module_here\n", "no_such_module_here"),
    ("def make():\n    raise ValueError('mine')\n", "mine"),
])
def test_what_the_users_own_file_raises_is_told_with_its_line(text: str, message: str, tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "my_broken_model.py"
    path.write_text(text)
    assert cli.main(["explain", f"{path}:make", "--device", "host"]) == 2
    err = capsys.readouterr().err
    assert message in err and f"{path}:{1 if 'raise' not in text else 2}" in err and "please report" not in err


def test_files_that_are_no_graphs_and_no_models(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "bytes.txt"
    path.write_bytes(b"\xff\xfe\x00")
    assert cli.main(["opt", str(path)]) == 2 and "not text" in capsys.readouterr().err
    damaged = tmp_path / "cut.tilefuse"
    damaged.write_bytes(b"PK\x03\x04\xff\xfe")
    assert cli.main(["run", str(damaged)]) == 2 and "the file is damaged" in capsys.readouterr().err
    path = tmp_path / "bad.pt2"
    path.write_bytes(b"no archive")
    assert cli.main(["opt", str(path)]) == 2 and "torch.export" in capsys.readouterr().err
    assert cli.main(["opt", ":make"]) == 2 and "names no model" in capsys.readouterr().err
    assert cli.main(["opt", "json:dumps"]) == 2 and "takes arguments" in capsys.readouterr().err


def test_shapes_that_contradict_the_model(softmax: str, capsys: Capture) -> None:
    """A graph in text form fixes its inputs; a flag that says otherwise would be without effect."""
    for flag, message in (("x:3x4", "takes [4, 8]"), ("x:4x8@f16", "takes f32"), ("q:4x8", "no input 'q'")):
        assert cli.main(["explain", softmax, "--device", "host", "--shapes", flag]) == 2
        assert message in capsys.readouterr().err


def test_arrays_are_written_whole_under_any_name(tmp_path: Path) -> None:
    arrays = {"file": np.arange(3), "a/b": np.float32(2)}
    write_arrays(tmp_path / "results", arrays)
    with np.load(tmp_path / "results") as found:
        assert {name: found[name].tolist() for name in found.files} == {"file": [0, 1, 2], "a/b": 2.0}
    for path in (tmp_path, tmp_path / "no" / "results"):
        with pytest.raises(errors.UserError, match="cannot write"):
            write_arrays(path, arrays)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["results"]


def test_one_array_without_a_name_is_no_set_of_inputs(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros(3))
    with pytest.raises(errors.UserError, match="not an .npz"):
        read_inputs(tmp_path / "x.npy", {"x": ("f32", (3,))})


def test_json_of_numbers_that_are_none_is_read_by_strict_readers(capsys: Capture) -> None:
    emit_json({"a": [math.nan, math.inf, 1.5], "b": (-math.inf,)})
    assert json.loads(capsys.readouterr().out, parse_constant=lambda word: pytest.fail(word)) == {"a": ["nan", "inf", 1.5], "b": ["-inf"]}


def test_output_that_cannot_be_written_is_no_fault_of_ours(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    class Full(io.StringIO):
        def flush(self) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sys, "stdout", Full())
    assert cli.main(["options", "--json"]) == 4
    err = capsys.readouterr().err
    assert "No space left" in err and "standard output" in err and "please report" not in err


def test_a_reader_that_goes_away_is_no_error() -> None:
    command = f"{sys.executable} -m tilefuse.tools opt --list | head -n 1; exit ${{PIPESTATUS[0]}}"
    assert subprocess.run(["bash", "-c", command], capture_output=True, check=False).returncode == 0


def test_a_closed_output_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    assert cli.main(["options"]) == 0


def test_memory_that_is_not_there_is_no_fault_of_ours(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.setattr(cli, "app", raising(MemoryError("5 PiB")))
    assert cli.main([]) == 4 and "please report" not in capsys.readouterr().err


def test_options_are_lines_that_grep_finds(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["options"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(option_table())
    (line,) = [line for line in lines if line.startswith("planner=")]
    assert line.startswith("planner=ilp  ") and line.endswith("TILEFUSE_PLANNER")


def test_usage_errors_show_no_escapes_of_the_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "x", "--bogus\x1b[31m"]) == 2
    err = capsys.readouterr().err
    assert "\x1b" not in err and "--bogus\\x1b[31m" in err and "Usage: tilefuse run" in err
