"""The host printer runs every sample kernel as its numpy meaning says, whatever way its threads meet."""
from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest

from tests.unit.templates.host_build import CHECKED_FLAGS, build_together, call, compiler, run
from tests.unit.templates.sample_kernels import samples
from tilefuse.printers.host import print_host

SAMPLES = samples()
pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """All samples with every access checked, in one source: its support text takes a second to compile."""
    return build_together([(SAMPLES[name].kernel, True) for name in sorted(SAMPLES)], tmp_path_factory.mktemp("checked"), CHECKED_FLAGS)


@pytest.mark.parametrize("name", sorted(SAMPLES))
@pytest.mark.parametrize("check", [False, True], ids=["plain", "checked"])
def test_sample_kernel_computes_what_it_means(name: str, check: bool, checked: ctypes.CDLL, tmp_path: Path) -> None:
    """Thread loops, spread registers, clusters, last block, shuffles, bulk copies: results as in numpy, and no finding."""
    sample = SAMPLES[name]
    arrays = sample.inputs(np.random.default_rng(7))
    if check:
        memory, status, report = call(getattr(checked, f"{sample.kernel.name}_{sorted(SAMPLES).index(name)}"), sample.kernel, arrays)
    else:
        memory, status, report = run(sample.kernel, arrays, tmp_path)
    assert status == 0, report
    for buffer, wanted in sample.expected(arrays).items():
        got = memory[buffer]
        if sample.tolerance:
            assert np.abs(got.astype(np.float64) - wanted).max() <= sample.tolerance, buffer
        else:
            assert np.array_equal(got.view(np.uint8), np.ascontiguousarray(wanted, got.dtype).view(np.uint8)), buffer


def test_counter_is_zero_again_after_a_run(tmp_path: Path) -> None:
    """A second launch must find the counter as the first found it."""
    sample = SAMPLES["last_block_sum"]
    memory, _, _ = run(sample.kernel, sample.inputs(np.random.default_rng(7)), tmp_path)
    assert memory["arrived"].tolist() == [0]


def test_one_thread_blocks_have_no_thread_loop() -> None:
    """The host's own schedules print as plain loops, with their lane loops marked for vectorisation."""
    text = print_host(SAMPLES["one_thread_rows"].kernel)
    assert "thread <" not in text
    assert "#pragma omp simd\n" in text
    assert "#pragma omp simd reduction(+:total)" in text
    assert "scratch" not in text


def test_registers_of_one_stretch_stay_local() -> None:
    """Only what lives across a meeting point becomes an array over the threads."""
    text = print_host(SAMPLES["transpose"].kernel)
    assert "_of[" not in text
    assert "row_of[thread * 8 + u]" in print_host(SAMPLES["row_softmax"].kernel)
