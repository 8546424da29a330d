"""Fitted figures of pipelined walks between two products."""
from __future__ import annotations

from dataclasses import dataclass

from tilefuse.target.fitted.evidence import measured

_COUNTED = "counted in the CUDA text: a multiply-add, a maximum, a sum, half a rounding"


@dataclass(frozen=True, slots=True)
class WalkFigures:
    """Walks on warpgroup instructions, whose scores stay in registers."""

    registers: int = measured(34, "registers a thread", "Registers of a consumer beside its scores, powers and sums.", "assembler, sm_90a")
    score_instructions: float = measured(
        4.0, "instructions a score", "Maximum, sum, power and rounding, beside the special unit.", _COUNTED)
    special_per_cycle: float = measured(
        16.0, "functions a cycle and multiprocessor", "Rate of the special unit.",
        "CUDA C++ Programming Guide, arithmetic instructions of compute capability 9.0")
    beside: float = measured(
        0.5, "1", "Share of the instructions of threads and of the special unit that finds no place beside products.",
        "assumption: FlashAttention 3 reaches 0.5 to 0.6 of the tensor cores where both take equally long "
        "(Shah et al. 2024, arXiv:2407.08608)")
    turn_cycles: float = measured(150.0, "cycles", "Waits of a turn for its products and its slots.", "assumption")
    tile_cycles: float = measured(1500.0, "cycles", "Start of a tile: its first scores, and the end of its results.", "assumption")
