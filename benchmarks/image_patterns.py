"""Patterns in users' models of images and signals beside products: norms over large groups, windows, scans behind views, middle axes.

Each class at several sizes, odd ones among them, in f32; those with a convolution are judged against torch.compile alone.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod

import torch
import torch.nn.functional as F

from benchmarks.case import Case, Inputs, Tensors, as_tuple, relative_error

ITEM_BYTES = 4
EPS = 1e-5
# Units in the last place of the products of a convolution on tensor cores (tf32) and of f32.
TF32_UNIT, F32_UNIT = 2.0**-11, 2.0**-24


def cases(size: int) -> Iterator[Case]:
    """Every case. Units: `size` in bytes of input and result together, about."""
    yield from _norms(size)
    yield from _windows(size)
    yield from _scans(size)
    yield from _middle_axes(size)
    yield from _convolutions(size)


def _normal(*shapes: tuple[int, ...], scale: float = 1.0) -> Inputs:
    def make(device: torch.device, generator: torch.Generator) -> list[torch.Tensor]:
        return [torch.randn(shape, device=device, generator=generator) * (scale if n == 1 else 1.0) for n, shape in enumerate(shapes)]

    return make


def _case(family: str, function: Callable[..., object], shape: tuple[int, ...], *more: tuple[int, ...], share: float = 0.9,
          speedup: float | None = 1.0, check: Callable[[Sequence[torch.Tensor], Tensors], float] | None = None, rank: int = 1) -> Case:
    return Case(f"{family}/f32/{'x'.join(map(str, shape))}", family, "f32", function, _normal(shape, *more, scale=0.1 if check else 1.0),
                rank=rank, min_of_limit=share, min_speedup=speedup, check=check)


# -- norms over large groups -------------------------------------------------------------------------------------------------

def gelu_group_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """GELU, then a group norm of eight groups: more than a multiprocessor holds, so that elements are read twice."""
    return F.group_norm(F.gelu(x), 8, w, b, EPS)


def gated_group_norm(x: torch.Tensor, bias: torch.Tensor, scale: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """sigmoid((x + bias) * scale), then a group norm."""
    return F.group_norm(torch.sigmoid((x + bias) * scale), 8, w, b, EPS)


def swish_group_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Swish, group norm and hard swish."""
    return F.hardswish(F.group_norm(torch.sigmoid(x) * x, 4, w, b, EPS))


def instance_norm(x: torch.Tensor) -> torch.Tensor:
    """Instance norm of each channel of each image, halved."""
    return F.instance_norm(x) / 2.0


def _norms(size: int) -> Iterator[Case]:
    # Three passes over memory for two tensors' bytes: 0.6 of a copy is what they can reach.
    for channels, side in ((64, 258), (32, 512), (64, 56)):
        shape = (max(1, size // (2 * ITEM_BYTES * channels * side * side)), channels, side, side)
        yield _case("gelu-groupnorm", gelu_group_norm, shape, (channels,), (channels,), share=0.5, rank=0 if side == 258 else 1)
        yield _case("gated-groupnorm", gated_group_norm, shape, (channels, 1, 1), (channels, 1, 1), (channels,), (channels,), share=0.5)
    volume = (31, 63, 63)
    images = max(1, size // (2 * ITEM_BYTES * 16 * 31 * 63 * 63))
    yield _case("swish-groupnorm", swish_group_norm, (images, 16, *volume), (16,), (16,), share=0.5)
    for channels, side in ((128, 126), (16, 512)):
        yield _case("instancenorm", instance_norm, (max(1, size // (2 * ITEM_BYTES * channels * side * side)), channels, side, side))


# -- windows along one axis --------------------------------------------------------------------------------------------------

def max_pool_1d(x: torch.Tensor) -> torch.Tensor:
    """Maximum of eight elements, three apart."""
    return F.max_pool1d(x, 8, 1, 4, 3)


def avg_pool_1d(x: torch.Tensor) -> torch.Tensor:
    """Mean of eight neighbours."""
    return F.avg_pool1d(x, 8, 1, 4)


def channel_windows(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """A convolution of each channel by itself, and ReLU6."""
    return F.hardtanh(F.conv2d(x, w, groups=x.shape[1], padding=w.shape[-1] // 2), 0, 6)


def _windows(size: int) -> Iterator[Case]:
    for length in (65536, 8191):
        shape = (max(1, size // (2 * ITEM_BYTES * 128 * length)), 128, length)
        yield _case("max-pool-1d", max_pool_1d, shape, share=0.6, rank=0 if length == 65536 else 1)
        yield _case("avg-pool-1d", avg_pool_1d, shape, share=0.6)
    for channels, side, window in ((64, 512, (3, 3)), (144, 112, (3, 3)), (128, 128, (3, 7)), (8, 512, (3, 1))):
        shape = (max(1, size // (2 * ITEM_BYTES * channels * side * side)), channels, side, side)
        yield _case("channel-windows", channel_windows, shape, (channels, 1, *window), share=0.0)


# -- scans behind views ------------------------------------------------------------------------------------------------------

def exclusive_cumsum(x: torch.Tensor) -> torch.Tensor:
    """Running sum of all elements before each one, as long as the row: zeros in front, the last one cut off."""
    return torch.cumsum(torch.cat((torch.zeros_like(x[:, :1]), x.narrow(1, 0, x.shape[1] - 1)), 1), 1)


def longer_cumsum(x: torch.Tensor) -> torch.Tensor:
    """Running sum that begins with a zero: rows of an odd length."""
    return torch.cumsum(torch.cat((torch.zeros_like(x[:, :1]), x), 1), 1)


def reverse_cumsum(x: torch.Tensor) -> torch.Tensor:
    """Running sum from the end of the row."""
    return torch.cumsum(x.flip(1), 1).flip(1)


def _scans(size: int) -> Iterator[Case]:
    for length in (4096, 32768):
        shape = (max(1, size // (2 * ITEM_BYTES * length)), length)
        yield _case("exclusive-cumsum", exclusive_cumsum, shape, rank=0 if length == 4096 else 1)
        yield _case("longer-cumsum", longer_cumsum, shape, share=0.5)
        yield _case("reverse-cumsum", reverse_cumsum, shape, share=0.45)


# -- reductions over a middle axis -------------------------------------------------------------------------------------------

def middle_mean(x: torch.Tensor) -> torch.Tensor:
    """Mean over the axis in the middle."""
    return x.mean(1)


def middle_max(x: torch.Tensor) -> torch.Tensor:
    """Maximum over the axis in the middle."""
    return x.amax(1)


def _middle_axes(size: int) -> Iterator[Case]:
    for length, inner in ((4096, 4095), (1024, 333), (512, 1024)):
        shape = (max(1, size // (ITEM_BYTES * length * inner)), length, inner)
        yield _case("middle-mean", middle_mean, shape, rank=0 if inner == 4095 else 1)
        yield _case("middle-max", middle_max, shape)


# -- convolutions and what stands beside them --------------------------------------------------------------------------------

def convolution(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """A convolution alone: row-major on both sides."""
    return F.conv2d(x, w, padding=1)


def pointwise_convolution(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """A convolution between elementwise operators."""
    return F.relu(F.conv2d(F.relu(x), w, padding=1)) + 1.0


def convolution_group_norm(x: torch.Tensor, w: torch.Tensor, g: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A convolution, GELU and a group norm of eight groups."""
    return F.group_norm(F.gelu(F.conv2d(x, w)), 8, g, b, EPS)


def convolution_instance_norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """A convolution and an instance norm, halved."""
    return F.instance_norm(F.conv2d(x, w)) / 2.0


def transposed_group_norm(x: torch.Tensor, w: torch.Tensor, g: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A transposed convolution, GELU and a group norm of eight groups."""
    return F.group_norm(F.gelu(F.conv_transpose2d(x, w)), 8, g, b, EPS)


def gated_convolution_group_norm(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor, scale: torch.Tensor, g: torch.Tensor,
                                 b: torch.Tensor) -> torch.Tensor:
    """A convolution of few channels, bias and scale of its channels, sigmoid, and a group norm of eight groups."""
    return F.group_norm(torch.sigmoid((F.conv2d(x, w) + bias) * scale), 8, g, b, EPS)


def volume_group_norm(x: torch.Tensor, w: torch.Tensor, g: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A transposed convolution of volumes to twice their side, swish, a group norm of four groups and hard swish."""
    y = F.conv_transpose3d(x, w, stride=2, padding=1)
    return F.hardswish(F.group_norm(torch.sigmoid(y) * y, 4, g, b, EPS))


def places_group_norm(x: torch.Tensor, g: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A group norm of 32 groups whose channels are neighbours in memory, and swish."""
    return F.silu(F.group_norm(x.permute(0, 3, 1, 2), 32, g, b, EPS)).permute(0, 2, 3, 1).contiguous()


def strided_convolution(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """A convolution by large steps, as networks begin with: few channels become many."""
    return F.conv2d(x, w, stride=w.shape[-1] // 3, padding=w.shape[-1] // 4)


def _tf32_error(function: Callable[..., object]) -> Callable[[Sequence[torch.Tensor], Tensors], float]:
    """Error of a result whose products are rounded to tf32, in the same share of its unit as `case.allowed_error` allows of f32's."""
    def error(inputs: Sequence[torch.Tensor], outputs: Tensors) -> float:
        wide = as_tuple(function(*(t.double() for t in inputs)))
        return relative_error(outputs, wide) * F32_UNIT / TF32_UNIT

    return error


def _convolutions(size: int) -> Iterator[Case]:
    for channels, side in ((64, 56), (256, 28), (32, 254)):
        shape = (max(1, size // (2 * ITEM_BYTES * channels * side * side)), channels, side, side)
        weight = (channels, channels, 3, 3)
        for family, function, more in (
            ("convolution", convolution, ()), ("convolution-pointwise", pointwise_convolution, ()),
            ("convolution-groupnorm", convolution_group_norm, ((channels,), (channels,))),
            ("convolution-instancenorm", convolution_instance_norm, ()),
        ):
            yield _case(family, function, shape, weight, *more, share=0.0, check=_tf32_error(function))
    for side in (254, 61):
        shape = (max(1, size // (2 * ITEM_BYTES * 64 * side * side)), 64, side, side)
        yield _case("transposed-groupnorm", transposed_group_norm, shape, (64, 64, 3, 3), (64,), (64,), share=0.0,
                    check=_tf32_error(transposed_group_norm))
    for side in (256, 93):
        shape = (max(1, size // (ITEM_BYTES * 40 * side * side)), 8, side, side)
        yield _case("gated-convolution-groupnorm", gated_convolution_group_norm, shape, (32, 8, 3, 3), (32, 1, 1), (32, 1, 1), (32,), (32,),
                    share=0.0, check=_tf32_error(gated_convolution_group_norm))
    for volume in ((16, 32, 32), (9, 20, 28)):
        shape = (max(1, size // (ITEM_BYTES * (3 + 8 * 16) * prod(volume))), 3, *volume)
        yield _case("volume-groupnorm", volume_group_norm, shape, (3, 16, 3, 3, 3), (16,), (16,), share=0.0,
                    check=_tf32_error(volume_group_norm))
    for channels, side in ((320, 64), (128, 255)):
        shape = (max(1, size // (2 * ITEM_BYTES * channels * side * side)), side, side, channels)
        yield _case("groupnorm-of-places", places_group_norm, shape, (channels,), (channels,), share=0.5)
    for channels, window in ((96, 11), (64, 7)):
        step = window // 3
        shape = (max(1, size // (ITEM_BYTES * 224 * 224 * (3 + channels // step**2))), 3, 224, 224)
        yield _case("strided-convolution", strided_convolution, shape, (channels, 3, window, window), share=0.0,
                    check=_tf32_error(strided_convolution))

