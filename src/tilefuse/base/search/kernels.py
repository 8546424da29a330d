"""Bounds of searches for one kernel: tiles and threads that are tried, and sizes of generated code."""
from __future__ import annotations

from dataclasses import dataclass

from tilefuse.base.search.bound import bound

_CODE = "longer code takes longer to compile and leaves the instruction cache"
_PLANNING = "each value multiplies the tiles that are priced"
_TUNING = "each value is one more kernel that tuning compiles and times"


@dataclass(frozen=True, slots=True)
class DomainLimits:
    """Sums and expressions of one thread, and forms of contractions."""

    warp_instructions: int = bound(
        16, "matrix instructions", "Instructions whose accumulators one warp holds: 64 registers a lane.",
        "a lane has 255 registers, and operands and addresses need the others")
    warp_row_instructions: int = bound(
        40, "matrix instructions", "The same where rows are reduced in registers: 160 registers a lane.",
        "a lane has 255 registers, and operands and addresses need the others")
    thread_tile_sides: tuple[int, ...] = bound((1, 2, 3, 4, 5, 6, 8), "elements", "Sides of a thread's tile of products.", _PLANNING)
    thread_tile_sums: int = bound(40, "sums", "Largest number of sums in a thread's tile.", "a sum is a register, operands are others")
    serial_reduction: int = bound(32, "elements", "Largest reduction that may be a loop of one thread. Threads share longer ones.")
    serial_window: int = bound(4096, "elements", "Largest overlapping window that one thread reduces.")
    serial_results: int = bound(
        1 << 15, "results", "Least results of a very short reduction across memory that one thread each reduces.",
        "enough for a thread of every lane of a device")
    inlined_values: int = bound(400, "values", "Largest number of values that are expanded in place under guards.",
                                "a pattern with more computes too much again")
    factor_maps: int = bound(12, "maps", "Largest number of maps between a sum and one of its factors.")
    factors: int = bound(8, "factors", "Products of more factors stay whole.",
                         "the ways to divide them between left and right double with every factor")
    unrolled_taps: int = bound(16, "taps", "Largest number of unrolled taps of a window. A window of 3 x 3 fits.",
                               "longer sums keep one result a thread")


@dataclass(frozen=True, slots=True)
class WalkLimits:
    """Neighbours of walks that tuning tries, and vectors a thread takes."""

    column_blocks: tuple[tuple[int, int], ...] = bound(
        ((8, 32), (16, 16), (32, 8), (32, 16), (64, 4), (32, 32)), "threads", "Threads along the columns, and down each.", _TUNING)
    flat_steps: tuple[int, ...] = bound((1, 2, 4, 8), "vectors", "Vectors a thread may take where blocks are too many to start in time.",
                                        _TUNING)
    unrolled_steps: int = bound(
        8, "steps", "Steps of a flat walk whose loads a thread issues before the first use, where a block has many steps.", _CODE)
    row_clusters: tuple[int, ...] = bound((1, 2, 4, 8, 16), "blocks a cluster", "Clusters of row kernels.", _TUNING)
    row_slots: tuple[int, ...] = bound((2, 3, 4, 6), "slots", "Ring buffer slots of row kernels with copies ahead.", _TUNING)
    turned_runs: tuple[int, ...] = bound((64, 128, 256, 512, 1024, 2048), "elements", "Lengths of transposed tiles that are one run.",
                                         _TUNING)
    turned_threads: tuple[int, ...] = bound((64, 128, 256, 384, 512), "threads a block", "Threads of transposed tiles.", _TUNING)
    turned_tiles: tuple[tuple[int, int], ...] = bound(
        ((32, 32), (64, 64), (32, 64), (64, 32), (128, 32), (32, 128), (128, 64), (128, 128)), "elements", "Sides of transposed tiles.",
        _TUNING)
    filtered_results: tuple[int, ...] = bound(
        (4, 2), "results", "Results of a tile of minimal filtering along each dimension: most for products as exact as f32, least for "
        "shorter ones.", "coefficients of larger tiles are larger, and rounding errors grow with them")
    least_tile: int = bound(4, "elements", "Least elements of a register tile.",
                            "two formulas by position are one select of a flat walk")
    largest_tile: int = bound(64, "elements", "Largest register tile.", "a thread holds its elements in registers, of which it has 255")


@dataclass(frozen=True, slots=True)
class StageLimits:
    """Tiles of stitched kernels."""

    inner: int = bound(1024, "elements", "Longest contracted axis of a stitched kernel that plans propose.",
                       "the tiles of both operands of a longer one do not fit on chip at a size worth a kernel; written ones may")
    row_tiles: tuple[int, ...] = bound((1, 2, 4, 8, 16, 32, 64, 128), "rows", "Rows of a block's tile.", _PLANNING)
    rows: int = bound(160, "rows", "Most rows of a block's tile, where all rows are one tile.", _PLANNING)
    column_tiles: tuple[int, ...] = bound((8, 16, 32, 64, 128), "columns", "Columns of a block's tile.", _PLANNING)
    threads: tuple[int, ...] = bound((128, 256), "threads a block", "Threads of a block.", _PLANNING)
    one_block_elements: int = bound(
        1 << 14, "elements", "Results of at most so many elements are also tried in one block, which may reduce over all of them.",
        "products want more multiprocessors than one")
    one_block_threads: tuple[int, ...] = bound((128, 256, 512), "threads a block", "Threads of such a block.", _PLANNING)
    pieces: int = bound(96, "tiles", "Most tiles of a block.", "a pattern of many values is refused in little time")
    formulas: int = bound(3, "formulas", "Most formulas that one map beside a product chooses from by position.",
                          "maps of more, transforms of tiles say, have kernels of their own, and each is one more region of every tile")
    connections: int = bound(4, "levels", "Maps at another level that tuning tries, the cheapest ones.", _TUNING)
    tiles_by_hand: int = bound(48, "tiles", "Tiles that are tried for a written template that does not name the largest result.",
                               "each is scheduled")


@dataclass(frozen=True, slots=True)
class PipelineLimits:
    """Tiles of pipelined products, of chains of products, and of walks between products."""

    chain_warpgroups: int = bound(4, "warpgroups", "Most consumer warpgroups of a chain.", "more leave a thread fewer than 128 registers")
    chain_row_tiles: int = bound(2, "tiles of 64 rows", "Most row tiles of a chain's warpgroup.", "the sums of more do not fit registers")
    chain_slots: int = bound(8, "slots", "Most ring buffer slots of a chain.", _PLANNING)
    walk_warpgroups: int = bound(3, "warpgroups", "Most consumer warpgroups of a walk.",
                                 "scores, powers and sums of 64 rows leave registers for few columns")
    walk_slots: int = bound(4, "slots", "Most ring buffer slots of each walked operand.", _PLANNING)
    part_rounds: int = bound(
        4, "rounds", "Most rounds of persistent blocks that parts of a walk's tiles are tried for.",
        "the last round is an eighth of the time at most where half of it is idle")
    bias_slots: tuple[int, ...] = bound(
        (2, 1, 0), "slots", "Slots of a walk's ring of biases.",
        "with two, one is filled while the other is read; with none, threads load their elements")
    walked_share: float = bound(
        0.5, "1", "Share of a tile's turns that bounds in memory are assumed to leave, such as those of documents.",
        "assumption: plans are made without the data; bounds are taken where the other share of the walk takes longer than their kernels")
    walk_tiles: int = bound(64, "tiles a block", "Tiles of a block whose turns are added up one by one where a mask shortens some.",
                            "blocks with more have equally many turns, as far as prices go")
    warpgroup_tiles: tuple[tuple[int, int], ...] = bound(
        ((64, 64), (64, 128), (64, 192), (64, 256), (128, 64), (128, 128)), "rows and columns", "Sums of a consumer warpgroup.",
        "larger tiles take more registers than a warpgroup has")
    warpgroups: int = bound(2, "warpgroups", "Most consumer warpgroups.", "with three, a thread has fewer than 160 registers for its sums")
    slots: int = bound(8, "slots", "Most ring buffer slots of a product.", _PLANNING)
    panels: tuple[int, ...] = bound((1, 2), "panels", "Panels of the inner axis in a slot.", _PLANNING)
    band: int = bound(16, "row tiles", "Row tiles of a band: divisors of their number up to this one.", _PLANNING)
    guard_cases: int = bound(
        32, "expressions", "Expressions that an operand's guards are written out as, each with loads of its own.",
        "further guards are evaluated element by element, each of which waits for its own loads; " + _CODE)
    swapped_columns: tuple[int, ...] = bound(
        (128, 256), "columns", "Tiles of swapped products that have more rows than one tile.", _PLANNING)
    swapped_panels: tuple[int, ...] = bound((1, 2, 4), "panels", "Panels of the inner axis in a slot of swapped products.", _PLANNING)
    swapped_warpgroups: tuple[int, ...] = bound(
        (1, 2, 3, 4), "warpgroups", "Consumer warpgroups of swapped products, which have 64 rows of a tile each.", _PLANNING)
    swapped_tiles: tuple[int, ...] = bound(
        (1, 2), "tiles", "Tiles of 64 rows of a warpgroup whose warps multiply by themselves: they share what a warp reads of the columns.",
        "left operands of more tiles, expanded, do not fit beside the sums in registers")
    swapped_slots: int = bound(28, "slots", "Most slots of swapped products.", "the barriers of more do not fit beside the slots")


@dataclass(frozen=True, slots=True)
class PackingLimits:
    """Packed kernels: independent parts in one launch."""

    varied_parts: int = bound(6, "parts", "Parts of a packed kernel that tuning varies: those that move most bytes.", _TUNING)
    bodies: int = bound(24, "bodies", "Different bodies in one kernel.",
                        "beyond it compile time and instruction cache cost more than launches")
    sibling_operands: int = bound(16, "tensors", "Tensors of a part whose nodes have nothing but inputs in common.",
                                  "one walk over more needs many registers")
    tried_subsets: int = bound(64, "sets", "Smaller parts of a refused set that are tried.",
                               "a set of 1000 with one kernel that cannot be packed takes about twenty")
    siblings: int = bound(6, "products", "Products of one value that are tried in one launch.",
                          "among more, related ones cannot be distinguished from the others")
    tried_depths: int = bound(4, "depths", "Depths at which one kernel is tried with others.",
                              "a kernel that fits nowhere costs a few trials and not one at every depth")


@dataclass(frozen=True, slots=True)
class TaskLimits:
    """Kernels of tasks."""

    bodies: int = bound(24, "bodies", "Different bodies in one kernel of tasks.", _CODE)
    kernels: int = bound(
        512, "kernels", "Kernels of a plan that one kernel of tasks takes the place of, at most.",
        "the proof takes a bit for each pair of tasks")
    panel_rows: tuple[int, ...] = bound((32, 64, 128), "rows", "Rows of the tiles of products by panels.", _PLANNING)
    panel_columns: tuple[int, ...] = bound((16, 32, 48, 64, 96, 128), "columns", "Columns of these tiles.", _PLANNING)
    panel_slots: tuple[tuple[int, int], ...] = bound(
        ((32, 4), (32, 3), (32, 2), (16, 4), (16, 3)), "inner elements, slots",
        "Depth of a panel, and panels of the ring; of equal prices the first one.", _PLANNING)
    panel_turns: tuple[int, ...] = bound((1, 2, 3, 4, 6), "tiles", "Tiles that a block of these products takes.", _PLANNING)
    panel_threads: tuple[int, ...] = bound((128, 256, 512), "threads a block", "Threads of these products.", _PLANNING)
    group_lengths: tuple[int, ...] = bound(
        (128, 64, 256), "places", "Lengths of the groups of a chain's shared axis that are tried.", _PLANNING)
    chain_products: int = bound(3, "products", "Bodies of a chain's product that are composed and priced with the others.", _PLANNING)
    other_products: int = bound(8, "products", "Other bodies of a chain's product that a tuner tries.", "each is compiled and timed")
    groups_together: tuple[int, ...] = bound(
        (1, 2, 4), "groups", "Groups whose products with one part of the weights follow each other, as they are tried.", _PLANNING)
    wait_rounds: int = bound(
        200, "rounds", "Waits of tasks that lead to each other are followed so often; those that still grow are taken for endless.",
        "each is a few microseconds of pricing a chain")
    interval_parts: int = bound(
        100, "1", "The interval between tasks of a chain is known to one of so many parts of itself.",
        "a factor of two more is one more step of the search for it")
    group_counts: int = bound(
        4096, "blocks", "Numbers of blocks of a group that are tried, from the least on, where the last group is not full.",
        "one number is right, and each is tested in a few microseconds")
