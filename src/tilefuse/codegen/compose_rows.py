"""The row template: reduced axes run along memory. Rows stay on chip between dependent reductions.

    block:  rows x threads      thread t of a row holds vectors t, t + threads, ...  (chunks of them) in registers
    reduce: lanes of a vector -> warp shuffles -> shared memory -> cluster (distributed shared memory) or global memory (split)
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from tilefuse.codegen.compose import Held, KernelWriter, reachable
from tilefuse.codegen.kernel import (
    Assign,
    Barrier,
    ClusterStore,
    Comment,
    Declare,
    IfValue,
    KExpr,
    LastBlock,
    Load,
    Reg,
    Shuffle,
    Store,
)
from tilefuse.ir.affine import Affine, axis, number
from tilefuse.ir.dtype import BOOL, DType
from tilefuse.ir.ops import MONOIDS, flops_of
from tilefuse.ir.scalar import Bound, Call, const
from tilefuse.schedule.access import flat_axes
from tilefuse.schedule.choose import KEPT_BYTES_PER_THREAD, Rows, stages
from tilefuse.schedule.resolved import Instance, Touch


@dataclass
class RowState:
    """Where the composer stands: the row, the thread's place in it, what is held."""

    writer: KernelWriter
    choice: Rows
    lane: str
    place: Affine          # thread within the row
    row_of_block: Affine
    row: Affine            # always a legal row (wrapped where the last block has too few)
    row_bounds: list[Bound]  # hold where the row is a real one
    kept_env: dict[str, Affine]
    rank: Affine
    part: Affine           # which of the split blocks
    vectors: int
    tail: int
    share: int             # vectors from one block of a row to the next
    held: list[Held]
    carried: dict[int, Reg] = field(default_factory=dict)  # sums down the columns: arrays over the thread's elements
    parity: Affine = number(0)  # pipelined: which copy of the exchange slots this turn uses
    split: tuple[Reg, list[Instance], dict[int, list[Reg]], dict[int, list[str]]] | None = None


def compose_rows(writer: KernelWriter, choice: Rows) -> None:
    """Writes the kernel: loads, one stage after another, then the elements that depend on the reductions."""
    state = _start(writer, choice)
    if not choice.groups:
        _compose_row(state)
        return
    from tilefuse.codegen.compose_fetch import compose_turns

    compose_turns(state, _compose_row)


def _compose_row(state: RowState) -> None:
    """One row (or one group of rows a block)."""
    writer, choice = state.writer, state.choice
    e, domain = writer.emitter, writer.domain
    e.env |= state.kept_env
    depth = stages(domain)
    kept_axes = frozenset(domain.kept)
    row_keys = [key for _, key, offset in domain.outputs if not offset.axes() & set(domain.reduced) and not _varies(writer, key)]
    row_outputs = [(n, k, o) for n, k, o in domain.outputs if k in row_keys]
    full_outputs = [o for o in domain.outputs if o[1] not in row_keys and not domain.instances[o[1]].carried]
    if choice.on_chip and not choice.stages:
        _load_all(state)
    if choice.cluster > 1 and not choice.groups:
        e.emit(Comment("every block of the cluster runs before another writes to its shared memory"), Barrier("cluster"))
    for stage in range(max(depth.values(), default=-1) + 1):
        group = [domain.instances[k] for k in depth if depth[k] == stage]
        e.hoist([u for i in group for u in i.uses], kept_axes)
        for i in group:
            e.hoist_body(i.body, kept_axes)
        _stage(state, [i for i in group if i.node.category == "reduce"])
        scans = [i for i in group if i.node.category == "scan"]
        if scans:
            from tilefuse.codegen.compose_scan import compose_scans

            compose_scans(state, scans)
    if choice.split > 1:
        return _finish_split(state, row_outputs)
    if full_outputs or state.carried:
        _write_elements(state, full_outputs, kept_axes)
    _write_rows(state, row_outputs)


def _write_elements(state: RowState, outputs: list[tuple[str, int, Affine]], kept_axes: frozenset[str]) -> None:
    """The last walk over the row: elements that depend on the reductions are stored, carried sums take their terms."""
    w = state.writer
    e, domain = w.emitter, w.domain
    carried = [domain.instances[k] for k in state.carried]
    keys = [k for _, k, _ in outputs]
    e.hoist([*keys, *(u for i in carried for u in i.uses)], kept_axes)
    told = ([f"{', '.join('%' + n for n, _, _ in outputs)}: registers -> global memory"] if outputs else []) + [
        f"%{i.node.name}: carried down the columns" for i in carried]
    e.emit(Comment("; ".join(told)))
    needed = _needed(state, [*keys, *(u for i in carried for u in i.uses)])
    bodies = [domain.instances[k].body for k in needed] + [i.body for i in carried]
    for chunk, lane_env, width, held in _walk(state, bodies, bounded_rows=True):
        here = chunk * state.choice.vector

        def carry(v: Affine, here: Affine = here) -> None:
            for i in carried:
                part = state.carried[i.key]
                e.accumulate(i, [Reg(part.name, part.dtype, here + v)])

        w.write_lanes(outputs, width, held, chunk, lane_env, state.lane, carry if carried else None)


def _varies(writer: KernelWriter, key: int) -> bool:
    """Whether an instance varies along the reduced axes."""
    return bool(writer.domain.instances[key].depends & set(writer.domain.reduced)) and not writer.domain.instances[key].shared


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
    wanted = groups * choice.rows + row_of_block
    row_bounds: list[Bound] = []
    if blocks // (choice.cluster * choice.split) * choice.rows != count:
        raw = e.let("row_wanted", wanted, blocks * choice.rows)
        row_bounds = [Bound(raw, 0, count)]
        row = e.let("row", raw % count, count)
    else:
        row = e.let("row", wanted, count)
    kept_env = flat_axes(choice.kept_order, row, domain.extents, e.extents)
    return RowState(writer, choice, e.fresh("lane_"), place, row_of_block, row, row_bounds, kept_env, rank, part, vectors, tail,
                    choice.chunks * choice.threads, [])


def vector_at(state: RowState, chunk: Affine) -> Affine:
    """Number of the vector in the row that this thread holds as `chunk`."""
    c = state.choice
    block_part = (state.rank if c.cluster > 1 else state.part) * state.share
    return block_part + chunk * c.threads + state.place


def in_row(state: RowState, chunk: Affine, vector: Affine) -> list[Bound]:
    """Hold where this thread's `chunk` is a vector of the row, and of this block's share."""
    if state.choice.groups:
        return [Bound(chunk * state.choice.threads + state.place, 0, state.share)]
    return [Bound(vector, 0, state.vectors)]


def _lane_env(state: RowState, vector: Affine, width: int, base: int = 0) -> dict[str, Affine]:
    e = state.writer.emitter
    flat = vector * width + axis(state.lane) + base
    return flat_axes(state.choice.reduced_order, flat, state.writer.domain.extents, e.extents | {state.lane: width})


def _needed(state: RowState, keys: list[int]) -> list[int]:
    e = state.writer.emitter
    done = {i.key for i in state.writer.domain.instances if e.find(i.key) is not None} | set(state.writer.chunk_values)
    return [i.key for i in reachable(state.writer.domain, keys, done)]


def _load_all(state: RowState) -> None:
    """Every full read of the row, before anything waits: all of the thread's vectors are in flight at once."""
    w, c = state.writer, state.choice
    e, domain = w.emitter, w.domain
    reduced = set(domain.reduced)
    bodies = [i.body for i in domain.instances]
    touches = [t for t in w.touches(bodies) if t.offset.axes() & reduced and (t.offset.axes() & set(domain.kept) or domain.num_kept == 1)
               and not t.offset.axes() - reduced - set(domain.kept)]
    extents = e.extents
    probe = vector_at(state, axis("chunk_probe"))
    probe_env = flat_axes(c.reduced_order, probe * c.vector + axis(state.lane), domain.extents,
                          extents | {"chunk_probe": c.chunks, state.lane: c.vector}) | state.kept_env
    state.held = [w.held(t, c.chunks, c.vector, w.runs(t, c.vector, state.lane, probe_env)) for t in touches]
    if not state.held:
        return
    e.emit(Comment(f"{', '.join('%' + h.touch.value for h in state.held)}: global memory -> registers"))
    with e.loop("chunk", c.chunks, unroll=w.unroll) as chunk:
        vector = e.let("vector", vector_at(state, chunk), _vector_extent(state))
        with e.when(in_row(state, chunk, vector)):
            _narrow(e, vector, state.vectors)
            env = _lane_env(state, vector, c.vector) | state.kept_env
            for h in state.held:
                w.fill(h, chunk, env, state.lane)


def _vector_extent(state: RowState) -> int:
    c = state.choice
    return max(c.chunks * c.threads * max(c.cluster, c.split), 1)


def _narrow(e, name: Affine, count: int) -> None:  # type: ignore[no-untyped-def]
    if len(name.terms) == 1 and name.const == 0 and isinstance(name.terms[0][0], str):
        e.frame.extents[name.terms[0][0]] = max(count, 1)


def _walk(state: RowState, bodies: Sequence[object], bounded_rows: bool = False) -> Iterator[tuple[Affine, dict[str, Affine], int,
                                                                                                   list[Held]]]:
    """The thread's vectors of the row, one after another: yields (chunk in the arrays, root axes with the lane, width, arrays).

    What the consumer emits between two yields becomes the loop's body; a last narrow round covers the rest of the row.
    """
    w, c = state.writer, state.choice
    e, domain = w.emitter, w.domain
    reduced = set(domain.reduced)
    missing = [t for t in w.touches(bodies) if t.offset.axes() & reduced and not any(h.touch == t for h in state.held)
               and not t.offset.axes() - reduced - set(domain.kept)]
    for instance, running in w.running:
        e.emit(Assign(running, MONOIDS[instance.node.detail].identity(running.dtype)[0]))
    if state.vectors and (c.on_chip or c.batch == 1):
        with e.loop("chunk", c.chunks, unroll=w.unroll and c.on_chip) as chunk:
            vector = e.let("vector", vector_at(state, chunk), _vector_extent(state))
            rows = state.row_bounds if bounded_rows else []
            with e.when([*in_row(state, chunk, vector), *rows]):
                _narrow(e, vector, state.vectors)
                env = _lane_env(state, vector, c.vector)
                local = _step_arrays(state, missing, env, 1)
                for h in local:
                    w.fill(h, number(0), env | state.kept_env, state.lane)
                yield chunk, env, c.vector, [*state.held, *local]
    elif state.vectors:
        yield from _walk_in_batches(state, missing, state.row_bounds if bounded_rows else [])
    if state.tail:
        e.emit(Comment(f"the last {state.tail} elements of the row do not fill a vector"))
        base = state.vectors * c.vector
        rows = state.row_bounds if bounded_rows else []
        last = [Bound(state.part, c.split - 1, c.split)] if c.split > 1 else []
        with e.loop("rest", state.tail) as rest, e.when([*rows, *last]):
            yield number(0), _lane_env(state, rest, 1, base), 1, []


def _step_arrays(state: RowState, missing: list[Touch], env: dict[str, Affine], batch: int) -> list[Held]:
    w, c = state.writer, state.choice
    vectors = [t for t in missing if c.vector > 1 and w.runs(t, c.vector, state.lane, env | state.kept_env)]
    return [w.held(t, batch, c.vector, True, step=batch == 1) for t in vectors]


def _walk_in_batches(state: RowState, missing: list[Touch], rows: list[Bound]) -> Iterator[tuple[Affine, dict[str, Affine], int,
                                                                                                 list[Held]]]:
    """A streamed row, `batch` vectors at a time: their loads are all in flight before the first is used."""
    w, c = state.writer, state.choice
    e = w.emitter
    with e.loop("chunk", -(-c.chunks // c.batch)) as outer:
        probe = _lane_env(state, axis("vector_probe"), c.vector)
        local = _step_arrays(state, missing, probe, c.batch)
        for load in (True, False):
            with e.loop("inner", c.batch, unroll=w.unroll) as inner:
                chunk = outer * c.batch + inner
                vector = e.let("vector", vector_at(state, chunk), _vector_extent(state) + c.batch * c.threads)
                bounds = [Bound(vector, 0, state.vectors)]
                if c.chunks % c.batch and max(c.split, c.cluster) > 1:
                    bounds.append(Bound(chunk, 0, c.chunks))
                with e.when(bounds + ([] if load else rows)):
                    _narrow(e, vector, state.vectors)
                    env = _lane_env(state, vector, c.vector)
                    if load:
                        for h in local:
                            w.fill(h, inner, env | state.kept_env, state.lane)
                    else:
                        yield inner, env, c.vector, local


def _stage(state: RowState, group: list[Instance]) -> None:
    """One stage: all reductions that depend on the same earlier results, in one pass over the row."""
    if not group:
        return
    w, c = state.writer, state.choice
    e = w.emitter
    names = ", ".join(f"%{i.node.name} ({i.node.kind})" for i in group)
    e.emit(Comment(f"{names}: threads -> warp -> block" + (" -> cluster" if c.cluster > 1 else "")))
    parts: dict[int, list[list[Reg]]] = {}
    for i in group:
        parts[i.key] = _declare_parts(state, i, 1 if i.node.detail == "m2" else c.lanes)
    needed = _needed(state, [u for i in group for u in i.uses])
    bodies = [w.domain.instances[k].body for k in needed] + [i.body for i in group]
    keep = _worth_keeping(state, needed, group)
    arrays = {k: _declare_array(state, w.domain.instances[k]) for k in keep}
    for chunk, env, width, held in _walk(state, bodies):
        chunk_values = {i.key: _declare_values(state, i, width) for i in group if i.node.detail == "m2" and width > 1}
        _hoist_lane_free(state, bodies, env, held)
        with w.lanes(width, env, state.lane) as v:
            w.bind(held, chunk, v)
            for i in group:
                if i.key in chunk_values:
                    e.emit(Assign(Reg(chunk_values[i.key].name, chunk_values[i.key].dtype, v), e.expression(i.body)))
                else:
                    _accumulate(state, i, parts[i.key], v, width)
            for k, array in arrays.items():
                e.emit(Assign(Reg(array.name, array.dtype, chunk * c.vector + v), e.value(k)))
        for i in group:
            if i.key in chunk_values:
                _merge_chunk(state, i, parts[i.key][0], chunk_values[i.key], width)
    for i in group:
        _combine_lanes(state, i, parts[i.key])
    _combine_threads(state, group, {k: p[0] for k, p in parts.items()})
    w.chunk_values |= {k: (array, c.vector) for k, array in arrays.items()}


# A value of at least this many operations is kept in registers rather than computed again (an exponential takes 8 instructions).
KEEP_FLOPS = 6


def _worth_keeping(state: RowState, needed: list[int], group: list[Instance]) -> list[int]:
    """Costly values of every element that a later stage uses again: held in registers while the budget lasts."""
    w, c = state.writer, state.choice
    if not c.on_chip or state.tail or not w.unroll:
        return []
    instances = w.domain.instances
    if w.narrow:
        # The hardware's exponential takes two instructions: cheaper than the registers.
        return []
    later = [i for i in instances if i.key > max(g.key for g in group)]
    wanted: list[int] = []
    room = KEPT_BYTES_PER_THREAD * 3 // 2 - sum(h.touch.dtype.itemsize * c.chunks * c.vector for h in state.held)
    if c.groups:
        # One block a multiprocessor: three quarters of its registers may hold the row.
        registers = min(w.device.max_registers_per_thread, w.device.registers_per_multiprocessor // (c.threads * c.rows))
        room = registers * 3 - sum(h.touch.dtype.itemsize * c.chunks * c.vector for h in state.held)
    for k in needed:
        i = instances[k]
        size = i.node.type.dtype.itemsize * c.chunks * c.vector
        used_later = any(k in i.uses for i in later)
        if k not in w.chunk_values and used_later and _varies(w,
                                                              k) and not i.serial and flops_of(i.body) >= KEEP_FLOPS and size <= room:  # type: ignore[arg-type]
            wanted.append(k)
            room -= size
    return wanted


def _declare_array(state: RowState, i: Instance) -> Reg:
    e, c = state.writer.emitter, state.choice
    array = Reg(e.fresh(i.node.name + "_v"), i.node.type.dtype)
    e.emit(Declare(array.name, array.dtype, c.chunks * c.vector))
    return array


def _hoist_lane_free(state: RowState, bodies: Sequence[object], env: dict[str, Affine], held: list[Held]) -> None:
    e = state.writer.emitter
    loaded = {h.touch for h in held}
    saved = dict(e.env)
    e.env = saved | env
    for touch in state.writer.touches(bodies):
        own_axes = set(state.writer.domain.kept) | set(state.writer.domain.reduced)
        if touch not in loaded and state.lane not in e.index(touch.offset).axes() and touch.offset.axes() <= own_axes:
            e.touch(touch, False)
    e.env = saved


def _declare_parts(state: RowState, instance: Instance, lanes: int) -> list[list[Reg]]:
    """Accumulators: for each lane group the components of the partial result."""
    e = state.writer.emitter
    e.dtype(instance.body)
    MONOIDS[instance.node.detail]
    suffixes = ("", "_at", "_m2") if instance.node.detail != "m2" else ("_count", "_mean", "")
    arrays = []
    for suffix, start in zip(suffixes, e.identities(instance)):
        t = start.dtype
        name = e.fresh(instance.node.name + suffix)
        if lanes == 1:
            e.emit(Declare(name, t, None, start))
        else:
            e.emit(Declare(name, t, lanes))
            with e.loop("v", lanes, unroll=state.writer.unroll, simd=not state.writer.unroll) as v:
                e.emit(Assign(Reg(name, t, v), start))
        arrays.append((name, t))
    return [[Reg(name, t, None if lanes == 1 else number(n)) for name, t in arrays] for n in range(lanes)]


def _declare_values(state: RowState, instance: Instance, width: int) -> Reg:
    e = state.writer.emitter
    dtype = e.dtype(instance.body)
    name = e.fresh(instance.node.name + "_x")
    e.emit(Declare(name, dtype, width))
    return Reg(name, dtype)


def _accumulate(state: RowState, instance: Instance, parts: list[list[Reg]], lane: Affine, width: int) -> None:
    lanes = len(parts)
    if lanes == 1:
        state.writer.emitter.accumulate(instance, parts[0])
        return
    index = lane if width <= lanes else lane % lanes
    state.writer.emitter.accumulate(instance, [Reg(p.name, p.dtype, index) for p in parts[0]])


def _merge_chunk(state: RowState, instance: Instance, parts: list[Reg], values: Reg, width: int) -> None:
    """m2 of one vector in two passes over registers (no division a lane), merged by Chan's formula."""
    e = state.writer.emitter
    dtype = values.dtype
    mean = Reg(e.fresh(instance.node.name + "_chunk_mean"), dtype)
    m2 = Reg(e.fresh(instance.node.name + "_chunk_m2"), dtype)
    e.emit(Declare(mean.name, dtype, None, const(0, dtype)), Declare(m2.name, dtype, None, const(0, dtype)))
    with e.loop("v", width, unroll=state.writer.unroll, simd=False) as v:
        e.emit(Assign(mean, Call("add", (mean, Reg(values.name, dtype, v)))))  # type: ignore[arg-type]
    e.emit(Assign(mean, Call("mul", (mean, const(1.0 / width, dtype)))))  # type: ignore[arg-type]
    with e.loop("v", width, unroll=state.writer.unroll, simd=False) as v:
        off = e.register(Call("sub", (Reg(values.name, dtype, v), mean)), dtype, "off")  # type: ignore[arg-type]
        e.emit(Assign(m2, Call("add", (m2, Call("mul", (off, off))))))  # type: ignore[arg-type]
    e.combine("m2", parts, (const(width, dtype), mean, m2), dtype)


def _combine_lanes(state: RowState, instance: Instance, parts: list[list[Reg]]) -> None:
    """Pairwise over the lane accumulators; the result is in the first."""
    e = state.writer.emitter
    dtype = e.dtype(instance.body)
    step = 1
    while step < len(parts):
        for n in range(0, len(parts) - step, 2 * step):
            e.combine(instance.node.detail, parts[n], parts[n + step], dtype)
        step *= 2


def _combine_threads(state: RowState, group: list[Instance], parts: dict[int, list[Reg]]) -> None:
    """Shuffles within warps, shared memory across them, the cluster across blocks; every thread ends with the result."""
    w, c = state.writer, state.choice
    e = w.emitter
    for i in group:
        _shuffle(state, i, parts[i.key], min(c.threads, 32))
    warps = c.threads // 32
    slots = max(warps, 1) * c.cluster
    if slots == 1:
        if c.split == 1:
            _publish(state, group, parts)
        else:
            _split_partials(state, group, parts)
        return
    copies = 2 if c.groups else 1
    buffers = {i.key: [w.shared(f"{p.name}_shared", p.dtype, slots * c.rows * copies) for p in parts[i.key]] for i in group}
    warp = e.let("warp", state.place // 32, max(warps, 1))
    own = slot_base(state, slots) + state.rank * max(warps, 1) + warp
    exchange = cluster_exchange(state, [p.dtype for i in group for p in parts[i.key]], slots) if c.cluster > 1 else Barrier("block")
    # Every lane holds the warp's result: lane n tells block n of the cluster.
    peer = e.let("lane_of_warp", state.place % 32, 32)
    with e.when([Bound(peer, 0, c.cluster)]):
        for i in group:
            for p, b in zip(parts[i.key], buffers[i.key], strict=True):
                e.emit(Store(b, own, p) if c.cluster == 1 else ClusterStore(b, own, peer, p, exchange.signal))
    e.emit(exchange)
    for i in group:
        dtype = e.dtype(i.body)
        held = parts[i.key]
        if slots <= 8:
            _gather_slots(state, i, held, buffers[i.key], slots, dtype)
        else:
            _gather_by_warp(state, i, held, buffers[i.key], slots, dtype)
    if c.split == 1:
        _publish(state, group, parts)
    else:
        _split_partials(state, group, parts)


def cluster_exchange(state: RowState, dtypes: list[DType], slots: int) -> Barrier:
    """The barrier of one exchange over the cluster: a signalled one where the values have 4 or 8 bytes."""
    if any(t.itemsize < 4 for t in dtypes):
        return Barrier("cluster")
    w = state.writer
    w.num_barriers += 1
    phase = state.parity if state.choice.groups else number(0)
    return Barrier("cluster", number(w.num_barriers - 1), phase, slots * sum(t.itemsize for t in dtypes))


def slot_base(state: RowState, slots: int) -> Affine:
    """First exchange slot of this row. Turns alternate between two copies: a slow thread may still read those of the last turn."""
    return state.row_of_block * slots + state.parity * (slots * state.choice.rows)


def _gather_slots(state: RowState, i: Instance, held: list[Reg], buffers: list[str], slots: int, dtype: DType) -> None:
    """Every thread reads all slots: few, and the same address for a whole warp."""
    e = state.writer.emitter
    base = slot_base(state, slots)
    for p, b in zip(held, buffers, strict=True):
        e.emit(Assign(p, Load(b, p.dtype, base)))
    with e.loop("slot", slots, start=1, unroll=state.writer.unroll) as slot:
        other = [e.register(Load(b, p.dtype, base + slot), p.dtype, p.name + "_other") for p, b in zip(held, buffers, strict=True)]
        e.combine(i.node.detail, held, other, dtype)


def _gather_by_warp(state: RowState, i: Instance, held: list[Reg], buffers: list[str], slots: int, dtype: DType) -> None:
    """Every warp reads the slots with its lanes and shuffles: log2(32) steps for any number of slots."""
    e = state.writer.emitter
    MONOIDS[i.node.detail]
    base = slot_base(state, slots)
    lane = e.let("lane_of_warp", state.place % 32, 32)
    for p, start in zip(held, e.identities(i), strict=True):
        e.emit(Assign(p, start))
    with e.loop("round", -(-slots // 32), unroll=state.writer.unroll) as r, e.when([Bound(r * 32 + lane, 0, slots)]):
        other = [e.register(Load(b, p.dtype, base + r * 32 + lane), p.dtype, p.name + "_other") for p, b in zip(held, buffers, strict=True)]
        e.combine(i.node.detail, held, other, dtype)
    _shuffle(state, i, held, 32)


def _shuffle(state: RowState, instance: Instance, parts: list[Reg], width: int) -> None:
    e = state.writer.emitter
    dtype = e.dtype(instance.body)
    step = width // 2
    while step >= 1:
        other = []
        for p in parts:
            o = Reg(e.fresh(p.name + "_other"), p.dtype)
            e.emit(Declare(o.name, o.dtype), Shuffle(o, p, "xor", step, min(width, 32)))
            other.append(o)
        e.combine(instance.node.detail, parts, other, dtype)
        step //= 2


def _publish(state: RowState, group: list[Instance], parts: dict[int, list[Reg]]) -> None:
    """The finished reductions become values of the row."""
    e = state.writer.emitter
    for i in group:
        e.dtype(i.body)
        value: KExpr = e.finished(i, parts[i.key])
        e.frame.values[i.key] = value


def _split_partials(state: RowState, group: list[Instance], parts: dict[int, list[Reg]]) -> None:
    """Each block's partial result goes to global memory; the last block of a row reads them all back."""
    w, c = state.writer, state.choice
    e = w.emitter
    count = w.domain.num_kept
    spaces = {i.key: [w.workspace(f"{p.name}_partial", p.dtype, count * c.split) for p in parts[i.key]] for i in group}
    with e.when([Bound(state.place, 0, 1), *state.row_bounds]):
        for i in group:
            for p, b in zip(parts[i.key], spaces[i.key], strict=True):
                e.emit(Store(b, state.row * c.split + state.part, p))
    last = Reg(e.fresh("is_last"), BOOL)
    counter = w.counter("arrived", count)
    e.emit(Declare(last.name, BOOL), LastBlock(last, counter, state.row, c.split))
    state.split = (last, group, parts, spaces)


def _finish_split(state: RowState, row_outputs: list[tuple[str, int, Affine]]) -> None:
    w, c = state.writer, state.choice
    e = w.emitter
    assert state.split is not None
    last, group, parts, spaces = state.split
    with e.nested() as inner:
        for i in group:
            dtype = e.dtype(i.body)
            MONOIDS[i.node.detail]
            for p, start in zip(parts[i.key], e.identities(i), strict=True):
                e.emit(Assign(p, start))
            rounds = -(-c.split // c.threads)
            with e.loop("round", rounds) as r, e.when([Bound(r * c.threads + state.place, 0, c.split)]):
                at = state.row * c.split + r * c.threads + state.place
                other = [e.register(Load(b, p.dtype, at), p.dtype, p.name + "_other") for p,
                         b in zip(parts[i.key], spaces[i.key], strict=True)]
                e.combine(i.node.detail, parts[i.key], other, dtype)
        unsplit = replace(state, choice=replace(c, split=1), part=number(0))
        if c.threads > 1:
            # The slots of the first round may still be read by a slow thread of this block.
            e.emit(Barrier("block"))
        _combine_threads(unsplit, group, parts)
        e.hoist([k for _, k, _ in row_outputs], frozenset(w.domain.kept))
        _write_rows(unsplit, row_outputs)
    e.emit(IfValue(last, tuple(inner.statements), uniform=True))


def _write_rows(state: RowState, outputs: list[tuple[str, int, Affine]]) -> None:
    """Row results: one thread of the row (of the first block of its cluster) stores them."""
    if not outputs:
        return
    e = state.writer.emitter
    e.emit(Comment(f"{', '.join('%' + n for n, _, _ in outputs)}: one value a row"))
    bounds = [Bound(state.place, 0, 1), *state.row_bounds]
    if state.choice.cluster > 1:
        bounds.append(Bound(state.rank, 0, 1))
    with e.when(bounds):
        for name, key, offset in outputs:
            e.emit(Store(e.buffers[name].name, e.index(offset), e.value(key)))

