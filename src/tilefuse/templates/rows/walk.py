"""A thread's walk over its part of a row: which vectors it holds, how they are loaded, in what order it meets them."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

from tilefuse.domain.access import flat_axes
from tilefuse.domain.online import KERNEL_MONOIDS
from tilefuse.domain.resolved import Instance, Resolved, Touch
from tilefuse.domain.stages import is_multi_stage, is_row_element
from tilefuse.emit.cascade import Cascade
from tilefuse.emit.kernel_writer import Held, KernelWriter, reachable
from tilefuse.emit.vector_operands import Path, fill_guarded, guarded_elements, vector_operands
from tilefuse.ir.affine import Affine, axis, number
from tilefuse.ir.dtype import DType
from tilefuse.ir.scalar import Bound
from tilefuse.kernel.ir import (
    Assign,
    Comment,
    Declare,
    Reg,
    VectorLoad,
)
from tilefuse.target.capabilities import BLOCK_BARRIERS
from tilefuse.target.fitted.rows import RowFigures
from tilefuse.templates.rows.modes import Rows, Split, Streamed


class ByBatch(Protocol):
    """Reductions that see the batches of a streamed row as wholes, and their elements twice."""

    def start(self) -> None:
        """Before the elements of a batch."""
        ...

    def turn(self) -> None:
        """Between the two passes."""
        ...

    def distances(self, step: Affine) -> None:
        """The second pass over vector `step` of the batch."""
        ...

    def end(self) -> None:
        """After a batch."""
        ...


class Pieces(Protocol):
    """A queue of pieces of rows, one vector a thread each, as a walk over a row sees it."""

    def first(self, chunk: Affine) -> Affine:
        """First element of the piece in its queue."""
        ...

    def arrive(self, chunk: Affine) -> None:
        """Waits for the piece."""
        ...

    def leave(self, chunk: Affine) -> None:
        """Gives the piece's place to what comes next."""
        ...


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
    parity: Affine = number(0)  # turns: which copy of the exchange slots, and which transaction barrier, this turn uses
    phase: Affine = number(0)  # turns: parity of how often that barrier was used before
    queued: dict[Touch, tuple[str, Affine]] = field(default_factory=dict)  # operands read from the queue: buffer, row's first element
    ring: Pieces | None = None  # where the queue holds pieces of rows
    exchange: dict[tuple[int | str, str], list[str]] = field(default_factory=dict)  # shared memory of each reduction's partial results
    signals: dict[int, int] = field(default_factory=dict)  # first transaction barrier of each reduction's exchange over the cluster
    warp_tops: set[int] = field(default_factory=set)  # sums of exponentials relative to the maximum of their warp, not of their thread
    after_meeting: list[Callable[[], None]] = field(default_factory=list)  # what follows the next barrier of the row's threads
    split: tuple[Reg, list[Instance], dict[int, list[Reg]], dict[int, list[str]]] | None = None
    prepared: dict[int, str] = field(default_factory=dict)  # vectors that all rows share: shared buffer by instance
    lead: Affine = number(0)  # what to add to a place in the walk for the row's element: rows that begin anywhere between vectors

    @property
    def fitted(self) -> RowFigures:
        """The device's fitted figures of row kernels."""
        return self.writer.device.fitted.rows

    def load_prepared(self, vector: Affine) -> None:
        """The elements that all rows share of one vector of the row, from shared memory into registers, where lanes read them."""
        w = self.writer
        for key, buffer in self.prepared.items():
            i = w.domain.instances[key]
            array = Reg(w.emitter.fresh(i.node.name + "_v"), i.node.type.dtype)
            w.emitter.emit(Declare(array.name, array.dtype, self.choice.vector))
            for first, width, place in self.accesses_of(i.node.type.dtype, vector):
                w.emitter.emit(VectorLoad(array.name, number(first), buffer, place, width))
            w.lane_values[key] = array

    def accesses_of(self, dtype: DType, vector: Affine) -> list[tuple[int, int, Affine]]:
        """(first lane, lanes, place in shared memory) of each access to a vector of prepared elements.

        First accesses of all vectors lie next to each other, then the second ones, so that neighbouring threads access neighbouring words.
        """
        width = self.choice.vector
        each = min(width, max(self.writer.device.vector_bytes // dtype.itemsize, 1))
        return [(first, each, vector * each + first // each * (self.vectors * each)) for first in range(0, width, each)]



def team_threads(choice: Rows) -> int:
    """Threads that walk their rows without waiting for the rest of the block: those of one row, or of the rows of a warp; 0: all do.

    Measured on H200: with one barrier a turn and one thread to start all copies, backwards of norms over rows of 256 f16 ran at 0.66 of
    a copy, and at 1.0 with a queue and a barrier each warp.
    """
    c = choice
    team = max(c.threads, 32)
    num_threads = c.threads * c.rows
    alone = not c.groups or c.rows == 1 or num_threads <= team or num_threads % team
    return 0 if alone or team % c.threads or team > 32 and (team % 32 or num_threads // team >= BLOCK_BARRIERS) else team


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


def lane_env_of(state: RowState, vector: Affine, width: int, base: int = 0, extents: Mapping[str, int] | None = None) -> dict[str, Affine]:
    """Root axes of a vector of the row, with the lane as its variable. extents: of variables of `vector` that the kernel does not have."""
    known = state.writer.emitter.extents | {state.lane: width, **(extents or {})}
    flat = vector * width + axis(state.lane) + base + state.lead
    return flat_axes(state.choice.reduced_order, flat, state.writer.domain.extents, known)


def varies(writer: KernelWriter, key: int) -> bool:
    """Whether an instance varies along the reduced axes."""
    return bool(writer.domain.instances[key].depends & set(writer.domain.reduced)) and not writer.domain.instances[key].shared


def needed_keys(state: RowState, keys: list[int]) -> list[int]:
    """Instances needed for `keys` that have no value yet, in evaluation order."""
    e = state.writer.emitter
    done = {i.key for i in state.writer.domain.instances if e.find(i.key) is not None} | set(state.writer.chunk_values)
    done |= set(state.prepared)
    return [i.key for i in reachable(state.writer.domain, keys, done)]


def fill_chunks(state: RowState, vectors: Sequence[Held], guarded: Sequence[tuple[Held, Path]] = ()) -> None:
    """Loads register arrays with a thread's vectors of a row, all of one chunk together. guarded: arrays of elements behind guards."""
    w, c = state.writer, state.choice
    e = w.emitter
    e.emit(Comment(f"{', '.join('%' + h.touch.value for h in [*vectors, *(h for h, _ in guarded)])}: global memory -> registers"))
    with e.loop("chunk", c.chunks, unroll=w.unroll) as chunk:
        vector = e.let("vector", vector_at(state, chunk), vector_extent(state))
        with e.when(in_row(state, chunk, vector)):
            e.narrow_to(vector, state.vectors)
            env = lane_env_of(state, vector, c.vector) | state.kept_env
            for h in vectors:
                w.fill(h, chunk, env, state.lane)
            for h, path in guarded:
                fill_guarded(w, h, path, chunk, env, state.lane)


def load_row(state: RowState) -> None:
    """Every full read of the row, before anything waits: all of the thread's vectors are in flight at once."""
    w, c = state.writer, state.choice
    domain = w.domain
    bodies = [i.body for i in domain.instances]
    touches = [t for t in w.touches(bodies) if is_row_element(domain, t.offset)
               and t.offset.axes() <= {*domain.reduced, *domain.kept}]
    probe_env = lane_env_of(state, vector_at(state, axis("chunk_probe")), c.vector, extents={"chunk_probe": c.chunks}) | state.kept_env
    known = {h.touch for h in state.held}
    vectors = [w.held(t, c.chunks, c.vector, w.runs(t, c.vector, state.lane, probe_env)) for t in touches if t not in known]
    # A row between vectors that is walked again would be read again where it stands behind guards (measured on H200, running sums over 4096
    # f32 behind a zero: 88 us so in a prototype, held 74). Rows of whole vectors are read again from the first-level cache: 69 us, held 72.
    paths = guarded_elements(w, bodies, probe_env, state.lane, c.vector) if w.row_axis and is_multi_stage(domain) else {}
    guarded = [w.held(t, c.chunks, c.vector, False) for t in paths if t not in known]
    state.held = [*state.held, *vectors, *guarded]
    if not vectors and not guarded:
        return
    fill_chunks(state, vectors, [(h, paths[h.touch]) for h in guarded])


def fill_queued(state: RowState, held: Held, into: Affine, chunk: Affine) -> None:
    """The thread's vector `chunk` of a queued row, as vector `into` of the register array."""
    c = state.choice
    queue, first = state.queued[held.touch]
    if state.ring is not None:
        at = state.ring.first(chunk) + state.place * c.vector
    else:
        at = first + (chunk * c.threads + state.place) * c.vector
    state.writer.emitter.emit(VectorLoad(held.array, into * c.vector, queue, at, c.vector))


def vector_extent(state: RowState) -> int:
    """Bound on the number of a vector, those past the row's end included."""
    c = state.choice
    return max(c.chunks * c.threads * max(c.cluster, c.split), 1)


# A walk yields at each vector: (chunk in the register arrays, root axes with the lane as a variable, lanes, arrays). Past the last
# vector it yields single elements, which no array holds: (number of the element, axes, 1, none).
Step = tuple[Affine, dict[str, Affine], int, list[Held]]


def walk_row(state: RowState, bodies: Sequence[Resolved], bounded_rows: bool = False,
             cascade: Cascade | None = None, by_batch: ByBatch | None = None) -> Iterator[Step]:
    """The thread's vectors of the row, one after another.

    The statements that the consumer emits between two yields become the loop's body; a last narrow round covers the rest of the row.
    cascade: what is summed in stretches of the walk. by_batch: what sees the batches of a streamed row.
    """
    w, c = state.writer, state.choice
    e, domain = w.emitter, w.domain
    reduced = set(domain.reduced)
    missing = [t for t in w.touches(bodies) if t.offset.axes() & reduced and not any(h.touch == t for h in state.held)
               and not t.offset.axes() - reduced - set(domain.kept)]
    restart_scans(state, False)
    if state.ring is not None:
        state, missing = _ask_first(state, missing)
    if state.vectors and cascade is not None:
        with cascade.steps("chunk", c.chunks) as chunk:
            yield from _one_vector(state, bodies, missing, chunk, state.row_bounds if bounded_rows else [])
    elif state.vectors and not is_streamed(state):
        with e.loop("chunk", c.chunks, unroll=w.unroll and (c.in_registers or c.groups > 0)) as chunk:
            if state.ring is not None and not bounded_rows:
                state.ring.arrive(chunk)
            yield from _one_vector(state, bodies, missing, chunk, state.row_bounds if bounded_rows else [])
            if state.ring is not None and bounded_rows:
                state.ring.leave(chunk)
    elif state.vectors:
        yield from _walk_in_batches(state, bodies, missing, state.row_bounds if bounded_rows else [], by_batch)
    if state.tail:
        e.emit(Comment(f"the last {state.tail} elements of the row do not fill a vector"))
        base = state.vectors * c.vector
        rows = state.row_bounds if bounded_rows else []
        last = [Bound(state.part, c.split - 1, c.split)] if c.split > 1 else []
        one = [Bound(state.place, 0, 1)] if c.threads > 1 else []
        with e.loop("rest", state.tail) as rest, e.when([*rows, *last, *one]):
            yield rest, lane_env_of(state, rest, 1, base), 1, []


def is_streamed(state: RowState) -> bool:
    """Whether the row is walked in batches of vectors."""
    c = state.choice
    return state.vectors > 0 and isinstance(c.mode, Streamed | Split) and c.batch > 1


def row_room(state: RowState) -> int:
    """Bytes of a row that a thread may hold where a multiprocessor runs one block: three quarters of its registers."""
    device, c = state.writer.device, state.choice
    return 3 * min(device.max_registers_per_thread, device.registers_per_multiprocessor // (c.threads * c.rows))


def _ask_first(state: RowState, missing: list[Touch]) -> tuple[RowState, list[Touch]]:
    """Vectors that do not come through the queue are all asked for before the walk waits for its first piece."""
    w, c = state.writer, state.choice
    e = w.emitter
    probe = lane_env_of(state, axis("vector_probe"), c.vector)
    arrays = _step_arrays(state, [t for t in missing if t not in state.queued], probe, c.chunks)
    with e.loop("chunk", c.chunks, unroll=w.unroll) as chunk:
        vector = e.let("vector", vector_at(state, chunk), vector_extent(state))
        env = lane_env_of(state, vector, c.vector) | state.kept_env
        for h in arrays:
            w.fill(h, chunk, env, state.lane)
    asked = {h.touch for h in arrays}
    return replace(state, held=[*state.held, *arrays]), [t for t in missing if t not in asked]


def restart_scans(state: RowState, of_vectors: bool) -> None:
    """Running values of scans start again: with each walk over the row, or (`of_vectors`) with each vector."""
    e = state.writer.emitter
    for scan in state.writer.running:
        if (scan.before is not None) == of_vectors:
            e.emit(Assign(scan.value, KERNEL_MONOIDS[scan.instance.node.detail].identity(scan.value.dtype)[0]))


def _one_vector(state: RowState, bodies: Sequence[Resolved], missing: list[Touch], chunk: Affine, rows: list[Bound]) -> Iterator[Step]:
    """The vector of one chunk, with what is not held yet loaded for it."""
    w, c = state.writer, state.choice
    e = w.emitter
    vector = e.let("vector", vector_at(state, chunk), vector_extent(state))
    with e.when([*in_row(state, chunk, vector), *rows]):
        e.narrow_to(vector, state.vectors)
        env = lane_env_of(state, vector, c.vector)
        restart_scans(state, True)
        local = _step_arrays(state, missing, env, 1)
        state.load_prepared(vector)
        for h in local:
            if h.touch in state.queued:
                fill_queued(state, h, number(0), chunk)
            else:
                w.fill(h, number(0), env | state.kept_env, state.lane)
        yield chunk, env, c.vector, [*state.held, *local, *vector_operands(w, bodies, env | state.kept_env, state.lane, c.vector)]


def _step_arrays(state: RowState, missing: list[Touch], env: dict[str, Affine], batch: int) -> list[Held]:
    w, c = state.writer, state.choice
    vectors = [t for t in missing if c.vector > 1 and w.runs(t, c.vector, state.lane, env | state.kept_env)]
    return [w.held(t, batch, c.vector, True, step=batch == 1) for t in vectors]


def _unguarded(c: Rows) -> bool:
    """Whether the bounds of a batch's vectors may be told to hold: whole batches end where the row's last chunk does.

    A bound that always holds costs no registers then (matrix times vector, 16384 x 16384 f32: 32 a thread instead of 80; on an H200 232 us
    instead of 236; 8192 x 8192 f64 118 instead of 130). But guarded loads stay ahead of the arithmetic, where the assembler spreads free
    ones among it: short rows of narrow elements, of which few are under way, lose 2 to 4 % without (4096 x 4096 f32).
    """
    return c.chunks % c.batch == 0 and (c.vector <= 2 or c.chunks > 2 * c.batch)


def _walk_in_batches(state: RowState, bodies: Sequence[Resolved], missing: list[Touch], rows: list[Bound],
                     by_batch: ByBatch | None) -> Iterator[Step]:
    """A streamed row, `batch` vectors at a time: their loads are all in flight before the first is used."""
    w, c = state.writer, state.choice
    e = w.emitter
    with e.loop("chunk", -(-c.chunks // c.batch)) as outer:
        probe = lane_env_of(state, axis("vector_probe"), c.vector)
        local = _step_arrays(state, missing, probe, c.batch)
        with e.loop("inner", c.batch, unroll=w.unroll) as inner, _vector_of_batch(state, outer, inner, []) as vector:
            env = lane_env_of(state, vector, c.vector)
            for h in local:
                w.fill(h, inner, env | state.kept_env, state.lane)
        if by_batch is not None:
            by_batch.start()
        with e.loop("inner", c.batch, unroll=w.unroll) as inner, _vector_of_batch(state, outer, inner, rows) as vector:
            env = lane_env_of(state, vector, c.vector)
            yield inner, env, c.vector, [*local, *vector_operands(w, bodies, env | state.kept_env, state.lane, c.vector)]
        if by_batch is not None:
            by_batch.turn()
            with e.loop("inner", c.batch, unroll=w.unroll) as inner, _vector_of_batch(state, outer, inner, rows):
                by_batch.distances(inner)
            by_batch.end()


@contextmanager
def _vector_of_batch(state: RowState, outer: Affine, inner: Affine, rows: list[Bound]) -> Iterator[Affine]:
    """The number of a batch's vector, in a block of statements for where it is there."""
    c, e = state.choice, state.writer.emitter
    chunk = outer * c.batch + inner
    beyond = 0 if _unguarded(c) else c.batch * c.threads
    vector = e.let("vector", vector_at(state, chunk), vector_extent(state) + beyond)
    bounds = [Bound(vector, 0, state.vectors)]
    if c.chunks % c.batch and max(c.split, c.cluster) > 1:
        bounds.append(Bound(chunk, 0, c.chunks))
    with e.when(bounds + rows):
        e.narrow_to(vector, state.vectors)
        yield vector
