"""Plants faults in walks of pages, and in the random bits that lanes draw for each other: each must show."""
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
from tilefuse.ir.interpret import interpret
from tilefuse.ir.scalar import NUMPY_DTYPES, Call, Guard, const
from tilefuse.kernel.ir import Assign, FromMemory, InRange, Kernel, Let, Shuffle, Stmt
from tilefuse.kernel.tensor_map import TensorCopy
from tilefuse.target.device import H200
from tilefuse.templates.staged.walked.compose import compose_walk
from tilefuse.templates.staged.walked.record import PipelinedWalk

pytestmark = [pytest.mark.skipif(compiler() is None, reason="no C++ compiler"), pytest.mark.slow]

PAGED = Case(Variant(page=16, keys=80, rows=3).graph, PipelinedWalk(32, 1, 1, 2, 1, 2), 2.0**-8, variates)
DROPPED = Case(Variant(drop=0.4, keys=96, rows=20).graph, PipelinedWalk(32, 1, 1, 2, 1, 2), 2.0**-7, variates)
Plant = Callable[[Stmt], Stmt]


def _numbers(make: Callable[[InRange | Guard], object]) -> Plant:
    """Changes numbers of pages."""
    def plant(s: Stmt) -> Stmt:
        is_number = isinstance(s, Let) and s.name.startswith("page") and isinstance(s.value, FromMemory)
        return replace(s, value=FromMemory(make(s.value.value))) if is_number else s  # type: ignore[arg-type, union-attr]
    return plant


def _checked(e: object, make: Callable[[InRange], object]) -> object:
    """Changes the checked number in an expression."""
    return replace(e, then=make(e.then)) if isinstance(e, Guard) else make(e)  # type: ignore[arg-type, union-attr]


def _selected(s: Stmt) -> Stmt:
    """The bits of a row are those that the lane drew for its other row."""
    match s:
        case Assign(_, Call("shift_right", (Call("select", (condition, own, other)), by))):
            return replace(s, value=Call("shift_right", (Call("select", (condition, other, own)), by)))
    return s


def _unshifted(s: Stmt) -> Stmt:
    """Odd lanes take the bits of the even ones' columns."""
    match s:
        case Assign(_, Call("shift_right", (Call("select", chosen), _))):
            return replace(s, value=Call("select", chosen))
    return s


def _far(s: Stmt) -> Stmt:
    return replace(s, amount=2) if isinstance(s, Shuffle) and s.target.name.startswith("of_neighbour") else s


def _at_the_slots_begin(s: Stmt) -> Stmt:
    """All pages come to the place of the first one."""
    is_page = isinstance(s, TensorCopy) and any(a.startswith("page") for c in s.coordinates for a in c.axes())
    return replace(s, index=s.index - s.index.const) if is_page else s  # type: ignore[union-attr]


FAULTS: dict[str, tuple[Case, Plant]] = {
    "every page is the first one": (PAGED, _numbers(lambda e: _checked(e, lambda x: replace(x, index=const(0, x.dtype))))),
    "numbers do not count from the end": (PAGED, _numbers(lambda e: _checked(e, lambda x: replace(x, index=x.index.args[2])))),
    "pages behind the end of the axis are read": (PAGED, _numbers(lambda e: e.then if isinstance(e, Guard) else e)),
    "pages of a turn lie at one place": (PAGED, _at_the_slots_begin),
    "lanes ask the wrong neighbour": (DROPPED, _far),
    "rows have each other's bits": (DROPPED, _selected),
    "columns have the neighbour's bits": (DROPPED, _unshifted),
}


def planted(kernel: Kernel, plant: Plant) -> Kernel:
    """A kernel with a fault."""
    return replace(kernel, body=changed(kernel.body, lambda s: (new,) if (new := plant(s)) is not s else None))


@pytest.mark.parametrize("case", [PAGED, DROPPED], ids=["pages", "dropout"])
def test_faults_show(case: Case, tmp_path: Path) -> None:
    """By wrong results or by a finding, each of them beside the kernel itself, which is right."""
    program = case.program()
    kernel = compose_walk(program, H200)
    mutants = {"none": kernel} | {name: planted(kernel, plant) for name, (of, plant) in FAULTS.items() if of is case}
    assert all(m != kernel for name, m in mutants.items() if name != "none")
    built = build_together([(m, True) for m in mutants.values()], tmp_path, CHECKED_FLAGS)
    values = {v.name: drawn(case, program.graph)[v.name].astype(NUMPY_DTYPES[v.type.dtype.name]) for v in program.graph.inputs}
    given = {b.name: values[b.origin].ravel() for b in kernel.parameters if b.role == "in"}
    wide = {n: v if v.dtype.kind in "bi" else v.astype(np.float64) for n, v in values.items()}
    expected = np.asarray(interpret(in_double(program.graph), wide)[0]).ravel()
    (out,) = (b.name for b in kernel.parameters if b.role == "out")
    for n, name in enumerate(mutants):
        memory, status, _ = call(getattr(built, f"{kernel.name}_{n}"), kernel, given)
        right = status == 0 and np.abs(np.nan_to_num(memory[out].astype(np.float64), nan=9.0) - expected).max() <= case.tolerance
        assert right == (name == "none"), name
