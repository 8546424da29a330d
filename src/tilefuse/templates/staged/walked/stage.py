"""Results of a pipelined walk on their way out: rows of a tile in shared memory, panels of columns that tensor stores write.

    rows of a warpgroup x 64 columns of 16 bits   ->   a box of the result, which ends where its rows and columns do
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilefuse.base.construction import quickly_built, replace
from tilefuse.base.memo import remembered_for_last
from tilefuse.ir.affine import Affine, axis, linearise, number, row_major_strides, substitute
from tilefuse.ir.dtype import DType
from tilefuse.ir.layouts import Layouts
from tilefuse.kernel.pipeline import SWIZZLE_LINE_BYTES, TILE_ALIGNMENT_BYTES, WARPGROUP_ROWS, panel_width
from tilefuse.kernel.tensor_map import why_no_map
from tilefuse.target.warpgroup import NEIGHBOURS
from tilefuse.templates.staged.online.plan import padded
from tilefuse.templates.staged.online.products import LEAD, ROW, WIDTH, OnlineForm
from tilefuse.templates.staged.walked.operand import WalkOperand


@quickly_built
@dataclass(frozen=True, slots=True)
class StagedResult:
    """A result with rows and columns of the weighted product, and the shared memory of one tile of it.

    axes, extents, strides  of its tensor map: lead axes of the weighted product, rows, columns. first: its first element
    rows, columns           of the tile, columns in whole panels

    Units: elements; bytes.
    """

    name: str
    dtype: DType
    axes: tuple[str, ...]
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    first: int
    rows: int
    columns: int
    offset_bytes: int

    @property
    def width(self) -> int:
        """Columns of a panel."""
        return panel_width(SWIZZLE_LINE_BYTES, self.dtype.itemsize)

    @property
    def box(self) -> tuple[int, ...]:
        """Extents of one store."""
        return (*(1 for _ in self.axes[:-2]), WARPGROUP_ROWS, self.width)

    @property
    def num_panels(self) -> int:
        """Panels of a tile."""
        return self.columns // self.width

    @property
    def elements(self) -> int:
        """Elements of a tile."""
        return self.rows * self.columns

    @property
    def end_bytes(self) -> int:
        """Its end in shared memory."""
        return self.offset_bytes + self.elements * self.dtype.itemsize

    def place(self, row: Affine, column: Affine) -> Affine:
        """Where an element of the tile lies in its shared memory."""
        return column // self.width * (self.rows * self.width) + row * self.width + column % self.width


def staged_results(online: OnlineForm, of: WalkOperand, layouts: Layouts, rows: int, offset_bytes: int) -> tuple[StagedResult, ...]:
    """The results that tensor stores write, laid out from `offset_bytes` on. of: right operand of a product with the results' lead axes."""
    staged: list[StagedResult] = []
    for name, e in online.width_results:
        width = online.weighted[online.products_in(e)[0]].width
        result = _staged(online, of, layouts, name, rows, width)
        if result is not None and width % NEIGHBOURS == 0:
            staged.append(replace(result, offset_bytes=padded(offset_bytes, TILE_ALIGNMENT_BYTES)))
            offset_bytes = staged[-1].end_bytes
    return tuple(staged)


@remembered_for_last
def _staged(online: OnlineForm, of: WalkOperand, layouts: Layouts, name: str, rows: int, width: int) -> StagedResult | None:
    """A result of `width` columns as a tensor over the walk's axes; None where no tensor map describes it."""
    kind = online.graph.type_of(name)
    sizes = {**{a: of.sizes[a] for a in of.leads}, ROW: online.num_rows, WIDTH: width}
    offset = linearise(online.points[name], tuple(layouts.get(name) or row_major_strides(kind.shape)))
    offset = substitute(offset, {LEAD: lead_number(of)}, {**sizes, LEAD: online.num_leads})
    if not offset.is_linear or sizes[WIDTH] > 1 and offset.coefficient(WIDTH) != 1:
        return None
    axes = (*sorted((a for a in of.leads if sizes[a] > 1), key=lambda a: -offset.coefficient(a)), ROW, WIDTH)
    columns = padded(width, panel_width(SWIZZLE_LINE_BYTES, kind.dtype.itemsize))
    # Axes of one element have the least stride.
    strides = tuple(offset.coefficient(a) or columns for a in axes[:-1])
    result = StagedResult(name, kind.dtype, axes, tuple(sizes[a] for a in axes), (*strides, 1), offset.const, rows, columns, 0)
    return None if why_no_map(kind.dtype, result.extents, result.strides, result.box, SWIZZLE_LINE_BYTES, result.first) else result


def lead_number(of: WalkOperand) -> Affine:
    """The number of a lead place, from the lead axes of a product."""
    place = number(0)
    for a in of.leads:
        place = place * of.sizes[a] + (axis(a) if of.sizes[a] > 1 else 0)
    return place


def lead_places(of: WalkOperand, lead: Affine) -> Mapping[str, Affine]:
    """Lead axes of a product at a lead place."""
    stride, places = 1, {}
    for a in reversed(of.leads):
        places[a] = lead // stride % of.sizes[a]
        stride *= of.sizes[a]
    return places
