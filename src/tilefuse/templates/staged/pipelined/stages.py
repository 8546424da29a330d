"""Tiles in shared memory beside the operands' slots: results on their way out, boundary values that maps read beside the sums.

    boundary value  -> tensor copies, while the products are computed ->  64 rows x 64 columns  -> in place -> result -> tensor stores
    result whose rows no tensor map describes                          ->  64 rows x 64 columns  -> each warp stores its 16 rows
"""
from __future__ import annotations

from dataclasses import dataclass

from tilefuse.base.construction import quickly_built, replace
from tilefuse.ir.dtype import DType
from tilefuse.kernel.pipeline import SWIZZLE_LINE_BYTES, TILE_ALIGNMENT_BYTES, WARPGROUP_ROWS, panel_width
from tilefuse.kernel.tensor_map import why_no_map
from tilefuse.target.capabilities import MMA_COLUMNS
from tilefuse.target.warpgroup import NEIGHBOURS
from tilefuse.templates.staged.pipelined.form import ProductForm
from tilefuse.templates.staged.pipelined.record import Pipelined
from tilefuse.templates.staged.pipelined.result_map import ResultMap

# Longest elements that pass through stages. Units: bytes.
LONGEST_STAGED_BYTES = 4
# Columns of a stage that a warpgroup writes before a tensor store reads it, and most stages of a warpgroup for a result alone.
STAGE_COLUMNS, STAGES = 64, 2
# Elements behind each row of a stage that warps store by rows: the columns that a warp writes together in eight rows. These lie in
# different banks then.
ROW_PAD = MMA_COLUMNS


@quickly_built
@dataclass(frozen=True, slots=True)
class StagedTile:
    """A tensor that passes through shared memory by boxes of 64 rows of a warpgroup and one panel of columns.

    A result has two stages of 64 rows x 64 columns for each warpgroup: while one is read by a store, the other is written; or one where
    the second would take the memory of a slot. A boundary value has stages for a whole tile, and so has a result that shares them.

    map           its dimensions, rows and columns last
    offset_bytes  of the first warpgroup's first stage
    count         stages of a warpgroup
    by_rows       a result that no tensor store writes: each warp stores the rows that it has written, so that one stage is enough
    """

    name: str
    dtype: DType
    map: ResultMap
    offset_bytes: int
    count: int
    by_rows: bool = False

    @property
    def swizzle(self) -> int:
        """Swizzle of a panel, whose rows are no longer than a stage's; 0 for rows with a pad behind them. Units: bytes."""
        return 0 if self.by_rows else min(SWIZZLE_LINE_BYTES, STAGE_COLUMNS * self.dtype.itemsize)

    @property
    def width(self) -> int:
        """Columns of a panel."""
        return STAGE_COLUMNS if self.by_rows else panel_width(self.swizzle, self.dtype.itemsize)

    @property
    def num_panels(self) -> int:
        """Panels of a stage."""
        return STAGE_COLUMNS // self.width

    @property
    def pitch(self) -> int:
        """Elements from one row of a panel to the next."""
        return self.width + ROW_PAD if self.by_rows else self.width

    @property
    def stage_elements(self) -> int:
        """Elements of one stage."""
        return WARPGROUP_ROWS * self.pitch * self.num_panels

    @property
    def box(self) -> tuple[int, ...]:
        """Extents of one copy or store."""
        return (*(1 for _ in self.map.extents[:-2]), WARPGROUP_ROWS, self.width)

    @property
    def is_copied(self) -> bool:
        """Whether a tensor map describes it, and each box lies in one part of it."""
        return (self.dtype.itemsize <= LONGEST_STAGED_BYTES and self.map.holds_boxes(WARPGROUP_ROWS, self.width)
                and not why_no_map(self.dtype, self.map.extents, self.map.strides, self.box, self.swizzle))

    @property
    def is_stored_by_rows(self) -> bool:
        """Whether the columns of each stage lie next to each other in memory, wherever their rows begin."""
        return self.dtype.itemsize <= LONGEST_STAGED_BYTES and self.map.strides[-1] == 1 and self.map.lines[1] % STAGE_COLUMNS == 0

    def num_bytes(self, warpgroups: int) -> int:
        """All stages."""
        return self.count * warpgroups * self.stage_elements * self.dtype.itemsize


@dataclass(frozen=True)
class Stages:
    """Tiles in shared memory beside the slots, laid out.

    results  that leave through stages
    fetched  boundary values that come through stages
    """

    results: tuple[StagedTile, ...] = ()
    fetched: tuple[FetchedValue, ...] = ()

    @property
    def tiles(self) -> tuple[StagedTile, ...]:
        """Every tile once."""
        return tuple({t.name: t for t in (*self.results, *(f.tile for f in self.fetched))}.values())


@dataclass(frozen=True)
class FetchedValue:
    """A boundary value, and the stages that its tiles lie in: its own, or those of a result of its type, which takes its place."""

    source: StagedTile
    tile: StagedTile


def stages_of(form: ProductForm, choice: Pipelined, offset_bytes: int, stages: int) -> Stages:
    """Results that leave through stages, and values that maps read there, laid out from `offset_bytes` on.

    A result has none where its columns do not lie together, as those of heads of 24 columns, or sums are those of the transposed product.
    stages: of a warpgroup for each result that shares none.
    """
    if choice.result_columns % STAGE_COLUMNS or form.swapped:
        return Stages()
    types = form.graph.type_of
    whole = choice.warpgroup_rows // WARPGROUP_ROWS * (choice.result_columns // STAGE_COLUMNS)
    results = [t for n, m in form.maps.items() if (t := _result(form, StagedTile(n, types(n).dtype, m, 0, stages))) is not None]
    fetched = [t for t in (StagedTile(n, types(n).dtype, m, 0, whole) for n, m in form.beside.items()) if _is_staged(form, t)]
    if form.columns % NEIGHBOURS or choice.memory_parts > 1 or choice.finishers < choice.cluster_parts:
        # Not every block of those that share a tile computes results.
        fetched = []
    tile_by_source: dict[str, str] = {}
    for s in fetched:
        free = [r.name for r in results if r.dtype == s.dtype and not r.by_rows and r.name not in tile_by_source.values()]
        tile_by_source[s.name] = s.name if s.name in free else free[0] if free else s.name
    shared = set(tile_by_source.values())
    tiles = [replace(r, count=whole) if r.name in shared else r for r in results]
    tiles += [s for s in fetched if s.name in shared and s.name not in {r.name for r in results}]
    tile_by_name: dict[str, StagedTile] = {}
    for t in tiles:
        placed = replace(t, offset_bytes=-(-offset_bytes // TILE_ALIGNMENT_BYTES) * TILE_ALIGNMENT_BYTES)
        tile_by_name[t.name] = placed
        offset_bytes = placed.offset_bytes + placed.num_bytes(choice.warpgroups)
    return Stages(tuple(tile_by_name[r.name] for r in results),
                  tuple(FetchedValue(s, tile_by_name[tile_by_source[s.name]]) for s in fetched))


def _result(form: ProductForm, tile: StagedTile) -> StagedTile | None:
    """The stages of a result: for tensor stores, else for stores by rows; None where there are none."""
    if _is_staged(form, tile):
        return tile
    return replace(tile, count=1, by_rows=True) if tile.is_stored_by_rows else None


def _is_staged(form: ProductForm, tile: StagedTile) -> bool:
    """Whether boxes of the tensor pass through shared memory. Rows of a group begin anywhere, so that parts of rows would cut boxes."""
    return tile.is_copied and form.row_step == 1 and not (form.num_groups and tile.map.lines[0])
