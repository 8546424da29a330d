"""Normalisation layers. Statistics are computed in f32 at least, for any type of the activations."""
from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import tilefuse.array as ta
from tilefuse.arrays.arguments import whole_number
from tilefuse.arrays.functions import neural
from tilefuse.arrays.functions.creation import checked_shape
from tilefuse.arrays.nodes import user_span
from tilefuse.base.errors import ShapeError, UserError
from tilefuse.nn.initialise import filled
from tilefuse.nn.module import Module, Parameter, Statistic


class BatchNorm(Module):
    """Each channel normalised over all samples and positions; in evaluation mode by running statistics instead of the batch's.

    After a training call running_mean and running_var hold (1 - momentum) * old + momentum * batch (its variance over n - 1).
    affine: whether weight and bias are trained. eps: added to the variance.
    Shapes: [N, channels, *S] -> the same
    """

    weight: Any
    bias: Any
    running_mean: Any
    running_var: Any

    def __init__(self, channels: int, eps: float = 1e-5, momentum: float = 0.1, affine: bool = True, *, dtype: Any = None) -> None:
        super().__init__()
        self.eps, self.momentum = eps, momentum
        self.weight = Parameter(filled((channels,), 1.0, dtype)) if affine else None
        self.bias = Parameter(filled((channels,), 0.0, dtype)) if affine else None
        self.running_mean = Statistic(filled((channels,), 0.0, dtype))
        self.running_var = Statistic(filled((channels,), 1.0, dtype))

    def forward(self, x: Any) -> Any:
        """Shapes: x: [N, C, *S], and the result. Raises: ShapeError for another number of channels."""
        if x.ndim < 2 or x.shape[1] != self.running_mean.shape[0]:
            raise ShapeError(f"batch norm of {self.running_mean.shape[0]} channels is given an array of shape {tuple(x.shape)}",
                             where=user_span())
        if not self.training:
            return neural.normalised(x, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        count = prod(x.shape) // max(x.shape[1], 1)
        if count < 2:
            raise UserError(f"batch norm in training mode needs more than one value a channel, given shape {tuple(x.shape)}",
                            where=user_span(), hint="use a larger batch, or eval()")
        y, mean, variance = neural.batch_norm(x, self.weight, self.bias, eps=self.eps)
        self.running_mean = self._blended(self.running_mean, mean, 1.0)
        self.running_var = self._blended(self.running_var, variance, count / (count - 1))
        return y

    def _blended(self, running: Any, batch: Any, factor: float) -> Any:
        return running * (1.0 - self.momentum) + ta.astype(batch, running.dtype) * (self.momentum * factor)


class BatchNorm2d(BatchNorm):
    """Batch norm under the name that networks of images use; channels, eps, momentum and affine as for `BatchNorm`."""


class LayerNorm(Module):
    """Each sample normalised over the last dimensions.

    shape: their extents. affine: whether weight and bias are trained. eps: added to the variance.
    Shapes: [*B, *shape] -> the same
    """

    weight: Any
    bias: Any

    def __init__(self, shape: int | Sequence[int], eps: float = 1e-5, affine: bool = True, *, dtype: Any = None) -> None:
        super().__init__()
        self.shape = checked_shape(shape)
        self.eps = eps
        self.weight = Parameter(filled(self.shape, 1.0, dtype)) if affine else None
        self.bias = Parameter(filled(self.shape, 0.0, dtype)) if affine else None

    def forward(self, x: Any) -> Any:
        """Shapes: x: [*B, *shape], and the result. Raises: ShapeError for other last dimensions."""
        if tuple(x.shape[x.ndim - len(self.shape):]) != self.shape:
            raise ShapeError(f"layer norm over {self.shape} is given an array of shape {tuple(x.shape)}", where=user_span())
        return neural.layer_norm(x, len(self.shape), self.weight, self.bias, eps=self.eps)


class GroupNorm(Module):
    """Each of `groups` groups of channels of a sample normalised with all its positions.

    affine, eps: as for `LayerNorm`.
    Shapes: [N, channels, *S] -> the same
    """

    weight: Any
    bias: Any

    def __init__(self, groups: int, channels: int, eps: float = 1e-5, affine: bool = True, *, dtype: Any = None) -> None:
        super().__init__()
        if whole_number(groups, "the number of groups") < 1 or whole_number(channels, "the number of channels") % groups:
            raise UserError(f"{groups} groups do not divide {channels} channels", where=user_span())
        self.groups, self.eps = groups, eps
        self.weight = Parameter(filled((channels,), 1.0, dtype)) if affine else None
        self.bias = Parameter(filled((channels,), 0.0, dtype)) if affine else None

    def forward(self, x: Any) -> Any:
        """Shapes: x: [N, C, *S], and the result."""
        return neural.group_norm(x, self.groups, self.weight, self.bias, eps=self.eps)
