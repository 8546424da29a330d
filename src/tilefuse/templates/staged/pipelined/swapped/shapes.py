"""Tiles of products with few rows: the right operand's columns are the rows of instructions, the few rows of the left one their columns.

    x[16, k] w[k, 4096]        16 of the 64 rows of an instruction          w turned, 64 columns by 16 rows: all of it
"""
from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import lcm

from tilefuse.base.search.limits import SEARCH
from tilefuse.kernel.pipeline import SWIZZLE_LINE_BYTES, WARPGROUP_ROWS, panel_width
from tilefuse.target.capabilities import MMA_COLUMNS
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.staged.pipelined.form import ProductForm
from tilefuse.templates.staged.pipelined.record import Pipelined
from tilefuse.templates.staged.pipelined.split.shapes import split_shapes
from tilefuse.templates.staged.pipelined.stages import STAGE_COLUMNS

# Most rows of products whose operands are swapped: as many as an instruction has.
MOST_ROWS = WARPGROUP_ROWS


def column_step(form: ProductForm) -> int:
    """Columns of a tile are multiples of it: panels of an operand whose lines are contiguous are whole, and so are panels of stages.

    Wide instructions of 8-bit integers have multiples of 16 columns.
    """
    if form.swapped and form.left.inner_is_contiguous:
        return MMA_COLUMNS * (2 if form.left.dtype.is_integer else 1)
    return min(panel_width(SWIZZLE_LINE_BYTES, form.left.dtype.itemsize), STAGE_COLUMNS)


def _whole_panel(form: ProductForm) -> int:
    """Inner elements that fill panels of all operands, of the narrow tensors that some are computed from as well."""
    stored = [p.right.stored for p in form.products if p.right.stored is not None]
    narrow = (s.packing * panel_width(SWIZZLE_LINE_BYTES, s.dtype.itemsize) for s in stored)
    return lcm(panel_width(SWIZZLE_LINE_BYTES, form.left.dtype.itemsize), *narrow)


def swapped_shapes(form: ProductForm, device: DeviceSpec) -> Iterator[Pipelined]:
    """Tiles of one slot each: with all rows of a product that has few, wide ones where consumers expand weights. form: swapped."""
    if form.reduced.stages:
        return
    panel = _whole_panel(form)
    expands = form.left.inner_is_contiguous and all(p.right.stored is not None for p in form.products)
    for warpgroups, columns in product(SEARCH.pipelines.swapped_warpgroups, _columns(form)):
        for by_warps, own_tiles in product((True, False), SEARCH.pipelines.swapped_tiles):
            if not (by_warps and expands) and (by_warps or own_tiles > 1):
                continue
            rows = WARPGROUP_ROWS * warpgroups * own_tiles
            tiles = form.num_leads * -(-form.rows // rows) * -(-form.columns // columns)
            for panels in SEARCH.pipelines.swapped_panels:
                shape = Pipelined(rows, columns, panels * panel, 1, warpgroups, 1, min(tiles, device.num_multiprocessors), swapped=True,
                                  by_warps=by_warps)
                yield shape
                yield from split_shapes(form.inner, shape, tiles, device)


def _columns(form: ProductForm) -> tuple[int, ...]:
    """Columns of tiles: one tile for few rows; wide ones for many rows where left operands are expanded, which no other form does."""
    if form.columns <= MOST_ROWS:
        step = column_step(form)
        return (-(-form.columns // step) * step,)
    return SEARCH.pipelines.swapped_columns if any(p.right.stored for p in form.products) else ()
