"""The checker of libraries: the shipped one passes, and every kind of slip in a routine is found and named."""
from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tilefuse.scripts.language.routine_library import shipped_folder
from tilefuse.tools.check_library import check_library

pytestmark = pytest.mark.skipif(shutil.which("g++") is None and shutil.which("clang++") is None, reason="no C++ compiler")


@pytest.mark.parametrize("names", [
    ("saxpy", "dwaxpby", "sscal", "dcopy", "sswap", "drot", "svadd", "dvmul", "sdivide", "dsqrt"), ("ddot", "sasum", "dnrm2", "snrm2"),
    ("isamax", "idamax"), ("sgemv", "dgemtv"), ("sger", "dmadd", "smscal"), ("strmv", "dtrmtv_above", "ssymv"),
], ids=lambda names: names[0])
def test_shipped_routines_do_what_their_metadata_say(names: tuple[str, ...]) -> None:
    """Loads, stores and computations of the first and last geometry of each implementation, dense and strided."""
    assert check_library(shipped_folder(), names, every_geometry=False) == []


def changed(tmp_path: Path, function: str, file: str, old: str, new: str) -> list[str]:
    """Findings about a shipped function with one text changed."""
    folder = tmp_path / function
    shutil.copytree(shipped_folder() / function, folder)
    text = (folder / file).read_text()
    assert text.count(old) >= 1, f"{file} has no {old}"
    (folder / file).write_text(text.replace(old, new, 1))
    return [str(s) for s in check_library(folder, every_geometry=False)]


@pytest.mark.parametrize(("function", "file", "old", "new", "said"), [
    ("axpy", "vectors.h", "e, tx, first, count, CONTIGUOUS_x", "e, BX - 1 - tx, first, count, CONTIGUOUS_x",
     "e[0] of thread tx = 0, ty = 0 should hold word"),
    ("axpy", "vectors.h", "PAD_x", "REAL(1)", "should hold the padding"),
    ("axpy", "vectors.h", "tf_load_vector<LOADS, BX>(p, stride, e, tx, first, count, CONTIGUOUS_y, PAD_y);", "", "it holds nothing"),
    ("axpy", "vectors.h", ": alpha * x[s] + y[s]", ": alpha * x[s] - y[s]", "compute (vectors 128x1 LOADS=1): z[0] of one tile is"),
    ("axpy", "vectors.h", "first, count, CONTIGUOUS_z", "first, count + 1, CONTIGUOUS_z", "memory outside z is written"),
    ("axpy", "vectors.h", "z[s] = ", "z[s] = undefined_name + ", "does not compile"),
    ("axpy", "function.toml", "VEC * BX * s0 + VEC * tx + s1", "VEC * BX * s0 + BX * s1 + tx", "should hold word"),
    ("axpy", "function.toml", "alpha * x[i] + y[i]", "alpha * x[i] + 2 * y[i]", "the meaning gives"),
    ("dot", "vectors.h", "r[0] +=", "r[0] =", "r of one tile is"),
    ("gemv", "registers.h", "if (tx == 0) ", "", "does not come from the first thread that holds it"),
    ("gemv", "registers.h", "if (tx == 0) ", "if (tx == 1) ", "does not come from the first thread that holds it"),
    ("gemv", "tile.h", "A[tx * PITCH_A + j + ty]", "A[(j + ty) * PITCH_A + tx]", "y[0] of one tile is"),
    ("gemv", "tile.h", "row, column, rows, columns, PAD_A", "row, column, rows, columns + 1, PAD_A", "should hold the padding"),
    ("madd", "registers.h", "row, column, rows, columns, CONTIGUOUS_C", "row, column, rows, columns + 1, CONTIGUOUS_C", "is written"),
    ("iamax", "vectors.h", "at < k[0].at", "at > k[0].at", "k of one tile is"),
    ("nrm2", "vectors.h", "into->middle += other->middle", "into->middle = other->middle", "r of one tile is"),
    ("axpy", "vectors.h", "z[s] = ", "z[s + 1] = ", "compute (vectors 128x1 LOADS=1): words behind the element of z are written: it has 4"),
    ("axpy", "vectors.h", "CONTIGUOUS_y, PAD_y);", "CONTIGUOUS_y, PAD_y); e[WORDS_y] = 0;", "words behind the element of y are written"),
    ("axpy", "vectors.h", "CONTIGUOUS_y, PAD_y);", "CONTIGUOUS_y, PAD_y); e[100 * WORDS_y] = 0;", "behind the element of y are written"),
    ("axpy", "vectors.h", "first, count, CONTIGUOUS_z", "first, count + 100000, CONTIGUOUS_z", "memory outside z is written"),
    ("madd", "registers.h", "row, column, rows, columns, CONTIGUOUS_C", "row, column, rows + 1000, columns, CONTIGUOUS_C",
     "memory outside C is written"),
    ("axpy", "function.toml", 'n = "LOADS', 'n = "2 * LOADS', "no thread holds word [512] of the tile of x [1024]"),
    ("axpy", "function.toml", '"saxpy"', '"s axpy"', "names.f32: 's axpy' is no name that a script can call"),
    ("axpy", "function.toml", '"saxpy"', '"input"', "names.f32: 'input' is no name that a script can call"),
    ("asum", "function.toml", 'operator = "+"', 'operator = "max"', "neutral: is missing"),
    ("asum", "function.toml", 'operator = "+"', 'operator = "+"\nneutral = "1"', "1 is 1 and not neutral: brought together with 0 by +"),
    ("asum", "function.toml", 'operator = "+"', 'operator = "+"\nneutral = "1e-30"', "brought together with 0 by + it gives 1e-30"),
    ("asum", "function.toml", 'operator = "+"', 'operator = "max"\nneutral = "-1e30"', "brought together with -3.40282e+38 by max"),
    ("iamax", "function.toml", 'neutral = "{-1, 0}"', 'neutral = "{100, 0}"', "k of one tile"),
    ("nrm2", "function.toml", 'neutral = "{0, 0, 0}"', 'neutral = "{0, 1e-9, 0}"', "{0, 1e-9, 0} is not neutral: with words that are all"),
    ("asum", "function.toml", 'operator = "+"', 'operator = "+"\nneutral = "nothing"', "neutral of sasum:1"),
    ("asum", "function.toml", 'operator = "+"', 'operator = "+"\npadding = { x = "1" }', "the others padding, is"),
])
def test_slips_are_found_and_named(tmp_path: Path, function: str, file: str, old: str, new: str, said: str) -> None:
    """One fault in a shipped function: the finding says which routine, which word of which thread, and both values."""
    found = changed(tmp_path, function, file, old, new)
    assert any(said in s for s in found), "\n".join(found) or "nothing found"
    assert all(str(tmp_path) in s and "hint: " in s for s in found)


def test_metadata_come_first(tmp_path: Path) -> None:
    """Where the metadata cannot be used, nothing is compiled."""
    found = changed(tmp_path, "axpy", "function.toml", 'kind = "map"', 'kind = "mop"')
    assert len(found) == 1 and "'mop' is no kind of function" in found[0]
