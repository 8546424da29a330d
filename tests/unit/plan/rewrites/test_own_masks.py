"""Masks that several walks read: maps of each walk, and one value where that is no larger than its operands or is read elsewhere."""
from __future__ import annotations

import numpy as np
import pytest

from tests.unit.templates.stitched_cases import in_double
from tests.unit.templates.stitched_graphs import normal
from tilefuse.base.options import Options
from tilefuse.driver.compile import generate
from tilefuse.ir.building.tensor import TensorBuilder
from tilefuse.ir.dtype import F16, F32
from tilefuse.ir.graph import Graph
from tilefuse.ir.interpret import interpret
from tilefuse.plan.rewrites.own_masks import maps_behind, with_own_masks
from tilefuse.plan.walks import find_walks
from tilefuse.target.device import H200

LEAD, LENGTH, WIDTH = (4, 6), 512, 32


def layers(count: int, dense: bool = False, returned: bool = False) -> Graph:
    """Attentions one after another, each with the same sum of a bias and a mask of columns. dense: the bias has all axes."""
    b = TensorBuilder("layers")
    x = b.input("x", F16, (*LEAD, LENGTH, WIDTH))
    bias = b.input("bias", F16, (*(LEAD if dense else (1, LEAD[1])), LENGTH, LENGTH))
    mask = b.elementwise("add", bias, b.input("padding", F16, (LEAD[0], 1, 1, LENGTH)))
    for _ in range(count):
        s = b.cast(b.elementwise("add", b.matmul(x, x, transpose_b=True), mask), F32)
        x = b.matmul(b.cast(b.softmax(s, 3), F16), x)
    return normal(b, [x, *([mask] if returned else [])])


@pytest.mark.parametrize("returned", [False, True])
def test_each_layer_has_maps_of_its_own(returned: bool) -> None:
    """Equal bit by bit; the value itself is left where something else reads it. Walks then read the bias and the mask of columns."""
    graph = layers(2, returned=returned)
    own = with_own_masks(graph, H200)
    assert len(own.nodes) == len(graph.nodes) + (2 if returned else 1) and with_own_masks(own, H200) is own
    random = np.random.default_rng(3)
    values = {v.name: random.standard_normal(v.type.shape) * 0.3 for v in graph.inputs}
    for one, two in zip(interpret(in_double(graph), values), interpret(in_double(own), values), strict=True):
        assert np.array_equal(one, two)
    plan = generate(graph, constants={}, input_layouts={}, device=H200, options=Options()).plan
    walks = [k for k in plan.kernels if k.program.template == "pipelined_walk"]
    assert len(walks) == 2 and all({"bias", "padding"} <= {v.name for v in k.program.graph.inputs} for k in walks)


def test_values_that_stay() -> None:
    """A bias of all axes is read as it is; one layer has its map anyway."""
    for graph in (layers(2, dense=True), layers(1)):
        assert with_own_masks(graph, H200) is graph
    assert not maps_behind("", graph) and not maps_behind("x", graph)
    assert find_walks(graph, H200)
