"""Matrix products as what a kernel sees of them: two operands over lead, row, column and inner axes.

A `library.matmul` node keeps its meaning; this file only gives its subscripts, and how one block's threads share its tile.
"""
from __future__ import annotations

import functools
from dataclasses import dataclass
from math import prod

from tilefuse.ir.affine import Affine, axis, number
from tilefuse.ir.dtype import DType
from tilefuse.ir.graph import Graph, Node

ROW, COLUMN, INNER = "row", "column", "inner"
# Tile of one matrix instruction, mma.m16n8k16 of 16-bit operands. Source: PTX ISA, warp-level matrix instructions.
MMA_ROWS, MMA_COLUMNS, MMA_INNER = 16, 8, 16
WARP = 32


@dataclass(frozen=True, slots=True)
class Contraction:
    """result[lead.., row, column] = sum over inner of left * right (+ bias, added before the result is rounded).

    axes: result axes in order; *_index: subscripts of the operands over these axes and `INNER`; inner: extent of the contracted axis.
    bias: "" where there is none.
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
                       more[0] if more else "", bias_index)


@dataclass(frozen=True, slots=True)
class Tiling:
    """How the threads of a block share the tile of a product.

    unit     "fma": a thread computes `rows` x `columns` elements, `split` lanes share the inner axis;
             "mma": a warp computes `rows` x `columns` matrix instructions
    side     fma with `split` > 1: lanes next to each other along the columns (1 where the right operand lies along the inner axis)
    step     inner elements a turn of the loop
    strip    fma: column tiles that neighbouring threads share out before they go on to the next row tile, so that a warp covers a patch
             of few columns and few rows and many of its lanes read the same elements; 0: all of a row first
    """

    unit: str
    rows: int
    columns: int
    split: int = 1
    side: int = 1
    step: int = 1
    strip: int = 0


def mma_fits(rows: int, columns: int, inner: int, left: DType, right: DType) -> bool:
    """Whether whole matrix instructions cover the tile."""
    return (left == right and left.name in ("f16", "bf16") and rows % MMA_ROWS == 0 and columns % MMA_COLUMNS == 0
            and inner % MMA_INNER == 0)


@functools.cache
def tile_mma(rows: int, columns: int, warps: int) -> Tiling:
    """The warp tile with the fewest shared-memory reads an instruction that still gives every warp work, if any does."""
    tall, wide = rows // MMA_ROWS, columns // MMA_COLUMNS
    found: list[tuple[float, int, int]] = []
    for m in (1, 2, 4):
        for n in (1, 2, 4, 8, 16):
            if tall % m or wide % n or m * n > 16:
                continue
            turns = -(-(tall // m) * (wide // n) // warps)
            found.append((turns * (m * n + 0.5 * (2 * m + n)), m, n))
    _, m, n = min(found)
    return Tiling("mma", m, n, step=MMA_INNER)


@functools.cache
def tile_fma(rows: int, columns: int, inner: int, threads: int, inner_last_right: bool) -> Tiling:
    """The thread tile with the fewest reads a multiplication that gives every thread work; lanes split the inner axis where
    there are fewer tiles than threads."""
    step = next(s for s in (4, 2, 1) if inner % s == 0)
    found: list[tuple[float, int, int, int]] = []
    for m in (1, 2, 3, 4, 5, 6, 8):
        for n in (1, 2, 3, 4, 5, 6, 8):
            if rows % m or columns % n or m * n > 40:
                continue
            tiles = (rows // m) * (columns // n)
            split = 1
            while split < WARP and tiles * split * 2 <= threads and inner % (2 * split * step) == 0:
                split *= 2
            if tiles * split % WARP:
                split = 1
            turns = -(-tiles * split // threads)
            # Multiplications, reads (one each `step` of a row or column) and, where lanes split, the shuffles.
            reads = 1.2 * (m + n) if split > 1 else 0.6 * _wavefronts(m, n, columns // n)[0]
            work = turns * (inner / split * (m * n + reads) + (0 if split == 1 else 3.0 * m * n * split.bit_length()))
            found.append((work, m, n, split))
    _, m, n, split = min(found, key=lambda f: (f[0], -f[1] * f[2]))
    side = 1
    if split > 1 and not inner_last_right:
        while side * 2 * split <= WARP and (columns // n) % (side * 2) == 0:
            side *= 2
    return Tiling("fma", m, n, split, side, step, _wavefronts(m, n, columns // n)[1] if split == 1 else 0)


def _wavefronts(m: int, n: int, wide: int) -> tuple[float, int]:
    """(what shared memory takes to serve a warp one inner element of all its tiles, column tiles of its patch); `wide` tiles in a row.

    Eight different vectors of 16 bytes are one pass through shared memory's 32 banks. Units: passes, times the elements of a vector.
    """
    return min((m * max(WARP / strip / 8, 1.0) + n * max(strip / 8, 1.0), strip) for strip in range(1, wide + 1) if wide % strip == 0)
