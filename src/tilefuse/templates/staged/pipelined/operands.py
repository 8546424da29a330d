"""Producers of a pipelined product: the next tile of each operand into its slot, by tensor copies or by the producers' own loads.

    tensor copies     one thread starts a copy for every panel; boxes that reach over the end of the operand arrive as zeros
    threads           128 threads load vectors and store them, for operands that no tensor map describes
"""
from __future__ import annotations

from tilefuse.domain.contraction import INNER
from tilefuse.emit.vectors import vector_parts
from tilefuse.ir.affine import Affine, axis, number, substitute
from tilefuse.ir.scalar import Guard, const
from tilefuse.kernel.ir import Assign, Buffer, Comment, Declare, KExpr, Load, Reg, VectorLoad, VectorStore
from tilefuse.kernel.pipeline import WARPGROUP
from tilefuse.kernel.tensor_map import TensorCopy, TensorMap
from tilefuse.templates.staged.pipelined.plan import CHUNK_BYTES, SWIZZLE, OperandTile, ProductPlan, operand_map, why_no_copies
from tilefuse.templates.staged.pipelined.state import ProductState

# Chunks that a producing thread loads before it stores the first of them.
CHUNKS_IN_FLIGHT = 4


def producer_threads(w: ProductState) -> int:
    """Threads that fill a slot: one where tensor copies bring all operands."""
    return 1 if copies_by_map(w.plan) else WARPGROUP


def copies_by_map(plan: ProductPlan) -> bool:
    """Whether tensor maps describe all operands."""
    return all(not why_no_copies(plan.form, t) for t in plan.operands)


def fill(w: ProductState, tile: OperandTile, slot: Affine, first_line: Affine, first_inner: Affine, threads: int) -> None:
    """Fills a slot with the tile at `first_line` and `first_inner`; zeros beyond the operand's end. Lead axes are those at hand."""
    if threads == 1:
        _copy(w, tile, slot, first_line, first_inner)
    else:
        _load(w, tile, slot, first_line, first_inner)


def _copy(w: ProductState, tile: OperandTile, slot: Affine, first_line: Affine, first_inner: Affine) -> None:
    operand, m = tile.operand, operand_map(w.form, tile)
    if tile.key not in w.maps:
        name, source = w.fresh(f"{operand.value}_map"), w.buffers[operand.value].name
        w.maps[tile.key] = TensorMap(name, source, operand.dtype, m.extents, m.strides, m.box, SWIZZLE, operand.first)
    place = {operand.line: first_line, INNER: first_inner}
    for panel in range(tile.num_panels):
        coordinates = [place.get(a, w.env.get(a, number(0))) for a in m.axes]
        coordinates[-1] = coordinates[-1] + panel * tile.width
        w.emit(TensorCopy(w.maps[tile.key].name, tuple(map(w.simplified, coordinates)), w.slots[tile.key].name,
                          w.simplified(slot * tile.elements + panel * tile.panel_lines * tile.width)))


def _load(w: ProductState, tile: OperandTile, slot: Affine, first_line: Affine, first_inner: Affine) -> None:
    """Each thread brings chunks of 16 bytes: neighbours in memory where the operand's alignment allows, else element by element.

    The loads of several chunks are in flight together before the first of them is stored.
    """
    operand, buffer = tile.operand, w.slots[tile.key]
    each = CHUNK_BYTES // operand.dtype.itemsize
    chunks = tile.elements // each
    together = max(n for n in range(1, CHUNKS_IN_FLIGHT + 1) if chunks // WARPGROUP % n == 0)
    w.emit(Comment(f"%{operand.value}: {chunks} chunks of a slot"))
    with w.loop("turn", chunks // WARPGROUP // together) as turn:
        numbers = [(turn * together + n) * WARPGROUP + axis("thread") for n in range(together)]
        loaded = [_loaded_chunk(w, tile, w.let("chunk", n, chunks), first_line, first_inner) for n in numbers]
        for chunk, array in loaded:
            w.emit(VectorStore(buffer.name, w.simplified(slot * tile.elements + chunk * each), array, number(0), each))


def _loaded_chunk(w: ProductState, tile: OperandTile, chunk: Affine, first_line: Affine, first_inner: Affine) -> tuple[Affine, str]:
    """A chunk of the tile and the register array that holds its elements."""
    operand = tile.operand
    each = CHUNK_BYTES // operand.dtype.itemsize
    per_panel_line = tile.width // each
    across, along = chunk // per_panel_line, chunk % per_panel_line * each
    panel, line_of_panel = across // tile.panel_lines, across % tile.panel_lines
    contiguous = panel * tile.width + along
    if operand.inner_is_contiguous:
        line, inner, step = first_line + line_of_panel, first_inner + contiguous, INNER
    else:
        line, inner, step = first_line + contiguous, first_inner + line_of_panel, operand.line
    array = w.fresh(f"{operand.value}_chunk")
    w.emit(Declare(array, operand.dtype, each))
    _load_chunk(w, tile, w.buffers[operand.value], array, each, {operand.line: line, INNER: inner}, step)
    return chunk, array


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
