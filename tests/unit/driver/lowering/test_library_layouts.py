"""Strides of library results are torch's own, and a torch that cannot say leaves them dense."""
from __future__ import annotations

import torch

from tilefuse.driver.lowering.library_layouts import LibraryLayouts
from tilefuse.ir.dtype import F32
from tilefuse.ir.graph import Node, Type


def node(operator: str, shape: tuple[int, ...], **attributes: object) -> Node:
    pairs = tuple(sorted(attributes.items()))
    return Node("r", Type(F32, shape), f"library.{operator}", operands=("x",), attributes=pairs)  # type: ignore[arg-type]


def test_an_elementwise_operator_keeps_its_operands_strides() -> None:
    layouts = LibraryLayouts("cpu")
    call = node("aten.erfinv.default", (8, 4), args=(("%", 0),), kwargs=(), result=0)
    given = Type(F32, (8, 4))
    wanted = torch.empty(4, 8).t().erfinv().stride()
    assert layouts(call, (given,), ((1, 8),)) == wanted == (1, 8)
    assert layouts(call, (given,), ((4, 1),)) is None


def test_what_torch_cannot_shape_is_dense() -> None:
    call = node("aten.nonzero.default", (3, 2), args=(("%", 0),), kwargs=(), result=0)
    assert LibraryLayouts("cpu")(call, (Type(F32, (8, 4)),), ((4, 1),)) is None
