"""Facts that are worked out once: caches of functions whose results follow from their arguments, of a size that long processes bear."""
from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from operator import is_
from typing import Any, ParamSpec, TypeVar

# Results kept of each function: some thousands in a large graph, about a kilobyte each.
NUM_REMEMBERED = 1 << 14

remembered = lru_cache(maxsize=NUM_REMEMBERED)

P = ParamSpec("P")
R = TypeVar("R")


def remembered_for_last(function: Callable[P, R]) -> Callable[P, R]:
    """The function, which is not called again for the objects that it was called for last: several templates ask for one form of a graph,
    and a graph's hash would cost more than the form.

    Requires: arguments and results are values. Calls that give arguments by name are not remembered.
    """
    # One tuple, so that no thread sees the result of other arguments.
    last: tuple[tuple[Any, ...], Any] | None = None

    @wraps(function)
    def of_last(*arguments: P.args, **named: P.kwargs) -> R:
        nonlocal last
        known = last
        if known is not None and not named and all(map(is_, known[0], arguments)):
            remembered_result: R = known[1]
            return remembered_result
        result = function(*arguments, **named)
        last = last if named else (arguments, result)
        return result

    return of_last
