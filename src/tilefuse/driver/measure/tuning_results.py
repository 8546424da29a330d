"""Storage of tuning results: one journal per device in the cache folder, exported and imported as one file for all devices.

A row is the best template of a pattern, by its form, or the time of a library call, by `LoneCall.key`.
"""
from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tilefuse.base.errors import UserError
from tilefuse.base.options import Options
from tilefuse.runtime.stores.cache import cache_of, require_folder, write_whole
from tilefuse.runtime.stores.measurements import Journal, journal_path
from tilefuse.target.device import DeviceSpec

KIND = "tuned"


@dataclass(frozen=True, slots=True)
class Tuned:
    """Best template that tuning found for one pattern. Units: microseconds. `template` is in canonical names (see `plan.price.tuned`).

    done: whether all candidates were tried; trials, rejected: candidates that were timed, and those that were not, by reason.
    """

    key: str
    label: str
    template: str
    us: float
    base_us: float
    trials: int
    done: bool
    rejected: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TunedCall:
    """Measured time of a library call that a kernel may replace. Units: microseconds.

    key: `LoneCall.key`, in which the library's version is. spread_us: half of the timings lie within it around the median.
    """

    key: str
    label: str
    us: float
    spread_us: float
    predicted_us: float


class TuningResults:
    """The results of one device."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    @classmethod
    def of(cls, device: DeviceSpec, options: Options) -> TuningResults:
        """The results of a device in the cache that the options name."""
        folder = cache_of(options.cache, options.cache_dir).folder
        return cls(Journal(journal_path(folder, KIND, f"{device.name}-{device.num_multiprocessors}")))

    def find(self, key: str) -> Tuned | None:
        """The result of a form; rows of an unknown form count as none."""
        return _read(self._journal.find(key))

    def find_call(self, key: str) -> TunedCall | None:
        """The time of a call."""
        return _read_call(self._journal.find(key))

    def us(self, key: str) -> float | None:
        """The best time of a form. Units: microseconds. Source: tuning."""
        tuned = self.find(key)
        return None if tuned is None else tuned.us

    def template(self, key: str) -> str | None:
        """The best template of a form in canonical names."""
        tuned = self.find(key)
        return None if tuned is None else tuned.template

    def keep(self, found: Tuned) -> None:
        """Remembers a result on disk."""
        self._journal.keep(found.key, {"label": found.label, "template": found.template, "us": found.us, "base_us": found.base_us,
                                       "trials": found.trials, "done": found.done, "rejected": dict(found.rejected)})

    def keep_call(self, timed: TunedCall) -> None:
        """Stores the time of a call on disk."""
        self._journal.keep(timed.key, _call_row(timed))

    def clear(self) -> int:
        """Forgets all results; the number forgotten."""
        return self._journal.clear()

    def all(self) -> tuple[Tuned, ...]:
        """Every pattern's result, oldest first."""
        return tuple(t for t in map(_read, self._journal.rows()) if t is not None)

    def calls(self) -> tuple[TunedCall, ...]:
        """Every timed call, oldest first."""
        return tuple(t for t in map(_read_call, self._journal.rows()) if t is not None)


def _call_row(timed: TunedCall) -> dict[str, Any]:
    return {"label": timed.label, "call_us": timed.us, "spread_us": timed.spread_us, "predicted_us": timed.predicted_us}


def _read_call(row: Mapping[str, Any] | None) -> TunedCall | None:
    if row is None or not {"label", "call_us", "spread_us", "predicted_us"} <= set(row):
        return None
    return TunedCall(str(row["key"]), str(row["label"]), float(row["call_us"]), float(row["spread_us"]), float(row["predicted_us"]))


def _read(row: Mapping[str, Any] | None) -> Tuned | None:
    if row is None or not {"label", "template", "us", "base_us", "trials", "done"} <= set(row):
        return None
    rejected = row.get("rejected")
    return Tuned(str(row["key"]), str(row["label"]), str(row["template"]), float(row["us"]), float(row["base_us"]), int(row["trials"]),
                 bool(row["done"]), dict(rejected) if isinstance(rejected, dict) else {})


def results_by_device(options: Options) -> dict[str, TuningResults]:
    """The results of every device in the cache folder, by file name."""
    folder = cache_of(options.cache, options.cache_dir).folder
    if folder is None or not (folder / KIND).is_dir():
        return {}
    return {path.stem: TuningResults(Journal(path)) for path in sorted((folder / KIND).glob("*.jsonl"))}


def export_results(options: Options, path: Path) -> int:
    """Writes all results to one file; their number. Raises: UserError when there is no cache or the file cannot be written."""
    require_folder(cache_of(options.cache, options.cache_dir))
    rows = [{"device": device, "key": t.key, "label": t.label, "template": t.template, "us": t.us, "base_us": t.base_us,
             "trials": t.trials, "done": t.done, "rejected": dict(t.rejected)}
            for device, results in results_by_device(options).items() for t in results.all()]
    rows += [{"device": device, "key": t.key, **_call_row(t)}
             for device, results in results_by_device(options).items() for t in results.calls()]
    try:
        write_whole(path, "".join(json.dumps(row) + "\n" for row in rows).encode())
    except OSError as cause:
        raise UserError(f"cannot write {path}: {cause.strerror or cause}") from cause
    return len(rows)


def import_results(options: Options, path: Path) -> int:
    """Adds the results of a file that are new or faster than the stored ones, and times of calls that are new; returns their number.

    Raises: UserError when there is no cache, or the file cannot be read or holds no results.
    """
    folder = require_folder(cache_of(options.cache, options.cache_dir))
    try:
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        imported = [(str(row["device"]), _read(row) or _read_call(row)) for row in rows]
    except OSError as cause:
        raise UserError(f"cannot read {path}: {cause.strerror or cause}") from cause
    except (ValueError, TypeError, KeyError, AttributeError) as cause:
        raise UserError(f"{path} holds no tuning results: {cause}", hint="write it with: tilefuse tuning export FILE") from cause
    taken = 0
    for device, tuned in imported:
        if tuned is None or not device.replace("-", "").replace("_", "").isalnum():
            raise UserError(f"{path} holds no tuning results", hint="write it with: tilefuse tuning export FILE")
        results = TuningResults(Journal(journal_path(folder, KIND, device)))
        taken += _taken(results, tuned)
    return taken


def _taken(results: TuningResults, imported: Tuned | TunedCall) -> bool:
    """Stores an imported result if it is new or, for a template, faster; whether it did."""
    if isinstance(imported, TunedCall):
        if results.find_call(imported.key) is not None:
            return False
        results.keep_call(imported)
        return True
    known = results.find(imported.key)
    if known is not None and known.us <= imported.us:
        return False
    results.keep(imported)
    return True
