"""BLAS scripts as functions: values against float64, kinds of arrays, programs by size, errors."""
from __future__ import annotations

import shutil
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch

from benchmarks.blas import SEQUENCES, SOLVERS, Linear, _inputs, doubled
from tilefuse import blas
from tilefuse.base.errors import ShapeError, ToolchainError, TypeMismatchError, UserError
from tilefuse.runtime.compilers.nvrtc import compile_cuda
from tilefuse.scripts.language.routine_library import shipped_folder
from tilefuse.scripts.plan.fusions import calls_between_matrices
from tilefuse.scripts.programs import how
from tilefuse.target.device import H200

BICGK = "TILE32x32 A; subvector32 p, q, r, s; input A, p, r; q = sgemv(A, p); s = sgemtv(A, r); return q, s;"
AXPY = "subvector32 x, y, z; scalar a; input a, x, y; z = saxpy(a, x, y); return z;"


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("sequence", [*SEQUENCES, *SOLVERS], ids=lambda s: s.name)
def test_a_sequence_computes_what_its_torch_form_does(sequence: Linear, dtype: str) -> None:
    generator = torch.Generator().manual_seed(sum(map(ord, sequence.name)))
    given = _inputs(sequence.arguments, 37, dtype)(torch.device("cpu"), generator)
    function = blas.compile(sequence.script if dtype == "f32" else doubled(sequence.script), name=sequence.name)
    found = function(*given)
    expected = sequence.function(*(t.double() for t in given))
    for out, want in zip(found if isinstance(found, tuple) else (found,), expected if isinstance(expected, tuple) else (expected,),
                         strict=True):
        # Sums of 37 terms and a division: a few tens of units in the last place of the largest word.
        unit = 2.0**-24 if dtype == "f32" else 2.0**-53
        assert (out.double() - want).abs().max() <= 400 * unit * want.abs().max()


def test_results_are_arrays_of_the_arguments_library() -> None:
    rng = np.random.default_rng(3)
    a, p, r = rng.standard_normal((20, 30), np.float32), rng.standard_normal(30, np.float32), rng.standard_normal(20, np.float32)
    q, s = blas.compile(BICGK)(a, p, r)
    assert isinstance(q, np.ndarray) and isinstance(s, np.ndarray)
    np.testing.assert_allclose(q, a.astype(np.float64) @ p, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(s, a.T.astype(np.float64) @ r, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layout", ["row-major", "column-major", "leading dimension", "column-major with leading dimension"])
def test_matrices_may_lie_in_any_order(layout: str) -> None:
    wide = torch.randn(48, 64, dtype=torch.float32)
    a = {"row-major": wide[:20, :30].contiguous(), "column-major": wide[:20, :30].t().contiguous().t(), "leading dimension": wide[:20, :30],
         "column-major with leading dimension": wide.t()[:20, :30]}[layout]
    p, r = torch.randn(30), torch.randn(20)
    q, s = blas.compile(BICGK)(a, p, r)
    torch.testing.assert_close(q, (a.double() @ p.double()).float())
    torch.testing.assert_close(s, (a.double().t() @ r.double()).float())


def test_one_function_keeps_a_program_for_every_size_and_order() -> None:
    function = blas.compile(BICGK)
    first = function.program_for(torch.zeros(4, 6), torch.zeros(6), torch.zeros(4))
    other = function.program_for(torch.zeros(6, 4), torch.zeros(4), torch.zeros(6))
    turned = function.program_for(torch.zeros(6, 4).t(), torch.zeros(6), torch.zeros(4))
    assert first is not other and first is not turned
    assert first is function.program_for(torch.ones(4, 6), torch.ones(6), torch.ones(4))


@pytest.mark.parametrize("scalar", [0.0, 1.0, -2.5, np.float32(0.5), torch.tensor(3.0), torch.tensor([3.0])])
def test_scalars_may_be_numbers_or_arrays_of_one_word(scalar: object) -> None:
    x, y = torch.randn(100), torch.randn(100)
    torch.testing.assert_close(blas.compile(AXPY)(scalar, x, y), float(scalar) * x + y)  # type: ignore[arg-type]


def test_inputs_by_name_and_in_part() -> None:
    function = blas.compile(AXPY)
    x, y = torch.randn(5), torch.randn(5)
    torch.testing.assert_close(function(2.0, y=y, x=x), 2 * x + y)
    with pytest.raises(UserError, match="needs y"):
        function(2.0, x)
    with pytest.raises(UserError, match="no further input 'w'"):
        function(2.0, x, y, w=x)
    with pytest.raises(UserError, match="takes 3 arguments"):
        function(2.0, x, y, x)


def test_arguments_that_do_not_fit() -> None:
    function = blas.compile(BICGK)
    with pytest.raises(ShapeError, match=r"A \[20, 30\].*p \[31\]"):
        function(torch.zeros(20, 30), torch.zeros(31), torch.zeros(20))
    with pytest.raises(TypeMismatchError, match="float64"):
        function(torch.zeros(20, 30, dtype=torch.float64), torch.zeros(30), torch.zeros(20))
    with pytest.raises(TypeMismatchError, match="p is a vector"):
        function(torch.zeros(20, 30), 1.0, torch.zeros(20))


@pytest.mark.parametrize("size", [0, 1])
def test_empty_and_one_word(size: int) -> None:
    x, y = torch.randn(size), torch.randn(size)
    torch.testing.assert_close(blas.compile(AXPY)(2.0, x, y), 2 * x + y)
    q, s = blas.compile(BICGK)(torch.ones(size, 3), torch.ones(3), torch.ones(size))
    assert q.tolist() == [3.0] * size and s.tolist() == [float(size)] * 3


def test_a_sum_of_no_products_reads_nothing() -> None:
    """The templates' kernel has no memory behind the empty vector, as checking mode sees."""
    text = "vector x; input x; y = dscal(2, x); r = ddot(y, x); return y, r;"
    empty, total = blas.compile(text, kind="template", device="host", check=True)(np.zeros(0))
    assert empty.shape == (0,) and total == 0


@pytest.mark.parametrize("kind", ["template", "routines"])
def test_the_largest_of_no_words_is_the_first(kind: Literal["template", "routines"]) -> None:
    """Templates held the position in 32 bits, whose greatest number is not that of a reduction over nothing."""
    largest = blas.compile("vector x; input x; k = isamax(x); return k;", kind=kind, device="host")
    assert largest(np.zeros(0, np.float32)) == 0 and largest(np.array([1, -3, 3], np.float32)) == 1


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("name", ["dsymv", "dsymv_upper"])
def test_symmetric_products_read_one_triangle(name: str, order: Literal["C", "F"]) -> None:
    """By routines and by templates, for rows and columns that lie together; the other triangle is NaN."""
    rng = np.random.default_rng(3)
    whole = rng.standard_normal((45, 45))
    whole, x = whole + whole.T, rng.standard_normal(45)
    seen = np.tri(45, dtype=bool) if name == "dsymv" else np.tri(45, dtype=bool).T
    matrix = np.array(np.where(seen, whole, np.nan), order=order)
    for kind in ("routines", "template"):
        function = blas.compile(f"matrix A; vector x; input A, x; y = {name}(A, x); return y;", kind=kind, device="host")
        np.testing.assert_allclose(function(matrix, x), whole @ x, rtol=1e-12, atol=1e-12)


def test_what_stands_between_matrices_is_compiled_as_a_whole() -> None:
    """On a GPU the calls behind a symmetric product are one part of the program, the product another."""
    text = "matrix A; vector x, r; input A, x, r; q = ssymv(A, x); d = sdot(q, x); s = saxpy(d, q, r); e = sdot(s, s); return s, e;"
    function = blas.compile(text, device="host")
    search = function.search(function.graph_for({"A": (8192, 8192), "x": (8192,), "r": (8192,)}), H200)
    assert calls_between_matrices(search.graph) == ((2, 3, 4, 5),)
    assert "template: calls [2, 3, 4, 5]" in search.first().how


@pytest.mark.parametrize("kind", ["routines", "template"])
@pytest.mark.parametrize("names", [("thread", "block", "tile", "turn"), ("x_l", "x", "x_sum", "x_partials"),
                                   ("a__b", "a_b", "float", "float_")])
def test_names_of_the_generated_code_are_free_for_scripts(names: tuple[str, str, str, str], kind: Literal["routines", "template"]) -> None:
    """Indices of kernels, names of elements, and words that C++ has or joins."""
    p, q, r, s = names
    text = f"vector {p}, {q}; scalar {s}; input {p}, {q}; {r} = saxpy(2, {p}, {q}); {s} = sdot({r}, {q}); return {r}, {s};"
    x = np.arange(10, dtype=np.float32)
    vector, number = blas.compile(text, kind=kind, device="host")(x, x + 1)
    np.testing.assert_array_equal(vector, 3 * x + 1)
    assert number == (3 * x + 1) @ (x + 1)


def test_arrays_of_every_layout() -> None:
    """Steps backwards, gaps, shared words, memory that must not be written, and fields of records."""
    function = blas.compile(AXPY, device="host")
    x = np.arange(10, dtype=np.float32)
    records = np.zeros(10, dtype=[("flag", "i1"), ("value", "f4")])
    records["value"] = x
    fixed = x.copy()
    fixed.flags.writeable = False
    for given in (x[::-1], np.repeat(x, 2)[::2], np.broadcast_to(np.float32(3), 10), fixed, records["value"]):
        np.testing.assert_array_equal(function(2.0, given, x), 2 * given + x)
    matrix = np.arange(60, dtype=np.float32).reshape(6, 10)
    product = blas.compile("matrix A; vector x; input A, x; y = sgemv(A, x); return y;", device="host")
    for seen in (matrix[::-1, ::-1], matrix[1:4, 2:9], matrix.T, matrix[::2, ::3], np.broadcast_to(x, (6, 10))):
        np.testing.assert_array_equal(product(seen, x[:seen.shape[1]]), seen @ x[:seen.shape[1]])


def test_a_scalar_is_one_word_and_a_device_exists() -> None:
    """Told by name, in tilefuse's own errors."""
    x = np.ones(4, np.float32)
    with pytest.raises(ShapeError, match=r"a is a scalar, the argument has shape \[2\]"):
        blas.compile(AXPY, device="host")(x[:2], x, x)
    with pytest.raises(UserError, match="there is no device 'gpu'"):
        blas.compile(AXPY, device="gpu")(2.0, x, x)


def test_what_is_no_script_and_no_array_is_told() -> None:
    """A path for a script, tensors without data or without strides: in our own errors, not Python's or torch's."""
    x = torch.ones(4)
    with pytest.raises(TypeMismatchError, match="of type PosixPath") as caught:
        blas.compile(Path("bicgk.blas"))  # type: ignore[arg-type]
    assert "read_text()" in (caught.value.hint or "")
    with pytest.raises(TypeMismatchError, match="x is a tensor on the meta device"):
        blas.compile(AXPY)(2.0, x.to("meta"), x)
    with pytest.raises(TypeMismatchError, match="y is a tensor of layout torch.sparse_coo"):
        blas.compile(AXPY)(2.0, x, x.to_sparse())
    with pytest.raises(TypeMismatchError, match="x has masked elements") as caught:
        blas.compile(AXPY)(2.0, np.ma.array(np.ones(4, np.float32), mask=[0, 0, 1, 0]), x)
    assert "filled" in (caught.value.hint or "")
    for slip, kind in ((True, "bool"), ("2", "str"), (None, "NoneType")):
        with pytest.raises(TypeMismatchError, match=f"a is a scalar, the argument is a {kind}"):
            blas.compile(AXPY)(slip, x, x)


def test_a_library_may_be_one_folder() -> None:
    """As text or as a path; a text is not taken for a list of letters."""
    own = Path(__file__).parents[3] / "examples" / "blas_own_function"
    for folder in (own, str(own), [own]):
        assert blas.compile("vector x; input x; c = snonzeros(x); return c;", library=folder)(np.array([0, 1, 2], np.float32)) == 2


def test_a_first_program_looks_at_few_fusions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where bytes alone say that routines save nothing, no decision is listed: that was most of 0.27 s for an iteration's program."""
    sequence = next(s for s in SOLVERS if s.name == "bicgstab")
    function = blas.compile(sequence.script)
    search = function.search(function.graph_for({n: (16384,) * (1 + (n == "A")) for n in function.inputs if n != "rho"}), H200)
    listed = search._listed
    asked: list[object] = []
    monkeypatch.setattr(search, "_listed", lambda fusion: asked.append(fusion) or listed(fusion))
    assert search.first().how == "template"
    assert 2 * len(asked) < len(search.fusions.legal)


def test_routines_stand_beside_the_templates_own_kernels() -> None:
    """y = A'(A x) of a matrix that the caches hold: the template's product and sums by routines, which neither kind has alone; a search
    begins with the program that a compile takes."""
    function = blas.compile(next(s for s in SEQUENCES if s.name == "atax").script)
    search = function.search(function.graph_for({"A": (512, 512), "x": (512,)}), H200)
    made = search.first()
    assert made.how.startswith("template: calls [0]; routines: calls [1]") and len(made.spec.kernels) == 3
    assert how(next(search.combinations(2))) == made.how
    iteration = blas.compile(next(s for s in SOLVERS if s.name == "bicgstab").script)
    search = iteration.search(iteration.graph_for({n: (1024,) * (1 + (n == "A")) for n in iteration.inputs if n != "rho"}), H200)
    assert search.first().how == "template" and len(next(search.combinations(1)).parts) == 1


def test_a_compilers_refusal_names_the_librarys_file_and_routine(tmp_path: Path) -> None:
    shutil.copytree(shipped_folder() / "axpy", tmp_path / "my_axpy")
    for file, old, new in (("function.toml", '"saxpy"', '"my_axpy"'), ("vectors.h", "z[s] = ", "z[s] = frobnicate + ")):
        path = tmp_path / "my_axpy" / file
        path.write_text(path.read_text().replace(old, new))
    lines = (tmp_path / "my_axpy" / "vectors.h").read_text().splitlines()
    at = next(n for n, line in enumerate(lines, 1) if " compute(" in line)
    function = blas.compile(AXPY.replace("saxpy", "my_axpy"), library=tmp_path, kind="routines")
    place = rf"^function my_axpy, routine compute at \S*my_axpy/vectors.h:{at}, does not compile: "
    with pytest.raises(ToolchainError, match=place + "the C\\+\\+ compiler refuses"):
        function(2.0, np.ones(100, np.float32), np.ones(100, np.float32))
    kernel, = function.search(function.graph_for({"x": (100,), "y": (100,)}), H200).first().spec.kernels
    with pytest.raises(ToolchainError, match=place + "NVRTC cannot compile"):
        compile_cuda(kernel)
