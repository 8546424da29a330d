"""Cost of a call on the host: time until it returns, without and with `reduce-overhead`, beside the device's own time and wall time.

Every mode runs the same model on the same inputs in one process; two sets of inputs take turns, so that inputs move as a user's do.
Calls are timed in twos behind a synchronisation, so that the queue of launches never fills and the device never holds the host up.
Beside tilefuse's replays stands the bare replay: the recorded graphs and the copies of their inputs, without torch and tilefuse around.
"""
from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from benchmarks import launches, turns
from benchmarks.called_models import LARGER, MODELS, TRAINED
from benchmarks.case import DTYPES, Tensors, as_tuple, relative_error
from benchmarks.peers import NotApplicable, warm
from benchmarks.record import Record
from benchmarks.report import OURS, geometric_mean
from benchmarks.timing import peak_bytes, wait

CALLS_EACH = 2
ROUNDS = 25
SETTLING_CALLS = 8
# Time that `reduce-overhead` may take beside the replay and the copies of the inputs.
ABOVE_BARE = 1.1
MODES = ("default", "reduce-overhead")


def listed() -> list[dict[str, Any]]:
    """All cases: model/mode/dtype/batch."""
    found = [f"{model}/inference/f16/{batch}" for model in MODELS for batch in (1, *([LARGER[model]] if model in LARGER else []))]
    found += [f"{model}/training/f32/8" for model in TRAINED] + ["mobilenetv2/inference/f32/1"]
    return [{"name": n, "family": n.split("/")[1], "dtype": n.split("/")[2], "rank": int("training" in n)} for n in found]


def measure_call(name: str, peer: str, device: torch.device, *, tiny: bool) -> dict[str, Any]:
    """Figures of one peer on one case; `us` is the host time of a call by default, the other figures stand under `modes`.

    Units: microseconds a call.
    """
    model_name, kind, dtype_name, batch = name.split("/")
    warm(peer, device)
    torch.manual_seed(0)
    with turns.let_go():
        model, inputs = MODELS[model_name](int(batch), tiny, device, DTYPES[dtype_name])
    # One set after the other, without end.
    sets = itertools.cycle([inputs, tuple(t.clone() for t in inputs)])
    run = _training(model, sets) if kind == "training" else _inference(model, sets)
    reference = [t.double() for t in run(model)]
    found: dict[str, Any] = {}
    for mode in MODES if peer != "eager" else MODES[:1]:
        compiled = _compiled(model, peer, mode)
        started = turns.clock()
        with turns.let_go():
            error = relative_error(tuple(run(compiled)), tuple(reference))
        compile_s = turns.clock() - started

        def call(compiled: Callable[..., Any] = compiled, mode: str = mode) -> Tensors:
            if peer == "inductor" and mode == "reduce-overhead":
                torch.compiler.cudagraph_mark_step_begin()
            return run(compiled)

        found[mode] = {**_times(call, device), "compile_s": round(compile_s, 3), "error": error}
        found[mode]["error"] = max(error, relative_error(tuple(call()), tuple(reference)))
        if peer == OURS:
            found[mode] |= {"parts": _parts(), **_bare_times(device)}
    worst = max(f["error"] for f in found.values())
    record = {"status": "ok", "us": found["default"]["host_us"], "modes": found, "error": worst}
    # Sums of 16-bit results over a whole network: torch.compile's own error is of this size.
    if not worst <= 0.05:
        record |= {"status": "wrong", "reason": f"relative error {worst:.3g}"}
    return record


def _parts() -> list[dict[str, Any]]:
    """Outcome of the calls of each compiled part: recordings, replays, and why there are none. Units: microseconds of a direct call."""
    from tilefuse.driver.torch_backend import compiled_parts

    found = []
    for part in compiled_parts():
        told: dict[str, Any] = {"kind": part.kind, "program": str(part.program)}
        if (run := part.replayed) is not None:
            direct_us = run.direct_s * 1e6
            told |= {"num_recordings": run.num_recordings, "num_replays": run.num_replays, "why_not": run.why_not,
                     "direct_us": round(direct_us, 1) if math.isfinite(direct_us) else None}
        found.append(told)
    return found


def _bare_times(device: torch.device) -> dict[str, float]:
    """Host and wall time of the recorded graphs and the copies of their inputs; nothing where there are none. Units: microseconds."""
    from tilefuse.driver.torch_backend import compiled_parts

    bare = [call for part in compiled_parts() if part.replayed is not None and (call := part.replayed.bare()) is not None]
    if not bare:
        return {}
    host_us, wall_us = _host_and_wall_us(lambda: [call() for call in bare], device)
    return {"bare_host_us": host_us, "bare_wall_us": wall_us}


def _inference(model: torch.nn.Module, sets: Iterator[Tensors]) -> Callable[[Callable[..., Any]], Tensors]:
    def run(network: Callable[..., Any]) -> Tensors:
        with torch.no_grad():
            return as_tuple(network(*next(sets)))

    return run


def _training(model: torch.nn.Module, sets: Iterator[Tensors]) -> Callable[[Callable[..., Any]], Tensors]:
    parameters = [p for p in model.parameters() if p.requires_grad]

    def run(network: Callable[..., Any]) -> Tensors:
        loss = as_tuple(network(*next(sets)))[0].float().square().mean()
        return (loss.detach(), *torch.autograd.grad(loss, parameters)[-1:])

    return run


def _compiled(model: torch.nn.Module, peer: str, mode: str) -> Any:
    torch._dynamo.reset()
    match peer:
        case "eager":
            return model
        case "inductor":
            return torch.compile(model, dynamic=False, mode=None if mode == "default" else mode)
        case "tilefuse":
            from tilefuse.driver import torch_backend

            torch_backend.reset()
            options: dict[str, Any] = {"strict": True, **torch_backend.list_mode_options(mode)}
            return torch.compile(model, backend=torch_backend.backend, dynamic=False, options=options)
    raise NotApplicable(f"{peer} has no version of the models")


def _times(call: Callable[[], object], device: torch.device) -> dict[str, Any]:
    """Host time and wall time of a call, and the device's own. Units: microseconds."""
    host_us, wall_us = _host_and_wall_us(call, device)
    seen = launches.launches_of(call, device)
    return {"host_us": host_us, "wall_us": wall_us, "device_us": None if seen is None else sum(x.us for x in seen),
            "peak_bytes": peak_bytes(call, device)}


def _host_and_wall_us(call: Callable[[], object], device: torch.device) -> tuple[float, float]:
    """Median time until a call returns, and until the device is ready. Units: microseconds."""
    for _ in range(SETTLING_CALLS):
        call()
    wait(device)
    samples, walls = [], []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        for _ in range(CALLS_EACH):
            call()
        samples.append((time.perf_counter() - started) * 1e6 / CALLS_EACH)
        wait(device)
    for _ in range(5):
        started = time.perf_counter()
        for _ in range(2 * CALLS_EACH):
            call()
        wait(device)
        walls.append((time.perf_counter() - started) * 1e6 / (2 * CALLS_EACH))
    return statistics.median(samples), statistics.median(walls)


def figure(entry: dict[str, Any], peer: str, mode: str, name: str) -> float | None:
    """One figure of a record's case; None where it was not measured."""
    value = entry["peers"].get(peer, {}).get("modes", {}).get(mode, {}).get(name)
    return None if value is None else float(value)


# Columns of the two tables: heading, peer, mode and figure; a ratio names two of them.
HOST = (("eager ms", "eager", "default", "host_us"), ("torch.compile ms", "inductor", "default", "host_us"),
        ("tilefuse ms", OURS, "default", "host_us"), ("of torch.compile's", 2, 1),
        ("torch.compile, reduce-overhead ms", "inductor", "reduce-overhead", "host_us"),
        ("tilefuse, reduce-overhead ms", OURS, "reduce-overhead", "host_us"), ("of torch.compile's, reduce-overhead", 5, 4))
WALL = (("eager ms", "eager", "default", "wall_us"), ("torch.compile ms", "inductor", "default", "wall_us"),
        ("tilefuse ms", OURS, "default", "wall_us"), ("tilefuse, reduce-overhead ms", OURS, "reduce-overhead", "wall_us"),
        ("bare replay ms", OURS, "reduce-overhead", "bare_wall_us"), ("of the bare replay's", 3, 4),
        ("device ms", OURS, "default", "device_us"))


def markdown(record: Record) -> str:
    """Host time and wall time of every case and mode in milliseconds, and tilefuse's over torch.compile's and the bare replay's."""
    parts: list[str] = []
    for title, columns in (("Host time of a call", HOST), ("Wall time of a call", WALL)):
        lines = [f"| call | {' | '.join(c[0] for c in columns)} |", "| --- " * (len(columns) + 1) + "|"]
        for name, entry in record.cases.items():
            if figure(entry, OURS, "default", "host_us") is None:
                continue
            us = [None if isinstance(c[1], int) else figure(entry, *c[1:]) for c in columns]
            cells = [_ratio(us[c[1]], us[c[2]]) if isinstance(c[1], int) else None if t is None else t / 1e3 for c, t in zip(columns, us)]
            told = ["-" if v is None else f"{v:.2f}" if isinstance(c[1], int) else f"{v:.3f}" for c, v in zip(columns, cells)]
            lines.append(f"| {name} | " + " | ".join(told) + " |")
        parts.append(f"{title}:\n\n" + "\n".join(lines))
    return "\n\n".join([*parts, verdict(record)])


def verdict(record: Record) -> str:
    """Geometric means of tilefuse's host time over torch.compile's, and the cases above it."""
    told = []
    for mode in MODES:
        known: dict[str, float] = {}
        for name, entry in record.cases.items():
            ratio = _ratio(figure(entry, OURS, mode, "host_us"), figure(entry, "inductor", mode, "host_us"))
            if ratio is not None:
                known[name] = ratio
        mean = geometric_mean(known.values())
        if mean is not None:
            above = [f"{name} {r:.2f}" for name, r in known.items() if r > 1.0]
            told.append(f"{mode}: {mean:.2f} of torch.compile's host time in geometric mean of {len(known)} calls, "
                        f"above it: {', '.join(above) or 'none'}")
    slow = []
    for name, entry in record.cases.items():
        ours, eager = figure(entry, OURS, "default", "wall_us"), figure(entry, "eager", "default", "wall_us")
        if ours and eager and ours > eager:
            slow.append(f"{name} {ours / eager:.2f}")
    told.append(f"wall time above eager's: {', '.join(slow) or 'none'}")
    for kind in ("host", "wall"):
        pairs = {name: [figure(entry, OURS, "reduce-overhead", f"{prefix}{kind}_us") for prefix in ("", "bare_")]
                 for name, entry in record.cases.items()}
        over = {name: ratio for name, (whole, bare) in pairs.items() if (ratio := _ratio(whole, bare)) is not None}
        mean = geometric_mean(over.values())
        if mean is not None:
            above = [f"{name} {r:.2f}" for name, r in over.items() if r > ABOVE_BARE]
            told.append(f"reduce-overhead takes {mean:.2f} of the bare replay's {kind} time in geometric mean, "
                        f"above {ABOVE_BARE}: {', '.join(above) or 'none'}")
    return "Host time. " + "; ".join(told) + "."


def _ratio(ours: float | None, theirs: float | None) -> float | None:
    return ours / theirs if ours and theirs else None
