"""Walks between several products as kernel IR.

    for each tile of rows:   operands of its rows
      for each turn:         walked operands | scores | elements | products with elements, on sums that stay in registers
      results

The last turn comes first: it alone reaches over the end of the walked axis. Turns that a mask cuts, and those that it cuts nothing of, have
loops of their own.
"""
from __future__ import annotations

from collections.abc import Set

from tilefuse.domain.tile import TileProgram
from tilefuse.emit.subscripts import kernel_dtype
from tilefuse.ir.affine import Affine, axis, number
from tilefuse.ir.dtype import F32
from tilefuse.ir.scalar import Expr, const
from tilefuse.kernel.ir import Assign, Comment, Declare, If, Kernel, Reg
from tilefuse.kernel.pipeline import WARPGROUP, Consume, Pipeline, ReleaseSlots
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.staged.kernel_ends import finished_kernel, prefetch_settled
from tilefuse.templates.staged.online.fragments import clear, fragment, place_of_thread
from tilefuse.templates.staged.online.products import ROW, WALK, OnlineForm
from tilefuse.templates.staged.recomputed.plan import KEPT, WALKED, BackPlan
from tilefuse.templates.staged.recomputed.powers import axes_in, rows_alone
from tilefuse.templates.staged.recomputed.state import BackState
from tilefuse.templates.staged.recomputed.turn import BackTurn
from tilefuse.templates.staged.walked.order import each_tile, take_tile
from tilefuse.templates.staged.walked.results import TileEnd, settle_stores
from tilefuse.templates.staged.walked.turn_range import emit_turns, turn_number


def compose_back(program: TileProgram, device: DeviceSpec, settled: Set[str] = frozenset()) -> Kernel:
    """The kernel IR of a walk between several products. settled: as of `KernelTemplate.compose`."""
    plan = program.internal
    assert isinstance(plan, BackPlan)
    choice = plan.choice
    w = BackState(program, plan, device)
    prefetch_settled(w, settled, program.launch.num_blocks, program.launch.num_threads)
    w.frame.extents |= {"block": choice.blocks, "thread": choice.consumer_threads}
    with w.nested() as roles:
        each_tile(w, lambda tile, turn: _Tile(w, tile, turn).emit())
        settle_stores(w)
    rings = (w.kept_ring, w.walked_ring)
    registers = choice.registers_of_roles(device.fitted.pipelined.copying_registers, device)
    pipeline = Pipeline(rings, tuple(roles.statements), choice.consumer_threads, *registers)
    buffers = (*w.buffers.values(), *w.slots.values(), *w.vectors.values(), *w.stages.values())
    maps = (*w.maps.values(), *w.vector_maps.values())
    return finished_kernel(program, device, buffers, (*w.frame.statements, pipeline), plan.shared_bytes,
                           f"{plan.shared_bytes} bytes of shared memory", 1, maps=maps)


class _Tile:
    """The statements of one tile of rows. turn: number of the tile among those of the block."""

    def __init__(self, w: BackState, tile: Affine, turn: Affine) -> None:
        self.w, self.plan = w, w.walk
        choice = self.plan.choice
        take_tile(w, tile)
        self.kept_at = w.let("kept_at", turn % choice.kept_slots, choice.kept_slots)
        self.turns = emit_turns(w, w.first_row)
        w.place_of_thread = place_of_thread(w, w.plan)
        self.group = axis("thread") // WARPGROUP if choice.warpgroups > 1 else number(0)
        self.here = fragment(w, w.plan, choice.columns, 1)
        form = self.plan.form
        self.products = [fragment(w, w.plan, self.plan.width(n), 1) for n in range(len(form.online.weighted))]
        operand = form.walked[0].operand.dtype
        self.scores = [Reg(w.fresh(f"{s.value}_sum"), F32) for s in form.online.scores]
        self.lefts = [Reg(w.fresh("element_held"), operand) for _ in form.multiplied]
        self.sums = [Reg(w.fresh(f"{p.value}_so_far"), F32) for p in form.online.weighted]
        self.row_values: dict[Expr, Reg] = {}
        # First element of the segment at hand.
        self.first = number(0)

    def emit(self) -> None:
        """The whole tile."""
        w, plan = self.w, self.plan
        w.carried.clear()
        for p, own, product in zip(plan.form.online.weighted, self.sums, self.products, strict=True):
            w.carried[p.value] = own
            clear(w, own, product.size)
        for t in plan.form.online.totals:
            w.carried[t.value] = Reg(w.fresh(f"{t.value}_so_far"), t.dtype)
            clear(w, w.carried[t.value], self.here.rows)
        w.emit(*(Declare(r.name, r.dtype, self.here.size) for r in (*self.scores, *self.lefts)))
        self._keep_row_values()
        slot = w.fill_kept()
        w.emit(Consume(KEPT, slot, (), held_slots=1))
        with w.loop("segment", plan.segments) as segment:
            self.first = segment * plan.length
            self._all_turns()
        w.emit(ReleaseSlots(KEPT))
        TileEnd(w, {}).store(self.group, self.here, self.products)

    def _keep_row_values(self) -> None:
        """Parts of elements that a row keeps, in registers; 0 in rows beyond the end."""
        w, here = self.w, self.here
        for e in rows_alone(self.plan.form.online, ROW, WALK):
            if ROW not in axes_in(e):
                w.keep(e, w.element(e), "of_lead")
                continue
            with w.nested() as typed, w.at(**{ROW: number(0)}):
                dtype = kernel_dtype(w.element(e))
            del typed
            array = self.row_values[e] = Reg(w.fresh("of_row"), dtype)
            w.emit(Declare(array.name, dtype, here.rows))
            with w.loop("i", here.rows, unroll=w.unroll) as i:
                row = w.simplified(w.first_row + here.row(i))
                target = Reg(array.name, dtype, i)
                with w.at(**{ROW: row}), w.nested() as inner:
                    w.emit(Assign(target, w.element(e)))
                facts = w.beyond(**{ROW: row})
                zero = (Assign(target, const(0, dtype)),)
                w.emit(*([If(facts, tuple(inner.statements), zero)] if facts else inner.statements))

    def _all_turns(self) -> None:
        """From the last turn on: turns that a mask cuts, those that it cuts nothing of, and those that it cuts again. The last one stands
        alone where it reaches over the end."""
        w, plan, turns, form = self.w, self.plan, self.turns, self.plan.form
        alone = plan.length % plan.choice.columns != 0
        if alone or plan.most_turns == 1:
            self._turn(number(0), form.online)
        if plan.most_turns == 1:
            return
        first = number(1 if alone else 0)
        parts = ((first, turns.cut, form.online), (turns.cut, turns.whole, form.whole), (turns.whole, turns.count, form.online))
        for start, stop, of in parts if form.limit is not None else ((first, turns.count, form.whole),):
            if start == stop:
                continue
            with w.loop("n", stop, start=start, extent=plan.most_turns) as n:
                self._turn(n, of, start == turns.whole)

    def _turn(self, n: Affine, form: OnlineForm, behind_whole: bool = False) -> None:
        """The n-th turn from the end. behind_whole: a gap may be ahead of it."""
        w, plan = self.w, self.plan
        w.emit(Comment(f"%{', %'.join(p.value for p in form.weighted)}: one turn"))
        # Behind the last turn, none reaches over the end.
        later = plan.length % plan.choice.columns != 0 and n != number(0)
        number_ = turn_number(w, self.turns, n) if behind_whole else self.turns.last - n
        turn = w.let("turn", number_, plan.most_turns - int(later))
        start = self.first + turn * plan.choice.columns
        slot = w.fill_walked(start)
        with w.nested() as inner, w.taking(form):
            BackTurn(w, form, self.here, self.group, self.kept_at, slot, start, self.row_values, self.scores, self.lefts, self.sums).emit()
        w.emit(Consume(WALKED, slot, tuple(inner.statements)))
