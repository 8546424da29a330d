"""A sum and the squared deviations from its mean by one exchange between threads instead of two.

    vector    t = sum x,  q = sum (x - t / c)^2           c elements, from registers
    pairs     t = t1 + t2,  q = q1 + q2 + (t1 / c - t2 / c)^2 * c / 2,  c = 2 c          vectors of a thread, lanes of a warp
    slots     T = sum t,  Q = sum (q + (t / c - T / n)^2 * c)     over the warps of a block, then over the blocks of a cluster

All shares have the same count, so that nothing is divided by one. Where some threads have fewer vectors of the row than others,
`rows_shares.py` lets counts travel along. Source: Chan, Golub and LeVeque 1983, The American Statistician 37(3), the pairwise
algorithm.
"""
from __future__ import annotations

from collections.abc import Sequence

from tilefuse.codegen.kernel import Assign, ClusterStore, Comment, Declare, KExpr, Load, Reg, Shuffle, Store
from tilefuse.codegen.rows_exchange import cluster_exchange, row_barrier, slot_base
from tilefuse.codegen.rows_reduce import declare_kept, hoist_lane_free
from tilefuse.codegen.rows_shares import reduce_shares
from tilefuse.codegen.rows_walk import RowState, needed_keys, walk_row
from tilefuse.ir.affine import number
from tilefuse.ir.dtype import DType
from tilefuse.ir.scalar import Bound, Call, const
from tilefuse.schedule.resolved import Instance


def joins_moments(state: RowState, group: list[Instance], later: list[Instance]) -> bool:
    """Whether a stage and the one after it are a sum and the squared deviations from its mean, over a row that stays on chip.

    Uneven shares only in clusters: an exchange in a block takes less than counting along (measured on H200: rows of 768 f16 run 8 %
    slower, batches of images over 16 blocks 1 % faster).
    """
    c = state.choice
    if len(group) != 1 or len(later) != 1 or later[0].squares_of != group[0].key:
        return False
    # A single warp exchanges nothing.
    even = state.vectors == c.chunks * c.threads * c.cluster
    whole = state.tail == 0 and c.split == 1 and (c.on_chip or c.stages > 0) and (even or c.cluster > 1)
    return whole and c.threads % 32 == 0 and c.threads * c.cluster > 32 and group[0].node.kind == "reduce.sum"


def reduce_moments(state: RowState, total: Instance, squares: Instance) -> None:
    """Both reductions of the row; every thread ends with the results."""
    w, c = state.writer, state.choice
    e = w.emitter
    e.emit(Comment(f"%{total.node.name} ({total.node.kind}) and %{squares.node.name}, squares about each vector's mean: threads -> warp -> "
                   + ("cluster" if c.cluster > 1 else "block")))
    dtype = e.dtype(total.body)
    if state.vectors != c.chunks * c.threads * c.cluster:
        e.frame.values |= reduce_shares(state, total, squares, dtype)
        return
    t, q = _moments_of_thread(state, total, dtype)
    count = c.chunks * c.vector
    step = 16
    while step >= 1:
        others = [Reg(e.fresh(p.name + "_other"), dtype) for p in (t, q)]
        for p, other in zip((t, q), others, strict=True):
            e.emit(Declare(other.name, dtype), Shuffle(other, p, "xor", step, 32))
        _merge(state, (t, q), others, count, count, dtype)
        step //= 2
        count *= 2
    _exchange(state, (total, squares), t, q, count, dtype)
    e.frame.values |= {total.key: t, squares.key: q}


def _moments_of_thread(state: RowState, total: Instance, dtype: DType) -> tuple[Reg, Reg]:
    """Each vector's sum and squares about its own mean, then the vectors' pairs one by one: two vectors' values live at a time."""
    w, c = state.writer, state.choice
    e = w.emitter
    parts = [Reg(e.fresh(total.node.name + suffix), dtype) for suffix in ("", "_squares")]
    for p in parts:
        e.emit(Declare(p.name, dtype, c.chunks))
    needed = needed_keys(state, list(total.uses))
    bodies = [w.domain.instances[k].body for k in needed] + [total.body]
    arrays = declare_kept(state, needed, [total])
    for chunk, env, width, held in walk_row(state, bodies):
        values = Reg(e.fresh(total.node.name + "_x"), dtype)
        e.emit(Declare(values.name, dtype, width))
        hoist_lane_free(state, bodies, env, held)
        t, q = (Reg(p.name, dtype, chunk) for p in parts)
        e.emit(Assign(t, const(0, dtype)), Assign(q, const(0, dtype)))
        with w.lanes(width, env, state.lane) as v:
            w.bind(held, chunk, v)
            e.emit(Assign(Reg(values.name, dtype, v), e.expression(total.body)), Assign(t, _sum(t, Reg(values.name, dtype, v))))
            for k, array in arrays.items():
                e.emit(Assign(Reg(array.name, array.dtype, chunk * c.vector + v), e.value(k)))
        mean = _held(state, _times(t, 1.0 / width, dtype), dtype, "mean_of_vector")
        with e.loop("v", width, unroll=w.unroll) as v:
            off = _held(state, Call("sub", (Reg(values.name, dtype, v), mean)), dtype, "off")  # type: ignore[arg-type]
            e.emit(Assign(q, _sum(q, Call("mul", (off, off)))))  # type: ignore[arg-type]
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
        apart = _held(state, _times(Call("sub", (t, other[0])), 1.0 / count, dtype), dtype, "apart")  # type: ignore[arg-type]
    else:
        apart = _held(state, Call("sub", (_times(t, 1.0 / count, dtype), _times(other[0], 1.0 / other_count, dtype))), dtype, "apart")  # type: ignore[arg-type]
    between = _times(Call("mul", (apart, apart)), count * other_count / (count + other_count), dtype)  # type: ignore[arg-type]
    e.emit(Assign(q, _sum(_sum(q, other[1]), between)), Assign(t, _sum(t, other[0])))


def _exchange(state: RowState, both: tuple[Instance, Instance], t: Reg, q: Reg, count: int, dtype: DType) -> None:
    """The warps' pairs into one of the block, and the blocks' into one of the row; one message from block to block a value."""
    w, c = state.writer, state.choice
    e = w.emitter
    warps = c.threads // 32
    copies = c.rows * (2 if c.groups else 1)
    if warps > 1:
        buffers = [w.shared(f"{i.node.name}_shared", dtype, warps * copies) for i in both]
        own = slot_base(state, warps) + e.let("warp", state.place // 32, warps)
        with e.when([Bound(e.let("lane_of_warp", state.place % 32, 32), 0, 1)]):
            e.emit(*(Store(b, own, p) for p, b in zip((t, q), buffers, strict=True)))
        e.emit(row_barrier(state))
        _gather(state, buffers, t, q, warps, count, dtype)
        count *= warps
    if c.cluster > 1:
        buffers = [w.shared(f"{i.node.name}_blocks", dtype, c.cluster * copies) for i in both]
        exchange = cluster_exchange(state, [dtype, dtype], c.cluster)
        own = slot_base(state, c.cluster) + state.rank
        with e.when([Bound(state.place, 0, c.cluster)]):
            e.emit(*(ClusterStore(b, own, state.place, p, exchange.signal) for p, b in zip((t, q), buffers, strict=True)))
        e.emit(exchange)
        _gather(state, buffers, t, q, c.cluster, count, dtype)


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
        apart = _held(state, Call("sub", (_times(mine, 1.0 / count, dtype), mean)), dtype, "apart")  # type: ignore[arg-type]
        e.emit(Assign(squares, _sum(squares, _times(Call("mul", (apart, apart)), count, dtype))))  # type: ignore[arg-type]
    e.emit(Assign(q, squares))
    _add_lanes(state, q, width)


def _add_lanes(state: RowState, part: Reg, width: int) -> None:
    e = state.writer.emitter
    step = width // 2
    while step >= 1:
        other = Reg(e.fresh(part.name + "_other"), part.dtype)
        e.emit(Declare(other.name, part.dtype), Shuffle(other, part, "xor", step, width), Assign(part, _sum(part, other)))
        step //= 2


def _held(state: RowState, value: KExpr, dtype: DType, wanted: str) -> KExpr:
    return state.writer.emitter.register(value, dtype, wanted)


def _sum(a: KExpr, b: KExpr) -> KExpr:
    return Call("add", (a, b))  # type: ignore[arg-type]


def _times(a: KExpr, factor: float, dtype: DType) -> KExpr:
    return Call("mul", (a, const(factor, dtype)))  # type: ignore[arg-type]
