"""Reductions over groups of channels of images that lie channels last: what they compute, which ones, and what they read."""
from __future__ import annotations

import numpy as np
import pytest

from tests.unit.passes.device.rewriting import rewritten
from tilefuse.ir.graph import Graph
from tilefuse.ir.interpret import interpret
from tilefuse.ir.layouts import Layouts, channels_last_strides
from tilefuse.ir.text import parse_graph
from tilefuse.ir.verify import check
from tilefuse.passes.device.channel_sums import SplitChannelSums
from tilefuse.target.catalog import host_device
from tilefuse.target.device import H200

LAST: Layouts = {"x": channels_last_strides((3, 15, 7, 5))}


def groups(dtype: str = "f32", with_sum: bool = True, bias: bool = False) -> Graph:
    """Sums and squared deviations of five groups of three channels, of images of 7 x 5."""
    element = "%x[i, 3*j + k, l, m]" if not bias else "add(%x[i, 3*j + k, l, m], %b[3*j + k])"
    operand = f", %b: {dtype}[15]" if bias else ""
    over = "over [k < 3, l < 7, m < 5]"
    total = f"%s: {dtype}[3, 5] = reduce.sum [i, j] {over} {{ {element} }}" if with_sum else ""
    kinds, names = ((f"{dtype}[3, 5], " if with_sum else ""), ("%s, " if with_sum else ""))
    return parse_graph(f"""graph @g(%x: {dtype}[3, 15, 7, 5]{operand}) -> ({kinds}{dtype}[3, 5]) {{
      {total}
      %d: {dtype}[3, 5] = reduce.m2 [i, j] {over} {{ {element} }}
      return {names}%d
    }}""")


@pytest.mark.parametrize("with_sum", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_sums_by_channel_give_what_sums_over_groups_give(with_sum: bool, bias: bool, offset: float) -> None:
    """Images whose mean is large beside their deviations lose no digits: squares are about each channel's mean."""
    graph = groups(with_sum=with_sum, bias=bias)
    split = rewritten(SplitChannelSums(), graph, H200, LAST)
    check(split, "by channel")
    rng = np.random.default_rng(11)
    inputs = {i.name: (rng.standard_normal(i.type.shape) + offset).astype(np.float32) for i in graph.inputs}
    wide = inputs["x"].astype(np.float64) + (inputs["b"].astype(np.float64)[None, :, None, None] if bias else 0.0)
    rows = wide.reshape(3, 5, -1)
    results = interpret(split, inputs)
    unit, count = 2.0**-24, rows.shape[-1]
    assert np.allclose(results[-1], rows.var(-1) * count, rtol=0, atol=4 * count * unit * (np.abs(rows).max() + count))
    if with_sum:
        assert np.allclose(results[0], rows.sum(-1), rtol=0, atol=2 * count * unit * np.abs(rows).sum(-1).max())


def test_a_sum_by_channel_serves_both() -> None:
    """The sum by channel that squared deviations need is the one that the sum over a group is made of."""
    split = rewritten(SplitChannelSums(), groups(), H200, LAST)
    places = [n for n in split.nodes if "x" in n.reads()]
    assert [(n.kind, n.type.shape, n.over) for n in places] == [
        ("reduce.sum", (3, 5, 3), (("l", 7), ("m", 5))), ("reduce.m2", (3, 5, 3), (("l", 7), ("m", 5)))]


def test_other_sums_stay_whole() -> None:
    """Row-major images, hosts, sums over all channels, sums of one channel each, and sums over places alone."""
    graph = groups()
    assert rewritten(SplitChannelSums(), graph, H200, {}) is graph
    assert rewritten(SplitChannelSums(), graph, host_device(), LAST) is graph
    for kept, subscript, over in (("", "k, l, m", "n < 3, k < 15, l < 7, m < 5"), ("i", "k, l, m", "k < 15, l < 7, m < 5"),
                                  ("i, j", "j, l, m", "l < 7, m < 5"), ("j, l, m", "j, l, m", "n < 3")):
        shape = [{"i": 3, "j": 15, "l": 7, "m": 5}[a] for a in kept.split(", ") if a]
        image = "n" if "n <" in over else "i"
        text = f"""graph @g(%x: f32[3, 15, 7, 5]) -> (f32{shape}) {{
          %s: f32{shape} = reduce.sum [{kept}] over [{over}] {{ %x[{image}, {subscript}] }}
          return %s
        }}"""
        graph = parse_graph(text)
        assert rewritten(SplitChannelSums(), graph, H200, LAST) is graph, text


def test_values_that_are_read_as_images_count() -> None:
    """The layout of elements decides: tokens [images, places, channels] are images channels last."""
    graph = parse_graph("""graph @g(%x: f32[3, 35, 15]) -> (f32[3, 5]) {
      %s: f32[3, 5] = reduce.sum [i, j] over [k < 3, l < 35] { %x[i, l, 3*j + k] }
      return %s
    }""")
    assert len(rewritten(SplitChannelSums(), graph, H200, {}).nodes) == 2
    assert rewritten(SplitChannelSums(), graph, H200, {"x": (525, 1, 35)}) is graph


def test_groups_that_fill_lines_are_walked() -> None:
    """64 channels of f32 at a place are two lines."""
    for channels, is_split in ((32, True), (64, False)):
        graph = parse_graph(f"""graph @g(%x: f32[3, 35, {4 * channels}]) -> (f32[3, 4]) {{
          %s: f32[3, 4] = reduce.sum [i, j] over [k < {channels}, l < 35] {{ %x[i, l, {channels}*j + k] }}
          return %s
        }}""")
        assert (rewritten(SplitChannelSums(), graph, H200, {}) is not graph) is is_split


def test_sums_that_mix_channels_and_places_stay_whole() -> None:
    """An axis that moves along channels and places at once belongs to neither."""
    graph = parse_graph("""graph @g(%x: f32[3, 15, 7, 5]) -> (f32[3, 5]) {
      %s: f32[3, 5] = reduce.sum [i, j] over [k < 3, m < 5] { %x[i, 3*j + k, 2*k, m] }
      return %s
    }""")
    assert rewritten(SplitChannelSums(), graph, H200, LAST) is graph
