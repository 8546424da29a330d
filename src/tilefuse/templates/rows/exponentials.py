"""Maximum of a row and the sum of exponentials relative to it, in one pass: how a thread's elements and the threads' results join.

    few elements a thread    maximum of all of them -> of the warp -> one exponential an element -> sums of the warp: nothing is rescaled
    many                     vector by vector: the sum so far is rescaled once a vector, and once more when the lanes' maxima meet
    warps of a block         maximum of their maxima, then every warp's sum rescaled once
"""
from __future__ import annotations

from tilefuse.domain.resolved import Instance
from tilefuse.ir.affine import Affine
from tilefuse.ir.dtype import F32, DType
from tilefuse.ir.scalar import Call, const
from tilefuse.kernel.ir import Assign, Declare, KExpr, Load, Reg, Shuffle
from tilefuse.templates.rows.walk import RowState


def at_once(state: RowState) -> bool:
    """Whether a thread's elements of a row are few and on chip, so that their maximum can be known before the first exponential."""
    c = state.choice
    return c.in_registers and not state.tail and 1 < c.chunks * c.vector <= state.writer.device.fitted.kept.thread_bytes // F32.itemsize


def declare_all(state: RowState, instance: Instance) -> Reg:
    """An array for all of the thread's elements: -inf, of which every exponential is 0, where the row has none."""
    e, c = state.writer.emitter, state.choice
    dtype = e.dtype(instance.body)
    values = Reg(e.fresh(instance.node.name + "_x"), dtype)
    e.emit(Declare(values.name, dtype, c.chunks * c.vector))
    if c.chunks * c.threads * c.cluster != state.vectors:
        with e.loop("v", c.chunks * c.vector, unroll=state.writer.unroll) as v:
            e.emit(Assign(Reg(values.name, dtype, v), _lowest(dtype)))
    return values


def merge_all(state: RowState, instance: Instance, parts: list[Reg], values: Reg) -> None:
    """All of the thread's elements into (maximum of the warp, sum of exponentials)."""
    e, c = state.writer.emitter, state.choice
    dtype, (top, total) = values.dtype, parts
    with e.loop("v", c.chunks * c.vector, unroll=state.writer.unroll) as v:
        e.emit(Assign(top, Call("maximum", (top, Reg(values.name, dtype, v)))))
    _shuffle_maximum(state, top, min(c.threads, 32))
    state.warp_tops.add(instance.key)
    shift = _shift(state, top)
    with e.lanes(c.chunks * c.vector, state.writer.unroll) as v:
        e.emit(Assign(total, Call("add", (total, _exponential(state, Reg(values.name, dtype, v), shift, dtype)))))


def merge_vector(state: RowState, parts: list[Reg], values: Reg, width: int) -> None:
    """One vector into (maximum, sum of exponentials): its own maximum first, then one rescaling and an exponential an element."""
    e = state.writer.emitter
    dtype = values.dtype
    top = Reg(e.fresh(parts[0].name + "_top"), dtype)
    e.emit(Declare(top.name, dtype, None, parts[0]))
    with e.loop("v", width, unroll=state.writer.unroll) as v:
        e.emit(Assign(top, Call("maximum", (top, Reg(values.name, dtype, v)))))
    shift = _shift(state, top)
    e.emit(Assign(parts[1], Call("mul", (parts[1], _exponential(state, parts[0], shift, dtype)))), Assign(parts[0], top))
    with e.lanes(width, state.writer.unroll) as v:
        term = _exponential(state, Reg(values.name, dtype, v), shift, dtype)
        e.emit(Assign(parts[1], Call("add", (parts[1], term))))


def shuffle_exponentials(state: RowState, instance: Instance, parts: list[Reg], width: int) -> None:
    """The lanes' maximum first, so that each lane rescales its sum once: pairwise, every step would take two exponentials.

    With 256 elements a row these were more than half of all exponentials.
    """
    e = state.writer.emitter
    top, total = parts
    if width < 2:
        return
    if instance.key in state.warp_tops:
        state.warp_tops.discard(instance.key)
    else:
        own = Reg(e.fresh(top.name + "_own"), top.dtype)
        e.emit(Declare(own.name, own.dtype, None, top))
        _shuffle_maximum(state, top, width)
        e.emit(Assign(total, Call("mul", (total, _exponential(state, own, _shift(state, top), top.dtype)))))
    for step in _steps(width):
        e.emit(Assign(total, Call("add", (total, of_other_lane(state, total, step, width)))))


def gather_exponentials(state: RowState, parts: list[Reg], buffers: list[str], base: Affine, slots: int) -> None:
    """Every thread reads all slots: their maximum, then each slot's sum rescaled once."""
    e, unroll = state.writer.emitter, state.writer.unroll
    (top, total), (tops, totals) = parts, buffers
    e.emit(Assign(top, Load(tops, top.dtype, base)))
    with e.loop("slot", slots, start=1, unroll=unroll) as slot:
        e.emit(Assign(top, Call("maximum", (top, Load(tops, top.dtype, base + slot)))))
    shift = _shift(state, top)
    e.emit(Assign(total, const(0, total.dtype)))
    with e.loop("slot", slots, unroll=unroll) as slot:
        other = e.register(Load(tops, top.dtype, base + slot), top.dtype, top.name + "_other")
        scaled = Call("mul", (Load(totals, total.dtype, base + slot), _exponential(state, other, shift, top.dtype)))
        e.emit(Assign(total, Call("add", (total, scaled))))


def of_other_lane(state: RowState, p: Reg, step: int, width: int) -> Reg:
    """Value of `p` in the lane whose number differs in bit `step`."""
    e = state.writer.emitter
    o = Reg(e.fresh(p.name + "_other"), p.dtype)
    e.emit(Declare(o.name, o.dtype), Shuffle(o, p, "xor", step, min(width, 32)))
    return o


def _steps(width: int) -> list[int]:
    return [width >> n for n in range(1, width.bit_length())]


def _shuffle_maximum(state: RowState, top: Reg, width: int) -> None:
    e = state.writer.emitter
    for step in _steps(width):
        e.emit(Assign(top, Call("maximum", (top, of_other_lane(state, top, step, width)))))


def _lowest(dtype: DType) -> KExpr:
    return const(float("-inf"), dtype)


def _shift(state: RowState, top: Reg) -> KExpr:
    """Number subtracted from every element: the maximum; 0 where all are -inf, whose differences would be NaN."""
    e = state.writer.emitter
    chosen: KExpr = Call("select", (Call("eq", (top, _lowest(top.dtype))), const(0, top.dtype), top))
    return e.register(chosen, top.dtype, "shift")


def _exponential(state: RowState, x: KExpr, shift: KExpr, dtype: DType) -> KExpr:
    """exp(x - shift) for x <= shift, as a term of a sum that is at least 1."""
    fn = "exp_of_difference" if dtype == F32 and not state.writer.narrow else "exp"
    return Call(fn, (Call("sub", (x, shift)),))
