"""Training steps of attention with a learned bias: gradients in double precision, and predictions for a device that is not there."""
from __future__ import annotations

import pytest
import torch

from benchmarks.attention.biases import BOUND, CASES, error_of, gradients, main, step_of


@pytest.mark.parametrize("name", ["plain/f16/table/3x2x9x8", "call/bf16/heads/2x3x8x16", "call/f16/dense/2x1x7x8"])
def test_gradients_are_compared_with_double_precision(name: str) -> None:
    """Eager gradients are right; one element that is wrong is told, also of the bias."""
    step = step_of(name)
    inputs = step.inputs(torch.device("cpu"))
    g = torch.randn(step.shape, generator=torch.Generator().manual_seed(1)).to(step.dtype)
    of = list(gradients(step.run, inputs, g))
    assert error_of(step, inputs, g, of) <= BOUND[step.dtype]
    of[3] = of[3] + torch.zeros_like(of[3]).index_fill(0, torch.tensor(0), 1.0)
    assert error_of(step, inputs, g, of) > BOUND[step.dtype]


def test_names_of_cases() -> None:
    """All cases have names that are read back; others are errors."""
    assert all(step_of(name).shape[2] for name in CASES)
    with pytest.raises(ValueError, match="is no case"):
        step_of("plain/f32/heads/1x1x8x8")


def test_predictions_need_no_device(capsys: pytest.CaptureFixture[str]) -> None:
    """A line for each option, with both parts."""
    main(["plain/bf16/table/4x4x64x64", "--predict", "h200"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and all("forward" in line and "backward" in line for line in lines)
