"""Values of a graph by its definition, one by one: in the types that it declares, or with every float in f64.

The interpreter evaluates nodes one by one; torch evaluates library calls, so that a model with convolutions takes seconds. In f64 no
conversion rounds: integers that are computed from floats may differ from those in the declared types.
"""
from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from tilefuse.base.errors import CompilerError
from tilefuse.ir.dtype import DTYPES, F64
from tilefuse.ir.graph import Attribute, Graph, Input, Node, Type, library_call_key
from tilefuse.ir.interpret import interpret
from tilefuse.ir.scalar import NUMPY_DTYPES, Call, Const, Expr, const, transform
from tilefuse.runtime.calls.library import DTYPE_NAMES, TORCH_DTYPES, argument, call_library

Array = np.ndarray[Any, Any]
# Errors that torch raises for operands of f64 where an operator has no such kernel.
REFUSALS = (RuntimeError, NotImplementedError, TypeError, ValueError, CompilerError)


class Meaning:
    """Values of a graph for some inputs, each computed on demand and kept until `forget`.

    inputs: arrays by name, constants among them. wide: every float in f64.
    """

    def __init__(self, graph: Graph, inputs: Mapping[str, Any], wide: bool) -> None:
        self.graph = widened(graph) if wide else graph
        self._wide = wide
        self._values: dict[str, Array] = {}
        self._calls: dict[tuple[object, ...], Sequence[torch.Tensor | None]] = {}
        for declared in self.graph.inputs:
            if declared.name in inputs:
                self._values[declared.name] = as_declared(inputs[declared.name], declared.type)

    def value(self, name: str) -> Array:
        """The value of this name, computed with all values that it depends on. Raises: as `interpret`; UnsupportedOpError."""
        for node in self.graph.in_order(self._missing(name)):
            self._values[node.name] = self._run(node)
        return self._values[name]

    def assume(self, name: str, value: Array) -> None:
        """Sets `value` as the value of this name, in place of its definition."""
        self._values[name] = as_declared(value, self.graph.type_of(name))

    def keep_only(self, names: Collection[str]) -> None:
        """Drops every value but these."""
        self._values = {name: value for name, value in self._values.items() if name in names}

    def forget(self, names: Sequence[str]) -> None:
        """Drops values; a value is computed again on demand."""
        for name in names:
            self._values.pop(name, None)

    def _missing(self, name: str) -> set[str]:
        """Nodes that must run before a value is known, its own included."""
        missing: set[str] = set()
        stack = [name]
        while stack:
            top = stack.pop()
            if top not in self._values and top not in missing:
                missing.add(top)
                stack += self.graph.node_by_name[top].reads()
        return missing

    def _run(self, node: Node) -> Array:
        if node.category == "library":
            called = self._called(node)
            if called is not None:
                return as_declared(called, node.type)
        inputs = tuple(Input(v, self.graph.type_of(v)) for v in node.reads())
        return interpret(Graph("value", inputs, (node,), (node.name,)), {i.name: self._values[i.name] for i in inputs})[0]

    def _called(self, node: Node) -> Array | None:
        """A result of a library call by torch; None where torch refuses it."""
        key, number = library_call_key(node), node.attribute("result")
        results = self._calls.get(key)
        if results is None:
            operands = [as_tensor(self._values[v]) for v in node.operands]
            attributes = {k: v for k, v in node.attributes if k != "result"}
            try:
                with torch.no_grad():
                    results = _attention(node.detail, operands, attributes) \
                        or call_library(node.detail, operands, attributes, torch.device("cpu"))
            except REFUSALS:
                results = ()
            if number is not None:  # other nodes are results of the same call
                self._calls[key] = results
        place = number if isinstance(number, int) else 0
        result = results[place] if len(results) > place else None
        return None if result is None else as_array(result)


# Positions of bias (None: it takes none) and causality among the arguments of torch's attention kernels for GPUs, which the host lacks.
ATTENTION: Mapping[str, tuple[int | None, int]] = {
    "aten._scaled_dot_product_efficient_attention.default": (3, 6), "aten._scaled_dot_product_flash_attention.default": (None, 4),
    "aten._scaled_dot_product_cudnn_attention.default": (3, 6)}


def _attention(operator: str, operands: Sequence[torch.Tensor], attributes: Mapping[str, Attribute]) -> Sequence[torch.Tensor] | None:
    """The first result of an attention operator that only GPUs have; None for any other operator."""
    if operator not in ATTENTION:
        return None
    bias, causal = ATTENTION[operator]
    args, kwargs = attributes.get("args", ()), attributes.get("kwargs", ())
    assert isinstance(args, tuple) and isinstance(kwargs, tuple)
    arguments = [argument(a, operands, torch.device("cpu")) for a in args]
    named = {str(pair[0]): argument(pair[1], operands, torch.device("cpu")) for pair in kwargs if isinstance(pair, tuple)}
    mask = arguments[bias] if bias is not None and len(arguments) > bias else named.get("attn_bias")
    is_causal = arguments[causal] if len(arguments) > causal else named.get("is_causal", False)
    return [torch.nn.functional.scaled_dot_product_attention(*arguments[:3], attn_mask=mask, is_causal=bool(is_causal),
                                                             scale=named.get("scale"))]


def widened(graph: Graph) -> Graph:
    """The graph with f64 in place of every other float type, conversions included."""
    inputs = tuple(replace(i, type=_wide_type(i.type)) for i in graph.inputs)
    return Graph(graph.name, inputs, tuple(_wide_node(n) for n in graph.nodes), graph.results, graph.updates)


def _wide_node(node: Node) -> Node:
    return replace(node, type=_wide_type(node.type), body=None if node.body is None else transform(node.body, _wide_expr),
                   target=tuple(transform(t, _wide_expr) for t in node.target),
                   attributes=tuple((k, _wide_attribute(v)) for k, v in node.attributes))


def _wide_type(type_: Type) -> Type:
    return replace(type_, dtype=F64) if type_.dtype.is_float else type_


def _wide_expr(e: Expr) -> Expr:
    match e:
        case Const(_, dtype) if dtype.is_float:
            return const(float(NUMPY_DTYPES[dtype.name].type(e.value)), F64)
        case Call(fn, args) if fn in DTYPES and DTYPES[fn].is_float:
            return Call("f64", args)
    return e


def _wide_attribute(value: Attribute) -> Attribute:
    """An attribute of a call that names a float type, with f64."""
    match value:
        case ("dtype", str(name)) if name in DTYPES and DTYPES[name].is_float:
            return ("dtype", "f64")
        case tuple():
            return tuple(_wide_attribute(v) for v in value)
    return value


def as_declared(value: Any, type_: Type) -> Array:
    """A value as an array of the type that a graph declares."""
    array = as_array(value) if isinstance(value, torch.Tensor) else np.asarray(value)
    return array.astype(NUMPY_DTYPES[type_.dtype.name], copy=False).reshape(type_.shape)


def as_array(tensor: torch.Tensor) -> Array:
    """A tensor's data as an array of its own type, those that NumPy has by extension too; complex numbers as pairs of reals."""
    host = tensor.detach().cpu().contiguous()
    if host.dtype.is_complex:
        host = torch.view_as_real(host.resolve_conj()).contiguous()
    name = DTYPE_NAMES[host.dtype]
    if name in ("bf16", "f8e4m3", "f8e5m2"):
        return np.asarray(host.view(torch.int16 if name == "bf16" else torch.uint8).numpy()).view(NUMPY_DTYPES[name])
    return np.asarray(host.numpy())


def as_tensor(array: Array) -> torch.Tensor:
    """An array as a tensor on the host, of the same type."""
    name = next(n for n, dtype in NUMPY_DTYPES.items() if dtype == array.dtype)
    plain = np.ascontiguousarray(array).reshape(array.shape)
    if name in ("bf16", "f8e4m3", "f8e5m2"):
        return torch.from_numpy(plain.view(np.int16 if name == "bf16" else np.uint8).copy()).view(TORCH_DTYPES[name])
    return torch.from_numpy(plain.copy())


def results_of(graph: Graph, inputs: Mapping[str, Any], wide: bool) -> list[torch.Tensor]:
    """The graph's results as tensors on the host. Raises: as `Meaning.value`."""
    meaning = Meaning(graph, inputs, wide)
    last_use: dict[str, int] = {v: n for n, node in enumerate(meaning.graph.nodes) for v in node.reads()}
    released: dict[int, list[str]] = {}
    for value, n in last_use.items():
        if value not in graph.escaping:
            released.setdefault(n, []).append(value)
    with np.errstate(all="ignore"):
        for n, node in enumerate(meaning.graph.nodes):
            if node.name in last_use or node.name in graph.escaping:  # results of a call may be unused and have no definition
                meaning.value(node.name)
            meaning.forget(released.get(n, ()))
    return [as_tensor(meaning.value(r)) for r in graph.results]
