"""Meanings of the shipped functions against NumPy in f64 with computed bounds, through the interpreter and the host executor."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tilefuse.base.errors import ParseError, UnsupportedError
from tilefuse.driver.compile import compile_graph
from tilefuse.frontends.imported import Imported
from tilefuse.ir.interpret import interpret
from tilefuse.ir.text import print_graph
from tilefuse.scripts.language.lower import ArgumentShape, call_graph, resolve
from tilefuse.scripts.language.meaning import graph_of_calls, parse_meaning
from tilefuse.scripts.language.routine_library import FunctionLibrary, read_library
from tilefuse.scripts.language.syntax import parse_script

Array = np.ndarray
ROUNDOFF = {"s": 2.0**-24, "d": 2.0**-53}
# Reference and its bound come from f64; sums of f64 are compared with those of longer floats.
WIDE = {"s": np.float64, "d": np.longdouble}


@dataclass(frozen=True)
class Reference:
    """Meaning of a function, and the sum of the magnitudes of all terms of each word; each of `terms` of them is rounded `steps` times."""

    inputs: str
    outputs: int
    value: Callable[..., Any]
    magnitude: Callable[..., Any]
    terms: Callable[[int, int], int] = lambda m, n: 2
    steps: int = 4


def _one(m: int, n: int) -> int:
    return 2


REFERENCES: dict[str, Reference] = {
    "copy": Reference("v", 1, lambda x: x, abs),
    "swap": Reference("vv", 2, lambda x, y: (y, x), lambda x, y: (abs(y), abs(x))),
    "scal": Reference("av", 1, lambda a, x: a * x, lambda a, x: abs(a * x)),
    "axpy": Reference("avv", 1, lambda a, x, y: a * x + y, lambda a, x, y: abs(a * x) + abs(y)),
    "waxpby": Reference("avav", 1, lambda a, x, b, y: a * x + b * y, lambda a, x, b, y: abs(a * x) + abs(b * y)),
    "vadd": Reference("vv", 1, lambda x, y: x + y, lambda x, y: abs(x) + abs(y)),
    "vmul": Reference("vv", 1, lambda x, y: x * y, lambda x, y: abs(x * y)),
    "rot": Reference("vvaa", 2, lambda x, y, c, s: (c * x + s * y, c * y - s * x),
                     lambda x, y, c, s: (abs(c * x) + abs(s * y), abs(c * y) + abs(s * x))),
    "dot": Reference("vv", 1, lambda x, y: np.dot(x, y), lambda x, y: np.dot(abs(x), abs(y)), lambda m, n: n),
    "asum": Reference("v", 1, lambda x: abs(x).sum(), lambda x: abs(x).sum(), lambda m, n: n),
    "nrm2": Reference("v", 1, lambda x: np.sqrt(np.dot(x, x)), lambda x: np.sqrt(np.dot(x, x)), lambda m, n: n),
    "gemv": Reference("Mn", 1, lambda a, x: a @ x, lambda a, x: abs(a) @ abs(x), lambda m, n: n),
    "gemtv": Reference("Mm", 1, lambda a, x: a.T @ x, lambda a, x: abs(a).T @ abs(x), lambda m, n: m),
    "gemv_full": Reference("aMnam", 1, lambda a, A, x, b, y: a * (A @ x) + b * y,
                           lambda a, A, x, b, y: abs(a) * (abs(A) @ abs(x)) + abs(b * y), lambda m, n: n + 2),
    "gemtv_full": Reference("aMman", 1, lambda a, A, x, b, y: a * (A.T @ x) + b * y,
                            lambda a, A, x, b, y: abs(a) * (abs(A).T @ abs(x)) + abs(b * y), lambda m, n: m + 2),
    "ger": Reference("amnM", 1, lambda a, x, y, A: a * np.outer(x, y) + A, lambda a, x, y, A: abs(a * np.outer(x, y)) + abs(A)),
    "ger_unit": Reference("Mmn", 1, lambda A, x, y: np.outer(x, y) + A, lambda A, x, y: abs(np.outer(x, y)) + abs(A)),
    "madd": Reference("MM", 1, lambda a, b: a + b, lambda a, b: abs(a) + abs(b)),
    "mscal": Reference("aM", 1, lambda a, b: a * b, lambda a, b: abs(a * b)),
    "divide": Reference("aa", 1, lambda a, b: a / b, lambda a, b: abs(a / b)),
    "multiply": Reference("aa", 1, lambda a, b: a * b, lambda a, b: abs(a * b)),
    "negate": Reference("a", 1, lambda a: -a, lambda a: abs(a)),
    "sqrt": Reference("a", 1, lambda a: np.sqrt(a), lambda a: np.sqrt(a)),
}
# Parts of square matrices; a symmetric matrix is made of either triangle.
PARTS: dict[str, Callable[[Array], Array]] = {
    "": np.tril, "_upper": np.triu, "_below": lambda a: np.tril(a, -1), "_above": lambda a: np.triu(a, 1),
}
for _suffix, _part in PARTS.items():
    REFERENCES["trmv" + _suffix] = Reference("Sn", 1, lambda a, x, part=_part: part(a) @ x, lambda a, x, part=_part: abs(part(a)) @ abs(x),
                                             lambda m, n: n)
    REFERENCES["trmtv" + _suffix] = Reference("Sn", 1, lambda a, x, part=_part: part(a).T @ x,
                                              lambda a, x, part=_part: abs(part(a)).T @ abs(x), lambda m, n: n)
for _suffix, _strict in (("", "_below"), ("_upper", "_above")):
    def _whole(a: Array, one: str = _suffix, other: str = _strict) -> Array:
        return PARTS[one](a) + PARTS[other](a).T

    REFERENCES["symv" + _suffix] = Reference("Sn", 1, lambda a, x, whole=_whole: whole(a) @ x,
                                             lambda a, x, whole=_whole: abs(whole(a)) @ abs(x), lambda m, n: n + 1)
    REFERENCES[f"symv{_suffix}_full"] = Reference(
        "aSnan", 1, lambda a, A, x, b, y, whole=_whole: a * (whole(A) @ x) + b * y,
        lambda a, A, x, b, y, whole=_whole: abs(a) * (abs(whole(A)) @ abs(x)) + abs(b * y), lambda m, n: n + 3)
CALLED = {"gemv_full": "gemv", "gemtv_full": "gemtv", "ger_unit": "ger", "symv_full": "symv", "symv_upper_full": "symv_upper"}
KINDS = {"S": "matrix", "M": "matrix", "v": "vector", "m": "vector", "n": "vector", "a": "scalar"}


@pytest.fixture(scope="module")
def library() -> FunctionLibrary:
    return read_library()


def imported(library: FunctionLibrary, text: str, given: Mapping[str, Array]) -> Imported:
    """The graph of a script for these arguments, with their strides."""
    shapes = {k: ArgumentShape(v.shape, tuple(s // v.itemsize for s in v.strides) if v.size else ()) for k, v in given.items()}
    return graph_of_calls(call_graph(resolve(parse_script(text), library), shapes, "script"))


def script_of(name: str, letter: str) -> tuple[str, list[str]]:
    """A script of one call, and the names of its inputs."""
    reference = REFERENCES[name]
    names = [f"i{n}" for n in range(len(reference.inputs))]
    results = ", ".join(f"o{n}" for n in range(reference.outputs))
    declared = " ".join(f"{KINDS[k]} {n};" for n, k in zip(names, reference.inputs, strict=True))
    call = f"{letter}{CALLED.get(name, name)}({', '.join(names)})"
    return f"{declared} input {', '.join(names)}; {results} = {call}; return {results};", names


def drawn(name: str, letter: str, m: int, n: int, rng: np.random.Generator) -> list[Array]:
    """Arguments of a function: numbers of magnitude one, positive where a root is taken."""
    shapes = {"S": (n, n), "M": (m, n), "v": (n,), "m": (m,), "n": (n,), "a": ()}
    made = [rng.standard_normal(shapes[k]).astype(np.float32 if letter == "s" else np.float64) for k in REFERENCES[name].inputs]
    return [abs(x) + 0.5 if name in ("sqrt", "divide") else x for x in (np.asarray(v) for v in made)]


def assert_close(name: str, letter: str, got: list[Array], values: list[Array], m: int, n: int) -> None:
    """Every word within the roundings of its terms. Source: Higham 2002, section 3.1."""
    reference = REFERENCES[name]
    wide = [v.astype(WIDE[letter]) for v in values]
    wanted, sizes = reference.value(*wide), reference.magnitude(*wide)
    if reference.outputs == 1:
        wanted, sizes = (wanted,), (sizes,)
    for g, w, s in zip(got, wanted, sizes, strict=True):
        bound = (reference.terms(m, n) + reference.steps) * ROUNDOFF[letter] * s
        assert g.shape == np.shape(w)
        assert (np.abs(g.astype(WIDE[letter]) - w) <= bound).all(), f"{letter}{name} {m}x{n}"


def test_every_shipped_function_is_tried(library: FunctionLibrary) -> None:
    """A new function comes with its reference here; iamax has a test of its own."""
    assert {n for n in (*library.functions, *library.composed) if n.startswith("s")} == {f"s{n}" for n in REFERENCES}


@pytest.mark.parametrize("letter", ["s", "d"])
@pytest.mark.parametrize("name", list(REFERENCES))
def test_meanings_are_numpys(library: FunctionLibrary, name: str, letter: str) -> None:
    """At odd sizes, one word, and none at all; rows and columns of either number."""
    rng = np.random.default_rng(7)
    text, names = script_of(name, letter)
    for m, n in ((37, 53), (1, 1), (1, 9), (9, 1), (0, 5), (5, 0), (0, 0)):
        values = drawn(name, letter, m, n, rng)
        given = dict(zip(names, values, strict=True))
        made = imported(library, text, given)
        got = interpret(made.graph, {i.name: given[i.name] for i in made.graph.inputs})
        assert_close(name, letter, list(got), values, m, n)


def on_host(made: Imported, given: Mapping[str, Array]) -> list[Array]:
    """Results of the compiled graph on the host executor."""
    import torch

    program = compile_graph(made.graph, constants={}, input_layouts=made.layouts, result_layouts=made.result_layouts, device="host")
    arguments = []
    for i in made.graph.inputs:
        strides = made.layouts.get(i.name)
        value = np.asarray(given[i.name])
        arguments.append(torch.from_numpy(value.copy() if strides is None else value))
    found = program(*arguments)
    return [t.numpy() for t in (found if isinstance(found, tuple | list) else [found])]


@pytest.mark.parametrize("name", ["axpy", "rot", "dot", "nrm2", "gemv", "gemtv_full", "ger", "divide"])
def test_compiled_meanings_are_numpys(library: FunctionLibrary, name: str) -> None:
    """The same through passes, plan, schedule and the host executor."""
    rng = np.random.default_rng(8)
    text, names = script_of(name, "s")
    for m, n in ((70, 131), (1, 1)):
        values = drawn(name, "s", m, n, rng)
        given = dict(zip(names, values, strict=True))
        assert_close(name, "s", on_host(imported(library, text, given), given), values, m, n)


def test_leading_dimensions_and_orders(library: FunctionLibrary) -> None:
    """Rows with gaps, columns with gaps, vectors of every second word: strides are the graph's layouts, turned matrices transposed."""
    rng = np.random.default_rng(9)
    a, x = rng.standard_normal((24, 40))[:, :33], rng.standard_normal(66)[::2]
    text = "matrix A; vector x; input A, x; y = dgemv(A, x); return y;"
    made = imported(library, text, {"A": a, "x": x})
    assert dict(made.layouts) == {"A": (40, 1), "x": (2,)}
    np.testing.assert_allclose(on_host(made, {"A": a, "x": x})[0], a @ x, rtol=1e-13)
    turned = np.asfortranarray(a)
    made = imported(library, text, {"A": turned, "x": x})
    assert made.graph.type_of("A").shape == (33, 24) and "A" not in made.layouts
    np.testing.assert_allclose(on_host(made, {"A": turned.T, "x": x})[0], a @ x, rtol=1e-13)


@pytest.mark.parametrize("letter", ["s", "d"])
@pytest.mark.parametrize(("values", "wanted"), [
    ([1, -5, 5, 2], 1), ([np.nan, 3, np.inf], 0), ([1, np.nan, -2], 2), ([0, 0, 0], 0), ([3], 0), ([], 0), ([-np.inf, np.inf], 0),
    ([0, np.nan, np.nan], 0), ([np.nan, np.nan], 0),
])
def test_the_largest_is_the_first_and_nan_counts_only_in_front(library: FunctionLibrary, letter: str, values: list[float],
                                                               wanted: int) -> None:
    """iamax as the reference computes it: comparisons with NaN are false, so a NaN in front stays and another is passed over."""
    x = np.array(values, np.float32 if letter == "s" else np.float64)
    made = imported(library, f"vector x; input x; k = i{letter}amax(x); return k;", {"x": x})
    (k,) = interpret(made.graph, {"x": x})
    assert k.dtype == np.int64 and int(k) == wanted


@pytest.mark.parametrize(("letter", "scale"), [
    ("s", 1e30), ("s", 1e-38), ("s", 3e-44), ("d", 1e300), ("d", 1e-300), ("d", 1e-320), ("d", 1.0)])
def test_norms_neither_overflow_nor_vanish(library: FunctionLibrary, letter: str, scale: float) -> None:
    """Words whose squares leave the range, alone and beside words of magnitude one."""
    dtype = np.float32 if letter == "s" else np.float64
    for parts in ([3, 4], [3, -4, 0]):
        # Long floats: the inverse of the smallest scale is beyond f64.
        values = np.array(parts, np.longdouble) * np.longdouble(scale)
        x = np.concatenate([values, [] if len(parts) == 2 else [2.5, 1e-3]]).astype(dtype)
        made = imported(library, f"vector x; input x; r = {letter}nrm2(x); return r;", {"x": x})
        (r,) = interpret(made.graph, {"x": x})
        wanted = np.sqrt(np.dot(x.astype(np.longdouble), x.astype(np.longdouble)))
        smallest = np.finfo(dtype).smallest_subnormal
        assert abs(np.longdouble(r) - wanted) <= 8 * ROUNDOFF[letter] * wanted + smallest, (parts, scale)


def test_norms_of_nan_and_infinity(library: FunctionLibrary) -> None:
    """NaN wherever it stands; infinity otherwise."""
    for letter, dtype in (("s", np.float32), ("d", np.float64)):
        for values, wanted in (([1, np.inf, 2], np.inf), ([1, np.nan], np.nan), ([np.inf, np.nan], np.nan)):
            x = np.array(values, dtype)
            made = imported(library, f"vector x; input x; r = {letter}nrm2(x); return r;", {"x": x})
            np.testing.assert_equal(interpret(made.graph, {"x": x})[0], dtype(wanted))


def test_operands_with_coefficient_zero_are_not_looked_at(library: FunctionLibrary) -> None:
    """As the reference documents it: y need not be set where beta is 0, nor A and x where alpha is; one is one."""
    a, x, y = np.ones((3, 4)), np.ones(4), np.ones(3)
    bad, worse = np.full(3, np.nan), np.full((3, 4), np.inf)
    text = "matrix A; vector x, y; scalar a, b; input a, A, x, b, y; z = dgemv(a, A, x, b, y); return z;"
    for alpha, matrix, beta, vector, wanted in (
            (2.0, a, 0.0, bad, 8.0), (0.0, worse, 3.0, y, 3.0), (1.0, a, 1.0, y, 5.0), (0.0, worse, 0.0, bad, 0)):
        given = {"a": np.array(alpha), "A": matrix, "x": x, "b": np.array(beta), "y": vector}
        made = imported(library, text, given)
        np.testing.assert_array_equal(interpret(made.graph, given)[0], np.full(3, wanted))
        literal = f"matrix A; vector x, y; input A, x, y; z = dgemv({alpha}, A, x, {beta}, y); return z;"
        made = imported(library, literal, {k: v for k, v in given.items() if k in "Axy"})
        found = interpret(made.graph, {i.name: given[i.name] for i in made.graph.inputs})
        np.testing.assert_array_equal(found[0], np.full(3, wanted))


def test_products_are_reductions_of_a_product(library: FunctionLibrary) -> None:
    """No library call: the pipeline sees every loop and subscript, and a coefficient given as a number decides at once."""
    given = {"A": np.ones((3, 4), np.float32), "x": np.ones(4, np.float32), "y": np.ones(3, np.float32)}
    text = "matrix A; vector x, y; input A, x, y; z = sgemv(2, A, x, 0, y); w = svadd(z, y); return w;"
    assert print_graph(imported(library, text, given).graph) == """\
graph @script(%A: f32[3, 4], %x: f32[4], %y: f32[3]) -> (f32[3]) {
  %z_sum: f32[3] = reduce.sum [i] over [j < 4] { mul(%A[i, j], %x[j]) }
  %z: f32[3] = map [i] { add(mul(2.0:f32, %z_sum[i]), 0.0:f32) }
  %w: f32[3] = map [i] { add(%z[i], %y[i]) }
  return %w
}
"""


def test_parts_of_a_script(library: FunctionLibrary) -> None:
    """Any convex part: its inputs are what it reads and does not compute, its results what others need."""
    text = "matrix A; vector x, y; input A, x, y; q = sgemv(A, x); s = sgemtv(A, y); t = sscal(2, q); return s, t;"
    shapes = {"A": ArgumentShape((3, 4)), "x": ArgumentShape((4,)), "y": ArgumentShape((3,))}
    graph = call_graph(resolve(parse_script(text), library), shapes)
    first = graph_of_calls(graph, (1, 0)).graph
    assert [i.name for i in first.inputs] == ["A", "x", "y"] and first.results == ("q", "s")
    last = graph_of_calls(graph, (2,)).graph
    assert [i.name for i in last.inputs] == ["q"] and last.results == ("t",)


def test_a_function_without_a_meaning(library: FunctionLibrary) -> None:
    """Only routines can compute it."""
    from dataclasses import replace

    bare = FunctionLibrary({n: replace(f, meaning={}) for n, f in library.functions.items()}, library.composed, library.calls)
    with pytest.raises(UnsupportedError, match="sscal has no meaning"):
        imported(bare, "vector x; input x; y = sscal(2, x); return y;", {"x": np.ones(3, np.float32)})


@pytest.mark.parametrize(("text", "message"), [
    ("z[i] = x[i] +", "expected a value, found 'the end'"), ("z[i] = foo(x[i])", "unknown function foo"), ("z[i] x[i]", "expected '='"),
    ("z[i] = x[i] $", "unexpected character '$'"), ("z[i] = exp(x[i], y[i])", "exp takes 1 operands, 2 given"),
    ("z[i] = x[i] y[i]", "expected an operator or ';', found 'y'"),
])
def test_meanings_that_do_not_parse(text: str, message: str) -> None:
    """With the place in the text."""
    with pytest.raises(ParseError) as caught:
        parse_meaning(text)
    assert message in caught.value.message and "^" in str(caught.value)
