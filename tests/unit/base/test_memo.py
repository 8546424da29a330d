"""Caches of facts that are worked out once."""
from __future__ import annotations

from tilefuse.base.memo import remembered_for_last


def test_the_last_argument_is_not_asked_again() -> None:
    """The same object gets the same result; an equal one does not, and only the last one counts."""
    asked: list[list[int]] = []

    @remembered_for_last
    def total(numbers: list[int]) -> int:
        asked.append(numbers)
        return sum(numbers)

    first, equal = [1, 2], [1, 2]
    assert [total(first), total(first), total(equal), total(first)] == [3, 3, 3, 3]
    assert [n is first for n in asked] == [True, False, True]
