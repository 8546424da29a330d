"""Convolutions of each channel by itself as sums over windows: what they compute, and which ones."""
from __future__ import annotations

import numpy as np
import pytest

from tests.unit.passes.device.rewriting import rewritten
from tilefuse.ir.graph import Graph
from tilefuse.ir.interpret import interpret
from tilefuse.ir.layouts import channels_last_strides
from tilefuse.ir.text import parse_graph
from tilefuse.ir.verify import check
from tilefuse.passes.device.channel_windows import SumChannelWindows
from tilefuse.target.catalog import host_device
from tilefuse.target.device import H200


def convolution(dtype: str = "f32", channels: int = 6, groups: int = 6, bias: bool = True, step: int = 2, dilation: int = 2) -> Graph:
    """Twelve channels from six over images of 9 x 8, windows of 3 x 2."""
    rows, columns = (9 + 3 - 2 * dilation - 1) // step + 1, 8 + 1 - dilation
    more, operand = (f", %b: {dtype}[12]", ", %b") if bias else ("", "")
    shape = f"{dtype}[2, 12, {rows}, {columns}]"
    attributes = (f"{{dilation = ({dilation}, {dilation}), groups = {groups}, has_bias = {str(bias).lower()}, output_padding = (0, 0), "
                  f"padding = ((1, 2), (0, 1)), stride = ({step}, 1), transposed = false}}")
    return parse_graph(f"""graph @g(%x: {dtype}[2, {channels}, 9, 8], %w: {dtype}[12, {channels // groups}, 3, 2]{more}) -> ({shape}) {{
      %y: {shape} = library.convolution (%x, %w{operand}) {attributes}
      return %y
    }}""")


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("step", "dilation"), [(1, 1), (2, 1), (1, 2), (2, 2)])
def test_windows_give_what_the_convolution_gives(bias: bool, step: int, dilation: int) -> None:
    graph = convolution(bias=bias, step=step, dilation=dilation)
    summed = rewritten(SumChannelWindows(), graph, H200, {})
    check(summed, "windows")
    assert not any(n.category == "library" for n in summed.nodes)
    generator = np.random.default_rng(7)
    inputs = {i.name: generator.standard_normal(i.type.shape).astype(np.float32) for i in graph.inputs}
    ours, theirs = (interpret(g, inputs)[0] for g in (summed, graph))
    assert np.allclose(ours, theirs, atol=6 * 2.0**-23 * np.abs(theirs).max() + 1e-6)


def test_other_convolutions_stay_calls() -> None:
    for graph in (convolution("f16"), convolution(groups=3), convolution(groups=1)):
        assert rewritten(SumChannelWindows(), graph, H200, {}) is graph
    graph = convolution()
    assert rewritten(SumChannelWindows(), graph, host_device(), {}) is graph
    assert rewritten(SumChannelWindows(), graph, H200, {"x": channels_last_strides((2, 6, 9, 8))}) is graph
