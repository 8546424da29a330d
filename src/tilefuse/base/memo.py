"""Facts that are worked out once: caches of functions whose results follow from their arguments, of a size that long processes bear."""
from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import TypeVar

# Results kept of each function: some thousands in a large graph, about a kilobyte each.
NUM_REMEMBERED = 1 << 14

remembered = lru_cache(maxsize=NUM_REMEMBERED)

T = TypeVar("T")
R = TypeVar("R")


def remembered_for_last(function: Callable[[T], R]) -> Callable[[T], R]:
    """The function, which is not called again for the object that it was called for last: several templates ask for one form of a graph,
    and a graph's hash would cost more than the form.

    Requires: the argument and the result are values.
    """
    # One tuple, so that no thread sees the result of another argument.
    last: list[tuple[T, R]] = []

    @wraps(function)
    def of_last(argument: T) -> R:
        known = last[0] if last else None
        if known is not None and known[0] is argument:
            return known[1]
        result = function(argument)
        last[:] = [(argument, result)]
        return result

    return of_last
