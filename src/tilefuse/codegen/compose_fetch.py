"""Rows fetched ahead: a persistent grid whose shared memory is a queue of rows on their way from global memory.

    turn t:   wait for stage t mod S  ->  registers  ->  barrier  ->  start the copy of turn t + S into the same stage
              reductions and stores of the row in registers, while S - 1 later rows are in flight
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tilefuse.codegen.compose import Held
from tilefuse.codegen.compose_carried import declare_carried, write_carried
from tilefuse.codegen.fetch_operands import RowScalars, column_operands
from tilefuse.codegen.kernel import Barrier, BulkCopy, BulkWait, Comment, VectorLoad
from tilefuse.codegen.rows_walk import RowState, in_row
from tilefuse.ir.affine import Affine, number, substitute
from tilefuse.ir.scalar import Bound
from tilefuse.schedule.access import flat_axes
from tilefuse.schedule.pipelined import copies_of, fetched_touches
from tilefuse.schedule.resolved import Touch


def compose_turns(state: RowState, compose_row: Callable[[RowState], None]) -> None:
    """The prologue that fills the queue, the loop over this group's rows, and what was carried through it."""
    w, c = state.writer, state.choice
    e, domain = w.emitter, w.domain
    turns = num_turns(state)
    queues: dict[Touch, str] = {}
    if c.stages:
        elements = c.rows * state.share * c.vector
        queues = {t: w.shared(t.value + "_queue", t.dtype, c.stages * elements) for t in fetched_touches(domain)}
        w.num_barriers = c.stages
        e.emit(Comment(f"{', '.join('%' + t.value for t in queues)}: the first {c.stages} rows start on their way to shared memory"))
        with e.loop("ahead", min(c.stages, turns), unroll=True) as ahead:
            _start_copies(state, queues, ahead, ahead)
    if c.cluster > 1:
        e.emit(Comment("every block of the cluster runs before another writes to its shared memory"), Barrier("cluster"))
    carried = declare_carried(state)
    columns = column_operands(state)
    scalars = RowScalars(state)
    scalars.start(_legal_row(state, number(0), state.row_of_block))
    with e.loop("turn", turns) as turn:
        now = _row_of_turn(state, turn)
        scalars.advance(now.kept_env, _legal_row(state, turn + 1, state.row_of_block))
        now = replace(now, held=columns)
        if c.stages:
            held = [*_take(now, queues, turn), *columns]
            e.emit(Barrier("block"))
            with e.when([Bound(turn, 0, turns - c.stages)]):
                _start_copies(state, queues, turn + c.stages, turn % c.stages)
            now = replace(now, held=held)
        compose_row(replace(now, carried=carried))
    write_carried(state, carried)


def num_turns(state: RowState) -> int:
    """Turns of the loop over a group's rows."""
    c = state.choice
    if c.span:
        return -(-c.span // c.rows)
    return -(-state.writer.domain.num_kept // c.groups)


def _row_number(state: RowState, turn: Affine, row_of_block: Affine) -> tuple[Affine, int]:
    """Row that this group handles in a turn, and a bound on it (it may lie past the last row)."""
    c = state.choice
    if c.span:
        step = turn * c.rows + row_of_block
        return state.row * c.span + step, c.groups * c.span + num_turns(state) * c.rows
    return state.row + turn * c.groups, num_turns(state) * c.groups


def _legal_row(state: RowState, turn: Affine, row_of_block: Affine) -> Affine:
    """The row of a turn, wrapped to a real one where the turn lies past the last row."""
    e = state.writer.emitter
    count = state.writer.domain.num_kept
    wanted, limit = _row_number(state, turn, row_of_block)
    return e.let("row_ahead", e.let("row_unwrapped", wanted, limit + 2 * state.choice.rows * max(state.choice.groups, 1)) % count, count)


def _row_of_turn(state: RowState, turn: Affine) -> RowState:
    w, c = state.writer, state.choice
    e, count = w.emitter, w.domain.num_kept
    wanted, limit = _row_number(state, turn, state.row_of_block)
    bounds: list[Bound] = []
    if c.span and c.span % c.rows:
        bounds.append(Bound(e.let("step_of_group", turn * c.rows + state.row_of_block, num_turns(state) * c.rows), 0, c.span))
    row = e.let("row", wanted, limit)
    if limit != count:
        bounds.append(Bound(row, 0, count))
        row = e.let("row_wrapped", row % count, count)
    kept_env = flat_axes(c.kept_order, row, w.domain.extents, e.extents)
    return replace(state, row=row, row_bounds=bounds, kept_env=kept_env, parity=e.let("parity", turn % 2, 2), phase=turn // 2 % 2)


def _start_copies(state: RowState, queues: dict[Touch, str], turn: Affine, stage: Affine) -> None:
    """Starts the copies of one turn's share of its rows; past the last row a row is fetched again, which nobody uses."""
    w, c = state.writer, state.choice
    e, domain = w.emitter, w.domain
    elements = state.share * c.vector
    copies = [(t, queue, copies_of(t, domain, c.kept_order, c.reduced_order, elements) or 0) for t, queue in queues.items()]
    total = [elements // piece for _, _, piece in copies]
    with e.loop("fetched_row", c.rows) as r:
        wanted, limit = _row_number(state, turn, r)
        row = e.let("next_row", wanted if limit == domain.num_kept else wanted % domain.num_kept, domain.num_kept)
        kept_env = flat_axes(c.kept_order, row, domain.extents, e.extents)
        for number_of_touch, ((t, queue, piece), pieces) in enumerate(zip(copies, total, strict=True)):
            with e.loop("piece", pieces) as p:
                env = kept_env | flat_axes(c.reduced_order, state.rank * elements + p * piece, domain.extents, e.extents)
                at = substitute(t.offset, env, e.extents)
                target = stage * (c.rows * elements) + r * elements + p * piece
                if number_of_touch < len(copies) - 1:
                    e.emit(BulkCopy(queue, target, e.buffers[t.value].name, at, piece, stage, False))
                else:
                    _last_arrives(state, queue, target, t, at, piece, stage, r * pieces + p, c.rows * pieces)


def _last_arrives(state: RowState, queue: str, target: Affine, t: Touch, at: Affine, piece: int, stage: Affine, p: Affine,
                  pieces: int) -> None:
    e = state.writer.emitter
    buffer = e.buffers[t.value].name
    if pieces == 1:
        e.emit(BulkCopy(queue, target, buffer, at, piece, stage, True))
        return
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
            first = stage * (c.rows * state.share * c.vector) + state.row_of_block * (state.share * c.vector)
            at = first + (chunk * c.threads + state.place) * c.vector
            e.emit(VectorLoad(h.array, chunk * c.vector, queue, at, c.vector))
    return held
