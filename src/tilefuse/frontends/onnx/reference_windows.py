"""Operators over windows for ONNX's reference implementation, by PyTorch where it has them with these attributes.

The package's own visit windows one by one: 8 images of 64 channels and 14 x 14 take it 0.07 to 1 s, and PyTorch 0.1 to 1 ms.
"""
from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from onnx.reference.ops import op_average_pool, op_conv_transpose, op_grid_sample, op_max_pool

_TAKEN = (np.float32, np.float64)


def _symmetric(pads: Any, count: int) -> list[int] | None:
    """Padding of each of `count` dimensions; None where its two sides differ."""
    listed = list(pads or [0] * 2 * count)
    return listed[:count] if listed[:count] == listed[count:] else None


def _plain(x: Any, attributes: dict[str, Any], count: int) -> list[int] | None:
    """Padding of the windowed dimensions; None where PyTorch has no such windows."""
    if x.dtype not in _TAKEN or 0 in x.shape or count not in (1, 2, 3) or (attributes.get("auto_pad") or "NOTSET") != "NOTSET":
        return None
    return None if attributes.get("ceil_mode") else _symmetric(attributes.get("pads"), count)


class MaxPool(op_max_pool.MaxPool):  # the evaluator finds it by this name
    """Largest element of each window."""

    op_domain = ""

    def _run(self, x: Any, **attributes: Any) -> tuple[Any, ...]:
        """Shapes: x: [N, C, *X] -> [N, C, *Y], and the same for positions if they are requested"""
        kernel = list(attributes["kernel_shape"])
        pads = _plain(x, attributes, len(kernel))
        if pads is None or len(self.onnx_node.output) > 1 or any(2 * p > k for p, k in zip(pads, kernel, strict=True)):
            return tuple(super()._run(x, **attributes))
        pool = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[len(kernel) - 1]
        ones = [1] * len(kernel)
        return (pool(torch.from_numpy(x), kernel, attributes.get("strides") or ones, pads, attributes.get("dilations") or ones).numpy(),)


class AveragePool(op_average_pool.AveragePool_19):  # the evaluator finds it by this name
    """Mean of each window."""

    op_domain = ""

    def _run(self, x: Any, **attributes: Any) -> tuple[Any, ...]:
        """Shapes: x: [N, C, *X] -> [N, C, *Y]"""
        kernel = list(attributes["kernel_shape"])
        pads, ones = _plain(x, attributes, len(kernel)), [1] * len(kernel)
        dilated = list(attributes.get("dilations") or ones) != ones
        if pads is None or dilated or any(2 * p > k for p, k in zip(pads, kernel, strict=True)):
            return tuple(super()._run(x, **attributes))
        pool: Any = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[len(kernel) - 1]
        return (pool(torch.from_numpy(x), kernel, attributes.get("strides") or ones, pads,
                     count_include_pad=bool(attributes.get("count_include_pad"))).numpy(),)


class ConvTranspose(op_conv_transpose.ConvTranspose):  # the evaluator finds it by this name
    """Transposed convolution."""

    op_domain = ""

    def _run(self, X: Any, W: Any, B: Any = None, **attributes: Any) -> tuple[Any, ...]:
        """Shapes: X: [N, C, *X], W: [C, M / group, *K] -> [N, M, *Y]"""
        count = X.ndim - 2
        pads, ones = _plain(X, attributes, count), [1] * count
        if pads is None or attributes.get("output_shape"):
            return tuple(super()._run(X, W, B, **attributes))
        convolve: Any = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[count - 1]
        strides, beyond = list(attributes.get("strides") or ones), list(attributes.get("output_padding") or [0] * count)[:count]
        dilations = list(attributes.get("dilations") or ones)
        if any(b >= max(s, d) for b, s, d in zip(beyond, strides, dilations, strict=True)):
            return tuple(super()._run(X, W, B, **attributes))
        return (convolve(torch.from_numpy(X), torch.from_numpy(W), None if B is None else torch.from_numpy(B), strides, pads, beyond,
                         attributes.get("group") or 1, dilations).numpy(),)


class GridSample(op_grid_sample.GridSample):  # the evaluator finds it by this name
    """Samples at positions from data."""

    op_domain = ""

    def _run(self, X: Any, grid: Any, mode: Any = None, padding_mode: Any = None, align_corners: Any = None) -> tuple[Any, ...]:
        """Shapes: X: [N, C, *X], grid: [N, *Y, d] -> [N, C, *Y]"""
        kind = {"linear": "bilinear", "cubic": "bicubic"}.get(mode or "linear", mode or "linear")
        if X.dtype not in _TAKEN or X.dtype != grid.dtype or 0 in (*X.shape, *grid.shape) or X.ndim not in (4, 5) or (
                X.ndim == 5 and kind == "bicubic"):
            return tuple(super()._run(X, grid, mode, padding_mode, align_corners))
        return (F.grid_sample(torch.from_numpy(X), torch.from_numpy(grid), kind, padding_mode or "zeros", bool(align_corners)).numpy(),)
