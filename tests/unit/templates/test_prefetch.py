"""Operands of later products are asked for ahead: one request a line, only where several are read from global memory by every block."""
from __future__ import annotations

import re

import pytest
import torch

import tilefuse
from tilefuse.domain.tile import TileProgram
from tilefuse.printers.cuda import print_cuda
from tilefuse.target.device import H200
from tilefuse.templates.compose import compose
from tilefuse.templates.pattern import schedule_pattern


def chain(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    for w in weights:
        x = torch.tanh(x @ w) + x
    return x


def source(count: int, width: int) -> str:
    """The chain as one kernel, however a plan would divide it."""
    given = (torch.empty(8, width), *(torch.empty(width, width) for _ in range(count)))
    graph = tilefuse.compile(chain, given, target="h200").plan.graph
    program = schedule_pattern(graph, [n.name for n in graph.nodes], {}, H200)
    assert isinstance(program, TileProgram), program
    return print_cuda(compose(program, H200), H200)


@pytest.mark.parametrize("width", [250, 300])
def test_each_line_of_each_weight_is_asked_for_once(width: int) -> None:
    text = source(4, width)
    asked = re.findall(r"if \((\w+) < (\d+)\) \{\s*tf_prefetch\((\w+) \+ 32 \* \1\);", text)
    assert len({weight for _, _, weight in asked}) == len(asked) == 4
    assert all(int(lines) == -(-width * width * 4 // 128) for _, lines, _ in asked)


def test_one_product_asks_for_nothing() -> None:
    assert "tf_prefetch" not in source(1, 256)
