"""Measured times as files and rows: every timed call, and every step of a program."""
from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilefuse.base.errors import OptionError, UnsupportedError
from tilefuse.tools.console import write_file

if TYPE_CHECKING:
    from tilefuse.runtime.call_times import CallTimes

SUFFIXES = (".json", ".csv")


def require_suffix(path: Path) -> None:
    """Raises: OptionError for a file of times that is neither of the known kinds."""
    if path.suffix not in SUFFIXES:
        raise OptionError(f"times are written as {' or '.join(SUFFIXES)}, not as {path.name}", hint="--export-times times.json")


def write_times(path: Path, times: Mapping[str, CallTimes]) -> None:
    """One row a timed call: what was called, in which round, how long. Units: microseconds. Raises: UserError."""
    rows = [{"what": name, "round": turn, "us": round(us, 3)} for name, found in times.items()
            for turn, samples in enumerate(found.rounds) for us in samples]
    if path.suffix == ".json":
        write_file(path, (json.dumps(rows, indent=1) + "\n").encode())
        return
    text = io.StringIO()
    table = csv.DictWriter(text, ("what", "round", "us"), lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    write_file(path, text.getvalue().encode())


def profile_rows(program: Any, tensors: Iterable[Any]) -> list[dict[str, Any]]:
    """Every step of a program with its time, bytes and bandwidth, in the order of execution. Units: microseconds, bytes.

    Raises: UnsupportedError for a model in parts, which has a program for each of them.
    """
    whole = getattr(program, "program", program)
    if not hasattr(whole, "profile"):
        raise UnsupportedError("the model runs in parts, each with a program of its own: there is no profile of the whole",
                               hint="`tilefuse explain` tells the parts")
    return [{"name": row.name, "kind": row.kind, "us": row.us, "num_bytes": row.num_bytes, "gb_per_s": row.gb_per_s,
             "limit_us": row.limit_us} for row in whole.profile(*tensors)]
