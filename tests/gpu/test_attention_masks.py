"""Rows of attention that a boolean mask hides whole, on a device: zeros whichever of torch's kernels computes the call."""
from __future__ import annotations

import pytest
import torch

from tilefuse.runtime.calls.library import call_library

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_hidden_rows_are_zeros(dtype: torch.dtype) -> None:
    """Every third row; the others are those of the definition."""
    generator = torch.Generator("cuda").manual_seed(5)
    q, k, v = (torch.randn(2, 4, n, 64, device="cuda", generator=generator).to(dtype) for n in (333, 500, 500))
    mask = torch.rand(2, 1, 333, 500, device="cuda", generator=generator) > 0.5
    mask[:, :, ::3] = False
    [y] = call_library("attention", [q, k, v, mask], {"scale": 0.125, "causal": False, "has_mask": True, "dropout": 0.0})
    assert y is not None and not y[:, :, ::3].any()
    scores = (q.double() @ k.double().mT * 0.125).masked_fill(~mask, float("-inf"))
    wanted = torch.softmax(scores, -1).nan_to_num(0.0) @ v.double()
    assert (y.double() - wanted).abs().max() <= 0.02
