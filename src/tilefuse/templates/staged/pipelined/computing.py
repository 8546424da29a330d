"""Chunks of 16 bytes of operands that producing threads compute: loads of vectors first, those of several chunks together; then elements.

    chunk   8 neighbours of a slot in f16        f16(q[j, k]) * s[j]  ->  8 bytes of q, one s; 8 products; one store of 16 bytes
    piece   as many of them as the operand's extent is a multiple of: either all lie inside of it, or none
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilefuse.base.search.limits import SEARCH
from tilefuse.domain.contraction import INNER
from tilefuse.emit.vectors import vector_parts
from tilefuse.ir.affine import NO_EXTENT, Affine, axis, number, substitute
from tilefuse.ir.scalar import Bound, Expr, Guard, const, transform, walk
from tilefuse.kernel.ir import Assign, Declare, If, KExpr, Load, Reg, VectorLoad
from tilefuse.kernel.visit import index_names, register_names
from tilefuse.templates.staged.pipelined.operand import Operand
from tilefuse.templates.staged.pipelined.state import ProductState


@dataclass(frozen=True)
class _Case:
    """An element under the guards that hold on the way to it, and its loaded vectors: by the key of an element's load, its register."""

    element: Expr
    loaded: dict[tuple[object, ...], KExpr]


@dataclass(frozen=True)
class _Choice:
    """Two cases by bounds over the product's axes, which hold for all elements of a piece or for none."""

    bounds: tuple[Bound, ...]
    then: _Case | _Choice
    otherwise: _Case | _Choice


@dataclass(frozen=True)
class Piece:
    """Neighbours along `step` from register `start` of an array on, the first of them at `place`, all of them inside the operand under
    `bounds`."""

    operand: Operand
    array: str
    start: int
    lanes: int
    place: Mapping[str, Affine]
    step: str
    bounds: tuple[Bound, ...]
    cases: _Case | _Choice


def begin_chunk(w: ProductState, operand: Operand, array: str, each: int, place: Mapping[str, Affine], step: str) -> list[Piece]:
    """Declares the chunk's registers and starts its loads. place: of its first element; step: the axis of its neighbours."""
    assert operand.element is not None
    sizes = {operand.line: operand.lines, INNER: w.form.inner}
    lanes = max(n for n in (8, 4, 2, 1) if each % n == 0 and sizes[step] % n == 0)
    w.emit(Declare(array, operand.dtype, each))
    pieces: list[Piece] = []
    for start in range(0, each, lanes):
        at = {a: w.simplified(e + start) if a == step else e for a, e in place.items()}
        bounds = tuple(b for a, e in at.items() for b in w.beyond(e, sizes[a]))
        piece = Piece(operand, array, start, lanes, at, step, bounds, _cases(operand.element, step, lanes, SEARCH.pipelines.guard_cases))
        if bounds:
            w.emit(*(Assign(Reg(array, operand.dtype, number(start + v)), const(0, operand.dtype)) for v in range(lanes)))
        outside = _Registers(w)
        with w.nested() as loads:
            _load_cases(w, piece, piece.cases, outside)
        w.emit(*outside.declared)
        with w.when(bounds):
            w.emit(*loads.statements)
        pieces.append(piece)
    return pieces


def end_chunk(w: ProductState, pieces: list[Piece]) -> None:
    """Computes the elements of a chunk into its registers."""
    for piece in pieces:
        with w.when(piece.bounds):
            _compute_cases(w, piece, piece.cases)


# -- guards ------------------------------------------------------------------------------------------------------------------


def _cases(element: Expr, step: str, lanes: int, most: int) -> _Case | _Choice:
    """The element by the guards that are the same for all neighbours of a piece."""
    guard = next((e for e in walk(element) if isinstance(e, Guard) and all(_is_uniform(b, step, lanes) for b in e.bounds)), None)
    if guard is None or most < 2:
        return _Case(element, {})
    then, otherwise = (_cases(_decided(element, guard, part), step, lanes, most // 2) for part in (guard.then, guard.otherwise))
    return _Choice(guard.bounds, then, otherwise)


def _decided(element: Expr, guard: Expr, part: Expr) -> Expr:
    return transform(element, lambda e: part if e == guard else e)


def _is_uniform(bound: Bound, step: str, lanes: int) -> bool:
    """Whether a bound holds for all of `lanes` neighbours along `step` from a multiple of `lanes` on, or for none."""
    e = bound.index
    if step not in e.axes():
        return True
    ends = [end - e.const for end in (bound.low, bound.high) if abs(end) < NO_EXTENT]
    return e.is_linear and e.coefficient(step) == 1 and all(c % lanes == 0 for a, c in e.terms if a != step) and all(
        end % lanes == 0 for end in ends)


def _here(w: ProductState, piece: Piece, bounds: tuple[Bound, ...]) -> tuple[Bound, ...]:
    """The bounds at a piece's first element, over kernel names."""
    with w.at(**piece.place):
        return tuple(Bound(w.index(b.index), b.low, b.high) for b in bounds)


# -- loads -------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Access:
    """A load of a boundary value: `key` under which the writer holds it; offset and subscripts that data give."""

    key: tuple[object, ...]
    value: str
    offset: Affine
    dynamic: tuple[tuple[KExpr, int], ...]

    def varies(self, lane: str) -> bool:
        """Whether neighbours load different elements."""
        return lane in self.offset.axes() or lane in index_names(self.dynamic)


class _Registers:
    """Register arrays of a piece's loads. A thread takes one case, so that cases share arrays of equal type and length."""

    def __init__(self, w: ProductState) -> None:
        self.w = w
        self.declared: list[Declare] = []
        self.used: set[str] = set()

    def begin_case(self) -> None:
        """Arrays of other cases are free."""
        self.used.clear()

    def take(self, value: str, count: int) -> Reg:
        """An array for `count` loaded elements of a boundary value, which no other load of the case has."""
        dtype = self.w.buffers[value].dtype
        free = (d for d in self.declared if (d.dtype, d.size) == (dtype, count) and d.name not in self.used)
        array = next(free, None)
        if array is None:
            array = Declare(self.w.fresh("loaded"), dtype, count)
            self.declared.append(array)
        self.used.add(array.name)
        return Reg(array.name, dtype, number(0))


def _load_cases(w: ProductState, piece: Piece, cases: _Case | _Choice, outside: _Registers) -> None:
    """Emits the loads of a piece. outside: their registers, which elements read later."""
    if isinstance(cases, _Case):
        outside.begin_case()
        _load_vectors(w, piece, cases, outside)
        return
    with w.nested() as then:
        _load_cases(w, piece, cases.then, outside)
    with w.nested() as otherwise:
        _load_cases(w, piece, cases.otherwise, outside)
    if then.statements or otherwise.statements:
        w.emit(If(_here(w, piece, cases.bounds), tuple(then.statements), tuple(otherwise.statements)))


def _load_vectors(w: ProductState, piece: Piece, case: _Case, outside: _Registers) -> None:
    """Loads that are the same for all neighbours, once; then those of neighbours in memory, as vectors, and of others, one by one."""
    lane, accesses, _ = _tried(w, piece, case)
    for access in (x for x in accesses if not x.varies(lane) and not x.dynamic):
        register = outside.take(access.value, 1)
        w.emit(Assign(register, Load(w.buffers[access.value].name, register.dtype, access.offset)))
        w.hold(access.key, register)
        case.loaded[access.key] = register
    lane, accesses, own = _tried(w, piece, case)
    for access in accesses:
        parts = vector_parts(access.offset, lane, piece.lanes, w.buffers[access.value].dtype)
        by_element = own & register_names(access.dynamic) or lane in index_names(access.dynamic)
        aligned = all(stride % parts[0][1] == 0 for _, stride in access.dynamic)
        is_scattered = parts[0][1] == 1
        if lane not in access.offset.axes() or by_element or not aligned or is_scattered and access.dynamic:
            continue
        places = [w.simplified(substitute(access.offset, {lane: number(v)}, w.extents)) for v in range(piece.lanes)]
        register = outside.take(access.value, piece.lanes)
        source = w.buffers[access.value].name
        w.emit(*(Assign(Reg(register.name, register.dtype, number(v)), Load(source, register.dtype, places[v])) if is_scattered else
                 VectorLoad(register.name, number(v), source, places[v], width, dynamic=access.dynamic) for v, width in parts))
        for v, place in enumerate(places):
            key = (access.value, place, *access.key[2:])
            case.loaded[key] = Reg(register.name, register.dtype, number(v))


def _tried(w: ProductState, piece: Piece, case: _Case) -> tuple[str, list[_Access], frozenset[str]]:
    """A lane's name, the loads of its element outside of guards, and the registers that would hold it."""
    lane = w.fresh("v")
    w.loads.clear()
    w.lookups.clear()
    at = {a: e + axis(lane) if a == piece.step else e for a, e in piece.place.items()}
    with w.nested() as tried, w.at(**at):
        tried.extents[lane] = piece.lanes
        w.expression(case.element)
    accesses = [_Access((value, offset), value, offset, ()) for value, offset in w.loads]
    accesses += [_Access((value, offset, dynamic), value, offset, dynamic) for value, offset, dynamic in w.lookups]
    return lane, accesses, register_names(tried.statements)


# -- elements ----------------------------------------------------------------------------------------------------------------


def _compute_cases(w: ProductState, piece: Piece, cases: _Case | _Choice) -> None:
    if isinstance(cases, _Choice):
        with w.nested() as then:
            _compute_cases(w, piece, cases.then)
        with w.nested() as otherwise:
            _compute_cases(w, piece, cases.otherwise)
        w.emit(If(_here(w, piece, cases.bounds), tuple(then.statements), tuple(otherwise.statements)))
        return
    for key, register in cases.loaded.items():
        w.hold(key, register)
    for v in range(piece.lanes):
        at = {a: w.simplified(e + v) if a == piece.step else e for a, e in piece.place.items()}
        with w.at(**at):
            w.emit(Assign(Reg(piece.array, piece.operand.dtype, number(piece.start + v)), w.expression(cases.element)))
