"""Library calls prepared when a program is built: decisions that `call_library` makes at every call are made once, from types and layouts.

`call_library` defines the result of a call; a test compares the two on every operator here.
"""
from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from tilefuse.base.errors import UnsupportedOpError
from tilefuse.runtime.calls.library import (
    LIBRARY,
    OFF_THE_CPU,
    TORCH_DTYPES,
    Attribute,
    Attributes,
    Results,
    argument,
    as_reals,
    call_library,
    flat_results,
    gives_windows,
    int_list,
    padding_of,
    torch_operator,
    turns_back,
)
from tilefuse.runtime.calls.packed_weights import PackedConvolution, may_be_packed
from tilefuse.runtime.calls.strided import as_traced
from tilefuse.runtime.spec import Value

Call = Callable[[list[torch.Tensor]], Results]


def prepare_call(operator: str, attributes: Attributes, operands: Sequence[Value], device: torch.device) -> Call:
    """A call of a library operator on tensors that have the types, shapes and strides of `operands` (those of extents of 1 may differ).

    Raises: NameLookupError for an operator that is neither in `LIBRARY` nor known to torch.
    """
    prepare = _PREPARED.get(operator)
    prepared = None if prepare is None else prepare(attributes, operands, device)
    if prepared is not None:
        return prepared
    if operator in LIBRARY or operator in OFF_THE_CPU:
        return functools.partial(_call_by_name, operator, attributes, device)
    return _torch_call(operator, attributes, device)


def _call_by_name(operator: str, attributes: Attributes, device: torch.device, tensors: list[torch.Tensor]) -> Results:
    return call_library(operator, tensors, attributes, device)


def _matmul(attributes: Attributes, operands: Sequence[Value], device: torch.device) -> Call | None:
    """A product of two matrices, or of two batches with equal extents; other calls unchanged."""
    ranks = len(operands[0].shape), len(operands[1].shape)
    batched = ranks == (3, 3) and operands[0].shape[0] == operands[1].shape[0]
    if ranks != (2, 2) and not batched or attributes.get("dtype"):
        return None
    turn_a, turn_b, bias = bool(attributes.get("transpose_a")), bool(attributes.get("transpose_b")), bool(attributes.get("has_bias"))
    if bias and operands[2].dtype != operands[0].dtype:
        return None
    if turn_b and not turn_a and not batched and (not bias or len(operands[2].shape) == 1):
        # The same product; the view is made inside.
        linear = torch._C._nn.linear
        return (lambda t: (linear(t[0], t[1], t[2]),)) if bias else (lambda t: (linear(t[0], t[1]),))
    plain, added = (torch.bmm, torch.baddbmm) if batched else (torch.mm, torch.addmm)

    def product(t: list[torch.Tensor]) -> Results:
        a, b = t[0].mT if turn_a else t[0], t[1].mT if turn_b else t[1]
        return (added(t[2], a, b),) if bias else (plain(a, b),)

    return product


def _convolution(attributes: Attributes, operands: Sequence[Value], device: torch.device) -> Call | None:
    x, w = operands[0], operands[1]
    rank = len(x.shape) - 2
    padding, extra = padding_of(attributes, rank)
    if extra is not None:
        return None
    has_bias, transposed = bool(attributes.get("has_bias")), bool(attributes.get("transposed"))
    stride, dilation = int_list(attributes.get("stride"), 1, rank), int_list(attributes.get("dilation"), 1, rank)
    output_padding, groups = int_list(attributes.get("output_padding"), 0, rank), attributes.get("groups", 1)
    assert isinstance(groups, int)
    if device.type == "cpu" and not transposed and may_be_packed(x, w):
        return PackedConvolution(x.shape, stride, padding, dilation, groups, has_bias)
    relays = device.type == "cuda" and not _is_row_major(x) and turns_back(w.shape, TORCH_DTYPES[x.dtype], attributes, is_gradient=False)
    convolve = torch.convolution

    def call(t: list[torch.Tensor]) -> Results:
        bias = t[2] if has_bias else None
        if relays:
            return (convolve(t[0].contiguous(), t[1].contiguous(), bias, stride, padding, dilation, transposed, output_padding, groups),)
        return (convolve(t[0], t[1], bias, stride, padding, dilation, transposed, output_padding, groups),)

    return call


def _convolution_backward(attributes: Attributes, operands: Sequence[Value], device: torch.device) -> Call | None:
    x, w = operands[1], operands[2]
    rank = len(x.shape) - 2
    padding, extra = padding_of(attributes, rank)
    mask, groups = attributes.get("mask", (True, True, False)), attributes.get("groups", 1)
    if extra is not None:
        raise UnsupportedOpError("the gradient of a convolution with unequal padding at the two ends", hint="pad outside the convolution")
    assert isinstance(mask, tuple) and isinstance(groups, int)
    transposed = bool(attributes.get("transposed"))
    channels = w.shape[1] * groups if transposed else w.shape[0]
    relays = device.type == "cuda" and not _is_row_major(x) and turns_back(w.shape, TORCH_DTYPES[x.dtype], attributes, is_gradient=True)
    rest = ([channels], int_list(attributes.get("stride"), 1, rank), padding, int_list(attributes.get("dilation"), 1, rank), transposed,
            int_list(attributes.get("output_padding"), 0, rank), groups, [bool(m) for m in mask])
    # An operator of one overload needs no look-up by its arguments.
    backward = torch.ops.aten.convolution_backward.default

    def call(t: list[torch.Tensor]) -> Results:
        if relays:
            t = [one.contiguous() for one in t[:3]]
        gradients: Results = backward(t[0], t[1], t[2], *rest)
        return gradients

    return call


_PREPARED: Mapping[str, Callable[[Attributes, Sequence[Value], torch.device], Call | None]] = {
    "matmul": _matmul, "convolution": _convolution, "convolution_backward": _convolution_backward,
}


def _torch_call(operator: str, attributes: Attributes, device: torch.device) -> Call:
    """A call through torch's dispatcher, with its templates resolved to constants and operand numbers."""
    function = torch_operator(operator)
    function = direct_function(operator) or function
    args, kwargs, traced = attributes.get("args", ()), attributes.get("kwargs", ()), attributes.get("strides")
    assert isinstance(args, tuple) and isinstance(kwargs, tuple)
    values = [_filled(a, device) for a in args]
    named = {str(pair[0]): _filled(pair[1], device) for pair in kwargs if isinstance(pair, tuple)}
    clones, exact = gives_windows(operator), not operator.startswith("aten.")

    def call(t: list[torch.Tensor]) -> Results:
        if isinstance(traced, tuple):
            t = as_traced(t, traced, exact=exact)
        results = function(*[v(t) if isinstance(v, _Place) else v for v in values],
                           **{n: v(t) if isinstance(v, _Place) else v for n, v in named.items()})
        tensors = [as_reals(results)] if isinstance(results, torch.Tensor) else [
            None if r is None else as_reals(r) for r in flat_results(results)]
        # A view of an operand would change when the operand's memory is reused.
        return [None if r is None else r.clone() for r in tensors] if clones else tensors

    return call


@functools.cache
def direct_function(operator: str) -> Callable[..., Any] | None:
    """Torch's built-in function for an operator of its own that has one overload; None where there is none.

    It parses its arguments in place; a call through the dispatcher's object takes about 5 us more.
    Source: one H200 host, torch 2.11, 2026-11-22, aten.convolution: 14.6 and 20.3 us.
    """
    namespace, name, overload = operator.split(".")
    if namespace != "aten" or overload != "default":
        return None
    packet: Any = getattr(torch.ops.aten, name)
    if any(other != "default" and not other.endswith("out") for other in packet.overloads()):
        return None
    function = getattr(torch._C._VariableFunctions, name, None)
    return function if callable(function) else None


class _Place:
    """A template that names operands, to be filled at each call."""

    def __init__(self, template: Attribute, device: torch.device) -> None:
        self._template, self._device = template, device
        self._operand = template[1] if isinstance(template, tuple) and template[:1] == ("%",) else None

    def __call__(self, tensors: list[torch.Tensor]) -> object:
        return tensors[self._operand] if isinstance(self._operand, int) else argument(self._template, tensors, self._device)


def _filled(template: Attribute, device: torch.device) -> Any:
    """The constant that a template stands for, or the place of an operand."""
    return _Place(template, device) if _names_operand(template) else argument(template, (), device)


def _names_operand(template: Attribute) -> bool:
    if not isinstance(template, tuple):
        return False
    return template[:1] in (("%",), ("complex",)) or any(_names_operand(part) for part in template)


def _is_row_major(value: Value) -> bool:
    """Whether torch calls a tensor of these strides contiguous."""
    step = 1
    for extent, stride in zip(reversed(value.shape), reversed(value.strides)):
        if extent != 1 and stride != step:
            return 0 in value.shape
        step *= extent
    return True
