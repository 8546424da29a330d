"""Kernels that walk an axis between products (`templates/staged/online/products.py`), as kernel IR.

    for each turn:  fetch the right operands' tiles | scores | maximum, rescale what is summed up | powers, sums | += powers * weights
    at the end:     sums of a row's lanes, factors known only now, results

Each lane keeps the running maxima, sums and products of its rows; a row's lanes meet by shuffles.
"""
from __future__ import annotations

from tilefuse.domain.tile import TileProgram
from tilefuse.ir.affine import Affine, axis, number
from tilefuse.ir.scalar import Bound
from tilefuse.kernel.asynchronous import AsyncGroup, AsyncWait
from tilefuse.kernel.ir import Barrier, Kernel, Reg
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.staged.kernel_ends import finished_kernel
from tilefuse.templates.staged.online.ends import INFINITY, WalkEnd
from tilefuse.templates.staged.online.fragments import clear, fragment, hold_left, place_of_thread
from tilefuse.templates.staged.online.lazy import LazyTop, is_lazy
from tilefuse.templates.staged.online.operands import fetch
from tilefuse.templates.staged.online.plan import OnlinePlan
from tilefuse.templates.staged.online.products import LEAD
from tilefuse.templates.staged.online.state import OnlineState
from tilefuse.templates.staged.online.turn import Turn


class _Walk:
    """The statements of one block. lazy: the maxima that are followed lazily, by value."""

    def __init__(self, w: OnlineState) -> None:
        self.w = w
        self.lazy: dict[str, LazyTop] = {}

    def run(self) -> None:
        """One block: rows of one lead place."""
        plan, form = self.w.plan, self.w.form
        tiles = -(-form.num_rows // plan.choice.rows)
        row_tile = self.w.let("row_tile", axis("block") % tiles, tiles) if tiles > 1 else number(0)
        self.w.env[LEAD] = self.w.let("lead", axis("block") // tiles, form.num_leads) if form.num_leads > 1 else number(0)
        self.w.first_row = row_tile * plan.choice.rows
        self.w.place_of_thread = place_of_thread(self.w, plan)
        scores = fragment(self.w, plan, plan.choice.columns, 1)
        products = [fragment(self.w, plan, plan.width(n), plan.vector) for n in range(len(form.weighted))]
        held = [hold_left(self.w, n, scores) if plan.unit == "mma" else "" for n in range(len(form.scores))]
        for tile in plan.tiles:
            if tile.role == "left":
                fetch(self.w, tile, self.w.first_row, number(0))
        for t in form.totals:
            self.w.carried[t.value] = Reg(self.w.fresh(f"{t.value}_so_far"), t.dtype)
            clear(self.w, self.w.carried[t.value], scores.rows, -INFINITY if t.monoid == "max" else 0.0)
        for w, here in zip(form.weighted, products, strict=True):
            self.w.carried[w.value] = Reg(self.w.fresh(f"{w.value}_so_far"), form.sum_dtype)
            clear(self.w, self.w.carried[w.value], here.size)
        self.lazy = {t.value: LazyTop(self.w, t, scores.rows) for t in form.tops if is_lazy(self.w, t)}
        turns = -(-form.length // plan.choice.columns)
        ahead = plan.choice.stages > 1 and turns > 1
        if ahead:
            self._fetch_turn(number(0), number(0), True)
        with self.w.loop("turn", turns) as turn:
            stage = turn % plan.choice.stages if ahead else number(0)
            if ahead:
                # This turn's tiles have come, and nobody reads those of the last turn any more.
                self.w.emit(AsyncWait(), Barrier())
                with self.w.when([Bound(turn + 1, 0, turns)]):
                    following = self.w.let("following", turn + 1, turns)
                    self._fetch_turn(following, following % plan.choice.stages, True)
            else:
                if turns > 1:
                    self.w.emit(Barrier())
                self._fetch_turn(turn, stage, False)
                self.w.emit(Barrier())
            Turn(self.w, turn, self.w.let("stage", stage, plan.choice.stages), scores, products, held, self.lazy).emit()
        WalkEnd(self.w, self.lazy).emit(scores, products)

    def _fetch_turn(self, turn: Affine, stage: Affine, ahead: bool) -> None:
        """The right operands' tiles of one turn."""
        for tile in self.w.plan.tiles:
            if tile.role in ("right", "weight"):
                fetch(self.w, tile, turn * self.w.plan.choice.columns, stage, ahead)
        if ahead:
            self.w.emit(AsyncGroup())

    def finish(self) -> Kernel:
        """The kernel."""
        buffers = (*self.w.buffers.values(), *self.w.shared.values())
        allocated = self.w.plan.shared_bytes
        return finished_kernel(self.w.program, self.w.device, buffers, self.w.frame.statements, allocated,
                               f"shared memory: {allocated} bytes allocated", self.w.plan.choice.resident)


def compose_online(program: TileProgram, device: DeviceSpec) -> Kernel:
    """The kernel IR of a tile program that walks an axis."""
    plan = program.internal
    assert isinstance(plan, OnlinePlan)
    kernel = _Walk(OnlineState(program, plan, device))
    kernel.run()
    return kernel.finish()
