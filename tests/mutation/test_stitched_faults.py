"""Plants faults in stitched kernels: dropped barriers, tiles with a wrong pad or at a wrong place, wrong bounds and steps show."""
from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.mutation.faults import silent_faults
from tests.unit.templates.host_build import SHORT_CHECKED_FLAGS, build_together, call, compiler
from tests.unit.templates.stitched_cases import StitchedCase, smooth, tiles
from tests.unit.templates.stitched_graphs import attention, clamped_layers, turned_product
from tests.unit.templates.test_compose import assert_within, buffer_of
from tilefuse.ir.dtype import F16, F32
from tilefuse.kernel.ir import Barrier, Kernel
from tilefuse.target.device import H200
from tilefuse.templates.compose import compose
from tilefuse.templates.staged.stitched.plan import StitchPlan

# Sizes of tiles that take each other's place differ, so that other threads write them than read them.
ATTENTION = StitchedCase("attention", attention(1, 10, 4), tiles(1, 8, 4, threads=64), 64, smooth)
MATRIX_UNIT = StitchedCase("matrix unit", clamped_layers(32, (32, 16, 16), F16), tiles(16, 16))
SHARED_INNER = StitchedCase("inner axis of four warps", turned_product(32, 256, 16, (False, False), F16), tiles(16, 8, threads=128))
REGISTERS = StitchedCase("rows in registers", attention(1, 36, 24, F32), tiles(1, 16, 24, threads=32), 64, smooth)
pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")

Wanted = list[tuple[np.ndarray, np.ndarray | None]]


def shown(case: StitchedCase, kernel: Kernel, seed: int = 7) -> Callable[[Callable[..., int], Kernel], bool]:
    """Says of a changed kernel whether the checking mode or a wrong result gives it away."""
    inputs = case.inputs(np.random.default_rng(seed))
    wanted = case.wanted(inputs)
    buffers = {b.name: inputs[b.origin].ravel() for b in kernel.parameters if b.origin in inputs}

    def shows(function: Callable[..., int], changed: Kernel) -> bool:
        memory, status, _ = call(function, changed, buffers)
        if status:
            return True
        try:
            for result, (value, bound) in zip(case.graph.results, wanted, strict=True):
                assert_within(memory[buffer_of(changed, result).name].reshape(value.shape), value, bound, result)
        except AssertionError:
            return True
        return False

    return shows


def faulty_plans(case: StitchedCase) -> list[tuple[str, Kernel]]:
    """Kernels whose tiles lie otherwise than their stages believe: too little memory for a pad, another tile's place."""
    found = []
    kernel = case.kernel()
    shared = [b for b in kernel.buffers if b.space == "shared"]
    plan = case.program().internal
    assert isinstance(plan, StitchPlan)
    for p in plan.pieces:
        if p.stored and p.pad:
            program = case.program()
            changed = program.internal
            assert isinstance(changed, StitchPlan)
            # The plan is placed again with shorter rows, and its neighbours stay where they are: they now overlap, or lie apart.
            changed.pieces[p.key] = replace(p, pad=p.pad + 64)
            found.append((f"pad of %{p.value}", compose(program, H200)))
    for b in shared:
        moved = tuple(replace(x, offset_bytes=kernel.launch.shared_bytes - 16) if x is b else x for x in kernel.buffers)
        found.append((f"%{b.origin} at the end of shared memory", replace(kernel, buffers=moved)))
    return found


@pytest.mark.parametrize("case", [ATTENTION, MATRIX_UNIT, SHARED_INNER, REGISTERS], ids=lambda c: c.name)
def test_dropped_barriers_and_misplaced_tiles_show(case: StitchedCase, tmp_path: Path) -> None:
    kernel = case.kernel()
    dropped = [(f"barrier {n}", replace(kernel, body=(*kernel.body[:n], *kernel.body[n + 1:])))
               for n, s in enumerate(kernel.body) if isinstance(s, Barrier)]
    assert dropped
    # In attention some tiles may lie elsewhere for a while: what was there is not needed any more.
    found = [("nothing", kernel), *dropped, *(faulty_plans(case) if case is not ATTENTION else ())]
    library = build_together([(k, True) for _, k in found], tmp_path, SHORT_CHECKED_FLAGS)
    shows = shown(case, kernel)
    silent = [fault for n, (fault, k) in enumerate(found) if not shows(getattr(library, f"{k.name}_{n}"), k)]
    assert silent == ["nothing"]


EVERYWHERE = {c.name: c for c in (
    StitchedCase("layers", clamped_layers(10, (4, 6, 4), F16), tiles(4, 4, threads=32)),
    StitchedCase("layers walked", clamped_layers(20, (4, 6, 4), F32), tiles(4, 4, threads=32, groups=2)),
    StitchedCase("split", turned_product(2, 32, 4, (False, False)), tiles(1, 4, threads=32)),
    StitchedCase("matrix unit", turned_product(20, 41, 5, (False, True)), tiles(16, 5, threads=32)),
    StitchedCase("inner axis of two warps", turned_product(16, 256, 8, (False, True)), tiles(16, 8, threads=64)),
)}
# A tile's rows beyond the end of the value may be computed from zeros: nothing is written of them, and elements that were loaded ahead for
# them are not used. Between the two tiles of a walk lies memory that nobody reads.
HARMLESS = {"layers": {"widen above 0": 4}, "layers walked": {"widen above 0": 3}}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(EVERYWHERE))
def test_every_planted_fault_shows(name: str, tmp_path: Path) -> None:
    """No mutant passes silently; the unchanged kernel does."""
    case = EVERYWHERE[name]
    kernel = case.kernel()
    silent, planted = silent_faults(kernel, shown(case, kernel), tmp_path)
    kinds = Counter(fault.split(" ", 1)[1] for fault in silent)
    assert kinds == HARMLESS.get(name, {}), f"{len(silent)} of {planted} mutants pass silently: {silent}"
    assert planted >= 10
