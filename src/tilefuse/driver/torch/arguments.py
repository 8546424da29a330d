"""Arguments of a torch model's calls: in the structure of its example inputs, and with their numbers.

A compiled model computes with the numbers, strings and containers of its example inputs; only tensors may change from call to call. Each
call is therefore mapped to the examples' structure by the model's own parameter names. A difference is an error and not a wrong result.
"""
from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tilefuse.base.errors import UserError
from tilefuse.runtime.calls.arguments import as_tensor, is_numpy

_KINDS = {kind.name: kind for kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD,
                                       inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD)}
AGAIN = "the program computes with what its example inputs were; compile for this call as well"


class Arguments:
    """Arguments of calls as the flat list that the program's graph takes.

    examples, named: the example inputs. model: its signature assigns a call's keywords to parameters; None for a model without a signature.
    """

    def __init__(self, model: Callable[..., Any] | None, examples: Sequence[Any], named: Mapping[str, Any] | None = None) -> None:
        leaves, self._spec = pytree.tree_flatten((tuple(examples), dict(named or {})))
        self._numbers = {n: leaf for n, leaf in enumerate(leaves) if not isinstance(leaf, torch.Tensor)}
        self._shown = _shown(examples, named or {})
        # Calls with as many plain tensors as the examples need no visit of their structure.
        self._num_plain = len(examples) if not named and len(leaves) == len(examples) and not self._numbers else -1
        self._signature = _signature(model)

    @classmethod
    def kept(cls, examples: Sequence[Any], named: Mapping[str, Any], shown: str, parameters: Sequence[Sequence[Any]] | None) -> Arguments:
        """Arguments with the given `shown` text and `parameters`, around examples with the same numbers."""
        arguments = cls(None, examples, named)
        arguments._shown = shown
        if parameters is not None:
            arguments._signature = inspect.Signature([
                inspect.Parameter(name, _KINDS[kind], default=None if has_default else inspect.Parameter.empty)
                for name, kind, has_default in parameters])
        return arguments

    @property
    def structure(self) -> Any:
        """The structure of a call: (arguments by place, by name)."""
        return self._spec

    @property
    def numbers(self) -> Mapping[int, Any]:
        """The leaves that are no tensors, by their place among all leaves."""
        return self._numbers

    @property
    def shown(self) -> str:
        """The structure for messages."""
        return self._shown

    def parameters(self) -> list[tuple[str, str, bool]] | None:
        """(name, kind, whether it has a default) of the model's parameters; None where they are unknown."""
        if self._signature is None:
            return None
        return [(p.name, p.kind.name, p.default is not p.empty) for p in self._signature.parameters.values()]

    def around(self, tensors: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """A call's arguments, by place and by name, with one tensor per leaf (None: a number of the examples, or an unused tensor)."""
        leaves = [self._numbers.get(n, torch.empty(0)) if t is None else t for n, t in enumerate(tensors)]
        by_place, by_name = pytree.tree_unflatten(leaves, self._spec)
        return tuple(by_place), dict(by_name)

    def flat(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> Sequence[Any]:
        """The leaves of a call's arguments, in the order of the examples'.

        Raises: UserError for a structure that differs from the examples', and for a number that differs from theirs.
        """
        if len(arguments) == self._num_plain and not named and all(type(a) is torch.Tensor for a in arguments):
            return arguments
        positional, by_name = self._bound(arguments, named)
        leaves = self._leaves((positional, by_name))
        if leaves is None:
            raise UserError(f"the model was compiled for {self._shown}, and is called with {_shown(positional, by_name)}",
                            hint="give arguments of the structure of the example inputs, or compile for these")
        for n, number in self._numbers.items():
            if not _same(leaves[n], number):
                said = f"a {type(leaves[n]).__name__}" if isinstance(leaves[n], torch.Tensor) else repr(leaves[n])
                raise UserError(f"argument {n} is {said}, but the model was compiled for {number!r}", hint=AGAIN)
        return leaves

    def _bound(self, arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return _bound(self._signature, arguments, named) if named else (arguments, named)

    def _leaves(self, tree: object) -> list[Any] | None:
        """The leaves of a structure like the examples', whose mappings may have another key order; None for any other structure."""
        leaves: list[Any]
        leaves, spec = pytree.tree_flatten(tree)
        if spec == self._spec:
            return leaves
        try:
            ordered: list[Any] = self._spec.flatten_up_to(tree)
        except ValueError:
            return None
        return ordered if len(ordered) == len(leaves) and all(pytree.tree_is_leaf(leaf) for leaf in ordered) else None


def bound(model: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A call's arguments, positional as far as the model's parameters allow. Raises: UserError where they do not fit its parameters."""
    return _bound(_signature(model), arguments, named)


def as_tensors(tree: Any) -> Any:
    """Arguments with torch tensors in place of NumPy arrays, sharing their memory where torch supports it."""
    return pytree.tree_map(lambda leaf: as_tensor(leaf, "of the example inputs") if is_numpy(leaf) else leaf, tree)


def _bound(signature: inspect.Signature | None, arguments: tuple[Any, ...],
           named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if signature is None:
        return arguments, named
    try:
        bound = signature.bind(*arguments, **named)
    except TypeError as error:
        raise UserError(f"the model cannot be called with {_shown(arguments, named)}: {error}",
                        hint=f"its parameters: {signature}") from error
    return bound.args, bound.kwargs


def _signature(model: Callable[..., Any] | None) -> inspect.Signature | None:
    """A signature; None where it is unknown (functions written in C)."""
    if model is None:
        return None
    try:
        return inspect.signature(model.forward if isinstance(model, torch.nn.Module) else model)
    except ValueError:
        return None


def _same(argument: Any, number: Any) -> bool:
    """Whether a call's number equals the one that the model was compiled for. True is not 1, and 2 is not 2.0, since results differ in
    type."""
    if argument is number:
        return True
    return type(argument) is type(number) and not hasattr(number, "__array__") and bool(argument == number)


def _shown(arguments: Sequence[Any], named: Mapping[str, Any]) -> str:
    """`2 arguments (tensor, {'a': tensor})`: the structure of a call, for an error."""
    parts = [*map(_part, arguments), *(f"{name}={_part(value)}" for name, value in named.items())]
    return f"{len(parts)} argument{'' if len(parts) == 1 else 's'} ({', '.join(parts)})"


def _part(value: Any) -> str:
    match value:
        case torch.Tensor():
            return "tensor"
        case dict():
            return "{" + ", ".join(f"{key!r}: {_part(v)}" for key, v in value.items()) + "}"
        case list() | tuple() if len(value) <= 4:
            return "[" + ", ".join(map(_part, value)) + "]"
        case list() | tuple():
            return f"{type(value).__name__} of {len(value)}"
        case bool() | int() | float() | str() | None:
            return repr(value)
    return type(value).__name__
