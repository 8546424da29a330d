"""An explanation on one screen: predicted time by cause, the costliest places, and facts on how to change each.

Reads the explanation as plain data (`docs/explanation.md`) and decides nothing. A place is all steps that run the same code: equal kernels,
or calls of one operator on values of equal types. Every remark on a place is a fact of the plan: the resource that limits its predicted
time, a priced other choice, the reason of a rejected candidate, or of a fallback.
"""
from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

MOST_PLACES = 5
MOST_FACTS = 3
MOST_NAMES = 3

# Descriptions of the figures of a prediction that are times.
CAUSE_BY_FIGURE = {
    "global time": "memory", "L2 time": "L2 cache", "shared time": "shared memory", "scattered time": "scattered additions",
    "time of partial sectors": "partial sectors", "time to start blocks": "starting blocks", "arithmetic time": "arithmetic",
    "latency time": "latency of loads", "time of the last block": "the last block",
}
CAUSE_BY_BOUND = {"bandwidth": "memory", "flops": "arithmetic", "launch": "launches"}
AT_FULL_BANDWIDTH = "memory at full bandwidth"
BELOW_FULL_BANDWIDTH = "memory below full bandwidth"
LAUNCHES = "launches"
# Times in an explanation are rounded to a tenth of a nanosecond: two sums may differ by this much.
ROUNDED_US = 1e-3
# Operators that move no data of their own inside a kernel: a title omits them where it has others.
LAYOUT_OPERATORS = frozenset({"view", "t", "transpose", "permute", "reshape", "expand", "unsqueeze", "squeeze", "contiguous", "unsafe_view",
                              "Reshape", "Transpose", "Unsqueeze", "Squeeze", "Expand", "Flatten", "Identity"})


@dataclass(frozen=True, slots=True)
class Step:
    """One kernel or call of a program.

    label      its name in the plan: "k2", "call 3"; with the number of its part where a model runs in parts: "k2 of part 1"
    form       equal for steps that run the same code
    title      its operators in the words of the user's model; path: the module they belong to, "" where nothing tells
    lines      of the user's file, "digits.py:12-14", for a model without modules (arrays, scripts)
    least      nothing predicts it: `us` counts launch and bytes
    causes     (cause, us) of the parts of its predicted time
    values     that it computes; with the number of their part, as in `label`
    """

    label: str
    kind: str
    form: str
    title: str
    path: str
    us: float
    num_bytes: int
    limit_us: float
    least: bool
    record: Mapping[str, Any]
    causes: tuple[tuple[str, float], ...]
    values: frozenset[str]
    lines: str = ""


@dataclass(slots=True)
class Place:
    """Steps of one form, in order of execution; `share` of the program's predicted time; `facts` give the reasons for it."""

    steps: list[Step]
    share: float = 0.0
    facts: list[str] = field(default_factory=list)

    @property
    def us(self) -> float:
        """Predicted time of all its steps. Units: microseconds."""
        return sum(s.us for s in self.steps)


def parts_of(explanation: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """The explanations of the programs behind one: its parts, or itself."""
    return explanation.get("parts") or [explanation]


def steps_of(explanation: Mapping[str, Any]) -> list[Step]:
    """Every kernel and call in order of execution."""
    parts = parts_of(explanation)
    steps: list[Step] = []
    for number, part in enumerate(parts, 1):
        behind = _behind(number, len(parts))
        nodes = {n["name"]: n for n in (part.get("graph") or {"nodes": ()})["nodes"]}
        types = {v["name"]: v.get("type", "") for v in (*(part.get("graph") or {"inputs": ()})["inputs"], *nodes.values())}
        order = part.get("steps") or [[name, n] for name in ("kernels", "library") for n in range(len(part.get(name, ())))]
        for name, place in order:
            if name == "kernels":
                steps.append(_kernel(part["kernels"][place], nodes, behind))
            elif name == "library":
                steps.append(_call(part["library"][place], place, nodes, types, behind))
    return steps


def _behind(number: int, parts: int) -> str:
    """Suffix of the names of one part: values of two parts may have equal names."""
    return f" of part {number}" if parts > 1 else ""


def _kernel(record: Mapping[str, Any], nodes: Mapping[str, Mapping[str, Any]], behind: str) -> Step:
    names = list(record.get("nodes", ()))
    return Step(f"{record.get('step', record.get('name'))}{behind}", "kernel", str(record.get("name")),
                str(record.get("title") or _title(names, record, nodes)),
                _path(names, nodes), float(record.get("predicted_us") or 0.0),
                int(record.get("bytes_read", 0)) + int(record.get("bytes_written", 0)), float(record.get("limit_us", 0.0)), False, record,
                tuple(_causes(record)), frozenset(n + behind for n in names), _lines(names, nodes))


def _call(record: Mapping[str, Any], number: int, nodes: Mapping[str, Mapping[str, Any]], types: Mapping[str, str], behind: str) -> Step:
    operator = short_operator(str(record.get("operator")))
    results = [str(value) for _, value in record.get("results", ())]
    form = " ".join((operator, *(types.get(v, "") for v in (*record.get("operands", ()), *results))))
    us = float(record.get("predicted_us") or 0.0)
    least = bool(record.get("at_least"))
    return Step(f"call {number}{behind}", "call", form, operator, _path(results, nodes), us, int(record.get("bytes", 0)), 0.0, least,
                record, ((f"calls of {operator}", us),) if us else (), frozenset(r + behind for r in results), _lines(results, nodes))


def short_operator(operator: str) -> str:
    """An operator's name without the namespace and overload that say nothing: "aten.add.Tensor" is "add"."""
    words = operator.removeprefix("aten.").split(".")
    return words[0].lstrip("_") or operator


def _title(names: Sequence[str], record: Mapping[str, Any], nodes: Mapping[str, Mapping[str, Any]]) -> str:
    """The operators of a kernel in order, equal neighbours once; the values that it writes where no operator is known."""
    operators = [short_operator(str(nodes[n].get("operator", ""))) for n in names if n in nodes and nodes[n].get("operator")]
    operators = [word for word in operators if word not in LAYOUT_OPERATORS] or operators
    words = [word for number, word in enumerate(operators) if number == 0 or word != operators[number - 1]]
    return " + ".join(words) if words else ", ".join(record.get("writes", ()) or names)


def _path(names: Sequence[str], nodes: Mapping[str, Mapping[str, Any]]) -> str:
    """The module that contains all these nodes: the common prefix of their paths."""
    paths = [str(nodes[n].get("path", "")).split(".") for n in names if n in nodes and nodes[n].get("path")]
    common: list[str] = []
    for words in zip(*paths, strict=False):
        if len(set(words)) > 1:
            break
        common.append(words[0])
    return ".".join(common)


def _lines(names: Sequence[str], nodes: Mapping[str, Mapping[str, Any]]) -> str:
    """The lines of one file in which these nodes were written; "" for nodes of several files, or without lines."""
    places = [str(nodes[n].get("place", "")).rpartition(":") for n in names if n in nodes and nodes[n].get("place")]
    files = {file for file, _, _ in places}
    numbers = [int(line) for _, _, line in places if line.isdecimal()]
    if len(files) != 1 or len(numbers) < len(places):
        return ""
    first, last = min(numbers), max(numbers)
    return f"{os.path.basename(files.pop())}:{first}" + (f"-{last}" if last > first else "")


def _causes(record: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Parts of a kernel's predicted time. Units: microseconds; they add up to the prediction."""
    predicted = float(record.get("predicted_us") or 0.0)
    figures: Mapping[str, float] = record.get("figures") or {}
    bound = str(record.get("bound_by", ""))
    launch = min(float(figures.get("launch", 0.0)), predicted)
    rest = predicted - launch
    if launch:
        yield LAUNCHES, launch
    if not rest:
        return
    cause = CAUSE_BY_BOUND.get(bound, bound or "kernels")
    times = {n: float(figures[n]) for n in CAUSE_BY_FIGURE if n in figures}
    if times and bound != "flops":
        # The limiting figure equals the rest of the time; a staged kernel's arithmetic includes its traffic.
        cause = CAUSE_BY_FIGURE[min(times, key=lambda n: abs(times[n] - rest))]
    if cause != "memory":
        yield cause, rest
        return
    full = min(float(record.get("limit_us", 0.0)), rest)
    if rest - full < ROUNDED_US:
        full = rest
    if full:
        yield AT_FULL_BANDWIDTH, full
    if rest > full:
        yield BELOW_FULL_BANDWIDTH, rest - full


def times_by_cause(steps: Sequence[Step]) -> dict[str, tuple[float, int, bool]]:
    """(us, number of steps, whether it is only a lower bound) by cause, the longest first. Units: microseconds."""
    time_by_cause: dict[str, tuple[float, int, bool]] = {}
    for step in steps:
        for cause, us in step.causes:
            before = time_by_cause.get(cause, (0.0, 0, False))
            time_by_cause[cause] = (before[0] + us, before[1] + 1, before[2] or step.least)
    return dict(sorted(time_by_cause.items(), key=lambda pair: -pair[1][0]))


def places_of(explanation: Mapping[str, Any], answers: Sequence[Mapping[str, Any]] = (), most: int = MOST_PLACES) -> list[Place]:
    """The costliest places, with facts. `answers`: priced other choices, as `driver.explain.why` gives them."""
    steps = steps_of(explanation)
    by_form: dict[tuple[str, str], Place] = {}
    for step in steps:
        by_form.setdefault((step.kind, step.form), Place([])).steps.append(step)
    total = sum(s.us for s in steps)
    places = sorted(by_form.values(), key=lambda p: -p.us)[:most]
    home = {value: step for step in steps for value in step.values}
    for place in places:
        place.share = place.us / total if total else 0.0
        place.facts = list(_facts(place, explanation, answers, home))
    return [p for p in places if p.us]


def _facts(place: Place, explanation: Mapping[str, Any], answers: Sequence[Mapping[str, Any]], home: Mapping[str, Step]) -> Iterator[str]:
    step = place.steps[0]
    yield (f"each {time_text(step.us)}, " if len(place.steps) > 1 else "") + _bound_text(step)
    for item in explanation.get("fallbacks", ()):
        if step.kind == "call" and short_operator(str(item.get("operator"))) == step.title:
            yield f"runs in the framework: {item.get('reason')}"
            break
    values = frozenset[str]().union(*(s.values for s in place.steps))
    own = [a for a in answers if values & {a["first"], a["second"]} and a["decided_by"] not in ("view", "input")]
    yield from _other_choices(own, values, home)
    if not own:
        parts = parts_of(explanation)
        pairs = [(f"{r.get('first')}{behind}", f"{r.get('second')}{behind}", r) for number, part in enumerate(parts, 1)
                 for behind in (_behind(number, len(parts)),) for r in part.get("rejected", ())]
        tried = [pair for pair in pairs if values & {*pair[:2]}]
        for first, second, r in tried[:1]:
            candidates_text = f" ({len(tried)} such candidates)" if len(tried) > 1 else ""
            yield f"not in one kernel with {_of(second if first in values else first, home)}: {r['reason']}: {r['detail']}{candidates_text}"


def _other_choices(answers: Sequence[Mapping[str, Any]], values: frozenset[str], home: Mapping[str, Step]) -> Iterator[str]:
    """Priced other choices by their verdict: faster ones, costlier ones, and those that no kernel can compute."""
    by_verdict: dict[str, list[str]] = {}
    for answer in answers:
        first, second = str(answer["first"]), str(answer["second"])
        other = second if first in values else first
        choice = f"cut apart before %{second}" if answer["together"] else f"one kernel with {_of(other, home)}"
        if answer["other_us"] is None:
            by_verdict.setdefault(f"not possible, {answer['no_other']}: ", []).append(choice)
            continue
        change = answer["other_us"] - answer["chosen_us"]
        verdict = "costs more: " if change >= 0 else "faster, and not among the candidates that were tried: "
        by_verdict.setdefault(verdict, []).append(f"{choice} {change:+.2f} us")
    for verdict, choices in sorted(by_verdict.items(), key=lambda pair: not pair[0].startswith("faster")):
        distinct = list(dict.fromkeys(choices))
        yield verdict + "; ".join(distinct[:MOST_FACTS]) + (f"; {len(distinct) - MOST_FACTS} more" if len(distinct) > MOST_FACTS else "")


def _bound_text(step: Step) -> str:
    """The resource that limits a step, with the numbers that show it."""
    record = step.record
    if step.kind == "call":
        moved = f"moves {bytes_text(step.num_bytes)}" if step.num_bytes else "its bytes are not known"
        return f"a library call, {moved}" + ("; nothing predicts it: launch and bytes are counted" if step.least else "")
    figures: Mapping[str, float] = record.get("figures") or {}
    cause, us = max(step.causes, key=lambda c: c[1], default=("nothing", 0.0))
    least = f"{bytes_text(step.num_bytes)} need {step.limit_us:.2f} us at full bandwidth"
    match cause:
        case "memory at full bandwidth":
            return f"bound by memory: {least}, so fewer bytes alone make it faster"
        case "launches":
            return f"bound by its launch ({us:.2f} us): {least}"
    name = "memory" if cause == BELOW_FULL_BANDWIDTH else cause
    busy = _busy(record, figures, cause != "arithmetic")
    spent = us + (step.limit_us if cause == BELOW_FULL_BANDWIDTH else 0.0)
    moved = f", {bytes_text(figures['L2 bytes'])} through it" if cause == "L2 cache" and "L2 bytes" in figures else ""
    return f"bound by {name} ({spent:.2f} us{moved}): {least}{busy}"


def _busy(record: Mapping[str, Any], figures: Mapping[str, float], moving: bool) -> str:
    """Blocks of a kernel; where memory latency limits it, also its bytes in flight."""
    launch = record.get("launch") or {}
    if "busy multiprocessors" not in figures or int(launch.get("num_threads", 1)) == 1:  # blocks of the host have no occupancy
        return ""
    share = float(figures.get("bandwidth share", 1.0))
    in_flight = f", {share:.0%} of the bytes in flight that fill the memory" if share < 1 and moving else ""
    return (f"; {counted(int(launch.get('num_blocks', 0)), 'block')} of {counted(int(launch.get('num_threads', 0)), 'thread')}, "
            f"occupancy {float(figures.get('occupancy', 0.0)):.0%}{in_flight}")


def _of(value: str, home: Mapping[str, Step]) -> str:
    """A value's step with its operators, or the value."""
    return f"{home[value].label} ({cut(home[value].title, 40)})" if value in home else f"%{value}"


def summary_lines(explanation: Mapping[str, Any], answers: Sequence[Mapping[str, Any]] = (), name: str = "") -> list[str]:
    """Head, time by cause, the costliest places. Lines that belong to the one before begin with more spaces.

    name: the model's, where it differs from its graph's.
    """
    return [*_head(explanation, steps_of(explanation), name), *places_and_causes(explanation, answers)]


def places_and_causes(explanation: Mapping[str, Any], answers: Sequence[Mapping[str, Any]] = ()) -> list[str]:
    """Time by cause, and the costliest places; none where nothing is predicted."""
    lines: list[str] = []
    causes = times_by_cause(steps_of(explanation))
    total = sum(us for us, _, _ in causes.values())
    if total:
        lines.append("time by cause, predicted")
        for cause, (cause_us, count, least) in causes.items():
            time = f"{'at least ' if least else ''}{time_text(cause_us)}"
            lines.append(f"  {time:>17}  {cause_us / total:>4.0%}  {cause} ({counted(count, 'step')})")
        lines.append("costliest places")
    for number, place in enumerate(places_of(explanation, answers), 1):
        lines += _place_lines(number, place)
    return lines


def _head(explanation: Mapping[str, Any], steps: Sequence[Step], name: str) -> Iterator[str]:
    parts = parts_of(explanation)
    totals = [p["totals"] for p in parts if p.get("totals")]
    where = f"{name or explanation.get('name', 'program')} on {explanation.get('device', '?')}"
    where += f", in {counted(len(parts), 'part')}" if explanation.get("parts") else ""
    us = sum(s.us for s in steps)
    unfused_us = sum(t["unfused_us"] for t in totals)
    took = f": {time_text(us)} a call predicted" + (f", unfused {time_text(unfused_us)}" if unfused_us else "") if us else ""
    yield where + took
    yield f"  {counts_text(explanation, steps)}"
    yield f"  {moved_text(explanation, steps)}"


def counts_text(explanation: Mapping[str, Any], steps: Sequence[Step]) -> str:
    """How many kernels, calls and fallbacks, and how many kernels without fusion."""
    kernels = [s for s in steps if s.kind == "kernel"]
    forms = len({s.form for s in kernels})
    unfused = explanation.get("unfused_kernels")
    remarks = ([f"{forms} distinct"] if forms < len(kernels) else []) + ([f"{unfused} without fusion"] if unfused else [])
    counts = [counted(len(kernels), "kernel") + (f" ({', '.join(remarks)})" if remarks else "")]
    calls = [s for s in steps if s.kind == "call"]
    counts.append(counted(len(calls), "library call"))
    least = sum(s.least for s in calls)
    if least:
        counts.append(f"{least} without a prediction")
    if explanation.get("fallbacks"):
        counts.append(f"{counted(len(explanation['fallbacks']), 'fallback')} to the framework")
    if any((part.get("plan") or {}).get("start") for part in parts_of(explanation)):
        counts.append("planned from an earlier plan of other sizes")
    return ", ".join(counts)


def moved_text(explanation: Mapping[str, Any], steps: Sequence[Step]) -> str:
    """Bytes that all steps move, without fusion, and their time at full bandwidth as a share of the predicted time."""
    parts = parts_of(explanation)
    totals = [p["totals"] for p in parts if p.get("totals")]
    us = sum(s.us for s in steps)
    moved = sum(t["bytes"] for t in totals) if totals else sum(s.num_bytes for s in steps)
    unfused = sum(t["unfused_bytes"] for t in totals) if totals else explanation.get("unfused_bytes", 0)
    speed = float((parts[0].get("machine") or {}).get("global_bytes_per_s") or 0.0)
    limit_us = moved / speed * 1e6 if speed else 0.0
    share = f", {limit_us / us:.0%} of the predicted time" if us else ""
    least_us = f"; at full bandwidth {time_text(limit_us)}{share}" if limit_us else ""
    return f"{bytes_text(moved)} moved" + (f" ({bytes_text(unfused)} without fusion)" if unfused else "") + least_us


def _place_lines(number: int, place: Place) -> Iterator[str]:
    first = place.steps[0]
    least = "at least " if first.least else ""
    several = f"{len(place.steps)} x " if len(place.steps) > 1 else ""
    path = _common_path([s.path for s in place.steps])
    where = f", in {path}" if path else _first_names([s.lines for s in place.steps], ", at ")
    labels = ", ".join(s.label for s in place.steps[:MOST_NAMES]) + (", ..." if len(place.steps) > MOST_NAMES else "")
    head = f"  {number}. {least}{time_text(place.us)}, {place.share:.0%}: {several}{cut(first.title, 90)}"
    yield f"{head} ({labels}" + f"{where})"
    for fact in place.facts:
        yield f"     - {fact}"


def _first_names(names: Sequence[str], before: str = "") -> str:
    """The first of several names, each once, and how many more there are; "" for none."""
    known = list(dict.fromkeys(filter(None, names)))
    others = f" and {len(known) - MOST_NAMES} more" if len(known) > MOST_NAMES else ""
    return before * bool(known) + ", ".join(known[:MOST_NAMES]) + others


def _common_path(paths: Sequence[str]) -> str:
    """Modules of several steps as one text: "layers.*.norm"; the first few and their number where they differ otherwise."""
    distinct = list(dict.fromkeys(p for p in paths if p))
    words = [p.split(".") for p in distinct]
    if len(distinct) > 1 and len({len(w) for w in words}) == 1:
        merged = [each[0] if len(set(each)) == 1 else "*" for each in zip(*words, strict=True)]
        if merged.count("*") < len(merged):
            return ".".join(merged)
    return _first_names(distinct)


def bytes_text(num_bytes: float) -> str:
    """A byte count for people. Units: bytes; the prefix is binary."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(num_bytes) < 1024 or unit == "GiB":
            return f"{num_bytes:.0f} {unit}" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1024
    return f"{num_bytes:.1f} GiB"


def time_text(us: float) -> str:
    """A time for people, four figures. Units: microseconds; printed in us, ms or s, with few digits before the point."""
    value, unit = next(((us / scale, unit) for scale, unit in ((1e6, "s"), (1e3, "ms")) if us >= scale), (us, "us"))
    return f"{value:.{1 if value >= 100 else 2}f} {unit}"


def counted(count: int, noun: str) -> str:
    """A count with its noun: "1 kernel", "2 kernels"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def cut(text: str, most: int) -> str:
    """A text of at most this many characters; a longer one ends in three points."""
    return text if len(text) <= most else f"{text[:most - 3]}..."
