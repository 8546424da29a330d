"""Files of torch.export whose results are of a class that another package registers."""
from __future__ import annotations

import importlib
import logging
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import tilefuse
from tilefuse.base.errors import UserError
from tilefuse.driver.onnx.model_file import exported_program

NAME = "absent_package.outputs.Output"


@dataclass
class Output:
    """Results of the exported model."""

    logits: Any


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """A file that gives an `Output`, which torch knows by the name of another package, but not any more."""
    pytree.register_pytree_node(Output, lambda o: ([o.logits], ["logits"]), lambda leaves, _: Output(*leaves), serialized_type_name=NAME,
                                flatten_with_keys_fn=lambda o: ([(pytree.GetAttrKey("logits"), o.logits)], ["logits"]))

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> Output:
            return Output(x * 2)

    torch.export.save(torch.export.export(Model(), (torch.ones(3),)), str(tmp_path / "m.pt2"))
    pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE.pop(NAME)
    yield tmp_path / "m.pt2"
    pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE[NAME] = Output
    pytree._deregister_pytree_node(Output)


def test_a_class_that_is_not_here_is_named_with_its_package(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "torch.export"), pytest.raises(UserError) as failure:
        exported_program(path)
    assert f"gives or takes a {NAME}" in str(failure.value) and "install the package absent_package" in str(failure.value)


def test_the_module_that_registers_it_is_imported(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.import_module

    def imported(name: str, package: str | None = None) -> types.ModuleType:
        if name != NAME.rpartition(".")[0]:
            return real(name, package)
        pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE[NAME] = Output
        return types.ModuleType(name)

    monkeypatch.setattr(importlib, "import_module", imported)
    found = tilefuse.compile(str(path), device="host")(torch.ones(3))
    assert isinstance(found, Output) and found.logits.tolist() == [2.0, 2.0, 2.0]
