"""Operands of a kernel that walks an axis: their elements as vectors in registers, and their tiles on chip."""
from __future__ import annotations

from tilefuse.domain.access import is_vector
from tilefuse.domain.contraction import INNER
from tilefuse.emit.vectors import vector_parts
from tilefuse.ir.affine import Affine, axis, number, substitute
from tilefuse.ir.dtype import DType
from tilefuse.ir.scalar import Bound, Expr, Guard, Read, const, walk
from tilefuse.kernel.asynchronous import AsyncCopy
from tilefuse.kernel.ir import Assign, Comment, Declare, If, Reg, Store, VectorLoad, VectorStore
from tilefuse.target.memory import ACCESS_BYTES
from tilefuse.templates.staged.online.plan import OnChip
from tilefuse.templates.staged.online.products import ROW, WALK, WIDTH, Operand
from tilefuse.templates.staged.online.state import OnlineState


def load_lanes(w: OnlineState, operand: Operand, place: dict[str, Affine], along: str, width: int, array: str, first: Affine) -> None:
    """`width` elements along an axis, from a place on, into a register array; zeros beyond the operand's end."""
    limits = limits_of(w, operand)
    fixed = {a: e for a, e in place.items() if a != along}
    facts = tuple(b for b in (Bound(w.simplified(e), 0, limits[a]) for a, e in fixed.items()) if not w.always(b))
    whole = limits[along] % width == 0 and all(c % width == 0 for c in (place[along].const,))
    bound = Bound(w.simplified(place[along]), 0, limits[along])
    with w.nested() as inner:
        if whole or w.always(Bound(w.simplified(place[along] + (width - 1)), 0, limits[along])):
            facts = facts if w.always(bound) else (*facts, bound)
            _lanes(w, operand, place, along, width, array, first)
        else:
            for v in range(width):
                here = w.simplified(place[along] + v)
                with w.nested() as one:
                    _lanes(w, operand, place | {along: here}, along, 1, array, first + v)
                zero = (Assign(Reg(array, operand.dtype, first + v), const(0, operand.dtype)),)
                w.emit(If((Bound(here, 0, limits[along]),), tuple(one.statements), zero))
    if not facts:
        w.emit(*inner.statements)
        return
    zeros = tuple(Assign(Reg(array, operand.dtype, first + v), const(0, operand.dtype)) for v in range(width))
    w.emit(If(facts, tuple(inner.statements), zeros))


def _lanes(w: OnlineState, operand: Operand, place: dict[str, Affine], along: str, width: int, array: str, first: Affine) -> None:
    lane = w.fresh("v")
    w.frame.extents[lane] = width
    with w.at(**(place | {along: place[along] + axis(lane)})):
        reads: list[Read] = [e for e in walk(operand.body) if isinstance(e, Read)]
        offsets = [(e, w.global_offset(e.value, e.index)) for e in dict.fromkeys(reads)]
    if isinstance(operand.body, Read):
        offset = offsets[0][1]
        for start, part in vector_parts(offset, lane, width, operand.dtype):
            w.emit(VectorLoad(array, first + start, w.buffers[operand.body.value].name,
                              substitute(offset, {lane: number(start)}, w.extents), part))
        return
    held: list[tuple[Expr, str, DType]] = []
    for e, offset in offsets:
        if width > 1 and is_vector(offset, lane, width) and not any(isinstance(x, Guard) for x in walk(operand.body)):
            dtype = w.buffers[e.value].dtype
            held.append((e, w.fresh(f"{e.value}_v"), dtype))
            w.emit(Declare(held[-1][1], dtype, width), VectorLoad(
                held[-1][1], number(0), w.buffers[e.value].name, substitute(offset, {lane: number(0)}, w.extents), width))
    with w.loop("v", width, unroll=w.unroll) as v, w.at(**(place | {along: place[along] + v})), w.nested() as inner:
        for read, name, dtype in held:
            w.remember(read, Reg(name, dtype, v))
        element = w.element(operand.body)
        inner.statements.append(Assign(Reg(array, operand.dtype, first + v), element))
        w.frames[-2].statements.extend(inner.statements)


def limits_of(w: OnlineState, operand: Operand) -> dict[str, int]:
    """Extents of an operand's two axes."""
    sizes = {ROW: w.form.num_rows, WALK: w.form.length}
    for s in w.form.scores:
        if operand in (s.left, s.right):
            sizes[INNER] = s.inner
    for weighted in w.form.weighted:
        if operand == weighted.right:
            sizes[WIDTH] = weighted.width
    return {a: sizes[a] for a in (operand.rows, operand.columns)}


def fetch(w: OnlineState, tile: OnChip, start: Affine, stage: Affine, ahead: bool = False) -> None:
    """Brings one tile on chip; `start`: where it begins along the rows or the walked axis. `ahead`: it need not be there at once."""
    operand = tile.operand
    assert operand is not None
    # Where threads multiply, the tile's rows are the product's, however memory runs.
    turned = w.plan.unit == "fma" and operand.rows in (INNER, WIDTH)
    rows, columns = (tile.columns, tile.rows) if turned else (tile.rows, tile.columns)
    limit = limits_of(w, operand)[operand.columns]
    width = ACCESS_BYTES // tile.dtype.itemsize
    while width > 1 and (columns % width or limit % width):
        width //= 2
    across = columns // width
    count = rows * across
    steps = -(-count // w.plan.choice.threads)
    w.emit(Comment(f"%{operand.value}: tile of {rows} x {columns} -> shared memory"))
    with w.loop("step", steps, unroll=w.unroll and steps <= 8) as step:
        item = w.let("item", step * w.plan.choice.threads + axis("thread"), steps * w.plan.choice.threads)
        with w.when([Bound(item, 0, count)]):
            w.narrow_to(item, count)
            row = w.let("r", item // across, rows)
            column = w.let("x", item % across, across) * width
            base = {ROW: start, WALK: start, INNER: number(0), WIDTH: number(0)}
            place = {operand.rows: base[operand.rows] + row, operand.columns: base[operand.columns] + column}
            where = stage * tile.elements
            if ahead and not turned and _started(w, tile, place, width, w.simplified(where + row * tile.pitch + column)):
                return
            array = w.fresh(f"{operand.value}_v")
            w.emit(Declare(array, tile.dtype, width))
            load_lanes(w, operand, place, operand.columns, width, array, number(0))
            if turned:
                for v in range(width):
                    offset = w.simplified(where + (column + v) * tile.pitch + row)
                    w.emit(Store(w.shared[tile].name, offset, Reg(array, tile.dtype, number(v))))
            else:
                offset = w.simplified(where + row * tile.pitch + column)
                w.emit(VectorStore(w.shared[tile].name, offset, array, number(0), width))


def _started(w: OnlineState, tile: OnChip, place: dict[str, Affine], width: int, where: Affine) -> bool:
    """Starts a copy of `width` elements to `where` in the tile, if one asynchronous copy can bring them; zeros beyond the end."""
    operand = tile.operand
    assert operand is not None
    if not isinstance(operand.body, Read) or width * tile.dtype.itemsize not in (4, 8, 16):
        return False
    lane = w.fresh("v")
    with w.nested(), w.at(**(place | {operand.columns: place[operand.columns] + axis(lane)})):
        w.frame.extents[lane] = width
        offset = w.global_offset(operand.body.value, operand.body.index)
        source = substitute(offset, {lane: number(0)}, w.extents)
        if len(vector_parts(offset, lane, width, tile.dtype)) > 1 or not is_vector(offset, lane, width):
            return False
    limits = limits_of(w, operand)
    facts = tuple(b for b in (Bound(w.simplified(e), 0, limits[a]) for a, e in place.items()) if not w.always(b))
    copy = AsyncCopy(w.shared[tile].name, where, w.buffers[operand.body.value].name, source, width)
    if not facts:
        w.emit(copy)
        return True
    array = w.fresh("zeros")
    zeros = [Assign(Reg(array, tile.dtype, number(v)), const(0, tile.dtype)) for v in range(width)]
    w.emit(If(facts, (copy,), (Declare(array, tile.dtype, width), *zeros,
                               VectorStore(w.shared[tile].name, where, array, number(0), width))))
    return True
