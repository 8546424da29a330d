"""A bound of a search as a field of a record: value, unit, meaning, and the reason why it is not larger."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, TypeVar

T = TypeVar("T")
_KEY = "reason"
# Reason of bounds that were set by hand and whose effect was never measured: they are the first to be tried with other values.
BY_HAND = "set by hand; no measurement was recorded"


@dataclass(frozen=True, slots=True)
class Reason:
    """Unit and meaning of a bound, and why it is not larger: time to plan, size of code, or the case that a larger one spoils."""

    unit: str
    meaning: str
    reason: str


@dataclass(frozen=True, slots=True)
class Bound:
    """One bound. name: path below `SEARCH`, as `generators.sets`."""

    name: str
    value: Any
    reason: Reason


def bound(value: T, unit: str, meaning: str, reason: str = BY_HAND) -> T:
    """A field of a frozen record, whose default bounds a search. Units: `unit` names them, "1" for a share."""
    default: T = field(default=value, metadata={_KEY: Reason(unit, meaning, reason)})
    return default


def bounds_of(record: Any, path: str = "") -> Iterator[Bound]:
    """All bounds of a record and of the records in it, in the order of their fields."""
    for f in fields(record):
        value, name = getattr(record, f.name), f"{path}{f.name}"
        if is_dataclass(value):
            yield from bounds_of(value, f"{name}.")
        elif _KEY in f.metadata:
            yield Bound(name, value, f.metadata[_KEY])
