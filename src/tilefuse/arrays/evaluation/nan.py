"""NaN tracing: on request, every program is first run in a form that looks at all its values, and the first NaN is named with its line.

    with ta.trace_nan():
        loss = step(x)        UserError: divide gives a NaN in 3 of 64 elements; ... at train.py:12
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

from tilefuse.base.errors import UserError
from tilefuse.base.options import Options
from tilefuse.base.source import Span
from tilefuse.driver.compile import compile_graph
from tilefuse.ir.graph import Graph, Node
from tilefuse.ir.scalar import Call, Lookup, Read, walk

# Values returned by one checking program; longer graphs are checked by several, from the start.
VALUES_AT_ONCE = 200

_looking: ContextVar[bool] = ContextVar("tilefuse_trace_nan", default=False)


def checks_nan() -> bool:
    """Whether programs are checked before they run."""
    return _looking.get()


@contextmanager
def trace_nan() -> Iterator[None]:
    """Inside a computation that makes a NaN raises UserError naming the first node that did, its operands and the user's line.

    Of this context: other threads compute as always.

    Cost: every value is written to memory and checked; meant for finding an error, not for training.
    """
    before = _looking.set(True)
    try:
        yield
    finally:
        _looking.reset(before)


def find_nan(graph: Graph, arguments: Sequence[Any], device: str, options: Options) -> None:
    """Computes all floating-point values of a graph and looks at them in order.

    Raises: UserError for the first that has a NaN: an input, or a node whose operands have none.
    """
    for item, tensor in zip(graph.inputs, arguments, strict=True):
        if item.type.dtype.is_float and bool(tensor.isnan().any()):
            raise UserError(f"the input {item.name} has a NaN in {_share(tensor)} before anything is computed")
    floats = [n.name for n in graph.nodes if n.type.dtype.is_float]
    chosen = replace(options, fuse=False, cuda_graph=False, plan_cache=False)
    for start in range(0, len(floats), VALUES_AT_ONCE):
        names = floats[start:start + VALUES_AT_ONCE]
        program = compile_graph(_only(graph, names), constants={}, device=device, options=chosen)
        for name, tensor in zip(names, program(*[t.clone() for t in arguments]), strict=True):
            if bool(tensor.isnan().any()):
                raise _error(graph.node_by_name[name], graph, tensor)


def _only(graph: Graph, names: Sequence[str]) -> Graph:
    """The graph that computes these values; all inputs stay."""
    needed = set(names)
    for node in reversed(graph.nodes):
        if node.name in needed:
            needed.update(node.reads())
    return Graph(graph.name, graph.inputs, tuple(n for n in graph.nodes if n.name in needed), tuple(names))


def _error(node: Node, graph: Graph, tensor: Any) -> UserError:
    first = tuple(int(i) for i in tensor.isnan().nonzero()[0])
    place = f"first at {list(first)}" if first else "its only one"
    operands = ", ".join(f"{v}: {graph.type_of(v)}" for v in node.reads()) or "none"
    where: Span | str = node.span if node.span is not None else f"%{node.name}"
    return UserError(f"%{node.name} ({_operation(node)}) gives a NaN in {_share(tensor)}, {place}; no value before it has one", where=where,
                     hint=f"its operands: {operands}")


def _operation(node: Node) -> str:
    if node.body is None:
        return node.kind
    called = list(dict.fromkeys(x.fn for x in walk(node.body) if isinstance(x, Call)))
    own = ", ".join(called[:4]) if called else "a copy" if any(isinstance(x, (Read, Lookup)) for x in walk(node.body)) else "constants"
    return own if node.kind == "map" else f"{node.kind} of {own}" if called else node.kind


def _share(tensor: Any) -> str:
    return f"{int(tensor.isnan().sum())} of {tensor.numel()} elements"
