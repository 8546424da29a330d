"""A record of products against the targets: bare ones by the best peer, few rows by a copy's speed, fused ones by their products alone."""
from __future__ import annotations

import statistics
from typing import Any

from benchmarks.products.grouped import GROUPED
from benchmarks.products.listing import FUSED
from benchmarks.record import Record
from benchmarks.report import OURS, geometric_mean, named, rows

# Geometric means that are asked: of bare products against the best peer, of fused ones against torch.compile.
BARE_MEAN = 1.0
FUSED_MEAN = 1.25
# The device that times in microseconds are asked on.
DEVICE = "H200"

Row = dict[str, Any]


def verdict(record: Record) -> str:
    """One line a target: the figure, the figure asked, and the cases that miss it."""
    listed = rows(record, ["eager", "inductor", "jax"])
    ours = [row for row in listed if row[OURS]]
    missing = [row["case"] for row, entry in zip(listed, record.cases.values()) if OURS in entry["peers"] and not row[OURS]]
    bare = [row for row in ours if row["family"] not in (FUSED, GROUPED)]
    fused = [row for row in ours if row["family"] == FUSED]
    lines = [f"tilefuse ran {len(ours)} of {len(ours) + len(missing)} cases"]
    grouped = [row for row in ours if row["family"] == GROUPED]
    lines += [*_bare(bare), *_reading(ours), *_fused(fused), *_grouped(grouped), *_asked_times(record, ours), *_compiles(record, ours)]
    if missing:
        lines.append(f"no result of tilefuse: {', '.join(missing)}")
    wrong = [f"{name} ({peer})" for name, entry in record.cases.items() for peer, told in entry["peers"].items()
             if peer != OURS and told.get("status") in ("wrong", "failed", "crashed", "timeout")]
    if wrong:
        lines.append(f"peers without a result: {', '.join(wrong)}")
    return "\n".join(lines)


def _bare(bare: list[Row]) -> list[str]:
    judged = [row for row in bare if row["vs best"]]
    if not judged:
        return []
    mean = geometric_mean(row["vs best"] for row in judged)
    below = [row for row in judged if row["asked speed"] and row["vs best"] < row["asked speed"]]
    least = min(judged, key=lambda row: row["vs best"])
    return [f"bare products against the best peer: {mean:.3f} in geometric mean of {len(judged)} (asked {BARE_MEAN:.2f}); least "
            f"{least['vs best']:.3f} ({least['case']}); below the asked speed: {len(below)}{named(below)}"]


def _grouped(grouped: list[Row]) -> list[str]:
    judged = [row for row in grouped if row["vs best"]]
    if not judged:
        return []
    mean, least = geometric_mean(row["vs best"] for row in judged), min(judged, key=lambda row: row["vs best"])
    return [f"grouped products against the best peer: {mean:.3f} in geometric mean of {len(judged)} (asked {BARE_MEAN:.2f}); least "
            f"{least['vs best']:.3f} ({least['case']})"]


def _reading(ours: list[Row]) -> list[str]:
    judged = [row for row in ours if row["asked"] and row["of limit"]]
    if not judged:
        return []
    below = [row for row in judged if row["of limit"] < row["asked"]]
    mean = geometric_mean(row["of limit"] for row in judged)
    return [f"few rows against the copy bandwidth: {mean:.3f} in geometric mean of {len(judged)} "
            f"(asked of each {max(row['asked'] for row in judged):.2f}); below: {len(below)}{named(below)}"]


def _fused(fused: list[Row]) -> list[str]:
    lines = []
    beside = [row for row in fused if row["of bare"]]
    if beside:
        above = [row for row in beside if row["asked of bare"] and row["of bare"] > row["asked of bare"]]
        most = max(beside, key=lambda row: row["of bare"])
        mean = geometric_mean(row["of bare"] for row in beside)
        lines.append(f"fused products, time over that of their products alone: {mean:.3f} in geometric mean of {len(beside)}; most "
                     f"{most['of bare']:.3f} ({most['case']}); above the asked share: {len(above)}{named(above)}")
    judged = [row for row in fused if row["vs inductor"]]
    if judged:
        slower = [row for row in judged if row["vs inductor"] < 1.0]
        mean = geometric_mean(row["vs inductor"] for row in judged)
        lines.append(f"fused products against torch.compile: {mean:.3f} in geometric mean of {len(judged)} (asked {FUSED_MEAN:.2f}); "
                     f"slower on {len(slower)}{named(slower)}")
    return lines


def _asked_times(record: Record, ours: list[Row]) -> list[str]:
    if DEVICE not in str(record.header.get("device")):
        return []
    asked = [(row, record.cases[row["case"]].get("max_us")) for row in ours]
    told = [f"{row['case']} {row[OURS]:.1f} us (asked {most:.1f})" for row, most in asked if most and row[OURS] > most]
    count = sum(bool(most) for _, most in asked)
    return [f"above the asked time: {len(told)} of {count}" + (f": {', '.join(told)}" if told else "")] if count else []


def _compiles(record: Record, ours: list[Row]) -> list[str]:
    seconds = {row["case"]: record.cases[row["case"]]["peers"][OURS].get("compile_s") for row in ours}
    known = {name: taken for name, taken in seconds.items() if taken is not None}
    if not known:
        return []
    long = [row for row in ours if (known.get(row["case"]) or 0.0) > record.cases[row["case"]].get("max_compile_s", float("inf"))]
    threads = record.header.get("compile_threads_each")
    beside = f", {threads} threads a process" if threads else ""
    return [f"cold compiles: {statistics.median(known.values()):.2f} s in the median, {max(known.values()):.2f} s at most{beside}; longer "
            f"than asked: {len(long)}{named(long)}"]
