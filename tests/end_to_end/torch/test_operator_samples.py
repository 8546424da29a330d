"""Torch's own samples of operators and modules on the host, forward and gradients (`tests/operator_samples.py`)."""
from __future__ import annotations

import pytest

from tests.operator_samples import shard

pytest.importorskip("expecttest")
# Before its first sample, each process reads lists and compilers of torch for ten seconds.
SHARDS = 3


@pytest.mark.timeout(900)
@pytest.mark.parametrize("number", range(SHARDS))
def test_samples_agree_with_eager_torch(number: int) -> None:
    done = shard("cpu", number, SHARDS, 1)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
