"""The domain of tiles of a pattern: every element of a tile is written out, choices by position are decided, and equal parts are shared.

    V[p, q, t] = p == 0 ? (q == 0 ? .. : ..) : ..     over p < 6, q < 6, t      ->      V[0, 0, t], V[0, 1, t], .. V[5, 5, t]   over t

An axis belongs to the tile if its position, or its position in a piece of fixed length, chooses between formulas. Each read and each
operation is an instance of its own, so that the emitter computes it once for all elements of the tile that need it.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from math import prod

from tilefuse.domain.resolved import Domain, Instance, Resolved, Touch, Use, resolved_children, resolved_dtype, resolved_walk
from tilefuse.ir.affine import Affine, Mod, axis, bounds, number, substitute
from tilefuse.ir.dtype import DType
from tilefuse.ir.graph import Node, Type
from tilefuse.ir.ranges import always, never
from tilefuse.ir.scalar import Bound, Call, Const, Guard, Index, const

Sides = tuple[tuple[str, int], ...]


def sides_of(domain: Domain) -> Sides:
    """The axes of a tile and its elements along each, in the order of the domain; empty where no axis has a formula for each place.

        select(p == 0, a, select(p == 1, b, c))          p < 3        3 elements along p
        select(h mod 2 == 0, a, b)                       h < 13       2 elements along h, of which the last tile lacks one
    """
    formulas: dict[tuple[str, int], set[object]] = {}
    for instance in domain.instances:
        for e in resolved_walk(instance.body):
            match e:
                case Call("select", (Call("eq", (Index(place), Const() as constant)), _, _)):
                    piece = _piece(place, domain)
                    if piece is not None:
                        formulas.setdefault(piece, set()).add(constant.value)
    sides: dict[str, set[int]] = {}
    for (name, side), constants in formulas.items():
        # The last formula needs no comparison.
        if len(constants & set(range(side))) >= side - 1:
            sides.setdefault(name, set()).add(side)
    return tuple((a, min(sides[a])) for a in domain.kept + domain.reduced if len(sides.get(a, ())) == 1)


def _piece(place: Affine, domain: Domain) -> tuple[str, int] | None:
    """The axis along which a position lies, and the places until it begins again; None for another position."""
    if len(place.terms) != 1 or place.const or place.terms[0][1] != 1:
        return None
    atom = place.terms[0][0]
    if isinstance(atom, str):
        return (atom, domain.extents[atom]) if atom in domain.kept + domain.reduced else None
    axes = atom.of.axes()
    return (next(iter(axes)), atom.by) if isinstance(atom, Mod) and len(axes) == 1 and atom.of == axis(next(iter(axes))) else None


@dataclass(frozen=True, slots=True)
class TileStore:
    """One element of a tile that a thread stores: `value` at `offset`, of the instance `key`. inside: bounds of the last tiles."""

    value: str
    key: int
    offset: Affine
    inside: tuple[Bound, ...]


@dataclass(frozen=True, slots=True)
class UnrolledTile:
    """The domain of tiles, whose instances are the parts of one tile, and the stores of a thread.

    domain: its outputs are those of the stores.
    """

    domain: Domain
    stores: tuple[TileStore, ...]


def unrolled_tile(domain: Domain, sides: Sides) -> UnrolledTile:
    """The domain in tiles, written out once. Cost: linear in the parts of a tile.

    Requires: maps without data-dependent reads; the domain does not change afterwards. Exact: the same operations on the same elements.
    """
    if sides not in domain.found_tiles:
        domain.found_tiles[sides] = _written_out(domain, sides)
    known: UnrolledTile = domain.found_tiles[sides]
    return known


def _written_out(domain: Domain, sides: Sides) -> UnrolledTile:
    extents = {a: -(-n // dict(sides).get(a, 1)) for a, n in domain.extents.items()}
    shared = _Parts(extents)
    stores: list[TileStore] = []
    for steps in product(*(range(side) for _, side in sides)):
        places = {a: axis(a) * side + step if extents[a] > 1 else number(step) for (a, side), step in zip(sides, steps, strict=True)}
        element = _Element(domain, shared, places)
        if element.exists:
            stores += [TileStore(name, shared.key_of(element.value(key), name), element.index(offset), element.inside(offset.axes()))
                       for name, key, offset in domain.outputs]
    tiles = Domain(domain.kept, domain.reduced, extents, shared.instances, [(s.value, s.key, s.offset) for s in stores])
    return UnrolledTile(tiles, tuple(stores))


@dataclass
class _Parts:
    """Instances of a tile, each part once. extents: of the domain of tiles."""

    extents: dict[str, int]
    instances: list[Instance] = field(default_factory=list)
    key_by_body: dict[Resolved, int] = field(default_factory=dict)

    def shared(self, body: Resolved, name: str) -> Resolved:
        """A use of the instance that computes the body; constants and uses are themselves."""
        return body if isinstance(body, (Const, Use)) else Use(self.key_of(body, name))

    def key_of(self, body: Resolved, name: str) -> int:
        """Key of the instance that computes the body; the one itself that a use names."""
        if isinstance(body, Use):
            return body.key
        key = self.key_by_body.get(body)
        if key is None:
            key = self.key_by_body[body] = len(self.instances)
            uses = tuple(dict.fromkeys(e.key for e in resolved_walk(body) if isinstance(e, Use)))
            depends = frozenset().union(*map(_axes_of, resolved_walk(body)), *(self.instances[u].depends for u in uses))
            self.instances.append(Instance(key, Node(name, Type(self.dtype(body), ()), "map"), (), body, depends, uses=uses))
        return key

    def dtype(self, body: Resolved) -> DType:
        """The type of a body whose uses are parts."""
        return resolved_dtype(body, Domain((), (), self.extents, self.instances))


def _axes_of(e: Resolved) -> frozenset[str]:
    match e:
        case Touch(_, _, offset, _):
            return frozenset(offset.axes())
        case Index(place):
            return frozenset(place.axes())
        case Guard(limits, _, _):
            return frozenset().union(*(b.index.axes() for b in limits))
    return frozenset()


@dataclass
class _Element:
    """One element of a tile: the domain's instances at its place. places: axes of the tile over the domain of tiles."""

    domain: Domain
    parts: _Parts
    places: Mapping[str, Affine]
    value_by_key: dict[int, Resolved] = field(default_factory=dict)

    def index(self, e: Affine) -> Affine:
        """An index expression over the domain as one over the domain of tiles."""
        return substitute(e, self.places, self.parts.extents)

    @property
    def exists(self) -> bool:
        """Whether some tile has the element: a tile of 4 along an axis of 3 lacks one."""
        return not any(self._fails(Bound(place, 0, self.domain.extents[a])) for a, place in self.places.items())

    def inside(self, axes: frozenset[str] | set[str]) -> tuple[Bound, ...]:
        """Bounds under which the element exists along some axes: the last tile of an axis may lack it."""
        limits = (Bound(place, 0, self.domain.extents[a]) for a, place in self.places.items() if a in axes)
        return tuple(b for b in limits if not self._holds(b))

    def value(self, key: int) -> Resolved:
        """The value of an instance at the element."""
        if key not in self.value_by_key:
            instance = self.domain.instances[key]
            self.value_by_key[key] = self._part(instance.body, instance.node.name)
        return self.value_by_key[key]

    def _part(self, e: Resolved, name: str) -> Resolved:
        """An expression at the element: a use of a part, a read, or a constant."""
        match e:
            case Const():
                return e
            case Use(key):
                return self.value(key)
            case Call("select", (condition, then, otherwise)) if (decided := self._decided(condition)) is not None:
                return self._part(then if decided else otherwise, name)
            case Call(fn, args):
                return self.parts.shared(Call(fn, tuple(self._part(a, name) for a in args)), name)
            case Guard():
                return self._guard(e, name)
            case Touch(value):
                return self._touch(e, value)
            case Index(place):
                return self.parts.shared(Index(self.index(place)), name)
        raise TypeError(f"not a resolved expression: {e!r}")

    def _decided(self, condition: Resolved) -> bool | None:
        """Whether a position is equal to a number, where that follows from the element's place in its tile."""
        match condition:
            case Call("eq", (Index(place), Const() as constant)):
                span = bounds(self.index(place), self.parts.extents)
                if span is not None and span[0] == span[1]:
                    return span[0] == constant.value
        return None

    def _touch(self, touch: Touch, value: str) -> Resolved:
        """An element of memory, or zero where the element of the tile does not exist and its place is outside the memory that the domain
        touches."""
        offset = self.index(touch.offset)
        reach, legal = bounds(offset, self.parts.extents), bounds(touch.offset, self.domain.extents)
        at = replace(touch, offset=offset)
        if reach is not None and legal is not None and legal[0] <= reach[0] and reach[1] <= legal[1]:
            return at
        limits = self.inside(touch.offset.axes())
        return self.parts.shared(Guard(limits, at, const(0, touch.dtype)), value) if limits else at

    def _guard(self, guard: Guard[Resolved], name: str) -> Resolved:
        limits = tuple(Bound(self.index(b.index), b.low, b.high) for b in guard.bounds)
        if all(map(self._holds, limits)):
            return self._part(guard.then, name)
        if any(map(self._fails, limits)):
            return self._part(guard.otherwise, name)
        outside = self.inside(frozenset().union(*map(_axes_of, _reads_behind(guard))))
        then, otherwise = self._guarded(guard.then, name), self._guarded(guard.otherwise, name)
        # An element that the tile lacks reads nothing: its other branch may read memory as well.
        whole = Guard((*limits, *outside), then, otherwise)
        if outside and any(isinstance(x, Touch) for x in resolved_walk(otherwise)):
            whole = Guard(outside, Guard(limits, then, otherwise), const(0, self.parts.dtype(then)))
        return self.parts.shared(whole, name)

    def _guarded(self, e: Resolved, name: str) -> Resolved:
        """An expression behind a guard, which reads memory only where the guard holds."""
        match e:
            case Call("select", (condition, then, otherwise)) if (decided := self._decided(condition)) is not None:
                return self._guarded(then if decided else otherwise, name)
            case Call(fn, args):
                return Call(fn, tuple(self._guarded(a, name) for a in args))
            case Guard(limits, then, otherwise):
                places = tuple(Bound(self.index(b.index), b.low, b.high) for b in limits)
                return Guard(places, self._guarded(then, name), self._guarded(otherwise, name))
            case Touch():
                return replace(e, offset=self.index(e.offset))
            case Index(place):
                return Index(self.index(place))
        return self._part(e, name)

    def _holds(self, bound: Bound) -> bool:
        return always(bound, self.parts.extents)

    def _fails(self, bound: Bound) -> bool:
        return never(bound, self.parts.extents)


def _reads_behind(guard: Guard[Resolved]) -> Iterator[Resolved]:
    """Reads of memory in the branches of a guard."""
    return (e for branch in resolved_children(guard) for e in resolved_walk(branch) if isinstance(e, Touch))


def num_elements(sides: Sides) -> int:
    """Elements of a tile."""
    return prod(side for _, side in sides)
