"""Quasi-affine index expressions: integer sums of axes, floor divisions and remainders by constants.

An `Affine` is kept in normal form (sorted terms, no zero coefficient), so equal text means equal value. Bounds and
simplification take the extents of the axes; every axis runs from 0 to its extent - 1. The same expressions serve as
operand subscripts in the graph and as address arithmetic in kernels (there the "axes" are thread, block and loop variables).
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import gcd
from typing import Any, Union


@dataclass(frozen=True, slots=True)
class FloorDiv:
    """floor(of / by), by > 0."""

    of: Affine
    by: int


@dataclass(frozen=True, slots=True)
class Mod:
    """of - by * floor(of / by), by > 0: never negative."""

    of: Affine
    by: int


Atom = Union[str, FloorDiv, Mod]
Extents = Mapping[str, int]


def atom_text(atom: Atom) -> str:
    """Text of one atom, as in the graph's text form."""
    match atom:
        case str():
            return atom
        case FloorDiv(of, by):
            return f"({_operand_text(of)} // {by})"
        case Mod(of, by):
            return f"({_operand_text(of)} % {by})"
    raise TypeError(f"not an index atom: {atom!r}")


def _operand_text(e: Affine) -> str:
    return f"({e})" if len(e.terms) + bool(e.const) > 1 else str(e)


def _atom_key(atom: Atom) -> tuple[int, str]:
    return (0 if isinstance(atom, str) else 1, atom_text(atom))


@dataclass(frozen=True, slots=True)
class Affine:
    """`const` + the sum of coefficient * atom. Build with `axis`, `number` and operators, not by hand."""

    terms: tuple[tuple[Atom, int], ...] = ()
    const: int = 0

    def __add__(self, other: Affine | int) -> Affine:
        if isinstance(other, int):
            return Affine(self.terms, self.const + other)
        return from_terms([*self.terms, *other.terms], self.const + other.const)

    __radd__ = __add__

    def __neg__(self) -> Affine:
        return self * -1

    def __sub__(self, other: Affine | int) -> Affine:
        return self + (-other)

    def __rsub__(self, other: int) -> Affine:
        return (-self) + other

    def __mul__(self, factor: int) -> Affine:
        if factor == 0:
            return Affine()
        return Affine(tuple((atom, c * factor) for atom, c in self.terms), self.const * factor)

    __rmul__ = __mul__

    def __floordiv__(self, by: int) -> Affine:
        return floordiv(self, by, {})

    def __mod__(self, by: int) -> Affine:
        return mod(self, by, {})

    @property
    def is_const(self) -> bool:
        return not self.terms

    @property
    def is_linear(self) -> bool:
        """Whether no floor division or remainder occurs."""
        return all(isinstance(atom, str) for atom, _ in self.terms)

    def coefficient(self, name: str) -> int:
        """Coefficient of the plain axis `name` (occurrences inside divisions do not count)."""
        return next((c for atom, c in self.terms if atom == name), 0)

    def axes(self) -> frozenset[str]:
        """All axes that occur, also inside divisions and remainders."""
        found: set[str] = set()
        for atom, _ in self.terms:
            if isinstance(atom, str):
                found.add(atom)
            else:
                found |= atom.of.axes()
        return frozenset(found)

    def __str__(self) -> str:
        parts: list[str] = []
        for atom, c in self.terms:
            text = atom_text(atom)
            parts.append(text if c == 1 else f"{c}*{text}")
        if self.const or not parts:
            parts.append(str(self.const))
        return " + ".join(parts)


def from_terms(terms: Iterable[tuple[Atom, int]], const: int) -> Affine:
    """The normal form of a sum of terms: equal atoms merged, zeros dropped, sorted."""
    sums: dict[Atom, int] = {}
    for atom, c in terms:
        sums[atom] = sums.get(atom, 0) + c
    kept = sorted(((a, c) for a, c in sums.items() if c), key=lambda t: _atom_key(t[0]))
    return Affine(tuple(kept), const)


def axis(name: str) -> Affine:
    """The expression that is just the axis `name`."""
    return Affine(((name, 1),), 0)


def number(value: int) -> Affine:
    """A constant expression."""
    return Affine((), value)


def bounds(e: Affine, extents: Extents) -> tuple[int, int] | None:
    """Smallest and largest value of `e` (both included), or None where an axis of unknown extent occurs.

    Requires: every extent is at least 1. The interval is exact for linear expressions, conservative otherwise.
    """
    low = high = e.const
    for atom, c in e.terms:
        inner = _atom_bounds(atom, extents)
        if inner is None:
            return None
        a, b = inner[0] * c, inner[1] * c
        low += min(a, b)
        high += max(a, b)
    return low, high


def _atom_bounds(atom: Atom, extents: Extents) -> tuple[int, int] | None:
    match atom:
        case str():
            return (0, max(extents[atom] - 1, 0)) if atom in extents else None
        case FloorDiv(of, by):
            inner = bounds(of, extents)
            return None if inner is None else (inner[0] // by, inner[1] // by)
        case Mod(of, by):
            inner = bounds(of, extents)
            if inner is not None and inner[0] // by == inner[1] // by:
                return inner[0] % by, inner[1] % by
            return 0, by - 1
    raise TypeError(f"not an index atom: {atom!r}")


def floordiv(e: Affine, by: int, extents: Extents) -> Affine:
    """floor(e / by), simplified with what the extents allow. Exact for every point of the domain."""
    if by <= 0:
        raise ValueError(f"division of an index by {by}: the divisor must be positive")
    if by == 1:
        return e
    whole: list[tuple[Atom, int]] = []
    rest: list[tuple[Atom, int]] = []
    for atom, c in e.terms:
        if c % by == 0:
            whole.append((atom, c // by))
        else:
            rest.append((atom, c))
    left = from_terms(rest, e.const % by)
    quotient = from_terms(whole, e.const // by)
    if not left.terms:
        return quotient
    span = bounds(left, extents)
    if span is not None and span[0] // by == span[1] // by:
        return quotient + span[0] // by
    # Pull whole multiples out of single coefficients: 5*x // 4 keeps 5*x (splitting would not help).
    common = by
    for _, c in left.terms:
        common = gcd(common, c)
    if common > 1:
        inner = Affine(tuple((a, c // common) for a, c in left.terms), left.const // common)
        return quotient + floordiv(inner, by // common, extents)
    coarse = _split_by_granule(left, by, extents)
    if coarse is not None:
        granule, upper, lower = coarse
        return quotient + floordiv(upper, by // granule, extents)
    if len(left.terms) == 1 and left.const == 0 and left.terms[0][1] == 1:
        only = left.terms[0][0]
        if isinstance(only, FloorDiv):
            return quotient + floordiv(only.of, only.by * by, extents)
        if isinstance(only, Mod) and only.by % by == 0:
            return quotient + mod(floordiv(only.of, by, extents), only.by // by, extents)
    return quotient + Affine(((FloorDiv(left, by), 1),), 0)


def mod(e: Affine, by: int, extents: Extents) -> Affine:
    """e mod by (never negative), simplified with what the extents allow. Exact for every point of the domain."""
    if by <= 0:
        raise ValueError(f"remainder of an index by {by}: the divisor must be positive")
    if by == 1:
        return Affine()
    left = from_terms([(a, c) for a, c in e.terms if c % by], e.const % by)
    if not left.terms:
        return left
    span = bounds(left, extents)
    if span is not None and span[0] // by == span[1] // by:
        return left - (span[0] // by) * by
    reduced = from_terms([(a, c % by) for a, c in left.terms], left.const)
    if reduced != left:
        span = bounds(reduced, extents)
        if span is not None and span[0] // by == span[1] // by:
            return reduced - (span[0] // by) * by
        left = reduced
    common = gcd(by, left.const)
    for _, c in left.terms:
        common = gcd(common, c)
    if common > 1:
        inner = Affine(tuple((a, c // common) for a, c in left.terms), left.const // common)
        return mod(inner, by // common, extents) * common
    coarse = _split_by_granule(left, by, extents)
    if coarse is not None:
        granule, upper, lower = coarse
        return mod(upper, by // granule, extents) * granule + lower
    if len(left.terms) == 1 and left.const == 0 and left.terms[0][1] == 1:
        only = left.terms[0][0]
        if isinstance(only, Mod) and only.by % by == 0:
            return mod(only.of, by, extents)
    return Affine(((Mod(left, by), 1),), 0)


def _split_by_granule(e: Affine, by: int, extents: Extents) -> tuple[int, Affine, Affine] | None:
    """(g, upper, lower) with e = g * upper + lower, g > 1 a divisor of `by` and 0 <= lower < g everywhere; None if there is none.

    Then floor(e / by) = floor(upper / (by / g)) and e mod by = g * (upper mod (by / g)) + lower: how 8*t + v (v < 8) over a
    row of 4096 becomes t over 512.
    """
    for granule in sorted({gcd(by, c) for _, c in e.terms}, reverse=True):
        if granule <= 1:
            continue
        lower = from_terms([(a, c) for a, c in e.terms if c % granule], e.const % granule)
        span = bounds(lower, extents)
        if span is not None and span[0] >= 0 and span[1] < granule:
            upper = from_terms([(a, c // granule) for a, c in e.terms if c % granule == 0], e.const // granule)
            return granule, upper, lower
    return None


def simplify(e: Affine, extents: Extents) -> Affine:
    """`e` rebuilt from its leaves with all rules, then quotient and remainder of the same value recombined.

    Exact: equal to `e` at every point of the domain given by `extents`.
    """
    total = number(e.const)
    for atom, c in e.terms:
        match atom:
            case str():
                part = number(0) if extents.get(atom) == 1 else axis(atom)
            case FloorDiv(of, by):
                part = floordiv(simplify(of, extents), by, extents)
            case Mod(of, by):
                part = mod(simplify(of, extents), by, extents)
            case _:
                raise TypeError(f"not an index atom: {atom!r}")
        total = total + part * c
    return _recombine(total, extents)


def _recombine(e: Affine, extents: Extents) -> Affine:
    """k*m*floor(x/m) + k*(x mod m) -> k*x, repeated while it shortens the sum."""
    changed = True
    while changed:
        changed = False
        for atom, c in e.terms:
            if not isinstance(atom, Mod):
                continue
            quotient = floordiv(atom.of, atom.by, extents)
            if not quotient.terms:
                continue
            shorter = e - quotient * (c * atom.by) - Affine(((atom, c),), 0) + atom.of * c
            if len(shorter.terms) < len(e.terms):
                e, changed = shorter, True
                break
    return e


def substitute(e: Affine, by_axis: Mapping[str, Affine], extents: Extents | None = None) -> Affine:
    """`e` with axes replaced; axes that are not keys stay. `extents` of the *new* axes enable simplification."""
    known = extents or {}
    total = number(e.const)
    for atom, c in e.terms:
        match atom:
            case str():
                part = by_axis.get(atom, axis(atom))
            case FloorDiv(of, by):
                part = floordiv(substitute(of, by_axis, known), by, known)
            case Mod(of, by):
                part = mod(substitute(of, by_axis, known), by, known)
            case _:
                raise TypeError(f"not an index atom: {atom!r}")
        total = total + part * c
    return _recombine(total, known) if extents is not None else total


def evaluate(e: Affine, values: Mapping[str, Any]) -> Any:
    """The value of `e` where `values` gives each axis an integer or an integer array (broadcast together)."""
    total: Any = e.const
    for atom, c in e.terms:
        match atom:
            case str():
                part = values[atom]
            case FloorDiv(of, by):
                part = evaluate(of, values) // by
            case Mod(of, by):
                part = evaluate(of, values) % by
            case _:
                raise TypeError(f"not an index atom: {atom!r}")
        total = total + part * c
    return total


def render(e: Affine, atom_to_text: Callable[[Atom], str]) -> str:
    """C-like text of the sum, with the printer deciding how an atom is written."""
    parts = []
    for atom, c in e.terms:
        text = atom_to_text(atom)
        parts.append(text if c == 1 else f"{c} * {text}")
    if e.const or not parts:
        parts.append(str(e.const))
    return " + ".join(parts).replace("+ -", "- ")


def linearise(index: tuple[Affine, ...], strides: tuple[int, ...]) -> Affine:
    """The flat offset of a subscript tuple. Units: elements."""
    total = number(0)
    for e, stride in zip(index, strides, strict=True):
        total = total + e * stride
    return total


def delinearise(flat: Affine, shape: tuple[int, ...], extents: Extents) -> tuple[Affine, ...]:
    """Row-major coordinates in `shape` of the flat position `flat`; the inverse of `linearise` with contiguous strides."""
    out: list[Affine] = []
    rest = flat
    for extent in reversed(shape):
        out.append(mod(rest, extent, extents) if extent > 0 else number(0))
        rest = floordiv(rest, max(extent, 1), extents)
    if out and shape[0] > 0:
        # The leading coordinate needs no remainder: the flat position is inside the shape.
        lead = flat
        for extent in reversed(shape[1:]):
            lead = floordiv(lead, max(extent, 1), extents)
        out[-1] = lead
    return tuple(reversed(out))


def row_major_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a dense row-major tensor. Units: elements."""
    strides: list[int] = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))
