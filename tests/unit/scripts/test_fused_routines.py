"""Fused kernels of library routines on the host executor, every access checked, against NumPy in double precision."""
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.unit.scripts.routine_runs import LIBRARY, MEANINGS, Built, check_results, script_graph, values
from tests.unit.templates.host_build import compiler
from tilefuse.base.candidate import Rejected
from tilefuse.scripts.language.elementary import CallGraph, ElementaryFunction
from tilefuse.scripts.schedule.elements import ATOMICS, LAST_BLOCK, SECOND_KERNEL, Decision
from tilefuse.scripts.schedule.routines import FusedRoutines, schedule_routines
from tilefuse.target.device import H200

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
FUNCTIONS = sorted(LIBRARY.functions)
KINDS = ("scalar", "vector", "matrix")
FUNCTIONS_OF = {name: [n for n in FUNCTIONS if LIBRARY.functions[n].dtype.name == name] for name in ("f32", "f64")}


def scheduled(graph: CallGraph, *decisions: Decision) -> list[FusedRoutines]:
    """One kernel a decision."""
    found = []
    for n, decision in enumerate(decisions):
        fused = schedule_routines(graph, decision, f"k{n}", H200)
        assert not isinstance(fused, Rejected), f"{decision}: {fused}"
        found.append(fused)
    return found


def one_call(function: ElementaryFunction, sizes: dict[str, int], strided: bool = False) -> CallGraph:
    """A script of one call, for operands of these sizes; `strided`: vectors with gaps, matrices with a leading dimension."""
    names = [p.name for p in function.inputs]
    results = [p.name for p in function.outputs]
    declared = "".join(f"{p.kind} {p.name}; " for p in function.inputs)
    call = f"{', '.join(results)} = {function.called or function.name}({', '.join(names)});"
    shapes = {p.name: tuple(sizes[e] for e in p.extents) for p in function.inputs}
    strides = {n: ((2,) if len(s) == 1 else (s[1] + 3, 1)) for n, s in shapes.items() if s} if strided else {}
    return script_graph(f"{declared}input {', '.join(names)}; {call} return {', '.join(results)};", shapes, strides)


def sizes_of(function: ElementaryFunction, numbers: tuple[int, int]) -> dict[str, int]:
    """Sizes by name; equal ones where a triangle is one of a square matrix."""
    if function.triangle:
        numbers = (max(numbers), max(numbers))
    return dict(zip(function.sizes, numbers if len(function.sizes) == 2 else (numbers[0] * numbers[1],), strict=False))


def walks(function: ElementaryFunction) -> list[tuple[int, int, str, int, str]]:
    """(instances, iterations, direction, unroll, finish)."""
    finishes = [LAST_BLOCK, SECOND_KERNEL] + ([] if function.state or function.finishes else [ATOMICS])
    across = "y" if function.kind.nested else "x"
    instances = 1 if function.kind.nested else 2
    found = [(1, 1, "x", 1), (instances, 3, across, 2), (instances, 1000, "x", 1), (1, 2, across, 1), (instances, 4, "x", 4)]
    return [(*w, finishes[n % len(finishes)]) for n, w in enumerate(found if function.sizes else [(1, 1, "x", 1)])]


def few(function: ElementaryFunction) -> list[int]:
    """Numbers of the first and the last geometry of every implementation."""
    by_name: dict[str, list[int]] = {}
    for n, i in enumerate(function.implementations):
        by_name.setdefault(i.name.split()[0], []).append(n)
    return sorted({m for numbers in by_name.values() for m in (numbers[0], numbers[-1])})


def batches(names: list[str], most: int) -> list[list[str]]:
    """Names whose kernels share a source: the checking mode's support text takes longer to compile than a small kernel."""
    return [names[n:n + most] for n in range(0, len(names), most)]


def run_alone(names: list[str], numbers_of: Callable[[ElementaryFunction], list[int]], each: int, folder: Path, check: bool) -> None:
    """Runs implementations of functions, `each` walks of every one, over sizes that no tile divides. Raises: every function that fails."""
    runs: list[tuple[str, int, CallGraph]] = []
    programs = []
    for name in names:
        function = LIBRARY.functions[name]
        ways = walks(function)
        for position, n in enumerate(number for number in numbers_of(function) for _ in range(each)):
            sizes = ((37, 61), (70, 129), (5, 3), (1, 1), (64, 1))[position % 5]
            graph = one_call(function, sizes_of(function, sizes), strided=position % 2 == 1)
            runs.append((name, position, graph))
            programs.append(scheduled(graph, Decision((0,), (n,), *ways[position % len(ways)])))
    built = Built(programs, folder, check)
    wrong = []
    for number, (name, position, graph) in enumerate(runs):
        given = values(graph, position)
        try:
            check_results(graph, given, built.run(number, given), programs[number][0].decision)
        except AssertionError as error:
            wrong.append(f"{name}: {error}")
    assert not wrong, "\n\n".join(wrong)


@pytest.mark.parametrize("names", batches(FUNCTIONS_OF["f32"], 6), ids="-".join)
def test_functions_alone(names: list[str], tmp_path: Path) -> None:
    """Implementations of each function, every access checked."""
    run_alone(names, few, 2, tmp_path, check=True)


@pytest.mark.parametrize("names", batches(FUNCTIONS_OF["f64"], 8), ids="-".join)
def test_functions_in_double_precision(names: list[str], tmp_path: Path) -> None:
    """The same in double precision."""
    run_alone(names, lambda function: few(function)[:1], 1, tmp_path, check=True)


@pytest.mark.slow
@pytest.mark.parametrize("names", batches(FUNCTIONS, 3), ids="-".join)
def test_every_implementation(names: list[str], tmp_path: Path) -> None:
    """Every implementation and geometry of each function."""
    run_alone(names, lambda function: list(range(len(function.implementations))), 1, tmp_path, check=False)


def test_a_function_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong meaning of one function of a batch fails the batch, by that function's name alone."""
    monkeypatch.setitem(MEANINGS, "scal", lambda a, x: a + x)
    with pytest.raises(AssertionError) as told:
        run_alone(["scopy", "sscal", "saxpy"], lambda function: few(function)[:1], 1, tmp_path, check=True)
    assert [line.split(":")[0] for line in str(told.value).split("\n\n")] == ["sscal"]


def symmetric(triangle: str, size: int) -> CallGraph:
    """Both halves of a symmetric product, of which the calls read one triangle."""
    first, second = ("strmv", "strmtv_below") if triangle == "lower" else ("strmv_upper", "strmtv_above")
    text = f"matrix A; vector x; input A, x; u = {first}(A, x); v = {second}(A, x); return u, v;"
    return script_graph(text, {"A": (size, size), "x": (size,)}, {"A": (size + 3, 1)})


@pytest.mark.parametrize("direction", ["x", "y"])
@pytest.mark.parametrize("triangle", ["lower", "upper"])
def test_triangle_is_walked_and_nothing_beyond_it_matters(triangle: str, direction: str, tmp_path: Path) -> None:
    """Several tiles at once, one tile a block, strips and tiles over the edge. What is beyond the diagonal is NaN."""
    walks = [(37, 1, 1, LAST_BLOCK), (300, 3, 2, LAST_BLOCK), (200, 2, 1, SECOND_KERNEL), (256, 1000, 4, ATOMICS), (1, 1, 1, ATOMICS)]
    decisions, graphs = [], []
    for n, (size, iterations, unroll, finish) in enumerate(walks):
        graph = symmetric(triangle, size)
        start = ("registers 32x8 ROWS=4 COLUMNS=1", "registers 64x4 ROWS=8 COLUMNS=2")[n % 2]
        chosen = tuple(next(n for n, i in enumerate(c.function.implementations) if i.name == start) for c in graph.calls)
        decisions.append(Decision((0, 1), chosen, 1, iterations, direction, unroll, finish))
        graphs.append(graph)
    built = Built([scheduled(g, d) for g, d in zip(graphs, decisions, strict=True)], tmp_path, True)
    for n, graph in enumerate(graphs):
        given = values(graph, n)
        within = np.tri(len(given["x"]), dtype=bool)
        given["A"][~(within if triangle == "lower" else within.T)] = np.nan
        check_results(graph, given, built.run(n, given), decisions[n])


def test_triangle_leaves_tiles_out() -> None:
    """Half of the tiles and those of the diagonal are moved."""
    graph = symmetric("lower", 1024)
    fused = scheduled(graph, Decision((0, 1), (0, 0), 1, 4, "x"))[0]
    whole = scheduled(script_graph("matrix A; vector x; input A, x; u = sgemv(A, x); v = sgemtv(A, x); return u, v;",
                                   {"A": (1024, 1024), "x": (1024,)}), Decision((0, 1), (0, 0), 1, 4, "x"))[0]
    assert fused.grid.triangle == "lower" and not whole.grid.triangle
    assert 0.5 * whole.transfers < fused.transfers < 0.6 * whole.transfers


@pytest.mark.parametrize("call", ["sdot(x, x)", "snrm2(x)"])
def test_nothing_to_reduce(call: str, tmp_path: Path) -> None:
    """A reduction over no words gives the neutral element."""
    graph = script_graph(f"vector x; input x; r = {call}; return r;", {"x": (0,)})
    built = Built([scheduled(graph, Decision((0,), (0,)))], tmp_path)
    assert built.run(0, values(graph))["r"] == 0


@pytest.mark.parametrize("finish", [LAST_BLOCK, SECOND_KERNEL, ATOMICS])
def test_matrix_without_rows(finish: str, tmp_path: Path) -> None:
    """A result of no words is not written."""
    graph = script_graph("matrix A; vector x; input A, x; y = sgemv(A, x); return y;", {"A": (0, 700), "x": (700,)})
    built = Built([scheduled(graph, Decision((0,), (0,), 1, iterations, "x", 1, finish)) for iterations in (1, 1000)], tmp_path, True)
    for n in range(2):
        assert built.run(n, values(graph))["y"].size == 0


def test_matrix_without_columns(tmp_path: Path) -> None:
    """A product over no columns gives zeros."""
    graph = script_graph("matrix A; vector x; input A, x; y = sgemv(A, x); return y;", {"A": (7, 0), "x": (0,)})
    built = Built([scheduled(graph, Decision((0,), (0,)))], tmp_path)
    assert (built.run(0, values(graph))["y"] == 0).all()
