"""Measured time of what the model picks over that of the best alternative, where records hold several timed alternatives of one thing.

    forms      the same pattern as one walk and as stages (assumed-figures-*.txt)
    fusions    tuning cases in one kernel and node by node (records of the suite `planner`)
    kernels    one pattern by different kernels (records of different commits)
    tiles      tiles of attention and of products, by their own reports (`benchmarks.attention.tiles`, `benchmarks.products.tiles`)
"""
from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import geometric_mean

from benchmarks.record import RESULTS
from benchmarks.replay.conditions import measured_parts
from benchmarks.replay.rows import Replayed
from benchmarks.tuning import CASES
from tilefuse.base.candidate import Rejected
from tilefuse.ir.dtype import F32
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.registry import template_named
from tilefuse.templates.request import Request

FORMS = RESULTS / "assumed-figures-h200-20261124.txt"
FORM = re.compile(r"(?:rows|stages) (\w+) (\d+)x(\d+) +(\w+) +[\d.]+ +([\d.]+)\n")
# Builders of `tuning.CASES` by the names of the record.
PATTERNS = {"softmax": "softmax", "layer_norm": "layer_norm", "column_sum": "column_sum"}


@dataclass(frozen=True)
class Alternative:
    """One way to compute something. Units: microseconds."""

    name: str
    predicted_us: float
    measured_us: float


@dataclass(frozen=True)
class Choice:
    """A thing with several timed alternatives."""

    name: str
    alternatives: tuple[Alternative, ...]

    @property
    def picked(self) -> Alternative:
        """The alternative of the least price; of several the first."""
        return min(self.alternatives, key=lambda a: a.predicted_us)

    @property
    def regret(self) -> float:
        """Measured time of the picked alternative over that of the fastest."""
        return self.picked.measured_us / min(a.measured_us for a in self.alternatives)


def forms(device: DeviceSpec) -> Iterator[Choice]:
    """Small patterns as a walk and as stages, each priced as it was timed."""
    alternatives: dict[tuple[str, int, int], list[Alternative]] = {}
    for pattern, rows, columns, template, measured in FORM.findall(FORMS.read_text(encoding="utf-8")):
        build, _ = CASES[PATTERNS[pattern]]
        key = pattern, int(rows), int(columns)
        program = template_named(template).propose(Request(build(key[1], key[2], F32), {}, device))
        if not isinstance(program, Rejected):
            us = measured_parts(program, device)[0]
            alternatives.setdefault(key, []).append(Alternative(template, us, float(measured)))
    for (pattern, rows, columns), timed in alternatives.items():
        if len(timed) > 1:
            yield Choice(f"{pattern} {rows}x{columns}", tuple(timed))


def fusions(rows: Sequence[Replayed]) -> Iterator[Choice]:
    """Tuning cases: the fused kernel, or the kernels of the nodes."""
    by_case: dict[str, dict[str, Replayed]] = {}
    for row in rows:
        case, _, part = row.label.partition(" @")[0].partition(" ")
        if not case.startswith("plan-"):
            by_case.setdefault(case, {})[part] = row
    for case, parts in by_case.items():
        fused = parts.pop("fused", None)
        if fused is not None and parts:
            yield Choice(case, (Alternative("fused", fused.us, fused.measured_us), Alternative(
                "apart", sum(p.us for p in parts.values()), sum(p.measured_us for p in parts.values()))))


def kernels(rows: Sequence[Replayed]) -> Iterator[Choice]:
    """Patterns that different kernels computed, timed in the same run or in different ones."""
    by_pattern: dict[str, dict[str, Replayed]] = {}
    for row in rows:
        if row.template != "call":
            by_pattern.setdefault(row.pattern, {}).setdefault(row.tiles, row)
    for timed in by_pattern.values():
        if len(timed) > 1:
            named = [(r, *r.label.partition(" @")[::2]) for r in timed.values()]
            yield Choice(named[0][1], tuple(Alternative(f"{r.template} {run}", r.us, r.measured_us) for r, _, run in named))


def text(title: str, choices: Sequence[Choice]) -> str:
    """The choices in which something faster was timed, and the geometric mean of all."""
    lines = [f"  {c.name:28s} picks {c.picked.name} {c.picked.measured_us:.2f} us (predicted {c.picked.predicted_us:.2f}), " + ", ".join(
        f"{a.name} {a.measured_us:.2f} (predicted {a.predicted_us:.2f})" for a in c.alternatives if a is not c.picked)
        for c in choices if c.regret > 1.0]
    best = len(choices) - len(lines)
    mean = geometric_mean(c.regret for c in choices) if choices else 1.0
    return "\n".join([f"{title}: the fastest in {best} of {len(choices)}, regret {mean:.3f} in geometric mean", *lines])


def report(rows: Sequence[Replayed], device: DeviceSpec) -> str:
    """All choices. rows: of a replayed record."""
    return "\n".join([text("forms", list(forms(device))), text("fusions", list(fusions(rows))), text("kernels", list(kernels(rows))),
                      "tiles: python -m benchmarks.attention.tiles, python -m benchmarks.products.tiles"])
