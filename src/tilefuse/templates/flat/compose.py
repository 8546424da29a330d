"""The flat walk: maps, gathers and windows in memory order, and scatters to data-dependent places.

    steps a whole number of rows apart        what all of them share (a channel's weight, and what is computed of weights alone) is
                                              loaded and computed once a thread, before the first step
"""
from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from tilefuse.domain.access import is_vector
from tilefuse.domain.resolved import Domain, Instance, Resolved, Touch, Use, resolved_walk
from tilefuse.domain.windows import windows_fit
from tilefuse.emit.kernel_writer import Held, KernelWriter, hoist_without_lane, reachable
from tilefuse.emit.vector_operands import vector_operands
from tilefuse.emit.window_lanes import windows_in_lanes
from tilefuse.ir.affine import Affine, axis, number, substitute
from tilefuse.ir.dtype import BOOL, I64
from tilefuse.ir.scalar import Bound, Call, Const, Index, checked_extent, const
from tilefuse.kernel.ir import Assign, Atomic, Comment, Declare, IfValue, KExpr, Load, Reg, Stmt, Store
from tilefuse.templates.flat.record import Pointwise
from tilefuse.templates.flat.side_by_side import inside, num_vectors, places


def compose_pointwise(writer: KernelWriter, choice: Pointwise) -> None:
    """One flat walk: block -> step -> thread -> vector lane.

        position = ((block * steps + step) * threads + thread) * vector + lane

    Where warps stand across two axes, the position runs through tiles of them (`templates/flat/side_by_side.py`).
    """
    e, domain = writer.emitter, writer.domain
    width = choice.vector
    vectors = num_vectors(choice, domain.extents)
    tail = prod(domain.extents[a] for a in choice.order) % width if choice.side == 1 else 0
    e.hoist([key for _, key, _ in domain.outputs], frozenset())
    blocks = max(writer.program.launch.num_blocks, 1)
    e.frame.extents["block"] = blocks
    e.frame.extents["thread"] = choice.threads
    walk = _FlatWalk(writer, choice, blocks)
    if vectors:
        first = axis("block") * (choice.threads * choice.steps) + axis("thread")
        walk.compose(_Stretch(first, vectors, choice.steps, width, choice.unrolled, 0))
    if tail:
        e.emit(Comment(f"the last {tail} elements do not fill a vector"))
        with e.when([Bound(axis("block"), blocks - 1, blocks)]):
            if choice.threads >= tail:
                walk.compose(_Stretch(axis("thread"), tail, 1, 1, False, vectors * width))
            else:
                with e.loop("rest", tail) as r:
                    walk.compose(_Stretch(r, tail, 1, 1, False, vectors * width))


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Part of the walk: `count` vectors of `lanes` elements from element `base` on, of which a thread takes `steps` from `first` on."""

    first: Affine
    count: int
    steps: int
    lanes: int
    unrolled: bool
    base: int


class _FlatWalk:
    """Facts that the stretches of one kernel share."""

    def __init__(self, writer: KernelWriter, choice: Pointwise, blocks: int) -> None:
        self.writer, self.choice, self.blocks = writer, choice, blocks
        self.lane = writer.emitter.fresh("lane_")
        self.keys = [key for _, key, _ in writer.domain.outputs]
        self.has_windows = bool(choice.order) and choice.vector > 1 and windows_fit(writer.domain, choice.order[-1], choice.vector)

    def compose(self, stretch: _Stretch) -> None:
        """Load, compute and write the vectors of a stretch."""
        writer, e, lane = self.writer, self.writer.emitter, self.lane
        scatter = writer.domain.scatter
        bodies: list[Resolved] = [i.body for i in reachable(writer.domain, self.keys, set())]
        if scatter is not None:
            bodies += [scatter[1], *(t for t, _, _ in scatter[2])]
        vectorised = self.vectors(stretch, bodies)
        once = self.shared_by_steps(stretch, vectorised)
        vectorised = [t for t in vectorised if all(t != h.touch for h in once)]
        if stretch.unrolled:
            # All steps' loads stand before the first use, so that they are under way together.
            held = [writer.held(t, stretch.steps, stretch.lanes, True) for t in vectorised]
            with e.loop("step", stretch.steps, unroll=True) as s, self.vector_of(stretch, s) as env:
                for h in held:
                    writer.fill(h, s, env, lane)
        with e.loop("step", stretch.steps, unroll=stretch.unrolled) as s, self.vector_of(stretch, s) as env:
            if not stretch.unrolled:
                held = [writer.held(t, 1, stretch.lanes, True, step=True) for t in vectorised]
                for h in held:
                    writer.fill(h, number(0), env, lane)
            hoist_without_lane(writer, bodies, env, lane, stretch.lanes, [*once, *held])
            operands = [*held, *once, *vector_operands(writer, bodies, env, lane, stretch.lanes)]
            if scatter is not None:
                _scatter_lanes(writer, stretch.lanes, operands, s, env, lane)
                return
            if self.has_windows and not once:
                windows_in_lanes(writer, env, lane, stretch.lanes)
            writer.write_lanes(writer.domain.outputs, stretch.lanes, operands, s, env, lane)

    def env_at(self, stretch: _Stretch, vector: Affine, extents: dict[str, int]) -> dict[str, Affine]:
        """Subscripts of the lanes of a vector by axis."""
        return places(self.choice, vector * stretch.lanes + axis(self.lane) + stretch.base, self.writer.domain.extents, extents)

    @contextlib.contextmanager
    def vector_of(self, stretch: _Stretch, step: Affine) -> Iterator[dict[str, Affine]]:
        """Inside stands what a step does with its vector, if the stretch has one there; gives the subscripts of its lanes."""
        e, threads = self.writer.emitter, self.choice.threads
        at = e.let("vector", stretch.first + step * threads, max(self.blocks * threads * stretch.steps, 1))
        with e.when([Bound(at, 0, stretch.count)]):
            e.narrow_to(at, stretch.count)
            env = self.env_at(stretch, at, e.extents | {self.lane: stretch.lanes})
            with e.when(inside(self.choice, env, self.lane, self.writer.domain.extents)):
                yield env

    def vectors(self, stretch: _Stretch, bodies: Sequence[Resolved]) -> list[Touch]:
        """Places whose lanes lie side by side in memory, aligned: one load a vector."""
        if stretch.lanes == 1:
            return []
        vector, lane = "vector_index_", self.lane
        extents = self.writer.emitter.extents | {lane: stretch.lanes, vector: max(stretch.count, 1)}
        env = self.env_at(stretch, axis(vector), extents)
        # A load inside the loop of a reduction by one thread stays there.
        loops = self.writer.domain.serial_loops
        offsets = {t: substitute(t.offset, env, extents) for t in self.writer.touches(bodies) if not t.offset.axes() & loops}
        return [t for t, offset in offsets.items() if offset.axes() & {lane, vector} and is_vector(offset, lane, stretch.lanes)]

    def shared_by_steps(self, stretch: _Stretch, vectorised: Sequence[Touch]) -> list[Held]:
        """Vectors that lie at one place for all steps of a thread, loaded; instances of nothing else are computed, into `lane_values`."""
        writer, e, domain, lane = self.writer, self.writer.emitter, self.writer.domain, self.lane
        if not stretch.unrolled or stretch.steps == 1 or self.choice.side > 1 or domain.scatter is not None or domain.serial_loops:
            return []
        step = "step_"
        extents = e.extents | {lane: stretch.lanes, step: stretch.steps}
        moving = self.env_at(stretch, stretch.first + axis(step) * self.choice.threads, extents)
        once = [writer.held(t, 1, stretch.lanes, True, step=True) for t in vectorised
                if step not in substitute(t.offset, moving, extents).axes()]
        if not once:
            return []
        computed = _made_of(domain, {h.touch for h in once}, self.keys)
        arrays = {i.key: Reg(e.fresh(i.node.name + "_v"), e.dtype(i.body)) for i in computed}
        e.emit(*(Declare(r.name, r.dtype, stretch.lanes) for r in arrays.values()))
        with e.when([Bound(stretch.first, 0, stretch.count)]):
            env = self.env_at(stretch, stretch.first, e.extents | {lane: stretch.lanes})
            for h in once:
                writer.fill(h, number(0), env, lane)
            if computed:
                with writer.lanes(stretch.lanes, env, lane) as v:
                    writer.bind(once, number(0), v)
                    for i in computed:
                        e.emit(Assign(Reg(arrays[i.key].name, arrays[i.key].dtype, v), e.value(i.key)))
        writer.lane_values = arrays
        return once


def _made_of(domain: Domain, touches: set[Touch], keys: Sequence[int]) -> list[Instance]:
    """Instances that are computed of `touches` alone, and that others, or results, are computed of."""
    constant: set[int] = set()
    for i in domain.instances:
        leaves = list(resolved_walk(i.body))
        if all(x in touches if isinstance(x, Touch) else x.key in constant if isinstance(x, Use) else isinstance(x, (Call, Const))
               for x in leaves):
            constant.add(i.key)
    needed = {u for i in reachable(domain, keys, set()) if i.key not in constant for u in i.uses}
    return [i for i in domain.instances if i.key in constant & needed and isinstance(i.body, Call)]


def _scatter_lanes(writer: KernelWriter, width: int, held: list[Held], chunk: Affine, lane_env: dict[str, Affine], lane: str) -> None:
    """Writes each lane's value to its data-dependent place, where that lies inside the result."""
    e = writer.emitter
    assert writer.domain.scatter is not None
    name, body, target = writer.domain.scatter
    monoid = writer.program.graph.node_by_name[name].detail
    buffer = e.buffers[name]
    with writer.lanes(width, lane_env, lane) as v:
        writer.bind(held, chunk, v)
        offset = Affine()
        dynamic = []
        inside: KExpr | None = None
        for n, (subscript, extent, stride) in enumerate(target):
            if isinstance(subscript, Call) and checked_extent(subscript) is not None:
                value: KExpr = e.in_range(subscript, False, name, n, kept=True)
            else:
                value = e.expression(subscript)
            if isinstance(value, Index):
                offset = offset + value.affine * stride
                if e.always(Bound(value.affine, 0, extent)):
                    continue
            elif not (isinstance(value, (Reg, Load, Const)) and value.dtype == I64):
                value = Call("i64", (value,))
            held_value = e.register(value, I64, "target")
            ok: KExpr = Call("logical_and", (Call("ge", (held_value, const(0, I64))), Call("lt", (held_value, const(extent, I64)))))
            inside = ok if inside is None else Call("logical_and", (inside, ok))
            if not isinstance(value, Index):
                dynamic.append((held_value, stride))
        value = e.register(e.expression(body), buffer.dtype, name + "_x")
        if monoid == "set":
            statement: Stmt = Store(buffer.name, offset, value, tuple(dynamic))
        else:
            statement = Atomic(monoid, buffer.name, offset, value, tuple(dynamic))
        if inside is None:
            e.emit(statement)
        else:
            e.emit(IfValue(e.register(inside, BOOL, "inside"), (statement,)))
