"""Matrix products as what a kernel sees of them: two operands over lead, row, column and inner axes.

A `library.matmul` node keeps its meaning; this file only gives its subscripts, and how one block's threads share its tile.
"""
from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from math import prod

from tilefuse.ir.affine import Affine, axis, number
from tilefuse.ir.dtype import DType
from tilefuse.ir.graph import Graph, Node

ROW, COLUMN, INNER = "row", "column", "inner"
# Tile of one matrix instruction: mma.m16n8k16 of 16-bit operands, mma.m16n8k8 of tf32. Source: PTX ISA, warp-level matrix instructions.
MMA_ROWS, MMA_COLUMNS, MMA_INNER, MMA_INNER_F32 = 16, 8, 16, 8
WARP = 32
# Multiplications and additions a cycle of one multiprocessor (see `product_cycles`).
FMA_PER_CYCLE, MMA_PER_CYCLE, TF32_PER_CYCLE = 128.0, 1300.0, 640.0
# The same by `Tiling.arithmetic`, which no tiling exceeds; None: threads compute.
RATE_BY_ARITHMETIC = {None: FMA_PER_CYCLE, "": MMA_PER_CYCLE, "tf32": TF32_PER_CYCLE, "split": TF32_PER_CYCLE / 3}
# Cycles from one step of products of f32 on the matrix unit to the next one of the same warp, and what the instructions of one tile and
# step take of them; what remains of the wait at least.
F32_STEP_LATENCY, F32_INSTRUCTIONS_CYCLES, F32_LEAST_LATENCY = 40.0, 20.0, 5.0
# Instructions side by side whose sums one warp can hold: 64 registers a lane, and 160 where rows are reduced in registers.
MAX_INSTRUCTIONS, MAX_ROW_INSTRUCTIONS = 16, 40
# Cost of one pass through shared memory beside multiplications, of which four warps make one a cycle each. Source: an LSTM step on an
# H200 whose lanes conflicted eightfold took 2.4 us a product, all of it these passes.
SPLIT_READ = 3.0
# Threads that read their right operand in global memory: what a load takes of issue slots, and elements that a thread has under way.
# Source: 12 products of 32 x 256 by 256 x 256 in f32 on an H200: 55 us word by word, 31 with 16 loads of 16 bytes under way.
DIRECT_READ, DIRECT_ELEMENTS = 4.0, 32


@dataclass(frozen=True, slots=True)
class Contraction:
    """result[lead.., row, column] = sum over inner of left * right (+ bias, added before the result is rounded).

    axes: result axes in order; *_index: subscripts of the operands over these axes and `INNER`; inner: extent of the contracted axis.
    bias: "" where there is none.
    precision: of f32 operands: "default" (products of halves), "f32" (on threads) or "tf32".
    """

    axes: tuple[str, ...]
    left: str
    right: str
    left_index: tuple[Affine, ...]
    right_index: tuple[Affine, ...]
    inner: int
    inner_last_left: bool
    inner_last_right: bool
    bias: str = ""
    bias_index: tuple[Affine, ...] = ()
    precision: str = "default"


def contraction_of(node: Node, graph: Graph) -> Contraction | None:
    """The contraction that a node is, or None: not a product, or of vectors, or without elements."""
    if node.kind != "library.matmul" or len(node.type.shape) < 2:
        return None
    left, right, *more = node.operands
    shapes = graph.type_of(left).shape, graph.type_of(right).shape
    if any(len(s) < 2 or prod(s) == 0 for s in shapes) or not node.type.num_elements:
        return None
    lead = tuple(f"lead{n}" for n in range(len(node.type.shape) - 2))
    turned_left, turned_right = bool(node.attribute("transpose_a")), bool(node.attribute("transpose_b"))
    inner = shapes[0][-2 if turned_left else -1]

    def index(shape: tuple[int, ...], last: tuple[str, str]) -> tuple[Affine, ...]:
        names = (*lead[len(lead) - (len(shape) - 2):], *last)
        return tuple(number(0) if e == 1 and n not in (ROW, COLUMN, INNER) else axis(n) for e, n in zip(shape, names, strict=True))

    axes = (*lead, ROW, COLUMN)
    bias_shape = graph.type_of(more[0]).shape if more else ()
    bias_index = tuple(number(0) if e == 1 else axis(n) for e, n in zip(bias_shape, axes[len(axes) - len(bias_shape):], strict=True))
    return Contraction(axes, left, right, index(shapes[0], (INNER, ROW) if turned_left else (ROW, INNER)),
                       index(shapes[1], (COLUMN, INNER) if turned_right else (INNER, COLUMN)), inner, not turned_left, turned_right,
                       more[0] if more else "", bias_index, str(node.attribute("precision", "default")))


@dataclass(frozen=True, slots=True)
class Tiling:
    """How the threads of a block share the tile of a product.

    unit     "fma": a thread computes `rows` x `columns` elements, `split` lanes share the inner axis;
             "mma": a warp computes `rows` x `columns` matrix instructions
    side     fma with `split` > 1: lanes next to each other along the columns (1 where the right operand lies along the inner axis)
    step     inner elements a turn of the loop
    strip    fma: column tiles that neighbouring threads share out before they go on to the next row tile, so that a warp covers a patch
             of few columns and few rows and many of its lanes read the same elements; 0: all of a row first
    arithmetic  mma of f32 operands: "split" or "tf32" (see `kernel.MatrixProduct`); "" for 16-bit operands
    """

    unit: str
    rows: int
    columns: int
    split: int = 1
    side: int = 1
    step: int = 1
    strip: int = 0
    arithmetic: str = ""

    @property
    def sums(self) -> int:
        """Sums of one product that a thread holds."""
        return self.rows * self.columns * (4 if self.unit == "mma" else 1)


def matrix_arithmetic(found: Contraction, left: DType, right: DType) -> str | None:
    """`Tiling.arithmetic` of a product of these types on the matrix unit; None where only threads compute it."""
    if left != right or left.name not in ("f16", "bf16", "f32") or left.name == "f32" == found.precision:
        return None
    return "" if left.name != "f32" else "tf32" if found.precision == "tf32" else "split"


def mma_fits(rows: int, columns: int, inner: int, arithmetic: str | None) -> bool:
    """Whether matrix instructions cover the tile: whole ones, or of f32 also ones that reach beyond the columns and the inner axis."""
    if arithmetic is None or rows % MMA_ROWS:
        return False
    if arithmetic:
        return columns % MMA_COLUMNS == 0 or columns <= MMA_COLUMNS * MAX_ROW_INSTRUCTIONS
    return columns % MMA_COLUMNS == 0 and inner % MMA_INNER == 0


@functools.cache
def tile_mma(rows: int, columns: int, warps: int, arithmetic: str = "") -> Tiling:
    """The warp tile with the fewest shared-memory reads an instruction that still gives every warp work, if any does."""
    tall, wide = rows // MMA_ROWS, -(-columns // MMA_COLUMNS)
    step = MMA_INNER_F32 if arithmetic else MMA_INNER
    if columns % MMA_COLUMNS:
        # Only a warp with all columns knows which of its columns are the last ones.
        return Tiling("mma", 1, wide, step=step, arithmetic=arithmetic)
    found: list[tuple[float, int, int]] = []
    for m in (1, 2, 4):
        for n in range(1, MAX_INSTRUCTIONS + 1) if arithmetic else (1, 2, 4, 8, 16):
            if tall % m or wide % n or m * n > MAX_INSTRUCTIONS:
                continue
            turns = -(-(tall // m) * (wide // n) // warps)
            reads = _split_cost(m, n) if arithmetic == "split" else 0.5 * (2 * m + n)
            found.append((turns * (m * n + reads), m, n))
    _, m, n = min(found)
    return Tiling("mma", m, n, step=step, arithmetic=arithmetic)


def _split_cost(m: int, n: int) -> float:
    """Reading and halving the operands of m x n instructions of f32. Units: of three matrix instructions (20 issue slots).

    Source: the assembler's output; 14 instructions a left fragment, 8 a right one.
    """
    return (14 * m + 8 * n) / 20


def product_cycles(t: Tiling, places: int, columns: int, inner: int, threads: int, held: bool = False) -> tuple[float, float]:
    """(what a multiprocessor is busy with one product's tile, what its block waits beside that). Units: cycles.

    places: rows of all lead places; held: the left operand lies in registers.
    Source: mma.sync reaches about 62 % of the dense rate of an H100 (4096 FLOP of 16 bits, 1024 FMA of tf32 a cycle), Luo et al. 2024,
    arXiv:2402.13499.
    """
    m, n = t.rows, t.columns
    if t.unit == "fma":
        items = places * columns // (m * n) * t.split
        busy = items / (-(-items // threads) * threads)
        reads = (0.6 * (m + n) if t.strip else 1.6 * (m + n) if t.split == 1 else SPLIT_READ * _split_passes(m, n, t.side)) / (m * n)
        return places * columns * inner / FMA_PER_CYCLE * (1.0 + reads) / busy, inner / t.split * 4
    covered = places * -(-columns // MMA_COLUMNS) * MMA_COLUMNS
    multiplications = covered * -(-inner // t.step) * t.step
    if not t.arithmetic:
        return multiplications / MMA_PER_CYCLE * (1.0 + 0.5 * ((0 if held else 2 * m) + n) / (m * n)), 0.0
    rate = RATE_BY_ARITHMETIC[t.arithmetic]
    # Instructions of the four schedulers beside the matrix unit's; about half of them find a gap.
    others = ((12 if held else 14) * m + 8 * n) / 4 / (m * n) / (MMA_ROWS * MMA_COLUMNS * MMA_INNER_F32)
    # Warps without a tile, and what one warp waits for the sums of the step before.
    warps, tiles = threads // WARP, covered // (MMA_ROWS * MMA_COLUMNS * m * n)
    turns = -(-tiles // warps)
    wait = max(F32_STEP_LATENCY - F32_INSTRUCTIONS_CYCLES * m * n, F32_LEAST_LATENCY)
    return multiplications * (1 / rate + 0.5 * others) * turns * warps / tiles, turns * inner / t.step * wait


def least_wait(inner: int, arithmetic: str | None) -> float:
    """Least time that a block waits beside one product (`product_cycles`). Units: cycles."""
    return 0.0 if arithmetic == "" else inner * min(F32_LEAST_LATENCY / MMA_INNER_F32, 4 / WARP)


def f32_pad(extent: int, inner_last: bool) -> int:
    """Elements to add to rows of an f32 operand of the matrix unit, so that a warp reads it without bank conflicts.

    inner_last: lanes read pairs along the row, of rows lane / 4; else single elements of rows 2 * (lane % 4), and lie lane / 4 apart.
    Source: eight or four rows a turn start in different groups of the 32 banks.
    """
    return (8 - extent) % 16 if inner_last else (4 - extent) % 8


@functools.cache
def tile_fma(rows: int, columns: int, inner: int, threads: int, inner_last_right: bool, direct: int = 0) -> Tiling:
    """The thread tile with the fewest reads a multiplication that gives every thread work; lanes split the inner axis where
    there are fewer tiles than threads.

    direct: columns of a right operand in global memory that one load brings, 16 bytes of them; 0: the operand is on chip. Threads that wait
    for memory want few and wide loads, many of them under way.
    """
    step = next(s for s in (4, 2, 1) if inner % s == 0)
    found: list[tuple[float, int, int, int]] = []
    for m in (1, 2, 3, 4, 5, 6, 8):
        for n in (1, 2, 3, 4, 5, 6, 8):
            if rows % m or columns % n or m * n > 40 or direct and n > direct:
                continue
            tiles = (rows // m) * (columns // n)
            split = 1
            while split < WARP and tiles * split * 2 <= threads and inner % (2 * split * step) == 0:
                split *= 2
            if tiles * split % WARP:
                split = 1
            turns = -(-tiles * split // threads)
            # Multiplications, reads (one each `step` of a row or column) and, where lanes split, the shuffles.
            if direct:
                reads = 1.2 * m + DIRECT_READ
            elif split > 1:
                reads = SPLIT_READ * _split_passes(m, n, _side(split, columns // n, inner_last_right))
            else:
                reads = 0.6 * _wavefronts(m, n, columns // n)[0]
            work = turns * (inner / split * (m * n + reads) + 3.0 * _shuffles(m * n, split))
            found.append((work, m, n, split))
    _, m, n, split = min(found, key=lambda f: (f[0], -f[1] * f[2]))
    while direct and inner % (2 * step * split) == 0 and 2 * step * n <= DIRECT_ELEMENTS:
        step *= 2
    return Tiling("fma", m, n, split, _side(split, columns // n, inner_last_right), step,
                  _wavefronts(m, n, columns // n)[1] if split == 1 else 0)


def _side(split: int, wide: int, inner_last_right: bool) -> int:
    """Lanes next to each other along the columns where lanes split the inner axis (`Tiling.side`); `wide` column tiles in a row."""
    side = 1
    while split > 1 and not inner_last_right and side * 2 * split <= WARP and wide % (side * 2) == 0:
        side *= 2
    return side


def _split_passes(m: int, n: int, side: int) -> float:
    """Passes through shared memory that serve a warp, whose lanes split the inner axis, with one element of it for every lane.

    Rows of right operands begin in one of eight groups of four banks: fewer columns than four side by side leave banks idle.
    """
    return m + n * max(4 / (n * side), 1.0)


def _shuffles(elements: int, split: int) -> int:
    """Shuffles that add up the sums of `split` lanes: each sum ends in one lane, or, where there are more sums than lanes, in all."""
    if split == 1:
        return 0
    scattered = split >= elements and elements & (elements - 1) == 0
    return elements - 1 + (split // elements).bit_length() - 1 if scattered else elements * (split.bit_length() - 1)


def _wavefronts(m: int, n: int, wide: int) -> tuple[float, int]:
    """(what shared memory takes to serve a warp one inner element of all its tiles, column tiles of its patch); `wide` tiles in a row.

    Eight different vectors of 16 bytes are one pass through shared memory's 32 banks. Units: passes, times the elements of a vector.
    """
    return min((m * max(WARP / strip / 8, 1.0) + n * max(strip / 8, 1.0), strip) for strip in range(1, wide + 1) if wide % strip == 0)


def whole_rows(extents: tuple[int, ...], tiling: Tiling, num_products: int, warps: int, most: int) -> Tiling | None:
    """The tiling that gives each warp equally many whole rows of the tile, in one turn, with `most` instructions or fewer; None if none."""
    tall, wide = extents[-2] // MMA_ROWS, -(-extents[-1] // MMA_COLUMNS)
    each, rest = divmod(prod(extents[:-2]) * tall, warps)
    if rest or not each or tall % each or each * wide * num_products > most:
        return None
    return replace(tiling, rows=each, columns=wide)
