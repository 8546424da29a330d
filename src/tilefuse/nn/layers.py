"""Layers: linear, pooling, embedding, dropout, activations, shapes.

Weights have torch's shapes and names, so that states can be exchanged. A layer computes in the type of its input: weights are converted,
so a network of f32 parameters runs in bf16 when it is given bf16.
"""
from __future__ import annotations

from math import prod
from typing import Any

import tilefuse.array as ta
from tilefuse.arrays.arguments import real_number
from tilefuse.arrays.functions import neural
from tilefuse.arrays.functions.neural import Extents, Padding
from tilefuse.arrays.nodes import user_span
from tilefuse.base.errors import UserError
from tilefuse.nn.initialise import Seed, generator, inverse_root, normal
from tilefuse.nn.module import Module, Parameter


class Linear(Module):
    """x @ weight^T + bias. Shapes: [*B, inputs] -> [*B, outputs]"""

    weight: Any
    bias: Any

    def __init__(self, inputs: int, outputs: int, bias: bool = True, *, seed: Seed = None, dtype: Any = None) -> None:
        super().__init__()
        draws = generator(seed)
        self.weight = Parameter(inverse_root((outputs, inputs), inputs, draws, dtype))
        self.bias = Parameter(inverse_root((outputs,), inputs, draws, dtype)) if bias else None

    def forward(self, x: Any) -> Any:
        """x @ weight^T + bias. Shapes: x: [..., inputs] -> [..., outputs]"""
        return neural.linear(x, self.weight, self.bias)


class MaxPool2d(Module):
    """The largest element of each window. Shapes: [N, C, H, W] -> [N, C, H', W']"""

    def __init__(self, kernel: Extents, stride: Extents | None = None, padding: Padding = 0) -> None:
        super().__init__()
        self.kernel, self.stride, self.padding = kernel, stride, padding

    def forward(self, x: Any) -> Any:
        """The largest element of each window. Shapes: x: [N, C, H, W] -> [N, C, H', W']"""
        return neural.max_pool(x, self.kernel, stride=self.stride, padding=self.padding)


class AvgPool2d(Module):
    """The mean of each window; count_include_pad: whether padding counts as zeros. Shapes: [N, C, H, W] -> [N, C, H', W']"""

    def __init__(self, kernel: Extents, stride: Extents | None = None, padding: Padding = 0, count_include_pad: bool = True) -> None:
        super().__init__()
        self.kernel, self.stride, self.padding, self.count_include_pad = kernel, stride, padding, count_include_pad

    def forward(self, x: Any) -> Any:
        """The mean of each window. Shapes: x: [N, C, H, W] -> [N, C, H', W']"""
        return neural.mean_pool(x, self.kernel, stride=self.stride, padding=self.padding, count_include_pad=self.count_include_pad)


class Embedding(Module):
    """A row of weights for each number. Shapes: integers [*I], each in [0, rows) -> [*I, width]"""

    weight: Any

    def __init__(self, rows: int, width: int, *, seed: Seed = None, dtype: Any = None) -> None:
        super().__init__()
        self.weight = Parameter(normal((rows, width), seed=seed, dtype=dtype))

    def forward(self, numbers: Any) -> Any:
        """Rows of the weight. Shapes: numbers: [*B] integers -> [*B, width]"""
        return neural.embedding(self.weight, numbers)


class Dropout(Module):
    """Zeroes elements with probability `p` and divides the others by 1 - p; in evaluation mode nothing happens."""

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        if not 0.0 <= real_number(p, "p") <= 1.0:
            raise UserError(f"dropout with probability {p}", where=user_span(), hint="between 0 and 1")
        self.p = p

    def forward(self, x: Any) -> Any:
        """`x` with random elements zeroed in training mode, else `x`."""
        return ta.dropout(x, self.p) if self.training and self.p else x


class Flatten(Module):
    """All dimensions but the first in one. Shapes: [N, *S] -> [N, prod(S)]"""

    def forward(self, x: Any) -> Any:
        """Shapes: x: [N, ...] -> [N, product of the others]"""
        return ta.reshape(x, (x.shape[0], prod(x.shape[1:])))


class ReLU(Module):
    """The positive part."""

    def forward(self, x: Any) -> Any:
        """max(x, 0), element by element."""
        return neural.relu(x)


class LeakyReLU(Module):
    """x where it is positive, else slope * x."""

    def __init__(self, slope: float = 0.01) -> None:
        super().__init__()
        self.slope = slope

    def forward(self, x: Any) -> Any:
        """x, times the slope where it is negative."""
        return neural.leaky_relu(x, self.slope)


class GELU(Module):
    """x times the normal distribution function at x; approximate: "none" or "tanh"."""

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        self.approximate = approximate

    def forward(self, x: Any) -> Any:
        """x times the normal distribution function of x."""
        return neural.gelu(x, self.approximate)


class SiLU(Module):
    """x * sigmoid(x)."""

    def forward(self, x: Any) -> Any:
        """x * sigmoid(x), element by element."""
        return neural.silu(x)


class Sigmoid(Module):
    """1 / (1 + exp(-x))."""

    def forward(self, x: Any) -> Any:
        """1 / (1 + exp(-x)), element by element."""
        return neural.sigmoid(x)


class Tanh(Module):
    """Hyperbolic tangent."""

    def forward(self, x: Any) -> Any:
        """tanh(x), element by element."""
        return ta.tanh(x)
