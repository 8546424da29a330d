"""Measured times of calls as files."""
from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tilefuse.base.errors import OptionError
from tilefuse.tools.console import write_file

if TYPE_CHECKING:
    from tilefuse.runtime.calls.call_times import CallTimes

SUFFIXES = (".json", ".csv")


def require_suffix(path: Path) -> None:
    """Raises: OptionError for a file of times that is neither of the known kinds."""
    if path.suffix not in SUFFIXES:
        raise OptionError(f"times are written as {' or '.join(SUFFIXES)}, not as {path.name}", hint="--export-times times.json")


def write_times(path: Path, times: Mapping[str, CallTimes]) -> None:
    """One row for each timed call: the callable, the round, the time. Units: microseconds. Raises: UserError."""
    rows = [{"what": name, "round": turn, "us": round(us, 3)} for name, timing in times.items()
            for turn, samples in enumerate(timing.rounds) for us in samples]
    if path.suffix == ".json":
        write_file(path, (json.dumps(rows, indent=1) + "\n").encode())
        return
    text = io.StringIO()
    table = csv.DictWriter(text, ("what", "round", "us"), lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    write_file(path, text.getvalue().encode())
