"""A sum and the squared deviations from its mean over uneven shares of a row, by one exchange between threads.

    thread    o = its first element,  d = sum (x - o),  s = sum (x - o)^2        n elements, 0 where it lies past the row's end
              t = d + n o,  q = s - d^2 / n
    then      N = sum n,  T = sum t,  Q = sum (q + n (t / n - T / N)^2)          lanes of a warp, warps of a block, blocks of a cluster

The shift keeps the thread's difference harmless: o is one of the n values, so that d^2 / n is at most n times q, and n is small.
Source: Chan, Golub and LeVeque 1983, The American Statistician 37(3), shifted data, and the combination of groups.
"""
from __future__ import annotations

from collections.abc import Sequence

from tilefuse.domain.resolved import Instance
from tilefuse.ir.affine import number
from tilefuse.ir.dtype import DType
from tilefuse.ir.scalar import Bound, Call, const
from tilefuse.kernel.ir import Assign, Declare, KExpr, Load, Reg, Shuffle
from tilefuse.templates.rows.exchange import block_to_cluster, cluster_exchange, exchange_buffers, meet_in_block, slot_base, warps_to_shared
from tilefuse.templates.rows.reduce import declare_kept, hoist_lane_free
from tilefuse.templates.rows.walk import RowState, needed_keys, walk_row


def send_shares(state: RowState, total: Instance, squares: Instance, dtype: DType) -> Sequence[Reg]:
    """The thread's sum, squares and count on their way to the threads of the row; the registers that hold them."""
    c = state.choice
    parts = _share_of_thread(state, total, dtype)
    _settle(state, parts, 32, dtype)
    names = _names((total, squares))
    if c.threads > 32:
        warps_to_shared(state, names, parts, dtype)
        if c.cluster > 1:
            _gather_warps(state, names, parts, True)
    if c.cluster > 1:
        block_to_cluster(state, total.key, names, parts, dtype)
    return parts


def receive_shares(state: RowState, both: tuple[Instance, Instance], parts: Sequence[Reg], meet: bool) -> None:
    """The row's sum, squares and count in every thread. `meet`: the block's threads have not met since they were sent."""
    c, names = state.choice, _names(both)
    if c.cluster == 1:
        if c.threads > 32:
            _gather_warps(state, names, parts, meet)
        return
    dtype = parts[0].dtype
    buffers = exchange_buffers(state, names, "_blocks", dtype, c.cluster)
    state.writer.emitter.emit(cluster_exchange(state, both[0].key, [dtype] * 3, c.cluster))
    _settle_slots(state, buffers, parts, c.cluster, dtype)


def _names(both: tuple[Instance, Instance]) -> list[str]:
    return [*(i.node.name for i in both), both[0].node.name + "_count"]


def _gather_warps(state: RowState, names: list[str], parts: Sequence[Reg], meet: bool) -> None:
    warps, dtype = state.choice.threads // 32, parts[0].dtype
    if meet:
        meet_in_block(state)
    _settle_slots(state, exchange_buffers(state, names, "_shared", dtype, warps), parts, warps, dtype)


def _share_of_thread(state: RowState, total: Instance, dtype: DType) -> tuple[Reg, Reg, Reg]:
    """Sum, squared deviations and count of the thread's own elements."""
    w, c = state.writer, state.choice
    e = w.emitter
    name = total.node.name
    origin, distances, squares, count = (Reg(e.fresh(name + suffix), dtype) for suffix in ("_origin", "_distances", "_squares", "_count"))
    e.emit(*(Declare(r.name, dtype, None, const(0, dtype)) for r in (origin, count)))
    for r in (distances, squares):
        # An accumulator a lane of each pair: sums of neighbouring elements need not wait for each other.
        e.emit(Declare(r.name, dtype, c.lanes))
        with e.loop("v", c.lanes, unroll=w.unroll) as v:
            e.emit(Assign(Reg(r.name, dtype, v), const(0, dtype)))
    needed = needed_keys(state, list(total.uses))
    bodies = [w.domain.instances[k].body for k in needed] + [total.body]
    arrays = declare_kept(state, needed, [total])
    for chunk, env, width, held in walk_row(state, bodies):
        hoist_lane_free(state, bodies, env, held)
        e.emit(Assign(count, _sum(count, const(width, dtype))))
        with w.lanes(width, env, state.lane) as v:
            w.bind(held, chunk, v)
            x = e.register(e.expression(total.body), dtype, name + "_x")
            with e.when([Bound(chunk, 0, 1), Bound(v, 0, 1)]):
                # An infinite origin would make every distance NaN, and with them sums that are infinite.
                finite: KExpr = Call("lt", (Call("abs", (x,)), const(float("inf"), dtype)))
                e.emit(Assign(origin, Call("select", (finite, x, const(0, dtype)))))
            off = e.register(Call("sub", (x, origin)), dtype, "off")
            d, s = (Reg(r.name, dtype, v % c.lanes) for r in (distances, squares))
            e.emit(Assign(d, _sum(d, off)), Assign(s, _sum(s, _times(off, off))))
            for k, array in arrays.items():
                e.emit(Assign(Reg(array.name, array.dtype, chunk * c.vector + v), e.value(k)))
    w.chunk_values |= {k: (array, c.vector) for k, array in arrays.items()}
    for r in (distances, squares):
        for lane in range(1, c.lanes):
            e.emit(Assign(Reg(r.name, dtype, number(0)), _sum(Reg(r.name, dtype, number(0)), Reg(r.name, dtype, number(lane)))))
    d, s = (Reg(r.name, dtype, number(0)) for r in (distances, squares))
    t, q = (Reg(e.fresh(name + suffix), dtype) for suffix in ("_row", "_row_squares"))
    rest = Call("sub", (s, _times(d, _times(d, _inverse(count, dtype)))))
    e.emit(Declare(t.name, dtype, None, _sum(d, _times(origin, count))),
           Declare(q.name, dtype, None, Call("maximum", (rest, const(0, dtype)))))
    return t, q, count


def _settle_slots(state: RowState, buffers: list[str], parts: Sequence[Reg], slots: int, dtype: DType) -> None:
    """The slots' shares into one, in every thread: a slot a lane."""
    e = state.writer.emitter
    width = 1
    while width < slots:
        width *= 2
    lane = e.let("lane_of_slot", state.place % width, width)
    e.emit(*(Assign(p, const(0, dtype)) for p in parts))
    with e.when([Bound(lane, 0, slots)]):
        e.emit(*(Assign(p, Load(b, dtype, slot_base(state, slots) + lane)) for p, b in zip(parts, buffers, strict=True)))
    _settle(state, parts, width, dtype)


def _settle(state: RowState, parts: Sequence[Reg], width: int, dtype: DType) -> None:
    """Sum, squares and count of `width` lanes' shares, in each of them; a share may be empty."""
    e = state.writer.emitter
    t, q, n = parts
    own_mean, own_count = (Reg(e.fresh(stem), dtype) for stem in ("mean_of_share", "count_of_share"))
    e.emit(Declare(own_mean.name, dtype, None, _times(t, _inverse(n, dtype))), Declare(own_count.name, dtype, None, n))
    _add_lanes(state, (t, n), width)
    mean = e.register(_times(t, _inverse(n, dtype)), dtype, "mean_of_shares")
    apart = e.register(Call("sub", (own_mean, mean)), dtype, "apart")
    e.emit(Assign(q, _sum(q, _times(own_count, _times(apart, apart)))))
    _add_lanes(state, (q,), width)


def _add_lanes(state: RowState, parts: Sequence[Reg], width: int) -> None:
    """Each part summed over `width` lanes; the parts' shuffles stand side by side."""
    e = state.writer.emitter
    step = width // 2
    while step >= 1:
        others = [Reg(e.fresh(p.name + "_other"), p.dtype) for p in parts]
        for p, other in zip(parts, others, strict=True):
            e.emit(Declare(other.name, p.dtype), Shuffle(other, p, "xor", step, width))
        e.emit(*(Assign(p, _sum(p, other)) for p, other in zip(parts, others, strict=True)))
        step //= 2


def _sum(a: KExpr, b: KExpr) -> KExpr:
    return Call("add", (a, b))


def _times(a: KExpr, b: KExpr) -> KExpr:
    return Call("mul", (a, b))


def _inverse(count: KExpr, dtype: DType) -> KExpr:
    """1 / count; 1 of an empty share, whose sum is zero."""
    return Call("div", (const(1, dtype), Call("maximum", (count, const(1, dtype)))))
