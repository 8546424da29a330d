"""Plants faults in pipelined walks: each must show, by the finding that names the broken rule or by wrong results."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.mutation.test_pipeline_faults import changed
from tests.unit.templates.host_build import CHECKED_FLAGS, build_together, call, compiler
from tests.unit.templates.staged.walked.variants import Variant, variates
from tests.unit.templates.staged.walked.walk_cases import Case, drawn
from tests.unit.templates.stitched_cases import in_double
from tests.unit.templates.stitched_graphs import attention
from tilefuse.ir.affine import number
from tilefuse.ir.dtype import F16, F32
from tilefuse.ir.interpret import interpret
from tilefuse.ir.scalar import NUMPY_DTYPES, Call, Const, const
from tilefuse.kernel.ir import Assign, Barrier, For, IfValue, Kernel, LastBlock, Let, Stmt, VectorStore
from tilefuse.kernel.pipeline import Consume, Produce, ReleaseSlots, WarpgroupProduct, WarpgroupWait
from tilefuse.kernel.visit import statements
from tilefuse.target.device import H200
from tilefuse.templates.staged.walked.compose import compose_walk
from tilefuse.templates.staged.walked.record import PipelinedWalk

pytestmark = [pytest.mark.skipif(compiler() is None, reason="no C++ compiler"), pytest.mark.slow]

CASE = Case(lambda: attention(1, 150, 16, F16, causal=True), PipelinedWalk(32, 1, 1, 2, 1, 2), 2.0**-8)
WRONG = "wrong results"


def _of(kind: type, make: Callable[[Stmt], tuple[Stmt, ...]], number_: int) -> Callable[[Kernel], Kernel]:
    """Changes the statement of a kind with this number in the order of the text."""
    def mutant(kernel: Kernel) -> Kernel:
        target = [s for s in statements(kernel.body) if isinstance(s, kind)][number_]
        return replace(kernel, body=changed(kernel.body, lambda s: make(s) if s is target else None))
    return mutant


def _loop(kernel: Kernel) -> For:
    """The loop over the turns that a mask hides nothing of."""
    return [s for s in statements(kernel.body) if isinstance(s, For) and any(isinstance(i, Consume) for i in s.body)][-1]


def _in_loop(kind: type, make: Callable[[Stmt], tuple[Stmt, ...]], number_: int = 0) -> Callable[[Kernel], Kernel]:
    """The same inside the loop over whole turns."""
    def mutant(kernel: Kernel) -> Kernel:
        target = [s for s in statements(_loop(kernel).body) if isinstance(s, kind)][number_]
        return replace(kernel, body=changed(kernel.body, lambda s: make(s) if s is target else None))
    return mutant


def _uncut(kernel: Kernel) -> Kernel:
    """No turn but the last one is cut by the mask."""
    def moved(s: Stmt) -> tuple[Stmt, ...] | None:
        return (replace(s, value=number(1)),) if isinstance(s, Let) and s.name == "cut" else None
    return replace(kernel, body=changed(kernel.body, moved))


FAULTS: dict[str, tuple[Callable[[Kernel], Kernel], str]] = {
    "scores read before they are there": (_in_loop(WarpgroupWait, lambda s: (WarpgroupWait(2),)), ""),
    "sums scaled while products are added": (_in_loop(WarpgroupWait, lambda s: (), 1), ""),
    "keys given back too early": (_in_loop(WarpgroupWait, lambda s: ()), "slot released while a product in flight reads it"),
    "values given back too early": (_in_loop(Consume, lambda s: (replace(s, held_slots=0),), 1),
                                    "slot released while a product in flight reads it"),
    "rows' operand never given back": (_of(ReleaseSlots, lambda s: (), -1), "slot filled before it is released"),
    "keys not filled": (_in_loop(Produce, lambda s: ()), "slot used before it is full"),
    "values filled twice": (_in_loop(Produce, lambda s: (s, s), 1), "slot filled before it is released"),
    "products not rescaled": (_in_loop(IfValue, lambda s: (), 1), WRONG),
    "a turn left out": (_of(For, lambda s: (replace(s, start=s.start + number(1)),), -1), ""),
    "cut turns without a mask": (_uncut, WRONG),
    "powers of the turn before": (_in_loop(WarpgroupProduct, lambda s: (replace(s, term=number(1)),)), WRONG),
}


# Eight heads on two: one query a head, three parts of which the last one is short.
PARTS = Case(Variant(heads=8, group=4, rows=1, keys=150).graph, PipelinedWalk(32, 1, 1, 2, 1, 6, parts=3, heads=4), 2.0**-8, variates)


def _factors(make: Callable[[Assign], tuple[Stmt, ...]]) -> Callable[[Kernel], Kernel]:
    """Changes the factors that make parts relative to one maximum."""
    def mutant(kernel: Kernel) -> Kernel:
        def one(s: Stmt) -> tuple[Stmt, ...] | None:
            match s:
                case Assign(_, Call("select", (Call("eq"), Const(), Call("exp2", (Call("sub"),))))):
                    return make(s)
            return None
        return replace(kernel, body=changed(kernel.body, one))
    return mutant


def _meeting(kernel: Kernel) -> Kernel:
    """Combined products are read before all threads have stored theirs."""
    finished = next(s for s in statements(kernel.body) if isinstance(s, IfValue) and s.uniform)
    target = next(s for s in statements(finished.body) if isinstance(s, Barrier))
    return replace(kernel, body=changed(kernel.body, lambda s: () if s is target else None))


PART_FAULTS: dict[str, tuple[Callable[[Kernel], Kernel], str]] = {
    "parts relative to their own maxima": (_factors(lambda s: (Assign(s.target, const(1.0, F32)),)), WRONG),
    "one arrival too few": (_of(LastBlock, lambda s: (replace(s, count=s.count - 1),), 0), ""),
    "one arrival too many": (_of(LastBlock, lambda s: (replace(s, count=s.count + 1),), 0), ""),
    "no meeting before combined rows are read": (_meeting, ""),
    "a part's products not stored": (_of(VectorStore, lambda s: (), 0), ""),
    "a counter for all tiles": (_of(LastBlock, lambda s: (replace(s, index=number(0)),), 0), ""),
}


@pytest.mark.parametrize(("case", "faults", "amplified"), [(CASE, FAULTS, 8), (PARTS, PART_FAULTS, 4)], ids=["walk", "parts"])
def test_every_fault_shows(case: Case, faults: dict[str, tuple[Callable[[Kernel], Kernel], str]], amplified: int, tmp_path: Path) -> None:
    """Checked kernels of all faults, compiled together: a status other than 0 with the finding, or results that are wrong."""
    program = case.program()
    kernel = compose_walk(program, H200)
    mutants = [change(kernel) for change, _ in faults.values()]
    assert all(m != kernel for m in mutants)
    library = build_together([(m, True) for m in (kernel, *mutants)], tmp_path, CHECKED_FLAGS)
    graph = program.graph
    values = {v.name: (amplified * drawn(case, graph)[v.name]).astype(NUMPY_DTYPES[v.type.dtype.name]) for v in graph.inputs}
    given = {b.name: values[b.origin].ravel() for b in kernel.parameters if b.role == "in"}
    wanted = np.asarray(interpret(in_double(graph), {n: v.astype(np.float64) for n, v in values.items()})[0]).ravel()
    result = next(b.name for b in kernel.parameters if b.role == "out")
    shown: dict[str, str] = {}
    for n, name in enumerate(("", *faults)):
        memory, status, report = call(getattr(library, f"{kernel.name}_{n}"), kernel, given)
        error = np.abs(memory[result].astype(np.float64) - wanted).max()
        shown[name] = report if status else WRONG if not error <= 2.0**-7 * np.abs(wanted).max() else ""
    assert not shown[""]
    silent = {name: shown[name] for name, (_, told) in faults.items() if not shown[name] or told not in shown[name]}
    assert not silent
