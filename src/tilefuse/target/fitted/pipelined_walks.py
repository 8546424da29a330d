"""Fitted figures of pipelined walks between two products."""
from __future__ import annotations

from dataclasses import dataclass

from tilefuse.target.fitted.evidence import measured

_TIMED = ("one H100, 28 tiles of 9 attentions (benchmarks/results/attention-h100-20261124.txt): predicted over measured 0.76 to 1.12, "
          "median 0.99; some times without an order of warpgroups were estimated from those with one, and a second run of two of these "
          "gave 4 and 6 % more")

_BIASES = ("one H200 (benchmarks/results/assumed-figures-h200-20261124.txt), dense bias f16 16 x 12 x 197 x 64, us")


@dataclass(frozen=True, slots=True)
class WalkFigures:
    """Walks on warpgroup instructions, whose scores stay in registers."""

    registers: int = measured(34, "registers a thread", "Registers of a consumer beside its scores, powers and sums.", "assembler, sm_90a")
    score_instructions: float = measured(
        2.5, "instructions a score", "Maximum, rounding, and share of what a turn does once, beside the operations of the score.",
        "assembler, sm_90a: 392 instructions of a warp for 48 scores a thread, 4 of them operations")
    bias_instructions: float = measured(
        1.5, "instructions a score", "Read of a bias from its ring in pairs, and its conversion.",
        "assembler, sm_90a: LDS for two scores, HADD2 or PRMT")
    bias_loads: int = measured(
        28, "loads a thread", "Loads of a bias that producing threads have in flight.", "assumption: as many registers, of those below")
    loading_registers: int = measured(
        56, "registers a thread", "Registers of producers that load biases: a multiple of 8.", "assembler, sm_90a")
    bias_fill_cycles: float = measured(
        0.43, "cycles an element", "Producing threads load an element of a bias and store it, while consumers wait.",
        _BIASES + ": rows of 197 beside rows of 200 that tensor copies bring, 112 columns by one slot 42.5 and 16.2, by two 44.9 and 17.0, "
        "64 columns 47.4 and 17.9, 52.7 and 17.9")
    load_cycles: float = measured(
        0.25, "cycles a score and multiprocessor", "Load of a value with rows and columns by the thread that needs it: the 32 lanes "
        "of a warp have elements of eight rows, whose lines come one after another.",
        _BIASES + ": 112 and 208 columns of two warpgroups, 64 of three 22.5, 20.3 and 28.3, where 23.8, 22.4 and 34.7 are predicted")
    instructions_per_cycle: float = measured(
        128.0, "instructions a cycle and multiprocessor", "Issue of all warps.", "CUDA C++ Programming Guide: four schedulers of 32 lanes")
    special_per_cycle: float = measured(
        16.0, "functions a cycle and multiprocessor", "Rate of the special unit.",
        "CUDA C++ Programming Guide, arithmetic instructions of compute capability 9.0")
    busy_shares: tuple[float, ...] = measured(
        (0.95, 0.80, 0.714), "1", "Share of the sum of products' and powers' times that a turn takes, by the number of consumer "
        "warpgroups: each hides a part of the others'.", _TIMED)
    missed_share: float = measured(
        0.2, "1", "Share of the time of walked operands that no longer lie in L2 that nothing hides.",
        "one H100: causal bf16 64 x 4096 x 128, all heads at a time 514 us, one after another 456 us; width 64 340 and 339 us")
    turn_cycles: float = measured(95.0, "cycles", "Waits of a turn for its products and its slots.", _TIMED)
    least_turn_cycles: float = measured(
        800.0, "cycles", "Turn of few columns: products, shuffles and powers of one warpgroup, one after the other.",
        "assumption: the shortest turn that was timed, three warpgroups with 64 columns, takes 1240 cycles")
    tile_cycles: float = measured(1480.0, "cycles", "Start and end of a tile.", _TIMED)
    warpgroup_tile_cycles: float = measured(385.0, "cycles", "The same for each warpgroup: its first scores, its results.", _TIMED)
    start_cycles: float = measured(523.0, "cycles", "Start of a block for each warpgroup.", _TIMED)
