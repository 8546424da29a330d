"""What a replay prints: quartiles and rank correlation by template, and the kernels furthest off with the longest parts of their price."""
from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from benchmarks import correlation
from benchmarks.replay.rows import HALVES, Replayed, of_half, terms_of
from tilefuse.base.candidate import Rejected
from tilefuse.target.device import DeviceSpec

# Predicted over measured time within which the quartiles of each template should lie (issue 19, section 3).
WITHIN = (0.8, 1.25)
LISTED_TERMS = 5


def rank_of(rows: Sequence[Replayed]) -> float:
    """Rank correlation of today's prices with the measured times."""
    return correlation.rank_correlation([(r.us, r.measured_us) for r in rows])


def quartiles(rows: Sequence[Replayed]) -> tuple[float, float, float]:
    """Lower quartile, median and upper quartile of predicted over measured time."""
    ratios = sorted(r.ratio for r in rows)
    quarter = len(ratios) // 4
    return ratios[quarter], statistics.median(ratios), ratios[-1 - quarter]


def summary(rows: Sequence[Replayed]) -> str:
    """A line a template, over all rows and over each half; templates outside the bounds are marked."""
    lines = [f"{'':14s} {'kernels':>7s} {'rank':>6s}  {'predicted over measured: all':32s}" + "".join(f"{half:26s}" for half in HALVES)]
    for template in ("", *sorted({r.template for r in rows})):
        own = [r for r in rows if template in ("", r.template)]
        low, median, high = quartiles(own)
        outside = template and not (WITHIN[0] <= low and high <= WITHIN[1])
        texts = [_three(of_half(own, half)) for half in HALVES]
        mark = "*" if outside else ""
        lines.append(f"{template or 'all':14s} {len(own):7d} {rank_of(own):6.3f}  {low:.2f} {median:.2f} {high:.2f} {mark:17s}"
                     + "".join(f"{text:26s}" for text in texts))
    return "\n".join(lines + [f"* a quartile is outside {WITHIN[0]} to {WITHIN[1]}"])


def _three(rows: Sequence[Replayed]) -> str:
    if not rows:
        return "none"
    return " ".join(f"{q:.2f}" for q in quartiles(rows)) + f" ({len(rows)})"


def worst(rows: Sequence[Replayed], count: int, device: DeviceSpec) -> str:
    """The kernels whose price is furthest off, by the logarithm of its ratio, each with its longest parts."""
    ordered = sorted(rows, key=lambda r: -max(r.ratio, 1 / r.ratio))
    return "\n".join(line(r, device) for r in ordered[:count])


def line(row: Replayed, device: DeviceSpec) -> str:
    """One kernel: its time, its price and the parts of it. Units: microseconds."""
    terms = "  ".join(f"{name} {us:.2f}" for name, us in terms_of(row, device)[:LISTED_TERMS])
    label = row.label.partition(" @")[0]
    return f"{label:52s} {row.template:14s} measured {row.measured_us:8.2f}  predicted {row.us:8.2f} ({row.ratio:4.2f})  {terms}"


def refusals(refused: Mapping[str, Rejected], count: int) -> str:
    """The rows that cannot be replayed, and why."""
    lines = [f"{label}: {why}" for label, why in refused.items()]
    return "\n".join([f"{len(lines)} kernels cannot be replayed", *lines[:count]]) if lines else "every kernel was replayed"
