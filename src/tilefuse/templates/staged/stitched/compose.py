"""Stitched kernels: the stages of a `StitchPlan` as kernel IR, one after the other with barriers between (block composition).

A stage loops over its own tile. Its statements go into the state of `values.py`, which says where an element lies; the parts are in
`points.py`, `reduce.py`, `rows.py` and `product.py`. Source: FusionStitching 5.3, algorithm 3.
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from math import prod

from tilefuse.domain.regions import inside, num_elements
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.affine import Affine, axis
from tilefuse.ir.scalar import Bound, Lookup, walk
from tilefuse.kernel.asynchronous import AsyncGroup
from tilefuse.kernel.ir import Barrier, Comment, Kernel, Stmt
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.staged.kernel_ends import finished_kernel
from tilefuse.templates.staged.stitched.ahead import begin
from tilefuse.templates.staged.stitched.copies import meet
from tilefuse.templates.staged.stitched.items import Items
from tilefuse.templates.staged.stitched.loads_ahead import loads_ahead
from tilefuse.templates.staged.stitched.plan import Piece, Stage, StitchPlan
from tilefuse.templates.staged.stitched.points import at_point, point_of_item
from tilefuse.templates.staged.stitched.products.stage import emit_product
from tilefuse.templates.staged.stitched.record import Stitched
from tilefuse.templates.staged.stitched.reduce import emit_reductions
from tilefuse.templates.staged.stitched.rows import emit_rows
from tilefuse.templates.staged.stitched.stage_work import spare_registers
from tilefuse.templates.staged.stitched.values import StitchValues


class _Stages:
    """The stages of one stitched kernel, written into `w` one after the other."""

    def __init__(self, w: StitchValues) -> None:
        self.w = w

    def run(self) -> None:
        """All stages of one block: once, or for each of its tiles."""
        tiles = prod(count for _, count in self.w.plan.grid)
        if not self.w.groups:
            self._at_tile(axis("block"))
            self.stages(begin(self.w, self.w.plan.stages, tiles, self._stage))
            return
        self.stages(begin(self.w, [s for s in self.w.plan.stages if self.w.plan.is_once(s)], self.w.groups, self._stage))
        turns = -(-tiles // self.w.groups)
        ahead = [s for s in self.w.plan.stages if self.w.plan.is_ahead(s)]
        self.w.walks = not ahead
        if ahead:
            self._at_tile(axis("block"))
            self.stages(ahead)
        with self.w.loop("turn", turns) as turn:
            tile = self.w.let("tile", turn * self.w.groups + axis("block"), turns * self.w.groups)
            with self.w.when([Bound(tile, 0, tiles)]):
                self.w.narrow_to(tile, tiles)
                if ahead:
                    self._copy_next(ahead, turn, turns, tiles)
                self._at_tile(tile)
                self.stages([s for s in self.w.plan.stages if not self.w.plan.is_once(s) and s not in ahead])
                if not ahead:
                    self.w.emit(Barrier())

    def _copy_next(self, stages: Sequence[Stage], turn: Affine, turns: int, tiles: int) -> None:
        """Waits until this turn's tile has arrived in every thread, then starts the asynchronous copies of the next tile."""
        meet(self.w, always=True)
        following = self.w.let("following", (turn + 1) * self.w.groups + axis("block"), (turns + 1) * self.w.groups)
        with self.w.when([Bound(following, 0, tiles)]):
            self.w.narrow_to(following, tiles)
            self._at_tile(following)
            self.w.buffer_number = self.w.let("next_buffer", (turn + 1) % 2, 2)
            self.stages(stages)
        self.w.copying = False
        self.w.buffer_number = self.w.let("buffer", turn % 2, 2)

    def _at_tile(self, tile: Affine) -> None:
        """The grid's axes from the number of the tile."""
        step = tile
        for name, count in reversed(self.w.plan.grid):
            self.w.env[name] = self.w.let(name, step % count if name != self.w.plan.grid[0][0] else step, count)
            step = step // count

    def stages(self, stages: Iterable[Stage]) -> None:
        """The loops of stages, in order."""
        for stage in stages:
            self._stage(stage)

    def _stage(self, stage: Stage) -> None:
        """The loop of one stage, and the barrier before it."""
        with self.w.nested() as barrier:
            if stage.barrier:
                meet(self.w)
        with self.w.nested() as inner:
            self.w.readable = self._tiles(stage)
            match stage.kind:
                case "reduce":
                    emit_reductions(self.w, stage)
                case "rows":
                    emit_rows(self.w, stage)
                case "product":
                    emit_product(self.w, stage)
                case _:
                    self._map(stage)
        ahead, rest = self._parted(stage, inner.statements)
        # Copies to shared memory are on the barrier's path: they start before the addresses of other loads are computed.
        started = sum(isinstance(s, AsyncGroup) for s in barrier.statements[:1])
        self.w.emit(*barrier.statements[:started], *ahead, *barrier.statements[started:], Comment(self._told(stage)), *rest)

    def _parted(self, stage: Stage, body: list[Stmt]) -> tuple[list[Stmt], list[Stmt]]:
        """The loads of a product's stage that come before its barrier, and its other statements."""
        if stage.kind != "product" or not self.w.unroll:
            return [], body
        inputs = {b.name: b for b in self.w.buffers.values() if b.role == "in"}
        blocks = self.w.groups or prod(count for _, count in self.w.plan.grid)
        return loads_ahead(body, inputs, spare_registers(self.w.plan, self.w.threads, blocks, self.w.device), self.w.fresh)

    def _tiles(self, stage: Stage) -> dict[str, list[Piece]]:
        """The tiles that a stage reads, by value."""
        pieces_by_value: dict[str, list[Piece]] = {}
        keys = dict.fromkeys(s for k in (*stage.pieces, *stage.products) for s in self.w.plan.sources[k] if s not in stage.pieces)
        for piece in (self.w.plan.pieces[k] for k in keys):
            if piece.stored:
                pieces_by_value.setdefault(piece.value, []).append(piece)
        return pieces_by_value

    def _told(self, stage: Stage) -> str:
        names = ", ".join(f"%{self.w.plan.pieces[k].value}" for k in stage.pieces)
        level = " and ".join(t for t, used in (("shared memory", any(self.w.plan.pieces[k].stored for k in stage.pieces)),
                                               ("global memory", any(self.w.plan.pieces[k].written for k in stage.pieces))) if used)
        products = [self.w.plan.pieces[k].value for k in stage.products if k not in stage.pieces]
        held = f", {', '.join('%' + p for p in products)} in registers" if products else ""
        return f"{names}: {stage.kind}{held} -> {level}"

    def _map(self, stage: Stage) -> None:
        """One loop over the elements of the tile, in vectors along its last dimension."""
        pieces = [self.w.plan.pieces[k] for k in stage.pieces]
        first = pieces[0]
        width = self._width(pieces)
        last = first.region[-1].extent if first.region else 1
        items = num_elements(first.region) // width
        # A lookup waits twice, for the number and then for the row: several items of a thread wait together.
        nodes = [self.w.nodes[p.value] for p in pieces if p.value in self.w.nodes]
        looks_up = any(isinstance(e, Lookup) for n in nodes if n.body is not None for e in walk(n.body))
        with Items(self.w, items, 1, looks_up) as item:
            point = point_of_item(self.w, first, item, width, last // width)
            at_point(self.w, pieces, point, width)

    def _width(self, pieces: list[Piece]) -> int:
        """Elements a thread handles together: 16 bytes of the widest value, fewer where that leaves threads without work.

        Copies are not computed: few large ones are under way as well as many small ones.
        """
        region = pieces[0].region
        if not region:
            return 1
        widest = max(p.dtype.itemsize for p in pieces)
        extent = region[-1].extent
        if any(inside((region[-1],), (axis("x"),), (self.w.graph.type_of(pieces[0].value).shape[-1],), dict(self.w.plan.grid))):
            return 1
        width = max(16 // widest, 1)
        busy = 0 if pieces[0].kind == "copy" and not self.w.walks else self.w.threads // 2
        while width > 1 and (extent % width or num_elements(region) // width < busy):
            width //= 2
        return width

    def finish(self) -> Kernel:
        """The kernel. One block a multiprocessor at least: without a bound the assembler gives kernels that start early few registers.

        Blocks that copy ahead are bound to as many as were counted: the addresses of two tiles took a fourth of the registers more.
        """
        resident = self.w.groups // self.w.device.num_multiprocessors if any(map(self.w.plan.is_ahead, self.w.plan.stages)) else 1
        buffers = (*self.w.buffers.values(), *self.w.shared.values(), *self.w.exchanges.values())
        allocated = self.w.plan.shared_bytes
        return finished_kernel(self.w.program, self.w.device, buffers, self.w.frame.statements, allocated,
                               f"shared memory: {allocated} bytes allocated, {self.w.plan.requested_bytes} requested", max(resident, 1))


def compose_stitch(program: TileProgram, device: DeviceSpec, taken: Iterable[str] = (), settled: Set[str] = frozenset()) -> Kernel:
    """The kernel IR of a stitched tile program. `taken`: names that its buffers must not have; `settled`: see `compose`."""
    choice, plan = program.choice, program.internal
    assert isinstance(choice, Stitched) and isinstance(plan, StitchPlan)
    stages = _Stages(StitchValues(program, plan, choice, device, taken, settled))
    stages.run()
    return stages.finish()
