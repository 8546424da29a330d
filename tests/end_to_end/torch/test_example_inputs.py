"""Example inputs of `tilefuse.compile`: by place and by name, tensors and arrays of NumPy, files; and errors for those that do not fit."""
from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper

import tilefuse
from tilefuse.base.errors import OptionError, UnsupportedError, UserError


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 4)

    def forward(self, x: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
        y = torch.relu(self.linear(x))
        return y if scale is None else y * scale


class Named(torch.nn.Module):
    def forward(self, x: torch.Tensor, *, a: torch.Tensor, b: float = 2.0) -> dict[str, torch.Tensor]:
        return {"r": x * a + b}


X, SCALE, A = torch.arange(24.0).reshape(3, 8), torch.arange(4.0), torch.arange(8.0)


def test_keyword_inputs_are_those_of_the_parameters() -> None:
    """However they are given when compiling and when called."""
    model = Scaled().eval()
    wanted = model(X, SCALE).detach()
    program = tilefuse.compile(model, (X,), example_kwargs={"scale": SCALE}, device="host")
    for found in (program(X, SCALE), program(X, scale=SCALE), program(scale=SCALE, x=X)):
        torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(tilefuse.compile(model, example_kwargs={"x": X}, device="host")(X), model(X).detach())


def test_parameters_that_have_names_only(tmp_path: Path) -> None:
    """Also from a file of torch.export, which the command line took before."""
    path = tmp_path / "named.pt2"
    torch.export.save(torch.export.export(Named(), (X,), {"a": A}), path)
    for program in (tilefuse.compile(Named(), (X,), example_kwargs={"a": A}, device="host"), tilefuse.compile(path, device="host")):
        torch.testing.assert_close(program(X, a=A)["r"], X * A + 2)


def test_arrays_give_arrays_and_tensors_give_tensors() -> None:
    program = tilefuse.compile(Named(), (X.numpy(),), example_kwargs={"a": A.numpy()}, device="host")
    found = program(X.numpy(), a=A.numpy())["r"]
    assert type(found) is np.ndarray and np.array_equal(found, (X * A + 2).numpy())
    for mixed in (program(X, a=A)["r"], program(X, a=A.numpy())["r"]):
        assert type(mixed) is torch.Tensor and torch.equal(mixed, X * A + 2)


def test_programs_of_graphs_and_files_take_arrays(tmp_path: Path) -> None:
    """A view against the memory's order, read-only memory; a loaded program as well."""
    path = tmp_path / "g.tf"
    path.write_text("graph @g(%x: f32[4]) -> (f32[4]) {\n  %y: f32[4] = map [i] { mul(%x[i], 2:f32) }\n  return %y\n}\n")
    program = tilefuse.compile(path, device="host")
    program.save(tmp_path / "g.tilefuse")
    x = np.arange(4, dtype=np.float32)
    x.flags.writeable = False
    for run in (program, tilefuse.load(tmp_path / "g.tilefuse")):
        (found,) = run(x)
        assert type(found) is np.ndarray and np.array_equal(found, 2 * x) and np.array_equal(run(x[::-1])[0], 2 * x[::-1])


def test_bf16_comes_back_as_it_was_given() -> None:
    bf16 = pytest.importorskip("ml_dtypes").bfloat16
    x = np.ones(3, bf16)
    found = tilefuse.compile(lambda a: a + 1, (x,), device="host")(x)
    assert found.dtype == bf16 and np.array_equal(found, x + x)


def test_example_inputs_give_an_onnx_model_its_shapes() -> None:
    value = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 3]) for n in "xy"]
    model = helper.make_model(helper.make_graph([helper.make_node("Exp", ["x"], ["y"])], "g", value[:1], value[1:]),
                              opset_imports=[helper.make_opsetid("", 18)])
    x = np.zeros((5, 3), np.float32)
    for program in (tilefuse.compile(model, (x,), device="host"), tilefuse.compile(model, example_kwargs={"x": x}, device="host")):
        assert np.array_equal(program(x)[0], np.ones((5, 3)))
    with pytest.raises(UserError, match=r"the model takes 1 inputs \(x\), got 2"):
        tilefuse.compile(model, (x, x), device="host")


def test_inputs_that_the_model_refuses_are_its_own_error(caplog: Any, capfd: Any) -> None:
    """The model's exception, from its own line, and none of torch's reports on the way."""
    with caplog.at_level(logging.INFO), pytest.raises(RuntimeError, match="shapes cannot be multiplied") as raised:
        tilefuse.compile(Scaled(), (torch.ones(3, 7),), device="host")
    assert any("in torch as well" in note for note in raised.value.__notes__)
    assert ("forward", Path(__file__)) in [(entry.name, Path(entry.path)) for entry in raised.traceback]
    assert raised.value.__context__ is None, "nothing of the trace stands before it"
    assert not caplog.records and capfd.readouterr().err == ""


def test_inputs_that_do_not_fit_the_parameters() -> None:
    with pytest.raises(UserError, match=r"cannot be called with 2 arguments \(tensor, zz=tensor\): .*'zz'"):
        tilefuse.compile(Scaled(), (X,), example_kwargs={"zz": X})
    with pytest.raises(UserError, match="missing a required argument: 'x'"):
        tilefuse.compile(Scaled(), ())


def test_what_torch_cannot_trace_is_told_in_one_line(capfd: Any) -> None:
    def chosen(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.sum() > 0 else x - 1

    with pytest.raises(UnsupportedError, match="torch.export cannot trace chosen: .*data-dependent") as raised:
        tilefuse.compile(chosen, (X,), device="host")
    assert len(str(raised.value).splitlines()) == 2 and capfd.readouterr().err == ""


@pytest.mark.parametrize("options", [{"max_kernel_nodes": 0}, {"max_kernel_operands": 0}, {"plan_seconds": 10**10}, {"jobs": "-1"},
                                     {"jobs": "²"}, {"jobs": "1e3"}, {"stop_after": "nonesuch"}])
def test_settings_outside_their_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=next(iter(options))):
        tilefuse.compile(lambda x: x + 1, (X,), device="host", **options)
