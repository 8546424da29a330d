"""The end of a streamed product: sums of warps, then of the blocks of a cluster, meet in shared memory; results element by element.

    sums of a warp -> shared memory | one thread adds those of all warps -> shared memory | one adds those of all blocks: results
"""
from __future__ import annotations

from tilefuse.domain.contraction import COLUMN, INNER, ROW
from tilefuse.ir.affine import Affine, axis, number
from tilefuse.ir.dtype import F32
from tilefuse.ir.scalar import Bound, Call
from tilefuse.kernel.ir import Assign, Barrier, ClusterLoad, Comment, Declare, KExpr, Load, Reg, Shuffle, Store
from tilefuse.target.capabilities import WARP
from tilefuse.templates.staged.streamed.form import Stream
from tilefuse.templates.staged.streamed.state import StreamState


def store_results(w: StreamState, totals: dict[tuple[str, int], Reg]) -> None:
    """Every result's elements of the block's columns."""
    for stream in w.form.streams:
        put = _put_instructions if w.form.unit == "mma" else _put_threads
        put(w, stream, totals[stream.key])
    w.emit(Barrier())
    elements, threads, cluster = w.form.rows * w.plan.columns, w.plan.choice.num_threads, w.plan.choice.cluster
    if cluster > 1:
        with w.loop("turn", -(-elements // threads)) as turn:
            place = w.let("place", turn * threads + axis("thread"), -(-elements // threads) * threads)
            with w.when(w.beyond(place, elements)):
                w.narrow_to(place, elements)
                for stream in w.form.streams:
                    w.emit(Store(w.block_sums[stream.key].name, place, _of_warps(w, stream, place)))
        w.emit(Barrier("cluster"))
    w.emit(Comment(f"{', '.join('%' + r for r in w.form.graph.results)}: from the sums"))
    everyone = threads * cluster
    turns = -(-elements // everyone)
    with w.loop("turn", turns) as turn:
        first = turn * threads + axis("thread") if cluster == 1 else (turn * cluster + axis("rank")) * threads + axis("thread")
        place = w.let("place", first, turns * everyone)
        # Cluster accesses are the same in all threads, also where there are more threads than elements.
        read = w.let("element", place % elements, elements) if turns * everyone > elements else place
        for stream in w.form.streams:
            w.sums[stream.key] = _of_blocks(w, stream, read) if cluster > 1 else w.register(
                _of_warps(w, stream, read), F32, stream.product.name)
        row, column = w.let("row", read // w.plan.columns, w.form.rows), w.env["first_column"] + read % w.plan.columns
        with w.when((*w.beyond(place, elements), *w.beyond(column, w.form.columns))):
            _store_element(w, row, w.let("column", column, w.form.columns))
    if cluster > 1:
        # A block's shared memory is there until the others have read its sums.
        w.emit(Barrier("cluster"))


def _store_element(w: StreamState, row: Affine, column: Affine) -> None:
    w.row = row
    with w.at(**{ROW: row, COLUMN: column}):
        w.place = {a: w.env[a] for a in w.form.extents}
        for name in w.form.graph.results:
            w.emit(Store(w.buffers[name].name, w.result_offset(name), w.element(name)))


def _of_warps(w: StreamState, stream: Stream, place: Affine) -> KExpr:
    """The sum of all warps that share the inner axis, at a place of the block."""
    buffer, elements = w.warp_sums[stream.key], w.form.rows * w.plan.columns
    total: KExpr = Load(buffer.name, F32, w.simplified(place))
    for n in range(1, w.plan.choice.along):
        total = Call("add", (total, Load(buffer.name, F32, w.simplified(place + n * elements))))
    return total


def _of_blocks(w: StreamState, stream: Stream, place: Affine) -> KExpr:
    """The sum of all blocks of the cluster."""
    buffer, parts = w.block_sums[stream.key], []
    for rank in range(w.plan.choice.cluster):
        part = Reg(w.fresh(f"{stream.product.name}_of"), F32)
        w.emit(Declare(part.name, F32), ClusterLoad(part, buffer.name, w.simplified(place), number(rank)))
        parts.append(part)
    total: KExpr = parts[0]
    for part in parts[1:]:
        total = Call("add", (total, part))
    return w.register(total, F32, stream.product.name)


# -- sums of a warp ------------------------------------------------------------------------------------------------------------


def _sum_place(w: StreamState, row: Affine, column: Affine) -> Affine:
    """Place of a warp's sum in shared memory."""
    plan = w.plan
    own = w.env["along"] * plan.form.rows + row
    return w.simplified(own * plan.columns + w.env["across"] * plan.lanes.columns + column)


def _put_instructions(w: StreamState, stream: Stream, total: Reg) -> None:
    """A lane's sums: element q of a tile is column 8 * (q // 2) on, row 2 * four + q % 2. Source: as of `MatrixProduct`."""
    plan, lanes, buffer = w.plan, w.plan.lanes, w.warp_sums[stream.key]
    for b in range(plan.tiles_n):
        for q in range(2):
            row = w.simplified(w.env["four"] * 2 + (8 * b + q))
            with w.when(w.beyond(row, w.form.rows)):
                for a in range(lanes.tiles):
                    for half in range(2):
                        at = _sum_place(w, row, lanes.column_of(a, half, w.env["eight"]))
                        w.emit(Store(buffer.name, at, Reg(total.name, F32, number((a * plan.tiles_n + b) * 4 + 2 * half + q))))


def _put_threads(w: StreamState, stream: Stream, total: Reg) -> None:
    """Sums of threads: those of all lanes of a warp meet by shuffles where lanes share the inner axis."""
    rows, lanes, buffer = w.form.rows, w.plan.lanes, w.warp_sums[stream.key]
    lane = axis("thread") % WARP
    for n in range(w.plan.sums // rows):
        for row in range(rows):
            own = Reg(total.name, F32, number(n * rows + row))
            if stream.along != INNER:
                column = lane * lanes.elements + (n // lanes.elements * WARP * lanes.elements + n % lanes.elements)
                w.emit(Store(buffer.name, _sum_place(w, number(row), column), own))
                continue
            amount = WARP // 2
            while amount:
                other = Reg(w.fresh("other"), F32)
                w.emit(Declare(other.name, F32), Shuffle(other, own, "xor", amount), Assign(own, Call("add", (own, other))))
                amount //= 2
            with w.when((Bound(lane, (n * rows + row) % WARP, (n * rows + row) % WARP + 1),)):
                w.emit(Store(buffer.name, _sum_place(w, number(row), number(n)), own))
