"""A measured run of a compiled object: every kernel, library call and copy of its programs, torch's operators beside them, and the rest.

    the call, as it is          wall time, the device done at its end; recordings replayed
    the call, step by step      time of each step: on the host by the clock, medians over the calls
    the call under torch's      on a GPU the time of each step as the device tells it (by events where it tells none);
      profiler                  operators that ran outside of our programs

Times of the steps are those of a device that never waits for the host. The rest of the call's time, without torch's operators, is host
time: Python, launches, waiting.
"""
from __future__ import annotations

import contextlib
import json
import os
import statistics
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tilefuse.base.errors import UserError
from tilefuse.base.printable import one_line
from tilefuse.inspection.direct import direct_calls
from tilefuse.inspection.facts import step_facts
from tilefuse.inspection.places import short_place, where_text
from tilefuse.inspection.subject import Part, Subject, subject_of
from tilefuse.runtime.calls.step_times import MOST_RUNS, StepSpans, marked_steps, measured_calls, own_attribute

FORMAT = 1
# Calls before the measurement: the first compiles, and the second may load programs from the background process.
WARM_UP = 2
# Steps and operators that the text lists.
MOST_STEPS, MOST_OPERATORS = 15, 10
KINDS = {"kernel": "kernels", "library": "library calls", "copy": "copies"}


@dataclass(frozen=True)
class Profile:
    """A measured run. `data` is plain (docs/debugging.md lists its fields); `str` of it is one screen of text."""

    data: Mapping[str, Any]

    def json(self) -> dict[str, Any]:
        """The measurements as plain data."""
        return dict(self.data)

    def text(self, most: int = MOST_STEPS) -> str:
        """The measurements for people. most: steps that are listed, those that take longest first."""
        return "\n".join(map(one_line, _lines(self.data, most))) + "\n"

    def trace(self) -> dict[str, Any]:
        """A timeline as chrome-trace data, for Perfetto (ui.perfetto.dev) and chrome://tracing."""
        return _trace(self.data)

    def write(self, path: Path | str) -> Path:
        """Writes a file by the end of its name: `.trace.json` the timeline, `.json` the plain data, else the text. Gives its path.

        Raises: UserError where it cannot be written.
        """
        target = Path(path)
        name = target.name
        written = json.dumps(self.trace()) if name.endswith((".trace.json", ".pftrace")) else json.dumps(self.json(), indent=1) \
            if name.endswith(".json") else self.text()
        try:
            target.write_text(written, encoding="utf-8")
        except OSError as cause:
            raise UserError(f"cannot write the profile {target}: {cause.strerror or cause}") from cause
        return target

    def __str__(self) -> str:
        return self.text()


def profile_of(compiled: Any, arguments: Sequence[Any], named: Mapping[str, Any], *, repeats: int = 10, backward: bool = False,
               call: Callable[[], Any] | None = None) -> Profile:
    """A measured run of `compiled(*arguments, **named)`; see `tilefuse.profile`.

    Raises: UserError for less than one repeat, and where no program of the object ran; as the call.
    """
    if repeats < 1:
        raise UserError(f"repeats={repeats}: a profile needs one call at least")
    run = call or _call(compiled, arguments, named, backward)
    for _ in range(WARM_UP):
        run()
    subject = subject_of(compiled)
    device = next((p.program.device for p in subject.parts if hasattr(p.program, "device")), torch.device("cpu"))
    wall = _wall_times(run, device, repeats)
    with direct_calls(subject.parts) as programs:
        calls = _step_times(run, programs, repeats)
        operators, spans, device_calls = _beside(run, programs, device, repeats)
        timing = "clock" if device.type == "cpu" else "events"
        if device_calls and all(len(device_calls[0].get(p, ())) == len(spans_) for p, spans_ in calls[0].items()):
            calls, timing = device_calls, "device"
    measured = [p for p in _parts_of(subject, programs) if any(id(p.program) in c for c in calls)]
    if not measured:
        raise UserError(f"the call ran no program of {subject.name}",
                        hint="does it call the compiled object, and not the model that it was made of? tilefuse.explain tells which calls "
                             "torch runs")
    return Profile(_data(subject, measured, device, wall, calls, operators, spans) | {"timing": timing})


def _call(compiled: Any, arguments: Sequence[Any], named: Mapping[str, Any], backward: bool) -> Callable[[], Any]:
    """The call that is measured. backward: with the gradient of the sum of its results."""
    if not callable(compiled):
        raise UserError(f"a {type(compiled).__name__} cannot be called",
                        hint="profile(compiled, call=lambda: ...) takes a function that runs it")
    target = getattr(compiled, "program", None) if isinstance(compiled, Part) else compiled
    assert target is not None
    if not backward:
        return lambda: target(*arguments, **named)

    def step() -> None:
        from torch.utils import _pytree as pytree

        results = [t for t in pytree.tree_leaves(target(*arguments, **named)) if isinstance(t, torch.Tensor) and t.requires_grad]
        if not results:
            raise UserError("no result of the call has a gradient", hint="model.train(), parameters that require one, or backward=False")
        torch.autograd.backward([t.sum() for t in results])

    return step


def _wall_times(run: Callable[[], Any], device: torch.device, repeats: int) -> list[float]:
    """Times of whole calls as they are. Units: microseconds."""
    times: list[float] = []
    for _ in range(repeats):
        _wait(device)
        started = time.perf_counter()
        run()
        _wait(device)
        times.append((time.perf_counter() - started) * 1e6)
    return times


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _step_times(run: Callable[[], Any], programs: Sequence[Any], repeats: int) -> list[dict[int, list[StepSpans]]]:
    """For each of `repeats` calls (after one more), the times of every program that ran, by its id: one entry a time that it ran."""
    calls: list[dict[int, list[StepSpans]]] = []

    def keep_times(program: Any, spans: StepSpans) -> None:
        calls[-1].setdefault(id(program), []).append(spans)

    with measured_calls(programs, keep_times):
        for number in range(MOST_RUNS * (repeats + 1)):
            calls.append({})
            run()
            if number == 0 or any(not times for runs in calls[-1].values() for times in runs):
                calls.pop()
            if len(calls) == repeats:
                break
        else:
            calls.append({})
            run()
    return calls


def _beside(run: Callable[[], Any], programs: Sequence[Any], device: torch.device, repeats: int) -> tuple[
        list[dict[str, Any]], list[dict[str, Any]], list[dict[int, list[StepSpans]]]]:
    """(operators that torch ran outside of the programs, with counts and times of one call; when programs and operators ran on the host;
    times of the programs' steps as the device tells them, in form of `_step_times`: none on the host).

    Units: microseconds.
    """
    from torch.profiler import ProfilerActivity, profile, record_function

    def mark(program: Any, step: int) -> Any:
        return record_function(f"tilefuse_step {id(program)} {step}")

    def watched(program: Any) -> Callable[..., Any]:
        inner = type(program)._call

        def call(tensors: Any, stream: int, consume: bool) -> Any:
            with record_function(f"tilefuse {id(program)}"):
                return inner(program, tensors, stream, consume)

        return call

    distinct = {id(p): p for p in programs if hasattr(p, "_call")}
    device_calls: list[dict[int, list[StepSpans]]] = []
    with _quiet_profiler():
        kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
        with contextlib.ExitStack() as stack:
            for program in distinct.values():
                stack.enter_context(own_attribute(program, "_call", watched(program)))
            seen = stack.enter_context(profile(activities=kinds, acc_events=True))
            run()
            _wait(device)
        if device.type == "cuda":
            with marked_steps(distinct.values(), mark):
                for _ in range(repeats):
                    with profile(activities=kinds, acc_events=True) as marked:
                        run()
                        _wait(device)
                    device_calls.append(_device_spans(marked.events() or ()))
    return *_host_operators([e for e in seen.events() or () if str(e.device_type).endswith("CPU")]), device_calls


@contextlib.contextmanager
def _quiet_profiler() -> Iterator[None]:
    """Prevents torch's profiler from writing about its stages on standard error."""
    quiet = "KINETO_LOG_LEVEL" not in os.environ
    if quiet:
        os.environ["KINETO_LOG_LEVEL"] = "99"
    try:
        yield
    finally:
        if quiet:
            del os.environ["KINETO_LOG_LEVEL"]


def _host_operators(events: Sequence[Any]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(operators that torch ran outside of the programs, longest first; when programs and operators ran). Units: microseconds.

    events: of the host, as torch's profiler gives them.
    """
    first = min((e.time_range.start for e in events), default=0.0)
    spans: list[dict[str, Any]] = []
    rows: dict[str, dict[str, Any]] = {}
    for event in events:
        ours = event.name.startswith("tilefuse ")
        if not ours and (not event.name.startswith("aten::") or _is_inside(event)):
            continue
        spans.append({"name": event.name, "start_us": round(event.time_range.start - first, 3),
                      "us": round(event.time_range.elapsed_us(), 3), "program": int(event.name.split()[1]) if ours else 0})
        if not ours:
            row = rows.setdefault(event.name, {"operator": event.name.replace("::", "."), "calls": 0, "host_us": 0.0, "device_us": 0.0})
            row["calls"] += 1
            row["host_us"] += event.time_range.elapsed_us()
            row["device_us"] += float(getattr(event, "device_time_total", 0.0) or 0.0)
    operators = sorted(rows.values(), key=lambda r: -(r["device_us"] or r["host_us"]))
    for row in operators:
        row["host_us"], row["device_us"] = round(row["host_us"], 3), round(row["device_us"], 3)
    return operators, spans


def _device_spans(events: Any) -> dict[int, list[StepSpans]]:
    """Times of steps as the device tells them, by program: how long it was busy with what a step started. A step begins where the one
    before it ended: in this run the device waits for the host between them."""
    on_device = sorted((e for e in events if str(e.device_type).endswith("CUDA")), key=lambda e: float(e.time_range.start))
    ranges = [e for e in on_device if e.name.startswith("tilefuse_step ")]
    work = [(float(e.time_range.start), float(e.time_range.end)) for e in on_device
            if not getattr(e, "is_user_annotation", False) and not e.name.startswith(("tilefuse", "ProfilerStep"))]
    begins = [start for start, _ in work]
    spans_by_program: dict[int, list[StepSpans]] = {}
    for event in ranges:
        program, step = map(int, event.name.split()[1:])
        runs = spans_by_program.setdefault(program, [{}])
        if runs[-1] and step < max(runs[-1]):
            runs.append({})
        inside = work[bisect_left(begins, float(event.time_range.start)):bisect_right(begins, float(event.time_range.end))]
        before = runs[-1].pop(step, None)
        start = sum(us for _, us in runs[-1].values())
        runs[-1][step] = (start if before is None else before[0], _busy(inside) + (0.0 if before is None else before[1]))
    return spans_by_program


def _busy(work: Sequence[tuple[float, float]]) -> float:
    """The time in which anything runs, of (start, end) in order of starts."""
    total, until = 0.0, float("-inf")
    for start, end in work:
        total += max(end - max(start, until), 0.0)
        until = max(until, end)
    return total


def _is_inside(event: Any) -> bool:
    """Whether an operator was called by another one, or by a program of ours."""
    above = event.cpu_parent
    while above is not None:
        if above.name.startswith(("aten::", "tilefuse ")):
            return True
        above = above.cpu_parent
    return False


def _parts_of(subject: Subject, programs: Sequence[Any]) -> list[Part]:
    """The subject's parts, and those for the programs that keep weights apart."""
    known = {id(p) for p in subject.programs}
    return [*subject.parts, *(Part(f"{p.spec.name} (kept weights)", p) for p in programs if id(p) not in known)]


def _data(subject: Subject, parts: Sequence[Part], device: torch.device, wall: Sequence[float], calls: Sequence[Mapping[int, Any]],
          operators: Sequence[Mapping[str, Any]], spans: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    rows = [_part_data(part, calls) for part in parts]
    on_gpu = device.type == "cuda"
    torch_us = sum(o["device_us"] if on_gpu else o["host_us"] for o in operators)
    by_kind = {kind: round(sum(s["us"] for r in rows for s in r["steps"] if s["kind"] == kind), 3) for kind in KINDS}
    call_us = statistics.median(wall)
    number = {id(p.program): n for n, p in enumerate(parts)}
    timeline = [{"name": s["name"], "start_us": s["start_us"], "us": s["us"], "part": number.get(s["program"], -1)} for s in spans
                if not s["program"] or s["program"] in number]
    return {
        "format": FORMAT, "name": subject.name, "kind": subject.kind, "device": _device_name(device), "repeats": len(wall),
        "call_us": {"median": round(call_us, 3), "least": round(min(wall), 3), "most": round(max(wall), 3)},
        "totals": {**by_kind, "torch": round(torch_us, 3), "rest": round(max(call_us - sum(by_kind.values()) - torch_us, 0.0), 3)},
        "parts": rows, "torch": list(operators), "timeline": timeline,
        "in_torch": [{"kind": i.kind, "what": i.what, "reason": i.reason, "place": i.place, "path": i.path} for i in subject.in_torch],
    }


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "host"


def _part_data(part: Part, calls: Sequence[Mapping[int, list[StepSpans]]]) -> dict[str, Any]:
    """One part with its steps: time of all its runs in one call, medians over the calls."""
    runs_by_call = [c.get(id(part.program), []) for c in calls]
    steps: list[dict[str, Any]] = []
    for number, fact in enumerate(step_facts(part.program.spec, part.data())):
        us = statistics.median(sum(spans.get(number, (0.0, 0.0))[1] for spans in runs) for runs in runs_by_call)
        starts = [runs[0][number][0] for runs in runs_by_call if runs and number in runs[0]]
        limit = fact["limit_us"] * max((len(r) for r in runs_by_call), default=0)
        steps.append(fact | {"us": round(us, 3), "start_us": round(statistics.median(starts), 3) if starts else 0.0,
                             "limit_share": round(limit / us, 4) if us and limit else None})
    ends = max((s["start_us"] + s["us"] for s in steps), default=0.0)
    busy = sum(s["us"] for s in steps)
    runs = statistics.median([len(r) for r in runs_by_call])
    recorded = getattr(part.holder, "replayed", None)
    return {"name": part.name, "direction": part.direction, "sizes": part.sizes, "function": part.function, "place": part.place,
            "runs": runs, "us": round(busy, 3), "gaps_us": round(max(ends - busy, 0.0), 3) if runs == 1 else 0.0,
            "replayed": bool(recorded is not None and recorded.num_replays), "steps": steps}


def _lines(data: Mapping[str, Any], most: int) -> list[str]:
    call, totals = data["call_us"], data["totals"]
    whole = call["median"]
    lines = [f"{data['name']} on {data['device']}: a call takes {_us(whole)} (median of {data['repeats']}; {_us(call['least'])} to "
             f"{_us(call['most'])})"]
    steps = [(part, step) for part in data["parts"] for step in part["steps"]]
    for kind, title in KINDS.items():
        own = [s for _, s in steps if s["kind"] == kind]
        if own:
            limit, us = sum(s["limit_us"] for s in own), sum(s["us"] for s in own if s["limit_us"])
            share_text = f", {limit / us:.0%} of the limit of their bytes" if us and limit and kind != "copy" else ""
            lines.append(_share(title, totals[kind], whole, f"{len(own)} {'launches' if kind == 'kernel' else 'steps'}{share_text}"))
    if data["torch"]:
        lines.append(_share("torch", totals["torch"], whole, f"{sum(o['calls'] for o in data['torch'])} operators outside of the programs"))
    lines.append(_share("the rest", totals["rest"], whole, "the host: Python, launches, waiting"))
    if len(data["parts"]) > 1:
        lines.append("")
        lines += [f"  {_us(p['us']):>11}  {p['name']}{' for ' + p['sizes'] if p['sizes'] else ''}: {len(p['steps'])} steps"
                  f"{', ' + format(p['runs'], 'g') + ' runs' if p['runs'] != 1 else ''}{', ' + p['function'] if p['function'] else ''}"
                  for p in data["parts"]]
    costliest = sorted(steps, key=lambda row: -row[1]["us"])[:most]
    lines += ["", f"  {'time':>11}  {'share':>6}  {'limit':>6}  {'GB/s':>7}  what and where" + (
        f" (the {len(costliest)} costliest of {len(steps)} steps)" if len(costliest) < len(steps) else "")]
    for part, step in costliest:
        where = where_text(step["path"], step["place"])
        share_text = f"{step['limit_share']:.0%}" if step["limit_share"] else "-"
        speed = f"{step['bytes'] / step['us'] / 1e3:.0f}" if step["bytes"] and step["us"] else "-"
        inside = f"{part['name']}/" if len(data["parts"]) > 1 else ""
        lines.append(f"  {_us(step['us']):>11}  {step['us'] / whole:>6.1%}  {share_text:>6}  {speed:>7}  {inside}{step['name']}"
                     f"{'  ' + where if where else ''}")
    if data["torch"]:
        lines += ["", f"  {'host':>11}  {'device':>11}  {'calls':>5}  operators of torch outside of the programs"]
        lines += [f"  {_us(o['host_us']):>11}  {_us(o['device_us']) if o['device_us'] else '-':>11}  {o['calls']:>5}  {o['operator']}"
                  for o in data["torch"][:MOST_OPERATORS]]
    for row in data["in_torch"]:
        lines.append(f"  {row['kind']}: {row['what']}{' at ' + short_place(row['place']) if row['place'] else ''}: {row['reason']}")
    return lines


def _share(title: str, us: float, whole: float, note: str) -> str:
    return f"  {_us(us):>11}  {us / whole if whole else 0.0:>6.1%}  {title:13s}  {note}"


def _us(us: float) -> str:
    """A time for people. Units: microseconds in, with four figures in us or ms out."""
    return f"{us / 1e3:.2f} ms" if us >= 1e4 else f"{us:.1f} us"


def _trace(data: Mapping[str, Any]) -> dict[str, Any]:
    """Two tracks: when programs and torch's operators ran on the host in one call, and each program's steps from where it began."""
    events: list[dict[str, Any]] = [
        {"name": "process_name", "ph": "M", "pid": 1, "args": {"name": f"{data['name']} on {data['device']}"}},
        {"name": "thread_name", "ph": "M", "pid": 1, "tid": 1, "args": {"name": "host: programs, and torch outside of them"}},
        {"name": "thread_name", "ph": "M", "pid": 1, "tid": 2, "args": {"name": "steps, each measured by itself"}}]
    at = 0.0
    for span in data["timeline"]:
        part = data["parts"][span["part"]] if span["part"] >= 0 else None
        name = span["name"].replace("::", ".") if part is None else part["name"]
        events.append({"name": name, "cat": "torch" if part is None else "program", "ph": "X", "pid": 1, "tid": 1, "ts": span["start_us"],
                       "dur": span["us"], "args": {} if part is None else {"direction": part["direction"], "sizes": part["sizes"]}})
        if part is None:
            continue
        at = max(at, span["start_us"])  # a device works on after its launch
        for step in part["steps"]:
            events.append({"name": step["name"], "cat": step["kind"], "ph": "X", "pid": 1, "tid": 2, "ts": round(at + step["start_us"], 3),
                           "dur": step["us"], "args": {k: step[k] for k in ("bytes", "limit_us", "limit_share", "path", "place", "nodes")}})
        at += max((s["start_us"] + s["us"] for s in part["steps"]), default=0.0)
    return {"traceEvents": events, "displayTimeUnit": "ns"}
