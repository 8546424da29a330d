"""Where a thread of a column kernel stands: its columns and rows, and what it holds of them."""
from __future__ import annotations

from dataclasses import dataclass, field

from tilefuse.domain.access import flat_axes
from tilefuse.domain.resolved import Domain
from tilefuse.emit.kernel_writer import Held, KernelWriter
from tilefuse.ir.affine import Affine, axis, mod, substitute
from tilefuse.ir.scalar import Bound
from tilefuse.kernel.ir import Reg
from tilefuse.templates.columns.record import Columns
from tilefuse.templates.columns.starts import ColumnStart


@dataclass
class BetweenVectors:
    """Where the thread's columns and rows begin. `image`: root axes of the tile's image; `first_column`: of the tile, in the image."""

    writer: KernelWriter
    choice: Columns
    start: ColumnStart
    image: dict[str, Affine]
    image_number: Affine
    tile_of_image: Affine
    part: Affine
    rows_of_part: int
    first_row: Affine
    inner: Affine  # the thread's first column, with what the lane adds left out
    columns: list[Bound]  # hold where the thread has any columns of the image

    def kept_env(self, lane: str) -> dict[str, Affine]:
        """Root axes of the thread's columns with the lane as a variable."""
        return self.image | {self.start.inner: self.inner + axis(lane)}

    def row(self, step: Affine) -> Affine:
        """The thread's row number `step`: named from its first one, so that all are seen to lie at one distance from a vector."""
        return self.first_row + step * self.choice.threads_y

    def distance(self, row: Affine) -> Affine:
        """Elements from the vector in which a row of the image begins to its first column."""
        return mod(first_of_row(self.writer, self.choice, self.start, self.image, row), self.choice.vector, self.writer.emitter.extents)


def first_of_row(writer: KernelWriter, choice: Columns, start: ColumnStart, image: dict[str, Affine], row: Affine) -> Affine:
    """Offset of a row's first column."""
    e = writer.emitter
    return substitute(start.offset, image | flat_axes(choice.reduced_order, row, writer.domain.extents, e.extents), e.extents)


@dataclass
class ColumnState:
    """The thread's columns and rows, its accumulators' owner, what is held."""

    writer: KernelWriter
    choice: Columns
    lane: str
    x: Affine
    y: Affine
    column: Affine           # number of the thread's vector of columns
    column_bounds: list[Bound]
    part: Affine
    tile: Affine
    rows_of_part: int
    held: list[Held]
    exchange: dict[int, list[str]] = field(default_factory=dict)  # shared memory of each reduction's partial columns
    between: BetweenVectors | None = None  # where rows begin between vectors

    @property
    def domain(self) -> Domain:
        return self.writer.domain


def at_lane(reg: Reg, v: Affine, vector: int) -> Reg:
    """The element of a thread's array over its lanes; the register itself where it has one column."""
    return reg if vector == 1 else Reg(reg.name, reg.dtype, v)
