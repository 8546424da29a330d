"""Biases of convolutions as maps behind the calls: what they compute, and which ones."""
from __future__ import annotations

import numpy as np
import pytest

from tests.unit.passes.device.rewriting import rewritten
from tilefuse.ir.graph import Graph
from tilefuse.ir.interpret import interpret
from tilefuse.ir.scalar import NUMPY_DTYPES
from tilefuse.ir.text import parse_graph
from tilefuse.ir.verify import check
from tilefuse.passes.device.convolution_biases import SplitConvolutionBiases
from tilefuse.target.catalog import host_device
from tilefuse.target.device import H200


def convolution(dtype: str = "f32", groups: int = 1, bias: bool = True, transposed: bool = False) -> Graph:
    """Six channels from six over images of 5 x 4, windows of 3 x 3; the result goes to the caller."""
    more, operand = (f", %b: {dtype}[6]", ", %b") if bias else ("", "")
    attributes = (f"{{dilation = (1, 1), groups = {groups}, has_bias = {str(bias).lower()}, output_padding = (0, 0), "
                  f"padding = ((1, 1), (1, 1)), stride = (1, 1), transposed = {str(transposed).lower()}}}")
    return parse_graph(f"""graph @g(%x: {dtype}[2, 6, 5, 4], %w: {dtype}[6, {6 // groups}, 3, 3]{more}) -> ({dtype}[2, 6, 5, 4]) {{
      %y: {dtype}[2, 6, 5, 4] = library.convolution (%x, %w{operand}) {attributes}
      return %y
    }}""")


@pytest.mark.parametrize("dtype", ["f32", "f16", "f64"])
@pytest.mark.parametrize("transposed", [False, True])
def test_a_bias_behind_the_call_gives_what_the_call_gives(dtype: str, transposed: bool) -> None:
    """Of small integers both are exact."""
    graph = convolution(dtype, transposed=transposed)
    split = rewritten(SplitConvolutionBiases(), graph, H200)
    check(split, "biases")
    assert [(n.kind, n.attribute("has_bias")) for n in split.nodes] == [("library.convolution", False), ("map", None)]
    rng = np.random.default_rng(5)
    inputs = {i.name: rng.integers(-3, 4, i.type.shape).astype(NUMPY_DTYPES[i.type.dtype.name]) for i in graph.inputs}
    ours, theirs = (interpret(g, inputs)[0] for g in (split, graph))
    assert np.array_equal(ours, theirs) and ours.dtype == theirs.dtype


def test_other_biases_stay_with_their_calls() -> None:
    """Convolutions of each channel by itself add it in torch's own kernels, a host's in oneDNN's."""
    for graph, device in ((convolution(bias=False), H200), (convolution(groups=6), H200), (convolution(), host_device())):
        assert rewritten(SplitConvolutionBiases(), graph, device) is graph
    assert rewritten(SplitConvolutionBiases(), convolution(groups=6, transposed=True), H200) is not convolution(groups=6, transposed=True)
    assert len(rewritten(SplitConvolutionBiases(), convolution(groups=2), H200).nodes) == 2
