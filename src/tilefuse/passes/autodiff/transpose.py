"""The transposition of a read: for an element of the value, the points of the reader's domain that read it.

A gradient in gather form sums, for each element of a value, over the points that read it. It needs no atomic additions, and the sum can
share a kernel with its producer and its users. `inverse` solves the subscripts for the domain's axes: permutations, slices, flips, strides,
broadcasts, reshapes in both directions, padding, overlapping windows. Axes that it leaves unsolved are summed over.

    read %x[n, 2*h + k]  over [n, h, k < 3]      ->      h = i // 2 - r,  k = i % 2 + 2*r  over [r < 2] where 0 <= h and k < 3
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from math import gcd

from tilefuse.ir.affine import (
    Affine,
    Atom,
    FloorDiv,
    Mod,
    axis,
    bounds,
    floordiv,
    from_terms,
    linearise,
    mod,
    number,
    row_major_strides,
    simplify,
)
from tilefuse.ir.names import free_name
from tilefuse.ir.scalar import Bound

# More equations than this mean subscripts that no frontend writes: the solver gives up rather than search.
MAX_STEPS = 200


@dataclass(frozen=True, slots=True)
class Inverse:
    """Where an element of a value is read.

    solution  every axis of the reader's domain, over the value's axes and `free`
    free      axes left over, with their extents: each of their points where `bounds` hold is one more reader
    bounds    hold where the solution is a point of the domain that reads the element
    plain     axes only change their names: whatever was simple over the reader's domain still is
    """

    solution: Mapping[str, Affine]
    free: tuple[tuple[str, int], ...]
    bounds: tuple[Bound, ...]
    plain: bool = False


def inverse(index: Sequence[Affine], extents: Mapping[str, int], axes: Sequence[str], shape: Sequence[int]) -> Inverse | None:
    """The points of the domain `extents` at which `index` is the element at `axes` of a value of that shape; None for irregular subscripts.

    Requires: no extent is 0.
    Exact: each such point is given by exactly one point of the free axes at which all bounds hold.
    """
    plain = _renaming(index, extents, axes, shape)
    if plain is not None:
        return plain
    try:
        return _Solver(index, extents, axes, shape).run()
    except _IrregularError:
        return None


def _renaming(index: Sequence[Affine], extents: Mapping[str, int], axes: Sequence[str], shape: Sequence[int]) -> Inverse | None:
    """The inverse of permutations, broadcasts and slices with step 1, which most reads are; None for any other."""
    solution: dict[str, Affine] = {}
    limits: list[Bound] = []
    for e, a, extent in zip(index, axes, shape, strict=True):
        if not e.terms and not e.const and extent == 1:
            continue
        if len(e.terms) != 1 or e.terms[0][1] != 1:
            return None
        name = e.terms[0][0]
        if not isinstance(name, str) or name in solution or extent == 1:
            return None
        solution[name] = axis(a) - e.const
        if e.const or extents[name] != extent:
            limits.append(Bound(solution[name], 0, extents[name]))
    names_in_use = set(axes)
    free: list[tuple[str, int]] = []
    for name, extent in extents.items():
        if name not in solution:
            if extent == 1:
                solution[name] = number(0)
                continue
            free_axis = free_name(name, names_in_use)
            free.append((free_axis, extent))
            solution[name] = axis(free_axis)
    return Inverse(solution, tuple(free), tuple(limits), not limits)


class _IrregularError(Exception):
    """The subscripts have no form that the solver knows."""


class _Solver:
    """Integer equations between unknowns (the domain's axes, and digits of them) and known expressions (the value's axes, free axes).

    ranges   smallest and largest value of each unknown
    defined  unknowns written in others: an axis in its digits, a descending unknown mirrored
    mixed    unknowns as known - others: (others, known)
    solved   unknowns written in known axes
    known    extents of the known axes
    """

    def __init__(self, index: Sequence[Affine], extents: Mapping[str, int], axes: Sequence[str], shape: Sequence[int]) -> None:
        self.domain = dict(extents)
        self.ranges = {name: (0, extent - 1) for name, extent in extents.items()}
        self.defined: dict[str, Affine] = {}
        self.mixed: dict[str, tuple[Affine, Affine]] = {}
        self.solved: dict[str, Affine] = {}
        self.known = {a: s for a, s in zip(axes, shape, strict=True) if s > 1}
        self.free: list[tuple[str, int]] = []
        self.bounds: list[Bound] = []
        here = [axis(a) if s > 1 else number(0) for a, s in zip(axes, shape, strict=True)]
        self.equations = _as_one_position(list(zip(index, here, shape, strict=True)), extents)
        self.taken = set(axes)

    def run(self) -> Inverse:
        """The inverse. Raises: _IrregularError."""
        for name, (low, high) in list(self.ranges.items()):
            if low == high:
                self.solved[name] = number(low)
        self._split_quotients()
        for _ in range(MAX_STEPS):
            self.equations = [self._moved(lhs, rhs) for lhs, rhs in self.equations]
            if not self.equations:
                break
            self.equations.sort(key=lambda pair: len(pair[0].terms))
            self._step(*self.equations.pop(0))
        else:
            raise _IrregularError
        for name in list(self.ranges):
            if name not in self.solved and name not in self.defined and name not in self.mixed:
                self._set_free(name)
        solution = {name: self._resolved(axis(name)) for name in self.domain}
        for name, (low, high) in self.ranges.items():
            self._limit(self._resolved(axis(name)), low, high)
        return Inverse(solution, tuple(self.free), tuple(self.bounds))

    # -- divisions and remainders become digits

    def _split_quotients(self) -> None:
        """Writes x // n, x % n and (x // n) % m as sums of digits of x, so that all equations are linear."""
        for _ in range(MAX_STEPS):
            atoms = list(dict.fromkeys(a for lhs, _ in self.equations for a, _ in lhs.terms if not isinstance(a, str)))
            if not atoms:
                return
            places = _common_operands({a: _place(a) for a in atoms})
            of = next(iter(places.values()))[0]
            self._split(of, {a: place for a, place in places.items() if place[0] == of})
        raise _IrregularError

    def _split(self, of: Affine, places: Mapping[Atom, tuple[Affine, int, int]]) -> None:
        points = sorted({n for _, low, high in places.values() for n in (low, high) if n} | {1})
        if any(b % a for a, b in zip(points, points[1:])):
            raise _IrregularError
        span = bounds(of, {name: high + 1 for name, (_, high) in self.ranges.items()})
        if span is None or any(low for low, _ in (self.ranges[a] for a in of.axes())):
            raise _IrregularError
        digits: list[Affine] = []
        for low, high in zip(points, [*points[1:], 0]):
            top = (span[0] // low, span[1] // low) if not high else (0, high // low - 1)
            digits.append(axis(self._unknown(f"({of})/{low}", *top)))
        values: dict[Atom, Affine] = {}
        for a, (_, low, high) in places.items():
            parts = [d * (p // low) for d, p in zip(digits, points) if p >= low and (not high or p < high)]
            values[a] = _sum(parts)
        whole = _sum([d * p for d, p in zip(digits, points)])
        name = of.terms[0][0] if len(of.terms) == 1 and of.terms[0][1] == 1 else None
        if isinstance(name, str) and name not in self.defined:
            self.defined[name] = whole - of.const
            values[name] = whole - of.const
        else:
            self.equations.append((of - whole, number(0)))
        self.equations = [(_replaced(lhs, values), rhs) for lhs, rhs in self.equations]

    # -- linear equations

    def _moved(self, lhs: Affine, rhs: Affine) -> tuple[Affine, Affine]:
        """The equation with solved unknowns, written ones and the constant taken out of its left side."""
        while any(a in self.defined or a in self.solved or a in self.mixed for a, _ in lhs.terms):
            for a, c in lhs.terms:
                if a in self.solved and isinstance(a, str):
                    lhs, rhs = lhs - axis(a) * c, rhs - self.solved[a] * c
                elif a in self.mixed and isinstance(a, str):
                    rest, known = self.mixed[a]
                    lhs, rhs = lhs - axis(a) * c - rest * c, rhs - known * c
                elif isinstance(a, str) and a in self.defined:
                    lhs = lhs - axis(a) * c + self.defined[a] * c
        return Affine(lhs.terms), rhs - lhs.const

    def _step(self, lhs: Affine, rhs: Affine) -> None:
        """Solves an equation, or makes simpler ones of it."""
        if not lhs.terms:
            self._limit(rhs, 0, 0)
            return
        step = reduce(gcd, (c for _, c in lhs.terms), 0)
        if step > 1:
            self._limit(mod(rhs, step, self.known), 0, 0)
            lhs, rhs = Affine(tuple((a, c // step) for a, c in lhs.terms)), floordiv(rhs, step, self.known)
        if len(lhs.terms) == 1:
            ((name, c),) = lhs.terms
            assert isinstance(name, str)
            self.solved[name] = rhs * c
            return
        falling = [a for a, c in lhs.terms if c < 0]
        if falling:
            self._mirror(str(falling[0]))
            self.equations.append((lhs, rhs))
            return
        if not self._separate(lhs, rhs) and not self._eliminate(lhs, rhs):
            self._reduce_choices(lhs)
            self.equations.append((lhs, rhs))

    def _separate(self, lhs: Affine, rhs: Affine) -> bool:
        """One equation as two, where part of it stays below the step of the rest: 6*i + j = x with j < 6 is i = x // 6, j = x % 6."""
        for granule in sorted({c for _, c in lhs.terms}, reverse=True):
            lower = Affine(tuple((a, c) for a, c in lhs.terms if c % granule))
            if not lower.terms:
                continue
            least, most = self._span(lower)
            if most - least < granule:
                upper = Affine(tuple((a, c // granule) for a, c in lhs.terms if c % granule == 0))
                shifted = rhs - least
                self.equations.append((upper, floordiv(shifted, granule, self.known)))
                self.equations.append((lower, mod(shifted, granule, self.known) + least))
                return True
        return False

    def _eliminate(self, lhs: Affine, rhs: Affine) -> bool:
        """Puts a digit that another equation has too into that equation: 2*a + q = x and a + b = 4*q + r give 9*a + b = 4*x + r."""
        elsewhere = {a for other, _ in self.equations for a, _ in other.terms}
        for a, c in lhs.terms:
            if c == 1 and a in elsewhere and a not in self.domain:
                self.mixed[str(a)] = (lhs - axis(str(a)), rhs)
                return True
        return False

    def _reduce_choices(self, lhs: Affine) -> None:
        """Several points solve the equation: digits of the unknown with step 1, or else an axis to sum over."""
        steps = sorted(c for _, c in lhs.terms)
        fine = [str(a) for a, c in lhs.terms if c == 1]
        others = reduce(gcd, (c for _, c in lhs.terms if c != 1), 0)
        if len(fine) == 1 and others > 1 and steps[0] == 1:
            name = fine[0]
            low, high = self.ranges[name]
            upper = axis(self._unknown(f"{name}/{others}", 0, (high - low) // others))
            lower = axis(self._unknown(f"{name}%{others}", 0, others - 1))
            self.defined[name] = upper * others + lower + low
            return
        # The fewest points stay to be summed over; of equal ones the later, which are a window's taps rather than its places.
        sizes = [(self._size(str(a)), -n, str(a)) for n, (a, _) in enumerate(lhs.terms)]
        self._set_free(min(sizes)[2])

    # -- unknowns

    def _unknown(self, base_name: str, low: int, high: int) -> str:
        name = base_name
        while name in self.ranges:
            name += "'"
        self.ranges[name] = (low, high)
        if low == high:
            self.solved[name] = number(low)
        return name

    def _mirror(self, name: str) -> None:
        low, high = self.ranges[name]
        self.defined[name] = (low + high) - axis(self._unknown(f"{name}~", low, high))

    def _size(self, name: str) -> int:
        low, high = self.ranges[name]
        return high - low + 1

    def _span(self, e: Affine) -> tuple[int, int]:
        ends = [(self.ranges[str(a)][0] * c, self.ranges[str(a)][1] * c) for a, c in e.terms]
        return sum(min(pair) for pair in ends), sum(max(pair) for pair in ends)

    def _set_free(self, name: str) -> None:
        low, high = self.ranges[name]
        free_axis = free_name(name if name.isidentifier() else "r", self.taken)
        self.known[free_axis] = high - low + 1
        self.free.append((free_axis, high - low + 1))
        self.solved[name] = axis(free_axis) + low

    def _resolved(self, e: Affine) -> Affine:
        lhs, rhs = self._moved(e, number(0))
        assert not lhs.terms
        return -rhs

    def _limit(self, e: Affine, low: int, high: int) -> None:
        """Requires low <= e <= high unless that always holds."""
        span = bounds(e, self.known)
        if span is None or span[0] < low or span[1] > high:
            limit = Bound(e, low, high + 1)
            if limit not in self.bounds:
                self.bounds.append(limit)


def _as_one_position(dimensions: Sequence[tuple[Affine, Affine, int]], extents: Mapping[str, int]) -> list[tuple[Affine, Affine]]:
    """The equations subscript = place, one a dimension; those of a reshape as one equation between row-major positions.

    Each dimension: its subscript, its place, its extent. (4*a + b) // 6 = x and (4*a + b) % 6 = y together are 4*a + b = 6*x + y.
    """
    divided = [d for d in dimensions if not d[0].is_linear]
    for chosen in (divided, list(dimensions)) if divided else ():
        if len(chosen) < 2 or any(span is None or span[0] < 0 or span[1] >= s for e, _, s in chosen for span in (bounds(e, extents),)):
            continue
        strides = row_major_strides(tuple(s for _, _, s in chosen))
        flat = simplify(linearise(tuple(e for e, _, _ in chosen), strides), extents)
        if flat.is_linear:
            rest = [(e, known) for e, known, _ in dimensions if not any(known is k and e is f for f, k, _ in chosen)]
            return [*rest, (flat, linearise(tuple(known for _, known, _ in chosen), strides))]
    return [(e, known) for e, known, _ in dimensions]


def _place(atom: Atom) -> tuple[Affine, int, int]:
    """(x, low, high) with the atom equal to (x % high) // low; high 0: x // low."""
    match atom:
        case FloorDiv(of, by):
            if len(of.terms) == 1 and of.terms[0][1] == 1 and not of.const and isinstance(of.terms[0][0], (FloorDiv, Mod)):
                x, low, high = _place(of.terms[0][0])
                return x, low * by, high
            return of, by, 0
        case Mod(of, by):
            if len(of.terms) == 1 and of.terms[0][1] == 1 and not of.const and isinstance(of.terms[0][0], FloorDiv):
                x, low, high = _place(of.terms[0][0])
                if not high:
                    return x, low, low * by
            return of, 1, by
    raise _IrregularError


def _common_operands(places: Mapping[Atom, tuple[Affine, int, int]]) -> dict[Atom, tuple[Affine, int, int]]:
    """The places, with remainders taken of the same operand as a division where these agree modulo the divisor.

    (9*a + b) // 4 and (a + b) % 4 are both of 9*a + b: remainders are kept with small coefficients, divisions are not.
    """
    whole = list(dict.fromkeys(of for of, _, high in places.values() if not high))
    out: dict[Atom, tuple[Affine, int, int]] = {}
    for a, (of, low, high) in places.items():
        same = (w for w in whole if high and all(c % high == 0 for _, c in (w - of).terms) and (w - of).const % high == 0)
        out[a] = (next(same, of), low, high)
    return out


def _sum(parts: Sequence[Affine]) -> Affine:
    return reduce(lambda a, b: a + b, parts, number(0))


def _replaced(e: Affine, values: Mapping[Atom, Affine]) -> Affine:
    """`e` with whole atoms replaced; inside divisions nothing changes, because those of one operand are replaced together."""
    total = from_terms([(a, c) for a, c in e.terms if a not in values], e.const)
    for a, c in e.terms:
        if a in values:
            total = total + values[a] * c
    return total
