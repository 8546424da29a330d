"""Producers of a pipelined product: the next tile of each operand into its slot, by tensor copies or by the producers' own loads.

    tensor copies     one thread starts a copy for every panel; boxes that reach over the end of the operand arrive as zeros
    threads           128 threads load vectors and store them, for operands that no tensor map describes
    computed          128 threads compute the elements of operands that maps of the kernel give, and store them
"""
from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from tilefuse.domain.contraction import INNER
from tilefuse.emit.vectors import vector_parts
from tilefuse.ir.affine import Affine, axis, number, substitute
from tilefuse.ir.scalar import Guard, const
from tilefuse.kernel.ir import Assign, Buffer, Comment, Declare, KExpr, Load, Reg, VectorLoad, VectorStore
from tilefuse.kernel.pipeline import SWIZZLE_CHUNK_BYTES, SWIZZLE_LINE_BYTES, WARPGROUP
from tilefuse.kernel.tensor_map import TensorCopy, TensorMap
from tilefuse.target.capabilities import REGISTER_BYTES
from tilefuse.target.device import DeviceSpec
from tilefuse.target.warpgroup import NEIGHBOURS, ROW_LANES
from tilefuse.templates.staged.pipelined.computing import Piece, begin_chunk, end_chunk
from tilefuse.templates.staged.pipelined.form import ProductForm
from tilefuse.templates.staged.pipelined.operand import Operand
from tilefuse.templates.staged.pipelined.plan import LANE_NEIGHBOURS, OperandTile, ProductPlan, operand_map, why_no_copies
from tilefuse.templates.staged.pipelined.shifted.tiles import copy_shifted
from tilefuse.templates.staged.pipelined.state import ProductState


@dataclass(frozen=True)
class Filling:
    """Operands that come the same way, through a ring of their own. threads: 1, which starts tensor copies, or those that load."""

    ring: str
    threads: int
    tiles: tuple[OperandTile, ...]


def fillings_of(plan: ProductPlan) -> tuple[Filling, ...]:
    """How the operands come: by tensor copies where maps describe them, else by producing threads."""
    copied = tuple(t for t in plan.operands if not why_no_copies(plan.form, t))
    loaded = tuple(t for t in plan.operands if t not in copied)
    ways = (Filling("copied", 1, copied), Filling("loaded", WARPGROUP, loaded))
    return tuple(way for way in ways if way.tiles)


def producer_threads(plan: ProductPlan) -> int:
    """Threads that produce: one where tensor copies bring all operands."""
    return max(way.threads for way in fillings_of(plan))


def registers_of_roles(plan: ProductPlan, device: DeviceSpec) -> tuple[int, int]:
    """Registers of producers and of consumers: what copies need, and the rest of those that the block starts with for the consumers."""
    fitted = device.fitted.pipelined
    return plan.choice.registers_of_roles(fitted.copying_registers if producer_threads(plan) == 1 else fitted.loading_registers, device)


def fill(w: ProductState, filling: Filling, slot: Affine, first_row: Affine, first_column: Affine, first_inner: Affine) -> None:
    """Fills a slot of a ring with tiles of its operands; zeros beyond the operands' ends. Lead axes are those at hand."""
    for tile in filling.tiles:
        first_line = first_row if tile.operand.line == w.form.row_axis else first_column
        inner = first_inner if tile is w.plan.left else first_inner - w.shift
        if filling.threads == 1:
            _copy(w, tile, slot, first_line, inner)
        else:
            _load(w, tile, slot, first_line, inner)


def _copy(w: ProductState, tile: OperandTile, slot: Affine, first_line: Affine, first_inner: Affine) -> None:
    """Copies of a tile's panels; of a tile that the blocks of a cluster share, each block copies its part of each panel to all of them."""
    rows = w.form.shifted
    if rows is not None and tile is w.plan.left:
        copy_shifted(w, rows, tile, slot, first_line, first_inner)
        return
    operand, m = tile.operand, operand_map(w.form, tile)
    if tile.key not in w.maps:
        name, source = w.fresh(f"{operand.value}_map"), w.buffers[operand.value].name
        w.maps[tile.key] = TensorMap(name, source, operand.dtype, m.extents, m.strides, m.box, SWIZZLE_LINE_BYTES, operand.first)
    place = {operand.line: first_line, INNER: first_inner // tile.packing}
    for panel in range(tile.num_panels):
        coordinates = [place.get(a, w.env.get(a, number(0))) for a in m.axes]
        coordinates[-1] = coordinates[-1] + panel * tile.width
        start = axis("rank") * (tile.panel_lines // tile.parts) if tile.parts > 1 else number(0)
        coordinates[-2] = coordinates[-2] + start
        w.emit(TensorCopy(w.maps[tile.key].name, tuple(map(w.simplified, coordinates)), w.slots[tile.key].name,
                          w.simplified(slot * tile.pitch + tile.first + (start + panel * tile.panel_lines) * tile.width),
                          multicast=(1 << tile.parts) - 1 if tile.parts > 1 else 0, cache=_cache(w, tile),
                          ahead=tile.key in w.ahead))


def _cache(w: ProductState, tile: OperandTile) -> str:
    """How long an operand stays in L2. Few rows are read again for every tile of columns, whose weights are read once.

    Source: one H200, 16 x 4096 by 14336 in bf16 with cold weights: 32.3 us so, 34.3 with the usual priority.
    """
    if not w.plan.reads_weights_once:
        return ""
    return "last" if tile is w.plan.left else "first"


def _load(w: ProductState, tile: OperandTile, slot: Affine, first_line: Affine, first_inner: Affine) -> None:
    """Each thread brings chunks of 16 bytes: neighbours in memory where the operand's alignment allows, else element by element.

    The loads of several chunks are in flight together before the first of them is stored: also those under guards of single elements.
    """
    operand, buffer = tile.operand, w.slots[tile.key]
    each = SWIZZLE_CHUNK_BYTES // operand.dtype.itemsize
    chunks = tile.elements // each
    together = chunks_together(w.form, tile, w.device)
    w.emit(Comment(f"%{operand.value}: {chunks} chunks of a slot"))
    with w.loop("turn", -(-chunks // WARPGROUP) // together) as turn:
        numbers = [(turn * together + n) * WARPGROUP + axis("thread") for n in range(together)]
        # Tiles of few rows have fewer chunks than the last turn has threads.
        with w.when(w.beyond(numbers[-1], chunks)):
            places = [_chunk_place(w, tile, w.let("chunk", n, chunks), first_line, first_inner) for n in numbers]
            loaded = _computed_chunks(w, tile, places) if operand.element is not None else [(_loaded_chunk(w, tile, p), []) for p in places]
            for _, pieces in loaded:
                end_chunk(w, pieces)
            for (offset, _, _), (array, _) in zip(places, loaded, strict=True):
                w.emit(VectorStore(buffer.name, w.simplified(slot * tile.pitch + tile.first + offset), array, number(0), each))


def chunks_together(form: ProductForm, tile: OperandTile, device: DeviceSpec) -> int:
    """Chunks that a producing thread loads before it stores the first of them: as many as its registers hold."""
    operand = tile.operand
    each = SWIZZLE_CHUNK_BYTES // operand.dtype.itemsize
    registers = max(each * operand.read_bytes, SWIZZLE_CHUNK_BYTES) // REGISTER_BYTES
    if operand.element is None:
        # Narrow elements that are loaded one by one have a register each.
        registers = registers if access_bytes(form, operand) >= REGISTER_BYTES else each
    else:
        registers = max(registers, each * operand.lone_reads)
    chunks = tile.elements // each
    groups = -(-chunks // WARPGROUP)
    if chunks % WARPGROUP:
        return 1
    return max(n for n in range(1, groups + 1) if groups % n == 0 and (n == 1 or n * registers <= device.fitted.pipelined.flight_registers))


def access_bytes(form: ProductForm, operand: Operand) -> int:
    """Bytes that one load of a producing thread brings of an operand in memory: as many as its lines, ends and places have in common."""
    step = INNER if operand.inner_is_contiguous else operand.line
    if operand.stride_by_axis.get(step, 1) != 1:
        return operand.dtype.itemsize
    size = form.inner if step == INNER else operand.lines
    pitches = (operand.first, size, *(s for a, s in operand.stride_by_axis.items() if a != step))
    return gcd(SWIZZLE_CHUNK_BYTES, *(p * operand.dtype.itemsize for p in pitches))


# The offset in the slot of a chunk's first element, its place, and the axis of its neighbours.
ChunkPlace = tuple[Affine, dict[str, Affine], str]


def _chunk_place(w: ProductState, tile: OperandTile, chunk: Affine, first_line: Affine, first_inner: Affine) -> ChunkPlace:
    """Neighbouring threads take chunks along a line of a panel, or chunks of neighbouring lines where memory is read along these."""
    operand = tile.operand
    each = SWIZZLE_CHUNK_BYTES // operand.dtype.itemsize
    per_panel_line = tile.width // each
    if operand.lanes_cross_lines:
        line_of_panel, above = chunk % tile.panel_lines, chunk // tile.panel_lines
        along, panel = above % per_panel_line * each, above // per_panel_line
        offset = (panel * tile.panel_lines + line_of_panel) * tile.width + along
    else:
        across, along = chunk // per_panel_line, chunk % per_panel_line * each
        panel, line_of_panel = across // tile.panel_lines, across % tile.panel_lines
        offset = chunk * each
    contiguous = panel * tile.width + along
    if operand.inner_is_contiguous:
        line, inner, step = first_line + line_of_panel, first_inner + contiguous, INNER
    else:
        line, inner, step = first_line + contiguous, first_inner + line_of_panel, operand.line
    return offset, {operand.line: w.simplified(line), INNER: w.simplified(inner)}, step


def _computed_chunks(w: ProductState, tile: OperandTile, places: list[ChunkPlace]) -> list[tuple[str, list[Piece]]]:
    """Chunks whose elements maps compute, with their loads under way: their register arrays, and the pieces to compute."""
    each = SWIZZLE_CHUNK_BYTES // tile.operand.dtype.itemsize
    arrays = [w.fresh(f"{tile.operand.value}_chunk") for _ in places]
    return [(array, begin_chunk(w, tile.operand, array, each, place, step)) for array, (_, place, step) in zip(arrays, places, strict=True)]


def _loaded_chunk(w: ProductState, tile: OperandTile, chunk_place: ChunkPlace) -> str:
    """The register array that holds the elements of a chunk in memory."""
    operand, (offset, place, step) = tile.operand, chunk_place
    each = SWIZZLE_CHUNK_BYTES // operand.dtype.itemsize
    array = w.fresh(f"{operand.value}_chunk")
    w.emit(Declare(array, operand.dtype, each))
    if tile.by_lanes:
        _load_by_lanes(w, tile, array, w.simplified(offset // each), place)
        return array
    _load_chunk(w, tile, w.buffers[operand.value], array, each, place, step)
    return array


def _load_by_lanes(w: ProductState, tile: OperandTile, array: str, chunk: Affine, place: dict[str, Affine]) -> None:
    """A chunk of a panel in the order of lanes: a pair of neighbours from each lane's piece; zeros beyond the operand's end."""
    operand = tile.operand
    group = chunk % (tile.width // (SWIZZLE_CHUNK_BYTES // operand.dtype.itemsize))
    panel = place[INNER] - group * (SWIZZLE_CHUNK_BYTES // operand.dtype.itemsize)
    strides = operand.stride_by_axis
    leads = sum((w.env[a] * s for a, s in strides.items() if a not in place), number(operand.first))
    for lane in range(ROW_LANES):
        inner = panel + group * NEIGHBOURS + lane * LANE_NEIGHBOURS
        offset = leads + place[operand.line] * strides.get(operand.line, 0) + inner
        bounds = (*w.beyond(place[operand.line], operand.lines), *w.beyond(w.simplified(panel + lane * LANE_NEIGHBOURS), w.form.inner))
        if bounds:
            w.emit(*(Assign(Reg(array, operand.dtype, number(lane * NEIGHBOURS + v)), const(0, operand.dtype)) for v in range(NEIGHBOURS)))
        with w.when(bounds):
            w.emit(VectorLoad(array, number(lane * NEIGHBOURS), w.buffers[operand.value].name, w.simplified(offset), NEIGHBOURS))


def _load_chunk(w: ProductState, tile: OperandTile, source: Buffer, array: str, each: int, place: dict[str, Affine], step: str) -> None:
    """Elements `place` and its next ones along `step` into a register array; zeros beyond the operand's end."""
    operand = tile.operand
    sizes = {operand.line: operand.lines, INNER: w.form.inner}
    leads = sum((w.env[a] * s for a, s in operand.stride_by_axis.items() if a not in place), number(operand.first))
    lane = w.fresh("v")
    w.frame.extents[lane] = each
    moved = {a: e + axis(lane) if a == step else e for a, e in place.items()}
    offset = w.simplified(leads + sum((e * operand.stride_by_axis.get(a, 0) for a, e in moved.items()), number(0)))
    parts = vector_parts(offset, lane, each, operand.dtype)
    whole = parts[0][1] > 1 and sizes[step] % parts[0][1] == 0
    for start, width in parts if whole else [(v, 1) for v in range(each)]:
        at = {lane: number(start)}
        bounds = tuple(b for a, e in moved.items() for b in w.beyond(substitute(e, at, w.extents), sizes[a]))
        where = w.simplified(substitute(offset, at, w.extents))
        if width == 1:
            element = Load(source.name, operand.dtype, where)
            value: KExpr = Guard(bounds, element, const(0, operand.dtype)) if bounds else element
            w.emit(Assign(Reg(array, operand.dtype, number(start)), value))
            continue
        if bounds:
            for v in range(width):
                w.emit(Assign(Reg(array, operand.dtype, number(start + v)), const(0, operand.dtype)))
        with w.when(bounds):
            w.emit(VectorLoad(array, number(start), source.name, where, width))
