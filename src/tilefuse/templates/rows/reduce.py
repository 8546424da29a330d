"""One stage of row reductions: a thread's elements into its accumulators, lane by lane, then pairwise over the lanes."""
from __future__ import annotations

from collections.abc import Sequence

from tilefuse.domain.online import EXPSUM
from tilefuse.domain.resolved import Instance, Resolved, Touch, Use, resolved_walk
from tilefuse.domain.wide_squares import narrow_body
from tilefuse.emit.cascade import CASCADED, Cascade, Summed, nested_counts
from tilefuse.emit.kernel_writer import Held, KernelWriter, reachable
from tilefuse.ir.affine import Affine, number
from tilefuse.ir.ops import NARROW_FLOPS, SCALAR_OPS, flops_of
from tilefuse.ir.scalar import Call, const
from tilefuse.kernel.ir import (
    Assign,
    Comment,
    Declare,
    Reg,
)
from tilefuse.templates.rows.batches import BatchSquares, takes_batches, twin_sums
from tilefuse.templates.rows.combine import combine_threads, send_parts
from tilefuse.templates.rows.exponentials import at_once, declare_all, merge_all, merge_vector
from tilefuse.templates.rows.squares import TwoPassSquares, takes_stretches
from tilefuse.templates.rows.starts import BY_VECTOR
from tilefuse.templates.rows.walk import RowState, needed_keys, row_room, varies, walk_row

# An output: the value's name, its instance, and where an element lies.
Output = tuple[str, int, Affine]


def reduce_stage(state: RowState, group: list[Instance], outputs: list[Output] | None = None) -> None:
    """One stage: all reductions that depend on the same earlier results, in one pass over the row.

    outputs: elements of the row that depend on no reduction; they are stored on the way.
    """
    if not group:
        return
    names = ", ".join(f"%{i.node.name} ({i.node.kind})" for i in group)
    state.writer.emitter.emit(Comment(f"{names}: threads -> warp -> block" + (" -> cluster" if state.choice.cluster > 1 else "")))
    if outputs:
        state.writer.emitter.emit(Comment(f"{', '.join('%' + n for n, _, _ in outputs)}: registers -> global memory on the way"))
    combine_threads(state, group, accumulate_stage(state, group, outputs))


def send_stage(state: RowState, group: list[Instance]) -> None:
    """As `reduce_stage`, up to the barrier at which the row's threads meet last; `rows_combine.receive_parts` is the rest."""
    names = ", ".join(f"%{i.node.name} ({i.node.kind})" for i in group)
    state.writer.emitter.emit(Comment(f"{names}: threads -> warp -> block" + (" -> cluster" if state.choice.cluster > 1 else "")))
    send_parts(state, group, accumulate_stage(state, group))


def accumulate_stage(state: RowState, group: list[Instance], outputs: list[Output] | None = None) -> dict[int, list[Reg]]:
    """The thread's own elements into one partial result a reduction; `outputs` as of `reduce_stage`."""
    w, c = state.writer, state.choice
    e = w.emitter
    parts: dict[int, list[list[Reg]]] = {}
    for i in group:
        parts[i.key] = _declare_parts(state, i, 1 if i.node.detail in BY_VECTOR else c.lanes)
    written = outputs or []
    needed = needed_keys(state, [*(u for i in group for u in i.uses), *(k for _, k, _ in written)])
    bodies = [w.domain.instances[k].body for k in needed] + [i.body for i in group]
    arrays = declare_kept(state, needed, group)
    whole = {i.key: declare_all(state, i) for i in group if i.node.detail == EXPSUM.name and at_once(state)}
    squares = _squares(state, group, parts, arrays)
    cascade = _cascade(state, group, parts, squares)
    batches, twins = _batches(state, group, parts)
    for chunk, env, width, held in walk_row(state, bodies, bool(written), cascade, batches):
        # Elements behind the last vector come one by one, in no batch.
        batched = batches if width == c.vector else None
        vectors = [i for i in group if i.node.detail in BY_VECTOR and width > 1 and not takes_stretches(state, i)
                   and not takes_batches(state, i)]
        chunk_values = {i.key: _declare_values(state, i, width) for i in vectors if i.key not in whole}
        hoist_lane_free(state, bodies, env, held)

        step = cascade.within if cascade is not None and width > 1 else chunk

        def one_lane(v: Affine, chunk: Affine = chunk, step: Affine = step, width: int = width,
                     chunk_values: dict[int, Reg] = chunk_values, batched: BatchSquares | None = batched) -> None:
            for i in group:
                if batched is not None and takes_batches(state, i):
                    batched.take(i, chunk, v)
                elif batched is not None and i.key in twins:
                    continue
                elif squares is not None and takes_stretches(state, i) and (width > 1 or squares.tail):
                    squares.take(i, step * c.vector + v if width > 1 else squares.extent * c.vector + step, v)
                elif i.key in whole:
                    e.emit(Assign(Reg(whole[i.key].name, whole[i.key].dtype, chunk * c.vector + v), e.expression(i.body)))
                elif i.key in chunk_values:
                    e.emit(Assign(Reg(chunk_values[i.key].name, chunk_values[i.key].dtype, v), e.expression(i.body)))
                else:
                    _accumulate(state, i, parts[i.key], v, width)
            for k, array in arrays.items():
                e.emit(Assign(Reg(array.name, array.dtype, chunk * c.vector + v), e.value(k)))

        if written:
            w.write_lanes(written, width, held, chunk, env, state.lane, one_lane)
        else:
            with w.lanes(width, env, state.lane) as v:
                w.bind(held, chunk, v)
                one_lane(v)
        if squares is not None and width > 1:
            squares.next_vector()
        if batched is not None:
            batched.next_vector()
        for i in group:
            if i.key in chunk_values:
                _merge_chunk(state, i, parts[i.key][0], chunk_values[i.key], width)
    _finish_parts(state, group, parts, whole, squares)
    w.chunk_values |= {k: (array, c.vector) for k, array in arrays.items()}
    return {k: p[0] for k, p in parts.items()}


def _finish_parts(state: RowState, group: list[Instance], parts: dict[int, list[list[Reg]]], whole: dict[int, Reg],
                  squares: TwoPassSquares | None) -> None:
    """The lanes of a thread are combined to one partial result a reduction, in `parts`."""
    if squares is not None:
        squares.finish()
    for i in group:
        if i.key in whole:
            merge_all(state, i, parts[i.key][0], whole[i.key])
        _combine_lanes(state, i, parts[i.key])
    if squares is not None:
        squares.refine_sums({i.key: parts[i.key][0][0] for i in group if i.node.detail == "sum"})


def _squares(state: RowState, group: list[Instance], parts: dict[int, list[list[Reg]]], arrays: dict[int, Reg]) -> TwoPassSquares | None:
    """The squared deviations that the stage makes stretch by stretch; None where it makes none so."""
    c = state.choice
    squares = [i for i in group if takes_stretches(state, i)] if state.vectors else []
    if not squares:
        return None
    sums = {i.key: parts[s.key][0][0] for i in squares for s in group
            if s.node.detail == "sum" and s.body == narrow_body(i) and len(parts[s.key]) == c.vector}
    bodies = {i.key: narrow_body(i) for i in squares}
    kept = {k: arrays[b.key] for k, b in bodies.items() if isinstance(b, Use) and b.key in arrays and _stretch(state) == c.chunks}
    return TwoPassSquares(state, squares, {i.key: parts[i.key][0] for i in squares}, _stretch(state), sums, kept)


def _batches(state: RowState, group: list[Instance], parts: dict[int, list[list[Reg]]]) -> tuple[BatchSquares | None, set[int]]:
    """The squared deviations that the stage makes batch by batch (None: none), and the sums that come with them."""
    squares = [i for i in group if takes_batches(state, i)]
    if not squares:
        return None, set()
    twins = twin_sums(group, parts, squares, {i.key: state.writer.emitter.dtype(i.body) for i in group})
    squares_by_batch = BatchSquares(state, squares, {i.key: parts[i.key][0] for i in squares}, {k: reg for k, (_, reg) in twins.items()})
    return squares_by_batch, {key for key, _ in twins.values()}


def _stretch(state: RowState) -> int:
    """Vectors a stretch of the row."""
    return (nested_counts(state.choice.chunks) or (state.choice.chunks,))[-1]


def _cascade(state: RowState, group: list[Instance], parts: dict[int, list[list[Reg]]], squares: TwoPassSquares | None) -> Cascade | None:
    """The accumulators of a long row's sums, where one thread takes it alone; None where its chains are short enough."""
    w, c = state.writer, state.choice
    counts = nested_counts(c.chunks) if c.threads == 1 else ()
    summed = [Summed(i, tuple(parts[i.key][0]), len(parts[i.key])) for i in group
              if i.node.detail in CASCADED and w.emitter.dtype(i.body).is_float]
    if squares is not None:
        return Cascade(w.emitter, w.unroll, summed, counts or (c.chunks,), (), squares)
    return Cascade(w.emitter, w.unroll, summed, counts) if counts and summed else None



def _worth_keeping(state: RowState, needed: list[int], group: list[Instance]) -> list[int]:
    """Costly values of every element that a later stage uses again: held in registers while the budget lasts."""
    w, c = state.writer, state.choice
    on_host = w.device.kind == "host" and c.threads == 1 and c.split == 1
    if state.tail or not (on_host or c.in_registers and w.unroll):
        return []
    instances = w.domain.instances
    bodies = [narrow_body(i) for i in group if takes_stretches(state, i)] if _stretch(state) == c.chunks else []
    stretched = {b.key for b in bodies if isinstance(b, Use)}
    later = [i for i in instances if i.key > max(g.key for g in group)]
    keys_to_keep: list[int] = []
    fitted = w.device.fitted.kept
    room = fitted.thread_bytes * 3 // 2 - sum(h.touch.dtype.itemsize * c.chunks * c.vector for h in state.held)
    if on_host:
        room = fitted.host_bytes
    elif c.groups:
        room = row_room(state) - sum(h.touch.dtype.itemsize * c.chunks * c.vector for h in state.held)
    for k in needed:
        i = instances[k]
        size = i.node.type.dtype.itemsize * c.chunks * c.vector
        used_later = any(k in i.uses for i in later)
        costly = _narrow_flops(w, k) >= fitted.narrow_flops if w.narrow and not on_host else flops_of(i.body) >= fitted.flops
        worth = k in stretched or costly or _replaced_bytes(state, k, later) > i.node.type.dtype.itemsize
        # Terms of a sum by one thread have no place: one element of the row has many.
        one_each = not i.serial and not i.depends & w.domain.serial_loops
        if k not in w.chunk_values and used_later and varies(w, k) and one_each and worth and size <= room:
            keys_to_keep.append(k)
            room -= size
    return keys_to_keep


def _replaced_bytes(state: RowState, key: int, later: list[Instance]) -> int:
    """Bytes an element of held operands that `later` stages need only to compute this value again: where it is kept, their registers come
    free. Residual + norm: x and its addend, two operands, leave one sum.
    """
    domain = state.writer.domain
    shared = {n for n, i in enumerate(domain.instances) if i.shared}
    used = [u for i in later for u in (i.uses if i.shared else (i.key,)) if u not in shared]
    others = {x for i in reachable(domain, used, shared | {key}) for x in resolved_walk(i.body) if isinstance(x, Touch)}
    others |= {x for i in later if i.shared for x in resolved_walk(i.body) if isinstance(x, Touch)}
    own = {x for i in reachable(domain, [key], shared) for x in resolved_walk(i.body) if isinstance(x, Touch)}
    return sum(h.touch.dtype.itemsize for h in state.held if not h.step and h.touch in own - others)


def _narrow_flops(w: KernelWriter, key: int) -> int:
    """Operations to compute an element again from what a thread holds, with functions in their short forms."""
    flops = 0
    for i in reachable(w.domain, [key], {n for n, other in enumerate(w.domain.instances) if other.shared} | set(w.chunk_values)):
        calls = [x.fn for x in resolved_walk(i.body) if isinstance(x, Call)]
        flops += flops_of(i.body) + sum(NARROW_FLOPS[fn] - SCALAR_OPS[fn].flops for fn in calls if fn in NARROW_FLOPS)
    return flops


def declare_kept(state: RowState, needed: list[int], group: list[Instance]) -> dict[int, Reg]:
    """Register arrays for the values of a stage that later ones read again rather than compute again."""
    return {k: _declare_array(state, state.writer.domain.instances[k]) for k in _worth_keeping(state, needed, group)}


def _declare_array(state: RowState, i: Instance) -> Reg:
    e, c = state.writer.emitter, state.choice
    array = Reg(e.fresh(i.node.name + "_v"), i.node.type.dtype)
    e.emit(Declare(array.name, array.dtype, c.chunks * c.vector))
    return array


def hoist_lane_free(state: RowState, bodies: Sequence[Resolved], env: dict[str, Affine], held: list[Held]) -> None:
    """Loads that are the same for all lanes of the vector happen once, before the lane loop."""
    e = state.writer.emitter
    loaded = {h.touch for h in held}
    saved = dict(e.env)
    e.env = saved | env
    for touch in state.writer.touches(bodies):
        own_axes = set(state.writer.domain.kept) | set(state.writer.domain.reduced)
        if touch not in loaded and state.lane not in e.index(touch.offset).axes() and touch.offset.axes() <= own_axes:
            e.touch(touch, False)
    e.env = saved


def _declare_parts(state: RowState, instance: Instance, lanes: int) -> list[list[Reg]]:
    """Accumulators: for each lane group the components of the partial result."""
    e = state.writer.emitter
    suffixes = {"m2": ("_count", "_mean", ""), "expsum": ("", "_exp_sum")}.get(instance.node.detail, ("", "_at"))
    arrays = []
    for suffix, start in zip(suffixes, e.identities(instance)):
        t = start.dtype
        name = e.fresh(instance.node.name + suffix)
        if lanes == 1:
            e.emit(Declare(name, t, None, start))
        else:
            e.emit(Declare(name, t, lanes))
            with e.lanes(lanes, state.writer.unroll) as v:
                e.emit(Assign(Reg(name, t, v), start))
        arrays.append((name, t))
    return [[Reg(name, t, None if lanes == 1 else number(n)) for name, t in arrays] for n in range(lanes)]


def _declare_values(state: RowState, instance: Instance, width: int) -> Reg:
    e = state.writer.emitter
    dtype = e.dtype(instance.body)
    name = e.fresh(instance.node.name + "_x")
    e.emit(Declare(name, dtype, width))
    return Reg(name, dtype)


def _accumulate(state: RowState, instance: Instance, parts: list[list[Reg]], lane: Affine, width: int) -> None:
    lanes = len(parts)
    if lanes == 1:
        state.writer.emitter.accumulate(instance, parts[0])
        return
    index = lane if width <= lanes else lane % lanes
    state.writer.emitter.accumulate(instance, [Reg(p.name, p.dtype, index) for p in parts[0]])


def _merge_chunk(state: RowState, instance: Instance, parts: list[Reg], values: Reg, width: int) -> None:
    """Merges the values of one vector: m2 in two passes over registers (no division a lane), merged by Chan's formula."""
    if instance.node.detail == EXPSUM.name:
        merge_vector(state, parts, values, width)
        return
    e = state.writer.emitter
    dtype = values.dtype
    mean = Reg(e.fresh(instance.node.name + "_chunk_mean"), dtype)
    m2 = Reg(e.fresh(instance.node.name + "_chunk_m2"), dtype)
    e.emit(Declare(mean.name, dtype, None, const(0, dtype)), Declare(m2.name, dtype, None, const(0, dtype)))
    with e.lanes(width, state.writer.unroll) as v:
        e.emit(Assign(mean, Call("add", (mean, Reg(values.name, dtype, v)))))
    e.emit(Assign(mean, Call("mul", (mean, const(1.0 / width, dtype)))))
    with e.lanes(width, state.writer.unroll) as v:
        off = e.register(Call("sub", (Reg(values.name, dtype, v), mean)), dtype, "off")
        e.emit(Assign(m2, Call("add", (m2, Call("mul", (off, off))))))
    e.combine("m2", parts, (const(width, dtype), mean, m2), dtype)


def _combine_lanes(state: RowState, instance: Instance, parts: list[list[Reg]]) -> None:
    """Pairwise over the lane accumulators; the result is in the first."""
    e = state.writer.emitter
    dtype = e.dtype(instance.body)
    step = 1
    while step < len(parts):
        for n in range(0, len(parts) - step, 2 * step):
            e.combine(instance.node.detail, parts[n], parts[n + step], dtype)
        step *= 2
