"""Rows of a record priced by today's model: predicted beside measured time, with the parts of the prediction."""
from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.replay.conditions import measured_parts
from benchmarks.replay.kept import pattern_of, program_of
from tilefuse.base.candidate import Rejected
from tilefuse.domain.roofline import Parts, busy_us_by_unit, price_work
from tilefuse.domain.tile import TileProgram
from tilefuse.domain.work import Work
from tilefuse.plan.price.products import library_work
from tilefuse.target.device import DeviceSpec

HALVES = ("fit", "check")

Case = Mapping[str, Any]


@dataclass(frozen=True)
class Replayed:
    """One kernel or call of a record. half: `half_of` the case. pattern, tiles: its graph with the
    strides, and its notation. was_us: predicted when it was
    measured; us: by today's model; parts: of that price, under the condition that weighs most. Units: microseconds."""

    label: str
    template: str
    half: str
    pattern: str
    tiles: str
    was_us: float
    measured_us: float
    us: float
    work: Work
    parts: Parts

    @property
    def ratio(self) -> float:
        """Predicted over measured time."""
        return self.us / self.measured_us


def half_of(case: Case) -> str:
    """The half that a kernel counts to, by its template, tiles and launch: kernels that are alike count to one."""
    kernel = case["kernel"]
    tiles = re.findall(r"\[[^\]]*\]|\w+=\w+", kernel.get("notation", kernel["graph"]))
    return HALVES[zlib.crc32(" ".join([case["template"], *tiles]).encode()) % len(HALVES)]


def kernels(cases: Mapping[str, Case], device: DeviceSpec) -> Iterator[tuple[str, TileProgram | Work | Rejected]]:
    """(label, program) of every row that holds a text; the library's work for calls."""
    for label, row in cases.items():
        if row.get("template") == "call" and "kernel" in row:
            graph, layouts = pattern_of(row["kernel"])
            yield label, library_work(graph.nodes[-1], graph, device, layouts)
        elif "kernel" in row:
            yield label, program_of(row["kernel"], device)


def replayed(cases: Mapping[str, Case], device: DeviceSpec) -> tuple[list[Replayed], dict[str, Rejected]]:
    """The rows of a record's cases by today's price, and those that cannot be replayed, with the reason."""
    rows: list[Replayed] = []
    refused: dict[str, Rejected] = {}
    for label, kernel in kernels(cases, device):
        if isinstance(kernel, Rejected):
            refused[label] = kernel
            continue
        case = cases[label]
        if isinstance(kernel, Work):
            parts = price_work(kernel, device)
            us, work = parts.us, kernel
        else:
            us, parts, work = measured_parts(kernel, device)
        text = case["kernel"]
        rows.append(Replayed(label, case["template"], half_of(case), f"{text['graph']}{text['layouts']}", text.get("notation", ""),
                             case["predicted_us"], case["measured_us"], us, work, parts))
    return rows, refused


def terms_of(row: Replayed, device: DeviceSpec) -> tuple[tuple[str, float], ...]:
    """Parts of a predicted time with their names, the longest first. Units: microseconds."""
    parts = row.parts
    named = [("launch", parts.launch_us), ("global", parts.global_us), ("L2", parts.l2_us), ("shared", parts.shared_us),
             ("scattered", parts.scattered_us), ("sectors", parts.partial_us), ("starts", parts.started_us),
             ("stages" if row.work.blocks else "arithmetic", parts.arithmetic_us), ("chain", parts.chain_us), ("serial", parts.serial_us),
             ("end", parts.ending_us)]
    named += [(f"busy {unit}", us) for unit, us in busy_us_by_unit(row.work, device).items()]
    return tuple(sorted(((n, us) for n, us in named if us > 0), key=lambda pair: -pair[1]))


def of_half(rows: Iterable[Replayed], half: str) -> list[Replayed]:
    """The rows of one half, or all for an empty name."""
    return [r for r in rows if not half or r.half == half]
