"""Plants faults in fused kernels of routines: a barrier left out, a last block that comes too early or never.

What a routine touches is out of the kernel IR's view; the checking mode knows it from the places that the calls declare.
"""
from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.mutation.faults import mutants
from tests.unit.scripts.routine_runs import FLAGS, LIBRARY, check_results, from_memory, in_memory, kernels_of, script_graph, values
from tests.unit.templates.host_build import build_together, call, compiler
from tilefuse.base.candidate import Rejected
from tilefuse.kernel.ir import Barrier
from tilefuse.kernel.visit import statements
from tilefuse.scripts.schedule.elements import Decision
from tilefuse.scripts.schedule.routines import schedule_routines
from tilefuse.target.device import H200

PRODUCTS = "matrix A; vector p, r; input A, p, r; q = sgemv(A, p); s = sgemtv(A, r); return q, s;"
SHAPES = {"A": (70, 96), "p": (96,), "r": (70,)}


def number(function: str, start: str) -> int:
    """Number of the first implementation whose name starts so."""
    return next(n for n, i in enumerate(LIBRARY.functions[function].implementations) if i.name.startswith(start))


KINDS = ("drop barrier", "last block too early", "last block never")
pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
# Script, shapes, implementation of every call, walk and finish; barriers that the kernel holds.
CASES: dict[str, tuple[str, dict[str, tuple[int, ...]], str, dict[str, object]]] = {
    "tiles in shared memory": (PRODUCTS, SHAPES, "tile 32x4", {"iterations": 2, "direction": "y"}),
    "combined over warps": (PRODUCTS, {"A": (150, 256), "p": (256,), "r": (150,)}, "registers 64x4 ROWS=4 COLUMNS=1",
                            {"iterations": 8, "direction": "y", "unroll": 2}),
    "sum by the last block": ("vector x, y; input x, y; r = sdot(x, y); return r;", {"x": (3000,), "y": (3000,)}, "vectors 128x1 LOADS=1",
                              {"iterations": 2, "unroll": 2}),
}


@pytest.mark.parametrize("name", sorted(CASES))
def test_every_planted_fault_shows(name: str, tmp_path: Path) -> None:
    """Every fault makes a finding of the checking mode or a wrong result; the kernel as it is makes none."""
    text, shapes, implementation, walk = CASES[name]
    graph = script_graph(text, shapes)
    chosen = tuple(number(c.function.name, implementation) for c in graph.calls)
    fused = schedule_routines(graph, Decision(tuple(range(len(chosen))), chosen, **walk), "k", H200)  # type: ignore[arg-type]
    assert not isinstance(fused, Rejected), fused
    kernel = kernels_of([fused])[0]
    faults = [("nothing", kernel), *(m for m in mutants(kernel) if any(k in m[0] for k in KINDS))]
    assert sum("drop barrier" in f for f, _ in faults) == sum(isinstance(s, Barrier) for s in statements(kernel.body)) > 0
    library = build_together([(k, True) for _, k in faults], tmp_path, FLAGS)
    given = values(graph)
    silent = []
    for n, (fault, changed) in enumerate(faults):
        memory = {b.name: in_memory(graph, b.name, given[b.name]) for b in changed.parameters if b.name in given}
        out, status, _ = call(getattr(library, f"{changed.name}_{n}"), changed, memory)
        results = {r: from_memory(graph, r, out[r]) for r in graph.outputs}
        try:
            with np.errstate(all="ignore"):
                check_results(graph, given, results)
        except AssertionError:
            continue
        if not status:
            silent.append(fault)
    assert silent == ["nothing"]
