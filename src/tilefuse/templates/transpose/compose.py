"""The transpose template: values that lie along another axis than the result are turned in shared memory, tile by tile.

    read:   blocks of depth x vector elements   x[.., w, r] -> registers, turned there -> shared tile [r][w]
    write:  threads along write_axis            shared tile [r][w] -> y[.., r, w]

Global memory is accessed in vectors of up to 16 bytes and in whole lines on both sides, shared memory in vectors as well.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tilefuse.domain.access import flat_axes, is_vector, stride_of
from tilefuse.domain.resolved import Resolved, Touch
from tilefuse.emit.kernel_writer import Held, KernelWriter
from tilefuse.ir.affine import Affine, Extents, axis, floordiv, mod, number, substitute
from tilefuse.ir.scalar import Bound
from tilefuse.kernel.ir import Assign, Barrier, Comment, Declare, Reg, Store, VectorLoad, VectorStore
from tilefuse.target.capabilities import WARP
from tilefuse.target.device import DeviceSpec
from tilefuse.target.memory import ACCESS_BYTES
from tilefuse.templates.transpose.record import Transpose


def compose_transpose(writer: KernelWriter, choice: Transpose) -> None:
    """Writes the kernel. `rows` runs along the write axis, `columns` along the read axis."""
    e, domain = writer.emitter, writer.domain
    c = choice
    blocks = max(writer.program.launch.num_blocks, 1)
    e.frame.extents |= {"block": blocks, "thread": c.threads}
    e.hoist([k for _, k, _ in domain.outputs], frozenset())
    others = tuple(a for a in c.order if a not in (c.read_axis, c.write_axis))
    reads, writes = domain.extents[c.read_axis], domain.extents[c.write_axis]
    tiles_r, tiles_w = -(-reads // c.columns), -(-writes // c.rows)
    batch_count = prod(domain.extents[a] for a in others)
    tile_w = e.let("tile_w", axis("block") % tiles_w, tiles_w)
    tile_r = e.let("tile_r", axis("block") // tiles_w % tiles_r, tiles_r)
    batch = e.let("batch", axis("block") // (tiles_w * tiles_r), max(batch_count, 1))
    batch_env = flat_axes(others, batch, domain.extents, e.extents)
    turned = _turned(writer, choice)
    if c.writes_run:
        _turn_rows(writer, choice, turned, batch_env, tile_r * c.columns, reads)
        return
    layouts = {t: _Layout(c.rows, c.read_vector if c.depth else 1,
                          max(c.depth, c.write_vector, ACCESS_BYTES // t.dtype.itemsize), c.columns)
               for t in turned}
    tiles = {t: writer.shared(t.value + "_tile", t.dtype, layouts[t].num_elements) for t in turned}
    e.emit(Comment(f"{', '.join('%' + t.value for t in turned)}: global memory -> shared memory, along {c.read_axis}"))
    if c.depth:
        if writer.floods:
            # Results then leave the second-level cache before operands (H200, 64 + 64 MiB, each of five transposes in f16,
            # bf16 and f32: 0.6 to 1.6 % faster; stores of the usual priority take twice as long).
            e.cache |= {t.value: "last" for t in turned if e.cache.get(t.value) == "stream"}
        _read_tiles(writer, choice, tiles, layouts, batch_env, tile_r * c.columns, tile_w * c.rows, reads, writes)
    else:
        for t in turned:
            _read_run(writer, choice, t, tiles[t], layouts[t], batch_env, tile_w * c.rows, writes)
    e.emit(Barrier("block"))
    e.emit(Comment(f"{', '.join('%' + n for n, _, _ in domain.outputs)}: shared memory -> global memory, along {c.write_axis}"))
    _write_tiles(writer, choice, tiles, layouts, batch_env, tile_r * c.columns, tile_w * c.rows, reads, writes)


def _turned(writer: KernelWriter, choice: Transpose) -> list[Touch]:
    bodies = [i.body for i in writer.domain.instances]
    return [t for t in writer.touches(bodies) if stride_of(t.offset, choice.read_axis) == 1
            and (stride_of(t.offset, choice.write_axis) or 0) > 1]


@dataclass(frozen=True, slots=True)
class _Layout:
    """The tile in shared memory: rows of the write axis one after the other, a slot of 16 bytes left free after every `group` of
    them. Threads whose vectors lie `group` rows apart then meet different banks, and vectors stay aligned. Units: elements."""

    pitch: int
    group: int
    slot: int
    columns: int

    @property
    def num_elements(self) -> int:
        return self.columns * self.pitch + (-(-self.columns // self.group) - 1) * self.slot

    def row(self, r: Affine, extents: Extents) -> Affine:
        """Where row `r` begins."""
        return r * self.pitch + floordiv(r, self.group, extents) * self.slot


def _read_tiles(writer: KernelWriter, c: Transpose, tiles: dict[Touch, str], layouts: dict[Touch, _Layout], batch_env: dict[str, Affine],
                first_r: Affine, first_w: Affine, reads: int, writes: int) -> None:
    e = writer.emitter
    width, depth = c.read_vector, c.depth
    lanes, across = _lanes_of_run(c, min(t.dtype.itemsize for t in tiles), writer.device), c.rows // depth
    blocks = (c.columns // width) * across
    steps = -(-blocks // c.threads)
    arrays = {t: e.fresh(t.value + "_v") for t in tiles}
    for t, array in arrays.items():
        e.emit(Declare(array, t.dtype, steps * depth * width))

    def place(step: Affine) -> tuple[Affine, Affine, list[Bound]]:
        item = e.let("item", step * c.threads + axis("thread"), steps * c.threads)
        # Positions stay sums with the vector width as a factor, so that alignment can be read off them.
        lane = e.let("lane", item % lanes, lanes) * width
        r = lane + e.let("run", item // (lanes * across), -(-steps * c.threads // (lanes * across))) * (lanes * width)
        w = e.let("w", item // lanes % across, across) * depth
        return r, w, [Bound(r, 0, c.columns), Bound(first_r + r, 0, reads - width + 1), Bound(first_w + w, 0, writes - depth + 1)]

    with e.loop("step", steps, unroll=True) as step:
        r, w, inside = place(step)
        with e.when(inside), e.loop("d", depth, unroll=True) as d:
            for t, array in arrays.items():
                at = substitute(t.offset, batch_env | {c.read_axis: first_r + r, c.write_axis: first_w + w + d}, e.extents)
                e.emit(VectorLoad(array, step * (depth * width) + d * width, e.buffers[t.value].name, at, width,
                                  e.cache.get(t.value, "")))
    with e.loop("step", steps, unroll=True) as step:
        r, w, inside = place(step)
        with e.when(inside), e.loop("v", width, unroll=True) as v:
            for t, array in arrays.items():
                column = e.fresh(t.value + "_column")
                e.emit(Declare(column, t.dtype, depth))
                with e.loop("d", depth, unroll=True) as d:
                    e.emit(Assign(Reg(column, t.dtype, d), Reg(array, t.dtype, step * (depth * width) + d * width + v)))
                e.emit(VectorStore(tiles[t], layouts[t].row(r + v, e.extents) + w, column, number(0), depth))


def _read_run(writer: KernelWriter, c: Transpose, t: Touch, tile: str, layout: _Layout, batch_env: dict[str, Affine], first_w: Affine,
              writes: int) -> None:
    """A tile that is one run of memory: vectors along it, each element to its own place.

        x[w, r] with r < 3:   | 00 01 02 10 11 12 20 21 | ...   ->   tile[0] = 00 10 20 ..   tile[1] = 01 11 21 ..   tile[2] = 02 12 ..
    """
    e = writer.emitter
    width, length = c.read_vector, c.rows * c.columns
    steps = -(-length // (width * c.threads))
    array = e.fresh(t.value + "_v")
    e.emit(Declare(array, t.dtype, steps * width))
    start = substitute(t.offset, batch_env | {c.read_axis: number(0), c.write_axis: first_w}, e.extents)

    def place(step: Affine) -> tuple[Affine, list[Bound]]:
        at = e.let("item", step * c.threads + axis("thread"), steps * c.threads) * width
        return at, [Bound(at, 0, length - width + 1), Bound(first_w * c.columns + at, 0, writes * c.columns - width + 1)]

    with e.loop("step", steps, unroll=True) as step:
        at, inside = place(step)
        with e.when(inside):
            e.emit(VectorLoad(array, step * width, e.buffers[t.value].name, start + at, width, e.cache.get(t.value, "")))
    with e.loop("step", steps, unroll=True) as step:
        at, inside = place(step)
        with e.when(inside), e.loop("v", width, unroll=True) as v:
            r = e.let("r", (at + v) % c.columns, c.columns)
            w = e.let("w", (at + v) // c.columns, c.rows)
            e.emit(Store(tile, layout.row(r, e.extents) + w, Reg(array, t.dtype, step * width + v)))


def _turn_rows(writer: KernelWriter, c: Transpose, turned: Sequence[Touch], batch_env: dict[str, Affine], first_r: Affine,
               reads: int) -> None:
    """A tile whose results are one run of memory: rows are read in vectors, and vectors along the run are put together of their elements.

        x[w, r] with w < 3:   tile[0] = 00 01 02 ..   tile[1] = 10 11 12 ..   tile[2] = 20 21 22 ..   ->   | 00 10 20 01 11 21 02 12 | ...
    """
    e, domain = writer.emitter, writer.domain
    pitches = {t: c.columns + ACCESS_BYTES // t.dtype.itemsize for t in turned}
    tiles = {t: writer.shared(t.value + "_tile", t.dtype, c.rows * pitches[t]) for t in turned}
    e.emit(Comment(f"{', '.join('%' + t.value for t in turned)}: global memory -> shared memory, along {c.read_axis}"))
    _read_rows(writer, c, tiles, pitches, batch_env, first_r, reads)
    e.emit(Barrier("block"))
    e.emit(Comment(f"{', '.join('%' + n for n, _, _ in domain.outputs)}: shared memory -> global memory, in runs along {c.write_axis} and "
                   f"{c.read_axis}"))
    width, length = c.write_vector, c.rows * c.columns
    steps = -(-length // (width * c.threads))
    lane = e.fresh("lane_")
    bodies = [i.body for i in domain.instances]
    with e.loop("step", steps, unroll=True) as step:
        at = e.let("item", step * c.threads + axis("thread"), steps * c.threads) * width
        with e.when([Bound(at, 0, length - width + 1), Bound(first_r * c.rows + at, 0, reads * c.rows - width + 1)]):
            env = batch_env | {c.read_axis: first_r + floordiv(at + axis(lane), c.rows, e.extents),
                               c.write_axis: mod(at + axis(lane), c.rows, e.extents)}
            held = []
            for t, tile in tiles.items():
                h = writer.held(t, 1, width, False, step=True)
                with e.loop("v", width, unroll=True) as v:
                    place = mod(at + v, c.rows, e.extents) * pitches[t] + floordiv(at + v, c.rows, e.extents)
                    e.emit(VectorLoad(h.array, v, tile, place, 1))
                held.append(h)
            held += _direct(writer, tiles, bodies, env, lane, width)
            writer.write_lanes(domain.outputs, width, held, number(0), env, lane)


def _read_rows(writer: KernelWriter, c: Transpose, tiles: dict[Touch, str], pitches: dict[Touch, int], batch_env: dict[str, Affine],
               first_r: Affine, reads: int) -> None:
    """Each row of a tile in vectors, to a row of its own in shared memory. All loads are on their way before the first store."""
    e = writer.emitter
    width, across = c.read_vector, c.columns // c.read_vector
    steps = -(-c.rows * across // c.threads)
    arrays = {t: e.fresh(t.value + "_v") for t in tiles}
    for t, array in arrays.items():
        e.emit(Declare(array, t.dtype, steps * width))

    def place(step: Affine) -> tuple[Affine, Affine, list[Bound]]:
        item = e.let("item", step * c.threads + axis("thread"), steps * c.threads)
        r = e.let("r_vector", item % across, across) * width
        w = e.let("w", item // across, -(-steps * c.threads // across))
        return r, w, [Bound(w, 0, c.rows), Bound(first_r + r, 0, reads - width + 1)]

    with e.loop("step", steps, unroll=True) as step:
        r, w, inside = place(step)
        with e.when(inside):
            for t, array in arrays.items():
                start = substitute(t.offset, batch_env | {c.read_axis: first_r + r, c.write_axis: w}, e.extents)
                e.emit(VectorLoad(array, step * width, e.buffers[t.value].name, start, width, e.cache.get(t.value, "")))
    with e.loop("step", steps, unroll=True) as step:
        r, w, inside = place(step)
        with e.when(inside):
            for t, array in arrays.items():
                e.emit(VectorStore(tiles[t], w * pitches[t] + r, array, step * width, width))


def _lanes_of_run(c: Transpose, itemsize: int, device: DeviceSpec) -> int:
    """Threads that read one run of the operand together; the next ones go down the write axis, so that a warp's vectors in the
    turned tile fill all banks."""
    return max(1, min(c.columns // c.read_vector, device.fitted.flat.run_bytes // (c.read_vector * itemsize)))


def _write_tiles(writer: KernelWriter, c: Transpose, tiles: dict[Touch, str], layouts: dict[Touch, _Layout], batch_env: dict[str, Affine],
                 first_r: Affine, first_w: Affine, reads: int, writes: int) -> None:
    """Rows of the turned tile, each by a run of threads along the write axis; what a row's elements share (a channel's weights and
    statistics, and what is computed of those alone) is loaded and computed once a thread and row."""
    e, domain = writer.emitter, writer.domain
    width = c.write_vector
    lanes = _lanes_of_write(c, max(t.dtype.itemsize for t in tiles), writer.device)
    turns, steps = -(-c.rows // (width * lanes)), -(-c.columns * lanes // c.threads)
    lane = e.fresh("lane_")
    bodies = [i.body for i in domain.instances]
    with e.loop("step", steps, unroll=True) as step:
        item = e.let("item", step * c.threads + axis("thread"), steps * c.threads)
        first = e.let("w_vector", item % lanes, lanes) * width
        r = e.let("r", item // lanes, -(-steps * c.threads // lanes))
        r_at = first_r + r
        row_env = batch_env | {c.read_axis: r_at}
        with e.when([Bound(r, 0, c.columns), Bound(r_at, 0, reads)]):
            if turns > 1:
                saved, e.env = e.env, e.env | row_env
                e.hoist([key for _, key, _ in domain.outputs], frozenset(row_env))
                e.env = saved
            with e.loop("turn", turns, unroll=True) as turn:
                w = first + turn * (lanes * width)
                w_at = first_w + w
                with e.when([Bound(w, 0, c.rows - width + 1), Bound(w_at, 0, writes - width + 1)]):
                    env = row_env | {c.write_axis: w_at + axis(lane)}
                    held = []
                    for t, tile in tiles.items():
                        h = writer.held(t, 1, width, False, step=True)
                        e.emit(VectorLoad(h.array, number(0), tile, layouts[t].row(r, e.extents) + w, width))
                        held.append(h)
                    held += _direct(writer, tiles, bodies, env, lane, width)
                    writer.write_lanes(domain.outputs, width, held, number(0), env, lane)


def _lanes_of_write(c: Transpose, itemsize: int, device: DeviceSpec) -> int:
    """Threads that write one run of a row together, in one warp; more where there are fewer rows than runs of threads."""
    run = max(1, min(WARP, device.fitted.flat.run_bytes // (c.write_vector * itemsize)))
    return min(c.rows // c.write_vector, max(run, c.threads // c.columns))


def _direct(writer: KernelWriter, tiles: dict[Touch, str], bodies: Sequence[Resolved], env: dict[str, Affine], lane: str,
            width: int) -> list[Held]:
    """Other operands that already run along the write axis, as vectors."""
    held = []
    for t in writer.touches(bodies):
        if t not in tiles and width > 1 and is_vector(substitute(t.offset, env, writer.emitter.extents | {lane: width}), lane, width):
            h = writer.held(t, 1, width, True, step=True)
            writer.fill(h, number(0), env, lane)
            held.append(h)
    return held
