"""Legality of walks: a list of rules, of which the first that does not hold refuses a choice. Each walk's folder has its rules.

    (columns % vector == 0, "10 columns are no whole vectors of 4", "vector=2")
"""
from __future__ import annotations

from tilefuse.base.candidate import Reason, Rejected


def first_refusal(*rules: tuple[bool, str, str]) -> Rejected | None:
    """The first rule that does not hold as a refusal; None where all hold.

    rules: (the rule holds, numbers that break it otherwise, remedy in the notation's words).
    """
    return next((Rejected(Reason.ILLEGAL_TEMPLATE, detail, remedy) for legal, detail, remedy in rules if not legal), None)


def widest_whole(length: int) -> int:
    """The widest vector that divides `length` elements. Units: elements."""
    return next(v for v in (16, 8, 4, 2, 1) if length % v == 0)
