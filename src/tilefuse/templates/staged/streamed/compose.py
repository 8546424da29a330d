"""A streamed product as kernel IR.

    start copies of weights | wait for the kernel ahead | reductions of rows, rows | steps: next copies, multiply | sums meet | results
"""
from __future__ import annotations

from collections.abc import Set

from tilefuse.domain.contraction import INNER
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.affine import Affine, axis, number
from tilefuse.ir.dtype import F32
from tilefuse.ir.scalar import Bound, Call, const
from tilefuse.kernel.asynchronous import AsyncGroup, AsyncWait, AwaitEarlier, LetNextStart
from tilefuse.kernel.ir import Assign, Barrier, Comment, Declare, Kernel, MatrixProduct, Reg, VectorLoad
from tilefuse.target.capabilities import WARP
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.staged.streamed.form import Stream
from tilefuse.templates.staged.streamed.lanes import THREAD_INNER
from tilefuse.templates.staged.streamed.plan import StreamPlan
from tilefuse.templates.staged.streamed.results import store_results
from tilefuse.templates.staged.streamed.rows import place_rows, reduce_rows
from tilefuse.templates.staged.streamed.state import StreamState
from tilefuse.templates.staged.streamed.weights import fill, past_cache, read


def compose_stream(program: TileProgram, device: DeviceSpec, settled: Set[str] = frozenset()) -> Kernel:
    """The kernel IR of a streamed product. settled: as of `KernelTemplate.compose`."""
    plan = program.internal
    assert isinstance(plan, StreamPlan)
    w = StreamState(program, plan, device)
    choice = plan.choice
    w.frame.extents |= {"block": plan.num_blocks, "thread": choice.num_threads, "rank": choice.cluster}
    first_column, first_inner = _places(w)
    for ahead in range(choice.slots - 1):
        if ahead < plan.steps:
            _fill(w, number(ahead), first_column, first_inner)
        w.emit(AsyncGroup())
    if past_cache(w) and {s.value for s in w.form.streams} <= settled:
        w.emit(AwaitEarlier())
    else:
        # The assembler moves no load across this signal. Loads of rows otherwise stand before the copies, whatever barrier is between, and
        # the copies wait for them (code of CUDA 13.5 for sm_90a).
        w.emit(LetNextStart())
    reduce_rows(w)
    place_rows(w, _rank(w) * plan.share)
    w.emit(Barrier())
    totals = {s.key: Reg(w.fresh(f"{s.product.name}_sum"), F32) for s in w.form.streams}
    for total in totals.values():
        w.emit(Declare(total.name, F32, plan.sums))
        with w.loop("n", plan.sums, unroll=w.unroll) as n:
            w.emit(Assign(Reg(total.name, F32, n), const(0, F32)))
    _steps(w, totals, first_column, first_inner)
    w.emit(AsyncWait(0), Barrier())
    store_results(w, totals)
    header = (f"nodes: {', '.join('%' + n.name for n in program.graph.nodes)}", f"schedule: {program.notation}",
              f"reads {program.bytes_read} bytes, writes {program.bytes_written} bytes",
              f"{plan.steps} steps, {choice.slots} slots, {plan.shared_bytes} bytes of shared memory")
    results = [program.graph.type_of(r).dtype for r in program.graph.results]
    return Kernel(program.name, (*w.buffers.values(), *w.shared_buffers), program.launch, tuple(w.frame.statements), header, min_blocks=1,
                  narrow=all(t.is_float and t.bits <= 16 for t in results))


def _rank(w: StreamState) -> Affine:
    return axis("rank") if w.plan.choice.cluster > 1 else number(0)


def _places(w: StreamState) -> tuple[Affine, Affine]:
    """(first column, first inner element) of a warp; the block's lead axes and first column are named."""
    plan, form, thread = w.plan, w.form, axis("thread")
    choice, lanes = plan.choice, plan.lanes
    tile = w.let("tile", axis("block") // choice.cluster, form.num_leads * plan.column_tiles)
    lead, stride = tile // plan.column_tiles, form.num_leads
    for a in form.leads:
        stride //= form.extents[a]
        w.env[a] = w.let(a, lead // stride % form.extents[a], form.extents[a])
    column_tile = w.let("column_tile", tile % plan.column_tiles, plan.column_tiles)
    w.env["four"] = w.let("four", thread % 4, 4)
    w.env["eight"] = w.let("eight", thread % WARP // 4, WARP // 4)
    w.env["first_column"] = column_tile * plan.columns
    across = w.let("warp_across", thread // WARP % choice.across, choice.across)
    along = w.let("warp_along", thread // (WARP * choice.across), choice.along)
    w.env["across"], w.env["along"] = across, along
    return w.env["first_column"] + across * lanes.columns, _rank(w) * plan.share + along * lanes.depth


def _fill(w: StreamState, step: Affine, first_column: Affine, first_inner: Affine) -> None:
    """Starts the copies of a step."""
    slot = w.simplified(step % w.plan.choice.slots)
    for stream in w.form.streams:
        fill(w, stream, slot, first_inner + step * w.plan.step, first_column)


def _steps(w: StreamState, totals: dict[tuple[str, int], Reg], first_column: Affine, first_inner: Affine) -> None:
    """The main loop: a step's weights are multiplied while the copies of the next ones are under way."""
    plan = w.plan
    slots = plan.choice.slots
    w.emit(Comment(f"{', '.join('%' + n for n, _ in totals)}: {plan.steps} steps of {plan.step} inner elements"))
    with w.loop("step", plan.steps) as step:
        w.emit(AsyncWait(slots - 2))
        if plan.steps >= slots:
            with w.when((Bound(step, 0, plan.steps - slots + 1),)):
                w.narrow_to(step, plan.steps - slots + 1)
                _fill(w, step + (slots - 1), first_column, first_inner)
        w.emit(AsyncGroup())
        slot = w.let("slot", step % slots, slots)
        local = w.simplified(step * plan.step + w.env["along"] * plan.lanes.depth)
        for stream in w.form.streams:
            multiply = _multiply_instructions if w.form.unit == "mma" else _multiply_threads
            multiply(w, stream, totals[stream.key], slot, local, first_inner + step * plan.step, first_column)


def _multiply_instructions(w: StreamState, stream: Stream, total: Reg, slot: Affine, local: Affine, inner: Affine,
                           column: Affine) -> None:
    plan, lanes = w.plan, w.plan.lanes
    array = w.fresh(f"{stream.product.name}_weights")
    w.emit(Declare(array, w.form.left_dtype, lanes.accesses * lanes.elements))
    read(w, stream, slot, inner, column, array,
         [[lanes.register(a, n) for n in range(lanes.elements)] for a in range(lanes.accesses)])
    stride = plan.row_elements if plan.held_rows > 1 else 0
    w.emit(MatrixProduct(total.name, array, number(0), 0, False, w.left.name, local, stride, True, lanes.tiles, plan.tiles_n, lanes.depth,
                         left_registers=True))


def _multiply_threads(w: StreamState, stream: Stream, total: Reg, slot: Affine, local: Affine, inner: Affine, column: Affine) -> None:
    plan, lanes, rows = w.plan, w.plan.lanes, w.form.rows
    array, each = w.fresh(f"{stream.product.name}_weights"), lanes.elements
    w.emit(Declare(array, F32, lanes.accesses * each))
    read(w, stream, slot, inner, column, array, [[a * each + n for n in range(each)] for a in range(lanes.accesses)])
    along = stream.along == INNER
    count = each if along else THREAD_INNER
    start = local + axis("thread") % WARP * each if along else local
    for row in range(rows):
        elements = w.fresh("row_elements")
        place = w.simplified(start + row * plan.row_elements)
        w.emit(Declare(elements, F32, count), VectorLoad(elements, number(0), w.left.name, place, count))
        for access in range(lanes.accesses):
            for n in range(each):
                column_number = access if along else access // THREAD_INNER * each + n
                sum_ = Reg(total.name, F32, number(column_number * rows + row))
                x = Reg(elements, F32, number(n if along else access % THREAD_INNER))
                w.emit(Assign(sum_, Call("fma", (Reg(array, F32, number(access * each + n)), x, sum_))))


