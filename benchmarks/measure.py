"""One measurement, from case and peer to a record of plain values; and the loop of the process that makes them.

Measurements run in a process of their own: a kernel that faults takes the device context with it, and a compile that hangs must be
ended. The parent (`supervise.py`) then starts a fresh process and goes on with the next case.
"""
from __future__ import annotations

import gc
import json
import sys
import traceback
from typing import Any

import torch

from benchmarks import patterns, stitched
from benchmarks.case import Case, Tensors, allowed_error, ideal_bytes, reference_of, relative_error
from benchmarks.environment import default_device
from benchmarks.peers import NotApplicable, prepare
from benchmarks.timing import copy_bytes_per_s, num_input_sets

SEED = 20260


def measure_pattern(case: Case, peer: str, device: torch.device, *, inductor_mode: str) -> dict[str, Any]:
    """Prepare, check against double precision, time, check again.

    Units: microseconds and bytes, named in the keys.
    """
    generator = torch.Generator(device).manual_seed(SEED)
    first = tuple(case.inputs(device, generator))
    prepared = prepare(peer, case, first, inductor_mode=inductor_mode)
    outputs = prepared.run(first)
    moved = ideal_bytes(first, _as_stored(outputs))
    error = _error(case, first, outputs)
    sets = [first, *(tuple(case.inputs(device, generator)) for _ in range(num_input_sets(moved, device) - 1))]
    del outputs
    timing, last = prepared.time(sets, device)
    error_after = _error(case, first, last)
    record: dict[str, Any] = {
        "status": "ok", "us": timing.median_us, "low_us": timing.low_us, "high_us": timing.high_us, "method": timing.method,
        "num_sets": len(sets), "bytes": moved, "compile_s": round(prepared.compile_s, 3), "error": error, "error_after": error_after,
        **prepared.facts,
    }
    if not max(error, error_after) <= allowed_error(case.dtype):
        record["status"] = "wrong"
        record["reason"] = f"relative error {max(error, error_after):.3g} exceeds {allowed_error(case.dtype):.3g}"
    return record


def _as_stored(outputs: Tensors) -> Tensors:
    """Results in torch's types, so that all peers are charged the same bytes (JAX counts positions in 32 bits)."""
    return tuple(torch.empty(t.shape, dtype=torch.int64, device="meta") if not t.dtype.is_floating_point else t for t in outputs)


def _error(case: Case, inputs: Tensors, outputs: Tensors) -> float:
    if case.check is not None:
        return case.check(inputs, outputs)
    return relative_error(outputs, reference_of(case, inputs))


def measure_bandwidth(device: torch.device, sizes_mib: list[int]) -> dict[str, float]:
    """Copy bandwidth at several sizes. Units: bytes per second, keyed by MiB moved."""
    return {str(mib): copy_bytes_per_s(mib << 20, device) for mib in sizes_mib}


def measure_rates(device: torch.device, side: int) -> dict[str, float]:
    """Rate of a large product in each type. Units: operations a second, keyed by type."""
    return {dtype: stitched.product_flops_per_s(dtype, side, device) for dtype in ("f32", "f16")}


def serve() -> None:
    """Answer requests, one JSON object a line, until the input ends. Diagnostics go to standard error."""
    answers = sys.stdout
    sys.stdout = sys.stderr
    device = default_device()
    cases: dict[tuple[str, int], dict[str, Case]] = {}
    for line in sys.stdin:
        request = json.loads(line)
        try:
            record = _answer(request, device, cases)
        except NotApplicable as reason:
            record = {"status": "skipped", "reason": str(reason)}
        except Exception as error:
            record = {"status": "failed", "reason": f"{type(error).__name__}: {error}"[:2000], "trace": traceback.format_exc()[-4000:]}
            if device.type == "cuda" and "CUDA" in str(error) and "out of memory" not in str(error):
                record["poisoned"] = True
        answers.write(json.dumps(record) + "\n")
        answers.flush()
        gc.collect()
        if device.type == "cuda" and not record.get("poisoned"):
            torch.cuda.empty_cache()


def _answer(request: dict[str, Any], device: torch.device, known: dict[tuple[str, int], dict[str, Case]]) -> dict[str, Any]:
    match request["what"]:
        case "bandwidth":
            return {"status": "ok", "bytes_per_s": measure_bandwidth(device, request["sizes_mib"])}
        case "rates":
            return {"status": "ok", "flops_per_s": measure_rates(device, request["side"])}
        case "pattern" | "stitched":
            key = (request["what"], request["size_mib"])
            if key not in known:
                made = patterns.cases(request["size_mib"]) if request["what"] == "pattern" else stitched.cases(request["tiny"])
                known[key] = {case.name: case for case in made}
            return measure_pattern(known[key][request["case"]], request["peer"], device, inductor_mode=request["inductor_mode"])
        case "workload":
            from benchmarks.workload import measure_workload

            return measure_workload(request["case"], request["peer"], device, inductor_mode=request["inductor_mode"], tiny=request["tiny"])
        case "model":
            from benchmarks import models

            return models.measure_model(request["case"], request["peer"], device, inductor_mode=request["inductor_mode"],
                                        tiny=request["tiny"])
    raise NotApplicable(f"unknown request {request['what']!r}")


if __name__ == "__main__":
    serve()
