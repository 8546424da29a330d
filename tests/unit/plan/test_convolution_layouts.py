"""One layout for all convolutions of a graph: the one in which they are done sooner in all."""
from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tilefuse.base.options import Options
from tilefuse.driver.product_precision import with_precision
from tilefuse.ir.graph import Graph
from tilefuse.ir.text import parse_graph
from tilefuse.plan import convolution_layouts
from tilefuse.plan.convolution_layouts import is_faster_channels_last, spared_us
from tilefuse.plan.layout import plan_layouts
from tilefuse.runtime import library
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
    assert ("y" in plan_layouts(graph, {}, {}, H200, Options())) is (last and dtype != "f64" and groups == 1)


def test_f32_without_tf32_is_row_major(exact_convolutions: None) -> None:
    """VGG-11 in plain f32 on an H200: 4.2 ms channels last, 2.8 row-major. f16 does not mind."""
    exact = with_precision(convolution("f32", (3, 3)), "auto")
    assert exact.nodes[0].attribute("precision") == "f32"
    assert plan_layouts(exact, {}, {}, H200, Options()) == {}
    assert "y" in plan_layouts(exact, {}, {}, H200, Options(channels_last="always"))
    halves = convolution("f16", (3, 3))
    assert with_precision(halves, "auto") is halves


def test_tf32_is_the_default() -> None:
    graph = convolution("f32", (3, 3))
    assert with_precision(graph, "auto") is graph


def test_small_calls_gain_the_least() -> None:
    small = convolution("f16", (3, 3), channels=16, batch=1)
    assert spared_us(small, small.nodes[0], H200) == convolution_layouts.LEAST_US
    lines = convolution("f16", (1, 11), 16, 16, 1)
    assert spared_us(lines, lines.nodes[0], H200) == -convolution_layouts.LEAST_US


def test_the_runtime_turns_what_the_plan_expects_it_to() -> None:
    assert library.LARGE_WINDOW == convolution_layouts.LARGE_WINDOW
