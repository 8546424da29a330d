"""Registered scalar functions: records like the built-in ones, with texts, adjoints and errors that name what is wrong."""
from __future__ import annotations

import numpy as np
import pytest

from tilefuse.base.errors import CompilerError, NameLookupError, TypeMismatchError, UserError
from tilefuse.ir.custom import CUSTOM_FUNCTIONS, custom_texts, definition, parse_signature, register_function
from tilefuse.ir.ops import NARROW_CUDA, SCALAR_OPS
from tilefuse.ir.text import parse_graph, print_graph

GRAPH = """graph @g(%x: f32[8]) -> (f32[8]) {
  %y: f32[8] = map [i] { my_sigmoid(%x[i]) }
  return %y
}
"""


def meaning(*arrays: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-arrays[0])))


def sigmoid(**given: object) -> None:
    arguments = {"name": "my_sigmoid", "signature": "(x: float) -> float", "cuda": "1 / (1 + exp(-x))", "adjoint": "g * y * (1 - y)",
                 "meaning": meaning} | given
    register_function(**arguments)  # type: ignore[arg-type]


def test_a_function_prints_and_parses_as_a_built_in_one() -> None:
    with pytest.raises(CompilerError, match="unknown function"):
        parse_graph(GRAPH)
    sigmoid()
    graph = parse_graph(GRAPH)
    assert print_graph(graph) == GRAPH
    assert custom_texts(graph)[0][0] == "my_sigmoid"


def test_the_record_has_what_the_table_asks_for() -> None:
    sigmoid(flops=9, doc="of mine")
    op = SCALAR_OPS["my_sigmoid"]
    assert (op.arity, op.dtypes, op.result, op.flops, op.doc) == (1, ("f32", "f64"), "same", 9, "of mine")
    assert op.cuda["f32"].format("a[0]") == "tf_custom_my_sigmoid(a[0])"
    assert op.adjoint == ("mul(mul(g, y), sub(1.0, y))",)


def test_there_is_one_definition_for_each_type_and_literals_have_it() -> None:
    sigmoid(cuda="0.5 * (tanh(0.5 * x) + 1e0) * 1.0f", host="1 / (1 + exp(-x))")
    cuda, host = definition("tf_custom_my_sigmoid", "cuda"), definition("tf_custom_my_sigmoid", "host")
    assert cuda is not None and host is not None
    assert "float tf_custom_my_sigmoid(float x)" in cuda and "double tf_custom_my_sigmoid(double x)" in cuda
    assert "return T(0.5) * (tanh(T(0.5) * x) + T(1e0)) * 1.0f;" in cuda
    assert "using namespace std;" in host and "exp(-x)" in host
    assert definition("tf_sigmoid", "cuda") is None


def test_the_same_definition_again_changes_nothing_and_another_one_is_refused() -> None:
    sigmoid()
    record = SCALAR_OPS["my_sigmoid"]
    sigmoid()
    assert SCALAR_OPS["my_sigmoid"] is record
    with pytest.raises(UserError, match="registered already"):
        sigmoid(cuda="x")


@pytest.mark.parametrize("given, error, words", [
    ({"name": "sigmoid"}, UserError, "exists already"),
    ({"name": "f32"}, UserError, "exists already"),
    ({"name": "My Op"}, UserError, "is no name"),
    ({"signature": "x -> y"}, UserError, "no signature"),
    ({"signature": "(x: float, z: int) -> float"}, TypeMismatchError, "one type"),
    ({"signature": "(y: float) -> float"}, UserError, "differ"),
    ({"signature": "(x: floaty) -> floaty"}, TypeMismatchError, "no class"),
    ({"signature": "(x: float) -> f16"}, TypeMismatchError, "neither"),
    ({"cuda": "1 / (1 + exp(-x)"}, UserError, "do not match"),
    ({"cuda": "1 / (1 + epx(-x))"}, NameLookupError, "unknown name epx"),
    ({"cuda": "1 / (1 + exp(-z))"}, NameLookupError, "unknown name z"),
    ({"cuda": "__expf(x)"}, UserError, "only devices have"),
    ({"adjoint": ("g", "g")}, UserError, "1 arguments and 2 adjoints"),
    ({"adjoint": "g * h"}, NameLookupError, "unknown name h"),
    ({"adjoint": "g *"}, UserError, "no expression"),
    ({"adjoint": "[g]"}, UserError, "no arithmetic"),
    ({"adjoint": "sigmod(g)"}, NameLookupError, "calls sigmod"),
])
def test_what_is_wrong_is_said_at_registration(given: dict[str, object], error: type[CompilerError], words: str) -> None:
    with pytest.raises(error, match=words):
        sigmoid(**given)
    assert "my_sigmoid" not in SCALAR_OPS


def test_device_functions_are_fine_with_a_host_text() -> None:
    sigmoid(cuda="__fdividef(1.0f, 1.0f + __expf(-x))", signature="(x: f32) -> f32", host="1 / (1 + exp(-x))")
    assert SCALAR_OPS["my_sigmoid"].dtypes == ("f32",)


def test_adjoints_are_written_as_arithmetic() -> None:
    sigmoid(signature="(a: float, b: float) -> float", cuda="a > b ? a : b * a",
            adjoint=("g if a > b else g * b", "where(a > b, 0, g * a ** 2)"))
    assert SCALAR_OPS["my_sigmoid"].adjoint == (
        "select(gt(x0, x1), g, mul(g, x1))", "select(gt(x0, x1), 0.0, mul(g, pow(x0, 2.0)))")


def test_without_an_adjoint_the_record_has_none() -> None:
    sigmoid(adjoint=None)
    assert SCALAR_OPS["my_sigmoid"].adjoint == ()


def test_signatures() -> None:
    assert parse_signature("(x: number, k: number) -> bool") == (("x", "k"), "number", "bool")
    assert parse_signature("(x: i32) -> i32") == (("x",), "i32", "same")


def test_kernels_of_narrow_data_take_the_short_forms() -> None:
    sigmoid()
    found = CUSTOM_FUNCTIONS["my_sigmoid"]
    assert "tf_narrow_exp(a.held)" in found.narrow and "tf_narrow_div(a.held, b.held)" in found.narrow
    assert definition("tf_custom_my_sigmoid_narrow", "cuda") == found.narrow
    assert NARROW_CUDA["my_sigmoid"] == "tf_custom_my_sigmoid_narrow({0})"


@pytest.mark.parametrize("text", ["return x;", "expf(x)", "pow(x, 2)", "(float)x"])
def test_texts_beyond_operators_and_short_forms_have_none(text: str) -> None:
    sigmoid(cuda=text, adjoint=None)
    assert CUSTOM_FUNCTIONS["my_sigmoid"].narrow == "" and "my_sigmoid" not in NARROW_CUDA


@pytest.mark.parametrize("turn", (1, 2))
def test_what_a_test_registers_ends_with_it(turn: int) -> None:
    assert "kept_of_a_test" not in CUSTOM_FUNCTIONS
    register_function("kept_of_a_test", "(x: float) -> float", "x + 1", meaning=lambda x: x + 1)
