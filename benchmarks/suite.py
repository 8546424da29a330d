"""One run of a suite: cases go from one queue to the measuring processes, one a device or several; one writer keeps the record.

All peers of a case are measured one after another by the same process on the same device.
"""
from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from benchmarks import turns
from benchmarks.devices import COMPILE_THREADS, Place, child_environment, threads_each
from benchmarks.record import Record, median_rates
from benchmarks.report import OURS, geometric_mean
from benchmarks.supervise import Bench
from tilefuse.runtime.stores.cache import default_folder

# No case is started with less than this left of the budget, and none gets less than that. Units: seconds.
LEAST_LEFT_S = 5.0
LEAST_TIMEOUT_S = 20.0
COPY_CURVE = "copy_curve_bytes_per_s"

Case = dict[str, Any]


def earlier_seconds(suite: str, folder: Path) -> dict[str, float]:
    """Times of the cases of a suite in the newest records, all peers together (older ones tell the compile time only).

    Units: seconds by case.
    """
    found: dict[str, float] = {}
    for path in sorted(folder.glob(f"{suite}-*.json")):
        for name, entry in Record.load(path).cases.items():
            found[name] = sum(float(peer.get("took_s") or peer.get("compile_s") or 0.0) for peer in entry["peers"].values())
    return found


def longest_first(cases: Sequence[Case], seconds: dict[str, float]) -> list[Case]:
    """Cases by rank, within a rank those that take longest first: the devices then end together.

    A case that was never measured counts as it says itself (`usual_s`), else as the mean of its family, or of all.
    """
    by_family: dict[str, list[float]] = {}
    for case in cases:
        if case["name"] in seconds:
            by_family.setdefault(case["family"], []).append(seconds[case["name"]])
    usual = geometric_mean(seconds.values()) or 0.0

    def expected(case: Case) -> float:
        return max(seconds.get(case["name"], 0.0), case.get("usual_s", 0.0)) or geometric_mean(by_family.get(case["family"], ())) or usual

    return sorted(cases, key=lambda c: (int(c.get("rank", 0)), -expected(c)))


def families_in_turn(cases: Sequence[Case]) -> list[Case]:
    """Cases by rank, within a rank one of each family after the other: a run that is cut short has cases of all families."""
    turn_by_name: dict[str, int] = {}
    count: dict[tuple[int, str], int] = {}
    for case in cases:
        key = int(case.get("rank", 0)), case["family"]
        turn_by_name[case["name"]] = count[key] = count.get(key, 0) + 1
    return sorted(cases, key=lambda c: (int(c.get("rank", 0)), turn_by_name[c["name"]]))


class Queue:
    """Cases that are still to be measured; several threads take from it."""

    def __init__(self, cases: Sequence[Case], home_by_case: dict[str, str]) -> None:
        self.left = list(cases)
        self.home_by_case = home_by_case
        self.guard = threading.Lock()

    def take(self, place: str) -> Case | None:
        """The next case for a device, None if there is none: a case that was begun on a device of this run stays there."""
        with self.guard:
            for number, case in enumerate(self.left):
                if self.home_by_case.get(case["name"], place) == place:
                    return self.left.pop(number)
        return None


class Run:
    """Measures cases by the processes `places` into `record`; the thread that holds `guard` may change it.

    request    what every request to a measuring process says besides case and peer
    limits     requests whose answers belong to each device, made before its first case
    timeout_s  what one peer may take on one case: one that takes longer is recorded so, and the next is asked
    apart      whether every case has a measuring process of its own
    caches     a folder of kernel caches that stay; None: every process begins with empty ones. Compile times are of cold compiles only,
               so that the record of a run with such a folder has none.
    Tilefuse is asked before other compilers: what they take longer than the budget must not cost its figure.
    Units: seconds.
    """

    def __init__(self, record: Record, places: Sequence[Place], peers: Sequence[str], request: Case, *, limits: Sequence[Case] = (),
                 budget_s: float = 0.0, timeout_s: float = 300.0, apart: bool = False, caches: Path | None = None) -> None:
        self.record = record
        self.places = places
        self.peers = (*(p for p in peers if p == "eager"), OURS, *(p for p in peers if p != "eager"))
        self.request = request
        self.limits = limits
        self.started = time.monotonic()
        self.budget_s = budget_s
        self.timeout_s = timeout_s
        self.apart = apart
        self.caches = caches
        self.guard = threading.Lock()
        self.ended = threading.Event()
        self.num_begun = 0
        self.num_cases = 0
        self.is_spent = False
        self.names = {p.name for p in places}
        self.shares_device = len(self.names) < len(places)
        record.header["num_side_by_side"] = len(self.names)
        record.header["takes_turns"] = turns.is_shared() or self.shares_device
        record.header |= {"keeps_caches": True} if caches else {}
        record.header["compile_threads_each"] = os.environ.get(COMPILE_THREADS, threads_each(len(places)))

    def measure(self, cases: Sequence[Case]) -> None:
        """Measure every case for every peer; print and store after each. What was measured is in the record even when this raises.

        Raises: KeyboardInterrupt; OSError where the record cannot be written.
        """
        self.num_cases = len(cases)
        homes = {name: e["device"] for name, e in self.record.cases.items() if e.get("device") in self.names}
        queue = Queue(cases, homes)
        kept = contextlib.nullcontext(self.caches) if self.caches else None
        with kept or tempfile.TemporaryDirectory(prefix="tilefuse-bench-", ignore_cleanup_errors=True) as caches:
            benches = [self._bench(place, Path(caches)) for place in self.places]
            with ThreadPoolExecutor(len(benches)) as pool:
                working = [pool.submit(self._work, place, bench, queue) for place, bench in zip(self.places, benches)]
                try:
                    for done in as_completed(working):
                        done.result()
                finally:
                    self.ended.set()
                    for bench in benches:
                        bench.close()
        if self.is_spent:
            complete = sum(all(self.record.has(c["name"], p) for p in self._peers_of(c)) for c in cases)
            print(f"budget spent: {complete} of {len(cases)} cases are complete", file=sys.stderr)

    def _bench(self, place: Place, caches: Path) -> Bench:
        environment = child_environment(place, len(self.places), caches, default_folder(), os.environ, shares_device=self.shares_device,
                                        is_kept=self.caches is not None)
        log = self.record.path.with_suffix(".log" if len(self.places) == 1 else f".{place.label}.log")
        return Bench(log, environment)

    def _work(self, place: Place, bench: Bench, queue: Queue) -> None:
        """Measure cases on one device until none is left, the budget is spent or the run ends."""
        if not place.worker:
            self._measure_limits(place, bench)
        while not self.ended.is_set() and (case := queue.take(place.name)) is not None:
            with self.guard:
                self.num_begun += 1
                number = self.num_begun
                if self.record.cases.get(case["name"], {}).get("device", place.name) != place.name:
                    # Begun on a device that is not here: figures of two devices would stand side by side.
                    del self.record.cases[case["name"]]
            if not all(self._measure_peer(place, bench, case, peer, number) for peer in self._peers_of(case)):
                return
            if self.apart:
                bench.stop()

    def _peers_of(self, case: Case) -> list[str]:
        """The peers of the run that the case is held against, in the run's order: all, unless it names its `rivals`."""
        return [peer for peer in self.peers if peer == OURS or peer in case.get("rivals", self.peers)]

    def _left_s(self) -> float:
        return self.budget_s - (time.monotonic() - self.started) if self.budget_s else float("inf")

    def _measure_peer(self, place: Place, bench: Bench, case: Case, peer: str, number: int) -> bool:
        """Measure one peer on one case unless the record has it; whether to go on."""
        with self.guard:
            if self.record.has(case["name"], peer):
                return True
        left = self._left_s()
        if left < LEAST_LEFT_S:
            self.is_spent = True
            return False
        began = time.monotonic()
        granted = min(self.timeout_s, max(left, LEAST_TIMEOUT_S))
        measured = bench.ask({**self.request, "case": case["name"], "peer": peer}, granted)
        if self.ended.is_set():
            return False
        if measured["status"] == "timeout" and granted < self.timeout_s:
            # Cut short by the end of the run: that says nothing of the peer, and a resumed run asks it again.
            self.is_spent = True
            return False
        if self.caches:
            measured.pop("compile_s", None)
        measured["took_s"] = round(time.monotonic() - began, 3)
        figure = f"{measured['us']:.1f} us" if "us" in measured else (measured.get("reason") or "").partition("\n")[0][:160]
        where = f" on {place.name}" if len(self.names) > 1 else ""
        with self.guard:
            self.record.add(case["name"], {**case, "device": place.name}, peer, measured)
            print(f"[{number}/{self.num_cases}] {case['name']} {peer}{where}: {measured['status']} {figure}", file=sys.stderr, flush=True)
        return True

    def _measure_limits(self, place: Place, bench: Bench) -> None:
        """Limits of the device itself, once a record and device; the header also has the medians over all devices."""
        with self.guard:
            known = self.record.header.setdefault("devices", {}).setdefault(place.name, {})
            asked = [r for r in self.limits if r["key"] not in known]
        for request in asked:
            found = bench.ask(request, self.timeout_s).get(request["key"], {})
            with self.guard:
                known[request["key"]] = found
                if request["key"] == COPY_CURVE and found:
                    known["copy_bytes_per_s"] = list(found.values())[-1]
        with self.guard:
            self.record.header |= median_rates(list(self.record.header["devices"].values()))
