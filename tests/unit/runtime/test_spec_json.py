"""A spec survives JSON, and what is no spec is the user's error."""
from __future__ import annotations

import dataclasses
import json

import pytest

from tests.unit.runtime.handmade import cuda_kernel, host_kernel, value
from tilefuse.base.errors import UserError
from tilefuse.runtime.spec import CopyStep, KernelStep, LibraryStep, ProgramSpec
from tilefuse.runtime.spec_json import spec_from_json, spec_to_json
from tilefuse.target.tensor_map import MapParameter

SPEC = ProgramSpec(
    "p", "host", ("x",), ("y", "v"),
    (value("x", "input"), value("w", "constant", ()), value("y", "result"), value("v", "view", (2, 32), base="y", offset=64)),
    (host_kernel("k", "a[i]"), cuda_kernel("c", "a[i]")),
    (KernelStep(0, ("x", "y")), CopyStep("y", "x"),
     LibraryStep("aten.f.default", ("x", "w"), ("", "y"), (("args", (("%", 0), ("list", 1, 2.5, None), True)), ("eps", float("-inf"))))),
    ("x",), "plan @p {}", "why")


def test_round_trip() -> None:
    assert spec_from_json(spec_to_json(SPEC)) == SPEC


def test_tensor_maps_survive() -> None:
    """A text from before kernels had maps is read as one without."""
    maps = (MapParameter("a_map", 0, 8, 2, (3, 5, 100), (800, 160), (1, 4, 64), 128), MapParameter("y_map", 1, 0, 4, (7,), (), (4,)))
    spec = dataclasses.replace(SPEC, kernels=(dataclasses.replace(SPEC.kernels[1], maps=maps),))
    assert spec_from_json(spec_to_json(spec)) == spec
    record = json.loads(spec_to_json(SPEC))
    for kernel in record["kernels"]:
        assert kernel.pop("maps") == []
    assert spec_from_json(json.dumps(record)) == SPEC


def test_nan_survives() -> None:
    spec = dataclasses.replace(SPEC, steps=(LibraryStep("f", (), (), (("x", float("nan")),)),))
    step = spec_from_json(spec_to_json(spec)).steps[0]
    assert isinstance(step, LibraryStep) and repr(step.attributes) == "(('x', nan),)"


@pytest.mark.parametrize("text", ["", "{}", "[]", "3", '{"format": 1}', spec_to_json(SPEC)[:200]])
def test_what_is_no_spec(text: str) -> None:
    with pytest.raises(UserError, match="not a saved program"):
        spec_from_json(text)


def test_other_format_is_named() -> None:
    record = json.loads(spec_to_json(SPEC))
    with pytest.raises(UserError, match="another version"):
        spec_from_json(json.dumps({**record, "format": 99}))
