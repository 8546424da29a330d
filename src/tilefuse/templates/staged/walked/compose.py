"""Pipelined walks between two products as kernel IR.

    for each tile of rows:     scores of the last turn | maximum, powers
      for each turn before:    start its scores, and the products of the turn behind it | wait for scores | maximum, powers
                               wait for products | rescale
      products of the first turn | factors known only now, results

The last turn comes first: it alone reaches over the end of the walked axis, and next to it are those that a mask cuts. Where the axis is in
parts, a block takes one part of a tile at a time, and the last block of a tile combines them (`split/combine.py`).
"""
from __future__ import annotations

from collections.abc import Set
from functools import partial

from tilefuse.domain.tile import TileProgram
from tilefuse.ir.affine import Affine, axis, number
from tilefuse.ir.dtype import F32
from tilefuse.ir.scalar import Bound, walk
from tilefuse.kernel.ir import Comment, Declare, IfValue, Kernel, Reg, Stmt
from tilefuse.kernel.pipeline import (
    WARPGROUP,
    WARPGROUP_ROWS,
    Consume,
    InTurn,
    Pipeline,
    ReleaseSlots,
    WarpgroupProduct,
    WarpgroupWait,
)
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.staged.kernel_ends import finished_kernel, prefetch_settled
from tilefuse.templates.staged.online.ends import INFINITY
from tilefuse.templates.staged.online.fragments import clear, fragment, place_of_thread
from tilefuse.templates.staged.online.lazy import LazyTop, is_lazy
from tilefuse.templates.staged.online.products import OnlineForm
from tilefuse.templates.staged.walked.bias import LOADING_THREADS
from tilefuse.templates.staged.walked.draws import DrawnBits, drawn_bits
from tilefuse.templates.staged.walked.limit import without_mask
from tilefuse.templates.staged.walked.loaded import load_bias
from tilefuse.templates.staged.walked.once import keep_lead_values
from tilefuse.templates.staged.walked.order import each_tile, take_tile
from tilefuse.templates.staged.walked.plan import KEYS, LEFT, VALUES, WalkPlan, consumer_registers
from tilefuse.templates.staged.walked.results import TileEnd, settle_stores
from tilefuse.templates.staged.walked.split.combine import PartsOfTile
from tilefuse.templates.staged.walked.state import WalkState
from tilefuse.templates.staged.walked.turn import DeferredTop, PipelinedTurn, round_powers
from tilefuse.templates.staged.walked.turn_range import emit_turns, range_of_part, turn_number, turns_of_part


def compose_walk(program: TileProgram, device: DeviceSpec, settled: Set[str] = frozenset()) -> Kernel:
    """The kernel IR of a pipelined walk. settled: as of `KernelTemplate.compose`."""
    plan = program.internal
    assert isinstance(plan, WalkPlan)
    choice = plan.choice
    w = WalkState(program, plan, device)
    prefetch_settled(w, settled, program.launch.num_blocks, program.launch.num_threads)
    w.frame.extents |= {"block": choice.blocks, "thread": choice.consumer_threads}
    with w.nested() as roles:
        each_tile(w, lambda item, turn: _Tile(w, *_tile_and_part(w, item), turn).emit())
        settle_stores(w)
    pipeline = Pipeline(w.rings, tuple(roles.statements), choice.consumer_threads, *consumer_registers(plan, device))
    buffers = (*w.buffers.values(), *w.slots.values(), *w.stages.values(), *(w.sums_of_parts.buffers if w.sums_of_parts else ()))
    body = (*w.frame.statements, pipeline)
    return finished_kernel(program, device, buffers, body, plan.shared_bytes, f"{plan.shared_bytes} bytes of shared memory", 1,
                           maps=tuple(w.maps.values()))


def _tile_and_part(w: WalkState, item: Affine) -> tuple[Affine, Affine]:
    """The tile of an item, and the number of its part: neighbouring items are other tiles."""
    plan = w.walk
    if plan.parts == 1:
        return item, number(0)
    return w.let("tile", item % plan.num_tiles, plan.num_tiles), w.let("part", item // plan.num_tiles, plan.parts)


class _Tile:
    """The statements of one tile of rows, or of a part of it.

    turn     number of the tile among those of the block
    of_tile  turns of the tile; turns: those of the part at hand
    """

    def __init__(self, w: WalkState, tile: Affine, part: Affine, turn: Affine) -> None:
        self.w, self.plan, self.tile, self.part = w, w.walk, tile, part
        plan, choice, online = self.plan, self.plan.choice, self.plan.form.online
        take_tile(w, tile)
        self.left_at = w.let("left_at", turn % choice.left_slots, choice.left_slots)
        self.of_tile = self.turns = emit_turns(w, w.first_row)
        self.range = range_of_part(w, self.of_tile, part)
        w.place_of_thread = place_of_thread(w, w.plan)
        self.group = axis("thread") // WARPGROUP if choice.warpgroups > 1 else number(0)
        self.here = fragment(w, w.plan, choice.columns, 1)
        self.product = fragment(w, w.plan, plan.width, 1)
        self.scores, self.powers, self.sums = (Reg(w.fresh(name), dtype) for name, dtype in (
            (f"{online.scores[0].value}_sum", F32), (f"{online.weighted[0].total.value}_held", plan.form.left.operand.dtype),
            (f"{online.weighted[0].value}_so_far", F32)))
        self.lazy: dict[str, LazyTop] = {}
        keep_lead_values(w)

    def emit(self) -> None:
        """The whole tile."""
        w, plan = self.w, self.plan
        self._declare()
        slot = w.produce(plan.form.left, plan.left, w.first_row, number(0))
        left: Consume[Stmt] = Consume(LEFT, slot, (), held_slots=1)
        if plan.choice.parts == 1:
            self._walk(left)
            TileEnd(w, self.lazy).store(self.group, self.here, [self.product])
            return
        w.emit(left)
        with w.when([Bound(self.range.count, 1, plan.most_turns + 1)]):
            self.turns = turns_of_part(w, self.of_tile, self.range)
            self._walk(None)
        w.emit(ReleaseSlots(LEFT))
        parts = PartsOfTile(w, self.here, self.product, self.lazy)
        last = parts.store(self.tile, self.part)
        with w.nested() as finished:
            parts.combine(self.tile)
            TileEnd(w, self.lazy).store(self.group, self.here, [self.product], added=True)
        w.emit(IfValue(last, tuple(finished.statements), uniform=True))

    def _walk(self, left: Consume[Stmt] | None) -> None:
        """All turns. left: waits for the rows' operand; None where they have arrived, and stay behind the last turn."""
        w, plan, online = self.w, self.plan, self.plan.form.online
        w.emit(Comment(f"%{online.scores[0].value}: the last turn"))
        last = self.turns.last if plan.choice.parts == 1 else w.let("last_turn", turn_number(w, self.turns, number(0)), plan.most_turns)
        keys = w.produce(plan.form.keys, plan.keys, last * plan.choice.columns, number(0))
        biases = self._biases(last, online)
        drawn, drawing = self._draw(last)
        w.emit(*(() if left is None else (left,)), Consume(KEYS, keys, (self._score_product(keys), *drawing, WarpgroupWait(0))))
        self._reduce(last, online, biases, drawn)
        round_powers(w, self.scores, self.powers, self.here.size)
        self._turns_before_last()
        w.emit(*(() if left is None else (ReleaseSlots(LEFT),)), Comment(f"%{online.weighted[0].value}: the products of the first turn"))
        first = self.turns.first if self.turns.gap == number(0) else turn_number(w, self.turns, self.turns.count - 1)
        values = w.produce(plan.form.values, plan.values, number(0), first * plan.choice.columns)
        w.emit(Consume(VALUES, values, (self._value_product(values), WarpgroupWait(0))))

    def _turns_before_last(self) -> None:
        """From the last but one on: turns that a mask cuts, those that it cuts nothing of, and those that it cuts again."""
        w, plan, turns, limit = self.w, self.plan, self.turns, self.plan.form.limit
        if plan.most_turns == 1:
            return
        bare = plan.form.online if limit is None else without_mask(plan.form.online, limit)
        form = plan.form.online
        parts = ((number(1), turns.cut, form), (turns.cut, turns.whole, bare), (turns.whole, turns.count, form))
        for start, stop, form in parts:
            if start != stop:
                with w.loop("n", stop, start=start, extent=plan.most_turns) as n:
                    self._turn(n, form, start == turns.whole)

    def _declare(self) -> None:
        w, online = self.w, self.plan.form.online
        w.carried.clear()
        for t in online.totals:
            w.carried[t.value] = Reg(w.fresh(f"{t.value}_so_far"), t.dtype)
            clear(w, w.carried[t.value], self.here.rows, -INFINITY if t.monoid == "max" else 0.0)
        w.carried[online.weighted[0].value] = self.sums
        clear(w, self.sums, self.product.size)
        self.lazy = {t.value: DeferredTop(w, t, self.here.rows) for t in online.tops if is_lazy(w, t)}
        w.emit(Declare(self.scores.name, self.scores.dtype, self.here.size), Declare(self.powers.name, self.powers.dtype, self.here.size))

    def _turn(self, n: Affine, form: OnlineForm, behind_whole: bool) -> None:
        """The n-th turn from the end, its scores beside the products of the turn behind it. behind_whole: a gap may be between them."""
        w, plan = self.w, self.plan
        has_gap = behind_whole and self.turns.gap != number(0)
        turn = w.let("turn", turn_number(w, self.turns, n) if has_gap else self.turns.last - n, plan.most_turns - 1)
        behind = (turn_number(w, self.turns, n - 1) if has_gap else turn + 1) * plan.choice.columns
        keys = w.produce(plan.form.keys, plan.keys, turn * plan.choice.columns, number(0))
        values = w.produce(plan.form.values, plan.values, number(0), behind)
        biases = self._biases(turn, form)
        started = (self._score_product(keys), self._value_product(values))
        products = (InTurn(started),) if plan.choice.in_turn else started
        drawn, drawing = self._draw(turn)
        w.emit(Consume(KEYS, keys, (Consume(VALUES, values, (*products, *drawing, WarpgroupWait(1)), held_slots=1),)))
        finished = (WarpgroupWait(0), ReleaseSlots(VALUES))
        waits = len(self.lazy) < len(form.tops)
        if waits:
            # Maxima that are not followed lazily rescale the products at once.
            w.emit(*finished)
        lazy = self._reduce(turn, form, biases, drawn)
        if not waits:
            w.emit(*finished)
        for top in lazy.values():
            top.rescale([self.product])
        round_powers(w, self.scores, self.powers, self.here.size)

    def _biases(self, turn: Affine, form: OnlineForm) -> dict[str, str]:
        """Fillings of the rings of biases for a turn, of those that its elements read: the names of their slots."""
        w = self.w
        first, slots = turn * self.plan.choice.columns, dict[str, str]()
        for bias, tile in w.biases.values():
            if not any(bias.read in walk(t.body) for t in form.tops):
                continue
            if self.plan.is_loaded(tile):
                slots[tile.key] = w.fill(tile, partial(load_bias, w, bias, tile, first_column=first), LOADING_THREADS)
            else:
                slots[tile.key] = w.produce(bias.of, tile, w.first_row, first)
        return slots

    def _draw(self, turn: Affine) -> tuple[DrawnBits, tuple[Stmt, ...]]:
        """The words of a turn's random numbers, declared, and the statements that draw them."""
        w, draws = self.w, self.plan.draws
        drawn = drawn_bits(w, self.here, draws)
        with w.nested() as inner:
            drawn.draw(turn * self.plan.choice.columns)
        return drawn, tuple(inner.statements)

    def _reduce(self, turn: Affine, form: OnlineForm, biases: dict[str, str], drawn: DrawnBits) -> dict[str, DeferredTop]:
        """Maxima, sums and powers of a turn; the maxima with factors that wait."""
        w = self.w
        lazy = {t.value: self._top(t.value).of(t) for t in form.tops if t.value in self.lazy}
        with w.taking(form):
            PipelinedTurn(w, turn, number(0), self.here, [self.product], [], dict(lazy)).of_scores(self.scores, biases, drawn)
        return lazy

    def _top(self, value: str) -> DeferredTop:
        top = self.lazy[value]
        assert isinstance(top, DeferredTop)
        return top

    # -- products ---------------------------------------------------------------------------------------------------------

    def _score_product(self, slot: str) -> WarpgroupProduct:
        left, right, slots = self.plan.left, self.plan.keys, self.w.slots
        first = self.group * (WARPGROUP_ROWS * (left.width if left.operand.inner_is_contiguous else left.depth))
        return WarpgroupProduct(
            self.scores.name, slots[left.key].name, self.left_at * left.elements + first, left.panel_lines * left.width,
            not left.operand.inner_is_contiguous, slots[right.key].name, axis(slot) * right.elements, right.panel_lines * right.width,
            right.operand.inner_is_contiguous, WARPGROUP_ROWS, self.plan.choice.columns, self.plan.inner, term=number(0))

    def _value_product(self, slot: str) -> WarpgroupProduct:
        right = self.plan.values
        return WarpgroupProduct(
            self.sums.name, self.powers.name, number(0), 0, False, self.w.slots[right.key].name, axis(slot) * right.elements,
            right.panel_lines * right.width, right.operand.inner_is_contiguous, WARPGROUP_ROWS, self.plan.width, self.plan.choice.columns,
            left_registers=True)


