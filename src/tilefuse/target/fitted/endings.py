"""Fitted figures of the ends of sums that several thread blocks share."""
from __future__ import annotations

from dataclasses import dataclass

from tilefuse.target.fitted.evidence import measured

_ENDINGS = ("one H200, z = a x + y and z.u of 2^18, 2^20 and 2^22 words 4.3, 7.2 and 19.1 us; A'(A x), sums down columns by the template "
            "and by routines: 512 x 512 4.0 and 3.4 us (f32), 4.7 and 4.3 (f64), 1024 x 1024 5.9 and 4.8 (f32), 8.1 and 6.5 (f64)")
_ARRIVALS = "one H200, z = a x + y and z.u of 2^26 f32: 242 us without arrivals, 251 us with those of 16384 blocks"
_PLANS = ("; kernels of plans at 1ef01321 (findings.md) took longer than without an end: sums down columns 1.7 us (10 to 12 blocks a "
          "column) and 2.5 (132), maxima of rows 1.7, packed with other parts 0.6 to 3.2")


@dataclass(frozen=True, slots=True)
class EndingFigures:
    """Time after a kernel's traffic in which the last block adds up the results of the others (`domain/roofline.py`)."""

    last_block_us: float = measured(
        2.3, "us", "Work of the last block of sums along rows.", _ENDINGS + _PLANS, "python -m benchmarks planner")
    last_columns_us: float = measured(
        2.2, "us", "Work of the last block of sums down columns.", _ENDINGS + _PLANS, "python -m benchmarks planner")
    arrivals_us: float = measured(0.00055, "us a block", "Arrivals of blocks that a last block waits for.", _ARRIVALS)
