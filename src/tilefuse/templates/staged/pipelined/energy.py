"""Energy of a pipelined product, and its repeated reads of operands that L2 no longer holds.

    128 x 256, two warpgroups      each 64 rows read all 256 columns: 2 x (64 + 256) elements of shared memory, 128 + 256 from L2
    64 x 256, in turn              64 + 256 of both: the same reads for a multiply-add, 1.67 times the copies
"""
from __future__ import annotations

from tilefuse.ir.dtype import F32
from tilefuse.kernel.pipeline import WARPGROUP_ROWS
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.staged.pipelined.form import ProductForm
from tilefuse.templates.staged.pipelined.record import Pipelined

# Products of the high and low parts of f32 operands.
PRODUCTS_OF_PARTS = 3


def energy_pj(form: ProductForm, choice: Pipelined, boundary_bytes: int, flops: int, device: DeviceSpec, together: int = 1) -> float:
    """Energy of the multiply-adds, of copies into slots, of reads by instructions, of maps on the sums, and of global memory.

    boundary_bytes: bytes of the boundary values, each once. flops: operations of the maps on one element. together: products of one
    instruction. Units: picojoules.
    Source: `PowerFigures`. Multiply-adds of a tile's padding have zeros and take next to nothing.
    """
    figures, itemsize = device.fitted.power, form.left.dtype.itemsize
    products, times = len(form.products), PRODUCTS_OF_PARTS if form.splits_operands else 1
    multiplied = times * products * form.num_leads * form.rows * form.columns * form.inner
    tiles = form.num_leads * -(-form.rows // choice.rows) * -(-form.columns // choice.columns)
    copied = tiles * form.inner * (choice.rows * form.left.read_bytes + choice.columns * sum(p.right.read_bytes for p in form.products))
    lines = choice.rows // WARPGROUP_ROWS * (products // together * WARPGROUP_ROWS + products * choice.columns)
    read = times * tiles * form.inner * lines * itemsize
    moved = boundary_bytes + repeated_bytes(form, choice, device)
    return (dict(figures.multiply_add_pj)[power_unit(form)] * multiplied + figures.copied_byte_pj * copied
            + figures.shared_byte_pj * read + figures.memory_byte_pj * moved
            + figures.operation_pj * flops * form.num_leads * form.rows * form.columns)


def power_unit(form: ProductForm) -> str:
    """The type of operands on the tensor cores."""
    return "tf32" if form.left.dtype == F32 else form.left.dtype.name


def repeated_bytes(form: ProductForm, choice: Pipelined, device: DeviceSpec) -> float:
    """Bytes of operands that come from global memory again, because L2 does not hold them until other tiles need them.

        blocks at work have `band` row tiles and as many column tiles as come out:      rows | A A A A
        where L2 holds all these, the rows of a band stay while columns pass;                | B B B B     columns again for each band
        where it does not, each wave of tiles brings its rows and columns anew, as far as L2 does not hold them

    Units: bytes. Source: counted. Products of few rows read weights once, rows of groups share little: none.
    """
    if choice.swapped or form.num_groups:
        return 0.0
    row_tiles, column_tiles = -(-form.rows // choice.rows), -(-form.columns // choice.columns)
    at_work = min(choice.blocks / choice.split, row_tiles * column_tiles)
    rows = min(max(choice.band, at_work / column_tiles), row_tiles)
    row_bytes = choice.rows * form.inner * form.left.read_bytes
    column_bytes = choice.columns * form.inner * sum(p.right.read_bytes for p in form.products)
    at_once = rows * row_bytes + min(at_work / choice.band, column_tiles) * column_bytes
    l2_bytes = device.l2_bytes * device.fitted.pipelined.kept_l2_share
    once = row_tiles * row_bytes + column_tiles * column_bytes
    anew = row_tiles * column_tiles / at_work * at_once
    stays = rows * row_bytes + column_tiles * column_bytes <= l2_bytes
    by_band = once if stays else row_tiles * row_bytes + column_tiles * column_bytes * row_tiles / rows
    # Operands computed from indices or single elements read nothing.
    share = min(l2_bytes / at_once, 1.0) if at_once else 1.0
    brought = share * by_band + (1.0 - share) * anew
    return form.num_leads * max(brought - once, 0.0)
