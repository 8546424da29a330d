"""Operators on lists of tensors, as optimizers use them: each is the operator of one tensor, once for every element."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilefuse.frontends.torch_ops import TORCH_OPS, TorchBuilder, decline
from tilefuse.frontends.torch_ops_creation import copy, identity, zeros
from tilefuse.frontends.torch_ops_pointwise import (
    add,
    addcdiv,
    addcmul,
    clamp_max,
    clamp_min,
    div,
    lerp,
    pow_scalar,
    sign,
    sub,
)

_FOREACH: dict[str, Callable[..., Any]] = {
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
    "sqrt": TORCH_OPS["aten.sqrt.default"],
    "rsqrt": TORCH_OPS["aten.rsqrt.default"],
    "neg": TORCH_OPS["aten.neg.default"],
    "abs": TORCH_OPS["aten.abs.default"],
    "exp": TORCH_OPS["aten.exp.default"],
    "log": TORCH_OPS["aten.log.default"],
    "reciprocal": TORCH_OPS["aten.reciprocal.default"],
    "sign": sign,
    "pow": pow_scalar,
    "copy": copy,
    "zero": zeros,
    "clone": identity,
}


def _enter_foreach(name: str, lowering: Callable[..., Any]) -> None:
    def lower(b: TorchBuilder, first: Any, *rest: Any, **named: Any) -> tuple[str, ...]:
        lists = [first, *rest, *named.values()]
        if not isinstance(first, (list, tuple)):
            raise decline(f"_foreach_{name} whose first operand is no list")
        count = len(first)
        types, made = b.expected, []
        for n in range(count):
            b.expected = (types[n],)
            picked = [_element(v, n, count) for v in lists]
            made.append(lowering(b, *picked[: 1 + len(rest)], **dict(zip(named, picked[1 + len(rest) :]))))
        b.expected = types
        return tuple(made)

    for overload in ("default", "List", "Scalar", "ScalarList", "Tensor", "ScalarAndTensor"):
        TORCH_OPS[f"aten._foreach_{name}.{overload}"] = lower


def _element(argument: Any, n: int, count: int) -> Any:
    if isinstance(argument, Sequence) and not isinstance(argument, str):
        return argument[n]
    return argument


for _name, _lowering in _FOREACH.items():
    _enter_foreach(_name, _lowering)
