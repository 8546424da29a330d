"""The README's table of ten lines: each suite's geometric means over the newest records. docs/results.md has every case."""
from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import calls, history, results_page
from benchmarks.products.listing import is_bare
from benchmarks.record import RESULTS, Record
from benchmarks.report import OURS, device_text, geometric_mean, rows

README = Path(__file__).resolve().parents[1] / "README.md"
BLOCK = re.compile(r"(<!-- results:begin -->\n).*?(<!-- results:end -->)", re.DOTALL)
# Figures of one case: share of the limit, eager's and torch.compile's time over tilefuse's; None where there is none.
Figures = tuple[float | None, float | None, float | None]


def times(chosen: Callable[[str], bool] = lambda name: True) -> Callable[[Record], list[Figures]]:
    """Figures of the cases whose names are chosen; a share of the limit only where the case asks for one, so bytes alone bound it."""
    def of(record: Record) -> list[Figures]:
        return [(row["of limit"] if row["asked"] else None, row["vs eager"], row["vs inductor"])
                for row in rows(record, ["eager", "inductor"]) if row[OURS] and chosen(row["case"])]
    return of


def host_times(mode: str) -> Callable[[Record], list[Figures]]:
    """Figures of the host's time in a mode of calls."""
    def of(record: Record) -> list[Figures]:
        found = []
        for entry in record.cases.values():
            eager, inductor, ours = (calls.figure(entry, peer, mode, "host_us") for peer in ("eager", "inductor", OURS))
            if ours:
                found.append((None, eager / ours if eager else None, inductor / ours if inductor else None))
        return found
    return of


def totals(record: Record) -> list[Figures]:
    """Figures of streams: total seconds, beside torch.compile's tracing with eager kernels."""
    found = []
    for entry in record.cases.values():
        eager, inductor, ours = (entry["peers"].get(peer, {}).get("seconds") for peer in ("aot_eager", "inductor", OURS))
        if ours:
            found.append((None, eager / ours if eager else None, inductor / ours if inductor else None))
    return found


# A line's text, its suite, its figures.
LINES: tuple[tuple[str, str, Callable[[Record], list[Figures]]], ...] = (
    ("memory-bound patterns", "patterns", times()),
    ("whole models, inference", "models", times(lambda name: "/training/" not in name)),
    ("whole models, training step", "models", times(lambda name: "/training/" in name)),
    ("host time of a call", "calls", host_times("default")),
    ("the same with `reduce-overhead`", "calls", host_times("reduce-overhead")),
    ("stitched and packed kernels", "stitched", times()),
    ("matrix products alone (eager: cuBLAS)", "products", times(is_bare)),
    ("matrix products with their neighbours", "products", times(lambda name: not is_bare(name))),
    ("workloads of FusionStitching", "workloads", times()),
    ("training steps in symbolic arrays", "arrays", times(lambda name: "/training/" in name)),
    ("BLAS sequences (eager: cuBLAS)", "blas", times()),
    ("streams of changing sizes, total (eager: `aot_eager`)", "sizes", totals),
)


def means(found: Sequence[Figures]) -> list[float | None]:
    """Geometric means of the figures. A share of the limit that less than half of the cases have does not speak for them: None."""
    listed = [[f[n] for f in found if f[n] is not None] for n in range(3)]
    return [geometric_mean(ratios) if n or 2 * len(ratios) > len(found) else None for n, ratios in enumerate(listed)]


def table(records: Mapping[str, Record]) -> str:
    """One line a suite that has records: cases, geometric means, and the cases in which torch.compile is faster."""
    lines = ["| measured | cases | share of the limit | × eager | × torch.compile | slower than torch.compile |", "| --- " * 6 + "|"]
    for title, suite, figures in LINES:
        found = figures(records[suite]) if suite in records else []
        if not found:
            continue
        compared = [f[2] for f in found if f[2] is not None]
        slower = f"{sum(ratio < 1 for ratio in compared)} of {len(compared)}" if compared else "-"
        anchor = results_page.anchor(next(s.title for s in results_page.SECTIONS if s.suite == suite))
        cells = [f"[{title}](docs/results.md#{anchor})", str(len(found)), *("-" if m is None else f"{m:.2f}" for m in means(found)), slower]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def origin(records: Mapping[str, Record]) -> str:
    """The devices and versions of the figures, and when the newest was measured."""
    headers = [record.header for record in records.values()]
    newest = max(headers, key=lambda header: str(header.get("time", "")))
    versions = ", ".join(f"{name} {newest['versions'][name]}" for name in ("torch", "triton") if name in newest.get("versions", {}))
    devices = " and ".join(sorted({device_text(Record(RESULTS, {"device": header.get("device")}, {})) for header in headers}))
    return (f"Geometric means on {devices}{', ' + versions if versions else ''}, {str(newest.get('time', ''))[:10]}. Ratios are the peer's "
            "time over tilefuse's; the limit is the speed of a copy, its share that of the cases which memory alone bounds.")


def write(readme: Path = README, page: Path = results_page.PAGE, folder: Path = RESULTS,
          names_by_suite: Mapping[str, Sequence[str]] | None = None) -> str:
    """Put the table between the markers of the README and write the page of results; the table. `names_by_suite`: a suite's present "
      "cases."""
    records: dict[str, Any] = history.newest_records(folder, names_by_suite)
    text = f"{origin(records)}\n\n{table(records)}" if records else "No records yet."
    readme.write_text(BLOCK.sub(lambda m: f"{m[1]}{text}\n{m[2]}", readme.read_text(encoding="utf-8")), encoding="utf-8")
    page.write_text(results_page.text(records), encoding="utf-8")
    return text
