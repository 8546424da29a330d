"""Inputs and results by the model's own names, also where those are no names of the graph's text form."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import helper

import tilefuse
from tests.end_to_end.onnx.models import model_of
from tilefuse.base.errors import NameLookupError, ShapeError, UserError
from tilefuse.onnx_backend import PreparedModel
from tilefuse.tools import cli

NODES = [helper.make_node("Add", ["x/1", "x_1"], ["a/b"]), helper.make_node("Relu", ["a/b"], ["a_b"]),
         helper.make_node("Identity", ["a/b"], ["same.again"])]
MODEL = model_of(NODES, {"x/1": [2, 3], "x_1": [2, 3]}, ["a/b", "a_b", "same.again"])
INPUTS, RESULTS = ("x/1", "x_1"), ("a/b", "a_b", "same.again")
X, Y = torch.arange(6.0).reshape(2, 3) - 3, torch.ones(2, 3)


@pytest.mark.parametrize("saved", [False, True], ids=["compiled", "saved"])
def test_a_program_takes_and_tells_the_models_names(saved: bool, tmp_path: Path) -> None:
    program = tilefuse.compile(MODEL, device="host")
    if saved:
        program.save(str(tmp_path / "program"))
        program = tilefuse.load(str(tmp_path / "program"))
    assert (program.spec.told_inputs, program.spec.told_results) == (INPUTS, RESULTS)
    for found in (program(X, Y), program(**{"x_1": Y, "x/1": X}), program(X, x_1=Y)):
        torch.testing.assert_close(found, [X + Y, (X + Y).relu(), X + Y])
    with pytest.raises(NameLookupError, match="'x/2'") as caught:
        program(X, **{"x/2": Y})
    assert "x/1" in str(caught.value)
    with pytest.raises(UserError, match="x/1"):
        program(x_1=Y)
    with pytest.raises(ShapeError, match=r"argument 0 \(x/1\)"):
        program(X[:1], Y)
    facts = program.explain(json=True)
    assert [told for told, _ in facts["inputs"]] == list(INPUTS) and [told for told, _ in facts["results"]] == list(RESULTS)
    assert "a/b is %a_b_1" in program.explain()


def test_a_known_program_is_told_anew() -> None:
    """The cache of programs knows graphs, which are alike for models that differ in such names alone."""
    for name in ("first/out", "first.out"):
        node = helper.make_node("Relu", ["x:0"], [name])
        spec = tilefuse.compile(model_of([node], {"x:0": [5]}, [name]), device="host").spec
        assert (spec.told_inputs, spec.told_results, spec.results) == (("x:0",), (name,), ("first_out",))


def test_the_backends_results_are_named() -> None:
    prepared = PreparedModel(MODEL, "host")
    found = prepared.run({"x/1": X.numpy(), "x_1": Y.numpy()})
    assert prepared.output_names == list(RESULTS)
    np.testing.assert_array_equal(found[0], (X + Y).numpy())


def test_the_command_line_reads_and_writes_arrays_by_those_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, given, made = tmp_path / "model.onnx", tmp_path / "in.npz", tmp_path / "out.npz"
    onnx.save(MODEL, str(model))
    np.savez(given, **{"x/1": X.numpy(), "x_1": Y.numpy()})
    assert cli.main(["run", str(model), "--device", "host", "--inputs", str(given), "--save-outputs", str(made), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert list(facts["inputs"]) == list(INPUTS) and list(facts["results"]) == list(RESULTS)
    found = np.load(made)
    assert sorted(found.files) == sorted(RESULTS)
    np.testing.assert_array_equal(found["a/b"], (X + Y).numpy())
