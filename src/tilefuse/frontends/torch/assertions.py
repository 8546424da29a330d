"""Assertions on data in traced graphs: `torch._assert_async`, and those in the decompositions of torch's own operators.

    all(x >= 0), all(x < 4)   ->  later readers of x see in_range(x, 4): no pass of its own (`one_hot` is traced so)
    any other condition       ->  a library call of torch's assertion, kept alive as a result that the caller does not get
"""
from __future__ import annotations

from typing import Any

import torch
from torch import fx

from tilefuse.frontends.torch.ops import TorchBuilder
from tilefuse.ir.building.build import axis_names
from tilefuse.ir.building.tensor_elementwise import converted
from tilefuse.ir.dtype import BOOL, I64
from tilefuse.ir.graph import Attribute, Type
from tilefuse.ir.scalar import in_range

aten = torch.ops.aten


def asserted_range(assertion: fx.Node) -> tuple[fx.Node, int] | None:
    """The whole numbers that an assertion is about and their count, where all are asserted to be at least 0 and less than it."""
    condition = assertion.args[0]
    if not _is_all(condition) or not isinstance(condition, fx.Node):
        return None
    comparison = condition.args[0]
    if not isinstance(comparison, fx.Node) or comparison.target not in (aten.ge.Scalar, aten.lt.Scalar):
        return None
    x = comparison.args[0]
    fake = x.meta.get("val") if isinstance(x, fx.Node) else None
    if not isinstance(x, fx.Node) or not isinstance(fake, torch.Tensor) or fake.is_floating_point() or fake.is_complex():
        return None
    limits: dict[Any, list[Any]] = {aten.ge.Scalar: [], aten.lt.Scalar: []}
    for user in x.users:
        if user.target in limits and any(_is_all(a) and any(_is_assertion(n) for n in a.users) for a in user.users):
            limits[user.target].append(user.args[1])
    extents = [limit for limit in limits[aten.lt.Scalar] if type(limit) is int and limit > 0]
    return (x, extents[0]) if limits[aten.ge.Scalar] == [0] and len(extents) == 1 == len(limits[aten.lt.Scalar]) else None


def _is_all(node: Any) -> bool:
    return isinstance(node, fx.Node) and node.target is aten.all.default


def _is_assertion(node: fx.Node) -> bool:
    return node.target is aten._assert_async.msg


def checked_range(b: TorchBuilder, x: str, extent: int) -> str:
    """The same whole numbers; the executors raise for one that is not in 0 to extent - 1."""
    shape, dtype = b.shape_of(x), b.dtype_of(x)
    axes = axis_names(len(shape))
    body = converted(in_range(b.read_as(x, I64, shape, axes), extent, I64), I64, dtype)
    return b.make_map("in_range", dtype, shape, axes, body)


def called_assertion(b: TorchBuilder, name: str, condition: str, message: str) -> str:
    """A library node that raises unless the condition holds. Shapes: condition, result: []"""
    attributes: dict[str, Attribute] = {"args": (("%", 0), message, ("%", 0)), "kwargs": (), "result": 0}
    flag = condition if b.dtype_of(condition) == BOOL else b.elementwise("ne", condition, 0)
    return b.library(name, "aten._functional_assert_async.msg", Type(BOOL, ()), [b.reshape(flag, [])], attributes)
