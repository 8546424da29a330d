"""Plants faults in walks that memory bounds: bounds that leave out too much, and masks that are left out where they hide something."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.mutation.test_pipeline_faults import changed
from tests.unit.templates.host_build import CHECKED_FLAGS, build_together, call, compiler
from tests.unit.templates.staged.walked.bounded_cases import Bounded, documents, summarised
from tests.unit.templates.staged.walked.variants import Variant
from tests.unit.templates.stitched_cases import in_double
from tilefuse.ir.dtype import BOOL
from tilefuse.ir.interpret import interpret
from tilefuse.ir.scalar import NUMPY_DTYPES, Call, const
from tilefuse.kernel.ir import Declare, Kernel, Let, OfTwo, Stmt
from tilefuse.target.device import H200
from tilefuse.templates.staged.walked.compose import compose_walk
from tilefuse.templates.staged.walked.record import PipelinedWalk

pytestmark = [pytest.mark.skipif(compiler() is None, reason="no C++ compiler"), pytest.mark.slow]

CASE = Bounded(Variant(("same",), heads=1, rows=250, keys=320, safe=True), PipelinedWalk(64, 2, 1, 2, 1, 1), documents(3))


def _each(kind: type, make: Callable[[Stmt], Stmt]) -> Callable[[Kernel], Kernel]:
    """Changes every statement of a kind."""
    return lambda kernel: replace(kernel, body=changed(kernel.body, lambda s: (make(s),) if isinstance(s, kind) else None))


def _declared(stem: str, make: Callable[[Declare], Stmt]) -> Callable[[Kernel], Kernel]:
    return _each(Declare, lambda s: make(s) if isinstance(s, Declare) and s.name.startswith(stem) else s)


def _edges(function: str, other: str) -> Callable[[Kernel], Kernel]:
    """Of two blocks' edges the other one, which names of memory alone are."""
    def make(s: Stmt) -> Stmt:
        of_blocks = isinstance(s, Let) and isinstance(s.value, OfTwo) and s.value.function == function and all(
            a.startswith("end") for a in s.value.axes()) and len(s.value.axes()) == 2
        return replace(s, value=replace(s.value, function=other)) if of_blocks else s  # type: ignore[arg-type,union-attr]
    return _each(Let, make)


def _negated(s: Declare) -> Stmt:
    assert s.init is not None
    return replace(s, init=Call("logical_not", (s.init,)))


FAULTS: dict[str, Callable[[Kernel], Kernel]] = {
    "walks begin where the last block of rows does": _edges("least", "greatest"),
    "walks end where the first block of rows does": _edges("greatest", "least"),
    "columns are whole everywhere": _declared("is_whole", lambda s: replace(s, init=const(True, BOOL))),
    "conditions of blocks are the opposite": _declared("of_block", _negated),
}


def test_faults_give_wrong_results(tmp_path: Path) -> None:
    """Each of them beside the kernel itself, which is right."""
    kernel = compose_walk(CASE.program(), H200)
    mutants = {"none": kernel} | {name: plant(kernel) for name, plant in FAULTS.items()}
    assert all(m != kernel for name, m in mutants.items() if name != "none")
    built = build_together([(m, True) for m in mutants.values()], tmp_path, CHECKED_FLAGS)
    values = summarised(CASE)
    given = {b.name: values[b.origin].astype(NUMPY_DTYPES[b.dtype.name]).ravel() for b in kernel.parameters if b.role == "in"}
    wide = {n: v if v.dtype.kind in "bi" else v.astype(np.float64) for n, v in CASE.values().items()}
    expected = np.asarray(interpret(in_double(CASE.graphs[0]), wide)[0]).ravel()
    (out,) = (b.name for b in kernel.parameters if b.role == "out")
    for n, name in enumerate(mutants):
        memory, status, _ = call(getattr(built, f"{kernel.name}_{n}"), kernel, given)
        right = status == 0 and np.abs(np.nan_to_num(memory[out].astype(np.float64)) - expected).max() <= 2.0**-8 * np.abs(expected).max()
        assert right == (name == "none"), name
