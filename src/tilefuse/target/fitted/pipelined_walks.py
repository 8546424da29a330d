"""Fitted figures of pipelined walks between two products."""
from __future__ import annotations

from dataclasses import dataclass

from tilefuse.target.fitted.evidence import measured

_TIMED = ("one H200 and one H100, 366 tiles of 47 attentions (benchmarks/results/attention-tiles-*.jsonl): quartiles of predicted over "
          "measured 0.92 and 1.04; the cheapest of the timed tiles is within 5 % of the fastest in 64 of 68 cases and runs, "
          "in 43 of 45 of the newest")
_FIT = "python -m benchmarks.attention.tiles --fit busy_shares.0,busy_shares.1,busy_shares.2,turn_cycles,load_wait_cycles"
_DECODED = ("one H200, 113 walks of 40 attentions with one query (benchmarks/results/decode-h200-20261129.jsonl): quartiles of "
            "predicted over measured 0.95 and 1.06, 0.84 and 1.01 with share 0; the cheapest of the timed walks is within 5 % of the "
            "fastest in 38 of 40 cases")
_FIT_DECODED = "python -m benchmarks.attention.tiles benchmarks/results/decode-h200-20261129.jsonl --fit around_share"
_BIASES = ("one H200 (benchmarks/results/assumed-figures-h200-20261124.txt), dense bias f16 16 x 12 x 197 x 64, us")


@dataclass(frozen=True, slots=True)
class WalkFigures:
    """Walks on warpgroup instructions, whose scores stay in registers."""

    registers: int = measured(34, "registers a thread", "Registers of a consumer beside its scores, powers and sums.", "assembler, sm_90a")
    score_instructions: float = measured(
        0.75, "instructions a score", "Rounding of a power and its share of the products, beside the operations of the score.",
        "assembler, sm_90a, f16 4 x 16 x 4096 x 64: 317, 394, 431, 469, 545, 620, 658 instructions of the loop of turns with 64, 96, 112, "
        "128, 160, 192, 208 columns: 4.74 a score, 4 of them operations")
    turn_instructions: float = measured(
        129.0, "instructions a thread", "Instructions of a turn however many columns it has: waits, shuffles, the rows' maxima and sums.",
        "assembler, sm_90a, the same loops: 165, of which 36 rescale products and are seldom taken")
    bias_instructions: float = measured(
        3.8, "instructions a score", "Read of a bias or mask from its ring, and its conversion, beside its addition.",
        "assembler, sm_90a, 128 columns: 306 instructions more than without a dense bias of f16, 338 with a mask of bytes")
    mask_instructions: float = measured(
        3.4, "instructions an operation", "Comparisons of indices in turns that a mask cuts.",
        "assembler, sm_90a, window of 1024 columns, 128 columns a turn: 766 instructions more, 5 operations a score")
    draw_instructions: float = measured(
        16.3, "cycles a score", "Random number of a power that lanes draw for each other, beside its comparison and its choice.",
        "assembler, sm_90a, f16 4 x 16 x 1024 x 64, 128 columns: 1350 instructions with dropout, 289 of them wide products of two cycles "
        "each, and 468 without: 18.3 a score, 2 of them operations")
    turned_draw_instructions: float = measured(
        19.4, "cycles a score", "The same of turned scores, where numbers that follow each other are those of four rows.",
        "assembler, sm_90a, keys' gradients of bf16 64 x 4096 x 64, 96 columns: 1320 instructions with dropout, 216 of them wide products, "
        "and 430 without: 23.0 a score, 4 of them operations")
    draw_registers: int = measured(
        12, "registers a thread", "Registers of a consumer between products while lanes draw numbers, beside the words of outcomes.",
        "assembler, sm_90a, gradients of bf16 64 x 4096: with 8, products of 96 columns and width 128 behind a causal mask spill; products "
        "wait for each other where the keys' kernel of width 64 has 96 columns, and not with 80")
    bias_loads: int = measured(
        28, "loads a thread", "Loads of a bias that producing threads have in flight.", "assumption: as many registers, of those below")
    pages_ahead: int = measured(
        8, "pages", "Numbers of pages that the producing thread loads before it starts their copies: they share a round trip.",
        "assumption; assembler, sm_90a: pages of 8 to 32 rows spill nothing with loading_registers, up to 40 bytes with copying_registers")
    loading_registers: int = measured(
        56, "registers a thread", "Registers of producers that load biases or numbers of pages: a multiple of 8.", "assembler, sm_90a")
    bias_fill_cycles: float = measured(
        0.43, "cycles an element", "Producing threads load an element of a bias and store it, while consumers wait.",
        _BIASES + ": rows of 197 beside rows of 200 that tensor copies bring, 112 columns by one slot 42.5 and 16.2, by two 44.9 and 17.0, "
        "64 columns 47.4 and 17.9, 52.7 and 17.9")
    load_cycles: float = measured(
        0.11, "cycles a score and multiprocessor", "Load of a value with rows and columns by the thread that needs it: the 32 lanes "
        "of a warp have elements of eight rows, whose lines come one after another.", _TIMED, _FIT)
    load_wait_cycles: float = measured(
        300.0, "cycles", "Latency of the loads of such values that a thread has in flight at a time: one for each free register.",
        _TIMED, _FIT)
    instructions_per_cycle: float = measured(
        128.0, "instructions a cycle and multiprocessor", "Issue of all warps.", "CUDA C++ Programming Guide: four schedulers of 32 lanes")
    special_per_cycle: float = measured(
        16.0, "functions a cycle and multiprocessor", "Rate of the special unit.",
        "CUDA C++ Programming Guide, arithmetic instructions of compute capability 9.0")
    busy_shares: tuple[float, ...] = measured(
        (1.22, 0.80, 0.69), "1", "Share of the sum of products' and powers' times that a turn takes, by the number of consumer "
        "warpgroups: each hides a part of the others'. One alone does not issue an instruction a cycle.", _TIMED, _FIT)
    missed_share: float = measured(
        0.2, "1", "Share of the time of walked operands that no longer lie in L2 that nothing hides.",
        "one H100: causal bf16 64 x 4096 x 128, all heads at a time 514 us, one after another 456 us; width 64 340 and 339 us")
    bias_missed_share: float = measured(
        0.42, "1", "Share of the time of biases that come from memory that nothing hides.",
        "one H200: 4 x 16 x 4096 x 64 of f16 by two warpgroups with 128 columns, 870 us with a dense bias of 2 GiB, 611 without (an H100)")
    left_wait_cycles: float = measured(963.0, "cycles", "Wait for the left operand of a tile whose ring has one slot.", _TIMED, _FIT)
    turn_cycles: float = measured(79.0, "cycles", "Waits of a turn for its products and its slots.", _TIMED, _FIT)
    least_turn_cycles: float = measured(
        800.0, "cycles", "Turn of few columns: products, shuffles and powers of one warpgroup, one after the other.",
        "assumption: the shortest turn that was timed, three warpgroups with 64 columns, takes 1240 cycles")
    tile_cycles: float = measured(428.0, "cycles", "Start and end of a tile.", _TIMED, _FIT)
    warpgroup_tile_cycles: float = measured(563.0, "cycles", "The same for each warpgroup: its first scores, its results.", _TIMED, _FIT)
    around_share: float = measured(
        0.7, "1", "Share of a block's start, of a tile's start and end and of the last turn that traffic does not hide: no operand has "
        "arrived yet, or all have.", _DECODED, _FIT_DECODED)
    overlap_power: float = measured(
        8.0, "1", "Exponent of the norm that joins traffic and the turns of the block with most of them. Infinite: the slower alone "
        "decides, and walks by half of the multiprocessors look as fast as by all of them.",
        _DECODED + "; root of the mean square of the logarithms 0.077 by an infinite one, 0.073 by 8, 0.083 by 4", _FIT_DECODED)
    start_cycles: float = measured(1384.0, "cycles", "Start of a block for each warpgroup.", _TIMED, _FIT)
    parts_ahead: int = measured(
        16, "parts", "Parts of a tile whose values a thread of the last block loads before it adds the first: they share a round trip.",
        "assembler, sm_90a: 4 columns of each take 64 registers, which products have left free; " + _DECODED + ", up to 16 parts each")
    parts_cycles: float = measured(
        700.0, "cycles", "Further round trip to L2 of the last block of a tile, for each group of parts whose values it loads together.",
        "0.5 us, as a load that L2 answers takes; the first is part of `PartFigures.arrival_cycles`. " + _DECODED + ": any figure up to "
        "this one is as near, for totals and products of up to 16 parts are one group each")
