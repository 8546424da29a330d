"""Kernel IR of a product by panels.

    copy panels 0 and 1
    for each tile:  for each panel k:  wait for its copies | barrier | copy panel k + 2 | products of panel k, added to the sums
                    store the sums, while the first panels of the next tile are on their way
"""
from __future__ import annotations

from dataclasses import dataclass, replace

from tilefuse.domain.contraction import COLUMN, INNER, ROW
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.affine import Affine, axis, number, row_major_strides, substitute
from tilefuse.ir.dtype import F32
from tilefuse.ir.scalar import Bound, Call, const
from tilefuse.kernel.asynchronous import AsyncCopy, AsyncGroup, AsyncWait
from tilefuse.kernel.ir import Assign, Barrier, Buffer, Comment, Declare, For, If, Kernel, Let, MatrixProduct, Reg, Stmt, VectorStore
from tilefuse.kernel.writer import free_identifier
from tilefuse.target.capabilities import MMA_COLUMNS, MMA_ROWS, WARP
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.panels.plan import COPIED, PanelProduct
from tilefuse.templates.panels.record import Panels


@dataclass(frozen=True, slots=True)
class _Names:
    """Names of the kernel's buffers and registers."""

    left: Buffer
    right: Buffer
    result: Buffer
    left_slots: Buffer
    right_slots: Buffer
    total: str
    part: str


def compose_panels(program: TileProgram, product: PanelProduct, choice: Panels, device: DeviceSpec, taken: set[str]) -> Kernel:
    """The kernel of a product by panels."""
    names = _names(program, product, choice, taken)
    steps = product.contraction.inner // choice.depth
    panels = steps * choice.turns
    body: list[Stmt] = [Comment(f"%{product.node.name}: {choice.turns} tiles, {steps} panels of {choice.depth} inner elements each"),
                        *_warp(choice)]
    for panel in range(choice.slots - 1):
        body += (*_copies(product, choice, names, number(panel), f"_{panel}"), AsyncGroup()) if panel < panels else (AsyncGroup(),)
    flat = Let("flat", axis("turn") * steps + axis("panel"), panels)
    copies = tuple(_copies(product, choice, names, axis("flat") + (choice.slots - 1), "_next"))
    copies = (If((Bound(axis("flat"), 0, panels - choice.slots + 1),), copies),) if panels >= choice.slots else ()
    turn = (flat, AsyncWait(choice.slots - 2), Barrier(), *copies, AsyncGroup(), *_multiply(product, choice, names))
    lets, at = _places(product, choice, axis("turn"), "")
    tile = (Declare(names.total, F32, choice.sums), _zeros(names.total, choice.sums),
            For("panel", number(0), number(steps), 1, turn, rolled=True), *lets, *_stores(product, choice, names, at))
    body.append(For("turn", number(0), number(choice.turns), 1, tile, rolled=True))
    buffers = (names.left, names.right, names.result, names.left_slots, names.right_slots)
    shared = product.shared_bytes(choice)
    header = (f"nodes: %{product.node.name}", f"schedule: {program.notation}", f"shared memory: {shared} bytes, {choice.slots} slots")
    return Kernel(program.name, buffers, replace(program.launch, shared_bytes=shared, early=device.starts_early), tuple(body), header)


def _names(program: TileProgram, product: PanelProduct, choice: Panels, taken: set[str]) -> _Names:
    used = set(taken)

    def fresh(stem: str) -> str:
        name = free_identifier(stem, used)
        used.add(name)
        return name

    def outside(value: str, role: str) -> Buffer:
        return Buffer(fresh(value), F32, program.graph.type_of(value).num_elements, "global", role, value)

    c = product.contraction
    left, right = (choice.slots * n for n in product.slot_elements(choice))
    return _Names(outside(c.left, "in"), outside(c.right, "in"), outside(product.node.name, "out"),
                  Buffer(fresh(f"{c.left}_slots"), F32, left, "shared", "", c.left),
                  Buffer(fresh(f"{c.right}_slots"), F32, right, "shared", "", c.right, left * F32.itemsize),
                  fresh(f"{product.node.name}_sum"), fresh(f"{product.node.name}_part"))


def _warp(choice: Panels) -> tuple[Stmt, ...]:
    """Names of the warp's place and the lane."""
    warps = choice.down * choice.across
    return (Let("warp", axis("thread") // WARP, warps), Let("lane", axis("thread") % WARP, WARP),
            Let("warp_down", axis("warp") // choice.across, choice.down), Let("warp_across", axis("warp") % choice.across, choice.across))


def _places(product: PanelProduct, choice: Panels, turn: Affine, stem: str) -> tuple[list[Stmt], dict[str, Affine]]:
    """Names of the block's tile number `turn`, and the first element of the tile by axis."""
    shape, axes = product.node.type.shape, product.contraction.axes
    counts = (*shape[:-2], shape[-2] // choice.rows, shape[-1] // choice.columns)
    tile = f"tile{stem}"
    lets: list[Stmt] = [Let(tile, axis("block") * choice.turns + turn, product.num_tiles(choice))]
    at: dict[str, Affine] = {}
    step: Affine = axis(tile)
    for n in range(len(axes) - 1, -1, -1):
        if counts[n] == 1:
            at[axes[n]] = number(0)
            continue
        name = f"tile_{axes[n]}{stem}"
        lets.append(Let(name, step % counts[n] if n else step, counts[n]))
        at[axes[n]] = axis(name) * {ROW: choice.rows, COLUMN: choice.columns}.get(axes[n], 1)
        step = step // counts[n]
    return lets, at


def _copies(product: PanelProduct, choice: Panels, names: _Names, flat: Affine, stem: str) -> list[Stmt]:
    """Copies of panel `flat` of the block, counted over all its tiles, into its slot, 16 bytes a thread at a time."""
    c = product.contraction
    steps = c.inner // choice.depth
    lets, at = _places(product, choice, flat // steps, stem)
    slot, inner = flat % choice.slots, flat % steps * choice.depth
    left, right = product.slot_elements(choice)
    rows, row = product.right_shape(choice)
    right_names = (COLUMN, INNER) if c.inner_last_right else (INNER, COLUMN)
    return [*lets,
            *_copy(names.left, names.left_slots, slot * left, (choice.rows, product.left_row(choice), choice.depth), (ROW, INNER),
                   c.left_index, _shape(product, names.left), at, inner, choice),
            *_copy(names.right, names.right_slots, slot * right, (rows, row, choice.depth if c.inner_last_right else choice.columns),
                   right_names, c.right_index, _shape(product, names.right), at, inner, choice)]


def _shape(product: PanelProduct, operand: Buffer) -> tuple[int, ...]:
    """Shape of an operand, from the subscripts of the product over it."""
    c, shape = product.contraction, product.node.type.shape
    extents = dict(zip(c.axes, shape, strict=True)) | {INNER: c.inner}
    index = c.left_index if operand.origin == c.left else c.right_index
    return tuple(extents[next(iter(e.axes()))] if e.axes() else 1 for e in index)


def _copy(source: Buffer, slots: Buffer, first: Affine, panel: tuple[int, int, int], names: tuple[str, str], index: tuple[Affine, ...],
          shape: tuple[int, ...], at: dict[str, Affine], inner: Affine, choice: Panels) -> list[Stmt]:
    """Copies of a panel of (rows, elements of a row in shared memory, elements of a row) into a slot that begins at `first`."""
    rows, row, length = panel
    items = rows * (length // COPIED)
    turns = -(-items // choice.num_threads)
    turn = f"{slots.name}_turn"
    item = axis(turn) * choice.num_threads + axis("thread")
    down, along = item // (length // COPIED), item % (length // COPIED) * COPIED
    places = dict(zip(names, (down, along), strict=True))
    where = at | {INNER: inner}
    where |= {name: where.get(name, number(0)) + place for name, place in places.items()}
    offset = number(0)
    for e, stride in zip(index, row_major_strides(shape), strict=True):
        offset = offset + substitute(e, where) * stride
    copy: Stmt = AsyncCopy(slots.name, first + down * row + along, source.name, offset, COPIED)
    if items % choice.num_threads:
        copy = If((Bound(item, 0, items),), (copy,))
    return [For(turn, number(0), number(turns), 1, (copy,), unroll=True)]


def _zeros(array: str, count: int) -> Stmt:
    return For("n", number(0), number(count), 1, (Assign(Reg(array, F32, axis("n")), const(0.0, F32)),), unroll=True)


def _multiply(product: PanelProduct, choice: Panels, names: _Names) -> tuple[Stmt, ...]:
    """Products of the panel at hand in sums of their own, which are then added: sums of many panels are as exact as those of few."""
    m, n = choice.instructions
    c = product.contraction
    slot = axis("flat") % choice.slots
    left, right = product.slot_elements(choice)
    _, right_row = product.right_shape(choice)
    left_row = product.left_row(choice)
    column = axis("warp_across") * (n * MMA_COLUMNS)
    own = Reg(names.total, F32, axis("n"))
    return (
        Declare(names.part, F32, choice.sums), _zeros(names.part, choice.sums),
        MatrixProduct(names.part, names.left_slots.name, slot * left + axis("warp_down") * (m * MMA_ROWS * left_row), left_row, False,
                      names.right_slots.name, slot * right + column * (right_row if c.inner_last_right else 1), right_row,
                      c.inner_last_right, m, n, choice.depth, False, product.arithmetic),
        For("n", number(0), number(choice.sums), 1, (Assign(own, Call("add", (own, Reg(names.part, F32, axis("n"))))),), unroll=True))


def _stores(product: PanelProduct, choice: Panels, names: _Names, at: dict[str, Affine]) -> tuple[Stmt, ...]:
    """Stores of the sums, two neighbours at a time, as the matrix unit leaves them."""
    m, n = choice.instructions
    shape, axes = product.node.type.shape, product.contraction.axes
    base = number(0)
    for name, stride in zip(axes, row_major_strides(shape), strict=True):
        base = base + at[name] * stride
    row = axis("warp_down") * (m * MMA_ROWS) + axis("a") * MMA_ROWS + axis("half") * 8 + axis("lane") // 4
    column = axis("warp_across") * (n * MMA_COLUMNS) + axis("b") * MMA_COLUMNS + axis("lane") % 4 * 2
    store = VectorStore(names.result.name, base + row * shape[-1] + column, names.total,
                        axis("a") * (4 * n) + axis("b") * 4 + axis("half") * 2, 2)
    body: tuple[Stmt, ...] = (store,)
    for name, count in (("half", 2), ("b", n), ("a", m)):
        body = (For(name, number(0), number(count), 1, body, unroll=True),)
    return body
