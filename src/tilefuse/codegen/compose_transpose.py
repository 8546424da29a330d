"""The transpose template: values that lie along another axis than the result are turned in shared memory, tile by tile.

    read:   threads along read_axis   x[.., w, r]  -> shared tile [w][r]      (16-byte loads)
    write:  threads along write_axis  shared tile [w][r] -> y[.., r, w]       (16-byte stores)
"""
from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilefuse.codegen.compose import Held, KernelWriter
from tilefuse.codegen.kernel import Assign, Barrier, Comment, Declare, Load, Reg, Store, VectorLoad
from tilefuse.ir.affine import Affine, axis, number, substitute
from tilefuse.ir.scalar import Bound
from tilefuse.schedule.access import flat_axes, is_vector, stride_of
from tilefuse.schedule.resolved import Touch
from tilefuse.schedule.template import Transpose


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
    pitch = c.columns + (1 if max(t.dtype.itemsize for t in turned) >= 4 else 2)
    tiles = {t: writer.shared(t.value + "_tile", t.dtype, c.rows * pitch) for t in turned}
    e.emit(Comment(f"{', '.join('%' + t.value for t in turned)}: global memory -> shared memory, along {c.read_axis}"))
    _read_tiles(writer, choice, tiles, pitch, batch_env, tile_r * c.columns, tile_w * c.rows, reads, writes)
    e.emit(Barrier("block"))
    e.emit(Comment(f"{', '.join('%' + n for n, _, _ in domain.outputs)}: shared memory -> global memory, along {c.write_axis}"))
    _write_tiles(writer, choice, tiles, pitch, batch_env, tile_r * c.columns, tile_w * c.rows, reads, writes)


def _turned(writer: KernelWriter, choice: Transpose) -> list[Touch]:
    bodies = [i.body for i in writer.domain.instances]
    return [t for t in writer.touches(bodies) if stride_of(t.offset, choice.read_axis) == 1
            and (stride_of(t.offset, choice.write_axis) or 0) > 1]


def _read_tiles(writer: KernelWriter, c: Transpose, tiles: dict[Touch, str], pitch: int, batch_env: dict[str, Affine],
                first_r: Affine, first_w: Affine, reads: int, writes: int) -> None:
    e = writer.emitter
    width = c.read_vector
    across = c.columns // width
    steps = -(-c.rows * across // c.threads)
    arrays = {t: e.fresh(t.value + "_v") for t in tiles}
    for t, array in arrays.items():
        e.emit(Declare(array, t.dtype, steps * width))

    def place(step: Affine) -> tuple[Affine, Affine, Affine, Affine]:
        item = e.let("item", step * c.threads + axis("thread"), steps * c.threads)
        # Positions stay sums with the vector width as a factor, so that alignment can be read off them.
        r = e.let("r_vector", item % across, across) * width
        w = e.let("w", item // across, -(-steps * c.threads // across))
        return r, w, first_r + r, first_w + w

    with e.loop("step", steps, unroll=True) as step:
        r, w, r_at, w_at = place(step)
        with e.when([Bound(w, 0, c.rows), Bound(r_at, 0, reads - width + 1), Bound(w_at, 0, writes)]):
            for t, array in arrays.items():
                at = substitute(t.offset, batch_env | {c.read_axis: r_at, c.write_axis: w_at}, e.extents)
                e.emit(VectorLoad(array, step * width, e.buffers[t.value].name, at, width, e.cache.get(t.value, "")))
    with e.loop("step", steps, unroll=True) as step:
        r, w, r_at, w_at = place(step)
        with e.when([Bound(w, 0, c.rows), Bound(r_at, 0, reads - width + 1), Bound(w_at, 0, writes)]), e.loop("v", width, unroll=True) as v:
            for t, array in arrays.items():
                e.emit(Store(tiles[t], w * pitch + r + v, Reg(array, t.dtype, step * width + v)))


def _write_tiles(writer: KernelWriter, c: Transpose, tiles: dict[Touch, str], pitch: int, batch_env: dict[str, Affine],
                 first_r: Affine, first_w: Affine, reads: int, writes: int) -> None:
    e, domain = writer.emitter, writer.domain
    width = c.write_vector
    across = c.rows // width
    steps = -(-c.columns * across // c.threads)
    lane = e.fresh("lane_")
    bodies = [i.body for i in domain.instances]
    with e.loop("step", steps, unroll=True) as step:
        item = e.let("item", step * c.threads + axis("thread"), steps * c.threads)
        w = e.let("w_vector", item % across, across) * width
        r = e.let("r", item // across, -(-steps * c.threads // across))
        w_at, r_at = first_w + w, first_r + r
        with e.when([Bound(r, 0, c.columns), Bound(w_at, 0, writes - width + 1), Bound(r_at, 0, reads)]):
            env = batch_env | {c.read_axis: r_at, c.write_axis: w_at + axis(lane)}
            held = []
            for t, tile in tiles.items():
                h = writer.held(t, 1, width, False, step=True)
                with e.loop("v", width, unroll=True) as v:
                    e.emit(Assign(Reg(h.array, t.dtype, v), Load(tile, t.dtype, (w + v) * pitch + r)))
                held.append(h)
            held += _direct(writer, tiles, bodies, env, lane, width)
            writer.write_lanes(domain.outputs, width, held, number(0), env, lane)


def _direct(writer: KernelWriter, tiles: dict[Touch, str], bodies: Sequence[object], env: dict[str, Affine], lane: str,
            width: int) -> list[Held]:
    """Other operands that already run along the write axis, as vectors."""
    held = []
    for t in writer.touches(bodies):
        if t not in tiles and width > 1 and is_vector(substitute(t.offset, env, writer.emitter.extents | {lane: width}), lane, width):
            h = writer.held(t, 1, width, True, step=True)
            writer.fill(h, number(0), env, lane)
            held.append(h)
    return held
