"""Exported folders: outputs as the model gives them, what is refused and how, names, files, places."""
from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper

import tilefuse
from tests.unit.runtime.handmade import host_kernel, value
from tests.unit.standalone.built import build_host, loader
from tilefuse.base.errors import UnsupportedError, UnsupportedOpError, UserError
from tilefuse.driver.compile import generate_sources
from tilefuse.runtime.spec import CopyStep, KernelStep, LibraryStep, ProgramSpec
from tilefuse.standalone.c_names import c_string, distinct
from tilefuse.standalone.export import export_program
from tilefuse.standalone.places import Wanted, place_values, plain_results
from tilefuse.standalone.program_text import program_text
from tilefuse.tools import cli


class Many(torch.nn.Module):
    """Outputs that are views, the input itself, repeated, given twice, constant, complex, and no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("c", torch.arange(3.0))

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        y = x * 2
        return {"turned": y.t(), "same": x, "wide": y.sum(1, keepdim=True).expand(4, 5), "part": y[1:, 2:], "number": 3, "y": y, "again": y,
                "constant": self.c, "complex": torch.complex(y, x)}


def test_outputs_are_those_of_the_model(tmp_path: Path) -> None:
    """In order, with the extents that the caller of the model sees; complex numbers as pairs; a compiled model gives the same folder."""
    x = torch.arange(36.0).reshape(4, 9)  # sums of whole numbers are exact
    model = Many()
    made = tilefuse.export(model, tmp_path / "many", (x,), device="host")
    build_host(made, "-O0")
    found = loader(made).Program()(x.numpy())
    expected = [torch.view_as_real(t) if t.is_complex() else t for t in model(x).values() if isinstance(t, torch.Tensor)]
    for got, want in zip(found, expected, strict=True):
        np.testing.assert_array_equal(got, want.numpy())
    compiled = tilefuse.compile(model, (x,), device="host")
    again = tilefuse.export(compiled, tmp_path / "again", name="many")
    for file in made.files:
        assert (made.folder / file).read_bytes() == (again.folder / file).read_bytes(), file
    compiled.save(tmp_path / "many.tilefuse")
    saved = tilefuse.export(tmp_path / "many.tilefuse", tmp_path / "saved")
    assert (saved.name, saved.num_kernels) == ("many", made.num_kernels)


class Top(torch.nn.Module):
    """Has an operator that a library of torch performs."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.topk(torch.relu(x), 3).values


def test_what_has_no_form_outside_python_is_refused(tmp_path: Path) -> None:
    """With the operator, the user's line and a remedy; nothing is written."""
    x = torch.randn(4, 9)
    cases: list[tuple[Callable[[torch.Tensor], torch.Tensor], str, str]] = [
        (Top(), "cannot call aten.topk.default (it makes %topk)", "operators that become kernels"),
        (lambda x: torch.nn.functional.dropout(x, 0.5, True), "cannot call random_seed", "model.eval()")]
    for model, what, remedy in cases:
        with pytest.raises(UnsupportedOpError) as raised:
            tilefuse.export(model, tmp_path / "out", (x,), device="host")
        text = str(raised.value)
        assert what in text and "test_export.py:" in text and remedy in text
    node = helper.make_node("NonZero", ["x"], ["y"])
    graph = helper.make_graph([node, helper.make_node("Cast", ["y"], ["z"], to=1)], "g",
                              [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 5])],
                              [helper.make_tensor_value_info("z", TensorProto.FLOAT, None)])
    with pytest.raises(UnsupportedError, match="several parts.*NonZero"):
        tilefuse.export(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / "out", device="host")
    assert not (tmp_path / "out").exists()


def test_a_gpus_libraries_say_what_they_cannot_read(tmp_path: Path) -> None:
    """A product whose operand has gaps in both dimensions, or nothing to sum."""
    spec = ProgramSpec("g", "h200", ("a", "b"), ("y",), (value("a", "input", (4, 6), (24, 2)), value("b", "input", (6, 5)),
                                                        value("y", "result", (4, 5))), (), (LibraryStep("matmul", ("a", "b"), ("y",)),))
    with pytest.raises(UnsupportedError, match=r"operand %a of %y lies with strides \[24, 2\]"):
        export_program(spec, {}, tmp_path)
    empty = dataclasses.replace(spec, values=(value("a", "input", (4, 0)), value("b", "input", (0, 5)), value("y", "result", (4, 5))))
    with pytest.raises(UnsupportedError, match="%y is a product over no elements"):
        export_program(empty, {}, tmp_path)
    whole = dataclasses.replace(spec, values=(value("a", "input", (4, 6), dtype="i32"), value("b", "input", (6, 5), dtype="i32"),
                                              value("y", "result", (4, 5), dtype="i32")))
    with pytest.raises(UnsupportedError, match="%y is a product of i32, and a GPU's library has it for f64, f32, f16, bf16"):
        export_program(whole, {}, tmp_path)
    assert ".a_inner = 2" in program_text(spec, plain_results(spec), False, "g", "", 0, "").text


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    spec = ProgramSpec("p", "host", ("x",), ("x",), (value("x", "input"),), (), ())
    with pytest.raises(UserError, match="cannot write the program to"):
        export_program(spec, {}, tmp_path / "file" / "out")


def test_places_of_values() -> None:
    """Whole storages lie in results; windows, inputs and second uses are copied; the rest shares the workspace by live ranges."""
    values = (value("x", "input", (8, 32)), value("a", "intermediate", (8, 32)), value("b", "intermediate", (8, 32)),
              value("c", "intermediate", (8, 32)), value("y", "result", (8, 32)), value("v", "view", (4, 32), base="c", offset=128))
    kernel = host_kernel("k", "a[i]", 256)
    steps = tuple(KernelStep(0, pair) for pair in (("x", "a"), ("a", "b"), ("b", "c"), ("c", "y")))
    spec = ProgramSpec("p", "host", ("x",), ("y",), values, (kernel,), steps)
    wanted = (Wanted("y", "turned", (1, 0)), Wanted("v", "part"), Wanted("x", "same"), Wanted("y", "again"))
    places = place_values(spec, wanted, {}, 0)
    assert places.by_name["y"].kind == "result" and places.by_name["x"].kind == "input"
    assert [(r.name, r.strides, r.source) for r in places.results] == [
        ("turned", (1, 32), ""), ("part", (32, 1), "v"), ("same", (32, 1), "x"), ("again", (32, 1), "y")]
    a, b, c = (places.by_name[n].offset for n in "abc")
    assert a == c != b and places.by_name["v"].offset == c + 512 and places.workspace_bytes == 2048


def test_inputs_that_change_places_are_copied_once_before() -> None:
    """Two updates of which each reads what the other writes: the second reads a saved copy."""
    values = (value("x", "input"), value("y", "input"))
    spec = ProgramSpec("p", "host", ("x", "y"), (), values, (), (CopyStep("y", "x"), CopyStep("x", "y")), updates=("x", "y"))
    text = program_text(spec, (), False, "p", "", 0, "").text
    first, second, third = (text.index(copy) for copy in ("x, saved_1)", "y, x)", "saved_1, y)"))
    assert first < second < third


def test_names_and_strings() -> None:
    """Any name becomes one of C, and different ones stay different; strings are plain ASCII."""
    assert distinct("class", ()) == "class_" and distinct("a.b", {"a_b"}) == "a_b_" and distinct("1x", ()) == "v_1x"
    assert c_string('é"\\??\n') == '"\\303\\251\\042\\134\\077\\077\\012"'


def test_the_command_writes_for_a_gpu_that_is_not_here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph = tmp_path / "g.txt"
    graph.write_text("graph @g(%x: f32[64, 64]) -> (f32[64, 64]) {\n%y: f32[64, 64] = map [i, j] { exp(%x[j, i]) }\nreturn %y\n}")
    assert cli.main(["export", str(graph), "--out", str(tmp_path / "out"), "--target", "h200", "--name", "my net"]) == 0
    assert "my_net: 1 kernel, 0 B of weights" in capsys.readouterr().out
    assert "CUDA_ARCHITECTURES 90a" in (tmp_path / "out" / "CMakeLists.txt").read_text()
    assert "launch_kernel(" in (tmp_path / "out" / "src" / "program.cu").read_text()
    assert cli.main(["export", str(graph), "--out", str(tmp_path / "out"), "--target", "h200", "--device", "host"]) == 2


def test_the_page_names_what_is_there(tmp_path: Path) -> None:
    """README.md: every file that it names exists; inputs and results with their extents."""
    made = generate_sources(torch.nn.Softmax(1), (torch.randn(4, 8),), device="host")
    folder = export_program(made.spec, made.constants, tmp_path, "soft").folder
    page = (folder / "README.md").read_text()
    assert "| input 0 | `input` | f32 | [4, 8] | [8, 1] |" in page
    for name in ("include/soft.h", "src/program.cpp", "src/kernels/", "weights.bin", "weights.txt", "soft.py"):
        assert f"`{name}`" in page and (folder / name).exists()
