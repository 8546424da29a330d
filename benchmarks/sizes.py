"""Sizes that change from call to call: what a whole stream of calls takes, compilation included, and whether its results are right.

    python -m benchmarks sizes [--quick] [--only REGEX] [--peers LIST] [--budget SECONDS]        LIST may name measurements of tilefuse

Single runs of 0.7 to 4 s differ by up to a factor of two on a shared host. So each peer runs in `ROUNDS` processes a case: all peers of
all cases take their turn, then the next round begins. A record holds the run of median time, with the shortest and the longest time.

Every process begins with empty caches. Tilefuse is measured once more with what the first round's process kept on disk (`warm`), and
once with no size compiled before it returns (`tilefuse_later`: option sizes_at_once=0).
"""
from __future__ import annotations

import re
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.compiler import python
from benchmarks.environment import default_device, describe
from benchmarks.record import Record
from benchmarks.size_streams import STREAMS

PEERS = ("eager", "aot_eager", "inductor")
# Measurements of tilefuse, with the options of each. `warm` begins with the cache of the first round's `tilefuse`.
OURS: dict[str, dict[str, int]] = {"tilefuse": {}, "warm": {}, "tilefuse_later": {"sizes_at_once": 0}}
ROUNDS = 3
QUICK = ("generate/40", "returning/10")
TIMEOUT_S = 300.0
LEAST_TIMEOUT_S = 20.0

MEASURE = """
import json
from benchmarks.environment import default_device
from benchmarks.size_streams import measured
print(json.dumps(measured({name!r}, {peer!r}, {tiny}, default_device(), {options}, {settles})))
"""

Facts = dict[str, Any]


def run(out: Path, *, only: str = "", quick: bool = False, budget_s: float = 0.0, tiny: bool = False, is_listed: bool = False,
        peers: Sequence[str] | None = None) -> int:
    """Measure every stream, print and store it, or only print the names. Exit status 1 if tilefuse failed or was wrong."""
    chosen = [name for name in STREAMS if re.search(only, name) and (not quick or name in QUICK)]
    if is_listed:
        print("\n".join(chosen))
        return 0
    record = Record.start(out, "sizes", describe(default_device()))
    with tempfile.TemporaryDirectory(prefix="tilefuse-sizes-", ignore_cleanup_errors=True) as folder:
        rounds = _Rounds(record, Path(folder), tiny, time.monotonic() + budget_s if budget_s else float("inf"))
        if not rounds.measure_all(chosen, measurements(peers)):
            print("budget spent", flush=True)
    print(f"record: {record.path}")
    return 0 if all(_is_good(peer, found) for entry in record.cases.values() for peer, found in entry["peers"].items()) else 1


def measurements(peers: Sequence[str] | None) -> list[str]:
    """The peers in the order of a round, tilefuse's measurements behind the others; `warm` needs the cache of `tilefuse`."""
    asked = PEERS if peers is None else peers
    ours = [peer for peer in OURS if peer in asked or peer == "tilefuse" and "warm" in asked] or list(OURS)
    return [*(peer for peer in asked if peer not in OURS), *ours]


@dataclass
class _Rounds:
    """The runs of all rounds so far. Units of `ends`: seconds of the monotonic clock."""

    record: Record
    folder: Path
    tiny: bool
    ends: float
    runs: dict[tuple[str, str], list[Facts]] = field(default_factory=dict)

    def measure_all(self, names: Sequence[str], peers: Sequence[str]) -> bool:
        """Run every peer on every stream, and again `ROUNDS` - 1 times; False where the time was over before."""
        for number in range(ROUNDS):
            for name in names:
                for peer in peers:
                    if not self.measure(number, name, peer):
                        return False
        return True

    def measure(self, number: int, name: str, peer: str) -> bool:
        """Run a peer once and store what all its runs give together; False where the time is over."""
        left_s = self.ends - time.monotonic()
        if left_s <= 0:
            return False
        granted_s = min(TIMEOUT_S, max(left_s, LEAST_TIMEOUT_S))
        script = MEASURE.format(name=name, peer="tilefuse" if peer in OURS else peer, tiny=self.tiny, options=OURS.get(peer),
                                settles=peer == "tilefuse" and number == 0)
        began = time.monotonic()
        found = python(script, self._caches(number, name, peer), granted_s)
        if found["status"] == "timeout" and granted_s < TIMEOUT_S:
            return False  # cut short by the end of the run, which says nothing of the peer
        runs = self.runs.setdefault((name, peer), [])
        runs.append({**found, "took_s": round(time.monotonic() - began, 3)})
        self.record.add(name, {"family": name.split("/")[0]}, peer, together(runs))
        shown = (_shown(k, v) for k, v in runs[-1].items() if k != "trace")
        print(f"{number + 1} {name:<14} {peer:<14} " + "  ".join(shown), flush=True)
        return True

    def _caches(self, number: int, name: str, peer: str) -> dict[str, str]:
        """The cache folders of a process: empty ones of its own, or for `warm` a copy of those that the first round's `tilefuse` left."""
        own = self._folder(number, name, peer)
        kept = self._folder(0, name, "tilefuse")
        if peer == "warm" and kept.exists():
            shutil.copytree(kept, own)
        return {"TILEFUSE_CACHE_DIR": str(own / "tilefuse"), "TORCHINDUCTOR_CACHE_DIR": str(own / "inductor")}

    def _folder(self, number: int, name: str, peer: str) -> Path:
        return self.folder / name.replace("/", "-") / f"{peer}-{number}"


def together(runs: Sequence[Facts]) -> Facts:
    """One measurement of a peer's runs: the run of median time, with the range of times; the first run that failed, where one did.

    The background is waited for in one run only, so `settled_*` are that run's. Units: seconds.
    """
    took = {"num_runs": len(runs), "took_s": sum(run["took_s"] for run in runs)}
    failed = next((run for run in runs if run["status"] != "ok"), None)
    if failed is not None:
        return {**failed, **took}
    ordered = sorted(runs, key=lambda run: float(run["seconds"]))
    # A wrong result counts, whichever run it is of.
    shown = next((run for run in runs if not run["right"]), ordered[(len(runs) - 1) // 2])
    settled = {key: value for run in runs for key, value in run.items() if key.startswith("settled_")}
    return {**shown, **settled, "seconds": ordered[(len(runs) - 1) // 2]["seconds"], "least_seconds": ordered[0]["seconds"],
            "most_seconds": ordered[-1]["seconds"], **took}


def _is_good(peer: str, found: Facts) -> bool:
    return peer not in OURS or found["status"] == "ok" and bool(found["right"])


def _shown(key: str, value: Any) -> str:
    return f"{key} {value:.3g}" if isinstance(value, float) else f"{key} {value}"
