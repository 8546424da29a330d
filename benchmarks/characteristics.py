"""The tables and figures of FusionStitching's evaluation, from a record of the workloads: characteristics, compression, classes, storage.

Table 2 (eager), Table 3 and Figure 7 (ratios of kernels, times and compile times), Figures 6 and 8 and Table 4 (tilefuse's own kernels).
Kernels are what torch's profiler saw in one step, device copies and fills included.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.record import Record
from benchmarks.report import OURS, geometric_mean, time_us

CLASSES = ("elementwise", "reduction", "product")
MAX_KERNEL_RATIO = 0.5
MIN_SPEEDUP = 1.4

Row = dict[str, Any]


def rows(record: Record) -> list[Row]:
    """One mapping a workload with every figure that the record can give; None where it cannot."""
    return [_row(name, entry) for name, entry in record.cases.items()]


def _row(name: str, entry: dict[str, Any]) -> Row:
    peers = {p: entry["peers"].get(p, {}) for p in ("eager", "inductor", OURS)}
    kernels = {p: _launches(found) for p, found in peers.items()}
    times = {p: time_us(entry, p) for p in peers}
    busy = {p: found.get("kernel_us") for p, found in peers.items()}
    ours, shared = peers[OURS], peers[OURS].get("shared_memory", {})
    classes, class_us = ours.get("patterns", {}), ours.get("pattern_us", {})
    return {
        "case": name,
        "graph size": peers["eager"].get("graph_size"),
        **{f"{p} kernels": n for p, n in kernels.items()},
        **{f"{p} kernel us": _ratio(busy[p], peers[p].get("launched_kernels")) for p in peers},
        **{f"{p} memory share": peers[p].get("memory_share") for p in peers},
        "eager/inductor kernels": _ratio(kernels["eager"], kernels["inductor"]),
        "eager/tilefuse kernels": _ratio(kernels["eager"], kernels[OURS]),
        "tilefuse/inductor kernels": _ratio(kernels[OURS], kernels["inductor"]),
        "inductor speed": _ratio(times["eager"], times["inductor"]),
        "tilefuse speed": _ratio(times["eager"], times[OURS]),
        "against inductor": _ratio(times["inductor"], times[OURS]),
        "busy against inductor": _ratio(busy[OURS], busy["inductor"]),
        "inductor compile s": peers["inductor"].get("compile_s"),
        "tilefuse compile s": ours.get("compile_s"),
        "planned kernels": ours.get("num_kernels"),
        "library calls": ours.get("num_library_calls"),
        **{f"{c} patterns": _ratio(classes.get(c), sum(classes.values())) for c in CLASSES},
        **{f"{c} time": _ratio(class_us.get(c), sum(class_us.values())) for c in CLASSES},
        "shared share": shared.get("share"),
        "shared time": ours.get("shared_time_share"),
        "shared average KiB": _ratio(shared.get("average_bytes"), 1024),
        "shared largest KiB": _ratio(shared.get("largest_bytes"), 1024),
        "allocated/requested": shared.get("allocated_of_requested"),
    }


def _launches(found: dict[str, Any]) -> int | None:
    """Kernels, device copies and fills of one step."""
    if "launched_kernels" not in found:
        return None
    return int(found["launched_kernels"]) + int(found.get("launched_copies", 0))


def _ratio(top: float | None, bottom: float | None) -> float | None:
    return None if top is None or not bottom else top / bottom


# Title, then (heading, key) pairs; a key with a "/" or in MEANS gets a geometric mean at the foot.
TABLES: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    ("Characteristics, eager (Table 2)", (
        ("graph size", "graph size"), ("kernels", "eager kernels"), ("average us", "eager kernel us"), ("memory", "eager memory share"))),
    ("Kernels, speed and compile time (Table 3, Figure 7)", (
        ("eager", "eager kernels"), ("inductor", "inductor kernels"), ("tilefuse", "tilefuse kernels"),
        ("eager/ind.", "eager/inductor kernels"), ("eager/tf", "eager/tilefuse kernels"), ("tf/ind.", "tilefuse/inductor kernels"),
        ("ind. speed", "inductor speed"), ("tf speed", "tilefuse speed"), ("tf vs ind.", "against inductor"),
        ("busy tf/ind", "busy against inductor"), ("ind. comp s", "inductor compile s"), ("tf comp s", "tilefuse compile s"))),
    ("tilefuse's kernels by class: share of patterns, share of their time (Figures 6 and 8)", (
        ("kernels", "planned kernels"), ("library", "library calls"), *((c, f"{c} patterns") for c in CLASSES),
        *((f"{c[:6]} time", f"{c} time") for c in CLASSES))),
    ("Shared memory of tilefuse's kernels (Table 4)", (
        ("patterns", "shared share"), ("time", "shared time"), ("average KiB", "shared average KiB"), ("largest KiB", "shared largest KiB"),
        ("alloc/req", "allocated/requested"))),
)
MEANS = frozenset({"eager/inductor kernels", "eager/tilefuse kernels", "tilefuse/inductor kernels", "inductor speed", "tilefuse speed",
                   "against inductor", "busy against inductor"})


def text(record: Record) -> str:
    """All tables as aligned text, and what they say about the targets."""
    listed = rows(record)
    width = max([len(r["case"]) for r in listed] + [14])
    lines: list[str] = []
    for title, columns in TABLES:
        lines += [title, "  ".join([" " * width, *(f"{heading:>11}" for heading, _ in columns)])]
        lines += ["  ".join([f"{r['case']:<{width}}", *(_cell(r[key]) for _, key in columns)]) for r in listed]
        if any(key in MEANS for _, key in columns):
            means = [geometric_mean(r[key] for r in listed if r[key]) if key in MEANS else None for _, key in columns]
            lines.append("  ".join([f"{'geometric mean':<{width}}", *(_cell(m, blank=True) for m in means)]).rstrip())
        lines.append("")
    return "\n".join([*lines, targets(listed)])


def targets(listed: Sequence[Row]) -> str:
    """Kernel count and speed against torch.compile, as asked: half the kernels, 1.4 times the speed in geometric mean, none slower."""
    fewer = geometric_mean(r["tilefuse/inductor kernels"] for r in listed if r["tilefuse/inductor kernels"])
    faster = geometric_mean(r["against inductor"] for r in listed if r["against inductor"])
    slower = [r["case"] for r in listed if r["against inductor"] and r["against inductor"] < 1.0]
    told = [f"kernels against torch.compile: {_word(fewer)} in geometric mean (asked: at most {MAX_KERNEL_RATIO})",
            f"speed against torch.compile: {_word(faster)} in geometric mean (asked: at least {MIN_SPEEDUP})",
            f"slower than torch.compile: {', '.join(slower) or '-'}"]
    return "\n".join(told)


def markdown(record: Record) -> str:
    """The tables for docs/results.md; a column is called as its figure is, in full."""
    listed = rows(record)
    parts: list[str] = []
    for title, columns in TABLES:
        parts.append(f"{title}:")
        heads = [key.replace("inductor", "torch.compile") for _, key in columns]
        lines = [f"| workload | {' | '.join(heads)} |", "| --- " * (len(columns) + 1) + "|"]
        lines += [f"| {r['case']} | " + " | ".join(_cell(r[key]).strip() for _, key in columns) + " |" for r in listed]
        if any(key in MEANS for _, key in columns):
            means = [geometric_mean(r[key] for r in listed if r[key]) if key in MEANS else None for _, key in columns]
            lines.append("| **geometric mean** | " + " | ".join(_cell(m, blank=True).strip() for m in means) + " |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


def plot(record: Record, path: Path) -> bool:
    """Figures 6 to 8 side by side: classes of patterns, busy time against torch.compile, classes of time; False without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    listed = rows(record)
    if not listed:
        return False
    figure, (first, second, third) = plt.subplots(1, 3, figsize=(14, max(3.0, 0.4 * len(listed) + 1)), sharey=True)
    places = range(len(listed))

    def stacked(axes: Any, key: Callable[[str], str], title: str) -> None:
        left = [0.0] * len(listed)
        for c in CLASSES:
            shares = [r[key(c)] or 0.0 for r in listed]
            axes.barh(places, shares, left=left, label=c)
            left = [a + b for a, b in zip(left, shares)]
        axes.set_title(title, fontsize=9)
        axes.legend(fontsize=7)

    stacked(first, lambda c: f"{c} patterns", "share of tilefuse's patterns")
    second.barh(places, [r["busy against inductor"] or 0.0 for r in listed])
    second.axvline(1.0, color="black", linewidth=0.8)
    second.set_title("kernel time over torch.compile's", fontsize=9)
    stacked(third, lambda c: f"{c} time", "share of tilefuse's kernel time")
    first.set_yticks(list(places), [r["case"] for r in listed], fontsize=7)
    first.invert_yaxis()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return True


def _cell(value: float | None, blank: bool = False) -> str:
    if value is None:
        return f"{'' if blank else '-':>11}"
    return f"{value:>11d}" if isinstance(value, int) else f"{value:>11.2f}"


def _word(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.2f}"
