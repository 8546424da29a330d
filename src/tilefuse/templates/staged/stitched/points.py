"""Elements of a stitched kernel's values at a point of the loop: computed, kept in registers, stored where they belong."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from tilefuse.domain.access import is_vector
from tilefuse.domain.regions import inside
from tilefuse.emit.vectors import vector_parts
from tilefuse.ir.affine import Affine, axis, number, substitute
from tilefuse.ir.dtype import DType
from tilefuse.ir.scalar import Bound, Call, Expr, Lookup, const
from tilefuse.kernel.ir import Assign, Declare, If, KExpr, Load, Reg, Stmt, Store, VectorLoad, VectorStore
from tilefuse.templates.staged.stitched.copies import copied_async
from tilefuse.templates.staged.stitched.plan import Piece
from tilefuse.templates.staged.stitched.values import Path, Point, StitchValues


def point_of_item(w: StitchValues, piece: Piece, item: Affine, width: int, vectors: int) -> tuple[Affine, ...]:
    """Coordinates of an item: the last one counts vectors of `width`."""
    if not piece.region:
        return ()
    counts = [s.extent for s in piece.region[:-1]] + [vectors]
    coordinates: list[Affine] = []
    rest = item
    for n in reversed(range(len(counts))):
        here = rest % counts[n] if n else rest
        name = "x" if n == len(counts) - 1 else f"i{n}"
        coordinates.append(w.let(name, w.simplified(here), counts[n]) if counts[n] > 1 else number(0))
        rest = rest // counts[n]
    coordinates.reverse()
    coordinates[-1] = coordinates[-1] * width
    return tuple(coordinates)


def at_point(w: StitchValues, pieces: list[Piece], local: Point, width: int) -> None:
    """Computes `width` neighbouring elements of every piece and stores them where they belong."""
    region = pieces[0].region
    if width > 1 and _straddles(w, pieces[0], width):
        before, place = w.before_lane, w.keep_at
        for v in range(width):
            w.before_lane = None if before is None else lambda u, v=v: before(u + v)
            w.keep_at = None if place is None else lambda u, v=v: place(u + v)
            at_point(w, pieces, (*local[:-1], local[-1] + v), 1)
        w.before_lane, w.keep_at = before, place
        return
    start = tuple(w.index(s.offset) + x for s, x in zip(region, local, strict=True))
    facts = inside(region, start, w.graph.type_of(pieces[0].value).shape, dict(w.plan.grid))
    needed = tuple(b for b in facts if not w.always(b))
    with w.nested() as inner:
        if pieces[0].kind != "copy" or not copied_async(w, pieces[0], local, width):
            _compute(w, pieces, local, width)
    if not needed:
        w.emit(*inner.statements)
        return
    with w.nested() as other:
        for p in pieces:
            if p.stored:
                for v in range(width):
                    at = tuple(x + (v if n == len(local) - 1 else 0) for n, x in enumerate(start))
                    w.emit(Store(w.shared[p.key].name, w.tile_offset(p, at), const(0, p.dtype)))
            keep(w, p, [const(0, p.dtype)] * width)
    w.emit(If(needed, tuple(inner.statements), tuple(other.statements)))


def keep(w: StitchValues, p: Piece, values: list[KExpr], at: Callable[[Affine], Affine] | None = None) -> None:
    """Neighbouring elements of a piece into its register array, if it stays in one: at `at(v)`, or where `keep_at` says."""
    place = at or w.keep_at
    if p.key not in w.held or place is None:
        return
    for v, value in enumerate(values):
        w.emit(Assign(Reg(w.held[p.key], p.dtype, place(number(v))), value))


def _straddles(w: StitchValues, p: Piece, width: int) -> bool:
    """Whether some of `width` neighbouring elements may lie beyond the end of the last dimension and others not."""
    span, full = p.region[-1], w.graph.type_of(p.value).shape[-1]
    if not inside((span,), (axis("x"),), (full,), dict(w.plan.grid)):
        return False
    return bool(full % width or span.offset.const % width or any(c % width for _, c in span.offset.terms))


def _compute(w: StitchValues, pieces: list[Piece], local: Point, width: int) -> None:
    arrays: dict[int, str] = {}
    for p in pieces:
        if width > 1:
            arrays[p.key] = w.fresh(f"{p.value}_out")
            w.emit(Declare(arrays[p.key], p.dtype, width))
    region = pieces[0].region
    lane = w.fresh("v")
    w.frame.extents[lane] = width
    moving = w.start(region, local, axis(lane) if width > 1 else number(0))
    held = prefetch(w, pieces, moving, lane, width) if width > 1 else []
    looked_up = _vector_lookups(w, pieces, moving, lane, width) if width > 1 else []
    with w.loop("v", width, unroll=w.unroll) as v:
        at = w.start(region, local, v)
        if w.before_lane is not None:
            w.before_lane(v)
        for lookup, axes, vector in looked_up:
            here = {a: w.simplified(substitute(e, {lane: v})) for a, e in axes.items()}
            w.hold(w.lookup_key(lookup, here), replace(vector, index=v))
        for value, index, array, dtype in held:
            w.remember(value, tuple(w.simplified(substitute(e, {lane: v})) for e in index), Reg(array, dtype, v))
        for p in pieces:
            element = _value_of(w, p, at)
            w.remember(p.value, tuple(w.simplified(e) for e in at), element)
            if width > 1:
                w.emit(Assign(Reg(arrays[p.key], p.dtype, v), element))
            else:
                store(w, p, at, element)
                keep(w, p, [element])
    if width > 1:
        for p in pieces:
            store_vector(w, p, w.start(region, local, number(0)), arrays[p.key], number(0), width)
            keep(w, p, [Reg(arrays[p.key], p.dtype, number(v)) for v in range(width)])


def _value_of(w: StitchValues, p: Piece, at: Point) -> KExpr:
    if p.kind == "copy":
        place = Load(w.buffers[p.value].name, p.dtype, w.global_offset(p.value, at))
        return w.known(p.value, tuple(w.simplified(e) for e in at)) or w.register(place, p.dtype, p.value + "_at")
    known = w.known(p.value, tuple(w.simplified(e) for e in at))
    if known is not None:
        return known
    return w.register(w.body(w.nodes[p.value], at), p.dtype, p.value)


def store(w: StitchValues, p: Piece, at: Point, value: KExpr) -> None:
    """One element to shared and global memory, where its piece lies there."""
    if p.stored:
        w.emit(Store(w.shared[p.key].name, w.tile_offset(p, at), value))
    if p.written:
        with w.when(w.writers(p)):
            w.emit(Store(w.buffers[p.value].name, w.global_offset(p.value, at), value))


def store_vector(w: StitchValues, p: Piece, start: Point, array: str, at: Affine, width: int) -> None:
    """`width` elements of a register array to shared and global memory, as vectors where they lie so."""
    lane = w.fresh("v")
    moving = tuple(x + (axis(lane) if n == len(start) - 1 else 0) for n, x in enumerate(start))
    w.frame.extents[lane] = width
    targets: list[tuple[str, Affine, tuple[Bound, ...]]] = []
    if p.stored:
        targets.append((w.shared[p.key].name, w.tile_offset(p, moving), ()))
    if p.written:
        targets.append((w.buffers[p.value].name, w.global_offset(p.value, moving), w.writers(p)))
    for buffer, offset, here in targets:
        with w.when(here):
            for first, part in vector_parts(offset, lane, width, p.dtype):
                w.emit(VectorStore(buffer, substitute(offset, {lane: number(first)}, w.extents), array, at + first, part))


def prefetch(w: StitchValues, pieces: list[Piece], moving: Point, lane: str, width: int) -> list[tuple[str, Point, str, DType]]:
    """Loads that are vectors along the lanes, before the loop over the lanes; those that a choice guards stand under its bounds."""
    vectors: list[tuple[str, Point, str, DType]] = []
    computed = {p.value for p in pieces if p.kind != "copy"}
    for (value, index), paths in _vector_reads(w, pieces, moving, lane, width).items():
        # A value that several branches read, or lanes that chose differently, is read where it is needed.
        path = () if () in paths else next(iter(paths))
        if value in computed or w.known(value, index) is not None or path is None or len(paths) > 1 and path:
            continue
        if value not in w.nodes and value not in w.readable:
            place: tuple[str, Affine, DType] | None = (w.buffers[value].name, w.global_offset(value, index),
                                                       w.buffers[value].dtype)
        else:
            place = w.place(value, index, False)
        if place is not None and is_vector(place[1], lane, width):
            array = w.fresh(f"{value}_v")
            w.emit(Declare(array, place[2], width))
            # Five columns of a thread are no access that a device can make at once.
            parts = vector_parts(place[1], lane, width, place[2]) if width & (width - 1) else [(0, width)]
            loads: tuple[Stmt, ...] = tuple(
                VectorLoad(array, number(start), place[0], substitute(place[1], {lane: number(start)}, w.extents), part)
                for start, part in parts)
            for facts, holds in reversed(path):
                loads = (If(facts, loads),) if holds else (If(facts, (), loads),)
            w.emit(*loads)
            vectors.append((value, index, array, place[2]))
    return vectors


def _vector_lookups(w: StitchValues, pieces: list[Piece], moving: Point, lane: str, width: int
                    ) -> list[tuple[Lookup, dict[str, Affine], Reg]]:
    """Rows of tables whose neighbouring elements the lanes read, as vectors before the loop over the lanes, each with its node's axes.

    A lookup under a condition stays where it is needed.
    """
    vectors: list[tuple[Lookup, dict[str, Affine], Reg]] = []
    for p in pieces:
        node = w.nodes.get(p.value)
        if p.kind != "map" or node is None or node.body is None:
            continue
        axes = dict(zip(node.axes, moving, strict=True))
        for e in _unconditional(node.body):
            place = w.lookup_vector(e, axes, lane, width) if e.value in w.buffers else None
            if place is not None:
                buffer, array = w.buffers[e.value], w.fresh(f"{e.value}_v")
                w.emit(Declare(array, buffer.dtype, width),
                       VectorLoad(array, number(0), buffer.name, place[0], width, dynamic=place[1]))
                vectors.append((e, axes, Reg(array, buffer.dtype)))
    return vectors


def _unconditional(e: Expr) -> Iterator[Lookup]:
    """Lookups that an expression makes whatever its conditions are. Lookups in the subscripts of another one are left out."""
    if isinstance(e, Lookup):
        yield e
    elif isinstance(e, Call):
        for part in e.args:
            yield from _unconditional(part)


def _vector_reads(w: StitchValues, pieces: list[Piece], moving: Point, lane: str, width: int) -> dict[tuple[str, Point], set[Path | None]]:
    """Reads of the pieces at a point, in order, each with the choices under which they do."""
    paths_by_read: dict[tuple[str, Point], set[Path | None]] = {}
    for p in pieces:
        body = None if p.kind == "copy" else w.nodes[p.value].body
        reads: Iterable[tuple[str, Point, Path | None]] = [(p.value, moving, ())] if body is None else \
            w.chosen_reads(body, dict(zip(w.nodes[p.value].axes, moving, strict=True)), lane, width)
        for value, index, path in reads:
            paths_by_read.setdefault((value, tuple(w.simplified(e) for e in index)), set()).add(path)
    return paths_by_read
