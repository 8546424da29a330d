"""The explanation of a program for a person at a terminal: a summary of one screen, then one line a fact, each with the word to grep for.

    kernel k2 ...      call 3 ...      copy %a ...      not fused %a + %b ...      fallback aten.foo ...      note ...

Reads the explanation as plain data (the same that `--json` prints); decides nothing.
"""
from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tilefuse.runtime.explanation import search_text
from tilefuse.runtime.stage_tree import task_lines, tree_lines
from tilefuse.runtime.summary import Step, bytes_text, counted, parts_of, steps_of, summary_lines, time_text

__all__ = ["bytes_text", "counted", "explanation_lines", "summary_lines", "time_text"]

SHOWN_REJECTED = 3
# Steps that a terminal shows by default: with the summary they fill about one screen more.
SHOWN_STEPS = 20


def explanation_lines(explanation: Mapping[str, Any], *, full: bool = False, most_steps: int | None = None) -> Iterator[str]:
    """Everything behind the summary, line by line. `full`: also templates, figures and every rejected candidate that was kept.

    most_steps: show the costliest so many kernels and calls, in order of execution; None for all.
    """
    yield from step_lines(explanation, most_steps)
    if full:
        yield from schedule_lines(explanation)
        yield from figure_lines(explanation)
    for part in parts_of(explanation):
        if summary := search_text(part.get("plan", {})):
            yield summary
    yield from rejected_lines(explanation, full)
    for item in explanation.get("fallbacks", ()):
        operator, reason = (item.get("operator"), item.get("reason")) if isinstance(item, Mapping) else (item[0], item[1])
        yield f"fallback {operator}: {reason}"
    for note in explanation.get("notes", ()):
        yield f"note: {note}"


def step_lines(explanation: Mapping[str, Any], most: int | None) -> Iterator[str]:
    """One line a kernel, call and copy, in order of execution: time, limit, bytes, operators, then everything by its name."""
    steps = steps_of(explanation)
    shown_steps = steps if most is None else sorted(steps, key=lambda s: -s.us)[:most]
    shown_ids = {id(s) for s in shown_steps}
    if steps:
        yield f"{counted(len(steps), 'step')}" + (f", the {len(shown_steps)} costliest" if len(shown_steps) < len(steps) else "")
    for step in steps:
        if id(step) in shown_ids:
            yield _step_line(step)
    if len(shown_steps) < len(steps):
        yield f"{len(steps) - len(shown_steps)} steps more: --full, or a pipe, has them all"
    for copy in explanation.get("copies", ()):
        yield f"copy %{copy['source']} to %{copy['target']}"


def _step_line(step: Step) -> str:
    record = step.record
    where = f", in {step.path}" if step.path else ""
    least = "at least " if step.least else ""
    head = f"{step.label if step.kind == 'call' else f'kernel {step.label}'}"
    if step.kind == "call":
        results = ", ".join(f"%{value}" for _, value in record.get("results", ()))
        operands = ", ".join(f"%{value}" for value in record.get("operands", ()))
        measured = ", measured" if record.get("time_source") == "measurement" else ""
        return (f"{head}: {least}{time_text(step.us)}{measured}, {bytes_text(step.num_bytes)}; {step.title}{where}; gives {results}; "
                f"takes {operands}; operator {record.get('operator')}")
    levels = Counter(str(edge.get("level")) for edge in record.get("edges", ()))
    inside = ", ".join(f"{count} {level}" for level, count in levels.items())
    return (f"{head}: {time_text(step.us)}, limit {step.limit_us:.2f} us, {bytes_text(record.get('bytes_read', 0))} read, "
            f"{bytes_text(record.get('bytes_written', 0))} written; {step.title}{where}; {record.get('template', 'kernel')}, "
            f"{_decided_by(record)}" + (f"; levels of edges: {inside}" if inside else "")
            + f"; computes {', '.join('%' + n for n in record.get('nodes', ()))}; source {record.get('name')}")


def _decided_by(kernel: Mapping[str, Any]) -> str:
    """Limit of a kernel's predicted time; "measured" for a time that is no prediction."""
    return "measured" if kernel.get("bound_by") == "measurement" else f"bound by {kernel.get('bound_by', '?')}"


def schedule_lines(explanation: Mapping[str, Any]) -> Iterator[str]:
    """The template of each distinct kernel, in the notation that --template reads, shared memory of its blocks, its tree of stages."""
    by_form = {s.form: s for s in steps_of(explanation) if s.record.get("notation")}
    for step in by_form.values():
        shared = shared_text(step.record.get("launch", {}))
        yield f"template {step.label}: {step.record['notation']}" + (f" (shared memory of a block: {shared})" if shared else "")
        if step.record.get("tree"):
            yield from (f"stages {step.label}: {line}" for line in tree_lines(step.record["tree"]))
        yield from (f"tasks {step.label}: {line}" for line in task_lines(step.record.get("parameters", {})))


def shared_text(launch: Mapping[str, Any]) -> str:
    """Shared memory allocated for a block's values, and the memory that they would need without sharing."""
    allocated = int(launch.get("shared_bytes", 0))
    if not allocated:
        return ""
    return f"{bytes_text(allocated)} allocated, {bytes_text(int(launch.get('shared_requested_bytes', allocated)))} requested"


def figure_lines(explanation: Mapping[str, Any]) -> Iterator[str]:
    """Parts of each distinct kernel's predicted time; where each number comes from stands once, behind them."""
    units = {name: figure["unit"] for name, figure in explanation.get("figures", {}).items()}
    by_form = {s.form: s for s in steps_of(explanation) if s.record.get("figures")}
    for step in by_form.values():
        rows = (f"{name} {value:.6g}" + (f" {units[name]}" if units.get(name, "1") != "1" else "")
                for name, value in step.record["figures"].items())
        yield f"figures {step.label}: {', '.join(rows)}"
    if by_form:
        yield from (f"origin of {name}: {figure['origin']}" for name, figure in explanation.get("figures", {}).items())


def rejected_lines(explanation: Mapping[str, Any], full: bool) -> Iterator[str]:
    """Pairs that were not fused with the reason and the numbers that decided it, by reason; by default only the first few of each."""
    rejected: Sequence[Mapping[str, Any]] = explanation.get("rejected", ())
    if not rejected:
        return
    count = int(explanation.get("num_rejected", len(rejected)))
    by_reason: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for item in rejected:
        by_reason[str(item.get("reason"))].append(item)
    counts = ", ".join(f"{len(items)} {reason}" for reason, items in sorted(by_reason.items(), key=lambda pair: -len(pair[1])))
    kept_text = f", of which {len(rejected)} are kept" if len(rejected) < count else ""
    yield f"not fused: {counted(count, 'candidate')}{kept_text} ({counts})"
    for reason, items in sorted(by_reason.items(), key=lambda pair: -len(pair[1])):
        for item in items if full else items[:SHOWN_REJECTED]:
            yield f"not fused %{item.get('first', '?')} + %{item.get('second', '?')}: {reason}: {item.get('detail', '')}"
        if not full and len(items) > SHOWN_REJECTED:
            yield f"not fused, {len(items) - SHOWN_REJECTED} more because of {reason}: --full has them"
