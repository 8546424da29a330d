"""Fitted figures of pipelined products."""
from __future__ import annotations

from dataclasses import dataclass, field

from tilefuse.target.fitted.evidence import measured
from tilefuse.target.fitted.stages import OverlapFigures

_TIMED = ("one H200, e5314384, 27 products in all tiles (benchmarks/results/pipelined-h200-20261123.txt): predicted over measured 1.02, "
          "quartiles 0.96 and 1.07, the chosen tiles 0.86 to 1.16 and at most 1.08 of the fastest; cycles are those of "
          "`roofline.clock_hz`, 1.43 GHz, and tensor cores run at up to 1.76 GHz")
_FEW_ROWS = "one H200, hand-written kernels with cold weights (benchmarks/results/few-rows-h200-20261124.txt)"
_PARTS = ("one H200, 53 tiles of 128 to 197 rows in parts (benchmarks/results/split-products-h200-20261124.txt, operands in L2): predicted "
          "over measured 0.89 to 1.13, in the mean of squares 6 % off")
_GENERATED = "one H200, cold weights (benchmarks/results/few-rows-generated-h200-20261124.txt)"
_WARPS = ("one H200 (benchmarks/results/few-rows-warps-h200-20261124.txt), int8, 16 x 11008 by 4096, us: 128 columns 16.5 (slots of 256) "
          "and 16.3 (128), 192 in two parts 14.0 and 15.3; 8, 32 and 64 rows 14.6, 19.1 and 27.1")
_LANES = "one H100, 7ebe00bc, int8, 16 x 11008 by 4096 (benchmarks/results/computed-rows-h100-20261124.txt)"
_TILES = "one H200, 372 tiles of 40 products in bf16, f16 and tf32 (benchmarks/results/tiles-h200-20261124.txt; `PowerFigures`)"
_THREADS = "one H200, f37255d3: 4095 x 4097 by 4099 in bf16 2540 us, 19000 cycles for 24 groups of loads"


@dataclass(frozen=True, slots=True)
class PipelineOverlapFigures(OverlapFigures):
    """One block a multiprocessor, whose producers copy while its consumers multiply."""

    alone_share: float = measured(0.0, "1", "Share of a tile's instructions that a block cannot overlap with each other.",
                                  "producers and consumers are different warps")
    waits_hidden: bool = measured(False, "1", "Whether blocks of a multiprocessor wait at different times.", "one block a multiprocessor")
    counted_share: float = measured(1.0, "1", "Time of a kernel over its counted cycles.", _TIMED)
    least_us: float = measured(0.0, "us", "Least time beside the cycles.", _TIMED)


_EARLY = ("one H200, 4e5cc686 and 805762e8 (benchmarks/results/early-products-h200-20261124.txt), the same product again and again in "
          "f16, us gained: ten below 12 MiB 0.23 to 0.78, 8192 x 768 by 768 (25 MiB) 0.46, 12608 x 768 (38) 0.45, 8192 x 2304 (51) -0.42, "
          "three of 88 to 96 MiB -0.59 to 0.20, two of 124 -0.48 and -1.80")


@dataclass(frozen=True, slots=True)
class PartFigures:
    """Sums of parts of the inner axis that different blocks have multiplied, on their way to the block that finishes a tile."""

    sent_bytes_per_cycle: float = measured(
        12.0, "bytes a cycle and multiprocessor", "Rate of sums that the blocks of a cluster send each other.", _PARTS)
    stored_bytes_per_cycle: float = measured(
        22.4, "bytes a cycle and multiprocessor", "Rate of sums that all blocks store in a workspace.", _PARTS)
    loaded_bytes_per_cycle: float = measured(
        62.0, "bytes a cycle and multiprocessor", "Rate of sums that the last block of a tile loads from L2.", _PARTS)
    run_bytes: float = measured(
        36.0, "bytes", "Bytes that could be read in the time that a run of an operand costs beside its own bytes, where all parts of the "
        "inner axis are read at once.",
        "one H200, 256 x 65536 by 256 in bf16 and tf32: 67 MB of runs of 128 bytes in about 23 us, 134 MB in about 43, of 256 bytes in 21")
    arrival_cycles: float = measured(
        1540.0, "cycles", "Arrival at a tile's counter: the block's stores have reached L2, then an atomic increment; first load.", _PARTS)


@dataclass(frozen=True, slots=True)
class PipelinedFigures:
    """Products whose operands come through a ring of slots."""

    narrow_per_cycle: float = measured(2300.0, "multiply-adds a cycle", "Rate of warpgroup products of 16-bit operands.", _TIMED)
    tf32_per_cycle: float = measured(1150.0, "multiply-adds a cycle", "Rate of warpgroup products of tf32 operands.", _TIMED)
    byte_per_cycle: float = measured(
        4600.0, "multiply-adds a cycle", "Rate of warpgroup products of operands of 8 bits.",
        "one H200, 9fadbda9: 8192 x 8192 by 8192 in int8, 818 us, and in e4m3 with fast sums, 854 us")
    added_cycles: float = measured(
        355.0, "cycles", "Wait of a warpgroup for its products of one slot before it adds them to its sums.",
        "one H200, 9fadbda9: 4096 x 4096 by 4096 in e4m3, tiles of 128 x 128 and 128 x 192, 134 and 125 us")
    meeting_cycles: float = measured(
        100.0, "cycles", "Meeting of the warpgroups of a block between the low parts of a slot and its products.",
        "one H200, 9fadbda9: 4096 x 4096 by 4096 in f32, tiles of 128 x 128 and 128 x 64, 1524 and 1997 us")
    split_instructions: float = measured(
        5.0, "instructions an element", "Low part of an f32 operand's element: load, difference, rounding, store, addresses.",
        "assembler, sm_90a")
    port_bytes_per_cycle: float = measured(
        102.0, "bytes a cycle", "Rate of a port to L2.", _TIMED)
    multiprocessors_a_port: int = measured(
        2, "multiprocessors", "Multiprocessors that share a port to L2.",
        "NVIDIA H100 architecture paper: texture processing clusters of two")
    shared_reads: float = measured(
        0.4, "1", "Share of the operand that neighbouring blocks read together that passes the port: requests are answered together.",
        _TIMED)
    step_cycles: float = measured(
        255.0, "cycles", "Least time of a filling: a consumer waits for it, starts its products, and gives the one before it back.", _TIMED)
    further_panel_cycles: float = measured(
        190.0, "cycles", "The same for each further panel of the inner axis in a slot.",
        "one H200, tiles of 64 x 64 with one and two panels (benchmarks/results/split-products-h200-20261124.txt, operands in L2): "
        "128 x 4096 by 4096 13.4 and 11.9 us in 64 and 32 steps, 256 x 65536 by 256 in 8 parts 28.9 and 26.0 in 128 and 64")
    further_step_cycles: float = measured(
        80.0, "cycles", "The same for a second consumer warpgroup, which waits at the same barriers.", _TIMED)
    issued_per_cycle: float = measured(
        52.0, "instructions a cycle", "Issue of one consumer warpgroup: one warp a scheduler starts every other cycle.", _TIMED)
    beside_cycles: float = measured(
        0.66, "cycles an instruction of a warp", "Time that products of one warpgroup lose to an instruction of the other one's maps.",
        "one H200, 6e162483 (benchmarks/results/early-products-h200-20261124.txt), gelu f16 8192 x 4096: the main loop of a tile takes "
        "9508 cycles of the clock beside 1500 instructions of a warp and 8271 without these, where the inner axis has 1024 elements, "
        "34945 and 33943 where it has 4096; 0.88 cycles of `roofline.clock_hz` are one of them")
    grouped_half: float = measured(
        0.91, "1", "Share of the rate of the tensor cores that tiles of groups keep with half as many sums as 128 x 256.",
        "one H100 (benchmarks/results/grouped-products-h100-20261124.txt), seven cases of 8 to 64 groups in bf16, time of 128 x 256 over "
        "that of others in geometric mean: 64 x 256 in turn 0.91, 128 x 128 0.90, 64 x 128 in turn 0.83; one group 0.99, 0.93, 0.81")
    staged_instructions: float = measured(
        5.5, "instructions an element", "Store of one element through shared memory and a tensor store.", _TIMED)
    row_stored_instructions: float = measured(
        8.0, "instructions an element", "Store of one element through shared memory and by rows, which each warp stores word by word.",
        "assembler, sm_90a: beside the store to shared memory 16 instructions for two rows of 64 elements of 16 bits, odd and even")
    row_stored_bytes_per_cycle: float = measured(
        12.0, "bytes a cycle and multiprocessor", "Rate of stores by rows: lanes store the neighbouring words of a row.",
        "one H200 (benchmarks/results/assumed-figures-h200-20261124.txt), 8192 x 4097 bf16 beside 8192 x 4104, us: inner axis of 64 "
        "48.4 and 32.2, 49.0 and 36.0; of 256 54.7 and 45.7, 57.3 and 54.6")
    stored_instructions: float = measured(
        6.0, "instructions an element", "Store of one element from registers.", _TIMED)
    stored_bytes_per_cycle: float = measured(
        6.8, "bytes a cycle and multiprocessor", "Rate of stores from registers: lanes store four bytes each in eight rows.", _TIMED)
    lone_store_cycles: float = measured(
        3.0, "cycles an element and multiprocessor", "Stores from registers where neighbours of a row are stored one by one.",
        "one H200, 98c75408: 4095 x 4104 by 4104, of which 4097 columns are stored, bf16, 402 us; with stores of pairs about 185")
    result_load_cycles: float = measured(
        1200.0, "cycles", "Wait for a group of loads of a value that has an element for each result.", _TIMED)
    shared_load_cycles: float = measured(
        150.0, "cycles", "Wait for a group of loads of values that many tiles share.", _TIMED)
    load_cycles: float = measured(
        800.0, "cycles", "Latency of a group of loads by producers that no tensor map serves.", _THREADS)
    flight_registers: int = measured(
        64, "registers a thread", "Registers of a producer for loads in flight, beside those for addresses.", "assembler, sm_90a")
    computing_per_cycle: float = measured(
        30.0, "instructions a cycle", "Issue of four producing warps that compute elements, each alone on its scheduler.",
        "one H100, 7ebe00bc (benchmarks/results/computed-rows-h100-20261124.txt): gates of 16 and 1 rows, silu and the last step of an "
        "LSTM in 17 products take 1.6 to 1.9 times the cycles of 52 instructions a cycle, two tiles of the LSTM 2.3 times")
    computed_instructions: int = measured(
        4, "instructions an element", "Loads, addresses and stores of an operand that producers compute, beside its operators.",
        "assembler, sm_90a")
    least_columns: int = measured(
        32, "columns", "Columns of an instruction whose time is that of reading its left operand.",
        "64 x 16 elements of 16 bits from shared memory at 128 bytes a cycle: 16 cycles; one H200, hand-written kernels")
    run_bytes: float = measured(
        8.0, "bytes", "Bytes that could be read in the time that a run of neighbours in global memory costs beside its own bytes.",
        _FEW_ROWS + ": runs of 128, 256 and 512 bytes 34.2, 32.6 and 32.1 us, 16 x 4096 by 14336")
    idle_stream: float = measured(
        0.12, "1", "Loss of the rate at which weights of few rows stream from memory, over the share of multiprocessors without a block.",
        "one H200 (benchmarks/results/few-rows-early-h200-20261124.txt), 16 x 4096 by 4096 bf16 by 64 and by 128 blocks: 10.32, 9.96 us; "
        "11.48, 8.77 where the first slots are filled before the kernel ahead has ended; 16 x 11008 by 4096 by 86 and 172: 24.6, 23.6")
    expanded_instructions: float = measured(
        4.0, "instructions an element", "Load and conversion of a narrow element to one of a left operand, beside its operators.",
        _GENERATED + ": int8, 16 x 11008 by 4096, 86 tiles of 128 columns 24.6 us")
    lane_instructions: float = measured(
        2.5, "instructions an element", "The same where a lane loads 16 neighbours at once.",
        "assembler, sm_90a: int8 to bf16, 162 LOP3, 78 PRMT, 64 HADD2 for 128 elements, and 8 loads of 16 bytes")
    lane_part_cycles: float = measured(
        295.0, "cycles", "Time of one warpgroup for 64 inner elements of 64 lines that its lanes expand, products begun.",
        _LANES + ": 172 tiles of 64 columns on 86 multiprocessors 26.9 us")
    register_product_cycles: float = measured(
        46.0, "cycles", "Least time of a product of 64 rows whose left operand lies in registers, however few columns it has.",
        _LANES + ": 520 and 900 cycles of 1.755 GHz for 64 inner elements of two and of four warpgroups, the same for 8 and 16 columns, "
        "for f16 and bf16")
    paired_operations: int = measured(
        4, "operations an element", "Operators of an element that are in `lane_instructions` where halves of bytes are expanded in pairs: "
        "mask or shift, offset, scale, conversion.",
        "assembler, sm_90a: int4 to f16 with an offset and scales, 145 LOP3, 128 PRMT, HADD2 and HMUL2 for 256 elements")
    register_base_cycles: float = measured(
        38.0, "cycles", "Time of such a product beside one cycle for each of its columns, where that is longer than the least.",
        "one H200 (benchmarks/results/few-rows-warps-h200-20261124.txt), int8, 86 tiles of 128 columns of 11008 x 4096: 16, 32 and 64 rows "
        "21.1, 24.3 and 38.7 us")
    warp_step_cycles: float = measured(
        200.0, "cycles", "Least time of a filling whose warps multiply left operands that they expand.", _WARPS)
    warp_part_cycles: float = measured(
        105.0, "cycles", "Time of a multiprocessor for 64 inner elements of 64 lines that single warps expand and multiply.", _WARPS)
    warp_columns_cycles: float = measured(
        12.0, "cycles", "The same for each eight columns: each warp reads them from shared memory.", _WARPS)
    lone_warp_cycles: float = measured(
        52.0, "cycles", "Further time of one warpgroup, whose warps wait for shared memory and for each other's instructions; two tiles of "
        "a warp hide half of it.", _WARPS)
    integers_per_cycle: float = measured(
        78.0, "instructions a cycle and multiprocessor", "Issue of integer instructions, by any number of warpgroups.",
        _GENERATED + ": 64 lanes a cycle of 1.75 GHz; one, two and four warpgroups expand 16 to 17 elements of int8 a cycle of 1.43 GHz")
    lone_array: float = measured(
        1.8, "1", "Time of expanding over that of two register arrays in turn, where products wait for each part that is expanded.",
        _GENERATED + ": 9.4 and 17.5 elements a cycle")
    copy_cycles: float = measured(
        970.0, "cycles", "Latency of a tensor copy from L2 while all multiprocessors copy.",
        f"{_TILES}; one H100, scattered rows of 16384 x 3072 by 768 in tiles of 128 x 128 with five and four slots 119.5 and 128.9 us "
        "(scattered-rows-h100-20261124.txt)")
    turn_cycles: float = measured(
        0.0, "cycles", "Wait between the last product of a warpgroup and the first of the other, which takes its turn.", _TILES)
    kept_l2_share: float = measured(
        0.4, "1", "Share of L2 in which operands of the tiles at work stay until further tiles need them.", _TILES)
    tile_cycles: float = measured(
        240.0, "cycles", "Wait between the last product of a tile and the first of the next.", _TIMED)
    exchange_cycles: float = measured(
        1000.0, "cycles", "Exchange of a tile's row parts between the blocks of a cluster: sends, waits for the slowest block.",
        "assumption: five accesses to another block's shared memory of 180 cycles each (Luo et al. 2024, arXiv:2402.13499, H100)")
    scattered_exchange_cycles: float = measured(
        3000.0, "cycles", "Exchange of a tile's row parts between the blocks of a scattered cluster: stores, a counter, waits for "
        "the slowest block.",
        "one H100, 445b531f, softmax of 8192 x 2048 by 1000 f16, tiles of 128 x 128 in clusters of eight: 2800 to 4100 cycles of the clock "
        "beside the other warpgroup's products, 1700 to 2000 alone (findings.md)")
    combined_operations: int = measured(
        2, "operations an element", "Combination of an element with a partial result of its row.",
        "counted: a difference and a multiply-add, or a comparison and a choice")
    group_columns: int = measured(
        256, "columns", "Columns of a product's rows that its kernel reduces to one partial result, or half as many.",
        "one H200, 8192 x 2048 by 32000 bf16: 1545 to 1674 us in groups of 256, 1652 to 1722 in groups of 128 (findings.md)")
    stored_scores_share: float = measured(
        0.99, "share", "Price of partial results of rows over that of the stored elements, as measured over as predicted.",
        "one H200, cross-entropy of 8192 x 2048 by 32000, 4096 x 4096 by 128256 bf16: 1452 and 1484 us, 6195 and 6515 us with the partial "
        "results and without them, where 1704 and 1702, 6545 and 6516 are predicted for products and copies (findings.md)")
    fill_cycles: float = measured(
        1540.0, "cycles", "Start of a block until its first slot is full.",
        f"{_TIMED}; ten products of 4 to 25 us that begin early (early-products-h200-20261124.txt): predicted over measured 0.87 to 1.22, "
        "median 0.99, late 0.79 to 1.06, median 0.86")
    early_gain_us: float = measured(
        0.75, "us", "Time that a product or chain gains where it begins before the kernel ahead of it ends: its blocks stand, its "
        "first slots fill.", _EARLY)
    early_byte_us: float = measured(
        1.48e-8, "us a byte", "Time that it loses for its traffic: blocks that came early take lines of L2 from the kernel "
        "ahead.", _EARLY)
    own_kernel_share: float = measured(
        1.0, "1", "Most time of a product's own kernel, as a share of the call's, where it holds nothing else.",
        "one H200, 16 rows of cold weights (benchmarks/results/few-rows-generated-h200-20261124.txt), us of call and kernel, predicted for "
        "both: 16 x 4096 by 4096 13.5, 10.2, 12.3, 12.0; 16 x 4096 by 14336 33.1, 29.8, 35.7, 31.9; 16 x 14336 by 4096 31.7, 30.1, 32.0, "
        "32.2; one H100, f32: 4096, 2048 and 1024 cubed 2651 and 1590, 340 and 202, 59.7 and 40.5 with the copy of an operand, predicted "
        "for the kernels 1485, 194, 33")
    registers: int = measured(
        40, "registers a thread", "Registers of a consumer beside its accumulators.", "assembler, sm_90a")
    copying_registers: int = measured(
        40, "registers a thread", "Registers of producers that start tensor copies: a multiple of 8.", "assembler, sm_90a")
    loading_registers: int = measured(
        128, "registers a thread", "Registers of producers that load and store themselves: a multiple of 8.", "assembler, sm_90a")
    barrier_bytes: int = measured(
        1024, "bytes", "Shared memory that a pipeline takes beside its slots: transaction barriers, padding.", "printed kernels")
    parts: PartFigures = field(default=PartFigures())
    overlap: PipelineOverlapFigures = field(default=PipelineOverlapFigures())


@dataclass(frozen=True, slots=True)
class H100PipelinedFigures(PipelinedFigures):
    """Those of an H100."""

    turn_cycles: float = measured(
        1500.0, "cycles", "Wait between the last product of a warpgroup and the first of the other, which takes its turn.",
        "one H100, 134 tiles of 14 products in bf16 and f16 (benchmarks/results/products-h100-20261124.txt)")
