"""Sizes that the user declared dynamic (`torch._dynamo.mark_dynamic`): torch calls one callable for all of them.

Elsewhere torch guards on the sizes of a call and compiles again for others; it refuses to where a size was declared so. The
callable then keeps a compiled graph a size itself.
"""
from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch


def declared_dynamic(example_inputs: Sequence[Any]) -> bool:
    """Whether torch would raise if the sizes of these inputs were made constants of the graph."""
    context = torch._guards.TracingContext.try_get()
    known = getattr(context, "tensor_to_context", None)
    if known is None:
        return False
    found = (known.get(x) for x in example_inputs if isinstance(x, torch.Tensor))
    constraints = [c for symbols in found for c in getattr(symbols, "constraint_sizes", None) or ()]
    return any(c is not None and not getattr(c, "warn_only", False) for c in constraints)


def by_size(compile_: Callable[[Sequence[Any]], Callable[..., Any]]) -> Callable[..., Any]:
    """A callable that compiles for the arguments of a call when their sizes are new, and keeps all that it compiled."""
    made: dict[Any, Callable[..., Any]] = {}
    guard = threading.Lock()

    def run(*arguments: Any) -> Any:
        key = (torch.is_grad_enabled(), *map(_size, arguments))
        found = made.get(key)
        if found is None:
            with guard:
                found = made.get(key) or made.setdefault(key, compile_(arguments))
        return found(*arguments)

    return run


def _size(argument: Any) -> Any:
    if not isinstance(argument, torch.Tensor):
        return argument
    return tuple(argument.shape), tuple(argument.stride()) if argument.layout == torch.strided else (), argument.requires_grad
