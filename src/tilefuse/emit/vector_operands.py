"""Operands that are one vector in memory although their reads are guarded or data-dependent.

    guard(0 <= j < 1024 ? x[i, j] : z[i, j - 1024])     bounds are multiples of the vector: all of it lies on one side
    lookup(t, ids[i], j)                                every lane looks up the same row of t

Both are loaded before the loop over the lanes. Inside the loop the guarded or looked-up element is a register.
"""
from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from tilefuse.domain.access import is_vector, stride_of
from tilefuse.domain.resolved import Resolved, Touch, resolved_walk
from tilefuse.emit.kernel_writer import Held, KernelWriter
from tilefuse.ir.affine import Affine, number, substitute
from tilefuse.ir.scalar import Bound, Call, Const, Guard, Index
from tilefuse.kernel.ir import Declare, If, KExpr, VectorLoad

# The guards around a read, outermost first, each with the side on which the read stands.
Path = tuple[tuple[tuple[Bound, ...], bool], ...]


def vector_operands(writer: KernelWriter, bodies: Iterable[Resolved], lane_env: dict[str, Affine], lane: str, width: int,
                    known: Collection[Touch] = ()) -> list[Held]:
    """Loads, in the current frame, the guarded and looked-up reads that are vectors. The others are read where they are used.

    known: touches that are already loaded.
    """
    path_by_touch = _vectors(writer, bodies, lane_env, lane, width, known)
    if not path_by_touch:
        return []
    point = _Point(writer, lane_env, lane, width)
    vectors = _declared(point, path_by_touch, 1)
    _load(point, vectors, number(0))
    return [h for _, h in vectors]


def guarded_vectors(writer: KernelWriter, bodies: Iterable[Resolved], lane_env: dict[str, Affine], lane: str, width: int,
                    slots: int) -> list[tuple[Path, Held]]:
    """Declares the guarded reads that are vectors, for `slots` vectors of each; `fill_vectors` loads them. Looked-up reads are left out.

    lane_env: at any vector, with a free variable for its place.
    """
    path_by_touch = _vectors(writer, bodies, lane_env, lane, width, ())
    path_by_touch = {t: path for t, path in path_by_touch.items() if path and writer.emitter.buffers[t.value].num_elements}
    return _declared(_Point(writer, lane_env, lane, width), path_by_touch, slots)


def fill_vectors(writer: KernelWriter, vectors: list[tuple[Path, Held]], slot: Affine, lane_env: dict[str, Affine], lane: str) -> None:
    """Loads one vector of each guarded read, at `lane_env`. Loads of several slots wait for nothing between them."""
    if vectors:
        _load(_Point(writer, lane_env, lane, vectors[0][1].width), vectors, slot)


def _vectors(writer: KernelWriter, bodies: Iterable[Resolved], lane_env: dict[str, Affine], lane: str, width: int,
             known: Collection[Touch]) -> dict[Touch, Path]:
    """Guarded and looked-up reads that are vectors, each with its guards."""
    if width == 1 or writer.row_axis:
        return {}  # lanes may lie outside of the row
    bodies = list(bodies)
    paths_by_touch: dict[Touch, set[Path]] = {}
    for body in bodies:
        _collect(body, (), paths_by_touch)
    plain = {*writer.touches(bodies), *known}
    point = _Point(writer, lane_env, lane, width)
    path_by_touch: dict[Touch, Path] = {}
    for touch, paths in paths_by_touch.items():
        # A read on two paths would be loaded on only one of them.
        if touch in plain or len(paths) != 1:
            continue
        path = next(iter(paths))
        if (path or touch.dynamic) and point.is_vector(touch, bool(path)) and all(point.is_uniform(bounds) for bounds, _ in path):
            path_by_touch[touch] = path
    return path_by_touch


def _declared(point: _Point, path_by_touch: Mapping[Touch, Path], slots: int) -> list[tuple[Path, Held]]:
    """Register arrays of `slots` vectors. Reads on the two sides of a guard share one: parts of a concatenation need no more registers than
    one of them."""
    vectors: list[tuple[Path, Held]] = []
    for touch, path in path_by_touch.items():
        shared = next((h.array for _, h in vectors if h.touch.dtype == touch.dtype and all(
            exclude_each_other(path, p) for p, other in vectors if other.array == h.array)), "")
        array = shared or point.writer.emitter.fresh(touch.value + "_v")
        if not shared:
            point.writer.emitter.emit(Declare(array, touch.dtype, slots * point.width))
        vectors.append((path, Held(touch, array, point.width, True, slots == 1, point.subscripts(touch))))
    return vectors


def exclude_each_other(one: Path, other: Path) -> bool:
    """Whether two reads stand on different sides of a guard that both are behind, so that no element takes both."""
    for (bounds, side), (other_bounds, other_side) in zip(one, other, strict=False):
        if bounds != other_bounds:
            return False
        if side != other_side:
            return True
    return False


def guarded_elements(writer: KernelWriter, bodies: Iterable[Resolved], lane_env: dict[str, Affine], lane: str,
                     width: int) -> dict[Touch, Path]:
    """Guarded reads of the row's elements that are no vectors, each with its single path."""
    bodies = list(bodies)
    paths_by_touch: dict[Touch, set[Path]] = {}
    for body in bodies:
        _collect(body, (), paths_by_touch)
    plain = set(writer.touches(bodies))
    point = _Point(writer, lane_env, lane, width)
    chosen: dict[Touch, Path] = {}
    for touch, paths in paths_by_touch.items():
        path = next(iter(paths))
        axes = touch.offset.axes().union(*(b.index.axes() for bounds, _ in path for b in bounds))
        vector = width > 1 and not writer.row_axis and point.is_vector(touch, True) and all(point.is_uniform(bounds) for bounds, _ in path)
        known = touch not in plain and not touch.dynamic and len(paths) == 1 and axes <= lane_env.keys() and not vector
        if known and touch.offset.axes() & set(writer.domain.reduced) and writer.emitter.buffers[touch.value].num_elements:
            chosen[touch] = path
    return chosen


def fill_guarded(writer: KernelWriter, held: Held, path: Path, chunk: Affine, lane_env: dict[str, Affine], lane: str) -> None:
    """Loads, lane by lane, elements that a vector's lanes read behind the guards of `path`. Other lanes keep their values."""
    e = writer.emitter
    with writer.lanes(held.width, lane_env, lane) as v:
        _fill_lane(writer, held, path, chunk * held.width + v, e.cache.get(held.touch.value, ""))


def _fill_lane(writer: KernelWriter, held: Held, path: Path, place: Affine, cache: str) -> None:
    e = writer.emitter
    if not path:
        e.emit(VectorLoad(held.array, place, e.buffers[held.touch.value].name, e.index(held.touch.offset), 1, cache))
        return
    (bounds, side), rest = path[0], path[1:]
    here = tuple(b for b in (Bound(e.index(b.index), b.low, b.high) for b in bounds) if not e.always(b))
    with e.nested() as inner:
        _fill_lane(writer, held, rest, place, cache)
    if side and not here:
        e.emit(*inner.statements)
    elif here:
        e.emit(If(here, tuple(inner.statements)) if side else If(here, (), tuple(inner.statements)))


def _collect(e: Resolved, path: Path, paths_by_touch: dict[Touch, set[Path]]) -> None:
    match e:
        case Touch():
            paths_by_touch.setdefault(e, set()).add(path)
        case Call(_, args):
            for a in args:
                _collect(a, path, paths_by_touch)
        case Guard(bounds, then, otherwise):
            _collect(then, (*path, (bounds, True)), paths_by_touch)
            _collect(otherwise, (*path, (bounds, False)), paths_by_touch)


class _Point:
    """The vector being computed: root axes as functions of its first lane."""

    def __init__(self, writer: KernelWriter, lane_env: dict[str, Affine], lane: str, width: int) -> None:
        self.writer, self.lane, self.width = writer, lane, width
        self.env = writer.emitter.env | lane_env
        self.first = {a: substitute(x, {lane: number(0)}) for a, x in self.env.items()}
        # Loops of reductions by one thread that do not run around this point.
        self.loops = {loop for loop in writer.domain.serial_loops if loop not in self.env}

    def at(self, index: Affine) -> Affine:
        """An index over root axes, converted to kernel names and the lane."""
        return substitute(index, self.env, self.writer.emitter.extents | {self.lane: self.width})

    def is_vector(self, touch: Touch, guarded: bool) -> bool:
        """Whether the lanes read adjacent elements from an aligned offset for all values of the looked-up subscripts."""
        if touch.offset.axes() & self.loops or not is_vector(self.at(touch.offset), self.lane, self.width):
            return False
        if guarded and touch.dynamic:
            return False
        return all(stride % self.width == 0 and self._same_for_all(d) for d, _, stride in touch.dynamic)

    def _same_for_all(self, subscript: Resolved) -> bool:
        """Whether a looked-up subscript is equal in all lanes and uses only plain reads, which are legal at this point."""
        for x in resolved_walk(subscript):
            match x:
                case Const() | Call():
                    pass
                case Touch(_, _, index, ()) | Index(index):
                    if index.axes() & self.loops or self.lane in self.at(index).axes():
                        return False
                case _:
                    return False
        return True

    def is_uniform(self, bounds: tuple[Bound, ...]) -> bool:
        """Whether the bounds hold in all lanes or in none."""
        for b in bounds:
            index = self.at(b.index)
            if b.index.axes() & self.loops:
                return False
            if self.lane in index.axes() and (stride_of(index, self.lane) != 1 or not is_vector(index, self.lane, self.width)
                                              or b.low % self.width or b.high % self.width):
                return False
        return True

    def subscripts(self, touch: Touch) -> tuple[tuple[KExpr, int], ...]:
        """The looked-up subscripts of a touch, read in the current frame."""
        e = self.writer.emitter
        saved, e.env = e.env, self.first
        subscripts = e.dynamic(touch, False)
        e.env = saved
        return subscripts


def _load(point: _Point, vectors: list[tuple[Path, Held]], slot: Affine) -> None:
    """Emits the loads of vectors under the guards of their remaining paths."""
    e = point.writer.emitter
    inner: dict[tuple[Bound, ...], tuple[list[tuple[Path, Held]], list[tuple[Path, Held]]]] = {}
    for path, h in vectors:
        if path:
            (bounds, side), rest = path[0], path[1:]
            inner.setdefault(bounds, ([], []))[0 if side else 1].append((rest, h))
            continue
        at = substitute(h.touch.offset, point.first, e.extents)
        place = number(0) if h.step else slot * h.width
        e.emit(VectorLoad(h.array, place, e.buffers[h.touch.value].name, at, h.width, e.cache.get(h.touch.value, ""), h.dynamic))
    for bounds, (inside, outside) in inner.items():
        here = tuple(b for b in (Bound(substitute(b.index, point.first, e.extents), b.low, b.high) for b in bounds) if not e.always(b))
        if not here:
            _load(point, inside, slot)
            continue
        with e.nested() as then:
            _load(point, inside, slot)
        with e.nested() as otherwise:
            _load(point, outside, slot)
        e.emit(If(here, tuple(then.statements), tuple(otherwise.statements)))
