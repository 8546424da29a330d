"""Fitted figures of chains of products."""
from __future__ import annotations

from dataclasses import dataclass

from tilefuse.target.fitted.evidence import measured


@dataclass(frozen=True, slots=True)
class ChainFigures:
    """Products back to back, whose sums become left operands in registers."""

    copy_cycles: float = measured(
        1000.0, "cycles", "Wait for a tensor copy that begins when it is needed.",
        "one H200, f37255d3: a pipelined product of 1 x 264 by 520 takes 3.4 us, start and end included")
    rounded_instructions: int = measured(
        1, "instructions an element", "Rounding of a sum to 16 bits, and its place among the registers of a left operand.",
        "assembler, sm_90a: one F2FP for two elements, one move")
