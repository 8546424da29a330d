"""One measurement, from case and peer to a record of plain values; and the loop of the process that makes them.

Measurements run in a process of their own: a kernel that faults takes the device context with it, and a compile that hangs must be
ended. The parent (`supervise.py`) then starts a fresh process and goes on with the next case.
"""
from __future__ import annotations

import faulthandler
import gc
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from typing import Any

import torch

from benchmarks import blas, patterns, stitched, turns
from benchmarks.case import Case, Tensors, allowed_error, ideal_bytes, reference_of, relative_error
from benchmarks.environment import default_device
from benchmarks.peers import NotApplicable, num_rounds, prepare
from benchmarks.precision import products_in
from benchmarks.products import listing
from benchmarks.report import OURS
from benchmarks.timing import CLOCK_S, copy_bytes_per_s, num_input_sets, time_calls

SEED = 20260


class Given:
    """Inputs and reference of one case, made once for all peers that are measured on it one after another."""

    def __init__(self, case: Case, device: torch.device) -> None:
        self.case = case
        self.device = device
        self.generator = torch.Generator(device).manual_seed(SEED)
        self.made: list[Tensors] = []
        self.reference = None if case.check is not None else reference_of(case, *self.sets(1))

    def sets(self, count: int) -> list[Tensors]:
        """The first `count` sets of inputs."""
        while len(self.made) < count:
            self.made.append(tuple(self.case.inputs(self.device, self.generator)))
        return self.made[:count]

    def error(self, outputs: Tensors) -> float:
        """How far the results on the first set are from double precision (or what the case's own check says).

        A peer that overwrites its inputs is found too: the reference was computed before any ran.
        """
        if self.case.check is not None:
            return self.case.check(self.made[0], outputs)
        assert self.reference is not None
        if self.case.sample is not None:
            return self.case.sample.error(self.made[0], outputs, self.reference)
        return relative_error(outputs, self.reference)


def measure_pattern(given: Given, peer: str, *, inductor_mode: str, clock_s: float = CLOCK_S) -> dict[str, Any]:
    """Prepare, check against double precision, time for about `clock_s` seconds, check again.

    Units: microseconds and bytes, named in the keys.
    """
    case, device = given.case, given.device
    first, = given.sets(1)
    prepared = prepare(peer, case, first, inductor_mode=inductor_mode)
    outputs = prepared.run(first)
    moved = ideal_bytes(first, _as_stored(outputs)) + case.extra_bytes
    error = given.error(outputs)
    sets = given.sets(num_input_sets(moved, device))
    del outputs
    timing, last = prepared.time(sets, device, clock_s)
    error_after = given.error(last)
    record: dict[str, Any] = {
        "status": "ok", "us": timing.median_us, "low_us": timing.low_us, "high_us": timing.high_us, "method": timing.method,
        "num_sets": len(sets), "bytes": moved, "compile_s": round(prepared.compile_s, 3), "error": error, "error_after": error_after,
        **prepared.facts,
    }
    if case.bare is not None and peer == OURS:
        record["bare_us"] = time_bare(case, sets, device)
    if not max(error, error_after) <= allowed_error(case.dtype):
        record["status"] = "wrong"
        record["reason"] = f"relative error {max(error, error_after):.3g} exceeds {allowed_error(case.dtype):.3g}"
    return record


def time_bare(case: Case, sets: Sequence[Tensors], device: torch.device) -> float:
    """Median time of the case's products alone, on the same input sets. Units: microseconds."""
    function = case.bare
    assert function is not None
    operands = [tuple(s) if case.bare_operands is None else case.bare_operands(s) for s in sets]
    with torch.no_grad():
        timing, _ = time_calls([lambda o=o: function(*o) for o in operands] * num_rounds(case, len(sets)), device)  # type: ignore[misc]
    return timing.median_us


def _as_stored(outputs: Tensors) -> Tensors:
    """Results in torch's types, so that all peers are charged the same bytes (JAX counts positions in 32 bits)."""
    return tuple(torch.empty(t.shape, dtype=torch.int64, device="meta") if not t.dtype.is_floating_point else t for t in outputs)


def measure_bandwidth(device: torch.device, sizes_mib: list[int]) -> dict[str, float]:
    """Copy bandwidth at several sizes. Units: bytes per second, keyed by MiB moved."""
    return {str(mib): copy_bytes_per_s(mib << 20, device) for mib in sizes_mib}


def measure_rates(device: torch.device, side: int, dtypes: Sequence[str]) -> dict[str, float]:
    """Rate of a large product in each type. Units: operations a second, keyed by type."""
    return {dtype: stitched.product_flops_per_s(dtype, side, device) for dtype in dtypes}


class Server:
    """Answers requests on one device; keeps what the next peer of the same case needs."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.case_by_name: dict[tuple[str, int, bool], dict[str, Case]] = {}
        self.given: Given | None = None

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """The record of one request; a failure is a record too. Where processes take turns it says how long this one waited."""
        before = turns.waited_s()
        record = self._tried(request)
        return record | ({"waited_s": round(turns.waited_s() - before, 3)} if turns.is_shared() else {})

    def _tried(self, request: dict[str, Any]) -> dict[str, Any]:
        try:
            with turns.held():
                return self._measured(request)
        except NotApplicable as reason:
            return {"status": "skipped", "reason": str(reason)}
        except Exception as error:
            record = {"status": "failed", "reason": f"{type(error).__name__}: {error}"[:2000], "trace": traceback.format_exc()[-4000:]}
            self.given = None
            if self.device.type == "cuda" and "CUDA" in str(error) and "out of memory" not in str(error):
                record["poisoned"] = True
            return record

    def _measured(self, request: dict[str, Any]) -> dict[str, Any]:
        what, mode, device = request["what"], request.get("inductor_mode", ""), self.device
        match what:
            case "bandwidth":
                return {"status": "ok", "copy_curve_bytes_per_s": measure_bandwidth(device, request["sizes_mib"])}
            case "rates":
                return {"status": "ok", "flops_per_s": measure_rates(device, request["side"], request["dtypes"])}
            case "pattern" | "stitched" | "blas" | "product":
                given = self._given(request)
                with products_in(given.case.dtype):
                    found = measure_pattern(given, request["peer"], inductor_mode=mode, clock_s=request.get("clock_s", CLOCK_S))
                if found["status"] == "wrong":
                    self.given = None  # whoever was wrong may have written to the inputs
                return found
            case "workload":
                from benchmarks.workload import measure_workload

                return measure_workload(request["case"], request["peer"], device, inductor_mode=mode, tiny=request["tiny"])
            case "array":
                from benchmarks import arrays

                return arrays.measure_array_case(request["case"], request["peer"], device, inductor_mode=mode, tiny=request["tiny"])
            case "call":
                from benchmarks import calls

                return calls.measure_call(request["case"], request["peer"], device, tiny=request["tiny"])
            case "model":
                from benchmarks import models

                return models.measure_model(request["case"], request["peer"], device, inductor_mode=mode, tiny=request["tiny"])
        raise NotApplicable(f"unknown request {what!r}")

    def _given(self, request: dict[str, Any]) -> Given:
        """Inputs of the asked case: those of the last request if it was about the same case."""
        key = (request["what"], request["size_mib"], request["tiny"])
        if key not in self.case_by_name:
            match request["what"]:
                case "pattern":
                    made = patterns.cases(request["size_mib"])
                case "blas":
                    made = blas.cases(request["tiny"])
                case "product":
                    made = listing.cases(request["tiny"])
                case _:
                    made = stitched.cases(request["tiny"])
            self.case_by_name[key] = {case.name: case for case in made}
        case = self.case_by_name[key][request["case"]]
        if self.given is None or self.given.case is not case:
            self.given = None
            self.clear()
            self.given = Given(case, self.device)
        return self.given

    def clear(self) -> None:
        """Return the device memory that nothing uses any more."""
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


def _end_with(parent: int) -> None:
    """End this process and what it started when the parent is gone: nobody would read what a compiler is still busy with."""
    while os.getppid() == parent:
        time.sleep(1.0)
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os._exit(1)


def serve() -> None:
    """Answer requests, one JSON object a line, until the input ends. Diagnostics go to standard error."""
    # The terminal sends an interrupt to the whole group: the parent decides what becomes of the case in hand.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Asked before the process is ended for a time-out.
    faulthandler.register(signal.SIGUSR1)
    answers = sys.stdout
    sys.stdout = sys.stderr
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    server = Server(default_device())
    for line in sys.stdin:
        record = server.answer(json.loads(line))
        answers.write(json.dumps(record) + "\n")
        answers.flush()
        if server.given is None and not record.get("poisoned"):
            # A collection takes longer than many a measurement: peers of one small case do without.
            server.clear()


if __name__ == "__main__":
    serve()
