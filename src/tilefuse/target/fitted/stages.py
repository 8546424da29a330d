"""Fitted figures of kernels of stages (stitched kernels, walks between products) and of packed kernels."""
from __future__ import annotations

from dataclasses import dataclass

from tilefuse.target.fitted.evidence import NO_RECORD, measured

_LUO = "latencies of an H100, Luo et al. 2024, arXiv:2402.13499"
_MATRIX_RATE = ("Luo et al. 2024, arXiv:2402.13499: mma.sync reaches about 62 % of an H100's dense rate, 4096 FLOP of 16 bits and 1024 "
                "multiply-adds of tf32 a cycle")
_DIRECT = "one H200, 12 products of 32 x 256 by 256 x 256 in f32: 55 us word by word, 31 with 16 loads of 16 bytes in flight"
_ASSEMBLER = "assembler, sm_90a"
_STAGED_REGISTERS = ("assembler, sm_90a, 23 stitched kernels of seven planned models: 30 to 168 registers where 56 to 152 are counted, no "
                     "spills; two kernels take 127 and 132 where 56 are counted")
_ATTENTION = "one H200, attention of f16 in eleven tiles, within 15 %"
_SLOWDOWN = ("one H200: copies by blocks of 128 and of 512 threads differ by 3 per cent, row reductions by about 10 for each doubling of "
             "the threads a row")
_SMALL_COPIES = "DeviceSpec.transfer_curve: 16 KiB take 1.07 us, 128 KiB 1.20 us"
_STAGES = ("one H200, stages without products (assumed-figures-h200-20261124.txt, not fitted): ten of 0.81 to 1.95 us take 0.2 to 1.3 us "
           "longer than predicted without it, 0.4 in the median; least squares over the half \"fit\" of the record give 0.71, and "
           "0.47 for `side_by_side`, by which the other half of the stitched kernels is predicted 0.99, 1.32, 1.37 times the measured time")
_HELD = "register counts of generated kernels for sm_90a: 24 to 40 beside the values held"


@dataclass(frozen=True, slots=True)
class OverlapFigures:
    """How far the blocks of a multiprocessor hide each other's waits (`domain/roofline.py`). Defaults: stages between barriers."""

    alone_share: float = measured(
        0.8, "1", "Share of a tile's instructions that a block of 256 threads cannot overlap with each other.",
        "one H200, products with softmax, two to four blocks a multiprocessor")
    alone_threads: int = measured(
        256, "threads a block", "Threads of the blocks for which `alone_share` was fitted.",
        "one H200, products with softmax, two to four blocks a multiprocessor")
    waits_hidden: bool = measured(
        False, "1", "Whether blocks of a multiprocessor wait at different times, so that each hides a part of the others' waits.",
        "alike blocks begin together and wait at the same barriers; `counted_share` was fitted with it")
    last_wave: float = measured(
        1.0, "1", "Share of the missing blocks of a last wave that counts: 1 where all blocks take equally long.",
        "alike blocks begin and end together; `counted_share` was fitted with it")
    counted_share: float = measured(
        0.75, "1", "Time of a kernel over its counted cycles, kept above the measured ones so that only plainly faster kernels are taken.",
        "one H200, records planner-h200 of 2026-11-22 and 2026-11-23: 24 stitched kernels 0.34 to 1.42, quartiles 0.56, 0.68 and 0.85; "
        "blocks that share a multiprocessor hide more than counted (LSTM steps 0.48), small grids less (products of 1056 blocks 1.42)",
        "python -m benchmarks planner")
    least_us: float = measured(
        0.35, "us", "Least time beside the cycles: start and end of a block whose waits no other block hides.", _STAGES,
        "python -m benchmarks.replay --fit stitch.overlap.least_us --template stitched")


@dataclass(frozen=True, slots=True)
class WalkOverlapFigures(OverlapFigures):
    """The same of walks between products, whose blocks copy the next turn's operands while they compute."""

    alone_share: float = measured(0.0, "1", "Share of a turn's instructions that a block cannot overlap with each other.", _ATTENTION)
    waits_hidden: bool = measured(
        True, "1", "Whether blocks of a multiprocessor wait at different times, so that each hides a part of the others' waits.",
        _ATTENTION)
    last_wave: float = measured(
        0.5, "1", "Share of the missing blocks of a last wave that counts: blocks start as others end.", _ATTENTION)
    counted_share: float = measured(
        1.1, "1", "Estimate over the counted cycles, kept above the measured times so that only plainly faster walks are taken.",
        "one H200, record planner-h200 of 2026-11-22: four walks 0.78 to 0.93", "python -m benchmarks planner")
    least_us: float = measured(1.5, "us", "Least time of a walk beside its cycles.", "one H200, attention of few rows and keys")


@dataclass(frozen=True, slots=True)
class MultiplyFigures:
    """Products inside kernels, on one multiprocessor."""

    fma_per_cycle: float = measured(
        128.0, "multiply-adds a cycle", "Rate of threads in f32.",
        "CUDA C++ Programming Guide, arithmetic instructions of compute capability 9.0")
    mma_per_cycle: float = measured(1300.0, "multiply-adds a cycle", "Rate of the matrix unit for 16-bit operands.", _MATRIX_RATE)
    tf32_per_cycle: float = measured(640.0, "multiply-adds a cycle", "Rate of the matrix unit for tf32 operands.", _MATRIX_RATE)
    step_cycles: float = measured(
        40.0, "cycles", "Latency of f32 products on the matrix unit, from one step of a warp to its next.", NO_RECORD)
    instruction_cycles: float = measured(
        20.0, "cycles", "Part of that latency that the instructions of one tile and step fill.", NO_RECORD)
    half_step_cycles: float = measured(
        33.0, "cycles", "Latency of 16-bit products on the matrix unit, from one step of a warp to its next.", _LUO)
    exchange_cycles: float = measured(
        90.0, "cycles", "Wait of warps for each other's sums of a product: a store, a barrier and a load in shared memory.", _LUO)
    least_wait_cycles: float = measured(5.0, "cycles", "Least remaining wait.", NO_RECORD)
    read: float = measured(
        0.6, "multiply-adds of a warp", "A pass through shared memory for an element of the inner axis.", NO_RECORD)
    scattered_read: float = measured(
        1.6, "multiply-adds of a warp", "The same where a warp's tiles share no strip of columns.", NO_RECORD)
    conversion: float = measured(
        2.0, "multiply-adds of a warp", "Conversion of an operand's element from 16 bits, where threads multiply.",
        "CUDA C++ Programming Guide, compute capability 9.0: 64 conversions a cycle and multiprocessor, 128 multiply-adds; MLP-Mixer at "
        "batch 1, products of 196 inner elements in f16: two kernels together 8 us predicted without it, about 21 measured")
    left_instructions: int = measured(
        14, "instructions", "Reading and splitting a fragment of the left operand in f32.", _ASSEMBLER)
    held_left_instructions: int = measured(12, "instructions", "Splitting one that registers hold.", _ASSEMBLER)
    right_instructions: int = measured(8, "instructions", "Reading and splitting a fragment of the right operand.", _ASSEMBLER)
    split_slots: int = measured(20, "issue slots", "Three matrix instructions.", _ASSEMBLER)
    split_read: float = measured(
        3.0, "multiply-adds of a warp", "A read of shared memory where lanes split the inner axis.",
        "one H200, an LSTM step with eightfold bank conflicts: 2.4 us a product, all of it reads of shared memory")
    direct_read: float = measured(4.0, "multiply-adds of a warp", "A load of a right operand from global memory.", _DIRECT)
    direct_elements: int = measured(32, "elements a thread", "Elements of such an operand in flight.", _DIRECT)

    def rate(self, arithmetic: str | None) -> float:
        """Upper bound on the rate of every tiling with this arithmetic; None: threads multiply. Units: multiply-adds a cycle."""
        match arithmetic:
            case None:
                return self.fma_per_cycle
            case "":
                return self.mma_per_cycle
        return self.tf32_per_cycle / 3 if arithmetic == "split" else self.tf32_per_cycle


@dataclass(frozen=True, slots=True)
class StitchFigures:
    """Stitched kernels: stages over one tile, composed in one block."""

    multiply: MultiplyFigures = MultiplyFigures()
    one_block_steps: int = measured(
        1 << 16, "elements", "Elements (steps, of reductions) of a pattern without products that one block computes about as fast as one "
        "more kernel is launched.", NO_RECORD)
    unrolled_items: int = measured(4, "items", "Items of a thread that are written out one after another.", _ASSEMBLER)
    items_together: int = measured(
        8, "items", "Most items of a thread whose rows of a table are under way together: 32 registers.",
        "assembler, sm_90a: a gather of 64 rows of 200 f32 by 128 threads, 58 registers with 5 of 25 together. One H200, word2vec with one "
        "or two together: four kernels 16.1 us, predicted 8.4 without these waits")
    base_registers: int = measured(24, "registers a thread", "Registers beside a product's sums and operands.", _STAGED_REGISTERS)
    least_registers: int = measured(56, "registers a thread", "Least registers of a thread.", _STAGED_REGISTERS)
    left_fragment_registers: int = measured(
        12, "registers a thread", "Left operand of f32 for 16 rows on tensor cores, with its low parts.", _ASSEMBLER)
    right_fragment_registers: int = measured(
        16, "registers a thread", "Four right operands of f32 on tensor cores, with their low parts.", _ASSEMBLER)
    row_value_registers: int = measured(
        30, "registers a thread", "Maps and reductions that go on along the rows of a product's sums.", _ASSEMBLER)
    held_operand_registers: int = measured(
        40, "registers a thread", "Addresses and values of products whose left operand stays in registers.", _ASSEMBLER)
    fewer_elements: int = measured(
        8, "1", "Elements of a reader over those of a heavy map, from which on the map is kept: its functions would be evaluated for every "
        "element of the reader.",
        "multiply-adds of threads over special functions a cycle, CUDA C++ Programming Guide; not measured")
    block_sums: int = measured(
        16384, "sums a block", "Sums that a block's threads keep of all products of a stage: a quarter of a multiprocessor's registers.",
        NO_RECORD)
    thread_sums: int = measured(
        128, "sums a thread", "Sums that a thread keeps where threads multiply.", "assembler, sm_90a: 163 registers hold 128 of them")
    matrix_sums: int = measured(
        64, "sums a thread", "Sums that a thread keeps where the matrix unit multiplies, whose operands take registers too.",
        _ASSEMBLER)
    row_elements: int = measured(32, "elements", "Elements of a row that a lane keeps for each value of a stage of rows.",
                                "assembler, sm_90a: no spills at 128 bytes a thread, which these are in f32")
    stage_cycles: float = measured(150.0, "cycles", "Wait of a stage whatever its size: shared memory and barrier.", _LUO)
    global_cycles: float = measured(700.0, "cycles", "Wait of a stage for global memory.", _LUO)
    cached_cycles: float = measured(200.0, "cycles", "Wait of a stage for operands in the caches.", _LUO)
    barrier_cycles: float = measured(30.0, "cycles", "A block barrier.", _LUO)
    shuffle_cycles: float = measured(30.0, "cycles", "A step of a reduction over the lanes of a warp.", _LUO)
    sum_cycles: float = measured(4.0, "cycles", "An addition that waits for the one before it.", _LUO)
    tile_access_cycles: float = measured(
        4, "cycles of a thread's multiply-add", "Accesses to shared memory for an element of a map or reduction.", NO_RECORD)
    product_access_cycles: float = measured(
        2, "cycles of a thread's multiply-add", "The same for an element behind a product.", NO_RECORD)
    l2_port_bytes: float = measured(
        56.0, "bytes a cycle and multiprocessor", "Rate of L2 for one multiprocessor when few ask.", NO_RECORD)
    direct_bytes: int = measured(
        49152, "bytes", "Size from which on right operands that few rows use are read in global memory.", NO_RECORD)
    overlap: OverlapFigures = OverlapFigures()
    many_tiles: int = measured(
        4, "tiles a multiprocessor", "Tiles from which on blocks that walk several of them are tried.", NO_RECORD)


@dataclass(frozen=True, slots=True)
class OnlineFigures:
    """Walks between two products (attention)."""

    matrix_registers: int = measured(44, "registers a thread", "Registers beside the arrays, with the matrix unit.", _ASSEMBLER)
    thread_registers: int = measured(40, "registers a thread", "Registers beside the arrays, where threads multiply.", _ASSEMBLER)
    left_fragment_registers: int = measured(
        12, "registers a thread", "Left operand of f32 for 16 rows on tensor cores, with its low parts.", _ASSEMBLER)
    right_fragment_registers: int = measured(
        16, "registers a thread", "Four right operands of f32 on tensor cores, with their low parts.", _ASSEMBLER)
    special_per_cycle: float = measured(
        16.0, "functions a cycle and multiprocessor", "Rate of the special unit.",
        "CUDA C++ Programming Guide, arithmetic instructions of compute capability 9.0")
    shared_bytes_per_cycle: float = measured(
        128.0, "bytes a cycle and multiprocessor", "Rate of shared memory.", "CUDA C++ Programming Guide: 32 banks of 4 bytes a clock")
    turn_cycles: float = measured(450.0, "cycles", "Wait of a block for a turn's barriers and shuffles.", _ATTENTION)
    fetch_cycles: float = measured(740.0, "cycles", "Wait for a turn's operands where nothing is copied ahead.", _ATTENTION)
    block_cycles: float = measured(3000.0, "cycles", "Start and end of a block.", _ATTENTION)
    matrix_beside: float = measured(
        0.4, "1", "Share of the other instructions that finds no gap between those of products, with the matrix unit.", _ATTENTION)
    thread_beside: float = measured(
        0.8, "1", "Share of the other instructions that finds no gap between those of products, where threads multiply.", _ATTENTION)
    double_cost: float = measured(2.0, "1", "Time of f64 multiply-adds over f32.", "data sheet: half the rate")
    overlap: OverlapFigures = WalkOverlapFigures()


@dataclass(frozen=True, slots=True)
class PackedFigures:
    """Packed kernels: independent parts in one launch."""

    streaming_threads: int = measured(
        1024, "threads a multiprocessor", "Threads that a streaming part needs: half of a device's most.",
        "one H200, copies with limited occupancy")
    small_bytes: int = measured(
        4 << 20, "bytes", "Traffic below which a kernel is bound by its launch, and few resident threads suffice.",
        "one H200: 4 MB take about as long as a launch in a graph")
    least_stitched_threads: int = measured(
        64, "threads a block", "Threads below which stages of a stitched kernel wait most of the time.", NO_RECORD)
    least_bytes: int = measured(
        1 << 14, "bytes", "Least weight of a part when threads a block are chosen: smaller parts are bound by latency.",
        _SMALL_COPIES, "tilefuse calibrate")
    wider_walk_loss: float = measured(0.015, "1", "Time that each doubling of a flat walk's threads a block adds.", _SLOWDOWN)
    narrower_walk_loss: float = measured(
        0.25, "1", "Time that each halving of a flat walk's threads a block adds.",
        "one H200: blocks of fewer than 128 threads leave half of a multiprocessor's threads unused")
    row_blocks_loss: float = measured(0.02, "1", "Time that each doubling or halving of a row kernel's rows a block adds.", _SLOWDOWN)
    row_threads_loss: float = measured(0.1, "1", "Time that each doubling or halving of a row's threads adds.", _SLOWDOWN)
    flat_registers: int = measured(24, "registers a thread", "Registers of a flat walk beside its values.", _HELD)
    transpose_registers: int = measured(32, "registers a thread", "Registers of a tile transpose beside its values.", _HELD)
    reduction_registers: int = measured(40, "registers a thread", "Registers of row and column kernels beside their values.", _HELD)
    held_reductions: int = measured(
        4, "reductions", "Reductions whose registers are part of these; each further one has those of its own.",
        "NVRTC 13.0 for sm_90a: sums in 4 accumulators each, 32 together 255 registers, 16 of i64 104; 8 maxima of columns 126")
