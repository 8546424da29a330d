"""Plants faults in kernels that walk an axis: copies nobody waits for, dropped barriers and shuffles, tiles at each other's place show."""
from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.mutation.faults import mutants
from tests.mutation.test_stitched_faults import shown
from tests.unit.templates.host_build import SHORT_CHECKED_FLAGS, build_together, compiler
from tests.unit.templates.online_graphs import with_logarithm
from tests.unit.templates.stitched_cases import StitchedCase
from tests.unit.templates.stitched_graphs import attention
from tilefuse.ir.dtype import F16, F64
from tilefuse.templates.staged.online.record import Online

# Statements that order threads and copies; loops and bounds are planted in the stitched kernels, which are written by the same statements.
KINDS = ("wait", "copies", "copy", "barrier", "shuffle", "at the place of")
pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")


def loud(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Normal variates of deviation two: a row's powers differ by orders, and maxima grow by more than powers may."""
    return rng.standard_normal(shape) * 2.0


CASES = {c.name: c for c in (
    StitchedCase("fetched ahead", attention(1, 20, 16, F16, keys=24), Online(16, 16, 32, 2), 64, loud),
    StitchedCase("by threads", with_logarithm(1, 9, 21, 4, 16, F64), Online(8, 16, 32), 512, loud),
)}


@pytest.mark.parametrize("name", sorted(CASES))
def test_every_fault_of_order_shows(name: str, tmp_path: Path) -> None:
    """No mutant passes silently; the unchanged kernel does."""
    case = CASES[name]
    kernel = case.kernel()
    planted = [(fault, k) for fault, k in mutants(kernel) if any(kind in fault for kind in KINDS)]
    found = [("nothing", kernel), *planted]
    library = build_together([(k, True) for _, k in found], tmp_path, SHORT_CHECKED_FLAGS)
    shows = shown(case, kernel)
    silent = [fault for n, (fault, k) in enumerate(found) if not shows(getattr(library, f"{k.name}_{n}"), k)]
    assert silent == ["nothing"], f"of {len(planted)}"
    assert len(planted) >= 8
