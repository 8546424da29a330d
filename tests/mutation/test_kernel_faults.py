"""Plants faults in kernels written by hand and requires that the checking mode, or a wrong result, shows each of them."""
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.mutation.faults import silent_faults
from tests.unit.templates.host_build import call, compiler
from tests.unit.templates.sample_kernels import samples
from tilefuse.kernel.ir import Kernel

SAMPLES = samples()
pytestmark = [pytest.mark.skipif(compiler() is None, reason="no C++ compiler"), pytest.mark.slow]


@pytest.mark.parametrize("name", sorted(SAMPLES))
def test_every_planted_fault_shows(name: str, tmp_path: Path) -> None:
    """No mutant of a sample kernel passes silently; the unchanged kernel does."""
    sample = SAMPLES[name]
    arrays = sample.inputs(np.random.default_rng(7))
    expected = sample.expected(arrays)

    def shows(function: Callable[..., int], kernel: Kernel) -> bool:
        memory, status, _ = call(function, kernel, arrays)
        # Written so that a NaN shows.
        return status != 0 or any(not np.abs(memory[b].astype(np.float64) - wanted.astype(np.float64)).max() <= max(sample.tolerance, 1e-9)
                                  for b, wanted in expected.items())

    silent, planted = silent_faults(sample.kernel, shows, tmp_path)
    assert not silent, f"{len(silent)} of {planted} mutants pass silently: {silent}"
    assert planted >= 3
