"""Parts of a stitched kernel: pieces (values over one block's region), the stages that compute them, and the plan of both.

    piece   %scores, rows tile0 * 64 .. + 64, all columns, in shared memory at byte 4096
    stage   product: the pieces %scores and %scaled over one region, by warps of the matrix unit
    plan    a grid, its pieces, its stages in order

Values only. `cut.py` cuts a pattern into them, `chained.py`, `row_chain.py` and `storage.py` go on from there, and the code
generator reads them.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Self

from tilefuse.base.construction import quickly_built
from tilefuse.domain.contraction import Contraction, Tiling
from tilefuse.domain.regions import Region, local_strides, stored_elements
from tilefuse.domain.work import Work
from tilefuse.ir.dtype import DType
from tilefuse.ir.graph import Graph
from tilefuse.templates.staged.stitched.record import Stitched


class _Changeable:
    """A value of which copies with a field or two changed are made a million times in a large plan: `dataclasses.replace`, quicker."""

    def but(self, **changes: object) -> Self:
        """The same with other values of some fields."""
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__dict__, **changes)
        return copy


@quickly_built
@dataclass(frozen=True)
class Piece(_Changeable):
    """A value over one block's region.

    kind      "copy" (a boundary value brought on chip), "map", "reduce" or "product"
    stored    in shared memory, rows `pad` elements longer; else in the registers of the stage that uses it, or nowhere
    written   to global memory as a result of the kernel; where several blocks compute the same region, by the first of them
    buffers   tiles in shared memory: 2 where the next one is copied while this one is read
    """

    key: int
    value: str
    region: Region
    kind: str
    dtype: DType
    stored: bool
    written: bool
    pad: int = 0
    offset_bytes: int = 0
    buffers: int = 1

    @property
    def num_bytes(self) -> int:
        """Shared memory the piece takes."""
        return self.buffers * self.num_stored * self.dtype.itemsize if self.stored else 0

    @property
    def num_stored(self) -> int:
        """Elements of one tile in shared memory, made so many that each tile begins at a multiple of 128 bytes where there are several."""
        elements = stored_elements(self.region, self.pad)
        return elements if self.buffers == 1 else -(-elements * self.dtype.itemsize // 128) * 128 // self.dtype.itemsize

    @property
    def strides(self) -> tuple[int, ...]:
        """Strides of the region in shared memory. Units: elements."""
        return local_strides(self.region, self.pad)

    @property
    def grid_axes(self) -> frozenset[str]:
        """Axes of the grid along which blocks have other regions; along all others they have the same one."""
        return frozenset().union(*(s.offset.axes() for s in self.region))


@quickly_built
@dataclass(frozen=True)
class Stage(_Changeable):
    """One loop nest between barriers: `pieces` over one region; `products` are computed in registers as it goes.

    kind     "copy", "map", "reduce", "product", or "rows": maps and reductions over the last dimension of the same rows, in order, each
             row by `lanes` lanes that keep its elements in registers, `vector` neighbouring ones each (warp composition)
    columns  rows: extent of the last dimension; product: the same, where its pieces go on along the rows of the sums (`row_chain.py`)
    own_rows rows: what they read of the stage before lies at their own row and place
    exchange_bytes, exchange_offset  product: place in shared memory of the sums that warps with one tile add up. Units: bytes
    """

    kind: str
    pieces: tuple[int, ...]
    products: tuple[int, ...] = ()
    tiling: Tiling | None = None
    lanes: int = 1
    barrier: bool = False
    columns: int = 0
    vector: int = 1
    own_rows: bool = False
    exchange_bytes: int = 0
    exchange_offset: int = 0


@dataclass
class StitchPlan(_Changeable):
    """The stages of one kernel. `grid` are (axis, number of tiles), the last one fastest; tiles a (result, dimension) belong to."""

    graph: Graph
    grid: tuple[tuple[str, int], ...]
    pieces: list[Piece]
    stages: list[Stage]
    contractions: Mapping[str, Contraction]
    kept: frozenset[str]
    shared_bytes: int = 0
    requested_bytes: int = 0
    flops: int = 0
    work: Work = Work()
    sources: dict[int, list[int]] = field(default_factory=dict)
    in_place: dict[int, int] = field(default_factory=dict)  # pieces that a later one, computed from them row by row, overwrites
    choice: Stitched = Stitched((), 0)  # once it is chosen
    held: set[int] = field(default_factory=set)  # pieces that stay in a warp's registers for the products after them (`chained.py`)

    def copy(self) -> StitchPlan:
        """The plan of a cut once more, to be placed in another way."""
        return self.but(pieces=list(self.pieces), stages=list(self.stages), in_place=dict(self.in_place), held=set(self.held))

    def is_ahead(self, stage: Stage) -> bool:
        """Whether a stage copies the next tile while this one is computed."""
        return any(self.pieces[k].buffers > 1 for k in stage.pieces)

    def is_once(self, stage: Stage) -> bool:
        """Whether a stage brings the same data on chip for every tile."""
        return stage.kind == "copy" and not any(s.offset.terms for k in stage.pieces for s in self.pieces[k].region)


class ValueRegion(NamedTuple):
    """The fields of a piece that bounds need; most tiles of a search come no further. Fields: as of `Piece`."""

    value: str
    region: Region
    kind: str
    dtype: DType
    written: bool


@dataclass(frozen=True, slots=True)
class Regions:
    """Tile of every value that follows from tiles of the anchor. reads: value and region of each read of each of the values' regions."""

    grid: tuple[tuple[str, int], ...]
    values: list[ValueRegion]
    reads: list[list[tuple[str, Region]]]


@dataclass(frozen=True, slots=True)
class Tiled:
    """Tile of every value that follows from tiles of the anchor, whatever threads compute it.

    sources       pieces that each piece reads
    users         pieces that read it
    in_registers  products whose sums stay in the registers of the one map that reads them
    """

    grid: tuple[tuple[str, int], ...]
    pieces: tuple[Piece, ...]
    sources: dict[int, list[int]]
    users: dict[int, list[int]]
    in_registers: set[int]
