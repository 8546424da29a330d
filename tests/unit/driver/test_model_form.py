"""A saved model is called as the model was and gives results of the same structure, with the same conditions on its arguments."""
from __future__ import annotations

import json
import subprocess
import sys
import warnings
import zipfile
from collections import OrderedDict, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch.utils import _pytree as pytree

import tilefuse
from tilefuse.base.errors import UserError
from tilefuse.driver.model_form import NotKeptError, StructureWarning, _number_data, _number_of, structure_data, template_of


class Pair(NamedTuple):
    """Results by place and by name."""

    first: Any
    second: Any


@dataclass
class Scores:
    """Results as a record that torch knows."""

    logits: Any
    states: Any = None


pytree.register_dataclass(Scores)
X = torch.arange(6.0).reshape(2, 3)
MODELS = {
    "tensor": lambda x: x + 1,
    "tuple": lambda x: (x + 1, x.sum()),
    "mapping": lambda x: {"logits": x * 2, "states": [x.sum(0), x.sum(1)], "scale": 3},
    "ordered": lambda x: OrderedDict(b=x, a=x * 2),
    "namedtuple": lambda x: Pair(x * 2, (x, None)),
    "dataclass": lambda x: Scores(x.exp(), (x * 2,)),
    "permuted": lambda x: {"turned": (x + 1).t(), "same": x},
}


def same(found: Any, expected: Any) -> None:
    assert type(found) is type(expected)
    leaves, spec = pytree.tree_flatten(expected)
    ours, our_spec = pytree.tree_flatten(found)
    assert our_spec == spec
    for a, b in zip(ours, leaves, strict=True):
        torch.testing.assert_close(a, b) if isinstance(b, torch.Tensor) else None
        assert isinstance(b, torch.Tensor) or a == b


@pytest.mark.parametrize("name", MODELS)
def test_results_keep_their_structure(name: str, tmp_path: Path) -> None:
    compiled = tilefuse.compile(MODELS[name], (X,), device="host")
    compiled.save(tmp_path / "m")
    loaded = tilefuse.load(tmp_path / "m")
    same(compiled(X), MODELS[name](X))
    same(loaded(X), MODELS[name](X))
    assert loaded.output_names == compiled.output_names
    loaded.save(tmp_path / "again")
    same(tilefuse.load(tmp_path / "again")(X), MODELS[name](X))


def test_outputs_have_the_names_of_their_keys() -> None:
    named = {n: tilefuse.compile(MODELS[n], (X,), device="host").output_names for n in ("tensor", "tuple", "mapping", "dataclass")}
    assert named == {"tensor": [], "tuple": [], "mapping": ["logits", "states.0", "states.1"], "dataclass": ["logits", "states.0"]}


def test_arguments_keep_names_structure_and_numbers(tmp_path: Path) -> None:
    def model(x: torch.Tensor, options: dict[str, Any], *, scale: float = 1.0, half: bool = False) -> torch.Tensor:
        y = (x + options["bias"]) * scale * options["times"]
        return y.half() if half else y

    given, named = (X, {"bias": torch.ones(3), "times": 2}), {"scale": 0.5, "half": True}
    compiled = tilefuse.compile(model, given, device="host", example_kwargs=named)
    compiled.save(tmp_path / "m")
    loaded = tilefuse.load(tmp_path / "m")
    torch.testing.assert_close(loaded(*given, **named), model(*given, **named))
    torch.testing.assert_close(loaded(options=given[1], x=X, **named), model(*given, **named))
    with pytest.raises(UserError, match=r"argument 2 is 3, but the model was compiled for 2"):
        loaded(X, {"bias": torch.ones(3), "times": 3}, **named)
    with pytest.raises(UserError, match="'bias': tensor"):
        loaded(X, {"bais": torch.ones(3), "times": 2}, **named)
    by_place, by_name = loaded.arguments_of([X, torch.ones(3)])
    torch.testing.assert_close(loaded(*by_place, **by_name), model(*given, **named))


@pytest.mark.parametrize("number", [None, True, 3, -0.0, float("inf"), 2 + 1j, "relu", torch.bfloat16, torch.device("cpu")])
def test_numbers_come_back_as_they_were(number: Any) -> None:
    assert repr(_number_of(json.loads(json.dumps(_number_data(number))))) == repr(number)


def test_what_has_no_form_as_data_is_told_and_saved_flat(tmp_path: Path) -> None:
    """Results in a class that a file cannot find: the loaded program gives the list of tensors, and saving warns of it."""
    compiled = tilefuse.compile(lambda x: defaultdict(list, a=x + 1), (X,), device="host")
    with pytest.warns(StructureWarning, match="gives a list of them: .*defaultdict"):
        compiled.save(tmp_path / "m")
    (found,) = tilefuse.load(tmp_path / "m")(X)
    torch.testing.assert_close(found, X + 1)
    with pytest.raises(NotKeptError, match="type object"):
        _number_data(object())


def test_a_class_that_is_not_here_becomes_a_mapping() -> None:
    data = structure_data(pytree.tree_structure(Pair(1, {"a": 2})))
    assert isinstance(template_of(data), Pair)
    with pytest.warns(StructureWarning, match="nowhere.Pair is not here"):
        assert type(template_of({**data, "type": "nowhere:Pair"})) is tuple
    with pytest.warns(StructureWarning, match="by a mapping"):
        assert list(template_of({**data, "type": "nowhere:Pair", "context": ["p", "q"]})) == ["p", "q"]


def test_loading_needs_no_part_of_the_compiler(tmp_path: Path) -> None:
    tilefuse.compile(MODELS["mapping"], (X,), device="host").save(tmp_path / "m")
    code = ("import sys, torch, tilefuse; p = tilefuse.load(sys.argv[1]); "
            "assert p(torch.ones(2, 3))['states'][1].tolist() == [3.0, 3.0]; "
            "rooms = ('tilefuse.plan', 'tilefuse.templates', 'tilefuse.passes', 'tilefuse.domain', 'tilefuse.kernel'); "
            "bad = [m for m in sys.modules if m.startswith(rooms)]; assert not bad, bad")
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "m")], check=True, timeout=120)


def test_a_damaged_form_is_the_files_fault(tmp_path: Path) -> None:
    path = tmp_path / "m"
    tilefuse.compile(MODELS["mapping"], (X,), device="host").save(path)
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(tmp_path / "damaged", "w") as new:
        for name in old.namelist():
            new.writestr(name, b'{"format": 1}' if name == "model.json" else old.read(name))
    with pytest.raises(UserError, match="not a readable saved program"), warnings.catch_warnings():
        tilefuse.load(tmp_path / "damaged")
