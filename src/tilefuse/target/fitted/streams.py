"""Fitted figures of streamed products."""
from __future__ import annotations

from dataclasses import dataclass

from tilefuse.target.fitted.evidence import measured

_TIMED = "one H200, torch 2.11.0, 2026-11-23, weights rotated through more than L2 (benchmarks/results/streamed-h200-20261123.txt)"
_TRAFFIC = "Time of the weights over that of a copy of as many bytes: "


@dataclass(frozen=True, slots=True)
class StreamedFigures:
    """Products of few rows whose weights pass through rings of each thread's own copies."""

    access_instructions: float = measured(
        6.0, "instructions an access", "Copy, read from the ring and addresses of 16 bytes of weights, beside their multiplications.",
        "machine code of CUDA 13.5 for sm_90a, 1 x 4096 by 4096 in bf16: 12 to 14 in a step of two accesses")
    narrow_traffic: float = measured(
        1.45, "1", f"{_TRAFFIC}16 bits, a warp reads 64 bytes of each of eight columns.",
        f"{_TIMED}: 34.3 us of 90 MB, 28.3 us of 77 MB, 22.9 and 19.9 us for copies")
    wide_traffic: float = measured(
        1.17, "1", f"{_TRAFFIC}f32, a warp reads 512 bytes of a column.", f"{_TIMED}: 20.8 us of 67 MB, 17.5 us for a copy")
    column_traffic: float = measured(
        2.3, "1", f"{_TRAFFIC}columns contiguous, a warp reads 128 bytes of each of four rows.",
        f"{_TIMED}: 19.2 to 27.2 us of 34 MB, 9.7 us for a copy")
    converted_traffic: float = measured(
        2.4, "1", f"{_TRAFFIC}weights of 8 bits, which threads convert.", f"{_TIMED}: 30.0 us of 46 MB, 12.5 us for a copy")
