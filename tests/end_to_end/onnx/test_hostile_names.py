"""Names that a model's author chose to harm its reader: no terminal obeys them, and no source text ends a comment at them."""

from __future__ import annotations

import re
from pathlib import Path

import onnx
import pytest
from onnx import helper

import tilefuse
from tests.end_to_end.onnx.models import model_of
from tilefuse.pages import libraries
from tilefuse.pages.page import page_text, program_data
from tilefuse.tools import cli

ESCAPE = "\x1b]0;owned\x07\x1b[2J"
NAMES = [f"x{ESCAPE}", "h*/ int injected; /*", "y\nint injected;\\\n", "z\\", "r\u2028int injected;"]
NODES = [helper.make_node("Relu", [NAMES[0]], [NAMES[1]], name=f"n{ESCAPE}\nint injected;"),
         helper.make_node("Softmax", [NAMES[1]], [NAMES[2]], axis=-1, name="*/ int injected;"),
         helper.make_node("Add", [NAMES[2], NAMES[0]], [NAMES[3]]), helper.make_node("Exp", [NAMES[3]], [NAMES[4]])]


def _model() -> onnx.ModelProto:
    model = model_of(NODES, {NAMES[0]: [4, 40]}, [NAMES[2], NAMES[4]])
    model.graph.name = f"g{ESCAPE}\n*/ int injected; \\"
    return model


def _code(source: str) -> str:
    """A C++ text without its comments, as the compiler reads it: lines are joined at backslashes first."""
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", source.replace("\\\n", ""), flags=re.DOTALL)


@pytest.mark.parametrize("options", [{"target": "h200"}, {"device": "host"}, {"device": "host", "check": True}], ids=str)
def test_sources_hold_no_code_of_names(options: dict[str, object]) -> None:
    program = tilefuse.compile(_model(), **options)
    text = program.source()
    assert "int injected" not in re.sub(r'"[^"\n]*"', "", _code(text))
    assert all(c.isprintable() or c == "\n" for c in text)
    assert "\x1b" not in program.explain()
    told = program_data(program.explain(json=True), {k.name: "</script><!--<script>" for k in program.kernels})
    if not libraries.missing():
        page = page_text(str(told["label"]), [told])
        # The data, two libraries, and the page's own script.
        assert page.count("</script>") == page.count("<script") == 4


def test_the_terminal_gets_no_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx.save(_model(), str(tmp_path / "model.onnx"))
    model = str(tmp_path / "model.onnx")
    commands = [["run", model, "--device", "host"], ["opt", model],
                ["explain", model, "--full", "--device", "host"],
                ["explain", model, "--why", "no_such", "value", "--device", "host"], ["run", model, "--shapes", "no:1"],
                ["explain", model, "--plan-text", "--target", "h200"],
                ["compile", model, "--save", str(tmp_path / "p"), "--device", "host"]]
    for command in commands:
        cli.main(command)
        out = "".join(capsys.readouterr())
        bad = {c for c in out if not c.isprintable() and c != "\n"}
        assert not bad, (command, bad)
        assert out
