"""Operands of a row kernel that are not rows: row scalars ahead of their use, column vectors once for all rows.

    a mean, a row's weight        persistent kernels ask in turn t for what turn t + 1 uses: its latency hides behind a whole row
    a channel's weight            other kernels ask for it before the row: the elements need it as soon as the reductions are done
    a target, what it points at   other kernels ask together with the row for what its results need: else one thread waits for memory
                                  once or twice more after the reductions
    weights along the row         loaded into registers before the first row, as long as they are few bytes a thread
"""
from __future__ import annotations

from collections.abc import Collection

from tilefuse.domain.access import flat_axes
from tilefuse.domain.resolved import Resolved, Touch, Use, resolved_walk, unguarded_touches
from tilefuse.emit.kernel_writer import Held, reachable
from tilefuse.ir.affine import Affine, axis, substitute
from tilefuse.ir.scalar import Bound, const
from tilefuse.kernel.ir import Assign, Comment, Declare, KExpr, Load, Reg
from tilefuse.templates.rows.modes import AheadQueue, PieceQueue, RowQueue
from tilefuse.templates.rows.walk import RowState, in_row, lane_env_of, vector_at


def column_operands(state: RowState, read: Collection[Touch] | None = None) -> list[Held]:
    """Vectors along the row that all rows share, loaded into registers once. read: those that rows read; None for all."""
    w, c = state.writer, state.choice
    e, domain = w.emitter, w.domain
    reduced = set(domain.reduced)
    probe = lane_env_of(state, axis("vector_probe"), c.vector, extents={"vector_probe": max(state.vectors, 1)})
    operands: list[Touch] = []
    carried = 4 * c.chunks * c.vector * sum(i.carried for i in domain.instances)
    column_bytes = w.device.fitted.kept.column_bytes
    room = 2 * column_bytes if c.groups and not c.carried_rows else column_bytes
    if isinstance(c.mode, RowQueue | PieceQueue | AheadQueue):
        room = max(room, 4 * column_bytes - carried)
    for t in w.touches(i.body for i in domain.instances):
        size = t.dtype.itemsize * c.chunks * c.vector
        of_column = (read is None or t in read) and t.offset.axes() and t.offset.axes() <= reduced and domain.num_kept > 1
        if of_column and size <= room and w.runs(t, c.vector, state.lane, probe):
            operands.append(t)
            room -= size
    held = [w.held(t, c.chunks, c.vector, True) for t in operands]
    if not held:
        return []
    e.emit(Comment(f"{', '.join('%' + t.value for t in operands)}: global memory -> registers"))
    with e.loop("chunk", c.chunks, unroll=w.unroll) as chunk:
        vector = e.let("vector", vector_at(state, chunk), max(c.chunks * c.threads * max(c.cluster, 1), 1))
        with e.when(in_row(state, chunk, vector)):
            e.narrow_to(vector, state.vectors)
            env = lane_env_of(state, vector, c.vector)
            for h in held:
                w.fill(h, chunk, env, state.lane)
    return held


def row_scalars(state: RowState, keys: list[int]) -> None:
    """Asks ahead of the row for its scalars that elements need after the reductions: no thread waits for memory then."""
    domain, e = state.writer.domain, state.writer.emitter
    shared = {n for n, i in enumerate(domain.instances) if i.shared}
    kept = set(domain.kept)
    bodies = [i.body for i in reachable(domain, [k for k in keys if k not in shared], shared)]
    for t in dict.fromkeys(t for body in bodies for t in unguarded_touches(body)):
        if not t.dynamic and t.offset.axes() and t.offset.axes() <= kept:
            e.touch(t, False)


class RowScalars:
    """Values of a row that every turn needs at once: each is read one turn before it is used."""

    def __init__(self, state: RowState) -> None:
        w = state.writer
        kept = set(w.domain.kept)
        self.state = state
        self.touches = [t for t in w.touches(i.body for i in w.domain.instances) if t.offset.axes() and t.offset.axes() <= kept]
        self.coming: list[Reg] = []
        self.kept: list[Reg] = []

    def start(self, row: Affine) -> None:
        """Before the first turn: asks for the scalars of its row."""
        e = self.state.writer.emitter
        if self.touches:
            e.emit(Comment(f"{', '.join('%' + t.value for t in self.touches)}: one value a row, read a turn ahead"))
        for t in self.touches:
            reg = Reg(e.fresh(t.value + "_coming"), t.dtype)
            e.emit(Declare(reg.name, reg.dtype, None, self._load(t, row)))
            self.coming.append(reg)

    def advance(self, kept_env: dict[str, Affine], next_row: Affine) -> None:
        """In a turn: what was asked for becomes this row's; asks for the next row's. Rows that are finished a turn later keep theirs."""
        e = self.state.writer.emitter
        self._bind(self.coming, kept_env)
        e.emit(*(Assign(kept, coming) for kept, coming in zip(self.kept, self.coming)))
        e.emit(*(Assign(coming, self._load(t, next_row)) for t, coming in zip(self.touches, self.coming, strict=True)))

    def keep(self) -> None:
        """Before the first turn, where rows are finished a turn after they were reduced: places for what the finished row needs again."""
        e = self.state.writer.emitter
        self.kept = [Reg(e.fresh(t.value + "_kept"), t.dtype) for t in self.touches]
        e.emit(*(Declare(r.name, r.dtype) for r in self.kept))

    def again(self, kept_env: dict[str, Affine]) -> None:
        """In the turn that finishes a row: its scalars."""
        self._bind(self.kept, kept_env)

    def _bind(self, regs: list[Reg], kept_env: dict[str, Affine]) -> None:
        e = self.state.writer.emitter
        for t, reg in zip(self.touches, regs, strict=True):
            now = Reg(e.fresh(t.value + "_at"), t.dtype)
            e.emit(Declare(now.name, now.dtype, None, reg))
            e.frame.loads[t.value, substitute(t.offset, kept_env, e.extents), ()] = now

    def _load(self, t: Touch, row: Affine) -> KExpr:
        w, c = self.state.writer, self.state.choice
        e = w.emitter
        env = flat_axes(c.kept_order, row, w.domain.extents, e.extents)
        return Load(e.buffers[t.value].name, t.dtype, substitute(t.offset, env, e.extents), (), e.cache.get(t.value, ""))


class ResultOperands:
    """Values that only a row's results need, and no reduction decides which: one thread asks for them while the row is on its way."""

    def __init__(self, state: RowState, keys: list[int]) -> None:
        domain = state.writer.domain
        self.state = state
        shared = {n for n, i in enumerate(domain.instances) if i.shared}
        bodies = [i.body for i in reachable(domain, [k for k in keys if k not in shared], shared)]
        kept = set(domain.kept)
        # An operand that elements need as well is loaded by every thread: one thread's register would hold nothing for the others.
        others = [*shared, *(k for _, k, _ in domain.outputs if k not in keys), *(u for n in shared for u in domain.instances[n].uses)]
        everywhere = {x for i in reachable(domain, others, set()) for x in resolved_walk(i.body) if isinstance(x, Touch)}
        own = (t for body in bodies for t in unguarded_touches(body) if t.offset.axes() <= kept)
        touches = [t for t in dict.fromkeys(own) if t not in everywhere]
        self.plain = [t for t in touches if not t.dynamic and t.offset.axes()]
        # An operand that another one points at is asked for as soon as that one is there, after the row.
        self.pointed = [t for t in touches if t.dynamic and all(_is_of(d, self.plain) for d, _, _ in t.dynamic)]

    def ask(self) -> None:
        """Before the row's loads: operands at places that are known."""
        self._ask(self.plain)

    def follow(self) -> None:
        """After the row's loads have been issued: operands at places that memory says."""
        self._ask(self.pointed)

    def _ask(self, touches: list[Touch]) -> None:
        e, c = self.state.writer.emitter, self.state.choice
        if not touches:
            return
        e.emit(Comment(f"{', '.join('%' + t.value for t in touches)}: what the row's results need besides"))
        arrays = []
        for t in touches:
            reg = Reg(e.fresh(t.value + "_at"), t.dtype)
            e.emit(Declare(reg.name, reg.dtype, None, const(0, reg.dtype)))
            arrays.append(reg)
        bounds = [Bound(self.state.place, 0, 1), *self.state.row_bounds]
        if c.cluster > 1:
            bounds.append(Bound(self.state.rank, 0, 1))
        with e.when(bounds):
            loads = [e.load_of(t) for t in touches]
            e.emit(*(Assign(reg, load) for reg, (_, load) in zip(arrays, loads, strict=True)))
        for reg, (identity, _) in zip(arrays, loads, strict=True):
            e.frame.loads[identity] = reg


def _is_of(subscript: Resolved, plain: list[Touch]) -> bool:
    """Whether a subscript needs nothing but operands in `plain`."""
    return all(x in plain if isinstance(x, Touch) else not isinstance(x, Use) for x in resolved_walk(subscript))
