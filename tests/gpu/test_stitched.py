"""Stitched kernels on a CUDA device: the cases of the checking mode, against the same values."""
from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.unit.templates.online_cases import ONLINE_CASES
from tests.unit.templates.stitched_cases import CASES, StitchedCase
from tests.unit.templates.test_compose import assert_within
from tilefuse.base.options import Options
from tilefuse.driver.measure.lone_kernel import lone_program
from tilefuse.runtime.cuda_api import describe_device

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def tensor(array: np.ndarray) -> torch.Tensor:
    """The array on the device; numpy has no bf16 that torch would take."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16).cuda()
    return torch.from_numpy(array.copy()).cuda()


@pytest.mark.parametrize("case", (*CASES, *ONLINE_CASES), ids=lambda c: c.name)
def test_stitched_kernel_computes_its_graph(case: StitchedCase, seed: int = 3) -> None:
    """Every result is within its bound (exact where the pattern is), also when the kernel runs again."""
    if case.device.arch != describe_device(0).arch:
        pytest.skip(f"tiles made for {case.device.arch}")
    program = lone_program(case.program(), case.device, "cuda", Options())
    inputs = case.inputs(np.random.default_rng(seed))
    given = [tensor(inputs[name]) for name in program.spec.inputs]
    wanted = dict(zip(case.graph.results, case.wanted(inputs), strict=True))
    for _ in range(2):
        for result, found in zip(program.spec.results, program(*given), strict=True):
            value, bound = wanted[result]
            what = f"{case.name} %{result}, seed {seed}"
            assert_within(found.double().cpu().numpy(), value.astype(np.float64), bound, what)
