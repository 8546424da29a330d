"""The templates: how a root domain may be spread over grid, cluster, block, warp and thread. One record each, with its parameters.

Widths are in elements, counts in what the field says. `templates.choose` fills them in, `codegen` writes the kernels.
"""
from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Union

# Bytes of boundary values that one thread may keep in registers across the stages of a row: a quarter of 255 registers
# leaves room for addresses, accumulators and conversions (measured: no spills at 128).
KEPT_BYTES_PER_THREAD = 128
# Weights too are on their way before the first reduction waits, in blocks of at most so many threads: larger ones lack the registers
# (measured: 4 % slower).
EARLY_COLUMN_THREADS = 256


@dataclass(frozen=True, slots=True)
class Pointwise:
    """Flat walk: `threads` x `steps` vectors a block. `unrolled`: all loads of the steps are issued before the first use.

    `side` > 1: a warp stands across two axes, `side` lanes along `across` times 32 / `side` vectors along the last one
    (`templates/flat/side_by_side.py`).
    """

    order: tuple[str, ...]
    vector: int
    threads: int
    steps: int
    unrolled: bool
    across: str = ""
    side: int = 1


@dataclass(frozen=True, slots=True)
class Transpose:
    """Tiles of `rows` x `columns`: read along `read_axis`, written along `write_axis`, turned in shared memory.

    Each thread reads `depth` vectors that lie below each other along `write_axis` and writes their columns into shared memory.
    `depth` 0: a tile is one run of memory (the read axis is short) and is read in vectors along it. `writes_run`: a tile is one run of
    the written memory (the write axis is short, all of it lies in a tile) and is written in vectors along it.
    """

    order: tuple[str, ...]
    read_axis: str
    write_axis: str
    rows: int
    columns: int
    threads: int
    read_vector: int
    write_vector: int
    depth: int = 1
    writes_run: bool = False


@dataclass(frozen=True, slots=True)
class Rows:
    """Reduced axes run along memory: `threads` lanes a row, `rows` rows a block, `cluster` blocks a row, `split` blocks a row
    that meet through global memory. `chunks`: vectors a thread. `on_chip`: the row stays in registers between stages; else
    `batch` vectors are loaded at a time. `lanes`: accumulators a thread. `stages` > 0: a persistent grid of `groups` (blocks or
    clusters), each walking rows group, group + groups, ..., with `stages` rows on their way into shared memory ahead of it.
    Rows that are not `on_chip` are then read from there; with `batch` 1 a stage is one vector a thread of a row, else a whole one.
    `span` > 0: each group walks that many rows, `rows` of them a turn, and carries sums down the columns along.
    `resident`: blocks that must fit a multiprocessor together (0: no matter). `ahead`: rows in a queue of whole rows are reduced one turn
    before they are finished, so that what their threads tell each other is on its way meanwhile.
    """

    kept_order: tuple[str, ...]
    reduced_order: tuple[str, ...]
    vector: int
    threads: int
    rows: int
    chunks: int
    cluster: int
    split: int
    on_chip: bool
    lanes: int
    batch: int = 1
    stages: int = 0
    groups: int = 0
    span: int = 0
    resident: int = 0
    ahead: bool = False


@dataclass(frozen=True, slots=True)
class Columns:
    """Kept axes run along memory: `threads_x` vectors of columns a block, `threads_y` threads down each column, `split` blocks
    down a column that meet through global memory. `chunks`: rows a thread. `on_chip`: they stay in registers between stages.
    `resident`: as of `Rows`.
    """

    kept_order: tuple[str, ...]
    reduced_order: tuple[str, ...]
    vector: int
    threads_x: int
    threads_y: int
    chunks: int
    split: int
    on_chip: bool
    batch: int
    resident: int = 0


@dataclass(frozen=True, slots=True)
class Stitched:
    """Stages over one tile of the largest result, `tiles` elements a dimension, by `threads` threads; values between stages lie in
    shared memory. What the stages are follows from the pattern (`stitch.py`). `groups` > 0: that many blocks walk all tiles, and what is
    the same for every tile is brought on chip once."""

    tiles: tuple[int, ...]
    threads: int
    groups: int = 0


@dataclass(frozen=True, slots=True)
class Online:
    """Products along an axis that is walked (`online_products.py`): `rows` rows of results a block, shared by `threads` threads; `columns`
    elements of the walked axis a turn. `stages` 2: the operands of the next turn are fetched while this one is computed. `resident`: blocks
    that must fit a multiprocessor together."""

    rows: int
    columns: int
    threads: int
    stages: int = 1
    resident: int = 1


Choice = Union[Pointwise, Transpose, Rows, Columns]


def parameters_of(choice: Choice) -> tuple[tuple[str, Any], ...]:
    """The fields of a choice by name; `across` and `side` only where warps stand across two axes."""
    left_out = ("across", "side") if isinstance(choice, Pointwise) and choice.side == 1 else ()
    return tuple(sorted((f.name, getattr(choice, f.name)) for f in fields(choice) if f.name not in left_out))
