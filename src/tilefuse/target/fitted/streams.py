"""Fitted figures of streamed products."""
from __future__ import annotations

from dataclasses import dataclass

from tilefuse.target.fitted.evidence import measured


@dataclass(frozen=True, slots=True)
class StreamedFigures:
    """Products of few rows whose weights pass through rings of each thread's own copies."""

    access_instructions: float = measured(
        6.0, "instructions an access", "Copy, read from the ring and addresses of 16 bytes of weights, beside their multiplications.",
        "machine code of CUDA 13.5 for sm_90a, 1 x 4096 by 4096 in bf16: 12 to 14 in a step of two accesses")
