"""Planted faults of recording, finding and computing symbolic arrays: each must turn a test red."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tilefuse.array as ta
from tests.end_to_end.arrays import test_array_execution as execution
from tests.unit.arrays.functions import test_elementwise as elementwise
from tests.unit.arrays.functions import test_manipulation as manipulation
from tilefuse.arrays import array
from tilefuse.arrays import nodes as array_nodes
from tilefuse.arrays.evaluation import evaluate as array_evaluate
from tilefuse.arrays.evaluation import gradients as array_gradients
from tilefuse.arrays.graph import structure_of
from tilefuse.arrays.nodes import ArrayNode
from tilefuse.base.bounded import Bounded


def blind_structure(nodes: list[ArrayNode]) -> tuple[Any, list[ArrayNode]]:
    """The structure without what each operation reads."""
    structure, leaves = structure_of(nodes)
    return len(structure), leaves


def new_structure(nodes: list[ArrayNode]) -> tuple[Any, list[ArrayNode]]:
    """A structure that equals no other."""
    return (object(),), structure_of(nodes)[1]


def operations_differ() -> None:
    """Two programs of the same size over the same arrays."""
    x, y = ta.asarray([5.0, 1.0], device="host"), ta.asarray([1.0, 2.0], device="host")
    assert (x - y).tolist() == [4, -1] and (x + y).tolist() == [6, 3]


def zeros_differ() -> None:
    """A constant 0.0 is not -0.0, also where the other was recorded first."""
    x = ta.asarray([2.0], device="host")
    assert ta.copysign(x, 0.0).tolist() == [2] and ta.copysign(x, -0.0).tolist() == [-2]


FAULTS: dict[str, tuple[object, str, object, Callable[[], None]]] = {
    "programs are found by their size": (array_evaluate, "structure_of", blind_structure, operations_differ),
    "numbers are looked up by their value": (array, "repr", lambda number: 0.0, zeros_differ),
    "nothing is remembered": (array_evaluate, "structure_of", new_structure, execution.test_a_structure_is_compiled_once),
    "the package is the user": (array_nodes, "NOT_THE_USERS", ("nowhere",), manipulation.test_errors_name_the_users_line),
    "views of data are recorded": (array, "_view", lambda source, plan: None, execution.test_batches_compile_nothing),
    "what was forgotten counts as constant": (
        array_gradients, "_check_history", lambda y, xs: None, execution.test_gradients_know_what_was_forgotten),
    "numbers widen arrays": (
        array, "operand_dtype", lambda row, dtypes, numbers: ta.float64 if numbers else dtypes[0],
        elementwise.test_python_numbers_take_the_arrays_type),
}


@pytest.mark.parametrize("name", list(FAULTS))
def test_a_planted_fault_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test is green without the fault and red with it; nothing recorded before hides it."""
    place, attribute, fault, test = FAULTS[name]
    if test in (operations_differ, zeros_differ):  # the others run by themselves
        test()
    monkeypatch.setattr(array, "_known", {})
    monkeypatch.setattr(array_nodes, "_recordings", {})
    monkeypatch.setattr(array_evaluate, "_programs", Bounded(100))
    monkeypatch.setattr(array_evaluate.Evaluation, "default_device", staticmethod(lambda: "host"))
    monkeypatch.setattr(place, attribute, fault, raising=attribute != "repr")
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        test()
