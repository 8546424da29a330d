"""Operators on lists of tensors, as optimizers use them: each is the operator of one tensor, once for every element."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tilefuse.frontends.torch.ops import TORCH_OPS, Scalar, TorchBuilder, Value, decline
from tilefuse.frontends.torch.ops_creation import copy, identity, zeros
from tilefuse.frontends.torch.ops_pointwise import (
    add,
    addcdiv,
    addcmul,
    clamp_max,
    clamp_min,
    div,
    lerp,
    pow_scalar,
    pow_tensor,
    sign,
    sub,
)
from tilefuse.frontends.torch.ops_reduce import vector_norm

# Functions of one element without further arguments, whose lowering is that of the operator of the same name.
_OF_ONE = (
    "abs", "acos", "asin", "atan", "ceil", "cos", "cosh", "erf", "erfc", "exp", "expm1", "floor", "lgamma", "log", "log10", "log1p",
    "log2", "neg", "reciprocal", "round", "rsqrt", "sigmoid", "sin", "sinh", "sqrt", "tan", "tanh", "trunc",
)


def _norm(b: TorchBuilder, x: Value, ord: float = 2.0, dtype: torch.dtype | None = None) -> str:
    """A norm over all of a tensor, in the type of the result: clipping of gradients asks for one of every parameter."""
    return vector_norm(b, x, ord)


def _pow(b: TorchBuilder, x: Value, exponent: Value | Scalar) -> str:
    return pow_scalar(b, x, exponent) if isinstance(exponent, (int, float)) else pow_tensor(b, x, exponent)


_FOREACH: dict[str, Callable[..., Any]] = {
    **{name: TORCH_OPS[f"aten.{name}.default"] for name in _OF_ONE},
    "add": add,
    "sub": sub,
    "mul": TORCH_OPS["aten.mul.Tensor"],
    "div": div,
    "addcmul": addcmul,
    "addcdiv": addcdiv,
    "lerp": lerp,
    "maximum": TORCH_OPS["aten.maximum.default"],
    "minimum": TORCH_OPS["aten.minimum.default"],
    "clamp_min": clamp_min,
    "clamp_max": clamp_max,
    "sign": sign,
    "pow": _pow,
    "copy": copy,
    "zero": zeros,
    "clone": identity,
    "norm": _norm,
}


def _enter_foreach(name: str, lowering: Callable[..., Any]) -> None:
    def lower(b: TorchBuilder, first: Any, *rest: Any, **named: Any) -> tuple[str, ...]:
        lists = [first, *rest, *named.values()]
        if not isinstance(first, (list, tuple)):
            raise decline(f"_foreach_{name} whose first operand is no list")
        count = len(first)
        types, results = b.expected, []
        for n in range(count):
            b.expected = (types[n],)
            picked = [_element(v, n, count) for v in lists]
            results.append(lowering(b, *picked[: 1 + len(rest)], **dict(zip(named, picked[1 + len(rest) :]))))
        b.expected = types
        return tuple(results)

    for overload in ("default", "List", "Scalar", "ScalarList", "Tensor", "ScalarAndTensor"):
        TORCH_OPS[f"aten._foreach_{name}.{overload}"] = lower


def _element(argument: Any, n: int, count: int) -> Any:
    if isinstance(argument, Sequence) and not isinstance(argument, str):
        return argument[n]
    return argument


for _name, _lowering in _FOREACH.items():
    _enter_foreach(_name, _lowering)
