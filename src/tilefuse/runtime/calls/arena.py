"""Memory of intermediate values: offsets in one allocation, from live ranges, by best fit.

```text
step      0    1    2    3
a      [####|####]
b           [####|####|####]      a and c do not live at the same time: c takes a's place
c                [####|####]
```
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

ALIGNMENT_BYTES = 256


@dataclass(frozen=True, slots=True)
class Extent:
    """Memory that is live from the first to the last step that touches it, both included. Units: bytes, step numbers."""

    name: str
    num_bytes: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Placement:
    """Offset of every extent in the arena. Units: bytes."""

    offset_by_name: dict[str, int]
    num_bytes: int


def aligned(num_bytes: int) -> int:
    """The next multiple of the arena's alignment. Units: bytes."""
    return -(-num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def place(extents: Sequence[Extent]) -> Placement:
    """Offsets such that live ranges that overlap in time do not overlap in memory; larger extents first, each in the smallest gap that
    fits.

    Cost: quadratic in the number of extents that live at the same time.
    Source: greedy by size with best fit, as Pisarchyk and Lee 2020, arXiv:2001.03288, section 5.
    """
    placed: list[tuple[int, Extent]] = []
    offsets: dict[str, int] = {}
    total = 0
    for extent in sorted(extents, key=lambda e: (-e.num_bytes, e.first, e.name)):
        offset = _best_gap(aligned(extent.num_bytes), [p for p in placed if p[1].first <= extent.last and extent.first <= p[1].last])
        placed.append((offset, extent))
        offsets[extent.name] = offset
        total = max(total, offset + aligned(extent.num_bytes))
    return Placement(offsets, total)


def _best_gap(num_bytes: int, neighbours: Iterable[tuple[int, Extent]]) -> int:
    """Offset of the smallest gap between the neighbours that has `num_bytes`; their end if there is none."""
    best: tuple[int, int] | None = None
    end = 0
    for offset, other in sorted(neighbours, key=lambda p: p[0]):
        gap = offset - end
        if gap >= num_bytes and (best is None or gap < best[0]):
            best = (gap, end)
        end = max(end, offset + aligned(other.num_bytes))
    return end if best is None else best[1]


def live_peak_bytes(extents: Sequence[Extent]) -> int:
    """Most bytes live at one time: a lower bound for every placement. Units: bytes."""
    change: dict[int, int] = {}
    for e in extents:
        change[e.first] = change.get(e.first, 0) + aligned(e.num_bytes)
        change[e.last + 1] = change.get(e.last + 1, 0) - aligned(e.num_bytes)
    peak = live = 0
    for step in sorted(change):
        live += change[step]
        peak = max(peak, live)
    return peak
