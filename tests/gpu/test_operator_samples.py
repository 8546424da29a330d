"""Torch's own samples of operators and modules on a device, forward and gradients (`tests/operator_samples.py`)."""
from __future__ import annotations

from typing import Any

import pytest
import torch

from tests import operator_samples
from tests.end_to_end.torch.strict import strict

pytest.importorskip("expecttest")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
OPERATORS, MODULES = operator_samples.operators(), operator_samples.modules()
MOST = 6
# An empty sum of rank 0 where eager gives one of rank 1 is torch's own: "aot_eager" does the same.
ODD_SHAPES = {"nn.MultiLabelMarginLoss"}


@pytest.fixture(autouse=True)
def exact_arithmetic() -> Any:
    """Without tf32."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before
    torch._dynamo.reset()


@pytest.mark.parametrize("name", list(OPERATORS))
def test_operators(name: str) -> None:
    operator_samples.check_operator(OPERATORS[name], "cuda", strict, MOST, gradients=True)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", [m for m in MODULES if m not in ODD_SHAPES])
def test_modules(name: str, training: bool) -> None:
    operator_samples.check_module(MODULES[name], "cuda", strict, MOST, training)
