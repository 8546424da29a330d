"""Attention with sinks, as models write it, on the device: one walk, within the error of eager torch."""
from __future__ import annotations

import pytest
import torch

import tilefuse
from tests.unit.passes.test_joined_columns import CASES, Module, operands

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0),
                                                  reason="needs a CUDA device of compute capability 9.0")]


@pytest.mark.parametrize("keys", [300, 512])
@pytest.mark.parametrize("name", CASES)
def test_sinks_take_part_in_sums_alone(name: str, keys: int) -> None:
    given = tuple(x.cuda() for x in operands(torch.bfloat16, keys, keys))
    module = Module(CASES[name])
    wanted = module(*(x.double() for x in given))
    program = tilefuse.compile(module, given)
    error, eager = ((x.double() - wanted).abs().max() for x in (program(*given), module(*given)))
    assert error <= max(2 * eager, 4 * torch.finfo(torch.bfloat16).eps)
    assert not program.explain(json=True)["library"]
