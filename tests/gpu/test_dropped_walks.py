"""Attention with dropout on a device: bits that lanes draw for each other are those of the definition, by kernels that fill the device."""
from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.gpu.test_pipelined_walks import has_warpgroup_products, on_device
from tests.unit.templates.staged.walked.variants import Variant
from tilefuse.domain.tile import TileProgram
from tilefuse.driver.compile import present_device
from tilefuse.ir.meaning import random_bits
from tilefuse.templates.staged.walked.record import PipelinedWalk
from tilefuse.templates.staged.walked.template import schedule_walk

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not has_warpgroup_products(), reason="needs a CUDA device of compute capability 9.0")]


@pytest.mark.parametrize(("scores", "choice"), [
    ((), None), (("causal",), None), ((), PipelinedWalk(208, 2, 2, 3, 1, 132)), (("causal",), PipelinedWalk(64, 3, 2, 4, 1, 132)),
])
def test_the_mask_is_that_of_the_definition(scores: tuple[str, ...], choice: PipelinedWalk | None) -> None:
    """One head of 32 in f64; three calls give the same bits."""
    device, _ = present_device()
    length, drop, seed = 1024, 0.1, 123456789012345
    of = Variant(scores, batch=2, heads=16, rows=length, keys=length, inner=64, width=64, drop=drop)
    program = schedule_walk(of.graph(), {}, device, choice)
    assert isinstance(program, TileProgram), program
    torch.manual_seed(1)
    q, k, v = (torch.randn(2, 16, length, 64, device="cuda", dtype=torch.float16) for _ in range(3))
    got, = on_device(program, {"q": q, "k": k, "v": v, "seed": torch.tensor([seed], device="cuda")})
    for batch, head in ((0, 0), (1, 5)):
        s = q[batch, head].double() @ k[batch, head].double().T * 0.25
        s = s.masked_fill(torch.ones_like(s, dtype=torch.bool).triu(1), float("-inf")) if scores else s
        first = (batch * 16 + head) * length * length
        drawn = random_bits(np.int64(seed), np.arange(first, first + length * length)).reshape(length, length)
        kept = torch.from_numpy(drawn < np.uint32(np.float32(1 - drop) * 2**32)).to("cuda")
        expected = torch.where(kept, torch.softmax(s, -1) / (1 - drop), 0.0) @ v[batch, head].double()
        assert (got[batch, head].double() - expected).abs().max() < 2.0**-8 * max(expected.abs().max().item(), 1.0)
