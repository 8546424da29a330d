"""A sum and the squared deviations from its mean by one exchange between threads instead of two.

    vector    t = sum x,  q = sum (x - t / c)^2           c elements, from registers
    pairs     t = t1 + t2,  q = q1 + q2 + (t1 / c - t2 / c)^2 * c / 2,  c = 2 c          vectors of a thread, lanes of a warp
    slots     T = sum t,  Q = sum (q + (t / c - T / n)^2 * c)     over the warps of a block, then over the blocks of a cluster

All shares have the same count, so that nothing is divided by one. Where some threads have fewer vectors of the row than others,
`templates/rows/shares.py` lets counts travel along. Source: Chan, Golub and LeVeque 1983, The American Statistician 37(3), the pairwise
algorithm.
"""
from __future__ import annotations

from collections.abc import Sequence

from tilefuse.domain.resolved import Instance
from tilefuse.ir.affine import Affine, number
from tilefuse.ir.dtype import DType
from tilefuse.ir.scalar import Bound, Call, const
from tilefuse.kernel.ir import Assign, Comment, Declare, KExpr, Load, Reg, Shuffle
from tilefuse.templates.rows.exchange import block_to_cluster, cluster_exchange, exchange_buffers, meet_in_block, slot_base, warps_to_shared
from tilefuse.templates.rows.reduce import Output, declare_kept, hoist_lane_free
from tilefuse.templates.rows.shares import receive_shares, send_shares
from tilefuse.templates.rows.walk import RowState, needed_keys, walk_row


def joins_moments(state: RowState, group: list[Instance], later: list[Instance]) -> bool:
    """Whether a stage and the one after it are a sum and the squared deviations from its mean, over a row that stays on chip.

    Uneven shares only in clusters: an exchange in a block takes less than counting along (measured on H200: rows of 768 f16 run 8 %
    slower, batches of images over 16 blocks 1 % faster).
    """
    c = state.choice
    if len(group) != 1 or len(later) != 1 or later[0].squares_of != group[0].key:
        return False
    # A single warp exchanges nothing.
    whole = state.tail == 0 and c.split == 1 and (c.in_registers or c.slots > 0) and (has_even_shares(state) or c.cluster > 1)
    return whole and c.threads % 32 == 0 and c.threads * c.cluster > 32 and group[0].node.kind == "reduce.sum"


def reduce_moments(state: RowState, total: Instance, squares: Instance, outputs: Sequence[Output] = ()) -> None:
    """Both reductions of the row; every thread ends with the results. `outputs`: as of `reduce_stage`, where shares are even."""
    _receive(state, (total, squares), send_moments(state, total, squares, outputs), True)


def receive_moments(state: RowState, total: Instance, squares: Instance) -> None:
    """The rest of `reduce_moments`, a turn after `send_moments`. Requires: a block barrier lies between the two."""
    e = state.writer.emitter
    dtype = e.dtype(total.body)
    names = [total.node.name, total.node.name + "_squares", *([] if has_even_shares(state) else [total.node.name + "_count"])]
    parts = [Reg(e.fresh(name), dtype) for name in names]
    e.emit(*(Declare(p.name, dtype) for p in parts))
    _receive(state, (total, squares), parts, False)


def has_even_shares(state: RowState) -> bool:
    """Whether all threads have equally many vectors of the row."""
    c = state.choice
    return state.vectors == c.chunks * c.threads * c.cluster


def _receive(state: RowState, both: tuple[Instance, Instance], parts: Sequence[Reg], meet: bool) -> None:
    """Sent values, combined in every thread. `meet`: the block's threads have not met since."""
    if has_even_shares(state):
        _receive_even(state, both, parts, meet)
    else:
        receive_shares(state, both, parts, meet)
    state.writer.emitter.frame.values |= {i.key: p for i, p in zip(both, parts[:2], strict=True)}


def send_moments(state: RowState, total: Instance, squares: Instance, outputs: Sequence[Output] = ()) -> Sequence[Reg]:
    """All of `reduce_moments` that stands before the barrier at which the row's threads meet last; the registers of the partial results."""
    w, c = state.writer, state.choice
    e = w.emitter
    e.emit(Comment(f"%{total.node.name} ({total.node.kind}) and %{squares.node.name}, squares about each vector's mean: threads -> warp -> "
                   + ("cluster" if c.cluster > 1 else "block")))
    if outputs:
        e.emit(Comment(f"{', '.join('%' + n for n, _, _ in outputs)}: registers -> global memory on the way"))
    dtype = e.dtype(total.body)
    if not has_even_shares(state):
        return send_shares(state, total, squares, dtype)
    t, q = _moments_of_thread(state, total, dtype, outputs)
    count = c.chunks * c.vector
    step = 16
    while step >= 1:
        others = [Reg(e.fresh(p.name + "_other"), dtype) for p in (t, q)]
        for p, other in zip((t, q), others, strict=True):
            e.emit(Declare(other.name, dtype), Shuffle(other, p, "xor", step, 32))
        _merge(state, (t, q), others, count, count, dtype)
        step //= 2
        count *= 2
    _send_even(state, (total, squares), t, q, dtype)
    return t, q


def _moments_of_thread(state: RowState, total: Instance, dtype: DType, outputs: Sequence[Output]) -> tuple[Reg, Reg]:
    """Each vector's sum and squares about its own mean, then the vectors' pairs one by one: two vectors' values live at a time."""
    w, c = state.writer, state.choice
    e = w.emitter
    parts = [Reg(e.fresh(total.node.name + suffix), dtype) for suffix in ("", "_squares")]
    for p in parts:
        e.emit(Declare(p.name, dtype, c.chunks))
    needed = needed_keys(state, [*total.uses, *(k for _, k, _ in outputs)])
    bodies = [w.domain.instances[k].body for k in needed] + [total.body]
    arrays = declare_kept(state, needed, [total])
    for chunk, env, width, held in walk_row(state, bodies, bool(outputs)):
        values = Reg(e.fresh(total.node.name + "_x"), dtype)
        e.emit(Declare(values.name, dtype, width))
        hoist_lane_free(state, bodies, env, held)
        t, q = (Reg(p.name, dtype, chunk) for p in parts)
        e.emit(Assign(t, const(0, dtype)), Assign(q, const(0, dtype)))

        def one_lane(v: Affine, chunk: Affine = chunk, values: Reg = values, t: Reg = t) -> None:
            e.emit(Assign(Reg(values.name, dtype, v), e.expression(total.body)), Assign(t, _sum(t, Reg(values.name, dtype, v))))
            for k, array in arrays.items():
                e.emit(Assign(Reg(array.name, array.dtype, chunk * c.vector + v), e.value(k)))

        if outputs:
            w.write_lanes(list(outputs), width, held, chunk, env, state.lane, one_lane)
        else:
            with w.lanes(width, env, state.lane) as v:
                w.bind(held, chunk, v)
                one_lane(v)
        mean = _held(state, _times(t, 1.0 / width, dtype), dtype, "mean_of_vector")
        with e.loop("v", width, unroll=w.unroll) as v:
            off = _held(state, Call("sub", (Reg(values.name, dtype, v), mean)), dtype, "off")
            e.emit(Assign(q, _sum(q, Call("mul", (off, off)))))
    w.chunk_values |= {k: (array, c.vector) for k, array in arrays.items()}
    counts = [c.vector] * c.chunks
    step = 1
    while step < c.chunks:
        for n in range(0, c.chunks - step, 2 * step):
            first, second = ([Reg(p.name, dtype, number(at)) for p in parts] for at in (n, n + step))
            _merge(state, first, second, counts[n], counts[n + step], dtype)
            counts[n] += counts[n + step]
        step *= 2
    return Reg(parts[0].name, dtype, number(0)), Reg(parts[1].name, dtype, number(0))


def _merge(state: RowState, into: Sequence[Reg], other: Sequence[Reg], count: int, other_count: int, dtype: DType) -> None:
    """Sum and squares of `count` elements, with those of `other_count` more."""
    e = state.writer.emitter
    t, q = into
    if count == other_count:
        apart = _held(state, _times(Call("sub", (t, other[0])), 1.0 / count, dtype), dtype, "apart")
    else:
        apart = _held(state, Call("sub", (_times(t, 1.0 / count, dtype), _times(other[0], 1.0 / other_count, dtype))), dtype, "apart")
    between = _times(Call("mul", (apart, apart)), count * other_count / (count + other_count), dtype)
    e.emit(Assign(q, _sum(_sum(q, other[1]), between)), Assign(t, _sum(t, other[0])))


def _send_even(state: RowState, both: tuple[Instance, Instance], t: Reg, q: Reg, dtype: DType) -> None:
    """The warps' pairs into one of the block, and that to all blocks; one message from block to block a value."""
    c = state.choice
    warps = c.threads // 32
    if warps > 1:
        warps_to_shared(state, [i.node.name for i in both], (t, q), dtype)
        if c.cluster > 1:
            _gather_warps(state, both, t, q, dtype, True)
    if c.cluster > 1:
        block_to_cluster(state, both[0].key, [i.node.name for i in both], (t, q), dtype)


def _receive_even(state: RowState, both: tuple[Instance, Instance], parts: Sequence[Reg], meet: bool) -> None:
    (t, q), c = parts, state.choice
    if c.cluster == 1:
        _gather_warps(state, both, t, q, t.dtype, meet)
        return
    buffers = exchange_buffers(state, [i.node.name for i in both], "_blocks", t.dtype, c.cluster)
    state.writer.emitter.emit(cluster_exchange(state, both[0].key, [t.dtype] * 2, c.cluster))
    _gather(state, buffers, t, q, c.cluster, c.chunks * c.vector * c.threads, t.dtype)


def _gather_warps(state: RowState, both: tuple[Instance, Instance], t: Reg, q: Reg, dtype: DType, meet: bool) -> None:
    c = state.choice
    if meet:
        meet_in_block(state)
    buffers = exchange_buffers(state, [i.node.name for i in both], "_shared", dtype, c.threads // 32)
    _gather(state, buffers, t, q, c.threads // 32, c.chunks * c.vector * 32, dtype)


def _gather(state: RowState, buffers: list[str], t: Reg, q: Reg, slots: int, count: int, dtype: DType) -> None:
    """Pairs of `count` elements each from their slots into one, in every thread: a slot a lane."""
    e = state.writer.emitter
    width = 1
    while width < slots:
        width *= 2
    lane = e.let("lane_of_slot", state.place % width, width)
    base = slot_base(state, slots)
    zero = const(0, dtype)
    mine, squares = (Reg(e.fresh(p.name + "_slot"), dtype) for p in (t, q))
    e.emit(*(Declare(r.name, dtype, None, zero) for r in (mine, squares)))
    with e.when([Bound(lane, 0, slots)]):
        e.emit(*(Assign(r, Load(b, dtype, base + lane)) for r, b in zip((mine, squares), buffers, strict=True)))
    e.emit(Assign(t, mine))
    _add_lanes(state, t, width)
    mean = _held(state, _times(t, 1.0 / (count * slots), dtype), dtype, "mean_of_slots")
    with e.when([Bound(lane, 0, slots)]):
        apart = _held(state, Call("sub", (_times(mine, 1.0 / count, dtype), mean)), dtype, "apart")
        e.emit(Assign(squares, _sum(squares, _times(Call("mul", (apart, apart)), count, dtype))))
    e.emit(Assign(q, squares))
    _add_lanes(state, q, width)


def _add_lanes(state: RowState, part: Reg, width: int) -> None:
    e = state.writer.emitter
    step = width // 2
    while step >= 1:
        other = Reg(e.fresh(part.name + "_other"), part.dtype)
        e.emit(Declare(other.name, part.dtype), Shuffle(other, part, "xor", step, width), Assign(part, _sum(part, other)))
        step //= 2


def _held(state: RowState, value: KExpr, dtype: DType, stem: str) -> KExpr:
    return state.writer.emitter.register(value, dtype, stem)


def _sum(a: KExpr, b: KExpr) -> KExpr:
    return Call("add", (a, b))


def _times(a: KExpr, factor: float, dtype: DType) -> KExpr:
    return Call("mul", (a, const(factor, dtype)))
