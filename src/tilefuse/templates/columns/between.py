"""Columns of odd rows: the walk along vectors of memory, and how columns are joined from threads that have them at other places.

    shared memory   row y of partial results: thread x has columns 4 x - s(y) .. 4 x - s(y) + 3
    rows y, y + period, ... of one distance: pairwise; then thread c takes column c from each of the `period` rows left

Then one value a column: stored, or left in global memory by the blocks that split a column, whose last one joins them.
"""
from __future__ import annotations

from tilefuse.domain.access import flat_axes
from tilefuse.domain.resolved import Instance
from tilefuse.emit.kernel_writer import KernelWriter
from tilefuse.ir.affine import Affine, axis, bounds, floordiv, mod
from tilefuse.ir.dtype import BOOL
from tilefuse.ir.scalar import Bound
from tilefuse.kernel.ir import Assign, Barrier, Comment, Declare, IfValue, LastBlock, Load, Reg, Store
from tilefuse.templates.columns.record import Columns
from tilefuse.templates.columns.starts import ColumnStart, columns_of_tile
from tilefuse.templates.columns.state import BetweenVectors, ColumnState, at_lane, first_of_row

# An output: the value's name, its instance, and where an element lies.
Output = tuple[str, int, Affine]


def begin_between(writer: KernelWriter, choice: Columns, start: ColumnStart, tile: Affine, part: Affine, x: Affine,
                  y: Affine) -> BetweenVectors:
    """The walk of one thread. `tile`: number of the block's tile."""
    e, domain, width = writer.emitter, writer.domain, choice.vector
    images = max(1, domain.num_kept // domain.extents[start.inner])
    own = columns_of_tile(domain, choice, start)
    tiles = -(-domain.extents[start.inner] // own)
    e.emit(Comment("rows begin between vectors: a thread's rows all at the same distance from one"))
    image_number = e.let("image", tile // tiles, images)
    tile_of_image = e.let("tile", tile % tiles, tiles)
    image = flat_axes(start.outer, image_number, domain.extents, e.extents)
    rows_of_part = choice.chunks * choice.threads_y
    first_row = e.let("first_row", part * rows_of_part + y, rows_of_part * choice.split)
    first = first_of_row(writer, choice, start, image, first_row)
    span = bounds(first, e.extents)
    assert span is not None and span[0] >= 0, "rows begin inside their tensor"
    vector = e.let("first_vector", floordiv(first, width, e.extents), span[1] // width + 1)
    writer.row_axis = start.inner
    place = tile_of_image * (own // width if tiles > 1 else 0) + x
    return BetweenVectors(writer, choice, start, image, image_number, tile_of_image, part, rows_of_part, first_row,
                          (place + vector) * width - first, [Bound(place, 0, start.vectors)])


def finish_between(state: ColumnState, group: list[Instance], parts: dict[int, list[Reg]], outputs: list[Output]) -> None:
    """Columns joined over the block's threads, and over the blocks that split them; what is computed of them stored."""
    w, c, between = state.writer, state.choice, state.between
    assert between is not None
    e, domain = w.emitter, w.domain
    w.row_axis, w.spare_lanes = "", False
    _join_rows(state, group, parts, between.start.period)
    own, length = columns_of_tile(domain, c, between.start), domain.extents[between.start.inner]
    threads = c.threads_x * c.threads_y
    top = between.part * between.rows_of_part
    distances = [e.let("distance", between.distance(top + y), c.vector) for y in range(between.start.period)]
    spaces = {i.key: [w.workspace(p.name + "_partial", p.dtype, c.split * domain.num_kept) for p in parts[i.key]]
              for i in group} if c.split > 1 else {}

    def each_column(finished: bool) -> None:
        with e.loop("round", -(-own // threads)) as r:
            at = e.let("column_of_tile", r * threads + axis("thread"), -(-own // threads) * threads)
            column = e.let("column", between.tile_of_image * own + at, -(-length // own) * own + threads)
            with e.when([Bound(at, 0, own), Bound(column, 0, length)]):
                e.narrow_to(at, own)
                e.narrow_to(column, length)
                flat = between.image_number * length + column
                if finished:
                    joined = _of_parts(state, group, parts, spaces, flat)
                else:
                    joined = _of_distances(state, group, parts, distances, at)
                if c.split > 1 and not finished:
                    for i in group:
                        for p, b in zip(joined[i.key], spaces[i.key], strict=True):
                            e.emit(Store(b, between.part * domain.num_kept + flat, p))
                else:
                    _write(state, group, joined, outputs, {**between.image, between.start.inner: column})

    each_column(finished=False)
    if c.split == 1:
        return
    tiles = max(w.program.launch.num_blocks // c.split, 1)
    last = Reg(e.fresh("is_last"), BOOL)
    e.emit(Declare(last.name, BOOL), LastBlock(last, w.counter("arrived", tiles), state.tile, c.split))
    with e.nested() as inner:
        each_column(finished=True)
    e.emit(IfValue(last, tuple(inner.statements), uniform=True))


def _join_rows(state: ColumnState, group: list[Instance], parts: dict[int, list[Reg]], left: int) -> None:
    """Shared memory: every thread's partial columns, added pairwise over threads of one distance until `left` rows of threads have them."""
    w, c = state.writer, state.choice
    e = w.emitter
    pitch = c.threads_x * c.vector
    for i in group:
        state.exchange[i.key] = [w.shared(p.name + "_shared", p.dtype, c.threads_y * pitch) for p in parts[i.key]]

    def place(row: Affine, v: Affine) -> Affine:
        return row * pitch + v * c.threads_x + state.x

    with e.loop("v", c.vector, unroll=w.unroll) as v:
        for i in group:
            for p, b in zip(parts[i.key], state.exchange[i.key], strict=True):
                e.emit(Store(b, place(state.y, v), at_lane(p, v, c.vector)))
    e.emit(Barrier("block"))
    half = c.threads_y // 2
    while half >= left:
        with e.when([Bound(state.y, 0, half)]), e.loop("v", c.vector, unroll=w.unroll) as v:
            for i in group:
                mine = [at_lane(p, v, c.vector) for p in parts[i.key]]
                buffers = state.exchange[i.key]
                other = [e.register(Load(b, p.dtype, place(state.y + half, v)), p.dtype, p.name + "_o")
                         for p, b in zip(mine, buffers, strict=True)]
                e.combine(i.node.detail, mine, other, e.dtype(i.body))
                e.emit(*(Store(b, place(state.y, v), p) for p, b in zip(mine, buffers, strict=True)))
        e.emit(Barrier("block"))
        half //= 2


def _fresh_parts(state: ColumnState, group: list[Instance]) -> dict[int, list[Reg]]:
    e = state.writer.emitter
    parts = {i.key: [Reg(e.fresh(i.node.name + "_column"), start.dtype) for start in e.identities(i)] for i in group}
    for i in group:
        e.emit(*(Declare(p.name, p.dtype, None, start) for p, start in zip(parts[i.key], e.identities(i), strict=True)))
    return parts


def _of_distances(state: ColumnState, group: list[Instance], parts: dict[int, list[Reg]], distances: list[Affine],
                  at: Affine) -> dict[int, list[Reg]]:
    """One column of the tile, joined from the rows of threads that are left, each of another distance."""
    c, e = state.choice, state.writer.emitter
    joined = _fresh_parts(state, group)
    pitch = c.threads_x * c.vector
    for row, distance in enumerate(distances):
        lane = e.let("place", at + distance, pitch)
        here = row * pitch + mod(lane, c.vector, e.extents) * c.threads_x + floordiv(lane, c.vector, e.extents)
        for i in group:
            other = [e.register(Load(b, p.dtype, here), p.dtype, p.name + "_o")
                     for p, b in zip(parts[i.key], state.exchange[i.key], strict=True)]
            e.combine(i.node.detail, joined[i.key], other, e.dtype(i.body))
    return joined


def _of_parts(state: ColumnState, group: list[Instance], parts: dict[int, list[Reg]], spaces: dict[int, list[str]],
              column: Affine) -> dict[int, list[Reg]]:
    """One column, joined from what each of the blocks that split it has left in global memory."""
    w, c = state.writer, state.choice
    e = w.emitter
    joined = _fresh_parts(state, group)
    parts_ahead = w.device.fitted.columns.parts_ahead
    with e.loop("parts", -(-c.split // parts_ahead)) as outer:
        ahead = min(parts_ahead, c.split)
        arrays = {i.key: [Reg(e.fresh(p.name + "_o"), p.dtype) for p in parts[i.key]] for i in group}
        e.emit(*(Declare(a.name, a.dtype, ahead) for i in group for a in arrays[i.key]))
        for load in (True, False):
            with e.loop("ahead", ahead, unroll=w.unroll) as n:
                part = outer * parts_ahead + n
                with e.when([Bound(part, 0, c.split)]):
                    for i in group:
                        held = [Reg(a.name, a.dtype, n) for a in arrays[i.key]]
                        if load:
                            e.emit(*(Assign(h, Load(b, h.dtype, part * w.domain.num_kept + column))
                                     for h, b in zip(held, spaces[i.key], strict=True)))
                        else:
                            e.combine(i.node.detail, joined[i.key], held, e.dtype(i.body))
    return joined


def _write(state: ColumnState, group: list[Instance], joined: dict[int, list[Reg]], outputs: list[Output], env: dict[str, Affine]) -> None:
    """Values computed of one finished column."""
    w = state.writer
    e = w.emitter
    e.emit(Comment(f"{', '.join('%' + n for n, _, _ in outputs)}: one value a column"))
    w.lane_values = {}
    for i in group:
        finished = e.finished(i, joined[i.key])
        result = e.register(finished, i.node.type.dtype, i.node.name)
        assert isinstance(result, Reg)
        w.lane_values[i.key] = result
    with w.lanes(1, env, state.lane):
        w.write_values(outputs)
