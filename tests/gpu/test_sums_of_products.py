"""Sums of products written by hand on a CUDA device: as kernels, as calls, with gradients; the list of the host's tests."""
from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.end_to_end.torch.strict import strict
from tests.end_to_end.torch.sum_cases import CASES, SumCase, check

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.fixture(autouse=True)
def exact_products() -> Any:
    """Products in f32, and compiled afresh."""
    from tilefuse.driver import torch_backend

    torch_backend.reset()
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before
    torch_backend.reset()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("size", [6, 72, 384])
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name.replace(" ", "-"))
def test_sums_and_their_gradients(case: SumCase, size: int, dtype: torch.dtype) -> None:
    check(case, size, dtype, "cuda", torch.compile(case.function, backend=strict))


@pytest.mark.alone
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_large_sum_takes_about_the_time_of_the_product(dtype: torch.dtype) -> None:
    """1024 cubed: the sum as a call or a pipelined product, against torch's product of the same matrices."""
    import tilefuse
    from benchmarks.timing import time_calls
    from tilefuse.runtime.spec import LibraryStep

    a, b = (torch.randn(1024, 1024, device="cuda").to(dtype) for _ in range(2))
    program = tilefuse.compile(CASES[0].function, (a, b))
    assert any(isinstance(s, LibraryStep) for s in program.spec.steps) or any("slots=" in k.source for k in program.spec.kernels)
    summed, multiplied = (time_calls([run], a.device)[0].median_us for run in (lambda: program(a, b), lambda: a @ b))
    assert summed < 2 * multiplied
