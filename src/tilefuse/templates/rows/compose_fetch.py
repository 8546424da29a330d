"""Rows fetched ahead: a persistent grid whose shared memory is a queue of rows on their way from global memory.

    HeldQueue   turn t: wait for slot t mod S -> registers -> barrier -> start the copy of turn t + S into the same slot;
                reductions and stores of the row in registers, while S - 1 later rows are in flight
    RowQueue    turn t: wait for slot t mod S; every walk over the row reads it from there -> barrier -> the copy of turn t + S
                (sums carried down many columns leave no registers for the row). With one slot and a group for every row, a single turn:
                threads hold no element, so that more blocks share a multiprocessor
    PieceQueue  as RowQueue, but a slot is one vector a thread and not a whole row: the first walk waits for piece after piece, the last
                one leaves them, so that memory is busy where two rows do not fit on chip
    AheadQueue  turn t: wait for slot t + 1 -> reduce its row, send the partial results; receive those of turn t, finish its row from
                its slot -> barrier -> the copy of turn t + S. Partial results are in flight for a whole turn

Where a block has several rows, each team of threads (those of one row, or of the rows of a warp) has a queue of its own: it waits for its
own copies, its first thread starts the next ones, and no team waits for another before the end.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from tilefuse.base.errors import InternalError
from tilefuse.domain.access import flat_axes
from tilefuse.domain.resolved import Domain, Touch, direct_touches
from tilefuse.domain.stages import stages
from tilefuse.emit.kernel_writer import Held
from tilefuse.ir.affine import Affine, axis, number, substitute
from tilefuse.ir.scalar import Bound
from tilefuse.kernel.asynchronous import AwaitEarlier, BulkCopy, BulkWait
from tilefuse.kernel.early import PrefetchOnly
from tilefuse.kernel.ir import Barrier, Comment, Reg
from tilefuse.templates.rows.compose_carried import declare_carried, write_carried
from tilefuse.templates.rows.exchange import exchange_copies, meet_in_block
from tilefuse.templates.rows.fetch_operands import RowScalars, column_operands
from tilefuse.templates.rows.modes import HeldQueue, HeldTurns, PieceQueue, ReadAgain, RowQueue, Rows
from tilefuse.templates.rows.reads import are_wide, column_touches, copies_of, fetched_touches
from tilefuse.templates.rows.shared.ahead import prefetch_rows
from tilefuse.templates.rows.shared.prepared import NOTHING, Prepared, prepare, prepared_values, read_by_rows
from tilefuse.templates.rows.walk import RowState, fill_queued, in_row, team_threads


def compose_turns(state: RowState, compose_row: Callable[[RowState], None]) -> None:
    """The prologue that fills the queue, the loop over this group's rows, and what was carried through it."""
    turns = num_turns(state)
    prepared = prepared_values(state.writer.domain)
    queues, carried, columns, scalars = _begin(state, prepared)
    if prepared.vectors:
        first = flat_axes(state.choice.kept_order, number(0), state.writer.domain.extents, state.writer.emitter.extents)
        state = replace(state, prepared=prepare(state, prepared, first))
    with state.writer.emitter.loop("turn", turns) as turn:
        now = _row_of_turn(state, turn)
        scalars.advance(now.kept_env, _legal_row(state, turn + 1, state.row_of_block))
        _compose_turn(state, replace(now, held=columns, carried=carried), queues, turn, compose_row)
    write_carried(state, carried)


def _compose_turn(state: RowState, now: RowState, queues: dict[Touch, str], turn: Affine, compose_row: Callable[[RowState], None]) -> None:
    """One turn by the mode: where its row comes from, and when its slot is filled again. `state`: before the turns, `now`: in this one."""
    match state.choice.mode:
        case HeldTurns() | ReadAgain():
            compose_row(now)
        case PieceQueue():
            ring = Ring(replace(state, carried=now.carried), queues, turn)
            compose_row(replace(now, ring=ring, queued={t: (queue, number(0)) for t, queue in queues.items()}))
        case RowQueue():
            compose_row(_arrived(now, queues, turn))
            _next_copies(state, queues, turn, _unwritten(now, now.carried))
        case HeldQueue():
            now = _arrived(now, queues, turn)
            taken = _take(now)
            if len(now.carried) > 1 and num_turns(state) > 1 and _meets_behind(now, taken):
                now.after_meeting.append(partial(_copies_of_turn, state, queues, turn))
            else:
                _next_copies(state, queues, turn, tuple(h.array for h in taken))
            compose_row(replace(now, held=[*taken, *now.held], queued={}))
            if now.after_meeting:
                meet_in_block(now)
        case _:
            raise InternalError(f"rows of mode {state.choice.mode!r} are not walked in turns")


def compose_ahead(state: RowState, reduce_row: Callable[[RowState], None], finish_row: Callable[[RowState], None]) -> None:
    """As `compose_turns`, with each row reduced a turn before it is finished.

    Requires: a queue of at least two whole rows, which every walk reads; what a row's threads tell each other takes one exchange.
    """
    e, team = state.writer.emitter, team_threads(state.choice)
    turns = num_turns(state)
    queues, carried, columns, scalars = _begin(state)
    scalars.keep()

    def reduce(turn: Affine) -> None:
        now = _row_of_turn(state, turn)
        scalars.advance(now.kept_env, _legal_row(state, turn + 1, state.row_of_block))
        reduce_row(_arrived(replace(now, held=columns), queues, turn))

    # A frame of its own: what the first row's values are must not be taken for a later row's.
    with e.nested() as first:
        reduce(number(0))
    e.emit(*first.statements)
    if state.choice.cluster == 1:
        e.emit(Barrier("block", team=team))
    with e.loop("turn", turns) as turn:
        now = _row_of_turn(state, turn)
        scalars.again(now.kept_env)
        if turns > 1:
            with e.when([Bound(turn, 0, turns - 1)]):
                reduce(turn + 1)
        now = replace(_in_queue(now, queues, turn), held=columns, carried=carried)
        finish_row(now)
        _next_copies(state, queues, turn, _unwritten(now, carried))
    write_carried(state, carried)


def _begin(state: RowState, prepared: Prepared = NOTHING) -> tuple[dict[Touch, str], dict[int, Reg], list[Held], RowScalars]:
    """The queue of every operand with its first copies on their way, the sums that rows carry on, and operands of columns and of the first
    row. Copies of settled operands stand ahead of the wait for the kernel ahead."""
    w, c = state.writer, state.choice
    e, domain = w.emitter, w.domain
    turns = num_turns(state)
    queues: dict[Touch, str] = {}
    if c.slots:
        elements = c.rows * state.share * c.vector // num_pieces(state)
        queues = {t: w.shared(t.value + "_queue", t.dtype, c.slots * elements) for t in fetched_touches(domain)}
        w.num_barriers = c.slots * num_teams(c)
        begun, only = all(t.value in w.settled for t in queues), isinstance(w.settled, PrefetchOnly)
        if begun and only:
            prefetch_rows(state, queues)
            e.emit(AwaitEarlier())
        units = "rows" if num_pieces(state) == 1 else "pieces of rows"
        e.emit(Comment(f"{', '.join('%' + t.value for t in queues)}: the first {c.slots} {units} start on their way to shared memory"))
        with e.loop("ahead", min(c.slots, turns * num_pieces(state)), unroll=True) as ahead:
            _start_copies(state, queues, ahead, ahead)
        if begun and not only:
            e.emit(AwaitEarlier())
    if c.cluster > 1:
        e.emit(Comment("every block of the cluster runs before another writes to its shared memory"), Barrier("cluster", memory=False))
    carried = declare_carried(state)
    columns = column_operands(state, read_by_rows(domain, prepared) if prepared.vectors else None)
    scalars = RowScalars(state)
    scalars.start(_legal_row(state, number(0), state.row_of_block))
    return queues, carried, columns, scalars


def _next_copies(state: RowState, queues: dict[Touch, str], turn: Affine, loaded: tuple[str, ...]) -> None:
    """Once no thread reads this turn's slot any more, the copies of the turn that uses it next. `loaded`: as of `Barrier`."""
    if num_turns(state) > 1:
        state.writer.emitter.emit(Barrier("block", loaded=loaded, team=team_threads(state.choice)))
        _copies_of_turn(state, queues, turn)


def _copies_of_turn(state: RowState, queues: dict[Touch, str], turn: Affine) -> None:
    e, slots = state.writer.emitter, state.choice.slots
    with e.when([Bound(turn, 0, num_turns(state) - slots)]):
        _start_copies(state, queues, turn + slots, turn % slots)


def _meets_behind(state: RowState, taken: Sequence[Held]) -> bool:
    """Whether all that a thread took from the queue has gone into what its row's threads exchange at the first barrier of the block.

    Behind that barrier nothing is on its way from the slot, and a barrier for the queue alone is one too many (measured on H200, gradients
    of layer norm f16: 72.5 us against 73.4 over 8192 elements, 76.1 against 77.0 over 65536; norms alone run as fast with either).
    """
    c, domain = state.choice, state.writer.domain
    todo = [key for key, depth in stages(domain).items() if depth == 0 and domain.instances[key].node.category == "reduce"]
    touches: set[Touch] = set()
    while todo:
        instance = domain.instances[todo.pop()]
        touches |= set(direct_touches(instance.body))
        todo += [u for u in instance.uses if not domain.instances[u].shared]
    fitted = state.fitted
    through_block = c.cluster == 1 or c.threads > 32 * fitted.exchange.sending_warps
    return c.threads >= fitted.queue.late_threads and through_block and all(h.touch in touches for h in taken)


def _unwritten(state: RowState, carried: dict[int, Reg]) -> tuple[str, ...]:
    """Carried sums where a walk that reads the queue stores no element: a store waits for what it is made from, a sum may come later."""
    return () if state.writer.domain.stores_elements else tuple(r.name for r in carried.values())


def outlives_results(state: RowState) -> bool:
    """Whether what the kernel reads leaves the second-level cache after what it writes: of rows that are also written, in kernels that
    move more than the cache holds.

    Measured on H200 with and without, contiguous rows shared by a cluster: softmax over 32768 to 262144 f32 2 to 3 % faster, norms over
    65536 f32 2 to 3 %, gradients of norms up to 1.6 %; one block with several sums to carry, over 4096 and 8192 f16 and bf16 0.7 to 2 %.
    Not what is slower or the same: rows whose weights are more bytes than they (layer norm over 32768 f32 72.6 us and 70.6), blocks of 512
    threads that come once (RMS norm over 262144 f32 80.4 and 79.2) or have no weights (gradients of log-softmax over 262144 f32 70.9 and
    70.1), 16-bit elements in clusters (most the same), rows of several axes (batch norm over 28 x 28 bf16 76.8 and 75.3), blocks that carry
    one sum or need no queue, nor scans by clusters (79.3 and 77.2).
    """
    choice, w = state.choice, state.writer
    if not w.floods or not w.domain.stores_elements:
        return False
    if choice.cluster > 1:
        return not w.domain.has_scan and _last_in_clusters(state)
    if choice.groups:
        # Several rows of f32 a block are as fast without (256 elements: 69.1 us and 69.3 with).
        whole_rows = choice.rows == 1 or not are_wide(fetched_touches(w.domain))
        return choice.slots > 0 and whole_rows and len([i for i in w.domain.instances if i.carried]) > 1
    return choice.in_registers


def _last_in_clusters(state: RowState) -> bool:
    """`outlives_results` of rows that clusters share."""
    domain, choice = state.writer.domain, state.choice
    fetched, columns = fetched_touches(domain), column_touches(domain)
    row_bytes, column_bytes = (sum(t.dtype.itemsize for t in touches) for touches in (fetched, columns))
    several_axes = len([a for a in domain.reduced if domain.extents[a] > 1]) > 1
    if several_axes or not are_wide(fetched):
        return False
    if choice.groups:
        once = choice.groups == domain.num_kept
        return choice.slots > 0 and (once or bool(columns))
    return choice.in_registers and choice.threads <= state.fitted.norms.small_block_threads and column_bytes <= row_bytes


def num_pieces(state: RowState) -> int:
    """Slots of the queue that a row takes."""
    return state.choice.chunks if isinstance(state.choice.mode, PieceQueue) else 1


@dataclass(frozen=True, slots=True)
class Ring:
    """The queue of a turn whose row comes in pieces, a vector a thread each. Requires: one row a block, its share whole."""

    state: RowState
    queues: dict[Touch, str]
    turn: Affine

    def first(self, chunk: Affine) -> Affine:
        """First element of the piece in its queue. Units: elements."""
        c = self.state.choice
        return self._number(chunk) % c.slots * (c.threads * c.vector)

    def arrive(self, chunk: Affine) -> None:
        """Waits for the piece."""
        c = self.state.choice
        self.state.writer.emitter.emit(BulkWait(self._number(chunk) % c.slots, self._number(chunk) // c.slots % 2))

    def leave(self, chunk: Affine) -> None:
        """No thread reads the piece any more: what comes next into its place sets out."""
        e, c = self.state.writer.emitter, self.state.choice
        e.emit(Barrier("block", loaded=_unwritten(self.state, self.state.carried)))
        here = self._number(chunk)
        with e.when([Bound(here, 0, num_turns(self.state) * c.chunks - c.slots)]):
            _start_copies(self.state, self.queues, here + c.slots, here % c.slots)

    def _number(self, chunk: Affine) -> Affine:
        return self.turn * self.state.choice.chunks + chunk


def num_turns(state: RowState) -> int:
    """Turns of the loop over a group's rows."""
    c = state.choice
    return -(-state.writer.domain.num_kept // (c.groups * c.rows))


def _row_number(state: RowState, turn: Affine, row_of_block: Affine) -> tuple[Affine, int]:
    """Row that this group handles in a turn, and a bound on it (it may lie past the last row)."""
    c = state.choice
    return (turn * c.rows + row_of_block) * c.groups + state.row, num_turns(state) * c.rows * c.groups


def _legal_row(state: RowState, turn: Affine, row_of_block: Affine) -> Affine:
    """The row of a turn, wrapped to a real one where the turn lies past the last row."""
    e = state.writer.emitter
    count = state.writer.domain.num_kept
    raw_row, limit = _row_number(state, turn, row_of_block)
    return e.let("row_ahead", e.let("row_unwrapped", raw_row, limit + 2 * state.choice.rows * max(state.choice.groups, 1)) % count, count)


def _row_of_turn(state: RowState, turn: Affine) -> RowState:
    w, c = state.writer, state.choice
    e, count = w.emitter, w.domain.num_kept
    raw_row, limit = _row_number(state, turn, state.row_of_block)
    bounds: list[Bound] = []
    row = e.let("row", raw_row, limit)
    if limit != count:
        bounds.append(Bound(row, 0, count))
        row = e.let("row_wrapped", row % count, count)
    kept_env = flat_axes(c.kept_order, row, w.domain.extents, e.extents)
    copies = exchange_copies(c)
    return replace(state, row=row, row_bounds=bounds, kept_env=kept_env, parity=e.let("parity", turn % copies, copies),
                   phase=turn // copies % 2)


def num_teams(choice: Rows) -> int:
    """Queues of a block."""
    team = team_threads(choice)
    return choice.threads * choice.rows // team if team else 1


def _barrier_of(state: RowState, slot: Affine) -> Affine:
    """Number of the transaction barrier of a slot of this team's queue."""
    c, e = state.choice, state.writer.emitter
    team = team_threads(c)
    return slot + e.let("team", axis("thread") // team, num_teams(c)) * c.slots if team else slot


def _start_copies(state: RowState, queues: dict[Touch, str], unit: Affine, slot: Affine) -> None:
    """Starts the copies of one turn's share of its rows, or of one piece; past the last row a row is fetched again, which nobody uses."""
    w, c = state.writer, state.choice
    e, domain = w.emitter, w.domain
    team, num_rows = team_threads(c), c.rows // num_teams(c)
    first_row = e.let("first_row", axis("thread") // team * num_rows, c.rows) if team else number(0)
    barrier = _barrier_of(state, slot)
    parts = num_pieces(state)
    turn = e.let("turn_ahead", unit // parts, num_turns(state)) if parts > 1 else unit
    elements = state.share * c.vector // parts
    start = state.rank * (state.share * c.vector) + (unit % parts * elements if parts > 1 else number(0))
    copies = [(t, queue, _run_of(t, domain, c, elements)) for t, queue in queues.items()]
    total = [elements // piece for _, _, piece in copies]
    cache = "last" if outlives_results(state) else ""
    with e.loop("fetched_row", num_rows) as r:
        raw_row, limit = _row_number(state, turn, first_row + r)
        row = e.let("next_row", raw_row if limit == domain.num_kept else raw_row % domain.num_kept, domain.num_kept)
        kept_env = flat_axes(c.kept_order, row, domain.extents, e.extents)
        for number_of_touch, ((t, queue, piece), pieces) in enumerate(zip(copies, total, strict=True)):
            with e.loop("piece", pieces) as p:
                env = kept_env | flat_axes(c.reduced_order, start + p * piece, domain.extents, e.extents)
                at = substitute(t.offset, env, e.extents)
                target = slot * (c.rows * elements) + (first_row + r) * elements + p * piece
                copy = BulkCopy(queue, target, e.buffers[t.value].name, at, piece, barrier, False, team, cache)
                if number_of_touch < len(copies) - 1:
                    e.emit(copy)
                else:
                    _last_arrives(state, copy, r * pieces + p, num_rows * pieces)


def _run_of(t: Touch, domain: Domain, choice: Rows, elements: int) -> int:
    """Elements of one bulk copy of an operand."""
    run = copies_of(t, domain, choice.reduced_order, elements)
    assert run is not None, "rows/legality.py refuses a queue of an operand that bulk copies do not bring"
    return run


def _last_arrives(state: RowState, copy: BulkCopy, p: Affine, pieces: int) -> None:
    e = state.writer.emitter
    if pieces > 1:
        with e.when([Bound(p, 0, pieces - 1)]):
            e.emit(copy)
    with e.when([Bound(p, pieces - 1, pieces)] if pieces > 1 else []):
        e.emit(replace(copy, arrive=True))


def _arrived(state: RowState, queues: dict[Touch, str], turn: Affine) -> RowState:
    """Waits for this turn's slot; the state with the place in shared memory of each operand's row."""
    c, e = state.choice, state.writer.emitter
    slot = e.let("stage", turn % c.slots, c.slots)
    e.emit(BulkWait(_barrier_of(state, slot), turn // c.slots % 2, team_threads(c)))
    return _placed(state, queues, slot)


def _in_queue(state: RowState, queues: dict[Touch, str], turn: Affine) -> RowState:
    """As `_arrived`, for a slot that was waited for before."""
    return _placed(state, queues, state.writer.emitter.let("stage", turn % state.choice.slots, state.choice.slots))


def _placed(state: RowState, queues: dict[Touch, str], slot: Affine) -> RowState:
    c = state.choice
    elements = state.share * c.vector
    first = slot * (c.rows * elements) + state.row_of_block * elements
    return replace(state, queued={t: (queue, first) for t, queue in queues.items()})


def _take(state: RowState) -> list[Held]:
    """The thread's vectors of the queued row in registers."""
    w, c = state.writer, state.choice
    e = w.emitter
    e.emit(Comment(f"{', '.join('%' + t.value for t in state.queued)}: shared memory -> registers"))
    held = [w.held(t, c.chunks, c.vector, True) for t in state.queued]
    with e.loop("chunk", c.chunks, unroll=w.unroll) as chunk, e.when(in_row(state, chunk, number(0))):
        for h in held:
            fill_queued(state, h, chunk, chunk)
    return held
