"""Plants faults in the random bits that four lanes draw for each other in kernels of turned scores: each must show."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.mutation.test_pipeline_faults import changed
from tests.unit.templates.host_build import CHECKED_FLAGS, build_together, call, compiler
from tests.unit.templates.staged.recomputed.back_graphs import Gradient
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.scalar import Call
from tilefuse.kernel.ir import Assign, Declare, Kernel, Shuffle, Stmt
from tilefuse.target.device import H200
from tilefuse.templates.staged.recomputed.compose import compose_back
from tilefuse.templates.staged.recomputed.record import WalkedBack
from tilefuse.templates.staged.recomputed.template import schedule_back

pytestmark = [pytest.mark.skipif(compiler() is None, reason="no C++ compiler"), pytest.mark.slow]

DROPPED = Gradient(rows=48, keys=32, heads=1, drop=0.4)
Plant = Callable[[Stmt], Stmt]


def _near(s: Stmt) -> Stmt:
    """The word two lanes further on comes from the next lane."""
    return replace(s, amount=4) if isinstance(s, Shuffle) and s.amount == 8 else s


def _unordered(s: Stmt) -> Stmt:
    """Words stay in the order in which they came."""
    match s:
        case Declare(name, _, None, Call("select", (_, _, own))) if name.startswith("drawn_here"):
            return replace(s, init=own)
    return s


def _unshifted(s: Stmt) -> Stmt:
    """All rows have the bits of the first of four."""
    match s:
        case Assign(target, Call("shift_right", (word, _))) if target.name.startswith("left_bits"):
            return replace(s, value=word)
    return s


FAULTS: dict[str, Plant] = {"lanes ask the wrong neighbour": _near, "pairs have each other's bits": _unordered,
                            "rows have the first one's bits": _unshifted}


def _kernel() -> tuple[TileProgram, Kernel]:
    program = schedule_back(DROPPED.graph(), {}, H200, WalkedBack(32, 1, 1, 2, 1, 1))
    assert isinstance(program, TileProgram), program
    return program, compose_back(program, H200)


def _is_right(kernel: Kernel, folder: Path) -> bool:
    """Whether a kernel's results are near those in f64."""
    program, _ = _kernel()
    values, expected = DROPPED.drawn(seed=1)
    library = build_together([(kernel, True)], folder, CHECKED_FLAGS)
    inputs = {b.name: values[b.origin].ravel() for b in kernel.parameters if b.role == "in"}
    memory, status, report = call(getattr(library, f"{kernel.name}_0"), kernel, inputs)
    assert status == 0, report
    names = {b.origin: b.name for b in kernel.parameters}
    return all(np.abs(memory[names[r]].astype(np.float64) - expected[g].ravel()).max() <= 2.0**-9 * max(np.abs(expected[g]).max(), 1.0)
               for r, g in zip(program.graph.results, ("dk", "dv"), strict=True))


def test_the_kernel_is_right_without_a_fault(tmp_path: Path) -> None:
    assert _is_right(_kernel()[1], tmp_path)


@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_shows(name: str, tmp_path: Path) -> None:
    """Each changes the kernel, and its results."""
    kernel = _kernel()[1]
    plant = FAULTS[name]
    faulty = replace(kernel, body=changed(kernel.body, lambda s: (new,) if (new := plant(s)) is not s else None))
    assert faulty != kernel
    assert not _is_right(faulty, tmp_path)
