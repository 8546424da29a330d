"""Facts that torch has of an FX node: who reads it, the types and strides of its tensors, where the user's program made it."""

from __future__ import annotations

import operator
import re
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from tilefuse.base.errors import UnsupportedError, UnsupportedOpError
from tilefuse.base.source import Span
from tilefuse.frontends.torch import ops_library as torch_ops_library
from tilefuse.frontends.torch.ops import DTYPE_BY_TORCH, TORCH_OPS
from tilefuse.ir.dtype import DType

PARTS_BY_COMPLEX = {torch.complex128: torch.float64, torch.complex64: torch.float32, torch.complex32: torch.float16}

# Operators whose result sizes do not follow from operand sizes.
_SIZED_BY_DATA = frozenset(f"aten::{name}" for name in ("_unique", "_unique2", "bincount", "masked_select", "nonzero",
                                                        "unique_consecutive", "unique_dim"))

# Views between a product and its reader that need no kernel themselves.
_VIEWS = frozenset(
    f"aten.{name}"
    for name in (
        "view.default",
        "_unsafe_view.default",
        "permute.default",
        "transpose.int",
        "t.default",
        "expand.default",
        "unsqueeze.default",
        "squeeze.dim",
        "squeeze.dims",
        "slice.Tensor",
        "select.int",
        "clone.default",
        "split_with_sizes.default",
        "split.Tensor",
        "unbind.int",
        "squeeze.default",
        "alias.default",
    )
)
_MATRIX_PRODUCTS = frozenset(f"aten.{name}.default" for name in ("mm", "bmm", "addmm", "baddbmm"))
_PRODUCTS = _MATRIX_PRODUCTS | {"aten.convolution.default", "aten.convolution_backward.default"}


def readers_of(node: fx.Node) -> list[fx.Node]:
    """The nodes that read a result, through views; the output node where it leaves the graph."""
    readers: list[fx.Node] = []
    for user in node.users:
        if user.op == "call_function" and (str(user.target) in _VIEWS or user.target is operator.getitem):
            readers.extend(readers_of(user))
        else:
            readers.append(user)
    return readers


def is_library(node: fx.Node) -> bool:
    """Whether a reader cannot share a kernel with its operand."""
    name = str(node.target)
    return node.op == "output" or name in _PRODUCTS or name in torch_ops_library.BY_DESIGN or name not in TORCH_OPS


def is_product_view(node: fx.Node) -> bool:
    """Whether a node is a view, through views only, of a matrix product, which lies in memory row-major."""
    viewed = False
    while node.op == "call_function" and (node.target is operator.getitem or str(node.target) in _VIEWS - {"aten.clone.default"}):
        source = node.args[0]
        assert isinstance(source, fx.Node)
        node, viewed = source, True
    return viewed and node.op == "call_function" and str(node.target) in _MATRIX_PRODUCTS


def is_dense(fake: object) -> bool:
    """Whether this is a tensor that lies in memory row-major."""
    return isinstance(fake, torch.Tensor) and fake.layout == torch.strided and fake.is_contiguous()


def regrouped(fake: Any, values: Any) -> tuple[Any, ...]:
    """Flat values in the nesting of the operator's result; numbers among its results (sizes, as attention gives) as they are."""

    def leaf(f: Any) -> Any:
        value = next(values)
        return value if f is None or isinstance(f, torch.Tensor) else known_number(f)

    return tuple(regrouped(f, values) if isinstance(f, (list, tuple)) else leaf(f) for f in fake)


def tensors_of(fake: Any) -> list[torch.Tensor | None]:
    """The tensors of an operator's result in order; None for results that are not tensors."""
    if isinstance(fake, torch.Tensor):
        return [fake]
    if isinstance(fake, (list, tuple)):
        return [t for f in fake for t in tensors_of(f)]
    return [None]


def guesses_shape(node: fx.Node) -> bool:
    """Whether a node's traced shape is a guess: torch 2.11 traces operators on zeros whose results have as many elements as the data wants
    (`_unique` finds one there)."""
    if not isinstance(node.target, torch._ops.OpOverload) or node.target._schema.name not in _SIZED_BY_DATA:
        return False
    return not any(free_unbacked_symbols(t) for t in tensors_of(node.meta.get("val")) if t is not None)


def is_ragged(number: object) -> bool:
    """Whether a symbolic number represents the sizes of a jagged nested tensor's parts: it has an identity and no value."""
    return isinstance(number, torch.SymInt) and number.node.is_nested_int()


def known_number(value: Any) -> Any:
    """The value of a symbolic number in this compile; torch then guards on it."""
    match value:
        case torch.SymInt():
            if is_ragged(value):
                raise UnsupportedError("the sizes of a jagged nested tensor's parts, which are no number")
            return int(value)
        case torch.SymFloat():
            return float(value)
        case torch.SymBool():
            return bool(value)
    return value


def shape_of(tensor: torch.Tensor) -> tuple[int, ...]:
    """Extents as the IR sees them: complex numbers are pairs in a last dimension."""
    return (*(int(s) for s in tensor.shape), *((2,) if tensor.is_complex() else ()))


def strides_of(tensor: torch.Tensor) -> tuple[int, ...]:
    """Strides in elements of the IR's dtype, for the extents that `shape_of` gives."""
    strides = tuple(int(s) for s in tensor.stride())
    return (*(2 * s for s in strides), 1) if tensor.is_complex() else strides


def dtype_of(tensor: torch.Tensor, node: fx.Node) -> DType:
    """The IR's type of a tensor's elements, of their parts if they are complex. Raises: UnsupportedOpError where there is none."""
    dtype_here = DTYPE_BY_TORCH.get(PARTS_BY_COMPLEX.get(tensor.dtype, tensor.dtype))
    if dtype_here is None:
        raise UnsupportedOpError(f"{node.target}: a tensor of type {tensor.dtype}", where=span_of(node))
    if tensor.layout != torch.strided:
        raise UnsupportedOpError(f"{node.target}: a tensor of layout {tensor.layout}", where=span_of(node))
    return dtype_here


def span_of(node: fx.Node) -> Span:
    """Where in the user's program the node was traced."""
    stack = node.meta.get("stack_trace")
    lines = [line.strip() for line in str(stack).splitlines() if line.strip().startswith("File ")] if stack else []
    if not lines:
        return Span(f"torch {node.name}", path=module_path(node), operator=operator_name(node), node=first_node(node))
    file, _, rest = lines[-1].removeprefix('File "').partition('", line ')
    number = rest.split(",")[0]
    text = str(stack).strip().splitlines()[-1].strip()
    return Span(file, int(number) if number.isdigit() else 0, 1, text, module_path(node), operator_name(node), first_node(node))


def first_node(node: fx.Node) -> str:
    """The node of dynamo's graph that a node was traced from; "" where it is unknown."""
    origins = node.meta.get("from_node")
    source = origins[-1] if isinstance(origins, list | tuple) and origins else None
    while source is not None and getattr(source, "from_node", None):
        source = source.from_node[-1]
    return str(getattr(source, "name", ""))


def operator_name(node: fx.Node) -> str:
    """The ATen operator as the traced program called it, without its overload: "aten.gelu"; "" where the node calls none."""
    target = node.meta.get("original_aten") or node.target
    packet = getattr(target, "overloadpacket", None)
    return "" if packet is None else str(packet)


def module_path(node: fx.Node) -> str:
    """The innermost module that the node was traced in, as in "layers.0.linear1"; "" for the whole model's own operators."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    modules = [str(entry[0]) for entry in stack.values() if isinstance(entry, tuple) and entry]
    # Dynamo's module paths start at its local variable: L['self'].layers.0, or L['fn']._modules['layers'] where it looked into
    # dictionaries.
    return re.sub(r"^L\['\w+'\]\.?|^L__\w+?__\.?", "", modules[-1]) if modules else ""
