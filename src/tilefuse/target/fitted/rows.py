"""Fitted figures of row kernels, a record for each decision: lanes a row, registers of a norm, queues of rows, carried sums, exchanges."""
from __future__ import annotations

from dataclasses import dataclass

from tilefuse.target.fitted.evidence import NO_RECORD, measured

_LOSSES = "one H200, us by 8, 16 and 32 lanes a row: losses of 256 classes, f16 62, 73, 107; f32 62, 62, 67"
_POSITIONS = ("one H200, argmax of 16-bit elements, us by 4 and by 16 vectors a thread: rows of 4096 and 8192 77, 67; rows of 1024 by half "
              "a warp 69.5, 67.4 with 8; f32 the same by either")
_SHARED_VECTOR = ("one H200, matrix times vector, us by 512 and by 256 threads a row: f64, vector of 128 KiB 460, 464; 16384 x 16384 f32, "
                  "vector of 64 KiB 237.0, 237.7; two of a BiCGStab iteration 473.3, 476.1; 8192 x 8192 f64 121.1, 121.4; several rows a "
                  "block 241 to 483")
_NORMS = ("one H200, us with more and with fewer blocks: layer norm over 4096 f16 2 % faster with 6 blocks of 256 than with 5 or 8; RMS "
          "norm over 8192 f16 65.1, 66.6; layer norm over 4096 f32 65.0, 66.5")
_HELD_NORMS = ("one H200, layer norm over 8192 f16, us: three blocks of 512 threads 69.6, four 65.4, four of 256 threads with twice the "
               "elements 65.7")
_TUNED = "one H200, 2026-11-21, softmax and norms of 64 KiB to 512 KiB a row, all neighbours of the chosen kernel; figures not kept"
_WEIGHTED = ("one H200, layer norm over 65536 f16, us: queue 71.0, best of other blocks 72.3; with 2, 3, 4 and 6 slots 72.6, 73.9, 74.3, "
             "75.3")
_SMALL_BLOCKS = ("one H200, us by small blocks and by a queue: residual and layer norm over 32768 f16 69.8, 72.4; 65536 f16 71.8, 73.9; "
                 "32768 f32 68.6, 71.9; 65536 f32 71.2, 72.2; 8192 f32 67.3, 70.6; layer norm over 32768 f16 67.8, 69.7; 32768 f32 70.0, "
                 "71.9")
_CARRIED_SLOTS = ("one H200, 16-bit rows of 1024 to 65536: four slots 1 to 2 % slower than two; f32 rows of 8192: three 3 % faster than "
                  "two; several sums over 262144 f16: three 3 % slower than two")
_FEW_ELEMENTS = ("one H200, gradients of layer norm, f32, us with 16 and with 8 elements: rows of 256 73.4, 70.4; 1024 70.6, 69.2; 4096 "
                 "72.4, 70.7; 8192 74.1, 71.4; 32768 74.4, 70.7; 65536 74.3, 71.9; RMS norm 8192 72.7, 71.4; 32768 72.9, 70.2; 65536 "
                 "74.1, 71.7; "
                 "by single blocks (not used) 1024 69.8, 71.6; 4096 70.9, 72.9")
_CARRIED_REGISTERS = ("assembler, sm_90a, gradients of norms over 256 to 262144: RMS norm f16 95 to 128, layer norm f16 120 to 128, both "
                      "f32 71 to 111, no spills; blocks of 512 threads run alone, those of 256 by twos")
_LIGHT = ("one H200, gradients of RMS norm, us with 112 and with 131 blocks: 4096 f16 70.3, 75.2; 4096 bf16 71.6, 76.5; 8192 f16 71.5, "
          "74.2; two sums of layer norm 75.3, 73.4; f32 71.7, 71.4")
_SHARED = ("one H200 (benchmarks/results/few-rows-early-h200-20261124.txt), RMS norm, 4096 x 4096 bf16, residual, us: 8 rows of a warp "
           "with 1, 2 and 3 slots 11.2, 10.5, 11.2; 4 rows in 256 blocks 10.4, 16 rows 10.7, 8 rows of two warps 10.3; rows of four "
           "warps 11.4; held rows with a norm each 13.9")
_LONG_CLUSTERS = ("one H200, gradients, f32, us with 14 and with 15 clusters of 8: layer norm of 32768 69.7, 70.4; RMS norm of 32768 68.5, "
                  "69.6; layer norm of 65536 68.5, 69.2; 262144 with 6 and with 7 clusters of 16: 79.2, 83.8; 76.1, 78.4; 73.3, 75.2; "
                  "residual and layer norm 77.0, 78.7; clusters of 2 or 16-bit elements gain by more: 72.5 with 28, 71.6 with 30")


@dataclass(frozen=True, slots=True)
class KeptFigures:
    """Registers of threads that keep elements of rows or columns from one walk to the next."""

    thread_bytes: int = measured(
        128, "bytes a thread", "Boundary values that a thread keeps: a quarter of 255 registers leaves room for addresses, accumulators "
        "and conversions.", "assembler, sm_90a: no spills at 128")
    column_bytes: int = measured(
        64, "bytes a thread", "Vectors along the row, such as weights, that a thread keeps for all its rows while it carries sums. Twice "
        "as many without carried sums; up to four times as many where the thread holds no elements of the row.", NO_RECORD)
    flops: int = measured(
        6, "operations", "Least operations of a value that is kept rather than computed again.",
        "count of instructions, sm_90a: an exponential takes 8")
    narrow_flops: int = measured(
        8, "operations", "The same where functions have short forms.",
        "count of instructions, sm_90a: an exponential of a difference stays below, an activation does not")
    host_bytes: int = measured(
        128 * 1024, "bytes", "Exponentials of a row that the host's caches keep.",
        "one host core: a second exponential takes four times as long as a write and a read")


@dataclass(frozen=True, slots=True)
class RowLaneFigures:
    """How many lanes walk a row, and how many vectors each takes."""

    result_vectors: int = measured(
        4, "vectors a thread", "Vectors of short rows that leave only results: each row costs a fixed number of shuffles and one store, so "
        "fewer lanes a row do less work.", _LOSSES)
    full_threads: int = measured(
        1024, "threads a multiprocessor", "Threads from which on there are rows enough for fewer lanes a row.", _LOSSES)
    position_vectors: int = measured(
        16, "vectors a thread", "Vectors where a row's result is a position among narrow elements: combining the positions of two threads "
        "takes a dozen instructions.", _POSITIONS)
    short_position_vectors: int = measured(8, "vectors a thread", "The same for rows of at most a warp.", _POSITIONS)
    shared_vector_bytes: int = measured(
        64 * 1024, "bytes", "Vectors that all rows share, from which on a row takes a larger block: blocks read them once each.",
        _SHARED_VECTOR)
    shared_vector_threads: int = measured(512, "threads a block", "Threads of that larger block.", _SHARED_VECTOR)
    written_waves: int = measured(
        4, "waves", "Waves of blocks from which on rows that are also written are split: they run like copies, better by many short "
        "blocks.",
        "one H200, z = a x + y and z.u of 2^26 f32, ms by 16384, 4096, 512 and 1056 blocks: 0.253, 0.256, 0.264, 0.268")
    scan_threads: int = measured(
        256, "threads a block", "Threads that scan a block's share of a row: adding up warps one by one costs more than registers for "
        "twice the elements.", "one H200, running sums over 262144 f32, two blocks a multiprocessor: 73.7 us by 256 threads, 77.6 by 512")
    rest_length: int = measured(
        2048, "elements", "Shortest rows that are read in vectors which do not divide them: one thread walks the rest.",
        "one H200, losses over windows of 50257 f16 in rows of 50264: 414 us element by element; shorter rows were not measured")


@dataclass(frozen=True, slots=True)
class NormFigures:
    """Norms whose rows lie in registers: registers of a thread, and blocks that share a multiprocessor."""

    other_registers: int = measured(12, "registers a thread", "Registers beside the row and the weights loaded with it.", _NORMS)
    bound_registers: int = measured(
        40, "registers a thread", "A bound on registers: the assembler takes a few more for values that this many hold without spills.",
        _NORMS)
    full_registers: int = measured(
        32, "registers a thread", "The bound of blocks that load weights after the reductions, for the most threads of a "
        "multiprocessor.", _NORMS)
    long_registers: int = measured(
        64, "registers a thread", "The bound of blocks that share a row in a cluster, or hold a long one.",
        "one H200, clustered norms: 0.91 of a copy with the bound, 0.81 without, one block fewer a multiprocessor")
    small_block_threads: int = measured(
        256, "threads a block", "Most threads of blocks that load weights before the first reduction, and whose clusters keep inputs in L2 "
        "longer than results: larger blocks lack the registers.",
        "one H200: early weights in larger blocks 4 % slower; lines that leave last, RMS norm over 262144 f32 by 512 threads 80.4 us, 79.2 "
        "without")
    longest_threads: int = measured(
        768, "threads a multiprocessor", "Threads where blocks of the longest clusters hold a norm's row: twice the elements a thread.",
        "one H200, RMS norm over 65536 f32, us: six blocks of 128 threads 71.5, four of 256 73.0")
    held_bytes: int = measured(
        64 * 1024, "bytes a multiprocessor", "Rows that the blocks of a multiprocessor hold together at least: with fewer, memory waits "
        "while rows are reduced.", _HELD_NORMS)


@dataclass(frozen=True, slots=True)
class SharedRowFigures:
    """Rows that are multiplied by a vector which their block prepares, in queues of teams."""

    threads: int = measured(256, "threads a block", "Threads of a block.", _SHARED)
    row_threads: int = measured(32, "threads a row", "Threads of a row whose block's rows fit the slots: no two warps meet.", _SHARED)
    slots: int = measured(2, "slots", "Most slots of a team.", _SHARED)


@dataclass(frozen=True, slots=True)
class RowQueueFigures:
    """Rows that asynchronous bulk copies bring to a ring of slots in shared memory, ahead of persistent blocks."""

    reserved_bytes: int = measured(
        8192, "bytes a block", "Shared memory for reductions beside the slots.",
        "count over 58 kernels with queues of 346 patterns and 16 plans: 128 to 1024 bytes, so this many are never short")
    row_bytes: int = measured(
        512 * 1024, "bytes", "Shortest rows that a queue brings: blocks hold shorter ones in registers and overlap on their own.", _TUNED,
        "python -m benchmarks.tuning")
    weighted_row_bytes: int = measured(
        64 * 1024, "bytes", "The same where vectors that all rows share are as many bytes as the row: blocks that read them for every row "
        "ask more of L2 than of memory.", _WEIGHTED)
    small_block_row_bytes: int = measured(
        128 * 1024, "bytes", "Longest weighted rows of one 32-bit operand that small blocks hold instead of a queue.", _SMALL_BLOCKS)
    held_slots: int = measured(4, "slots", "Rows in flight ahead of the one in registers.", NO_RECORD)
    norm_slots: int = measured(2, "slots", "The same for weighted rows.", _WEIGHTED)
    threads: int = measured(
        512, "threads a block", "Threads of a kernel that reads rows from the queue, one block a multiprocessor: 128 registers each.",
        "one H200, layer norm, us by one block of 512 and by two of 256: 32768 f16 71.8, 74.7; 65536 f16 71.5, 73.0; 32768 f32 71.6, 76.8")
    once_bytes: int = measured(
        64 * 1024, "bytes a block", "Least share of a row in the longest clusters that passes through shared memory once: three blocks of "
        "a multiprocessor fit there, two in its registers.",
        "one H200, softmax over 262144 f32, us: three blocks 74.3, two with the row in registers 79.0")
    ahead_bytes: int = measured(
        48 * 1024, "bytes", "Bytes of the next row in flight while all pieces of a row are in the queue.", NO_RECORD)
    ahead_slots: int = measured(
        4, "slots", "Slots where rows are reduced one turn ahead: one is finished, one is reduced, two are in flight.",
        "one H200, layer norm, us ahead and held: 262144 f16 72.6, 76.6; 65536 f16 76.0, 71.0; 65536 f32 73.4, 71.1")
    least_ahead_slots: int = measured(
        3, "slots", "Least slots for that: one row in flight.", "count of a turn's rows: finished, reduced, in flight")
    late_threads: int = measured(
        256, "threads a row", "Threads from which on a slot is refilled behind the row's own barrier.",
        "one H200, gradients of layer norm f16, us late and at once: 8192 72.5, 73.4; 65536 76.1, 77.0; fewer threads were not measured")


@dataclass(frozen=True, slots=True)
class CarriedFigures:
    """Rows whose sums down the columns stay in registers while a block walks its group of rows."""

    shapes: tuple[tuple[int, int], ...] = measured(
        ((16, 512), (32, 512)), "(elements a thread, threads a block)", "Row elements of a thread and most threads, shortest rows first.",
        "one H200: 16 elements and 512 threads are faster than 8 and 1024, than 16 and 2 x 512 (which spills), and than 32 and 256")
    few_elements: int = measured(
        8, "elements a thread", "Row elements where several f32 operands are read and the elements written: half the bytes in flight, but "
        "clusters of twice the blocks write half as many partial sums.", _FEW_ELEMENTS)
    few_elements_threads: int = measured(512, "threads a block", "Threads of such blocks.", _FEW_ELEMENTS)
    narrow_threads: int = measured(
        256, "threads a block", "Threads in clusters whose 16-bit rows carry several sums: two blocks hide each other's latency.",
        "one H200, gradients of layer norm, f16, two runs, us: 32768 by 4 blocks of 512 74.3, 75.1, by 8 of 256 73.0, 73.5; 65536 by 8 of "
        "512 75.1, 76.2, by 16 of 256 74.3, 75.1")
    registers: int = measured(100, "registers a thread", "Registers of a thread, which bound the blocks a multiprocessor.",
                             _CARRIED_REGISTERS)
    light_length: int = measured(4096, "elements", "16-bit rows with one sum from which on fewer blocks walk.", _LIGHT)
    light_share: float = measured(
        0.85, "1", "Share of multiprocessors for these: more blocks spread the accesses and lower DRAM efficiency.", _LIGHT)
    long_cluster: int = measured(8, "blocks a cluster", "Clusters from which on fewer of them walk.", _LONG_CLUSTERS)
    long_cluster_shares: tuple[tuple[int, float], ...] = measured(
        ((64 << 10, 0.73), (32 << 10, 0.85)), "(bytes a block, 1)", "Least bytes of an f32 row in a block, and the share of "
        "multiprocessors that saturates DRAM.", _LONG_CLUSTERS)
    least_turns: int = measured(
        4, "rows a block", "Least iterations of a block over its group: with fewer, partial sums are a large part of the traffic.",
        "count of bytes: f32 partial sums of four f32 rows, written and read again, add a quarter to the traffic")
    slots: int = measured(2, "slots", "Rows in flight ahead: more only spread the accesses.", _CARRIED_SLOTS)
    wide_slots: int = measured(3, "slots", "The same for rows of f32.", _CARRIED_SLOTS)
    whole_slots: int = measured(3, "slots", "The same where every walk reads the row from its slot and carries one sum.", _CARRIED_SLOTS)
    held_bytes: int = measured(
        256, "bytes a thread", "Carried sums and row elements above which a thread reads the row from its slot again; also the most that "
        "carried sums alone may take.", "half of the 128 registers that a thread has in a block of 512, one block a multiprocessor")
    unqueued_bytes: int = measured(
        64 << 10, "bytes a multiprocessor", "Loads at once from which on rows of several f32 operands need no queue.",
        "one H200, gradients of norms of 4096 f32, 64 KiB at once, us without and with a queue: 69.4, 72.3; 70.9, 74.3; A'(A x), 32 KiB at "
        "once: 90.3, 67.4; 16-bit elements gain 10 to 20 % by a queue")


@dataclass(frozen=True, slots=True)
class ExchangeFigures:
    """Partial results that the threads of a row tell each other."""

    slots_read_by_all: int = measured(4, "slots", "Most partial results that every thread reads itself; above, lanes share them.",
                                    NO_RECORD)
    sending_warps: int = measured(
        4, "warps a block", "Warps of a block above which one warp sends the block's result to its cluster.",
        "one H200: rows over 16 blocks of 16 warps take 8 % less time")
    scan_slots: int = measured(
        16, "slots", "Warps' totals of a scan that every thread adds up itself; more are scanned once, after one more barrier.", NO_RECORD)


@dataclass(frozen=True, slots=True)
class RowFigures:
    """Row kernels."""

    lanes: RowLaneFigures = RowLaneFigures()
    norms: NormFigures = NormFigures()
    queue: RowQueueFigures = RowQueueFigures()
    shared: SharedRowFigures = SharedRowFigures()
    carried: CarriedFigures = CarriedFigures()
    exchange: ExchangeFigures = ExchangeFigures()
