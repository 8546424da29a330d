"""Losses: one number (or one for each sample) from a network's outputs and the targets. Computed in f32 at least."""
from __future__ import annotations

from typing import Any

import tilefuse.array as ta
from tilefuse.arrays.functions import neural
from tilefuse.arrays.nodes import user_span
from tilefuse.base.errors import ShapeError, TypeMismatchError, UserError

WIDE = (ta.float32, ta.float64)


def cross_entropy(logits: Any, classes: Any, *, reduction: str = "mean", label_smoothing: float = 0.0) -> Any:
    """-log of the probability that softmax of the logits gives the right class.

    label_smoothing: share of the target that is spread evenly over all classes.
    Shapes: logits: [N, C, *S], classes: integers [N, *S], each in [0, C) -> a scalar, or [N, *S] with reduction "none"
    Raises: ShapeError where shapes do not fit; TypeMismatchError for classes that are no integers; UserError for an unknown reduction.
    """
    if _array(logits).ndim < 2:
        raise ShapeError(f"logits have shape {tuple(logits.shape)}", where=user_span(), hint="[samples, classes]")
    likely = ta.log_softmax(_wide(logits), axis=1)
    losses = -neural.picked(likely, classes, 1)
    if label_smoothing:
        even = -ta.mean(likely, axis=1)
        losses = losses * (1.0 - label_smoothing) + even * label_smoothing
    return _reduced(losses, reduction)


def mse(found: Any, wanted: Any, *, reduction: str = "mean") -> Any:
    """Squared differences of `found` and `wanted`; reduction: "mean", "sum" or "none".

    Shapes: equal -> a scalar, or the same with reduction "none"
    """
    difference = _difference(found, wanted)
    return _reduced(difference * difference, reduction)


def l1(found: Any, wanted: Any, *, reduction: str = "mean") -> Any:
    """Absolute differences of `found` and `wanted`; reduction as for `mse`.

    Shapes: equal -> a scalar, or the same with reduction "none"
    """
    return _reduced(ta.abs(_difference(found, wanted)), reduction)


def binary_cross_entropy_with_logits(logits: Any, wanted: Any, *, reduction: str = "mean") -> Any:
    """-wanted * log(sigmoid(x)) - (1 - wanted) * log(1 - sigmoid(x)), as softplus(x) - wanted * x, which neither overflows nor cancels.

    logits: the x above. reduction: as for `mse`.
    Shapes: equal, wanted in [0, 1] -> a scalar, or the same with reduction "none"
    """
    _same_shape(logits, wanted)
    x = _wide(logits)
    return _reduced(neural.softplus(x) - ta.astype(wanted, x.dtype) * x, reduction)


def _wide(x: Any) -> Any:
    return x if x.dtype in WIDE else ta.astype(x, ta.float32)


def _difference(values: Any, targets: Any) -> Any:
    _same_shape(values, targets)
    x = _wide(values)
    return x - ta.astype(targets, x.dtype)


def _array(x: Any) -> Any:
    """Raises: TypeMismatchError for what is no array."""
    if not isinstance(x, ta.Array):
        raise TypeMismatchError(f"a loss compares arrays, not a {type(x).__name__}", where=user_span(), hint="asarray makes one")
    return x


def _same_shape(values: Any, targets: Any) -> None:
    if tuple(_array(values).shape) != tuple(_array(targets).shape):
        raise ShapeError(f"the loss compares shapes {tuple(values.shape)} and {tuple(targets.shape)}", where=user_span(),
                         hint="reshape one of them")


def _reduced(losses: Any, reduction: str) -> Any:
    match reduction:
        case "mean":
            return ta.mean(losses)
        case "sum":
            return ta.sum(losses)
        case "none":
            return losses
    raise UserError(f"unknown reduction {reduction!r}", where=user_span(), hint='"mean", "sum" or "none"')
