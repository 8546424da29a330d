"""Operands of later products are asked for ahead: one request a line, only where several are read from global memory by every block."""
from __future__ import annotations

import re

import pytest
import torch

import tilefuse


def chain(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    for w in weights:
        x = torch.tanh(x @ w) + x
    return x


def sources(count: int, width: int) -> str:
    given = (torch.empty(8, width), *(torch.empty(width, width) for _ in range(count)))
    generated = tilefuse.compile(chain, given, target="h200")
    assert len(generated.spec.kernels) == 1, [k.name for k in generated.spec.kernels]
    return generated.spec.kernels[0].source


@pytest.mark.parametrize("width", [250, 300])
def test_each_line_of_each_weight_is_asked_for_once(width: int) -> None:
    text = sources(4, width)
    asked = re.findall(r"if \((\w+) < (\d+)\) \{\s*tf_prefetch\((\w+) \+ 32 \* \1\);", text)
    assert len({weight for _, _, weight in asked}) == len(asked) == 4
    assert all(int(lines) == -(-width * width * 4 // 128) for _, lines, _ in asked)


def test_one_product_asks_for_nothing() -> None:
    assert "tf_prefetch" not in sources(1, 256)
