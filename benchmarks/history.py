"""Records of several runs of a suite as one: each case from the newest run that tried it.

A run may hold a few cases only, or tilefuse alone. Each case keeps the copy bandwidth of its own run. What a peer took is of the same run
where that has it, else of the newest earlier run with the same kind of device and torch, and is then marked, so that a table can say so.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.record import Record
from benchmarks.report import OURS

RATES = ("copy_bytes_per_s", "flops_per_s")
UNTRIED = (None, "skipped")

Entry = dict[str, Any]


def newest_records(folder: Path, names_by_suite: Mapping[str, Sequence[str]] | None = None) -> dict[str, Record]:
    """The records of GPUs in a folder and below it, one a suite, each case from the newest run; by suite.

    names_by_suite: the cases that a suite has now, in its order; what older runs measured besides is left out
    """
    runs_by_suite: dict[str, list[Record]] = {}
    for path in folder.rglob("*.json"):
        record = Record.load(path)
        if record.header.get("cuda") and record.cases:
            runs_by_suite.setdefault(str(record.header["suite"]), []).append(record)
    names = names_by_suite or {}
    found = {suite: combined(runs, folder, names.get(suite)) for suite, runs in sorted(runs_by_suite.items())}
    return {suite: record for suite, record in found.items() if record.cases}


def combined(runs: Iterable[Record], folder: Path, names: Sequence[str] | None = None) -> Record:
    """One record of all runs; its header is that of the newest, and `runs` in it says which run holds how many of the cases."""
    newest_first = sorted(runs, key=lambda r: (str(r.header.get("time", "")), r.path.name), reverse=True)
    if names is None:
        # The fullest run has the suite's own order.
        fullest = max(newest_first, key=lambda r: len(r.cases))
        names = list(dict.fromkeys([*fullest.cases, *(name for run in newest_first for name in run.cases)]))
    cases, holders, devices = {}, Counter[int](), {}
    for name in names:
        holder = next((n for n, run in enumerate(newest_first) if name in run.cases and _is_tried(run.cases[name])), None)
        if holder is None:
            continue
        holders[holder] += 1
        run = newest_first[holder]
        device = f"{run.path.relative_to(folder)}/{run.cases[name].get('device', '')}"
        devices[device] = _rates(run, run.cases[name])
        cases[name] = {**run.cases[name], "device": device}
        if "peers" in cases[name]:
            cases[name]["peers"] = _with_earlier_peers(name, run, newest_first[holder + 1:])
    return Record(newest_first[0].path, _header(newest_first, holders, devices, folder), cases)


def _header(runs: Sequence[Record], holders: Mapping[int, int], devices: dict[str, Any], folder: Path) -> dict[str, Any]:
    used = [runs[n] for n in sorted(holders)]
    header = {**(used or runs)[0].header, "devices": devices}
    copies = sorted(d["copy_bytes_per_s"] for d in devices.values() if "copy_bytes_per_s" in d)
    if copies:
        header["copy_bytes_per_s"] = copies[len(copies) // 2]
    header["runs"] = [{"file": str(run.path.relative_to(folder)), "commit": run.header.get("commit"), "time": run.header.get("time", ""),
                       "num_cases": count, "inductor_mode": run.header.get("inductor_mode")}
                      for run, count in ((runs[n], holders[n]) for n in sorted(holders))]
    return header


def _is_tried(entry: Entry) -> bool:
    return "peers" not in entry or entry["peers"].get(OURS, {}).get("status") not in UNTRIED


def _rates(run: Record, entry: Entry) -> dict[str, Any]:
    """Limits of the device of one case in its own run."""
    own = {**run.header, **run.header.get("devices", {}).get(entry.get("device"), {})}
    return {key: own[key] for key in RATES if key in own}


def _setting(run: Record) -> tuple[object, object]:
    return run.header.get("device"), run.header.get("versions", {}).get("torch")


def _with_earlier_peers(name: str, run: Record, earlier: Sequence[Record]) -> Entry:
    """The peers of a case; those that the run did not try come from the newest earlier one, marked `is_earlier`."""
    found = {p: m for p, m in run.cases[name]["peers"].items() if m.get("status") not in UNTRIED}
    for older in earlier:
        if _setting(older) != _setting(run):
            continue
        for peer, measured in older.cases.get(name, {}).get("peers", {}).items():
            if peer not in found and measured.get("status") not in UNTRIED:
                found[peer] = {**measured, "is_earlier": True, "earlier_run": older.path.name}
    return found


def used_files(records: Mapping[str, Record]) -> set[str]:
    """File names of the runs that combined records hold a case or a peer of."""
    found = {Path(run["file"]).name for record in records.values() for run in record.header["runs"]}
    for record in records.values():
        for entry in record.cases.values():
            found |= {peer["earlier_run"] for peer in entry.get("peers", {}).values() if "earlier_run" in peer}
    return found
