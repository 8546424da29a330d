"""Stitched kernels: the stages of a `StitchPlan` as kernel IR, one after the other with barriers between (block composition).

A stage loops over its own tile; what it reads comes from where `stitch_values.py` finds it. Rows are in `stitch_rows.py`, products in
`stitch_product.py`. Source: FusionStitching 5.3, algorithm 3.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from math import prod

from tilefuse.domain.access import is_vector
from tilefuse.domain.online import KERNEL_MONOIDS
from tilefuse.domain.regions import Span, inside, num_elements
from tilefuse.domain.tile import TileProgram
from tilefuse.emit.vectors import vector_parts
from tilefuse.ir.affine import Affine, axis, number, substitute
from tilefuse.ir.dtype import DType
from tilefuse.ir.graph import Node
from tilefuse.ir.ops import dtype_of
from tilefuse.ir.scalar import Bound, Index, const
from tilefuse.kernel.ir import (
    Assign,
    Barrier,
    Comment,
    Declare,
    If,
    Kernel,
    KExpr,
    Load,
    Reg,
    Shuffle,
    Stmt,
    Store,
    VectorLoad,
    VectorStore,
)
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.staged.record import Stitched
from tilefuse.templates.staged.stitch_ahead import begin
from tilefuse.templates.staged.stitch_copies import copied_async, meet
from tilefuse.templates.staged.stitch_finish import finished_kernel
from tilefuse.templates.staged.stitch_items import Items
from tilefuse.templates.staged.stitch_plan import Piece, Stage, StitchPlan
from tilefuse.templates.staged.stitch_product import emit_product
from tilefuse.templates.staged.stitch_rows import emit_rows
from tilefuse.templates.staged.stitch_values import Path, Point, StitchValues


class StitchWriter(StitchValues):
    """The statements of one stitched kernel."""

    # -- stages -----------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """All stages of one block: once, or for each of its tiles."""
        tiles = prod(count for _, count in self.plan.grid)
        if not self.groups:
            self._at_tile(axis("block"))
            self.stages(begin(self, self.plan.stages, tiles))
            return
        self.stages(begin(self, [s for s in self.plan.stages if self.plan.is_once(s)], self.groups))
        turns = -(-tiles // self.groups)
        ahead = [s for s in self.plan.stages if self.plan.is_ahead(s)]
        self.walks = not ahead
        if ahead:
            self._at_tile(axis("block"))
            self.stages(ahead)
        with self.loop("turn", turns) as turn:
            tile = self.let("tile", turn * self.groups + axis("block"), turns * self.groups)
            with self.when([Bound(tile, 0, tiles)]):
                self.narrow_to(tile, tiles)
                if ahead:
                    self._copy_next(ahead, turn, turns, tiles)
                self._at_tile(tile)
                self.stages([s for s in self.plan.stages if not self.plan.is_once(s) and s not in ahead])
                if not ahead:
                    self.emit(Barrier())

    def _copy_next(self, stages: Sequence[Stage], turn: Affine, turns: int, tiles: int) -> None:
        """Waits for this turn's tile, which nobody then waits for the others with, and starts the copies of the next one."""
        meet(self, always=True)
        following = self.let("following", (turn + 1) * self.groups + axis("block"), (turns + 1) * self.groups)
        with self.when([Bound(following, 0, tiles)]):
            self.narrow_to(following, tiles)
            self._at_tile(following)
            self.buffer_number = self.let("next_buffer", (turn + 1) % 2, 2)
            self.stages(stages)
        self.copying = False
        self.buffer_number = self.let("buffer", turn % 2, 2)

    def _at_tile(self, tile: Affine) -> None:
        """The grid's axes from the number of the tile."""
        step = tile
        for name, count in reversed(self.plan.grid):
            self.env[name] = self.let(name, step % count if name != self.plan.grid[0][0] else step, count)
            step = step // count

    def stages(self, stages: Iterable[Stage]) -> None:
        """The loops of stages, in order."""
        for stage in stages:
            if stage.barrier:
                meet(self)
            self.emit(Comment(self._told(stage)))
            with self.nested() as inner:
                self.readable = self._tiles(stage)
                match stage.kind:
                    case "reduce":
                        self._reduce(stage)
                    case "rows":
                        emit_rows(self, stage)
                    case "product":
                        emit_product(self, stage)
                    case _:
                        self._map(stage)
            self.emit(*inner.statements)

    def _tiles(self, stage: Stage) -> dict[str, list[Piece]]:
        """The tiles that a stage reads, by value."""
        found: dict[str, list[Piece]] = {}
        keys = dict.fromkeys(s for k in (*stage.pieces, *stage.products) for s in self.plan.sources[k] if s not in stage.pieces)
        for piece in (self.plan.pieces[k] for k in keys):
            if piece.stored:
                found.setdefault(piece.value, []).append(piece)
        return found

    def _told(self, stage: Stage) -> str:
        names = ", ".join(f"%{self.plan.pieces[k].value}" for k in stage.pieces)
        level = " and ".join(t for t, used in (("shared memory", any(self.plan.pieces[k].stored for k in stage.pieces)),
                                               ("global memory", any(self.plan.pieces[k].written for k in stage.pieces))) if used)
        products = [self.plan.pieces[k].value for k in stage.products if k not in stage.pieces]
        held = f", {', '.join('%' + p for p in products)} in registers" if products else ""
        return f"{names}: {stage.kind}{held} -> {level}"

    def _map(self, stage: Stage) -> None:
        """One loop over the elements of the tile, in vectors along its last dimension."""
        pieces = [self.plan.pieces[k] for k in stage.pieces]
        first = pieces[0]
        width = self._width(pieces)
        last = first.region[-1].extent if first.region else 1
        items = num_elements(first.region) // width
        with self.items(items, 1) as item:
            point = self.point(first, item, width, last // width)
            self.at_point(pieces, point, width)

    def _width(self, pieces: list[Piece]) -> int:
        """Elements a thread handles together: 16 bytes of the widest value, fewer where that leaves threads without work.

        Copies are not computed: few large ones are under way as well as many small ones.
        """
        region = pieces[0].region
        if not region:
            return 1
        widest = max(p.dtype.itemsize for p in pieces)
        extent = region[-1].extent
        if any(inside((region[-1],), (axis("x"),), (self.graph.type_of(pieces[0].value).shape[-1],), dict(self.plan.grid))):
            return 1
        width = max(16 // widest, 1)
        busy = 0 if pieces[0].kind == "copy" and not self.walks else self.threads // 2
        while width > 1 and (extent % width or num_elements(region) // width < busy):
            width //= 2
        return width

    def items(self, count: int, lanes: int) -> Items:
        """A loop in which every thread gets its share of `count` items (see `Items`)."""
        return Items(self, count, lanes)

    def point(self, piece: Piece, item: Affine, width: int, vectors: int) -> tuple[Affine, ...]:
        """Coordinates of an item: the last one counts vectors of `width`."""
        if not piece.region:
            return ()
        counts = [s.extent for s in piece.region[:-1]] + [vectors]
        coordinates: list[Affine] = []
        rest = item
        for n in reversed(range(len(counts))):
            here = rest % counts[n] if n else rest
            name = "x" if n == len(counts) - 1 else f"i{n}"
            coordinates.append(self.let(name, self.simplified(here), counts[n]) if counts[n] > 1 else number(0))
            rest = rest // counts[n]
        coordinates.reverse()
        coordinates[-1] = coordinates[-1] * width
        return tuple(coordinates)

    def at_point(self, pieces: list[Piece], local: Point, width: int) -> None:
        """Computes `width` neighbouring elements of every piece and stores them where they belong."""
        region = pieces[0].region
        if width > 1 and self._straddles(pieces[0], width):
            made, place = self.before_lane, self.keep_at
            for v in range(width):
                self.before_lane = None if made is None else lambda u, v=v: made(u + v)
                self.keep_at = None if place is None else lambda u, v=v: place(u + v)
                self.at_point(pieces, (*local[:-1], local[-1] + v), 1)
            self.before_lane, self.keep_at = made, place
            return
        start = tuple(self.index(s.offset) + x for s, x in zip(region, local, strict=True))
        facts = inside(region, start, self.graph.type_of(pieces[0].value).shape, dict(self.plan.grid))
        needed = tuple(b for b in facts if not self.always(b))
        with self.nested() as inner:
            if pieces[0].kind != "copy" or not copied_async(self, pieces[0], local, width):
                self._compute(pieces, local, width)
        if not needed:
            self.emit(*inner.statements)
            return
        with self.nested() as other:
            for p in pieces:
                if p.stored:
                    for v in range(width):
                        at = tuple(x + (v if n == len(local) - 1 else 0) for n, x in enumerate(start))
                        self.emit(Store(self.shared[p.key].name, self.tile_offset(p, at), const(0, p.dtype)))
                self.keep(p, [const(0, p.dtype)] * width)
        self.emit(If(needed, tuple(inner.statements), tuple(other.statements)))

    def keep(self, p: Piece, values: list[KExpr], at: Callable[[Affine], Affine] | None = None) -> None:
        """Neighbouring elements of a piece into its register array, if it stays in one: at `at(v)`, or where `keep_at` says."""
        place = at or self.keep_at
        if p.key not in self.held or place is None:
            return
        for v, value in enumerate(values):
            self.emit(Assign(Reg(self.held[p.key], p.dtype, place(number(v))), value))

    def _straddles(self, p: Piece, width: int) -> bool:
        """Whether some of `width` neighbouring elements may lie beyond the end of the last dimension and others not."""
        span, full = p.region[-1], self.graph.type_of(p.value).shape[-1]
        if not inside((span,), (axis("x"),), (full,), dict(self.plan.grid)):
            return False
        return bool(full % width or span.offset.const % width or any(c % width for _, c in span.offset.terms))

    def _compute(self, pieces: list[Piece], local: Point, width: int) -> None:
        arrays: dict[int, str] = {}
        for p in pieces:
            if width > 1:
                arrays[p.key] = self.fresh(f"{p.value}_out")
                self.emit(Declare(arrays[p.key], p.dtype, width))
        region = pieces[0].region
        lane = self.fresh("v")
        self.frame.extents[lane] = width
        moving = self.start(region, local, axis(lane) if width > 1 else number(0))
        held = self.prefetch(pieces, moving, lane, width) if width > 1 else []
        with self.loop("v", width, unroll=self.unroll) as v:
            at = self.start(region, local, v)
            if self.before_lane is not None:
                self.before_lane(v)
            for value, index, array, dtype in held:
                self.remember(value, tuple(self.simplified(substitute(e, {lane: v})) for e in index), Reg(array, dtype, v))
            for p in pieces:
                made = self._value_of(p, at)
                self.remember(p.value, tuple(self.simplified(e) for e in at), made)
                if width > 1:
                    self.emit(Assign(Reg(arrays[p.key], p.dtype, v), made))
                else:
                    self.store(p, at, made)
                    self.keep(p, [made])
        if width > 1:
            for p in pieces:
                self.store_vector(p, self.start(region, local, number(0)), arrays[p.key], number(0), width)
                self.keep(p, [Reg(arrays[p.key], p.dtype, number(v)) for v in range(width)])

    def start(self, region: tuple[Span, ...], local: Point, v: Affine) -> Point:
        last = len(local) - 1
        return tuple(self.index(s.offset) + x + (v if n == last else 0) for n, (s, x) in enumerate(zip(region, local, strict=True)))

    def _value_of(self, p: Piece, at: Point) -> KExpr:
        if p.kind == "copy":
            place = Load(self.buffers[p.value].name, p.dtype, self.global_offset(p.value, at))
            return self.known(p.value, tuple(self.simplified(e) for e in at)) or self.register(place, p.dtype, p.value + "_at")
        known = self.known(p.value, tuple(self.simplified(e) for e in at))
        if known is not None:
            return known
        return self.register(self.body(self.nodes[p.value], at), p.dtype, p.value)

    def store(self, p: Piece, at: Point, value: KExpr) -> None:
        if p.stored:
            self.emit(Store(self.shared[p.key].name, self.tile_offset(p, at), value))
        if p.written:
            with self.when(self.writers(p)):
                self.emit(Store(self.buffers[p.value].name, self.global_offset(p.value, at), value))

    def writers(self, p: Piece) -> tuple[Bound, ...]:
        """Bounds under which a block writes a result: of blocks that compute the same region, the first."""
        return tuple(Bound(self.index(axis(name)), 0, 1) for name, _ in self.plan.grid if name not in p.grid_axes)

    def store_vector(self, p: Piece, start: Point, array: str, at: Affine, width: int) -> None:
        """`width` elements of a register array to shared and global memory, as vectors where they lie so."""
        lane = self.fresh("v")
        moving = tuple(x + (axis(lane) if n == len(start) - 1 else 0) for n, x in enumerate(start))
        self.frame.extents[lane] = width
        targets: list[tuple[str, Affine, tuple[Bound, ...]]] = []
        if p.stored:
            targets.append((self.shared[p.key].name, self.tile_offset(p, moving), ()))
        if p.written:
            targets.append((self.buffers[p.value].name, self.global_offset(p.value, moving), self.writers(p)))
        for buffer, offset, here in targets:
            with self.when(here):
                for first, part in vector_parts(offset, lane, width, p.dtype):
                    self.emit(VectorStore(buffer, substitute(offset, {lane: number(first)}, self.extents), array, at + first, part))

    def prefetch(self, pieces: list[Piece], moving: Point, lane: str, width: int) -> list[tuple[str, Point, str, DType]]:
        """Loads that are vectors along the lanes, before the loop over the lanes; those that a choice guards stand under its bounds."""
        found: list[tuple[str, Point, str, DType]] = []
        made = {p.value for p in pieces if p.kind != "copy"}
        for (value, index), paths in self._vector_reads(pieces, moving, lane, width).items():
            # A value that several branches read, or lanes that chose differently, is read where it is needed.
            path = () if () in paths else next(iter(paths))
            if value in made or self.known(value, index) is not None or path is None or len(paths) > 1 and path:
                continue
            if value not in self.nodes and value not in self.readable:
                place: tuple[str, Affine, DType] | None = (self.buffers[value].name, self.global_offset(value, index),
                                                           self.buffers[value].dtype)
            else:
                place = self.place(value, index, False)
            if place is not None and is_vector(place[1], lane, width):
                array = self.fresh(f"{value}_v")
                self.emit(Declare(array, place[2], width))
                # Five columns of a thread are no access that a device can make at once.
                parts = vector_parts(place[1], lane, width, place[2]) if width & (width - 1) else [(0, width)]
                loads: tuple[Stmt, ...] = tuple(
                    VectorLoad(array, number(start), place[0], substitute(place[1], {lane: number(start)}, self.extents), part)
                    for start, part in parts)
                for facts, holds in reversed(path):
                    loads = (If(facts, loads),) if holds else (If(facts, (), loads),)
                self.emit(*loads)
                found.append((value, index, array, place[2]))
        return found

    def _vector_reads(self, pieces: list[Piece], moving: Point, lane: str, width: int) -> dict[tuple[str, Point], set[Path | None]]:
        """Reads of the pieces at a point, in order, each with the choices under which they do."""
        found: dict[tuple[str, Point], set[Path | None]] = {}
        for p in pieces:
            body = None if p.kind == "copy" else self.nodes[p.value].body
            reads: Iterable[tuple[str, Point, Path | None]] = [(p.value, moving, ())] if body is None else \
                self.chosen_reads(body, dict(zip(self.nodes[p.value].axes, moving, strict=True)), lane, width)
            for value, index, path in reads:
                found.setdefault((value, tuple(self.simplified(e) for e in index)), set()).add(path)
        return found

    # -- reductions ---------------------------------------------------------------------------------------------------------

    def _reduce(self, stage: Stage) -> None:
        """Rows of the tile by `lanes` lanes each; several reductions of one shape in one loop."""
        pieces = [self.plan.pieces[k] for k in stage.pieces]
        nodes = [self.nodes[p.value] for p in pieces]
        rows, lanes = num_elements(pieces[0].region), stage.lanes
        extents = [e for _, e in nodes[0].over]
        length = prod(extents)
        with self.items(rows, lanes) as row:
            lane = self.lane
            local = self.point(pieces[0], row, 1, pieces[0].region[-1].extent if pieces[0].region else 1)
            at = self.start(pieces[0].region, local, number(0))
            parts = [self.identities(n) for n in nodes]
            needed = tuple(b for b in inside(pieces[0].region, at, nodes[0].type.shape, dict(self.plan.grid)) if not self.always(b))
            # The operand elements of a row beyond the value's end may lie beyond the end of the operands.
            with self.when((*self.active, *needed)), self.loop("c", -(-length // lanes)) as c:
                position = self.let("k", self.simplified(c * lanes + lane), -(-length // lanes) * lanes) if lanes > 1 else c
                with self.when([Bound(position, 0, length)]):
                    self.narrow_to(position, length)
                    for node, part in zip(nodes, parts, strict=True):
                        self.accumulate(node, part, at, position)
            amount = lanes // 2
            while amount:
                for node, part in zip(nodes, parts, strict=True):
                    others = []
                    for reg in part:
                        other = Reg(self.fresh(reg.name + "_other"), reg.dtype)
                        self.emit(Declare(other.name, other.dtype), Shuffle(other, reg, "xor", amount))
                        others.append(other)
                    self.combine(node.detail, part, others, self.body_dtype(node))
                amount //= 2
            first = (*self.active, Bound(lane, 0, 1)) if lanes > 1 else self.active
            with self.when(first):
                with self.nested() as inner:
                    for p, node, part in zip(pieces, nodes, parts, strict=True):
                        made = KERNEL_MONOIDS[node.detail].finish(tuple(part), self.body_dtype(node))
                        self.store(p, at, self.register(made, p.dtype, p.value))
                with self.nested() as other_:
                    for p in pieces:
                        if p.stored and needed:
                            self.emit(Store(self.shared[p.key].name, self.tile_offset(p, at), const(0, p.dtype)))
                self.emit(*([If(needed, tuple(inner.statements), tuple(other_.statements))] if needed else inner.statements))

    def body_dtype(self, node: Node) -> DType:
        return dtype_of(node.body, lambda v: self.graph.type_of(v).dtype)

    def identities(self, node: Node) -> list[Reg]:
        parts = []
        for n, start in enumerate(KERNEL_MONOIDS[node.detail].identity(self.body_dtype(node))):
            name = self.fresh(f"{node.name}_{n}" if n else node.name)
            self.emit(Declare(name, start.dtype, None, start))
            parts.append(Reg(name, start.dtype))
        return parts

    def accumulate(self, node: Node, parts: list[Reg], at: Point, position: Affine) -> None:
        over: dict[str, Affine] = {}
        rest = position
        for n, (name, extent) in reversed(list(enumerate(node.over))):
            over[name] = self.simplified(rest % extent) if n else self.simplified(rest)
            rest = rest // extent
        dtype = self.body_dtype(node)
        value = self.register(self.body(node, at, False, over), dtype, node.name + "_x")
        monoid = KERNEL_MONOIDS[node.detail]
        self.combine(node.detail, parts, monoid.lift(value, Index(position), dtype), dtype)

    # -- the kernel -----------------------------------------------------------------------------------------------------------

    walks = False  # whether what is written is repeated for each of a block's tiles
    copying = False  # whether asynchronous copies were started since the last barrier
    lane: Affine = number(0)
    before_lane: Callable[[Affine], None] | None = None  # makes the sums of a product known at one lane
    keep_at: Callable[[Affine], Affine] | None = None  # where in the arrays `held` an element of the current point goes

    def finish(self) -> Kernel:
        """The kernel. One block a multiprocessor at least: without a bound the assembler gives kernels that start early few registers.

        Blocks that copy ahead are bound to as many as were counted: the addresses of two tiles took a fourth of the registers more.
        """
        resident = self.groups // self.device.num_multiprocessors if any(map(self.plan.is_ahead, self.plan.stages)) else 1
        buffers = (*self.buffers.values(), *self.shared.values())
        allocated = self.plan.shared_bytes
        return finished_kernel(self.program, self.device, buffers, self.frame.statements, allocated,
                               f"{allocated} bytes allocated, {self.plan.requested_bytes} requested", max(resident, 1))


def compose_stitch(program: TileProgram, device: DeviceSpec, taken: Iterable[str] = (), settled: Set[str] = frozenset()) -> Kernel:
    """The kernel IR of a stitched tile program. `taken`: names that its buffers must not have; `settled`: see `compose`."""
    choice, plan = program.choice, program.internal
    assert isinstance(choice, Stitched) and isinstance(plan, StitchPlan)
    writer = StitchWriter(program, plan, choice, device, taken, settled)
    writer.run()
    return writer.finish()
