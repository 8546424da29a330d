"""One exchange of a tile's row parts between the blocks of a cluster.

    shared     send       lane n of a row's four to blocks n, n + 4, ...: its block's part, counted on the receiver's transaction barrier
               wait       until the parts of all blocks have arrived for the warpgroup
    global     store      the first of a row's four lanes: its block's part, in the memory of a scattered cluster
               meet       the warpgroups of the same number of all blocks
    both       combine    in the order of the blocks
"""
from __future__ import annotations

from dataclasses import replace

from tilefuse.ir.affine import Affine, axis, number
from tilefuse.ir.dtype import DType
from tilefuse.ir.ops import dtype_of
from tilefuse.ir.scalar import Bound, Call, const
from tilefuse.kernel.ir import Assign, Barrier, ClusterStore, Comment, Declare, KExpr, Reg, Store, VectorLoad
from tilefuse.kernel.pipeline import WARPGROUP
from tilefuse.target.memory import ACCESS_BYTES
from tilefuse.templates.staged.pipelined.exchanges import Exchange, Part, is_by_squares, reduction_parts
from tilefuse.templates.staged.pipelined.rows.tile import QUAD, RowTile
from tilefuse.templates.staged.pipelined.state import ProductState


def exchange_parts(w: ProductState, tile: RowTile, number_of: int, parts: dict[str, list[Reg]]) -> None:
    """The parts of stage `number_of` become those of whole rows, in every block of the cluster."""
    e, stage = w.plan.exchanges[number_of], w.form.reduced.stages[number_of]
    copy, phase = (w.turn % e.copies, w.turn // e.copies % 2) if e.copies > 1 else (number(0), w.turn % 2)
    slot_of_group = w.let("copy", tile.group * e.copies + copy, e.num_slots)
    w.emit(Comment(f"{', '.join('%' + r for r in stage.reductions)}: between the {e.blocks} blocks of a cluster"))
    named = {p.name: (p, array) for r in stage.reductions for p, array in zip(reduction_parts(w.graph, stage, r), parts[r], strict=True)}
    if e.in_memory:
        _meet(w, tile, number_of, [named[p.name] for p in e.parts], slot_of_group)
    else:
        phase = w.let("phase", phase, 2)
        signal = w.simplified(slot_of_group + w.plan.first_signal + number_of * e.num_slots)
        _send(w, tile, number_of, [named[p.name] for p in e.parts], slot_of_group, signal)
        w.emit(Barrier("cluster", signal, phase, e.phase_bytes, team=WARPGROUP))
    for slot in range(w.plan.choice.rows_of_thread):
        first = _first(w, tile, e, slot, slot_of_group)
        for reduction in stage.reductions:
            own = [(p, replace(named[p.name][1], index=number(slot))) for p in reduction_parts(w.graph, stage, reduction)]
            if is_by_squares(stage, reduction):
                total = own[0][0] if reduction not in stage.totals else named[stage.totals[reduction]][0]
                _receive_squares(w, number_of, total, own, first)
            else:
                _receive(w, number_of, reduction, own, first)


def _first(w: ProductState, tile: RowTile, e: Exchange, slot: int, copy: Affine) -> Affine:
    """Where the parts of the thread's row number `slot` begin among the slots of a part. copy: number of the exchange's slot."""
    of_cluster = axis("cluster") * e.num_slots + copy if e.in_memory else copy
    return w.simplified((of_cluster * e.rows + tile.row_of_group(slot)) * e.blocks)


def _meet(w: ProductState, tile: RowTile, number_of: int, parts: list[tuple[Part, Reg]], copy: Affine) -> None:
    """Stores the block's parts in global memory, and waits for those of the other blocks of a scattered cluster."""
    e, buffers, earlier = w.plan.exchanges[number_of], w.exchanged[number_of], w.plan.exchanges[:number_of]
    assert w.met is not None
    with w.when([Bound(tile.pair, 0, 1)]):
        for slot in range(w.plan.choice.rows_of_thread):
            place = w.simplified(_first(w, tile, e, slot, copy) + axis("rank"))
            w.emit(*(Store(buffers[part.name].name, place, _as(replace(array, index=number(slot)), part.sent)) for part, array in parts))
    counter = w.simplified(axis("cluster") * w.plan.num_meetings + copy + sum(other.num_slots for other in earlier))
    w.emit(Barrier("cluster", team=WARPGROUP, counter=w.met.name, index=counter))


def _send(w: ProductState, tile: RowTile, number_of: int, parts: list[tuple[Part, Reg]], copy: Affine, signal: Affine) -> None:
    e, buffers = w.plan.exchanges[number_of], w.exchanged[number_of]
    for first in range(0, e.blocks, QUAD):
        receiver = w.simplified(tile.pair + first)
        with w.when([Bound(receiver, 0, e.blocks)]):
            for slot in range(w.plan.choice.rows_of_thread):
                place = w.simplified(_first(w, tile, e, slot, copy) + axis("rank"))
                for part, array in parts:
                    value = _as(replace(array, index=number(slot)), part.sent)
                    w.emit(ClusterStore(buffers[part.name].name, place, receiver, value, signal))


def _loaded(w: ProductState, number_of: int, part: Part, first: Affine) -> list[KExpr]:
    """The part of each block for one row, in registers."""
    e, buffer = w.plan.exchanges[number_of], w.exchanged[number_of][part.name]
    width = max(n for n in range(1, ACCESS_BYTES // part.sent.itemsize + 1) if e.blocks % n == 0 and ACCESS_BYTES % n == 0)
    array = w.fresh(f"{part.name}_parts")
    w.emit(Declare(array, part.sent, e.blocks))
    w.emit(*(VectorLoad(array, number(n), buffer.name, w.simplified(first + n), width) for n in range(0, e.blocks, width)))
    return [_as(Reg(array, part.sent, number(n)), part.dtype) for n in range(e.blocks)]


def _receive(w: ProductState, number_of: int, reduction: str, own: list[tuple[Part, Reg]], first: Affine) -> None:
    """The parts of all blocks, combined in their order."""
    node = w.graph.node_by_name[reduction]
    assert node.body is not None
    dtype = dtype_of(node.body, lambda v: w.graph.type_of(v).dtype)
    loaded = [_loaded(w, number_of, part, first) for part, _ in own]
    w.emit(*(Assign(into, values[0]) for (_, into), values in zip(own, loaded, strict=True)))
    for values in list(zip(*loaded, strict=True))[1:]:
        others = [w.register(v, into.dtype, f"{into.name}_other") for v, (_, into) in zip(values, own, strict=True)]
        w.combine(node.detail, [into for _, into in own], others, dtype)


def _receive_squares(w: ProductState, number_of: int, total: Part, own: list[tuple[Part, Reg]], first: Affine) -> None:
    """Squared deviations of whole rows from those of the blocks' parts and their sums."""
    columns, lines, blocks = w.plan.choice.columns, w.form.columns, w.plan.exchanges[number_of].blocks
    counts = [min(columns, lines - n * columns) for n in range(blocks)]
    squares, into = own[-1]
    dtype = squares.dtype
    totals, parts = _loaded(w, number_of, total, first), _loaded(w, number_of, squares, first)
    whole: KExpr = totals[0]
    for t in totals[1:]:
        whole = w.register(Call("add", (whole, t)), dtype, total.name)
    mean = w.register(_times(whole, 1.0 / lines, dtype), dtype, f"{squares.name}_mean")
    if len(own) > 1:
        w.emit(Assign(own[0][1], whole))
    w.emit(Assign(into, const(0, dtype)))
    for t, q, count in zip(totals, parts, counts, strict=True):
        if count <= 0:
            continue
        apart = w.register(Call("sub", (_times(t, 1.0 / count, dtype), mean)), dtype, f"{squares.name}_apart")
        between = Call("fma", (_times(apart, count, dtype), apart, q))
        w.emit(Assign(into, Call("add", (into, between))))


def _times(e: KExpr, factor: float, dtype: DType) -> KExpr:
    return Call("mul", (e, const(factor, dtype)))


def _as(e: Reg, dtype: DType) -> KExpr:
    return e if e.dtype == dtype else Call(dtype.name, (e,))
