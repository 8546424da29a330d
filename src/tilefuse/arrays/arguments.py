"""Checks of the arguments of array functions before they are used, so that the error names the argument and the user's line."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, TypeVar, cast

from tilefuse.arrays.array import Array
from tilefuse.arrays.nodes import user_span
from tilefuse.base.errors import TypeMismatchError

F = TypeVar("F", bound=Callable[..., Any])


def of_arrays(function: F) -> F:
    """The function, which rejects anything but an array for parameters annotated `Array` (or None for `Array | None`).

    Raises: TypeMismatchError, when called.
    """
    code = function.__code__
    kinds = function.__annotations__
    names = code.co_varnames[:code.co_argcount + code.co_kwonlyargcount]
    array_arguments = [(n if n < code.co_argcount else -1, name, kinds[name] == "Array | None") for n, name in enumerate(names)
                       if kinds.get(name) in ("Array", "Array | None")]
    several = code.co_varnames[len(names)] if code.co_flags & 4 else ""
    first = code.co_argcount if kinds.get(several) == "Array" else None

    @wraps(function)
    def checked(*args: Any, **named: Any) -> Any:
        for at, name, optional in array_arguments:
            x = args[at] if 0 <= at < len(args) else named.get(name, _MISSING)
            if not isinstance(x, Array) and x is not _MISSING and not (optional and x is None):
                raise _no_array(function, name, x)
        if first is not None:
            for x in args[first:]:
                if not isinstance(x, Array):
                    raise _no_array(function, several, x)
        return function(*args, **named)

    return cast(F, checked)


_MISSING: Any = object()


def _no_array(function: Callable[..., Any], name: str, argument: Any) -> TypeMismatchError:
    return TypeMismatchError(f"{function.__name__} takes an array for {name}, not a {type(argument).__name__}", where=user_span(),
                             hint="asarray makes arrays of numbers, lists, numpy arrays and torch tensors")


def array_list(given: Any, name: str) -> tuple[Array, ...]:
    """One or more arrays in a list. Raises: TypeMismatchError."""
    listed = tuple(given) if isinstance(given, Iterable) else ()
    if not listed or not all(isinstance(x, Array) for x in listed):
        raise TypeMismatchError(f"{name} takes one or more arrays in a list", where=user_span())
    return listed


def whole_number(given: Any, what: str) -> int:
    """An integer that is a setting. Raises: TypeMismatchError for any other type."""
    try:
        return operator.index(given)
    except TypeError:
        raise TypeMismatchError(f"{what} is an integer, not a {type(given).__name__}", where=user_span()) from None


def real_number(given: Any, what: str) -> float:
    """A number that is a setting. Raises: TypeMismatchError for any other type."""
    try:
        return float(given) if not isinstance(given, (str, bytes)) else float(_MISSING)
    except (TypeError, ValueError, OverflowError):
        raise TypeMismatchError(f"{what} is a number, not a {type(given).__name__}", where=user_span()) from None
