"""The templates: how a root domain may be spread over grid, cluster, block, warp and thread. One record each, with its parameters.

Widths are in elements, counts in what the field says. `templates.choose` fills them in, `codegen` writes the kernels.
"""
from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Union

from tilefuse.templates.rows.modes import Rows, RowSettings, settings_of_rows

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
class Columns:
    """Kept axes run along memory: `threads_x` vectors of columns a block, `threads_y` threads down each column, `split` blocks
    down a column that meet through global memory. `chunks`: rows a thread. `on_chip`: they stay in registers between stages.
    `resident`: as of `rows.modes.Rows`.
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
# Choices of one walk in the flat words of the notation: fields are its settings, or numbers that loops show.
Settings = Union[Pointwise, Transpose, RowSettings, Columns]


def notation_form(choice: Choice) -> Settings:
    """The choice in the flat words of the notation; the choice itself where these are its own."""
    return settings_of_rows(choice) if isinstance(choice, Rows) else choice


def parameters_of(choice: Choice) -> tuple[tuple[str, Any], ...]:
    """The numbers of a choice by the notation's names; `across` and `side` only where warps stand across two axes."""
    left_out = ("across", "side") if isinstance(choice, Pointwise) and choice.side == 1 else ()
    settings = notation_form(choice)
    return tuple(sorted((f.name, getattr(settings, f.name)) for f in fields(settings) if f.name not in left_out))
