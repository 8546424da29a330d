"""Host convolutions with constant weights: the weights are converted to oneDNN's blocked layout once instead of at every call.

Torch's own convolution reorders the weights of some shapes at every call, and runs others by an older implementation (small 1 x 1
convolutions of one image). This file calls oneDNN through the operators that torch's own compiler uses. A ReLU after the call stays a
kernel: oneDNN's returns 0 for NaN, where the operator keeps NaN (torch 2.13, AMD EPYC).
"""
from __future__ import annotations

from collections.abc import Sequence

import torch

from tilefuse.runtime.calls.library import Results
from tilefuse.runtime.spec import Value


def may_be_packed(x: Value, w: Value) -> bool:
    """Whether this call can use packed weights: channels last, two-dimensional, f32, with weights that are constants of the program.

    Row-major input is converted to blocks and back at every call, which costs small convolutions more than packed weights save.
    """
    plain = w.role == "constant" and x.dtype == w.dtype == "f32" and len(x.shape) == 4 and 0 not in x.shape
    return plain and _is_channels_last(x) and torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled


def _is_channels_last(x: Value) -> bool:
    _, c, h, w = x.shape
    return all(n == 1 or have == want for n, have, want in zip(x.shape, x.strides, (c * h * w, 1, w * c, c), strict=True))


class PackedConvolution:
    """A call of a convolution that packs its weights at the first call: constants belong to the program and never change."""

    def __init__(self, input_shape: Sequence[int], stride: list[int], padding: list[int], dilation: list[int], groups: int,
                 has_bias: bool) -> None:
        self._input_shape = list(input_shape)
        self._stride, self._padding, self._dilation, self._groups = stride, padding, dilation, groups
        self._has_bias = has_bias
        self._packed: torch.Tensor | None = None

    def __call__(self, tensors: list[torch.Tensor]) -> Results:
        """The result of the convolution of these operands: input, weights, bias."""
        if self._packed is None:
            self._packed = torch.ops.mkldnn._reorder_convolution_weight(
                tensors[1], self._padding, self._stride, self._dilation, self._groups, self._input_shape)
        bias = tensors[2] if self._has_bias else None
        return (torch.ops.mkldnn._convolution_pointwise.default(
            tensors[0], self._packed, bias, self._padding, self._stride, self._dilation, self._groups, "none", [], ""),)
