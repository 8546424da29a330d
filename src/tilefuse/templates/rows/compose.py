"""The row template: reduced axes run along memory. Rows stay on chip between dependent reductions.

    block:  rows x threads      thread t of a row holds vectors t, t + threads, ...  (chunks of them) in registers
    reduce: lanes of a vector -> warp shuffles -> shared memory -> cluster (distributed shared memory) or global memory (split)
"""
from __future__ import annotations

from dataclasses import replace

from tilefuse.base.errors import InternalError
from tilefuse.domain.access import flat_axes
from tilefuse.domain.resolved import Instance
from tilefuse.domain.stages import after_shared, stages
from tilefuse.emit.kernel_writer import KernelWriter
from tilefuse.ir.affine import Affine, axis, bounds, floordiv, number, substitute
from tilefuse.ir.scalar import Bound
from tilefuse.kernel.ir import (
    Assign,
    Barrier,
    Comment,
    IfValue,
    Load,
    Reg,
    Renew,
)
from tilefuse.templates.rows.combine import combine_threads, receive_parts
from tilefuse.templates.rows.compose_fetch import compose_ahead, compose_turns, outlives_results
from tilefuse.templates.rows.compose_scan import compose_scans
from tilefuse.templates.rows.fetch_operands import ResultOperands, column_operands, row_scalars
from tilefuse.templates.rows.modes import (
    AheadQueue,
    Held,
    HeldQueue,
    HeldTurns,
    PieceQueue,
    ReadAgain,
    RowQueue,
    Rows,
    Split,
    Streamed,
)
from tilefuse.templates.rows.moments import has_even_shares, joins_moments, receive_moments, reduce_moments, send_moments
from tilefuse.templates.rows.reads import are_wide, column_touches, fetched_touches
from tilefuse.templates.rows.reduce import Output, reduce_stage, send_stage
from tilefuse.templates.rows.starts import between_vectors, vectors_of
from tilefuse.templates.rows.walk import Pieces, RowState, load_row, needed_keys, varies, walk_row


def compose_rows(writer: KernelWriter, choice: Rows) -> None:
    """Writes the kernel: loads, one stage after another, then the elements that depend on the reductions."""
    state = _start(writer, choice)
    match choice.mode:
        case Held() | Streamed() | Split():
            _compose_row(state)
        case HeldTurns() | ReadAgain() | HeldQueue() | RowQueue() | PieceQueue():
            compose_turns(state, _compose_row)
        case AheadQueue():
            compose_ahead(state, _reduce_ahead, _finish_row)
        case _:
            raise InternalError(f"no composer for rows of mode {choice.mode!r}")


def _compose_row(state: RowState) -> None:
    """One row (or one group of rows a block)."""
    writer, choice = state.writer, state.choice
    e, domain = writer.emitter, writer.domain
    e.env |= state.kept_env
    row_outputs, full_outputs = _outputs(state)
    early_outputs = _early_outputs(state, full_outputs)
    full_outputs = [o for o in full_outputs if o not in early_outputs]
    operands = _ask_ahead(state, row_outputs, full_outputs)
    if full_outputs and not choice.groups and outlives_results(state):
        e.cache |= {t.value: "last" for t in fetched_touches(domain)}
    if isinstance(choice.mode, Held | HeldTurns):
        load_row(state)
        operands.follow()
        held_bytes = sum(h.touch.dtype.itemsize for h in state.held) * choice.chunks * choice.vector
        fitted = writer.device.fitted
        small = choice.threads * choice.rows <= fitted.rows.norms.small_block_threads and held_bytes < fitted.kept.thread_bytes
        if isinstance(choice.mode, Held) and writer.unroll and small:
            state.held = [*state.held, *column_operands(state)]
    if choice.cluster > 1 and not choice.groups:
        e.emit(Comment("every block of the cluster runs before another writes to its shared memory"), Barrier("cluster", memory=False))
    _reduce_stages(state, early_outputs)
    if isinstance(choice.mode, Split):
        return _finish_split(state, choice.mode, row_outputs)
    if full_outputs or state.carried:
        _write_elements(state, full_outputs, frozenset(domain.kept))
    elif state.ring is not None:
        _leave_pieces(state, state.ring)
    _write_rows(state, row_outputs)


def _leave_pieces(state: RowState, ring: Pieces) -> None:
    """Frees the slots of a row of which no element is written: no walk behind the reductions does."""
    state.writer.emitter.emit(Comment("no thread reads the row again: the next pieces set out"))
    with state.writer.emitter.loop("chunk", state.choice.chunks) as chunk:
        ring.leave(chunk)


def _outputs(state: RowState) -> tuple[list[Output], list[Output]]:
    """Outputs with one value a row, and outputs with one value an element of it."""
    w = state.writer
    rows = [o for o in w.domain.outputs if not o[2].axes() & set(w.domain.reduced) and not varies(w, o[1])]
    row_keys = {key for _, key, _ in rows}
    return ([o for o in w.domain.outputs if o[1] in row_keys],
            [o for o in w.domain.outputs if o[1] not in row_keys and not w.domain.instances[o[1]].carried])


def _early_outputs(state: RowState, full_outputs: list[Output]) -> list[Output]:
    """Elements that the first reductions' walk writes: they need none. A scan alone does not walk the row before its values are written."""
    domain, choice = state.writer.domain, state.choice
    first_walk = any(n == 0 and domain.instances[k].node.category == "reduce" for k, n in stages(domain).items())
    match choice.mode:
        case Streamed() | Split() if first_walk:
            writes = True
        case Held() if first_walk:
            writes = _writes_early(state)
        case _:
            writes = False
    return [o for o in full_outputs if writes and not after_shared(domain, o[1])]


def _ask_ahead(state: RowState, row_outputs: list[Output], full_outputs: list[Output]) -> ResultOperands:
    """Asks before the row for what its results and its last walk need besides; the results' operands whose place memory says come later."""
    # Rows that share a warp ask later: their own elements are in the first-level cache by then (measured: 62 us against 65 to 69).
    asked = bool(stages(state.writer.domain)) and isinstance(state.choice.mode, Held | Streamed) and state.choice.threads >= 32
    operands = ResultOperands(state, [k for _, k, _ in row_outputs] if asked else [])
    operands.ask()
    if asked:
        row_scalars(state, [k for _, k, _ in full_outputs])
    return operands


def _reduce_stages(state: RowState, early_outputs: list[Output]) -> None:
    """All reductions and scans of the row, those that need none of the others first."""
    e, domain = state.writer.emitter, state.writer.domain
    depth, kept_axes = stages(domain), frozenset(domain.kept)
    joined: list[Instance] = []
    for stage in range(max(depth.values(), default=-1) + 1):
        group = [domain.instances[k] for k in depth if depth[k] == stage and e.find(k) is None]
        if not group or group == joined:
            continue
        e.hoist([u for i in group for u in i.uses], kept_axes)
        for i in group:
            e.hoist_body(i.body, kept_axes)
        later = [domain.instances[k] for k in depth if depth[k] == stage + 1]
        if joins_moments(state, group, later):
            reduce_moments(state, group[0], later[0], early_outputs if stage == 0 else [])
            joined = later
            continue
        reduce_stage(state, [i for i in group if i.node.category == "reduce"], early_outputs if stage == 0 else [])
        scans = [i for i in group if i.node.category == "scan"]
        if scans:
            compose_scans(state, scans)


def _writes_early(state: RowState) -> bool:
    """Whether blocks that hold rows write what needs no reduction before they reduce: memory is busy while results go round, and the last
    walk has fewer results to hold. Of f32, where shares are even and more than a warp shares a row.

    Measured on H200, residual and layer norm f32: over 32768 67.6 us and 69.3 with all written at the end, over 8192 66.5 and 67.8, over
    1024, 4096 and 65536 the same; 16-bit elements gain 1 % over 65536 f16 and lose 0.3 % of bf16.
    """
    choice, w = state.choice, state.writer
    even = not state.row_bounds and state.tail == 0 and has_even_shares(state)
    wide = are_wide(fetched_touches(w.domain))
    return w.unroll and w.floods and even and wide and choice.threads > 32 and choice.split == 1 and not w.domain.has_scan


def _only_exchange(state: RowState) -> tuple[list[Instance], list[Instance]]:
    """The row's reductions and, where these are squares about the mean of the first, those that join them in one exchange.

    Requires: one exchange is all that the row needs (`pipelined.runs_ahead`).
    """
    domain = state.writer.domain
    depth = stages(domain)
    group, later = ([domain.instances[k] for k in depth if depth[k] == stage] for stage in (0, 1))
    if max(depth.values(), default=1) > bool(later) or later and not joins_moments(state, group, later):
        raise InternalError("a row that is reduced a turn ahead of its elements needs a single exchange; please report")
    return group, later


def _reduce_ahead(state: RowState) -> None:
    """One row as far as its threads' partial results are on their way to each other."""
    e = state.writer.emitter
    e.env |= state.kept_env
    group, later = _only_exchange(state)
    e.hoist([u for i in group for u in i.uses], frozenset(state.writer.domain.kept))
    for i in group:
        e.hoist_body(i.body, frozenset(state.writer.domain.kept))
    if later:
        send_moments(state, group[0], later[0])
    else:
        send_stage(state, group)


def _finish_row(state: RowState) -> None:
    """The rest of a row that `_reduce_ahead` began: results of its reductions, then everything that is written."""
    w = state.writer
    w.emitter.env |= state.kept_env
    group, later = _only_exchange(state)
    w.emitter.emit(Comment(f"{', '.join('%' + i.node.name for i in group)}: what the row's threads sent a turn ago"))
    if later:
        receive_moments(state, group[0], later[0])
    else:
        receive_parts(state, group)
    row_outputs, full_outputs = _outputs(state)
    if full_outputs or state.carried:
        _write_elements(state, full_outputs, frozenset(w.domain.kept))
    _write_rows(state, row_outputs)


def _write_elements(state: RowState, outputs: list[Output], kept_axes: frozenset[str]) -> None:
    """The last walk over the row: elements that depend on the reductions are stored, carried sums take their terms."""
    w = state.writer
    e, domain = w.emitter, w.domain
    carried = [domain.instances[k] for k in state.carried]
    keys = [k for _, k, _ in outputs]
    e.hoist([*keys, *(u for i in carried for u in i.uses)], kept_axes)
    comments = ([f"{', '.join('%' + n for n, _, _ in outputs)}: registers -> global memory"] if outputs else []) + [
        f"%{i.node.name}: carried down the columns" for i in carried]
    e.emit(Comment("; ".join(comments)))
    needed = needed_keys(state, [*keys, *(u for i in carried for u in i.uses)])
    if w.unroll and not state.choice.groups:
        e.emit(*(Renew(name) for name in _held_narrow(state)))
    bodies = [domain.instances[k].body for k in needed] + [i.body for i in carried]
    for chunk, lane_env, width, held in walk_row(state, bodies, bounded_rows=True):
        here = chunk * state.choice.vector

        def carry(v: Affine, here: Affine = here) -> None:
            for i in carried:
                part = state.carried[i.key]
                e.accumulate(i, [Reg(part.name, part.dtype, here + v)])

        w.write_lanes(outputs, width, held, chunk, lane_env, state.lane, carry if carried else None)


def _held_narrow(state: RowState) -> list[str]:
    """Register arrays of 16-bit elements that the assembler would rather hold in single precision, and have no registers for it: what is
    left of several operands, and a full share of a row beside weights and biases.

    Measured on H200: layer norm over 32768 f16 by blocks of 512 threads 67.8 us, 73.4 with what was computed kept.
    """
    w, c = state.writer, state.choice
    if c.chunks * c.vector % 2 or w.domain.has_scan:
        return []
    names = [r.name for r, _ in w.chunk_values.values() if r.dtype.itemsize == 2]
    rows = [h for h in state.held if not h.step and h.touch in fetched_touches(w.domain)]
    full = len(rows) == 1 and 2 * c.chunks * c.vector >= w.device.fitted.kept.thread_bytes and len(column_touches(w.domain)) > 1
    return [*names, *(h.array for h in rows if full and h.touch.dtype.itemsize == 2)]


def _start(writer: KernelWriter, choice: Rows) -> RowState:
    e, domain = writer.emitter, writer.domain
    blocks = max(writer.program.launch.num_blocks, 1)
    e.frame.extents |= {"block": blocks, "thread": choice.threads * choice.rows, "rank": choice.cluster}
    count = domain.num_kept
    thread, block = axis("thread"), axis("block")
    place = e.let("place", thread % choice.threads if choice.rows > 1 else thread, choice.threads)
    row_of_block = e.let("row_of_block", thread // choice.threads, choice.rows) if choice.rows > 1 else number(0)
    groups = block
    rank = part = number(0)
    if choice.cluster > 1:
        groups = e.let("group", block // choice.cluster, blocks // choice.cluster)
        rank = axis("rank")
    if choice.split > 1:
        groups = e.let("group", block // choice.split, blocks // choice.split)
        part = e.let("part", block % choice.split, choice.split)
    length = domain.num_reduced
    vectors, tail = length // choice.vector, length % choice.vector
    if choice.groups:
        share = vectors // choice.cluster
        return RowState(writer, choice, e.fresh("lane_"), place, row_of_block, groups, [], {}, rank, part, vectors, tail, share, [])
    row_number = groups * choice.rows + row_of_block
    row_bounds: list[Bound] = []
    if blocks // (choice.cluster * choice.split) * choice.rows != count:
        raw = e.let("row_wanted", row_number, blocks * choice.rows)
        row_bounds = [Bound(raw, 0, count)]
        row = e.let("row", raw % count, count)
    else:
        row = e.let("row", row_number, count)
    kept_env = flat_axes(choice.kept_order, row, domain.extents, e.extents)
    state = RowState(writer, choice, e.fresh("lane_"), place, row_of_block, row, row_bounds, kept_env, rank, part, vectors, tail,
                     choice.chunks * choice.threads, [])
    start = between_vectors(domain, choice)
    return state if start is None else _with_lead(state, start)


def _with_lead(state: RowState, start: Affine) -> RowState:
    """The state of a walk along vectors of memory that the row begins and ends anywhere between."""
    w, width = state.writer, state.choice.vector
    e = w.emitter
    first = substitute(start, state.kept_env, e.extents)
    places = bounds(first, e.extents)
    assert places is not None and places[0] >= 0, "rows begin inside their tensor"
    e.emit(Comment("rows begin and end between vectors: the walk follows vectors of memory"))
    vector = e.let("first_vector", floordiv(first, width, e.extents), places[1] // width + 1)
    w.row_axis = next(a for a in state.choice.reduced_order if w.domain.extents[a] > 1)
    return replace(state, vectors=vectors_of(w.domain, state.choice), tail=0, lead=vector * width - first)


def _finish_split(state: RowState, mode: Split, row_outputs: list[Output]) -> None:
    """The last block to arrive adds up the results of all blocks of the row."""
    w, c = state.writer, state.choice
    e = w.emitter
    assert state.split is not None
    last, group, parts, spaces = state.split
    with e.nested() as inner:
        for i in group:
            dtype = e.dtype(i.body)
            for p, start in zip(parts[i.key], e.identities(i), strict=True):
                e.emit(Assign(p, start))
            rounds = -(-mode.blocks // c.threads)
            with e.loop("round", rounds) as r, e.when([Bound(r * c.threads + state.place, 0, mode.blocks)]):
                at = state.row * mode.blocks + r * c.threads + state.place
                other = [e.register(Load(b, p.dtype, at), p.dtype, p.name + "_other") for p,
                         b in zip(parts[i.key], spaces[i.key], strict=True)]
                e.combine(i.node.detail, parts[i.key], other, dtype)
        unsplit = replace(state, choice=replace(c, mode=Streamed(mode.batch)), part=number(0))
        combine_threads(unsplit, group, parts)
        _write_rows(unsplit, row_outputs)
    e.emit(IfValue(last, tuple(inner.statements), uniform=True))


def _write_rows(state: RowState, outputs: list[Output]) -> None:
    """Row results: one thread of the row (of the first block of its cluster) stores them."""
    if not outputs:
        return
    e = state.writer.emitter
    e.emit(Comment(f"{', '.join('%' + n for n, _, _ in outputs)}: one value a row"))
    bounds = [Bound(state.place, 0, 1), *state.row_bounds]
    if state.choice.cluster > 1:
        bounds.append(Bound(state.rank, 0, 1))
    with e.when(bounds):
        state.writer.write_values(outputs)
