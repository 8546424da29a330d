"""The weights of streamed products: copies into a thread's own places of the ring, and its elements as registers.

    step n + slots - 1:  copies under way  ->  ring     |     step n:  ring  ->  registers  ->  expressions  ->  multiplications

Each thread reads its own copies only, so that the ring needs no barrier. Accesses that are no multiples of four bytes in memory, or that
end before the operand's end, are loaded and stored.
"""
from __future__ import annotations

from tilefuse.domain.contraction import COLUMN, INNER
from tilefuse.ir.affine import Affine, axis, number
from tilefuse.ir.scalar import Bound, const
from tilefuse.kernel.asynchronous import AsyncCopy
from tilefuse.kernel.early import PAST_CACHE_BYTES
from tilefuse.kernel.ir import Assign, Declare, KExpr, Load, Reg, VectorLoad, VectorStore
from tilefuse.templates.staged.streamed.form import Stream
from tilefuse.templates.staged.streamed.state import Place, StreamState

# An asynchronous copy moves as many bytes at least. Source: PTX ISA, cp.async.
LEAST_COPY_BYTES = 4


def copies(stream: Stream) -> bool:
    """Whether asynchronous copies bring the weights."""
    return stream.together * stream.dtype.itemsize >= LEAST_COPY_BYTES


def past_cache(w: StreamState) -> bool:
    """Whether all copies are such that they may run before the kernel ahead has ended, as far as their size tells."""
    return all(s.together * s.dtype.itemsize == PAST_CACHE_BYTES and _whole(w, s) for s in w.form.streams)


def fill(w: StreamState, stream: Stream, slot: Affine, first_inner: Affine, first_column: Affine) -> None:
    """A thread's accesses of a step into its places of a slot."""
    for access in range(w.plan.lanes.accesses):
        column, inner = _place(w, access, first_inner, first_column)
        start = ring_place(w, stream, slot, access)
        if copies(stream) and _whole(w, stream):
            with w.when(_bounds(w, column, inner)):
                first = _words(w, stream, column, inner)[0][1]
                for part in range(0, stream.words, stream.together):
                    w.emit(AsyncCopy(w.rings[stream.key].name, w.simplified(start + part), w.buffers[stream.value].name,
                                     w.simplified(first + part), stream.together))
        else:
            _load(w, stream, start, column, inner)


def read(w: StreamState, stream: Stream, slot: Affine, first_inner: Affine, first_column: Affine, array: str,
         places: list[list[int]]) -> None:
    """The right operand's elements of a step into a register array, at `places` by access and element; zeros beyond its end."""
    dtype = w.form.left_dtype
    for access, own in enumerate(places):
        column, inner = _place(w, access, first_inner, first_column)
        words = w.fresh(f"{stream.value}_words")
        whole = _whole(w, stream)
        bounds = _bounds(w, column, inner) if whole else ()
        if bounds or not whole:
            for place in own:
                w.emit(Assign(Reg(array, dtype, number(place)), const(0, dtype)))
        with w.when(bounds):
            w.emit(Declare(words, stream.dtype, stream.words),
                   VectorLoad(words, number(0), w.rings[stream.key].name, w.simplified(ring_place(w, stream, slot, access)),
                              stream.words))
            for n, (value, offset) in enumerate(_words(w, stream, column, inner)):
                w.hold((value, offset), Reg(words, stream.dtype, number(n)))
            for n, place in enumerate(own):
                at = _moved(stream, column, inner, n)
                with w.when(() if whole else _bounds(w, *at)):
                    w.emit(Assign(Reg(array, dtype, number(place)), element(w, stream, *at)))


def element(w: StreamState, stream: Stream, column: Affine, inner: Affine) -> KExpr:
    """An element of the right operand."""
    with w.at(**{COLUMN: column, INNER: inner}):
        return w.value(stream.contraction.right, tuple(w.index(e) for e in stream.index))


def ring_place(w: StreamState, stream: Stream, slot: Affine, access: int) -> Affine:
    """Place of a thread's access in the ring: neighbouring threads have neighbouring places. Units: elements."""
    turn = (slot * w.plan.lanes.accesses + access) * w.plan.choice.num_threads + axis("thread")
    return turn * stream.words


# -- places ------------------------------------------------------------------------------------------------------------------


def _place(w: StreamState, access: int, first_inner: Affine, first_column: Affine) -> tuple[Affine, Affine]:
    column, inner = w.plan.lanes.place(access, axis("thread") % 32, w.env["four"], w.env["eight"])
    return w.simplified(first_column + column), w.simplified(first_inner + inner)


def _moved(stream: Stream, column: Affine, inner: Affine, n: int) -> tuple[Affine, Affine]:
    return (column, inner + n) if stream.along == INNER else (column + n, inner)


def _whole(w: StreamState, stream: Stream) -> bool:
    """Whether every access lies within the operand or beyond its end as a whole."""
    return (w.form.inner if stream.along == INNER else w.form.columns) % stream.elements == 0


def _bounds(w: StreamState, column: Affine, inner: Affine) -> tuple[Bound, ...]:
    return (*w.beyond(column, w.form.columns), *w.beyond(inner, w.form.inner))


def _words(w: StreamState, stream: Stream, column: Affine, inner: Affine) -> list[Place]:
    """The elements of the streamed value that an access brings, in the order of memory."""
    places: dict[Place, None] = {}
    for n in range(stream.elements):
        w.loads.clear()
        with w.nested():
            element(w, stream, *_moved(stream, column, inner, n))
        places |= {p: None for p in w.loads if p[0] == stream.value}
    return list(places)


def _load(w: StreamState, stream: Stream, start: Affine, column: Affine, inner: Affine) -> None:
    """An access by loads of single elements, those beyond the operand's end left zero."""
    array, zero = w.fresh(f"{stream.value}_loaded"), const(0, stream.dtype)
    w.emit(Declare(array, stream.dtype, stream.words))
    for n in range(stream.words):
        w.emit(Assign(Reg(array, stream.dtype, number(n)), zero))
    buffer, numbers = w.buffers[stream.value], {p: n for n, p in enumerate(_words(w, stream, column, inner))}
    for n in range(stream.elements):
        at = _moved(stream, column, inner, n)
        w.loads.clear()
        with w.nested():
            element(w, stream, *at)
        own = [p for p in w.loads if p in numbers]
        with w.when(_bounds(w, *at)):
            for p in own:
                w.emit(Assign(Reg(array, stream.dtype, number(numbers[p])), Load(buffer.name, buffer.dtype, p[1])))
    w.emit(VectorStore(w.rings[stream.key].name, w.simplified(start), array, number(0), stream.words))
