"""Fitted figures of waits that decide the time of small kernels."""
from __future__ import annotations

from dataclasses import dataclass

from tilefuse.target.fitted.evidence import measured

_REPLAY = "python -m benchmarks.replay"
# Not fitted: 95 kernels of planner-h200-20261123-042624 and 289 of planner-h200-20261122-080215, predicted over measured at the
# quartiles: maps 1.01 to 1.29 and 0.95 to 1.04, rows 1.02 to 1.05 and 0.97 to 1.07, columns 0.73 to 1.06 and 1.02 to 1.09, packed 0.92 to
# 1.11 and 0.87 to 1.16, stages 0.82 to 1.14 and 0.83 to 1.22; rank correlation 0.983 and 0.978.
_KERNELS = "one H200, planner-h200-20261124-172723, predicted over measured at the quartiles with these waits and without: {}"
_MAPS = _KERNELS.format(
    "maps 0.92, 1.01, 1.03 and 1.00, 1.31, 1.57 (half that was fitted 0.91, 1.01, 1.04, the other 0.94, 1.01, 1.03); gates of 32 x 512 f32 "
    "by 32 blocks 3.05 us, of which 1.6 are predicted without the operations of a thread")
_PACKED = _KERNELS.format(
    "packed kernels 0.89, 1.10, 1.12 and 0.95, 1.44, 1.61; two products of an LSTM step side by side 6.15 us, where one is predicted 4.7")


@dataclass(frozen=True, slots=True)
class WaitFigures:
    """Waits between loads and stores, of a launch that passes early, and of parts side by side (`domain/roofline.py`).

    Plans by prices with these waits against plans without, one H200, one run (waits-before-after-h200-20261129.txt): ten workloads 0.96,
    42 models 0.989, stitched cases 0.990 of the time in geometric mean.
    """

    operation_cycles: float = measured(
        5.0, "cycles", "Time of a thread's operation between its loads and its stores: it waits for the one before it.", _MAPS,
        f"{_REPLAY} --fit waits.operation_cycles --template pointwise")
    side_by_side: float = measured(
        0.58, "1", "Lower bound on the time of stages of a packed kernel's parts, as a share of the sum of the parts' times.", _PACKED,
        _REPLAY)
