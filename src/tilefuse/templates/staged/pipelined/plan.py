"""The plan of a pipelined product: its form, its tiles, their places in shared memory, and how operands come there."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilefuse.base.construction import quickly_built, replace
from tilefuse.domain.contraction import GROUP, INNER, ROW
from tilefuse.domain.work import Work
from tilefuse.ir.dtype import BF16, F16, F32
from tilefuse.kernel.pipeline import (
    PIECES,
    SWIZZLE_CHUNK_BYTES,
    SWIZZLE_LINE_BYTES,
    TILE_ALIGNMENT_BYTES,
    WARPGROUP,
    WARPGROUP_ROWS,
    panel_width,
)
from tilefuse.kernel.tensor_map import why_no_map
from tilefuse.target.capabilities import MMA_COLUMNS
from tilefuse.target.device import DeviceSpec
from tilefuse.target.memory import RESERVED_SHARED_BYTES
from tilefuse.target.warpgroup import MOST_COLUMNS, NEIGHBOURS, ROW_LANES
from tilefuse.templates.staged.pipelined.exact.block_scales import scales_of_tile
from tilefuse.templates.staged.pipelined.exchanges import Exchange, ReceivedSums, exchanges_of, parts_of
from tilefuse.templates.staged.pipelined.form import ProductForm
from tilefuse.templates.staged.pipelined.grouped.tables import GroupTables
from tilefuse.templates.staged.pipelined.grouped.tile_rows import most_tiles, usual_tiles
from tilefuse.templates.staged.pipelined.operand import Operand
from tilefuse.templates.staged.pipelined.record import Pipelined
from tilefuse.templates.staged.pipelined.shifted.rows import ShiftedRows
from tilefuse.templates.staged.pipelined.stages import STAGE_COLUMNS, STAGES, FetchedValue, StagedTile, Stages, stages_of

# Types of a left operand in registers. Source: PTX ISA, wgmma.
REGISTER_TYPES = (F16, BF16)
# Register arrays of parts of left operands: one is computed while a product reads the other.
EXPANDED_ARRAYS = 2
# Neighbours along the inner axis that a lane expands from one load: lanes of a line share a part, which is a line of the other operand.
LANE_NEIGHBOURS = SWIZZLE_LINE_BYTES // F16.itemsize // ROW_LANES
# Tiles of low parts: products of one slot are in flight while threads compute those of the next one.
LOW_TILES = 2


@quickly_built
@dataclass(frozen=True, slots=True)
class OperandTile:
    """One slot's tile of an operand: `lines` lines (rows or columns of the product) by `depth` elements of the inner axis, in panels.

        inner axis contiguous       panels of `width` inner elements, each of `lines` lines
        lines contiguous            panels of `width` lines, each of `depth` inner elements

    key           "left", or "right" with the product's number
    offset_bytes  of slot 0 in the block's shared memory
    expanded      the operand that consumers compute from the tile, in registers; `operand` is the narrow tensor then, of which one element
                  holds `packing` inner elements: `depth` counts the tensor's elements
    parts         of each panel, one copied by each block of a cluster to all of them; 1: the block copies its own tile
    by_lanes      whether the inner elements of a panel lie in the order in which lanes expand the other operand
    beside        tiles of right operands that lie side by side in each slot of one buffer, of which this is tile `number_of`
    """

    key: str
    operand: Operand
    lines: int
    depth: int
    offset_bytes: int
    expanded: Operand | None = None
    packing: int = 1
    parts: int = 1
    by_lanes: bool = False
    beside: int = 1
    number_of: int = 0

    @property
    def pitch(self) -> int:
        """Elements from one slot to the next."""
        return self.elements * self.beside

    @property
    def first(self) -> int:
        """Its first element in a slot."""
        return self.elements * self.number_of

    @property
    def width(self) -> int:
        """Elements of a panel along the contiguous axis."""
        return panel_width(SWIZZLE_LINE_BYTES, self.operand.dtype.itemsize)

    @property
    def elements(self) -> int:
        """Elements of one slot."""
        return self.lines * self.depth

    @property
    def slot_bytes(self) -> int:
        """Shared memory of one slot."""
        return self.elements * self.operand.dtype.itemsize

    @property
    def panel_lines(self) -> int:
        """Rows of a panel: lines of the operand, or elements of the inner axis."""
        return self.lines if self.operand.inner_is_contiguous else self.depth

    @property
    def num_panels(self) -> int:
        """Panels of one slot."""
        return (self.depth if self.operand.inner_is_contiguous else self.lines) // self.width


@dataclass(frozen=True)
class LowParts:
    """Low parts of an operand's tiles, laid out as these, of the slot at hand and of the one before, whose products are in flight."""

    tile: OperandTile
    offset_bytes: int

    @property
    def num_bytes(self) -> int:
        """Both tiles."""
        return LOW_TILES * self.tile.elements * self.tile.operand.dtype.itemsize


@quickly_built
@dataclass(frozen=True, slots=True)
class ProductPlan:
    """One kernel. rights: tiles of the products' right operands, in order; stages: of a warpgroup for each staged result, where no boundary
    value or product shares them. `work` and `flops`: as of `Work` and `TileProgram`.

    beside    tiles in shared memory beside the slots
    received  sums of a tile's parts that the blocks of a cluster send each other; None without such parts
    in_pieces whether each lane expands neighbours of narrow operands (`swapped/expand.py`)
    tables    rows and tiles before each group; None without groups
    lows      of every operand, in order, where they are multiplied as high and low parts
    """

    form: ProductForm
    choice: Pipelined
    left: OperandTile
    rights: tuple[OperandTile, ...]
    beside: Stages = Stages()
    stages: int = STAGES
    exchanges: tuple[Exchange, ...] = ()
    lows: tuple[LowParts, ...] = ()
    received: ReceivedSums | None = None
    tables: GroupTables | None = None
    in_pieces: bool = False
    work: Work = Work()
    flops: int = 0

    @property
    def operands(self) -> tuple[OperandTile, ...]:
        """Tiles of the left operand and of every right one, in the order of their slots."""
        return (self.left, *self.rights)

    @property
    def shared_bytes(self) -> int:
        """All slots of the operands, all stages, and the parts that blocks of a cluster exchange. Units: bytes."""
        last = self.rights[-1]
        slots = last.offset_bytes + last.slot_bytes * last.beside * self.choice.slots
        return max([slots, *(low.offset_bytes + low.num_bytes for low in self.lows),
                    *(t.offset_bytes + t.num_bytes(self.choice.warpgroups) for t in self.beside.tiles),
                    *(e.offset_bytes + e.num_bytes for e in self.exchanges),
                    self.received.offset_bytes + self.received.num_bytes if self.received else 0,
                    self.tables.offset_bytes + self.tables.num_bytes if self.tables else 0])

    @property
    def beside_bytes(self) -> int:
        """Shared memory beside the slots. Units: bytes."""
        exchanges = sum(e.num_bytes for e in self.exchanges) + (self.received.num_bytes if self.received else 0)
        exchanges += self.tables.num_bytes if self.tables else 0
        lows = sum(low.num_bytes for low in self.lows)
        return sum(t.num_bytes(self.choice.warpgroups) for t in self.beside.tiles) + exchanges + lows

    @property
    def together(self) -> int:
        """Products of one instruction: all of them, or 1."""
        return max((t.beside for t in self.rights), default=1)

    @property
    def num_signals(self) -> int:
        """Transaction barriers of a block beside those of its rings: one a warpgroup for fetched values, then one a copy of exchanges."""
        exchanged = sum(e.num_slots for e in self.exchanges if not e.in_memory)
        return self.first_signal + exchanged + (self.received.copies if self.received else 0)

    @property
    def num_meetings(self) -> int:
        """Counters in global memory at which the warpgroups of one scattered cluster meet: one a copy of each exchange."""
        return sum(e.num_slots for e in self.exchanges if e.in_memory)

    @property
    def staged(self) -> tuple[StagedTile, ...]:
        """Results that leave through shared memory."""
        return self.beside.results

    @property
    def copied_results(self) -> tuple[StagedTile, ...]:
        """Those of them that tensor stores write."""
        return tuple(r for r in self.staged if not r.by_rows)

    @property
    def fetched(self) -> tuple[FetchedValue, ...]:
        """Boundary values that come through shared memory while the products are computed."""
        return self.beside.fetched

    @property
    def first_signal(self) -> int:
        """Number of the first transaction barrier of the exchanges, behind those of fetched values."""
        return self.choice.warpgroups if self.fetched else 0

    @property
    def row_tiles(self) -> int:
        """Tiles along the rows; of groups those that prices count."""
        return row_tiles_of(self.form, self.choice.rows)

    @property
    def most_row_tiles(self) -> int:
        """Most tiles along the rows: groups of unlike size have more."""
        form = self.form
        return most_tiles(form.num_groups, form.rows, self.choice.rows) if form.num_groups else self.row_tiles

    @property
    def most_items(self) -> int:
        """Most items of work, as of `num_items`."""
        return self.num_items // self.row_tiles * self.most_row_tiles

    @property
    def column_tiles(self) -> int:
        """Tiles along the columns: whole clusters, for each group of columns that is reduced together."""
        if self.form.reduced.width:
            return -(-self.form.columns // self.form.reduced.width) * self.choice.cluster_columns
        return max(-(-self.form.columns // self.choice.columns), self.choice.cluster_columns)

    @property
    def reads_weights_once(self) -> bool:
        """Whether one tile holds all rows of the products, so that each element of a right operand is read once."""
        return (self.column_tiles if self.choice.swapped else self.row_tiles) == 1

    @property
    def num_tiles(self) -> int:
        """Tiles of all lead places."""
        return self.form.num_leads * self.row_tiles * self.column_tiles

    @property
    def num_items(self) -> int:
        """Items of work that clusters (or single blocks) take one after another: tiles of a cluster's columns, or parts of tiles."""
        return self.num_tiles // self.choice.cluster_columns * self.choice.memory_parts

    @property
    def workspace_elements(self) -> int:
        """Sums of all parts that meet in the workspace; 0 where none do."""
        choice = self.choice
        return 0 if choice.memory_parts == 1 else self.num_tiles * choice.memory_parts * choice.rows * choice.columns * len(self.rights)

    @property
    def turns(self) -> int:
        """Items that a block takes at most; of groups those that prices count."""
        return -(-self.num_items // self.choice.num_clusters)

    @property
    def most_turns(self) -> int:
        """Most items that a block takes."""
        return -(-self.most_items // self.choice.num_clusters)

    @property
    def fillings(self) -> int:
        """Steps of the main loop: fillings of a slot for one tile, or for a part of its inner axis."""
        return fillings_of_part(self.form.walked_inner, self.choice)

    @property
    def sums(self) -> int:
        """Accumulators of one product that a consumer thread has."""
        return self.choice.warpgroup_rows * self.choice.columns // WARPGROUP

    @property
    def result_sums(self) -> int:
        """Sums of one product from which a consumer thread computes results."""
        return self.choice.warpgroup_rows * self.choice.result_columns // WARPGROUP

    @property
    def all_sums(self) -> int:
        """Accumulators of a consumer thread; sums outside of them have registers of their own."""
        return self.sums * len(self.rights) * self.form.arrays_a_product

    @property
    def registers(self) -> int:
        """Registers of a consumer thread for values that stay: sums, values of rows, parts of operands and scales."""
        return self.all_sums + self.row_registers + self.expanded_registers + self.scale_registers

    @property
    def expanded_registers(self) -> int:
        """Registers of a consumer thread for parts of left operands that it computes from narrow elements."""
        if not any(t.expanded for t in self.rights):
            return 0
        part = panel_width(SWIZZLE_LINE_BYTES, self.left.operand.dtype.itemsize)
        return EXPANDED_ARRAYS * self.choice.warpgroup_rows * part // WARPGROUP * self.left.operand.dtype.itemsize // F32.itemsize

    @property
    def scale_registers(self) -> int:
        """Registers of a consumer thread for scales of a slot: of its rows, and of the columns of which it has sums."""
        form, choice = self.form, self.choice
        if not form.has_block_scales:
            return 0
        scales = [p.scales for p in form.products if p.scales is not None]
        along = [s[0] if form.swapped else s[1] for s in scales]
        of_columns = (min(scales_of_tile(s, form.column_axis, choice.columns, form.operand_extents),
                          choice.columns // MMA_COLUMNS * NEIGHBOURS) for s in along)
        return len(scales) * choice.rows_of_thread + sum(of_columns)

    @property
    def row_registers(self) -> int:
        """Registers of a consumer thread for values of its rows: partial results of one stage, and every value that stays; and for column
        sums of one stage of results."""
        rows, graph = self.form.reduced, self.form.graph
        parts = max((sum(p.dtype.itemsize for p in parts_of(graph, s)) for s in rows.stages), default=0)
        values = sum(graph.type_of(v).dtype.itemsize for s in rows.stages for v in (*s.reductions, *s.values))
        down = len(self.form.down.points) * STAGE_COLUMNS // MMA_COLUMNS * NEIGHBOURS
        return -(-(parts + values) // F32.itemsize) * self.choice.rows_of_thread + down


def row_tiles_of(form: ProductForm, height: int) -> int:
    """Tiles of so many rows along the rows of a product."""
    if form.num_groups:
        return usual_tiles(form.num_groups, form.rows, height)
    return form.row_step * -(-form.rows // (form.row_step * height))


def fillings_of_part(inner: int, choice: Pipelined) -> int:
    """Fillings of a slot for one part of the inner axis; slots beyond the end of the axis hold zeros."""
    return -(-inner // choice.depth // choice.split)


@quickly_built
@dataclass(frozen=True, slots=True)
class OperandMap:
    """The tensor map of an operand's tiles: its axes, the contiguous one last, and the box of one panel. Units: elements."""

    axes: tuple[str, ...]
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]


def operand_map(form: ProductForm, tile: OperandTile) -> OperandMap:
    """The map of an operand of the form's products; of rows that begin anywhere, the first of `shifted_maps`."""
    if form.shifted is not None and tile.key == "left":
        return shifted_maps(form.shifted, tile)[0]
    return map_of_tile({**form.operand_extents, INNER: form.inner // tile.packing}, tile)


def map_of_tile(sizes: Mapping[str, int], tile: OperandTile) -> OperandMap:
    """The map of an operand; axes along which it does not move are none of the map's, and axes of one element have the least stride.

    sizes: extents of the product's axes, INNER among them.
    """
    operand = tile.operand
    last, before = (INNER, operand.line) if operand.inner_is_contiguous else (operand.line, INNER)
    strides = operand.stride_by_axis
    leads = sorted((a for a, s in strides.items() if a not in (INNER, operand.line) and s), key=lambda a: -strides[a])
    axes = (*leads, before, last)
    least = SWIZZLE_CHUNK_BYTES // operand.dtype.itemsize
    return OperandMap(axes, tuple(sizes[a] for a in axes), (*(strides.get(a, least) for a in axes[:-1]), strides.get(last, 1)),
                      (*(1 for _ in leads), tile.panel_lines // tile.parts, tile.width))


def shifted_maps(rows: ShiftedRows, tile: OperandTile) -> tuple[OperandMap, ...]:
    """The maps of rows that begin anywhere in memory, one for each of their tensors."""
    return tuple(OperandMap((ROW, INNER), tensor, (rows.step * rows.pitch, 1), (tile.panel_lines, tile.width)) for tensor in rows.tensors)


def why_no_copies(form: ProductForm, tile: OperandTile) -> str:
    """Why tensor copies cannot bring the operand's tiles, with the values; "" where they can."""
    if form.shifted is not None and tile.key == "left":
        return ""
    return why_no_map_of({**form.operand_extents, INNER: form.inner // tile.packing}, tile)


def why_no_map_of(sizes: Mapping[str, int], tile: OperandTile) -> str:
    """The same. sizes: as of `map_of_tile`."""
    operand = tile.operand
    if operand.element is not None:
        return f"%{operand.value} is computed"
    if tile.by_lanes:
        return f"the elements of %{operand.value} lie in the order of lanes"
    if GROUP in sizes and operand.line == ROW and not operand.inner_is_contiguous:
        return f"rows of %{operand.value}, which groups begin anywhere, lie next to each other"
    m = map_of_tile(sizes, tile)
    return why_no_map(operand.dtype, m.extents, m.strides, m.box, SWIZZLE_LINE_BYTES, operand.first)


def operand_tile(form: ProductForm, key: str, operand: Operand, lines: int, depth: int, offset_bytes: int = 0) -> OperandTile:
    """The tile of an operand; of its narrow tensor, where the operand is the left one of instructions, which take that from registers."""
    tile = OperandTile(key, operand, lines, depth, offset_bytes)
    narrow = stored_tile(form, tile) if form.swapped and operand.line == form.row_axis else None
    return tile if narrow is None else narrow


def stored_tile(form: ProductForm, tile: OperandTile) -> OperandTile | None:
    """The tile of the narrow tensor that an operand is computed from; None where it has none that tensor copies bring, or is of another
    type than instructions take from registers."""
    operand = tile.operand
    stored = operand.stored
    if stored is None or operand.dtype not in REGISTER_TYPES:
        return None
    tensor = Operand(stored.value, stored.dtype, operand.line, operand.lines, stored.stride_by_axis, stored.first, True,
                     stored.dtype.itemsize)
    narrow = replace(tile, operand=tensor, depth=tile.depth // stored.packing, expanded=operand, packing=stored.packing)
    whole = tile.depth % (stored.packing * narrow.width) == 0
    return narrow if whole and not why_no_copies(form, narrow) else None


def _expands_pieces(form: ProductForm, tiles: list[OperandTile]) -> bool:
    """Whether lanes expand pieces of neighbours: beside few lines of a tensor that copies bring or producers load in words, and where no
    product reads its left operand from shared memory."""
    left, *rights = tiles
    few = form.swapped and not form.num_groups and form.columns <= WARPGROUP_ROWS and form.inner % LANE_NEIGHBOURS == 0
    in_words = left.operand.inner_is_contiguous and not why_no_copies(form, left)
    return few and in_words and all(t.expanded is not None for t in rights)


def products_together(form: ProductForm, choice: Pipelined) -> int:
    """Products that one instruction multiplies: all, where their right tiles lie in a slot like one tile of more columns; or 1.

        64 columns each    slot | gate 64 x 64 | up 64 x 64 |    instruction: 64 rows by 128 columns    sums | of gate | of up |

    Instructions read the left tile from shared memory once then, not once for each product.
    """
    count = len(form.products)
    if count == 1 or choice.swapped or choice.split > 1 or form.arrays_a_product > 1 or count * choice.columns > MOST_COLUMNS:
        return 1
    tiles = [OperandTile("right", p.right, choice.columns, choice.depth, 0) for p in form.products]
    if len({(t.operand.dtype, t.operand.inner_is_contiguous) for t in tiles}) > 1:
        return 1
    # One panel of lines of the inner axis, or whole panels of columns.
    follow = choice.depth == tiles[0].width if tiles[0].operand.inner_is_contiguous else choice.columns % tiles[0].width == 0
    return count if follow and not any(why_no_copies(form, t) for t in tiles) else 1


def placed(form: ProductForm, choice: Pipelined, stages: int = STAGES) -> ProductPlan:
    """The plan with the slots of all operands, stages of results and slots of exchanges one after the other in shared memory."""
    tiles: list[OperandTile] = []
    end, together = 0, products_together(form, choice)
    for n, operand in enumerate(form.operands):
        key = f"right{n - 1}" if n else "left"
        lines = choice.rows if operand.line == form.row_axis else choice.columns
        if n > 1 and together > 1:
            tiles.append(replace(tiles[1], key=key, operand=operand, number_of=n - 1))
            continue
        start = -(-end // TILE_ALIGNMENT_BYTES) * TILE_ALIGNMENT_BYTES
        tile = replace(operand_tile(form, key, operand, lines, choice.depth, start), beside=together if n else 1)
        tiles.append(replace(tile, parts=choice.cluster) if choice.multicast and not n else tile)
        end = tile.offset_bytes + tile.slot_bytes * tile.beside * choice.slots
    lows: list[LowParts] = []
    for tile in tiles if form.splits_operands else ():
        lows.append(LowParts(tile, -(-end // TILE_ALIGNMENT_BYTES) * TILE_ALIGNMENT_BYTES))
        end = lows[-1].offset_bytes + lows[-1].num_bytes
    beside = stages_of(form, choice, end, stages)
    end = max([end, *(t.offset_bytes + t.num_bytes(choice.warpgroups) for t in beside.tiles)])
    end = -(-end // TILE_ALIGNMENT_BYTES) * TILE_ALIGNMENT_BYTES
    exchanges = exchanges_of(form.graph, form.reduced, choice, end)
    tables = GroupTables(form.num_groups, end) if form.num_groups else None
    in_pieces = _expands_pieces(form, tiles) and (not choice.by_warps or choice.depth % (PIECES * tiles[0].width) == 0)
    # Instructions of warpgroups read the other operand in its slot's order; single warps load a lane's piece of it.
    left = replace(tiles[0], by_lanes=in_pieces and not choice.by_warps)
    plan = ProductPlan(form, choice, left, tuple(tiles[1:]), beside, stages, exchanges, tuple(lows), tables=tables, in_pieces=in_pieces)
    if choice.cluster_parts == 1:
        return plan
    elements = len(plan.rights) * choice.rows * choice.result_columns * choice.cluster_parts
    return replace(plan, received=ReceivedSums(end, elements, choice.cluster_parts, 1 if plan.turns == 1 else 2))


def shared_room(choice: Pipelined, device: DeviceSpec) -> int:
    """Shared memory for the slots of a block, beside its barriers. Units: bytes."""
    shares = device.shared_bytes_per_multiprocessor // choice.resident - RESERVED_SHARED_BYTES
    return min(device.shared_bytes_per_block, shares) - device.fitted.pipelined.barrier_bytes
