"""Programs whose sizes are arguments: right at every size, whatever they were chosen for; limits are told; one workspace serves all."""
from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.unit.scripts.routine_runs import check_results, script_graph, values
from tests.unit.scripts.routine_scripts import SEQUENCES
from tests.unit.scripts.sized_runs import HostProgram, check_accesses, check_at, made, with_cases
from tilefuse.scripts.schedule.sizes import CASES, with_named_sizes
from tilefuse.target.catalog import host_device

# Sizes (m, n) that programs are chosen for, and others: one word, none, odd ones, whole tiles, more than one tile each way.
CHOSEN = (300, 400)
SIZES = ((517, 1033), (1, 1), (37, 51), (512, 1024), (129, 7), (0, 5), (5, 0))
# Functions of vectors, of matrices and of triangles, all of one kind in one script.
VECTORS = """vector x, y; scalar a, b; input x, y, a, b;
c = scopy(x); s, t = sswap(x, y); p = svmul(c, t); u, v = srot(s, p, a, b); w = swaxpby(a, u, b, v);
d = sdot(x, w); n = snrm2(w); h = sasum(v); k = isamax(u); q = sdivide(d, a); z = sscal(q, p); return u, v, w, d, n, h, k, z;"""
MATRICES = """matrix A, B; vector x, y; scalar a; input A, B, x, y, a;
C = sger(A, x, y); D = smadd(C, B); E = smscal(a, D); s = sgemv(2.0, D, y, -1.0, x); t = sgemtv(a, E, x, 0.5, y); return E, s, t;"""
TRIANGLES = """matrix A; vector x, y; input A, x, y;
a = strmv(A, x); b = strmtv(A, y); c = strmv_upper(A, x); d = strmtv_above(A, y); e = strmtv_below(A, x);
return a, b, c, d, e;"""
SCRIPTS = {**SEQUENCES, "vectors": (VECTORS, {"x": "n", "y": "n"}), "matrices": (MATRICES, {"A": "mn", "B": "mn", "x": "m", "y": "n"}),
           "triangles": (TRIANGLES, {"A": "nn", "x": "n", "y": "n"})}
# Scripts that are looked at with the kernels for large sizes too, and with every access checked.
CLOSELY = ("bicgk", "axpydot", "triangles")


def shapes(name: str, m: int, n: int) -> dict[str, tuple[int, ...]]:
    """The shapes of a script's inputs for two sizes."""
    return {v: tuple({"m": m, "n": n}[e] for e in s) for v, s in SCRIPTS[name][1].items()}


@pytest.mark.parametrize("name", SCRIPTS)
def test_results_are_right_at_every_size(name: str, tmp_path: Path) -> None:
    """The text for the processor of what is chosen for an H200, in one workspace; of some with kernels for aligned rows too."""
    program, search = made(SCRIPTS[name][0], shapes(name, *CHOSEN))
    small = [n for n, case in enumerate(program.cases) if not case.name.endswith("wide")]
    program = with_cases(program, slice(0 if name in CLOSELY else small[-1], small[-1] + 1))
    check_at(HostProgram(program, search, tmp_path), SCRIPTS[name][0], [shapes(name, m, n) for m, n in SIZES])


@pytest.mark.parametrize("name", CLOSELY)
def test_kernels_of_large_sizes_compute_the_same(name: str, tmp_path: Path) -> None:
    program, search = made(SCRIPTS[name][0], shapes(name, *CHOSEN), cases=slice(-1, None))
    assert all(k.index_bits == 64 for s in program.steps for k in s.kernels if "clear" not in k.name)
    check_at(HostProgram(program, search, tmp_path), SCRIPTS[name][0], [shapes(name, m, n) for m, n in SIZES])


@pytest.mark.parametrize("name", CLOSELY)
def test_no_access_goes_astray_at_any_size(name: str, tmp_path: Path) -> None:
    """The checking mode: bounds, unwritten memory, races; aligned kernels where rows are, others elsewhere."""
    program, _ = made(SCRIPTS[name][0], shapes(name, *CHOSEN))
    last = len(program.cases) - 1
    sizes = [(shapes(name, 131, 260), 0), (shapes(name, 61, 77), last)]
    check_accesses(program, SCRIPTS[name][0], sizes, tmp_path)


def test_leading_dimensions_are_arguments(tmp_path: Path) -> None:
    """Of what is chosen for the host; the other matrix lies by columns."""
    text = "matrix A; matrix B column major; vector x; input A, B, x; y = sgemv(A, x); z = sgemtv(B, x); return y, z;"
    program, search = made(text, {"A": (40, 50), "B": (50, 30), "x": (50,)}, host_device(), strides={"A": (80, 1)})
    assert program.sizes == ("m", "n", "leading_A", "n2")
    host = HostProgram(program, search, tmp_path)
    for rows, columns, others in ((40, 50, 30), (7, 33, 65), (64, 64, 64)):
        given = {"A": (rows, columns), "B": (columns, others), "x": (columns,)}
        graph = with_named_sizes(script_graph(text, given, {"A": (columns + 3, 1)}), ("A",))
        host.prepare(graph)
        assert host.refusal(m=rows, n=columns, n2=others, leading_A=columns - 1) == "leading_A is less than n"
        arrays = values(graph) | {"B": np.random.default_rng(3).integers(-4, 5, (columns, others)).astype(np.float64)}
        got = host.run(graph, arrays)
        assert np.allclose(got["y"], arrays["A"] @ arrays["x"], atol=1e-4)
        assert np.allclose(got["z"], arrays["B"].T @ arrays["x"], atol=1e-4)


def test_sizes_that_are_equal_by_accident_have_two_names(tmp_path: Path) -> None:
    """Chosen for a square matrix, right for any: what the script does not set equal, no fusion does."""
    text = "vector x, y; input x, y; a = sscal(2.0, x); b = sscal(3.0, y); return a, b;"
    program, search = made(text, {"x": (100,), "y": (100,)})
    assert program.sizes == ("n", "n2")
    host = HostProgram(program, search, tmp_path)
    graph = with_named_sizes(script_graph(text, {"x": (33,), "y": (777,)}))
    host.prepare(graph)
    given = values(graph)
    check_results(graph, given, host.run(graph, given))


def test_sizes_beyond_the_limits_are_refused(tmp_path: Path) -> None:
    """With the reason, and before anything is launched; too small a workspace as well."""
    text, _ = SCRIPTS["bicgk"]
    program, search = made(text, shapes("bicgk", *CHOSEN), cases=slice(0, 1))
    host = HostProgram(program, search, tmp_path)
    assert host.refusal(m=100, n=400) == ""
    assert host.refusal(m=-1, n=400) == "m is negative"
    assert host.refusal(m=10, n=CASES[0].most_extent + 4) == f"n: more than {CASES[0].most_extent}"
    assert "words of A" in host.refusal(m=1 << 20, n=1 << 20)
    graph = with_named_sizes(script_graph(text, shapes("bicgk", 4, 8)))
    host.prepare(graph)
    nothing = [None] * 5
    assert host.library.go(*host.arguments({"m": 4, "n": 6}), *nothing, None, 0) == 1  # rows are not aligned, and there is no other case
    if host.work.size:
        assert host.library.go(*host.arguments({"m": 4, "n": 8}), *nothing, None, host.work.size - 1) == 1
