"""Fitted figures of templates that walk one domain: flat walks, tile transposes, column walks, traffic of caches."""
from __future__ import annotations

from dataclasses import dataclass

from tilefuse.target.fitted.evidence import NO_RECORD, measured

_COLUMN_MEANS = "one H200, means of f32 down the columns, us: 196 x [1024, 333] 63.4, 4 x [4096, 4095] 67.5, 1 x [65536, 1023] 66.5"
_COLUMN_SUMS = ("one H200, column sums of 1024 x 65536 f32, us: blocks of 256 threads 62.5, of 128 60.7, the best 25 of 962 kernels by "
                "hand 60.2 to 60.9; eight blocks of 256 a multiprocessor with four rows ahead 74.7, with eight 163.8, which spill")
_ACROSS = ("one H200, 16 x [196, 768] f16 turned: 36 us flat, 6.6 with 8 lanes, 4.9 with 16, 4.1 with 32; copied in the first order as "
           "well: 37, 7.7, 6.4, 8.6 (f32: 35, 8.4, 8.7 with 8 and 16)")
_TURNED = ("one H100, cold operands, us by tiles and by warps across two axes: f16 512 x 512 4.2 and 1.6, 2048 x 2048 13.6 and 7.9, "
           "4096 x 4096 25.3 and 28.9; f32 512 x 512 2.6 and 1.9, 2048 x 2048 19.2 and 14.3, 4096 x 4096 47.7 and 54.4; f64 512 x 512 3.8 "
           "and 2.7, 2048 x 2048 25.1 and 26.1; 32 x [64, 3136] f32 30.6 and 20.6; 8 x [3, 50176] f32, tiles of one run, 4.6 and 8.3")
_ALONE = ("one H200, norm of [128, 32, 254, 254] f32, channels last to row-major, us: 594; with sums of four channels in every thread "
          "693; with their squared deviations too 1621")
_SHORT_AXES = "one H200, convolution weights and images of a ResNet-18 training step, channels last"
_ROWS = ("one H200, last steps of batch norms, us for 1, 2, 4 and 8 rows a thread: one tensor read 17.2 14.7 14.8 15.1 (f32), 33.1 27.8 "
         "27.9 28.3 (bf16); several 24.0 22.8 22.8 21.8 (bf16), 74.3 75.3 76.0 77.0 (f32)")


@dataclass(frozen=True, slots=True)
class FlatFigures:
    """Flat walks and tile transposes."""

    threads: int = measured(
        128, "threads a block", "Threads of a flat walk's blocks, one vector a thread.",
        "one H200, copies: one vector a thread 0.95 to 0.98 of a device copy, two or four 0.90 to 0.96", "python -m benchmarks.tuning")
    host_elements: int = measured(
        4096, "elements", "Elements that a host thread takes in one go.", NO_RECORD)
    row_threads: int = measured(512, "threads a block", "Most threads of a block whose threads take several rows each.", _ROWS)
    row_blocks: int = measured(2, "blocks a multiprocessor", "Least blocks of a walk whose threads take several rows each.", _ROWS)
    single_tensor_rows: tuple[int, ...] = measured((2,), "rows a thread", "Rows a thread takes where one large tensor is read.", _ROWS)
    several_tensor_rows: tuple[int, ...] = measured(
        (8, 4, 2), "rows a thread", "Rows a thread takes where several large tensors are read, best first.", _ROWS)
    several_tensor_share: int = measured(
        2, "1", "Bytes that rows share over bytes that stream, from which on several rows a thread pay where several tensors are read.",
        _ROWS)
    term_flops: int = measured(
        12, "operations a term", "A term of a sum by one thread: a load at a quarter of the rate of additions, its address, an addition.",
        _ALONE)
    squares_term_flops: int = measured(
        70, "operations a term", "The same for squared deviations: Chan's formula with a division. Threads that share a reduction load "
        "vectors and divide once per batch.", _ALONE)
    lanes_across: int = measured(32, "lanes", "Lanes of a warp along the turned axis, where results have one order.", _ACROSS)
    lanes_across_two_orders: int = measured(16, "lanes", "Lanes of a warp along the turned axis, where results have both orders.", _ACROSS)
    shortest_side: int = measured(
        8, "elements", "Shortest side of a tile or of a warp's lanes; below it most of them would be empty.", _ACROSS)
    turn_us: float = measured(
        0.11, "us a KiB", "Time in which a multiprocessor turns a tile, for each of the blocks that begin together.", _TURNED)
    across_vectors_per_us: float = measured(
        3.3e5, "vectors a us", "Rate of the vectors of warps that stand across two axes.",
        "one H100, channels last of images by single elements: 8 x [3, 50176] f32 8.4 us, 64 x [3, 50176] f16 30.8, [3, 1048576] f32 11.7: "
        "3.0 to 3.3 us for a million elements")
    sectors_factor: float = measured(
        1.15, "1", "Time of the traffic of warps that stand across two axes, over that of whole lines, beyond the size of L2.", _TURNED)
    turned_elements: int = measured(
        1 << 14, "elements", "Smallest domain that is turned in shared memory.", NO_RECORD)
    narrow_side: int = measured(
        128, "elements", "Side of a transposed tile of 8-bit and 16-bit elements.",
        "one H200, 8192 x 8192: tiles of half the side lose 1 us of 65, and 3 where rows are powers of two apart")
    wide_side: int = measured(
        64, "elements", "Side of a transposed tile of wider elements.",
        "one H200, 8192 x 8192: tiles of half the side lose 1 us of 65, and 3 where rows are powers of two apart")
    vectors_a_thread: int = measured(
        2, "vectors", "Vectors of 16 bytes that a thread of a transposed tile reads.",
        "one H200: up to 1 us of 65 better than four or eight")
    run_bytes: int = measured(
        256, "bytes", "Bytes that neighbouring threads read together from a tile: two lines of the caches.",
        "one H200: with one line, reads of rows that are powers of two apart are 0.5 us of 68 slower")
    short_axis_elements: int = measured(64, "elements", "Longest axis of which a tile holds all, as one run of memory.", _SHORT_AXES)
    short_axis_tile_bytes: int = measured(16 * 1024, "bytes", "Largest tile that is one run of memory.", _SHORT_AXES)
    short_axis_blocks: int = measured(
        4, "blocks a multiprocessor", "Blocks below which tiles that are one run of memory are made smaller.", _SHORT_AXES)
    short_axis_tile_elements: int = measured(512, "elements", "Smallest tile that is one run of memory.", _SHORT_AXES)


@dataclass(frozen=True, slots=True)
class ColumnFigures:
    """Column walks."""

    few_rows: int = measured(
        16, "rows a thread", "Rows below which blocks that split a column would only wait for each other.",
        "one H200: sums of 131 partial rows of 8192 f32 take 4.3 us where two blocks split a column")
    batch: int = measured(4, "rows", "Rows that a thread of a streamed column kernel loads ahead.", _COLUMN_SUMS)
    other_registers: int = measured(20, "registers a thread", "Registers beside the loaded rows and the accumulators.",
                                   "assembler, sm_90a: sums of f16 24, means of f32 17, sums of partial sums 6 to 16")
    block_threads: int = measured(256, "threads a block", "Threads of a column kernel's block.", _COLUMN_SUMS)
    flight_bytes: int = measured(128, "bytes a thread", "Bytes that a thread of a walk between vectors has in flight.", _COLUMN_MEANS)
    most_waves: int = measured(8, "waves", "Most waves of blocks of a walk between vectors.", _COLUMN_MEANS)
    round_trip_us: float = measured(0.8, "us", "One read of global memory.", _COLUMN_MEANS)
    wave_us: float = measured(0.5, "us", "Start of a wave of blocks.", _COLUMN_MEANS)
    meeting_us: float = measured(4.0, "us", "Meeting of the blocks that split a column.", _COLUMN_MEANS)
    sector_share: float = measured(0.3, "1", "Share of the time of a sector that a second read of it costs.", _COLUMN_MEANS)
    uneven_share: float = measured(
        0.05, "1", "Share of the blocks that other multiprocessors have more, in a single wave, which adds to the time.", _COLUMN_MEANS)
    parts_ahead: int = measured(
        8, "parts", "Partial columns that a thread of the last block loads before it adds the first: they share a round trip.",
        "model with round_trip_us: 64 parts take 6.4 us to join, 12.8 with half as many ahead and 3.2 with twice as many, which need 48 "
        "registers a thread for a variance")
    tall_split: int = measured(
        32, "blocks a column", "Blocks a column from which on two large blocks a multiprocessor are used.",
        "one H200, 256 columns: f16 66.9 us against 68.2 by four blocks of 256, f32 65.7 against 66.7; 4096 columns 66.5 and 65.8")
    tall_threads: int = measured(
        512, "threads a block", "Threads of these blocks.", "one H200, 256 columns: f16 66.9 us against 68.2, f32 65.7 against 66.7")
    tall_batch: int = measured(
        8, "rows", "Rows that a thread of these blocks loads ahead.",
        "one H200, 256 columns: f16 66.9 us against 68.2, f32 65.7 against 66.7")
    least_threads: int = measured(
        64, "threads a block", "Threads of the smallest blocks of columns that need no split, so that all blocks run at a time.",
        "one H200, 1024 x 65536 f32: 62.5 us by 256 threads, 60.9 by 128; torch.compile 60.5")
    most_parts: int = measured(
        160, "parts", "Parts of a column that one block reads back in a few rounds of loads.",
        "one H200, 256 columns in tiles of 256 bytes: 264 parts in f16 0.94 of torch.compile, 132 in f32 1.0")
    written_rows: int = measured(
        16, "rows a thread", "Rows a thread of a kernel that also writes its elements.",
        "one H200, B = A + u v^T and B^T y of 16384^2 f32: 548 us")
    written_batch: int = measured(
        2, "rows", "Rows that such a thread loads ahead.",
        "one H200, B = A + u v^T and B^T y of 16384^2 f32: 548 us with two rows ahead, 559 with four")
    written_waves: int = measured(
        4, "waves", "Waves of such blocks from which on many short blocks are used.",
        "one H200, B = A + u v^T and B^T y of 16384^2 f32: 548 us")
    long_column: int = measured(64, "rows", "Rows from which on tiles of half the width are used.", NO_RECORD)
    kept_threads_down: int = measured(64, "threads", "Most threads down a column that is kept in registers.", NO_RECORD)
    reread_l2_share: int = measured(
        8, "1", "Part of L2 from which on columns that few blocks read twice are split into two kernels: L2 over this number.",
        NO_RECORD)
    short_batch: int = measured(8, "rows", "Most rows that a thread of short columns loads ahead.", NO_RECORD)


@dataclass(frozen=True, slots=True)
class TrafficFigures:
    """Traffic of caches."""

    again_share: float = measured(
        0.5, "1", "Share of repeated reads of a row-invariant vector that miss L1. Blocks on one multiprocessor share L1.",
        "one H200: a matrix times a vector of 64 KiB takes 0.91 of a copy of its bytes, one of 128 KiB as much")
    scattered_waste: int = measured(
        2, "1", "Bytes of touched sectors over bytes that a warp asks for, from which on an access counts as scattered.",
        NO_RECORD)
    l2_bytes_per_cycle: float = measured(
        24.0, "bytes a cycle and multiprocessor", "Rate of L2 for one multiprocessor when all ask.",
        "DeviceSpec.resident_curve: 16 MiB in 2.659 us, 24.1 bytes a cycle of 1.98 GHz for each of 132 multiprocessors",
        "tilefuse calibrate")
    streamed_elements: int = measured(
        4096, "elements", "Smallest input whose loads leave the caches first; rows and lanes may share smaller ones.", NO_RECORD)
    pending_l2_share: float = measured(
        0.25, "1", "Share of L2 that settled operands may take, which are prefetched before the previous kernel ends.",
        NO_RECORD)
