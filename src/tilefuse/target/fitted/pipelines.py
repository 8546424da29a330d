"""Fitted figures of pipelined products."""
from __future__ import annotations

from dataclasses import dataclass, field

from tilefuse.target.fitted.evidence import measured
from tilefuse.target.fitted.stages import OverlapFigures

_GH100 = ("NVIDIA H100 architecture paper: 512 multiply-adds of 16 bits a cycle for each of four tensor cores, half as many of tf32")
_TIMED = ("one H200, f37255d3, products by tiles of 64 x 64 to 256 x 128 (benchmarks/results/pipelined-h200-20261123.txt): 512 x 4096 by "
          "4096 in 64 x 256 tiles 12.6 TB/s from L2; 3.7 to 4 us more a tile of 128 x 256 than its products take; 4095 x 4097 by 4099 "
          "19000 cycles for 24 groups of loads")
_PROLOGUE = "one H200, f37255d3: 1 x 264 by 520 takes 3.4 us"
_COUNTED = "one H200, f37255d3: 4096 x 4096 by 4096 in bf16 202.9 us predicted, 189.1 to 212.4 measured in four layouts"


@dataclass(frozen=True, slots=True)
class PipelineOverlapFigures(OverlapFigures):
    """One block a multiprocessor, whose producers copy while its consumers multiply."""

    alone_share: float = measured(0.0, "1", "Share of a tile's instructions that a block cannot overlap with each other.",
                                  "producers and consumers are different warps")
    waits_hidden: bool = measured(False, "1", "Whether blocks of a multiprocessor wait at different times.", "one block a multiprocessor")
    counted_share: float = measured(1.0, "1", "Time of a kernel over its counted cycles.", _COUNTED)


@dataclass(frozen=True, slots=True)
class PipelinedFigures:
    """Products whose operands come through a ring of slots."""

    narrow_per_cycle: float = measured(2048.0, "multiply-adds a cycle", "Rate of warpgroup products of 16-bit operands.", _GH100)
    tf32_per_cycle: float = measured(1024.0, "multiply-adds a cycle", "Rate of warpgroup products of tf32 operands.", _GH100)
    l2_bytes_per_cycle: float = measured(
        54.0, "bytes a cycle and multiprocessor", "Rate at which tensor copies bring operands from L2.", _TIMED)
    stored_instructions: int = measured(
        24, "instructions an element", "Store of one element of a result from registers, four bytes a thread, beside no products.", _TIMED)
    staged_instructions: int = measured(
        6, "instructions an element", "The same through shared memory and a tensor store.",
        "one H200, f37255d3, hand-written kernel, 4096 x 4096 by 4096: 190 us instead of 213 with stores from registers")
    load_cycles: float = measured(
        800.0, "cycles", "Latency of a group of loads by producers that no tensor map serves.", _TIMED)
    tile_cycles: float = measured(
        600.0, "cycles", "Wait between the last product of a tile and the first of the next.", _PROLOGUE)
    fill_cycles: float = measured(1000.0, "cycles", "Start of a block until its first slot is full.", _PROLOGUE)
    registers: int = measured(
        40, "registers a thread", "Registers of a consumer beside its accumulators.", "assembler, sm_90a")
    copying_registers: int = measured(
        40, "registers a thread", "Registers of producers that start tensor copies: a multiple of 8.", "assembler, sm_90a")
    loading_registers: int = measured(
        128, "registers a thread", "Registers of producers that load and store themselves: a multiple of 8.", "assembler, sm_90a")
    barrier_bytes: int = measured(
        1024, "bytes", "Shared memory that a pipeline takes beside its slots: transaction barriers, padding.", "printed kernels")
    overlap: PipelineOverlapFigures = field(default=PipelineOverlapFigures())
