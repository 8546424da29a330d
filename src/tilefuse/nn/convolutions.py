"""Convolutions over one or two dimensions, and transposed ones. Weights have torch's shapes and names."""
from __future__ import annotations

from math import prod
from typing import Any, ClassVar

from tilefuse.arrays.arguments import whole_number
from tilefuse.arrays.functions import neural
from tilefuse.arrays.functions.neural import Extents, Padding
from tilefuse.arrays.nodes import user_span
from tilefuse.base.errors import UserError
from tilefuse.nn.initialise import Seed, generator, inverse_root
from tilefuse.nn.module import Module, Parameter


class _Convolution(Module):
    """Weight and bias of a convolution over `dims` dimensions, and its settings as they were given."""

    dims: ClassVar[int]
    weight: Any
    bias: Any

    def __init__(self, inputs: int, outputs: int, kernel: Extents, groups: int, bias: bool, transposed: bool, seed: Seed,
                 dtype: Any) -> None:
        super().__init__()
        inputs, outputs, groups = (whole_number(n, "a number of channels or groups") for n in (inputs, outputs, groups))
        if groups < 1 or inputs % groups or outputs % groups:
            raise UserError(f"{groups} groups do not divide {inputs} and {outputs} channels", where=user_span())
        draws = generator(seed)
        self.window = neural.each(kernel, self.dims, "the window")
        self.groups = groups
        channels = (inputs, outputs // groups) if transposed else (outputs, inputs // groups)
        reach = channels[1] * prod(self.window)
        self.weight = Parameter(inverse_root((*channels, *self.window), reach, draws, dtype))
        self.bias = Parameter(inverse_root((outputs,), reach, draws, dtype)) if bias else None


class _Forward(_Convolution):
    """padding: elements on each side of each dimension, or a pair a dimension; "valid" is none, "same" as many as keep the extents."""

    def __init__(self, inputs: int, outputs: int, kernel: Extents, stride: Extents = 1, padding: Padding | str = 0, dilation: Extents = 1,
                 groups: int = 1, bias: bool = True, *, seed: Seed = None, dtype: Any = None) -> None:
        super().__init__(inputs, outputs, kernel, groups, bias, False, seed, dtype)
        self.stride, self.dilation = stride, dilation
        self.padding = self._around(padding) if isinstance(padding, str) else padding

    def _around(self, word: str) -> Padding:
        if word not in ("valid", "same"):
            raise UserError(f"padding {word!r} is no number", where=user_span(), hint='a number, one a dimension, "valid" or "same"')
        if word == "valid":
            return 0
        if any(s != 1 for s in neural.each(self.stride, self.dims, "stride")):
            raise UserError(f'padding "same" with stride {self.stride}: the result has fewer elements', where=user_span(),
                            hint="stride=1, or padding as numbers")
        reach = [d * (k - 1) for k, d in zip(self.window, neural.each(self.dilation, self.dims, "dilation"), strict=True)]
        return [(r // 2, r - r // 2) for r in reach]

    def forward(self, x: Any) -> Any:
        return neural.convolution(x, self.weight, self.bias, stride=self.stride, padding=self.padding, dilation=self.dilation,
                                  groups=self.groups)


class Conv1d(_Forward):
    """Cross-correlation of sequences. Shapes: [N, inputs, L] -> [N, outputs, L']

    padding: elements on each side, or a (before, after) pair in a list; "valid", "same".
    """

    dims = 1


class Conv2d(_Forward):
    """Cross-correlation of images. Shapes: [N, inputs, H, W] -> [N, outputs, H', W']

    padding: elements on each side of each dimension, or a pair a dimension; "valid", "same".
    """

    dims = 2


class _Transposed(_Convolution):
    """padding: elements cut off each side; output_padding: elements added behind, fewer than stride or dilation."""

    def __init__(self, inputs: int, outputs: int, kernel: Extents, stride: Extents = 1, padding: Extents = 0, output_padding: Extents = 0,
                 groups: int = 1, bias: bool = True, dilation: Extents = 1, *, seed: Seed = None, dtype: Any = None) -> None:
        super().__init__(inputs, outputs, kernel, groups, bias, True, seed, dtype)
        self.stride, self.padding, self.output_padding, self.dilation = stride, padding, output_padding, dilation

    def forward(self, x: Any) -> Any:
        return neural.convolution_transpose(x, self.weight, self.bias, stride=self.stride, padding=self.padding,
                                            output_padding=self.output_padding, dilation=self.dilation, groups=self.groups)


class ConvTranspose1d(_Transposed):
    """The gradient of `Conv1d` in its input, as a layer. Shapes: [N, inputs, L] -> [N, outputs, L']

    L' = (L - 1) stride - 2 padding + dilation (kernel - 1) + output_padding + 1
    """

    dims = 1


class ConvTranspose2d(_Transposed):
    """The gradient of `Conv2d` in its input, as a layer: it makes images larger. Shapes: [N, inputs, H, W] -> [N, outputs, H', W']

    H' = (H - 1) stride - 2 padding + dilation (kernel - 1) + output_padding + 1
    """

    dims = 2
