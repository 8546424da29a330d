"""The column template: kept axes run along memory, reduced axes across it.

    block:  threads_y x threads_x     thread (y, x) holds `vector` neighbouring columns and walks rows y, y + threads_y, ...
    reduce: rows of a thread -> shared memory over y -> global memory over the blocks that split a column (the last finishes)
"""
from __future__ import annotations

from collections.abc import Callable, Sequence

from tilefuse.domain.access import flat_axes
from tilefuse.domain.resolved import Domain, Instance, Resolved, Touch, resolved_walk
from tilefuse.domain.stages import after_shared, stages, writes_rows
from tilefuse.emit.cascade import CASCADED, Cascade, Summed, nested_counts
from tilefuse.emit.kernel_writer import Held, KernelWriter, reachable
from tilefuse.emit.vector_operands import fill_vectors, guarded_vectors
from tilefuse.ir.affine import Affine, axis, number
from tilefuse.ir.dtype import BOOL
from tilefuse.ir.scalar import Bound, Call, Guard, const
from tilefuse.kernel.ir import Assign, Barrier, Comment, Declare, IfValue, KExpr, LastBlock, Load, Reg, Store, VectorLoad, VectorStore
from tilefuse.target.memory import ACCESS_BYTES
from tilefuse.templates.columns.between import begin_between, finish_between
from tilefuse.templates.columns.record import Columns
from tilefuse.templates.columns.squares import ShiftedSquares
from tilefuse.templates.columns.starts import between_columns
from tilefuse.templates.columns.state import ColumnState, at_lane


def compose_columns(writer: KernelWriter, choice: Columns) -> None:
    """Writes the kernel: stages of reductions down the columns, then the elements that depend on them."""
    state = _start(writer, choice)
    e, domain = writer.emitter, writer.domain
    depth = stages(domain)
    reduced = set(domain.reduced)
    column_outputs = [o for o in domain.outputs if not o[2].axes() & reduced]
    full_outputs = [o for o in domain.outputs if o not in column_outputs]
    early_outputs = [o for o in full_outputs if depth and not choice.on_chip and not after_shared(domain, o[1])]
    full_outputs = [o for o in full_outputs if o not in early_outputs]
    e.hoist(range(len(domain.instances)), frozenset())
    if choice.on_chip:
        _load_all(state)
    results: dict[int, Reg] = {}
    last_stage = max(depth.values(), default=-1)
    for stage in range(last_stage + 1):
        group = [domain.instances[k] for k in depth if depth[k] == stage]
        parts = _stage(state, group, results, early_outputs if stage == 0 else [])
        if state.between is not None:
            finish_between(state, group, parts, column_outputs)
            return
        if choice.split > 1:
            _finish_split(state, group, parts, column_outputs)
            return
        _combine_rows(state, group, parts, everybody=stage < last_stage or bool(full_outputs))
        for i in group:
            results[i.key] = _publish(state, i, parts[i.key])
        results |= _column_values(state, results, [domain.instances[u] for k in depth if depth[k] == stage + 1
                                                   for u in _all_uses(domain, k)]
                                  + [domain.instances[u] for _, k, _ in full_outputs for u in [k, *_all_uses(domain, k)]])
    if full_outputs:
        e.emit(Comment(f"{', '.join('%' + n for n, _, _ in full_outputs)}: registers -> global memory"))
        needed = _needed_bodies(state, [k for _, k, _ in full_outputs], results)
        _walk_rows(state, needed, results, lambda row, held, env,
                   step: writer.write_lanes(full_outputs, choice.vector, held, row, env, state.lane),
                   state.column_bounds)
    _write_columns(state, column_outputs, results)


def _start(writer: KernelWriter, choice: Columns) -> ColumnState:
    e, domain = writer.emitter, writer.domain
    blocks = max(writer.program.launch.num_blocks, 1)
    e.frame.extents |= {"block": blocks, "thread": choice.threads_x * choice.threads_y}
    thread, block = axis("thread"), axis("block")
    x = e.let("x", thread % choice.threads_x, choice.threads_x) if choice.threads_x > 1 else number(0)
    y = e.let("y", thread // choice.threads_x, choice.threads_y) if choice.threads_y > 1 else number(0)
    part, tile = number(0), block
    start = between_columns(domain, choice)
    if choice.split > 1:
        count = blocks // choice.split
        # Where elements are written too, blocks that run together cover whole rows: memory is walked as by a copy. Tiles that begin inside
        # sectors share these with their neighbours.
        across = writes_rows(domain) or start is not None
        part = e.let("part", block // count if across else block % choice.split, choice.split)
        tile = e.let("tile", block % count if across else block // choice.split, count)
    if start is not None:
        between = begin_between(writer, choice, start, tile, part, x, y)
        return ColumnState(writer, choice, e.fresh("lane_"), x, y, number(0), [], part, tile, choice.chunks * choice.threads_y, [],
                           between=between)
    vectors = -(-domain.num_kept // choice.vector)
    vector = tile * choice.threads_x + x
    tiles = blocks // choice.split
    bounds: list[Bound] = []
    if tiles * choice.threads_x != vectors:
        raw = e.let("column_wanted", vector, tiles * choice.threads_x)
        bounds = [Bound(raw, 0, vectors)]
        column = e.let("column", raw % vectors, vectors)
    else:
        column = e.let("column", vector, vectors)
    return ColumnState(writer, choice, e.fresh("lane_"), x, y, column, bounds, part, tile, choice.chunks * choice.threads_y, [])


def _kept_env(state: ColumnState) -> dict[str, Affine]:
    e, c = state.writer.emitter, state.choice
    if state.between is not None:
        return state.between.kept_env(state.lane)
    return flat_axes(c.kept_order, state.column * c.vector + axis(state.lane), state.domain.extents, e.extents | {state.lane: c.vector})


def _row(state: ColumnState, step: Affine) -> Affine:
    return state.part * state.rows_of_part + step * state.choice.threads_y + state.y


def _row_env(state: ColumnState, row: Affine) -> dict[str, Affine]:
    return flat_axes(state.choice.reduced_order, row, state.domain.extents, state.writer.emitter.extents)


def _full_touches(state: ColumnState, bodies: Sequence[Resolved]) -> list[Touch]:
    axes = set(state.domain.reduced)
    known = axes | set(state.domain.kept)
    return [t for t in state.writer.touches(bodies) if t.offset.axes() & axes and t.offset.axes() <= known]


def _load_all(state: ColumnState) -> None:
    w, c = state.writer, state.choice
    e, domain = w.emitter, w.domain
    touches = [t for t in _full_touches(state, [i.body for i in domain.instances]) if t.offset.axes() & set(domain.kept)]
    probe = _row_env(state, axis("row_probe")) | _kept_env(state)
    state.held = [w.held(t, c.chunks, c.vector, w.runs(t, c.vector, state.lane, probe)) for t in touches]
    if not state.held:
        return
    e.emit(Comment(f"{', '.join('%' + h.touch.value for h in state.held)}: global memory -> registers"))
    with e.loop("step", c.chunks, unroll=w.unroll) as step:
        row = e.let("row", _row(state, step), max(c.chunks * c.threads_y * c.split, 1))
        with e.when([Bound(row, 0, domain.num_reduced)]):
            e.narrow_to(row, domain.num_reduced)
            env = _row_env(state, row) | _kept_env(state)
            for h in state.held:
                w.fill(h, step, env, state.lane)


def _walk_rows(state: ColumnState, bodies: Sequence[Resolved], results: dict[int, Reg],
               body: Callable[[Affine, list[Held], dict[str, Affine], Affine], None], only: Sequence[Bound] = (),
               cascade: Cascade | None = None) -> None:
    """The thread's rows, `batch` at a time with their loads first; `body(place, held, env, step)` writes the work of row number `step`,
    which stands at `place` of what is held. `cascade`: what is summed in stretches of the walk."""
    w, c = state.writer, state.choice
    e, domain = w.emitter, w.domain
    missing = [t for t in _full_touches(state, bodies) if not any(h.touch == t for h in state.held)]
    limit = max(c.chunks * c.threads_y * c.split, 1)
    batch = 1 if c.on_chip else max(c.batch, 1)
    kept = _kept_env(state)
    # Lanes outside of a row need no guard where all that depends on their columns is loaded ahead.
    w.spare_lanes = state.between is not None and _are_held(state, bodies, missing)
    columns = _column_operands(state, bodies)
    count = -(-c.chunks // batch)
    with cascade.steps("step", count) if cascade is not None else e.loop("step", count, unroll=w.unroll and c.on_chip) as outer:
        probed = axis("row_probe") if state.between is None else state.between.row(axis("row_probe"))
        probe = _row_env(state, probed) | kept
        local = [w.held(t, batch, c.vector, w.runs(t, c.vector, state.lane, probe), step=batch == 1) for t in missing]
        # Columns between whole vectors may lie outside of a row: no vectors behind guards.
        guarded = guarded_vectors(w, bodies, probe, state.lane, c.vector, batch) if state.between is None else []
        for load in (True, False):
            if load and not local and not guarded:
                continue
            with e.loop("inner", batch, unroll=w.unroll) as inner:
                step = outer * batch + inner
                row = e.let("row", _row(state, step), limit * batch) if state.between is None else state.between.row(step)
                bounds = [Bound(row, 0, domain.num_reduced), *only]
                if c.split > 1:
                    bounds.append(Bound(step, 0, c.chunks))
                if state.between is not None:
                    bounds += state.between.columns
                with e.when(bounds):
                    e.narrow_to(row, domain.num_reduced)
                    env = _row_env(state, row) | kept
                    if load:
                        for h in local:
                            w.fill(h, inner, env, state.lane)
                        fill_vectors(w, guarded, inner, env, state.lane)
                    else:
                        chosen = inner if batch > 1 else step
                        w.lane_values = results
                        body(chosen, [*state.held, *columns, *local, *(h for _, h in guarded)], env, step)


def _are_held(state: ColumnState, bodies: Sequence[Resolved], walked: list[Touch]) -> bool:
    """Whether a row's bodies read no memory besides the vectors that are `walked` and the column operands."""
    columns = _column_touches(state, bodies)
    known = {*walked, *columns}
    parts = {x for body in bodies for x in resolved_walk(body)}
    known_only = all(not x.dynamic and (x in known or not x.offset.axes() & set(state.domain.kept)) for x in parts if isinstance(x, Touch))
    fit = len(columns) <= _most_operands(state)
    return fit and known_only and not any(isinstance(x, Guard) for x in parts)


def _most_operands(state: ColumnState) -> int:
    """Vectors of column operands that a thread keeps for all its rows."""
    return state.writer.device.fitted.kept.column_bytes // ACCESS_BYTES


def _column_touches(state: ColumnState, bodies: Sequence[Resolved]) -> list[Touch]:
    kept, held = set(state.domain.kept), {h.touch for h in state.held}
    return [t for t in state.writer.touches(bodies) if t.offset.axes() and t.offset.axes() <= kept and t not in held]


def _column_operands(state: ColumnState, bodies: Sequence[Resolved]) -> list[Held]:
    """Operands that are the same for all rows (v of A + u v^T), as vectors loaded once before the walk.

    Left inside, their loads stand behind each row's guard, where no compiler takes them out of the loop.
    """
    w, c = state.writer, state.choice
    env = _kept_env(state)
    touches = _column_touches(state, bodies)
    held = [w.held(t, 1, c.vector, w.runs(t, c.vector, state.lane, env), step=True) for t in touches[:_most_operands(state)]]
    for h in held:
        w.fill(h, number(0), env, state.lane)
    return held


def _stage(state: ColumnState, group: list[Instance], results: dict[int, Reg],
           outputs: list[tuple[str, int, Affine]]) -> dict[int, list[Reg]]:
    """Accumulates one stage's reductions over the thread's rows; the accumulators are arrays over the lanes.

    outputs: elements that depend on no reduction; they are stored on the way.
    """
    w, c = state.writer, state.choice
    e = w.emitter
    e.emit(Comment(f"{', '.join(f'%{i.node.name} ({i.node.kind})' for i in group)}: down the columns"))
    if outputs:
        e.emit(Comment(f"{', '.join('%' + n for n, _, _ in outputs)}: registers -> global memory on the way"))
    parts = {i.key: _declare_parts(state, i) for i in group}
    squares = [i for i in group if i.node.detail == "m2"]
    shifted = ShiftedSquares(state.writer, c, group, parts) if squares and c.batch > 1 and not c.on_chip else None
    counts = [] if shifted is not None else squares
    rows_seen = None
    if counts:
        dtype = e.dtype(counts[0].body)
        rows_seen = Reg(e.fresh("rows_seen"), dtype)
        e.emit(Declare(rows_seen.name, dtype, None, const(0, dtype)))
    keys = [*(u for i in group for u in i.uses), *(k for _, k, _ in outputs)]
    bodies = [i.body for i in reachable(w.domain, keys, set(results))] + [i.body for i in group]

    def one_row(place: Affine, held: list[Held], env: dict[str, Affine], step: Affine) -> None:
        inverse = None
        if rows_seen is not None:
            e.emit(Assign(rows_seen, Call("add", (rows_seen, const(1, rows_seen.dtype)))))
            inverse = e.register(Call("div", (const(1, rows_seen.dtype), rows_seen)), rows_seen.dtype, "inverse")

        def one_lane(v: Affine) -> None:
            for i in group:
                mine = [Reg(p.name, p.dtype, None if c.vector == 1 else v) for p in parts[i.key]]
                if shifted is not None and shifted.takes(i):
                    shifted.take(i, step, v)
                elif i.node.detail == "m2":
                    assert rows_seen is not None and inverse is not None
                    _welford(state, i, mine, rows_seen, inverse)
                else:
                    e.accumulate(i, mine)

        if outputs:
            w.write_lanes(outputs, c.vector, held, place, env, state.lane, one_lane)
        else:
            with w.lanes(c.vector, env, state.lane) as v:
                w.bind(held, place, v)
                one_lane(v)
        if shifted is not None:
            shifted.next_row()

    cascade = _cascade(state, [i for i in group if shifted is None or not shifted.takes(i)], parts, rows_seen)
    _walk_rows(state, bodies, results, one_row, state.column_bounds if outputs else (), cascade)
    if shifted is not None:
        shifted.end()
    return parts


def _cascade(state: ColumnState, group: list[Instance], parts: dict[int, list[Reg]], rows_seen: Reg | None) -> Cascade | None:
    """The accumulators of sums down long columns, where one thread takes a column alone; None where its chains are short enough."""
    w, c = state.writer, state.choice
    alone = c.threads_x * c.threads_y == 1
    counts = nested_counts(-(-c.chunks // max(c.batch, 1))) if alone and not c.on_chip else ()
    summed = [Summed(i, tuple(parts[i.key]), c.vector) for i in group if i.node.detail in CASCADED and w.emitter.dtype(i.body).is_float]
    restarted = [rows_seen] if rows_seen is not None else []
    return Cascade(w.emitter, w.unroll, summed, counts, restarted) if counts and summed else None


def _welford(state: ColumnState, i: Instance, parts: list[Reg], count: Reg, inverse: KExpr) -> None:
    """Welford's update with the shared row count: no division a lane. Source: Welford 1962, Technometrics 4(3)."""
    e = state.writer.emitter
    dtype = count.dtype
    x = e.register(e.expression(i.body), dtype, i.node.name + "_x")
    _, mean, m2 = parts
    off = e.register(Call("sub", (x, mean)), dtype, "off")
    e.emit(Assign(parts[0], count))
    e.emit(Assign(mean, Call("add", (mean, Call("mul", (off, inverse))))))
    e.emit(Assign(m2, Call("add", (m2, Call("mul", (off, Call("sub", (x, mean))))))))


def _declare_parts(state: ColumnState, i: Instance) -> list[Reg]:
    w, c = state.writer, state.choice
    e = w.emitter
    parts = []
    for n, start in enumerate(e.identities(i)):
        t = start.dtype
        name = e.fresh(i.node.name + (f"_{n}" if n else "_sum" if i.node.detail == "sum" else "_part"))
        if c.vector == 1:
            e.emit(Declare(name, t, None, start))
        else:
            e.emit(Declare(name, t, c.vector))
            with e.lanes(c.vector, w.unroll) as v:
                e.emit(Assign(Reg(name, t, v), start))
        parts.append(Reg(name, t))
    return parts


def _combine_rows(state: ColumnState, group: list[Instance], parts: dict[int, list[Reg]], everybody: bool) -> None:
    """Shared memory over y: every thread writes its partial columns, halves are added pairwise.

    The first row of threads ends with the whole; with `everybody` all threads do.
    """
    w, c = state.writer, state.choice
    e = w.emitter
    if c.threads_y == 1:
        return
    pitch = c.threads_x * c.vector
    for i in group:
        # The last block comes here twice; the meeting of the blocks lies between, so that it may use the same memory again.
        if i.key not in state.exchange:
            state.exchange[i.key] = [w.shared(p.name + "_shared", p.dtype, c.threads_y * pitch) for p in parts[i.key]]
    buffers = state.exchange
    # Lane-major within a row of partials, so that a warp's accesses fall into different banks.
    with e.loop("v", c.vector, unroll=w.unroll) as v:
        for i in group:
            for p, b in zip(parts[i.key], buffers[i.key], strict=True):
                e.emit(Store(b, state.y * pitch + v * c.threads_x + state.x, at_lane(p, v, c.vector)))
    e.emit(Barrier("block"))
    half = c.threads_y // 2
    while half >= 1:
        # The upper half's partials are read, the lower half's written: the two never meet in one round.
        with e.when([Bound(state.y, 0, half)]), e.loop("v", c.vector, unroll=w.unroll) as v:
            for i in group:
                mine = [at_lane(p, v, c.vector) for p in parts[i.key]]
                there = (state.y + half) * pitch + v * c.threads_x + state.x
                other = [e.register(Load(b, p.dtype, there), p.dtype, p.name + "_o") for p, b in zip(mine, buffers[i.key], strict=True)]
                e.combine(i.node.detail, mine, other, e.dtype(i.body))
                if half > 1 or everybody:
                    for p, b in zip(mine, buffers[i.key], strict=True):
                        e.emit(Store(b, state.y * pitch + v * c.threads_x + state.x, p))
        if half > 1 or everybody:
            e.emit(Barrier("block"))
        half //= 2
    if not everybody:
        return
    with e.loop("v", c.vector, unroll=w.unroll) as v:
        for i in group:
            for p, b in zip(parts[i.key], buffers[i.key], strict=True):
                e.emit(Assign(at_lane(p, v, c.vector), Load(b, p.dtype, v * c.threads_x + state.x)))


def _publish(state: ColumnState, i: Instance, parts: list[Reg]) -> Reg:
    """The finished reduction as an array over the lanes."""
    w, c = state.writer, state.choice
    e = w.emitter
    result = Reg(e.fresh(i.node.name), i.node.type.dtype)
    e.emit(Declare(result.name, result.dtype, None if c.vector == 1 else c.vector))
    with e.loop("v", c.vector, unroll=w.unroll) as v:
        finished = e.finished(i, [at_lane(p, v, c.vector) for p in parts])
        e.emit(Assign(at_lane(result, v, c.vector), finished))
    return result


def _all_uses(domain: Domain, key: int) -> list[int]:
    return [i.key for i in reachable(domain, [key], set())]


def _column_values(state: ColumnState, results: dict[int, Reg], used: list[Instance]) -> dict[int, Reg]:
    """Values over the kept axes only (a mean, a scale) that later rows use: computed once a column, held in arrays."""
    w, c, domain = state.writer, state.choice, state.domain
    e = w.emitter
    kept = set(domain.kept)
    values: dict[int, Reg] = {}
    for i in sorted({i.key: i for i in used}.values(), key=lambda i: i.key):
        if i.key in results or i.key in values or i.shared or i.serial or not i.depends <= kept or not i.depends:
            continue
        if not all(_ready(domain, u, results | values) for u in i.uses):
            continue
        reg = Reg(e.fresh(i.node.name), i.node.type.dtype)
        e.emit(Declare(reg.name, reg.dtype, None if c.vector == 1 else c.vector))
        w.lane_values = results | values
        with w.lanes(c.vector, _kept_env(state), state.lane) as v:
            e.emit(Assign(at_lane(reg, v, c.vector), e.expression(i.body)))
        values[i.key] = reg
    return values


def _ready(domain: Domain, key: int, known: dict[int, Reg]) -> bool:
    i = domain.instances[key]
    return key in known or not i.shared and all(_ready(domain, u, known) for u in i.uses)


def _needed_bodies(state: ColumnState, keys: list[int], results: dict[int, Reg]) -> list[Resolved]:
    return [i.body for i in reachable(state.domain, keys, set(results))]


def _write_columns(state: ColumnState, outputs: list[tuple[str, int, Affine]], results: dict[int, Reg]) -> None:
    if not outputs:
        return
    w, c = state.writer, state.choice
    e = w.emitter
    w.lane_values = results
    e.emit(Comment(f"{', '.join('%' + n for n, _, _ in outputs)}: one value a column"))
    with e.when([Bound(state.y, 0, 1), *state.column_bounds]), w.lanes(c.vector, _kept_env(state), state.lane):
        w.write_values(outputs)


def _finish_split(state: ColumnState, group: list[Instance], parts: dict[int, list[Reg]], outputs: list[tuple[str, int, Affine]]) -> None:
    """Partial columns to global memory; the last block of a column tile combines those of all blocks."""
    w, c = state.writer, state.choice
    e, domain = w.emitter, w.domain
    _combine_rows(state, group, parts, everybody=False)
    count = -(-domain.num_kept // c.vector) * c.vector
    spaces = {i.key: [w.workspace(p.name + "_partial", p.dtype, c.split * count) for p in parts[i.key]] for i in group}

    def place(part: Affine) -> Affine:
        return part * count + state.column * c.vector

    with e.when([Bound(state.y, 0, 1), *state.column_bounds]):
        for i in group:
            for p, b in zip(parts[i.key], spaces[i.key], strict=True):
                e.emit(Store(b, place(state.part), p) if c.vector == 1 else VectorStore(b, place(state.part), p.name, number(0), c.vector))
    tiles = max(w.program.launch.num_blocks // c.split, 1)
    last = Reg(e.fresh("is_last"), BOOL)
    e.emit(Declare(last.name, BOOL), LastBlock(last, w.counter("arrived", tiles), state.tile, c.split))
    with e.nested() as inner:
        for i in group:
            with e.loop("v", c.vector, unroll=w.unroll) as v:
                for p, start in zip(parts[i.key], e.identities(i), strict=True):
                    e.emit(Assign(at_lane(p, v, c.vector), start))
        with e.loop("round", -(-c.split // c.threads_y)) as r:
            other_part = r * c.threads_y + state.y
            with e.when([Bound(other_part, 0, c.split), *state.column_bounds]):
                others = {i.key: [Reg(e.fresh(p.name + "_o"), p.dtype) for p in parts[i.key]] for i in group}
                for i in group:
                    for p, b in zip(others[i.key], spaces[i.key], strict=True):
                        e.emit(Declare(p.name, p.dtype, c.vector), VectorLoad(p.name, number(0), b, place(other_part), c.vector))
                with e.loop("v", c.vector, unroll=w.unroll) as v:
                    for i in group:
                        e.combine(i.node.detail, [at_lane(p, v, c.vector) for p in parts[i.key]],
                                  [Reg(p.name, p.dtype, v) for p in others[i.key]], e.dtype(i.body))
        _combine_rows(state, group, parts, everybody=False)
        results = {i.key: _publish(state, i, parts[i.key]) for i in group}
        _write_columns(state, outputs, results)
    e.emit(IfValue(last, tuple(inner.statements), uniform=True))
