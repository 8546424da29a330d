"""Values that all rows share, computed once a block ahead of its rows: a norm of the vector that a matrix is multiplied by.

    x[k] -> sum of squares -> x[k] * rsqrt(..) * scale[k]   by all threads of the block -> shared memory
    turn t: row t of the matrix from its slot, times the vector from shared memory
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tilefuse.domain.resolved import Domain, Instance, Touch, direct_touches, resolved_walk
from tilefuse.domain.stages import stages
from tilefuse.emit.kernel_writer import Held, reachable
from tilefuse.ir.affine import Affine, axis, number
from tilefuse.kernel.ir import Assign, Barrier, Comment, Declare, Reg, VectorStore
from tilefuse.templates.rows.modes import Rows
from tilefuse.templates.rows.reduce import reduce_stage
from tilefuse.templates.rows.walk import RowState, fill_chunks, in_row, lane_env_of, vector_at, vector_extent


@dataclass(frozen=True)
class Prepared:
    """Values that all rows of a domain share. reductions: instances, in order; vectors: computed elements along the row that rows read."""

    reductions: tuple[Instance, ...]
    vectors: tuple[Instance, ...]

    @property
    def keys(self) -> frozenset[int]:
        """All of these instances."""
        return frozenset(i.key for i in (*self.reductions, *self.vectors))


NOTHING = Prepared((), ())


def prepared_values(domain: Domain) -> Prepared:
    """The values that a block prepares for its rows: reductions of values that all rows share, vectors that depend on them."""
    moving = {a for a in domain.kept if domain.extents[a] > 1}
    touched: dict[int, frozenset[str]] = {}
    behind: dict[int, bool] = {}
    for i in domain.instances:
        own = {a for x in resolved_walk(i.body) if isinstance(x, Touch) for a in x.offset.axes()} | set(i.depends)
        own |= {a for x in resolved_walk(i.body) if isinstance(x, Touch) and x.dynamic for a in moving}
        touched[i.key] = frozenset(own).union(*(touched[u] for u in i.uses))
        behind[i.key] = i.shared or any(behind[u] for u in i.uses)
    same = {i.key for i in domain.instances if not touched[i.key] & moving and not i.serial}
    plain = all(i.second_of is None and i.node.category == "reduce" for i in domain.instances if i.shared)
    if not moving or not plain or domain.has_scan or domain.scatter is not None:
        return NOTHING
    reductions = tuple(i for i in domain.instances if i.shared and i.key in same and not i.carried)
    readers = [i for i in domain.instances if i.key not in same]
    outputs = {key for _, key, _ in domain.outputs}
    vectors = tuple(i for i in domain.instances if i.key in same and not i.shared and behind[i.key] and i.key not in outputs
                    and i.depends & set(domain.reduced) and any(i.key in r.uses for r in readers))
    if not vectors or outputs & same:
        return NOTHING
    return Prepared(reductions, vectors)


def prepared_reads(domain: Domain) -> frozenset[str]:
    """Boundary values that only the prepared values read."""
    prepared = prepared_values(domain)
    if not prepared.vectors:
        return frozenset()
    read = {t.value for t in read_by_rows(domain, prepared)}
    return frozenset(t.value for i in domain.instances for t in direct_touches(i.body)) - read


def read_by_rows(domain: Domain, prepared: Prepared) -> set[Touch]:
    """Reads of memory that rows make beside the prepared values."""
    roots = [*(key for _, key, _ in domain.outputs), *(i.key for i in domain.instances if i.shared and i.key not in prepared.keys)]
    return {t for i in reachable(domain, roots, set(prepared.keys)) for t in direct_touches(i.body)}


def prepare(state: RowState, prepared: Prepared, kept_env: Mapping[str, Affine]) -> dict[int, str]:
    """Computes the prepared values by all threads of the block. The answer: the shared buffer of each vector, by its key.

    kept_env: any row's place.
    """
    w, domain = state.writer, state.writer.domain
    e = w.emitter
    own = replace(state, choice=_by_block(state), place=axis("thread"), row_of_block=number(0), kept_env=dict(kept_env), row_bounds=[])
    e.env |= kept_env
    own.held = _loaded(own, prepared)
    depth = stages(domain)
    for stage in range(max(depth.values(), default=-1) + 1):
        reduce_stage(own, [i for i in prepared.reductions if depth[i.key] == stage])
    buffers = {v.key: w.shared(v.node.name + "_shared", v.node.type.dtype, domain.num_reduced) for v in prepared.vectors}
    c = own.choice
    e.emit(Comment(f"{', '.join('%' + v.node.name for v in prepared.vectors)}: once for all rows -> shared memory"))
    with e.loop("chunk", c.chunks, unroll=w.unroll) as chunk:
        vector = e.let("vector", vector_at(own, chunk), vector_extent(own))
        with e.when(in_row(own, chunk, vector)):
            e.narrow_to(vector, own.vectors)
            outs = [Reg(e.fresh(v.node.name + "_out"), v.node.type.dtype) for v in prepared.vectors]
            e.emit(*(Declare(o.name, o.dtype, c.vector) for o in outs))
            with w.lanes(c.vector, lane_env_of(own, vector, c.vector), own.lane) as lane:
                w.bind(own.held, chunk, lane)
                values = [e.value(v.key) for v in prepared.vectors]
                e.emit(*(Assign(Reg(o.name, o.dtype, lane), value) for o, value in zip(outs, values, strict=True)))
            for v, o in zip(prepared.vectors, outs, strict=True):
                for first, width, place in own.accesses_of(v.node.type.dtype, vector):
                    e.emit(VectorStore(buffers[v.key], place, o.name, number(first), width))
    e.emit(Barrier("block"))
    return buffers


def _by_block(state: RowState) -> Rows:
    """The choice with all threads of the block at one row."""
    c = state.choice
    threads = c.threads * c.rows
    return replace(c, threads=threads, rows=1, chunks=-(-state.vectors // threads))


def _loaded(own: RowState, prepared: Prepared) -> list[Held]:
    """The reads of the prepared values, loaded at once."""
    w, c, domain = own.writer, own.choice, own.writer.domain
    needed = reachable(domain, [i.key for i in (*prepared.vectors, *prepared.reductions)], set())
    needed = [*needed, *(domain.instances[u] for i in prepared.reductions for u in i.uses)]
    probe = lane_env_of(own, axis("vector_probe"), c.vector, extents={"vector_probe": max(own.vectors, 1)}) | own.kept_env
    touches = [t for t in w.touches(i.body for i in needed) if t.offset.axes() & set(domain.reduced)]
    arrays = [w.held(t, c.chunks, c.vector, w.runs(t, c.vector, own.lane, probe)) for t in touches]
    fill_chunks(own, arrays)
    return arrays
