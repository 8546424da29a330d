"""Matrix products in kernels: two operands over lead (batch), row, column and inner (contracted) axes.

A `library.matmul` node keeps its meaning. This file gives its subscripts and the split of its tile among the threads of a block.
"""
from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from math import prod

from tilefuse.base.construction import quickly_built
from tilefuse.base.memo import remembered_for_last
from tilefuse.base.search.limits import SEARCH
from tilefuse.ir.affine import Affine, axis, number
from tilefuse.ir.dtype import F32, I32, DType
from tilefuse.ir.graph import Graph, Node
from tilefuse.target.capabilities import MMA_COLUMNS, MMA_INNER, MMA_INNER_F32, MMA_ROWS, WARP, WARP_SCHEDULERS
from tilefuse.target.fitted.stages import MultiplyFigures

ROW, COLUMN, INNER = "row", "column", "inner"
# Axis of a right operand whose place follows from the row: the group that the row belongs to.
GROUP = "group"
# The operator of products whose rows are sorted by group.
GROUPED = "library.grouped_matmul"
# Types of one byte whose products warpgroup instructions compute: each operand may have either type of a pair. Source: PTX ISA, wgmma.
BYTE_TYPES = (("f8e4m3", "f8e5m2"), ("i8", "u8"))
# Attribute of a product whose result has another type than its operands: the result's.
RESULT_DTYPE = "dtype"
# `Tiling.arithmetic` of f32 operands that are multiplied as high and low parts.
SPLIT = "split"
# `Contraction.precision` of products of 8-bit floats whose sums stay in the tensor cores' accumulators.
FAST_SUMS = "fast"

@quickly_built
@dataclass(frozen=True, slots=True)
class Contraction:
    """result[lead.., row, column] = sum over inner of left * right (+ bias, added before the result is rounded).

    axes        result axes in order
    *_index     subscripts of the operands over these axes and `INNER`
    inner       extent of the contracted axis
    bias        "" for none
    precision   of f32 operands: "default" (products of high and low parts), "f32" (no tensor cores) or "tf32";
                of 8-bit floats: "default" (partial sums are added in f32), "fast" (sums stay in the accumulators of the tensor cores)
    offsets     the value with the end of each group's rows, where rows are sorted by group and `right_index` contains `GROUP`; "" for none
    num_groups  extent of `GROUP`; 0 for a product without groups
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
    offsets: str = ""
    num_groups: int = 0


def contraction_of(node: Node, graph: Graph) -> Contraction | None:
    """The contraction of a node whose result has the type of its operands; None for other nodes, grouped products, products with vectors,
    and empty ones."""
    return None if node.attribute(RESULT_DTYPE) or node.kind == GROUPED else any_contraction_of(node, graph)


def any_contraction_of(node: Node, graph: Graph) -> Contraction | None:
    """The same, also of grouped products, and of those whose results are wider than their operands, as sums of 8-bit integers are."""
    if node.kind not in ("library.matmul", GROUPED) or len(node.type.shape) < 2:
        return None
    known = _known_of(graph)
    entry = known.get(node.name)
    if entry is None or entry[0] is not node:
        entry = known[node.name] = node, _found_contraction(node, graph)
    return entry[1]


@remembered_for_last
def _known_of(_graph: Graph) -> dict[str, tuple[Node, Contraction | None]]:
    """Contractions of a graph's nodes that were asked for: all templates ask for those of a pattern again and again."""
    return {}


def _found_contraction(node: Node, graph: Graph) -> Contraction | None:
    shapes = tuple(graph.type_of(v).shape for v in node.operands)
    if any(len(s) < 2 or prod(s) == 0 for s in shapes[:2]) or not node.type.num_elements:
        return None
    turned = bool(node.attribute("transpose_a")), bool(node.attribute("transpose_b"))
    if node.kind == GROUPED:
        return _grouped_contraction(node.operands, shapes, turned[1], str(node.attribute("precision", "default")))
    return _contraction(node.operands, shapes, node.type.shape, turned, str(node.attribute("precision", "default")))


@functools.lru_cache(maxsize=1024)
def _grouped_contraction(operands: tuple[str, ...], shapes: tuple[tuple[int, ...], ...], turned: bool, precision: str) -> Contraction:
    """The contraction of a product of rows sorted by group with a right operand for each group."""
    left, right, offsets = operands
    shape = shapes[0][0], shapes[1][1 if turned else 2]
    plain = _contraction((left, right), (shapes[0], shapes[1][1:]), shape, (False, turned), precision)
    return replace(plain, right_index=(axis(GROUP), *plain.right_index), offsets=offsets, num_groups=shapes[1][0])


@functools.lru_cache(maxsize=1024)
def _contraction(operands: tuple[str, ...], shapes: tuple[tuple[int, ...], ...], shape: tuple[int, ...], turned: tuple[bool, bool],
                 precision: str) -> Contraction:
    """The contraction of a product. shapes: of its operands. Every template asks for it, for every pattern with the product."""
    left, right, *bias = operands
    lead = tuple(f"lead{n}" for n in range(len(shape) - 2))
    turned_left, turned_right = turned
    inner = shapes[0][-2 if turned_left else -1]

    def index(shape: tuple[int, ...], last: tuple[str, str]) -> tuple[Affine, ...]:
        names = (*lead[len(lead) - (len(shape) - 2):], *last)
        return tuple(number(0) if e == 1 and n not in (ROW, COLUMN, INNER) else axis(n) for e, n in zip(shape, names, strict=True))

    axes = (*lead, ROW, COLUMN)
    bias_shape = shapes[2] if bias else ()
    bias_index = tuple(number(0) if e == 1 else axis(n) for e, n in zip(bias_shape, axes[len(axes) - len(bias_shape):], strict=True))
    return Contraction(axes, left, right, index(shapes[0], (INNER, ROW) if turned_left else (ROW, INNER)),
                       index(shapes[1], (COLUMN, INNER) if turned_right else (INNER, COLUMN)), inner, not turned_left, turned_right,
                       bias[0] if bias else "", bias_index, precision)


@dataclass(frozen=True, slots=True)
class Tiling:
    """Split of a product's tile among the threads of a block.

    unit     "fma": a thread computes `rows` x `columns` elements, `split` lanes share the inner axis;
             "mma": a warp computes `rows` x `columns` matrix instructions, `split` warps share the inner axis and add up their sums
    side     fma with `split` > 1: adjacent lanes along the columns (1 if the right operand is contiguous along the inner axis)
    step     inner elements per iteration of the loop
    strip    fma: column tiles that adjacent threads take before the next row tile. A warp then covers few columns and few rows, and many of
             its lanes read the same elements. 0: all columns of a row first
    arithmetic  mma of f32 operands: "split" or "tf32" (see `kernel.MatrixProduct`); "" for 16-bit operands
    narrow   fma: operands of 16 bits, which a thread converts before it multiplies
    """

    unit: str
    rows: int
    columns: int
    split: int = 1
    side: int = 1
    step: int = 1
    strip: int = 0
    arithmetic: str = ""
    narrow: bool = False

    @property
    def sums(self) -> int:
        """Accumulators of one product per thread."""
        return self.rows * self.columns * (4 if self.unit == "mma" else 1)


def matrix_arithmetic(contraction: Contraction, left: DType, right: DType) -> str | None:
    """`Tiling.arithmetic` of a product of these types on tensor cores; None if they cannot compute it."""
    if left != right or left.name not in ("f16", "bf16", "f32") or left.name == "f32" == contraction.precision:
        return None
    return "" if left.name != "f32" else "tf32" if contraction.precision == "tf32" else "split"


def warpgroup_arithmetic(contraction: Contraction, left: DType, right: DType) -> str | None:
    """The same on warpgroup instructions, which multiply 8-bit floats and 8-bit integers as well."""
    if any(left.name in kinds and right.name in kinds for kinds in BYTE_TYPES):
        return ""
    return matrix_arithmetic(contraction, left, right)


def sum_dtype(operand: DType) -> DType:
    """Type of the sums of a product with such operands on warpgroup instructions."""
    return I32 if operand.is_integer else F32


def mma_fits(rows: int, columns: int, inner: int, arithmetic: str | None) -> bool:
    """Whether matrix instructions can cover the tile. Those of f32 may extend beyond its columns and its inner axis."""
    if arithmetic is None or rows % MMA_ROWS:
        return False
    if arithmetic:
        return columns % MMA_COLUMNS == 0 or columns <= MMA_COLUMNS * SEARCH.domain.warp_row_instructions
    return columns % MMA_COLUMNS == 0 and inner % MMA_INNER == 0


def shared_inner(fitted: MultiplyFigures, tiling: Tiling, places: int, columns: int, inner: int, threads: int) -> Tiling:
    """A warp tile whose inner axis so many warps share that the product takes the least cycles; the tile as it is where none are idle.

    places: rows over all lead indices.
    """
    tiles = places * -(-columns // MMA_COLUMNS) // (MMA_ROWS * tiling.rows * tiling.columns)
    candidates = [tiling]
    while tiles * candidates[-1].split * 2 <= threads // WARP and inner % (candidates[-1].split * 2 * tiling.step) == 0:
        candidates.append(replace(tiling, split=candidates[-1].split * 2))
    return min(candidates, key=lambda t: sum(product_cycles(fitted, t, places, columns, inner, threads)))


@functools.cache
def tile_mma(fitted: MultiplyFigures, rows: int, columns: int, warps: int, arithmetic: str = "") -> Tiling:
    """The cheapest warp tile by instructions and shared-memory reads of the busiest warp."""
    tall, wide = rows // MMA_ROWS, -(-columns // MMA_COLUMNS)
    step = MMA_INNER_F32 if arithmetic else MMA_INNER
    if columns % MMA_COLUMNS:
        # The last columns are partial, so each warp takes all columns.
        return Tiling("mma", 1, wide, step=step, arithmetic=arithmetic)
    candidates: list[tuple[float, int, int]] = []
    for m in (1, 2, 4):
        for n in range(1, SEARCH.domain.warp_instructions + 1) if arithmetic else (1, 2, 4, 8, 16):
            if tall % m or wide % n or m * n > SEARCH.domain.warp_instructions:
                continue
            turns = -(-(tall // m) * (wide // n) // warps)
            reads = _split_cost(fitted, m, n) if arithmetic == "split" else 0.5 * (2 * m + n)
            candidates.append((turns * (m * n + reads), m, n))
    _, m, n = min(candidates)
    return Tiling("mma", m, n, step=step, arithmetic=arithmetic)


def _split_cost(fitted: MultiplyFigures, m: int, n: int) -> float:
    """Cost of reading the f32 operands of m x n tiles and splitting them into high and low parts. Units: three matrix instructions."""
    return (fitted.left_instructions * m + fitted.right_instructions * n) / fitted.split_slots


def product_cycles(fitted: MultiplyFigures, t: Tiling, places: int, columns: int, inner: int, threads: int,
                   held: bool = False) -> tuple[float, float]:
    """(busy time of a multiprocessor for one product's tile, further wait of the block). Units: cycles.

    places: rows over all lead indices; held: the left operand lies in registers.
    """
    m, n = t.rows, t.columns
    if t.unit == "fma":
        items = places * columns // (m * n) * t.split
        busy = items / (-(-items // threads) * threads)
        passes = _split_passes(m, n, t.side) if t.split > 1 else m + n
        reads = (fitted.read if t.strip else fitted.scattered_read if t.split == 1 else fitted.split_read) * passes / (m * n)
        conversions = fitted.conversion * (m + n) / (m * n) if t.narrow else 0.0
        return places * columns * inner / fitted.fma_per_cycle * (1.0 + reads + conversions) / busy, inner / t.split * 4
    covered = places * -(-columns // MMA_COLUMNS) * MMA_COLUMNS
    multiplications = covered * -(-inner // t.step) * t.step
    # Each warp waits for the accumulators of its previous step. Quarters of the multiprocessor idle where few of the block's warps have a
    # tile; those without a warp of the block work for other blocks.
    warps, tiles = threads // WARP, covered // (MMA_ROWS * MMA_COLUMNS * m * n) * t.split
    turns, steps = -(-tiles // warps), inner / t.step / t.split
    idle = _quarters(tiles, warps) * min(warps, WARP_SCHEDULERS) / tiles
    exchange = _exchange_cycles(fitted, t, tiles)
    if not t.arithmetic:
        busy = multiplications / fitted.mma_per_cycle * (1.0 + 0.5 * ((0 if held else 2 * m) + n) / (m * n)) * idle
        return busy, max(turns * steps * fitted.half_step_cycles - busy, 0.0) + exchange
    rate = fitted.rate(t.arithmetic)
    # Other instructions of the four warp schedulers. About half of them issue while the tensor cores are busy.
    left = fitted.held_left_instructions if held else fitted.left_instructions
    others = (left * m + fitted.right_instructions * n) / 4 / (m * n) / (MMA_ROWS * MMA_COLUMNS * MMA_INNER_F32)
    wait = max(fitted.step_cycles - fitted.instruction_cycles * m * n, fitted.least_wait_cycles)
    return multiplications * (1 / rate + 0.5 * others) * idle, turns * steps * wait + exchange


def _quarters(tiles: int, warps: int) -> int:
    """Tiles that the busiest quarter of a multiprocessor multiplies one after another, whose warps share a tensor core."""
    turns, last = divmod(tiles, warps)
    return turns * -(-warps // WARP_SCHEDULERS) + -(-last // WARP_SCHEDULERS)


def _exchange_cycles(fitted: MultiplyFigures, t: Tiling, warps: int) -> float:
    """Cycles in which `warps` warps store their sums in shared memory, and those that finish a tile read them."""
    return fitted.exchange_cycles + 2 * warps * t.sums if t.split > 1 else 0.0


def least_wait(fitted: MultiplyFigures, inner: int, arithmetic: str | None) -> float:
    """Lower bound on the second result of `product_cycles`, a block's wait. Units: cycles."""
    return 0.0 if arithmetic == "" else min(inner * fitted.least_wait_cycles / MMA_INNER_F32, fitted.exchange_cycles, inner * 4 / WARP)


def f32_pad(extent: int, inner_last: bool) -> int:
    """Padding of a row of an f32 tensor-core operand, so that a warp reads it without bank conflicts. Units: elements.

    inner_last: a lane reads a pair along row lane / 4; otherwise it reads single elements of row 2 * (lane % 4), at column lane / 4.
    Source: the eight (or four) rows of one access start in different groups of the 32 banks.
    """
    return (8 - extent) % 16 if inner_last else (4 - extent) % 8


@functools.cache
def tile_fma(fitted: MultiplyFigures, rows: int, columns: int, inner: int, threads: int, inner_last_right: bool,
             direct: int = 0, narrow: bool = False) -> Tiling:
    """The cheapest thread tile by multiplications, reads and shuffles of the busiest thread. Lanes split the inner axis if there are fewer
    tiles than threads.

    direct: columns of a right operand in global memory per 16-byte load; 0 for an operand on chip. Loads from global memory should be few,
    wide, and in flight together. narrow: as of `Tiling`.
    """
    step = next(s for s in (4, 2, 1) if inner % s == 0)
    candidates: list[tuple[float, int, int, int]] = []
    for m in SEARCH.domain.thread_tile_sides:
        for n in SEARCH.domain.thread_tile_sides:
            if rows % m or columns % n or m * n > SEARCH.domain.thread_tile_sums or direct and n > direct:
                continue
            tiles = (rows // m) * (columns // n)
            split = 1
            while split < WARP and tiles * split * 2 <= threads and inner % (2 * split * step) == 0:
                split *= 2
            if tiles * split % WARP:
                split = 1
            turns = -(-tiles * split // threads)
            # Multiplications, reads (one per `step` elements of a row or column), and the shuffles of split lanes.
            if direct:
                reads = 2 * fitted.read * m + fitted.direct_read
            elif split > 1:
                reads = fitted.split_read * _split_passes(m, n, _side(split, columns // n, inner_last_right))
            else:
                reads = fitted.read * _wavefronts(m, n, columns // n)[0]
            conversions = fitted.conversion * (m + n) if narrow else 0.0
            work = turns * (inner / split * (m * n + reads + conversions) + 3.0 * _shuffles(m * n, split))
            candidates.append((work, m, n, split))
    _, m, n, split = min(candidates, key=lambda f: (f[0], -f[1] * f[2]))
    while direct and inner % (2 * step * split) == 0 and 2 * step * n <= fitted.direct_elements:
        step *= 2
    return Tiling("fma", m, n, split, _side(split, columns // n, inner_last_right), step,
                  _wavefronts(m, n, columns // n)[1] if split == 1 else 0, narrow=narrow)


def _side(split: int, wide: int, inner_last_right: bool) -> int:
    """`Tiling.side` of a tile with `wide` column tiles per row."""
    side = 1
    while split > 1 and not inner_last_right and side * 2 * split <= WARP and wide % (side * 2) == 0:
        side *= 2
    return side


def _split_passes(m: int, n: int, side: int) -> float:
    """Shared-memory passes that read one inner element for every lane of a warp whose lanes split the inner axis.

    Rows of right operands begin in one of eight groups of four banks. Fewer than four adjacent columns leave banks idle.
    """
    return m + n * max(4 / (n * side), 1.0)


def _shuffles(elements: int, split: int) -> int:
    """Shuffles that add the sums of `split` lanes. Each sum ends in one lane, or in all lanes if there are more sums than lanes."""
    if split == 1:
        return 0
    scattered = split >= elements and elements & (elements - 1) == 0
    return elements - 1 + (split // elements).bit_length() - 1 if scattered else elements * (split.bit_length() - 1)


def _wavefronts(m: int, n: int, wide: int) -> tuple[float, int]:
    """(cost of reading one inner element of all tiles of a warp, its `Tiling.strip`), for `wide` column tiles per row.

    One pass through the 32 banks serves eight different 16-byte vectors. Units: passes, times the elements of a vector.
    """
    return min((m * max(WARP / strip / 8, 1.0) + n * max(strip / 8, 1.0), strip) for strip in range(1, wide + 1) if wide % strip == 0)


def whole_rows(extents: tuple[int, ...], tiling: Tiling, num_products: int, warps: int, most: int) -> Tiling | None:
    """The tiling that gives every warp the same number of whole rows and at most `most` instructions; None if there is none."""
    tall, wide = extents[-2] // MMA_ROWS, -(-extents[-1] // MMA_COLUMNS)
    each, rest = divmod(prod(extents[:-2]) * tall, warps)
    if rest or not each or tall % each or each * wide * num_products > most:
        return None
    return replace(tiling, rows=each, columns=wide, split=1)
