"""A fitted number as a field of a record: value, unit, meaning, and the measurement that gave it."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, TypeVar

T = TypeVar("T")
_KEY = "evidence"
# Source of numbers whose measurement nobody wrote down: they are the first to be measured again.
NO_RECORD = "one H200; the measurement was not recorded"


@dataclass(frozen=True, slots=True)
class Evidence:
    """Unit, meaning and origin of a fitted number.

    source: the measurement (device, case, figures), or the document that states the number. command: repeats the measurement, where one
    command does.
    """

    unit: str
    meaning: str
    source: str
    command: str = ""


@dataclass(frozen=True, slots=True)
class Figure:
    """One fitted number of a device. name: path below `device.fitted`, as `columns.flight_bytes`."""

    name: str
    value: Any
    evidence: Evidence


def measured(value: T, unit: str, meaning: str, source: str, command: str = "") -> T:
    """A field of a frozen record, whose default is a fitted number. Units: `unit` names them, "1" for a ratio."""
    default: T = field(default=value, metadata={_KEY: Evidence(unit, meaning, source, command)})
    return default


def figures_of(record: Any, path: str = "") -> Iterator[Figure]:
    """All fitted numbers of a record and of the records in it, in the order of their fields."""
    for f in fields(record):
        value, name = getattr(record, f.name), f"{path}{f.name}"
        if is_dataclass(value):
            yield from figures_of(value, f"{name}.")
        elif _KEY in f.metadata:
            yield Figure(name, value, f.metadata[_KEY])
