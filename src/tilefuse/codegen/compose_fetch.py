"""Rows fetched ahead: a persistent grid whose shared memory is a queue of rows on their way from global memory.

    turn t:   wait for stage t mod S  ->  registers  ->  barrier  ->  start the copy of turn t + S into the same stage
              reductions and stores of the row in registers, while S - 1 later rows are in flight
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tilefuse.codegen.compose import Held
from tilefuse.codegen.compose_rows import RowState, in_row
from tilefuse.codegen.kernel import Barrier, BulkCopy, BulkWait, Comment, VectorLoad
from tilefuse.ir.affine import Affine, number, substitute
from tilefuse.ir.scalar import Bound
from tilefuse.schedule.access import flat_axes
from tilefuse.schedule.choose import copies_of, fetched_touches
from tilefuse.schedule.resolved import Touch


def compose_turns(state: RowState, compose_row: Callable[[RowState], None]) -> None:
    """The prologue that fills the queue, and the loop over this group's rows."""
    w, c = state.writer, state.choice
    e, domain = w.emitter, w.domain
    touches = fetched_touches(domain)
    elements = state.share * c.vector
    queues = {t: w.shared(t.value + "_queue", t.dtype, c.stages * elements) for t in touches}
    w.num_barriers = c.stages
    turns = -(-domain.num_kept // c.groups)
    e.emit(Comment(f"{', '.join('%' + t.value for t in touches)}: the first {c.stages} rows start on their way to shared memory"))
    with e.loop("ahead", min(c.stages, turns), unroll=True) as ahead:
        _start_copies(state, queues, ahead, ahead)
    if c.cluster > 1:
        e.emit(Comment("every block of the cluster runs before another writes to its shared memory"), Barrier("cluster"))
    with e.loop("turn", turns) as turn:
        now = _row_of_turn(state, turn)
        held = _take(now, queues, turn)
        e.emit(Barrier("block"))
        with e.when([Bound(turn, 0, turns - c.stages)]):
            _start_copies(state, queues, turn + c.stages, turn % c.stages)
        compose_row(replace(now, held=held))


def _row_of_turn(state: RowState, turn: Affine) -> RowState:
    w, c = state.writer, state.choice
    e, count = w.emitter, w.domain.num_kept
    turns = -(-count // c.groups)
    bounds: list[Bound] = []
    row = e.let("row", state.row + turn * c.groups, turns * c.groups)
    if turns * c.groups != count:
        bounds = [Bound(row, 0, count)]
        row = e.let("row_wrapped", row % count, count)
    kept_env = flat_axes(c.kept_order, row, w.domain.extents, e.extents)
    return replace(state, row=row, row_bounds=bounds, kept_env=kept_env, parity=e.let("parity", turn % 2, 2))


def _start_copies(state: RowState, queues: dict[Touch, str], turn: Affine, stage: Affine) -> None:
    """Starts the copies of one turn's share of a row; a turn past the last row fetches a row again, which nobody stores."""
    w, c = state.writer, state.choice
    e, domain = w.emitter, w.domain
    count = domain.num_kept
    wanted = state.row + turn * c.groups
    turns = -(-count // c.groups)
    row = e.let("next_row", wanted if turns * c.groups == count else wanted % count, count)
    kept_env = flat_axes(c.kept_order, row, domain.extents, e.extents)
    elements = state.share * c.vector
    last = list(queues)[-1]
    for t, queue in queues.items():
        piece = copies_of(t, domain, c.kept_order, c.reduced_order, elements)
        assert piece is not None
        pieces = elements // piece
        with e.loop("piece", pieces) as p:
            env = kept_env | flat_axes(c.reduced_order, state.rank * elements + p * piece, domain.extents, e.extents)
            at = substitute(t.offset, env, e.extents)
            target = stage * elements + p * piece
            if t is last and pieces > 1:
                _last_arrives(state, queue, target, t, at, piece, stage, p, pieces)
            else:
                e.emit(BulkCopy(queue, target, e.buffers[t.value].name, at, piece, stage, t is last))


def _last_arrives(state: RowState, queue: str, target: Affine, t: Touch, at: Affine, piece: int, stage: Affine, p: Affine,
                  pieces: int) -> None:
    e = state.writer.emitter
    buffer = e.buffers[t.value].name
    with e.when([Bound(p, 0, pieces - 1)]):
        e.emit(BulkCopy(queue, target, buffer, at, piece, stage, False))
    with e.when([Bound(p, pieces - 1, pieces)]):
        e.emit(BulkCopy(queue, target, buffer, at, piece, stage, True))


def _take(state: RowState, queues: dict[Touch, str], turn: Affine) -> list[Held]:
    """Waits for this turn's stage and takes the thread's vectors into registers."""
    w, c = state.writer, state.choice
    e = w.emitter
    stage = e.let("stage", turn % c.stages, c.stages)
    e.emit(Comment(f"{', '.join('%' + t.value for t in queues)}: shared memory -> registers"))
    e.emit(BulkWait(stage, turn // c.stages % 2))
    held = [w.held(t, c.chunks, c.vector, True) for t in queues]
    with e.loop("chunk", c.chunks, unroll=w.unroll) as chunk, e.when(in_row(state, chunk, number(0))):
        for h, queue in zip(held, queues.values(), strict=True):
            at = stage * (state.share * c.vector) + (chunk * c.threads + state.place) * c.vector
            e.emit(VectorLoad(h.array, chunk * c.vector, queue, at, c.vector))
    return held
