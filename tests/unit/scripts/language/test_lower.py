"""Scripts over the shipped library: names and kinds resolved, sizes unified, column-major matrices turned."""
from __future__ import annotations

import pytest

from tilefuse.base.errors import CompilerError, NameLookupError, ParseError, ShapeError, TypeMismatchError, UserError
from tilefuse.scripts.language.elementary import CallGraph
from tilefuse.scripts.language.lower import ArgumentShape, call_graph, resolve
from tilefuse.scripts.language.routine_library import FunctionLibrary, read_library
from tilefuse.scripts.language.syntax import parse_script

BICGK = "matrix A; vector p, q, r, s; input A, p, r; q = sgemv(A, p); s = sgemtv(A, r); return q, s;"


@pytest.fixture(scope="module")
def library() -> FunctionLibrary:
    return read_library()


def lowered(library: FunctionLibrary, text: str, **shapes: tuple[int, ...] | ArgumentShape) -> CallGraph:
    """The call graph of a script for arguments of these shapes."""
    given = {k: v if isinstance(v, ArgumentShape) else ArgumentShape(v) for k, v in shapes.items()}
    return call_graph(resolve(parse_script(text), library), given)


def test_sizes_are_unified(library: FunctionLibrary) -> None:
    """Every call knows its sizes, every result its shape and type."""
    graph = lowered(library, BICGK, A=(300, 512), p=(512,), r=(300,))
    assert [(c.function.name, c.arguments, c.results, dict(c.sizes)) for c in graph.calls] == [
        ("sgemv", ("A", "p"), ("q",), {"m": 300, "n": 512}), ("sgemtv", ("A", "r"), ("s",), {"m": 300, "n": 512})]
    assert {n: v.shape for n, v in graph.variables.items()} == {"A": (300, 512), "p": (512,), "r": (300,), "q": (300,), "s": (512,)}
    assert graph.producer("q") == 0 and graph.readers("A") == (0, 1)


def test_functions_of_one_name_differ_in_the_number_of_arguments(library: FunctionLibrary) -> None:
    """sgemv(A, x) and sgemv(alpha, A, x, beta, y) are two functions."""
    text = "matrix A; vector x, y; input A, x, y; t = sgemv(A, x); z = sgemv(2, A, x, -1, y); return t, z;"
    graph = lowered(library, text, A=(5, 7), x=(7,), y=(5,))
    assert [c.function.name for c in graph.calls] == ["sgemv", "sgemv_full"]
    assert graph.calls[1].arguments == (2.0, "A", "x", -1.0, "y")


def test_calls_that_nothing_needs_are_left_out(library: FunctionLibrary) -> None:
    """Only what a result depends on is computed."""
    graph = lowered(library, "vector x; input x; a = sscal(2, x); b = sscal(3, x); c = scopy(a); return c;", x=(8,))
    assert [c.results for c in graph.calls] == [("a",), ("c",)]


def test_scalars_are_values_too(library: FunctionLibrary) -> None:
    """The result of a reduction is an argument of later calls."""
    text = "vector x, y; input x, y; d = sdot(x, y); e = snegate(d); z = saxpy(e, x, y); return z, d;"
    graph = lowered(library, text, x=(9,), y=(9,))
    assert graph.variables["d"].shape == () and graph.calls[2].arguments == ("e", "x", "y")


def test_column_major_matrices_are_turned(library: FunctionLibrary) -> None:
    """A declared column-major matrix becomes its transposed, row-major one, and the calls their siblings."""
    graph = lowered(library, BICGK.replace("matrix A", "matrix A column major"), A=(300, 512), p=(512,), r=(300,))
    a = graph.variables["A"]
    assert (a.shape, a.word_strides, a.is_transposed, a.column_major) == ((512, 300), (300, 1), True, False)
    assert [(c.function.name, dict(c.sizes)) for c in graph.calls] == [("sgemtv", {"m": 512, "n": 300}), ("sgemv", {"m": 512, "n": 300})]


def test_strides_decide_where_they_are_given(library: FunctionLibrary) -> None:
    """An array that lies column by column is turned whatever the script declares; leading dimensions are kept."""
    graph = lowered(library, BICGK, A=ArgumentShape((300, 512), (1, 304)), p=(512,), r=ArgumentShape((300,), (2,)))
    assert graph.variables["A"].is_transposed and graph.variables["A"].word_strides == (304, 1)
    assert graph.variables["r"].word_strides == (2,)
    kept = lowered(library, BICGK, A=ArgumentShape((300, 512), (520, 1)), p=(512,), r=(300,))
    assert not kept.variables["A"].is_transposed and kept.variables["A"].word_strides == (520, 1)


def test_turned_updates_exchange_their_vectors(library: FunctionLibrary) -> None:
    """B = alpha x y^T + A of column-major matrices is B^T = alpha y x^T + A^T, and B lies as A does."""
    text = "matrix A column major; vector x, y; input A, x, y; B = sger(2, x, y, A); s = sgemtv(B, x); return B, s;"
    graph = lowered(library, text, A=(4, 6), x=(4,), y=(6,))
    assert graph.calls[0].arguments == (2.0, "y", "x", "A") and graph.variables["B"].is_transposed
    assert graph.calls[1].function.name == "sgemv" and dict(graph.calls[0].sizes) == {"m": 6, "n": 4}


def test_matrices_of_both_orders_in_one_call_keep_their_strides(library: FunctionLibrary) -> None:
    """C = A + B with A by columns and B by rows: nothing is turned, the strides say how each lies."""
    text = "matrix A column major; matrix B; input A, B; C = smadd(A, B); return C;"
    graph = lowered(library, text, A=(4, 6), B=(4, 6))
    assert not graph.variables["A"].is_transposed
    assert graph.variables["A"].word_strides == (1, 4) and graph.variables["B"].word_strides == (6, 1)


@pytest.mark.parametrize(("text", "error", "line_part", "message", "hint"), [
    (BICGK.replace("sgemtv(", "sgmtv("), NameLookupError, "sgmtv", "there is no function sgmtv", "sgemtv"),
    (BICGK.replace("sgemtv(", "dgemtv("), TypeMismatchError, "A, r); return", "A is f32 for sgemv and f64 for dgemtv", "one element type"),
    (BICGK.replace("sgemtv(A", "sgemtv(1.5"), TypeMismatchError, "1.5", "sgemtv takes a matrix as A, not the number 1.5", "sgemtv(A, r)"),
    (BICGK.replace("sgemtv(A, r", "sgemtv(r, A"), TypeMismatchError, "r, A);", "r is a vector, sgemtv takes a matrix as A", "sgemtv"),
    (BICGK.replace("s = sgemtv", "q = sgemtv"), ParseError, "q = sgemtv", "q has a value already (line 1)", "another name"),
    (BICGK.replace("return q, s", "return q, t"), NameLookupError, "t;", "t is returned and never computed", None),
    (BICGK.replace("return q, s", "return q, p"), ParseError, "p;", "p is an input and is returned unchanged", "scopy(p)"),
    (BICGK.replace("return q, s", "return q, q"), ParseError, "q, q", "q is returned twice", None),
    (BICGK.replace("input A, p, r", "input A, p"), NameLookupError, "r); return", "r has no value here", "input"),
    (BICGK.replace("input A, p, r", "input A, p, r, u"), NameLookupError, "u; q", "the input u is not declared", "scalar u"),
    (BICGK.replace("input A, p, r", "input A, p, r, s"), ParseError, "s = sgemtv", "s has a value already", None),
    (BICGK.replace("sgemv(A, p)", "sgemv(A)"), ParseError, "sgemv(A)", "sgemv takes 2 or 5 arguments, 1 given", "y = sgemv(A, x)"),
    (BICGK.replace("q = sgemv(A, p);", "").replace("q, s;", "s;").replace("input A, p", "input A, p"), ParseError, "p, r; ",
     "the input p is used by no call", "drop it"),
    (BICGK.replace("s = sgemtv", "s, t = sgemtv"), ParseError, "s, t =", "sgemtv has 1 result, 2 named", "s = sgemtv"),
    (BICGK.replace("vector p, q", "vector p; scalar q; vector u"), TypeMismatchError, "q = sgemv", "q is declared as a scalar", "vector q"),
])
def test_errors_of_names_and_kinds(library: FunctionLibrary, text: str, error: type[CompilerError], line_part: str, message: str,
                                   hint: str | None) -> None:
    """Each slip with its place, what it is and what to do."""
    with pytest.raises(error) as caught:
        resolve(parse_script(text), library)
    assert message in caught.value.message
    where = caught.value.where
    assert where is not None and text[where.column - 1:].startswith(line_part), str(caught.value)  # type: ignore[union-attr]
    assert hint is None or hint in (caught.value.hint or "")


def test_disagreeing_sizes_show_both_sides(library: FunctionLibrary) -> None:
    """The shapes of both, the caret at the second, and the transposed product where that would fit."""
    with pytest.raises(ShapeError) as caught:
        lowered(library, BICGK, A=(300, 512), p=(300,), r=(300,))
    assert caught.value.message == "y = sgemv(A, x): n is 512 for A [300, 512] and 300 for p [300]"
    assert "sgemtv" in (caught.value.hint or "")
    with pytest.raises(ShapeError, match=r"m is 300 for A \[300, 512\] and 7 for r \[7\]"):
        lowered(library, BICGK, A=(300, 512), p=(512,), r=(7,))
    for extent in (4, 3):  # also where x has the other extent: no transposed product would do
        with pytest.raises(ShapeError, match=r"strmv\(A, x\), which ssymv calls: A is square, B is \[3, 4\]"):
            lowered(library, "matrix B; vector x; input B, x; y = ssymv(B, x); return y;", B=(3, 4), x=(extent,))


def test_arguments_of_another_rank(library: FunctionLibrary) -> None:
    """An array of two dimensions is no vector, and none is an array forgotten."""
    with pytest.raises(ShapeError, match=r"p is a vector, the argument has shape \[512, 1\]"):
        lowered(library, BICGK, A=(300, 512), p=(512, 1), r=(300,))
    with pytest.raises(UserError, match="the vector r has no shape"):
        lowered(library, BICGK, A=(300, 512), p=(512,))
