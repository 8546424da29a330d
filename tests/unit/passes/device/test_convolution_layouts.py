"""One layout for all convolutions of a graph: the one in which they are done sooner in all."""
from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tilefuse.driver.lowering.product_precision import with_precision
from tilefuse.ir.graph import Graph
from tilefuse.ir.layouts import channels_last_strides
from tilefuse.ir.text import parse_graph
from tilefuse.passes.device.convolution_layouts import is_faster_channels_last, spared_us
from tilefuse.passes.device.packed_weights import allows_channels_last, with_packed_weights
from tilefuse.plan.rewrites.layout import plan_layouts
from tilefuse.runtime.calls import library
from tilefuse.target.device import H200


def convolution(dtype: str, window: tuple[int, int], groups: int = 1, channels: int = 64, batch: int = 32) -> Graph:
    high, wide = window
    attributes = (f"{{dilation = (1, 1), groups = {groups}, has_bias = false, output_padding = (0, 0), "
                  f"padding = (({high // 2}, {high // 2}), ({wide // 2}, {wide // 2})), stride = (1, 1), transposed = false}}")
    image, weight = f"{dtype}[{batch}, {channels}, 28, 28]", f"{dtype}[{channels}, {channels // groups}, {high}, {wide}]"
    return parse_graph(f"""graph @g(%x: {image}, const %w: {weight}) -> (f32[{batch}, {channels}]) {{
      %y: {image} = library.convolution (%x, %w) {attributes}
      %z: f32[{batch}, {channels}] = reduce.sum [n, c] over [h < 28, q < 28] {{ f32(%y[n, c, h, q]) }}
      return %z
    }}""")


@pytest.fixture
def exact_convolutions() -> Iterator[None]:
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before


@pytest.mark.parametrize(("dtype", "window", "groups", "last"), [
    ("f16", (3, 3), 1, True), ("f32", (3, 3), 1, True), ("bf16", (3, 3), 64, True), ("f32", (7, 7), 64, True),
    ("f16", (1, 11), 64, False), ("f32", (11, 1), 64, False), ("f64", (3, 3), 1, True)])
def test_kinds_of_convolutions(dtype: str, window: tuple[int, int], groups: int, last: bool) -> None:
    graph = convolution(dtype, window, groups)
    assert is_faster_channels_last(graph, H200) is last
    # A weight of one channel each lies in both ways, and the image decides.
    assert ("y" in plan_layouts(graph, {}, {}, H200, "auto")) is (last and dtype != "f64" and groups == 1)


def test_f32_without_tf32_is_row_major(exact_convolutions: None) -> None:
    """VGG-11 in plain f32 on an H200: 4.2 ms channels last, 2.8 row-major. f16 does not mind."""
    exact = with_precision(convolution("f32", (3, 3)), "auto")
    assert exact.nodes[0].attribute("precision") == "f32"
    assert plan_layouts(exact, {}, {}, H200, "auto") == {}
    assert "y" in plan_layouts(exact, {}, {}, H200, "always")
    halves = convolution("f16", (3, 3))
    assert with_precision(halves, "auto") is halves


def test_tf32_is_the_default() -> None:
    graph = convolution("f32", (3, 3))
    assert with_precision(graph, "auto") is graph


def lone(channels: int, features: int, behind: bool = False) -> Graph:
    """A convolution of the caller's image, row-major like its result, with or without an operator behind it."""
    attributes = ("{dilation = (1, 1), groups = 1, has_bias = false, output_padding = (0, 0), padding = ((1, 1), (1, 1)), stride = (1, 1), "
                  "transposed = false}")
    shape = f"f32[32, {features}, 64, 64]"
    more = f"%z: {shape} = map [n, c, h, q] {{ maximum(%y[n, c, h, q], 0.0:f32) }}" if behind else ""
    return parse_graph(f"""graph @g(%x: f32[32, {channels}, 64, 64], %w: f32[{features}, {channels}, 3, 3]) -> ({shape}) {{
      %y: {shape} = library.convolution (%x, %w) {attributes}
      {more}
      return {"%z" if behind else "%y"}
    }}""")


@pytest.mark.parametrize(("channels", "features", "behind", "last"), [
    (64, 64, False, True), (3, 64, False, True), (8, 32, False, False), (8, 32, True, True), (16, 32, False, False)])
def test_images_that_only_kernels_turn_are_weighed(channels: int, features: int, behind: bool, last: bool) -> None:
    """H200, 8 to 32 channels over [128, 256, 256]: row-major 1953 us, channels last 1514 and 630 to turn both images; an operator behind
    the call turns the result on its way."""
    graph = lone(channels, features, behind)
    assert allows_channels_last(graph, H200, "auto") is last
    assert (with_packed_weights(graph, {}, H200, "auto") is not graph) is last


def test_images_that_lie_channels_last_need_no_turning() -> None:
    graph = lone(8, 32)
    given, wanted = ({v: channels_last_strides(graph.type_of(v).shape)} for v in ("x", "y"))
    assert allows_channels_last(graph, H200, "auto", given, wanted) is True
    assert allows_channels_last(graph, H200, "auto", {}, wanted) is True
    assert allows_channels_last(graph, H200, "auto", free={"y"}) is True
    assert allows_channels_last(graph, H200, "always") is True


def test_small_calls_gain_the_least() -> None:
    small = convolution("f16", (3, 3), channels=16, batch=1)
    assert spared_us(small, small.nodes[0], H200) == H200.fitted.convolutions.least_us
    lines = convolution("f16", (1, 11), 16, 16, 1)
    assert spared_us(lines, lines.nodes[0], H200) == -H200.fitted.convolutions.least_us


def test_the_runtime_turns_what_the_plan_expects_it_to() -> None:
    assert H200.fitted.convolutions.large_window == library.LARGE_WINDOW
