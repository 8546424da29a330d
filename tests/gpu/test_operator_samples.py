"""Torch's own samples of operators and modules on a device, forward and gradients (`tests/operator_samples.py`)."""
from __future__ import annotations

import pytest
import torch

from tests.operator_samples import shard

pytest.importorskip("expecttest")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
SHARDS, MOST = 32, 6


@pytest.mark.parametrize("number", range(SHARDS))
def test_samples_agree_with_eager_torch(number: int) -> None:
    done = shard("cuda", number, SHARDS, MOST)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
