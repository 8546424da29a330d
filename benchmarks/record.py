"""Results on disk: one JSON file a run, rewritten whole after each case, so that an interrupted run keeps what it has."""
from __future__ import annotations

import json
import os
import statistics
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"


class Record:
    """One run: header, and for each case a record a peer. `path` is where it lies."""

    def __init__(self, path: Path, header: dict[str, Any], cases: dict[str, dict[str, Any]]) -> None:
        self.path = path
        self.header = header
        self.cases = cases

    @classmethod
    def start(cls, folder: Path, suite: str, header: dict[str, Any]) -> Record:
        """A new run's record. The name carries suite, device and time."""
        device = str(header.get("device", "host")).lower().replace("nvidia", "").strip().replace(" ", "-") or "host"
        stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        folder.mkdir(parents=True, exist_ok=True)
        return cls(folder / f"{suite}-{device}-{stamp}.json", {"suite": suite, **header}, {})

    @classmethod
    def load(cls, path: Path) -> Record:
        """An earlier run, to be continued or shown."""
        found = json.loads(path.read_text(encoding="utf-8"))
        return cls(path, found["header"], found["cases"])

    def has(self, case: str, peer: str) -> bool:
        """Whether the peer was already measured on the case (a failure counts: it would fail again)."""
        return peer in self.cases.get(case, {}).get("peers", {})

    def add(self, case: str, facts: dict[str, Any], peer: str, measured: dict[str, Any]) -> None:
        """Keep one measurement and write the file."""
        entry = self.cases.setdefault(case, {**facts, "peers": {}})
        entry["peers"][peer] = measured
        self.write()

    def arrange(self, names: Sequence[str]) -> None:
        """Put the cases into the order of `names`; others stay in front."""
        place = {name: n for n, name in enumerate(names)}
        self.cases = dict(sorted(self.cases.items(), key=lambda item: place.get(item[0], -1)))

    def write(self) -> None:
        """Replace the file in one step."""
        # A line a case: the encoder that indents is many times slower, and a run writes this after each of a thousand measurements.
        cases = ",\n".join(f"  {json.dumps(name)}: {json.dumps(entry)}" for name, entry in self.cases.items())
        text = f'{{"header": {json.dumps(self.header, indent=1)},\n "cases": {{\n{cases}\n }}\n}}\n'
        partial = self.path.with_suffix(".partial")
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, self.path)


def median_rates(devices: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Limits of several GPUs as one figure each: medians of those that were measured."""
    found: dict[str, Any] = {}
    copies = [d["copy_bytes_per_s"] for d in devices if d.get("copy_bytes_per_s")]
    if copies:
        found["copy_bytes_per_s"] = statistics.median(copies)
    flops = [d["flops_per_s"] for d in devices if d.get("flops_per_s")]
    if flops:
        found["flops_per_s"] = {t: statistics.median(f[t] for f in flops) for t in flops[0]}
    return found


def joined(parts: Sequence[Record], folder: Path) -> Record:
    """One record of one suite's parts, each measured by its own process on one GPU of the same machine.

    Every part's GPU keeps its own figures under `devices`, as `part.device`; rates of the whole are their medians, as in a run over
    several GPUs. Raises ValueError where the parts differ in what makes figures comparable, or hold the same case twice.
    """
    first = parts[0]
    cases: dict[str, dict[str, Any]] = {}
    devices: dict[str, Any] = {}
    for number, part in enumerate(parts):
        for key in ("suite", "commit", "source_digest", "device", "versions", "python", "inductor_mode"):
            if part.header.get(key) != first.header.get(key):
                raise ValueError(f"{part.path.name} and {first.path.name} are no parts of one run: {key} is {part.header.get(key)} and "
                                 f"{first.header.get(key)}; join records of one commit and machine")
        twice = sorted(cases.keys() & part.cases.keys())
        if twice:
            raise ValueError(f"{part.path.name} holds {twice[0]}, which another part holds too; leave one of them out")
        cases.update({name: {**entry, **({"device": f"{number}.{entry['device']}"} if "device" in entry else {})}
                      for name, entry in part.cases.items()})
        devices.update({f"{number}.{key}": value for key, value in part.header.get("devices", {}).items()})
    header = {**first.header, "time": min(part.header["time"] for part in parts), "num_parts": len(parts), "devices": devices}
    header |= median_rates([part.header for part in parts])
    return Record(folder / min(part.path.name for part in parts), header, cases)
