"""The explanation of a compiled object with all its parts: a summary of one screen, then each program's own."""
from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from tilefuse.base.printable import one_line
from tilefuse.inspection.places import short_place, where_text
from tilefuse.inspection.subject import InTorch, Part, Subject
from tilefuse.runtime.summary import counted, counts_text, cut, moved_text, places_and_causes, steps_of, time_text

# Rows of the summary; what is beyond is counted.
MOST_PARTS, MOST_TOLD = 12, 8
# Characters of torch's advice; the data has all of it.
MOST_ADVICE = 300
TITLES = {"graph break": "graph breaks", "graph": "graphs that torch runs", "frame": "functions that torch did not compile",
          "size": "not compiled yet: torch runs these", "operator": "operators that run in the framework"}


def explanation_text(subject: Subject) -> str:
    """The whole explanation as lines."""
    parts = [(p, p.data()) for p in subject.parts]
    lines = summary_lines(subject, parts)
    for part, _ in parts:
        lines += ["", f"== {part.title}{f', {part.direction}' if part.direction else ''}{f', {part.function}' if part.function else ''}"]
        lines += str(part.explain()).splitlines()
    return "\n".join(map(one_line, lines)) + "\n"


def explanation_json(subject: Subject) -> dict[str, Any]:
    """The explanations of all parts as one (docs/explanation.md), with the data of the summary: `in_torch`, `recompiled`, `programs`."""
    from tilefuse.driver.explain.explain import joined_explanations

    parts = [p.data() for p in subject.parts]
    joined = joined_explanations(subject.name, parts[0]["device"] if parts else "", parts, (), subject.notes)
    return joined | {
        "kind": subject.kind,
        "programs": [{"name": p.name, "direction": p.direction, "sizes": p.sizes, "state": p.state, "function": p.function,
                      "place": p.place, "calls": p.calls} for p in subject.parts],
        "in_torch": [{"kind": i.kind, "what": i.what, "reason": i.reason, "place": i.place, "path": i.path, "advice": i.advice,
                      "part": i.part} for i in subject.in_torch],
        "recompiled": [{"function": function, "reason": reason} for function, reason in subject.recompiled]}


def summary_lines(subject: Subject, parts: Sequence[tuple[Part, Mapping[str, Any]]]) -> list[str]:
    """Number of programs and launches, predicted time, operators in torch with reasons, the costliest places."""
    device = parts[0][1]["device"] if parts else "?"
    joined = _joined(subject, parts)
    steps = steps_of(joined)
    lines = [f"{subject.name} ({subject.kind}) on {device}: {counted(len(parts), 'program')}, {counts_text(joined, steps)}"]
    totals = [d["totals"] for _, d in parts if d.get("totals")]
    if totals:
        us, unfused = sum(t["us"] for t in totals), sum(t["unfused_us"] for t in totals)
        lines.append(f"  predicted {time_text(us)} for all of them (one kernel an operator: {time_text(unfused)})")
    if steps:
        lines.append(f"  {moved_text(joined, steps)}")
    kinds = Counter(i.kind for i in subject.in_torch)
    counts = [counted(kinds[kind], kind) for kind in TITLES if kinds[kind]]
    if counts:
        lines.append(f"  in torch: {', '.join(counts)}")
    lines += _part_lines(parts)
    for kind, title in TITLES.items():
        of_kind = [i for i in subject.in_torch if i.kind == kind]
        if of_kind:
            lines += ["", title] + [line for i in of_kind[:MOST_TOLD] for line in _told(i)]
            lines += [f"  and {len(of_kind) - MOST_TOLD} more"] if len(of_kind) > MOST_TOLD else []
    if subject.recompiled:
        lines += ["", "compiled again, because what was compiled before did not fit"]
        lines += [f"  {function}: {reason.splitlines()[0]}" for function, reason in subject.recompiled[:MOST_TOLD]]
    if subject.notes:
        lines += ["", *(f"note: {note}" for note in subject.notes)]
    return lines + _costliest(joined)


def _part_lines(parts: Sequence[tuple[Part, Mapping[str, Any]]]) -> list[str]:
    if len(parts) < 2 and not any(p.function for p, _ in parts):
        return []
    lines = ["", f"  part  {'kernels':>7}  {'calls':>5}  {'predicted':>12}  {'MiB moved':>9}  {'ran':>5}  program"]
    for number, (part, data) in enumerate(parts[:MOST_PARTS], 1):
        totals = data.get("totals") or {}
        state = f" ({part.state})" if part.state != "compiled" else ""
        where = f": {part.function}" if part.function else ""
        lines.append(f"  {number:>4}  {len(data['kernels']):>7}  {len(data['library']):>5}  {totals.get('us', 0.0):>9.1f} us  "
                     f"{totals.get('bytes', data['bytes']) / 2**20:>9.2f}  {part.calls:>5}  {part.title}{state}{where}"
                     f"{' at ' + short_place(part.place) if part.place else ''}")
    return lines + ([f"  and {len(parts) - MOST_PARTS} more"] if len(parts) > MOST_PARTS else [])


def _told(item: InTorch) -> list[str]:
    """One item that runs in torch, with its reason, place and remedy."""
    where = where_text(item.path, item.place)
    lines = [f"  {item.what}{f' at {where}' if where else ''}"]
    if item.reason and item.reason != item.what:
        lines.append(f"    {item.reason}")
    return lines + ([f"    {cut(item.advice, MOST_ADVICE)}"] if item.advice else [])


def _joined(subject: Subject, parts: Sequence[tuple[Part, Mapping[str, Any]]]) -> Mapping[str, Any]:
    """The explanations of all parts as one."""
    from tilefuse.driver.explain.explain import joined_explanations

    explanations = [data for _, data in parts]
    return explanations[0] if len(explanations) == 1 else joined_explanations(subject.name, "", explanations, (), ())


def _costliest(joined: Mapping[str, Any]) -> list[str]:
    """Predicted time by cause, and the costliest places with their limiting resources."""
    lines = places_and_causes(joined)
    return ["", *lines, "(tilefuse.profile measures)"] if lines else []
