"""Quasi-affine index expressions: integer sums of axes, floor divisions and remainders by constants.

An `Affine` is kept in normal form (sorted terms, no zero coefficient), so equal text means equal value. Bounds and
simplification take the extents of the axes; every axis runs from 0 to its extent - 1. The same expressions serve as
operand subscripts in the graph and as address arithmetic in kernels (there the "axes" are thread, block and loop variables).
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from math import gcd
from typing import Any, Union

from tilefuse.base.construction import quickly_built


@dataclass(frozen=True, slots=True)
class FloorDiv:
    """floor(of / by), by > 0. `text` is made once: it orders terms, and equal text means equal value."""

    of: Affine
    by: int
    text: str = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", f"({_operand_text(self.of)} // {self.by})")

    def __hash__(self) -> int:
        return hash(self.text)


@dataclass(frozen=True, slots=True)
class Mod:
    """of - by * floor(of / by), by > 0: never negative. `text` as in FloorDiv."""

    of: Affine
    by: int
    text: str = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", f"({_operand_text(self.of)} % {self.by})")

    def __hash__(self) -> int:
        return hash(self.text)


Atom = Union[str, FloorDiv, Mod]
Term = tuple[Atom, int]
Extents = Mapping[str, int]

# Above every value of an index expression: the extent of an axis whose own is not known, the end of a predicate with one side.
NO_EXTENT = 1 << 62


def atom_text(atom: Atom) -> str:
    """Text of one atom, as in the graph's text form."""
    return atom if isinstance(atom, str) else atom.text


def _operand_text(e: Affine) -> str:
    return f"({e})" if len(e.terms) + bool(e.const) > 1 else str(e)


def _term_key(term: Term) -> tuple[bool, str]:
    atom = term[0]
    return (False, atom) if isinstance(atom, str) else (True, atom.text)


@quickly_built
@dataclass(frozen=True, slots=True)
class Affine:
    """`const` + the sum of coefficient * atom. Build with `axis`, `number` and operators, not by hand."""

    terms: tuple[Term, ...] = ()
    const: int = 0

    def __add__(self, other: Affine | int) -> Affine:
        if isinstance(other, int):
            return Affine(self.terms, self.const + other)
        if not other.terms:
            return Affine(self.terms, self.const + other.const)
        if not self.terms:
            return Affine(other.terms, self.const + other.const)
        return from_terms([*self.terms, *other.terms], self.const + other.const)

    __radd__ = __add__

    def __neg__(self) -> Affine:
        return self * -1

    def __sub__(self, other: Affine | int) -> Affine:
        if isinstance(other, int):
            return Affine(self.terms, self.const - other)
        if self.terms == other.terms:  # differences are mostly computed to test whether they are constant
            return Affine((), self.const - other.const)
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
        """Whether the expression has no axis."""
        return not self.terms

    @property
    def is_linear(self) -> bool:
        """Whether no floor division or remainder occurs."""
        for atom, _ in self.terms:  # noqa: SIM110 (a generator takes three times as long, and this is asked for all the time)
            if not isinstance(atom, str):
                return False
        return True

    def coefficient(self, name: str) -> int:
        """Coefficient of the plain axis `name` (occurrences inside divisions do not count)."""
        return next((c for atom, c in self.terms if atom == name), 0)

    def axes(self) -> frozenset[str]:
        """All axes that occur, also inside divisions and remainders."""
        plain = [atom for atom, _ in self.terms if isinstance(atom, str)]
        if len(plain) == len(self.terms):  # nearly all are linear
            return frozenset(plain)
        return frozenset().union(*(axes_of(atom) for atom, _ in self.terms))

    def __str__(self) -> str:
        parts: list[str] = []
        for atom, c in self.terms:
            text = atom_text(atom)
            parts.append(text if c == 1 else f"{c}*{text}")
        if self.const or not parts:
            parts.append(str(self.const))
        return " + ".join(parts)


def axes_of(atom: Atom) -> frozenset[str]:
    """All axes that occur in an atom."""
    return frozenset([atom]) if isinstance(atom, str) else atom.of.axes()


def single_axis(e: Affine) -> str | None:
    """The axis that an index is, if it is one."""
    if len(e.terms) != 1 or e.const:
        return None
    atom, factor = e.terms[0]
    return atom if isinstance(atom, str) and factor == 1 else None


def from_terms(terms: Iterable[Term], const: int) -> Affine:
    """The normal form of a sum of terms: equal atoms merged, zeros dropped, sorted."""
    sums: dict[Atom, int] = {}
    for atom, c in terms:
        sums[atom] = sums[atom] + c if atom in sums else c
    merged = [term for term in sums.items() if term[1]]
    if len(merged) > 1:
        merged.sort(key=_term_key)
    return Affine(tuple(merged), const)


@lru_cache(maxsize=4096, typed=True)
def axis(name: str) -> Affine:
    """The expression that is just the axis `name`."""
    return Affine(((name, 1),), 0)


@lru_cache(maxsize=4096, typed=True)
def number(value: int) -> Affine:
    """A constant expression."""
    return Affine((), value)


def bounds(e: Affine, extents: Extents) -> tuple[int, int] | None:
    """Smallest and largest value of `e` (both included), or None where an axis of unknown extent occurs.

    Requires: every extent is at least 1. The interval is exact for linear expressions, conservative otherwise.
    """
    low = high = e.const
    for atom, c in e.terms:
        if isinstance(atom, str):
            extent = extents.get(atom)
            if extent is None:
                return None
            a, b = 0, (extent - 1) * c if extent > 1 else 0
        else:
            inner = _atom_bounds(atom, extents)
            if inner is None:
                return None
            a, b = inner[0] * c, inner[1] * c
        low += a if c > 0 else b
        high += b if c > 0 else a
    return low, high


def is_within(e: Affine, extent: int, extents: Extents) -> bool:
    """Whether `e` is an index of a dimension of `extent` elements at all places. Requires: as of `bounds`."""
    span = bounds(e, extents)
    return span is not None and span[0] >= 0 and span[1] < extent


def _atom_bounds(atom: FloorDiv | Mod, extents: Extents) -> tuple[int, int] | None:
    inner = bounds(atom.of, extents)
    by = atom.by
    if isinstance(atom, FloorDiv):
        return None if inner is None else (inner[0] // by, inner[1] // by)
    if inner is not None and inner[0] // by == inner[1] // by:
        return inner[0] % by, inner[1] % by
    return 0, by - 1


def _constant_quotient(e: Affine, by: int, extents: Extents) -> int | None:
    """floor(e / by) where it is the same at every point of the domain."""
    span = bounds(e, extents)
    return span[0] // by if span is not None and span[0] // by == span[1] // by else None


def floordiv(e: Affine, by: int, extents: Extents) -> Affine:
    """floor(e / by), simplified by means of the extents. Exact for every point of the domain."""
    if by <= 0:
        raise ValueError(f"division of an index by {by}: the divisor must be positive")
    if by == 1:
        return e
    # Parts of a sorted sum stay sorted, so no part needs from_terms.
    quotient = Affine(tuple([(atom, c // by) for atom, c in e.terms if c % by == 0]), e.const // by)
    remaining = Affine(tuple([term for term in e.terms if term[1] % by]), e.const % by)
    if not remaining.terms:
        return quotient
    same = _constant_quotient(remaining, by, extents)
    if same is not None:
        return quotient + same
    # Pull whole multiples out of single coefficients: 5*x // 4 keeps 5*x (splitting would not help).
    common = by
    for _, c in remaining.terms:
        common = gcd(common, c)
    if common > 1:
        inner = Affine(tuple((a, c // common) for a, c in remaining.terms), remaining.const // common)
        return quotient + floordiv(inner, by // common, extents)
    coarse = _split_by_granule(remaining, by, extents)
    if coarse is not None:
        granule, upper, lower = coarse
        return quotient + floordiv(upper, by // granule, extents)
    if len(remaining.terms) == 1 and remaining.const == 0 and remaining.terms[0][1] == 1:
        only = remaining.terms[0][0]
        if isinstance(only, FloorDiv):
            return quotient + floordiv(only.of, only.by * by, extents)
        if isinstance(only, Mod) and only.by % by == 0:
            return quotient + mod(floordiv(only.of, by, extents), only.by // by, extents)
    return quotient + Affine(((FloorDiv(remaining, by), 1),), 0)


def mod(e: Affine, by: int, extents: Extents) -> Affine:
    """e mod by (never negative), simplified by means of the extents. Exact for every point of the domain."""
    if by <= 0:
        raise ValueError(f"remainder of an index by {by}: the divisor must be positive")
    if by == 1:
        return Affine()
    remaining = Affine(tuple([term for term in e.terms if term[1] % by]), e.const % by)
    if not remaining.terms:
        return remaining
    reduced = Affine(tuple([(a, c % by) for a, c in remaining.terms]), remaining.const)
    # Residues nearest to zero: 7*j mod 8 is -j mod 8, which for j < 8 is 8 - j or 0.
    near = Affine(tuple([(a, c - by if 2 * c > by else c) for a, c in reduced.terms]), remaining.const)
    for same_value in dict.fromkeys((remaining, reduced, near)):
        same = _constant_quotient(same_value, by, extents)
        if same is not None:
            return same_value - same * by
    remaining = reduced
    common = gcd(by, remaining.const)
    for _, c in remaining.terms:
        common = gcd(common, c)
    if common > 1:
        inner = Affine(tuple((a, c // common) for a, c in remaining.terms), remaining.const // common)
        return mod(inner, by // common, extents) * common
    coarse = _split_by_granule(remaining, by, extents)
    if coarse is not None:
        granule, upper, lower = coarse
        return mod(upper, by // granule, extents) * granule + lower
    if len(remaining.terms) == 1 and remaining.const == 0 and remaining.terms[0][1] == 1:
        only = remaining.terms[0][0]
        if isinstance(only, Mod) and only.by % by == 0:
            return mod(only.of, by, extents)
    return Affine(((Mod(remaining, by), 1),), 0)


def _split_by_granule(e: Affine, by: int, extents: Extents) -> tuple[int, Affine, Affine] | None:
    """(g, upper, lower) with e = g * upper + lower, g > 1 a divisor of `by` and 0 <= lower < g everywhere; None if there is none.

    Then floor(e / by) = floor(upper / (by / g)) and e mod by = g * (upper mod (by / g)) + lower: how 8*t + v (v < 8) over a
    row of 4096 becomes t over 512.
    """
    for granule in sorted({gcd(by, c) for _, c in e.terms}, reverse=True):
        if granule <= 1:
            continue
        lower = Affine(tuple([term for term in e.terms if term[1] % granule]), e.const % granule)
        span = bounds(lower, extents)
        if span is not None and span[0] >= 0 and span[1] < granule:
            upper = Affine(tuple([(a, c // granule) for a, c in e.terms if c % granule == 0]), e.const // granule)
            return granule, upper, lower
    return None


def simplify(e: Affine, extents: Extents) -> Affine:
    """`e` rebuilt from its leaves with all rules, then quotient and remainder of the same value recombined.

    Exact: equal to `e` at every point of the domain given by `extents`.
    """
    return _simplify(e, extents, True)


def _simplify(e: Affine, extents: Extents, narrow: bool) -> Affine:
    """narrow: the interval must not grow. Inside a remainder it may, since the remainder's own interval does not depend on it."""
    terms: list[Term] = []
    const = e.const
    for atom, c in e.terms:
        if isinstance(atom, str):
            if extents.get(atom) != 1:
                terms.append((atom, c))
            continue
        of = _simplify(atom.of, extents, isinstance(atom, FloorDiv))
        part = floordiv(of, atom.by, extents) if isinstance(atom, FloorDiv) else mod(of, atom.by, extents)
        terms.extend((a, k * c) for a, k in part.terms)
        const += part.const * c
    return _recombine(from_terms(terms, const), extents, narrow)


def _recombine(e: Affine, extents: Extents, narrow: bool = True) -> Affine:
    """k*m*floor(x/m) + k*(x mod m) -> k*x, repeated while divisions or terms become fewer.

    A step may widen the interval if later steps narrow it again; if the result is wider than the start, only narrowing steps are used.
    """
    for atom, _ in e.terms:
        if type(atom) is Mod:
            break
    else:
        return e
    joined = _joined(e, extents, False)
    return joined if not narrow or joined is e or _no_wider(joined, e, extents) else _joined(e, extents, True)


def _joined(e: Affine, extents: Extents, narrow: bool) -> Affine:
    shorter: Affine | None = e
    while shorter is not None:
        e = shorter
        candidates = (s for s in _without_one_remainder(e, extents) if _size(s) < _size(e))
        shorter = next((s for s in candidates if not narrow or _no_wider(s, e, extents)), None)
    return e


def _no_wider(new: Affine, old: Affine, extents: Extents) -> bool:
    """Whether the interval of `new` is proved inside that of `old`: x // 4 + 28*(x % 4) must not become 28*x - 111*(x // 4),
    whose reads could no longer be proved in range."""
    inner, outer = bounds(new, extents), bounds(old, extents)
    if inner is None or outer is None:
        return len(new.terms) < len(old.terms)
    return outer[0] <= inner[0] and inner[1] <= outer[1]


def _size(e: Affine) -> tuple[int, int]:
    return sum(not isinstance(atom, str) for atom, _ in e.terms), len(e.terms)


def _without_one_remainder(e: Affine, extents: Extents) -> Iterator[Affine]:
    """Sums equal to `e` in which k*(x mod m) has become k*x - k*m*floor(x/m), or k*(x mod m) + k*m*(floor(x/m) mod n) k*(x mod m*n)."""
    for atom, c in e.terms:
        if isinstance(atom, Mod):
            yield from _joined_remainders(e, atom, c, extents)
            for whole, quotient in _quotients(atom, e, extents):
                scale = -c * atom.by
                terms = [*e.terms, (atom, -c), *((a, k * scale) for a, k in quotient.terms), *((a, k * c) for a, k in whole.terms)]
                yield from_terms(terms, e.const + quotient.const * scale + whole.const * c)


def _joined_remainders(e: Affine, atom: Mod, c: int, extents: Extents) -> Iterator[Affine]:
    """Sums equal to `e`, whose term c*(x mod m) is one remainder with a remainder of floor(x/m)."""
    outer = [(a, k) for a, k in e.terms if isinstance(a, Mod) and k == c * atom.by]
    quotient = floordiv(atom.of, atom.by, extents) if outer else None
    for other, k in outer:
        if other.of == quotient:
            joined = mod(atom.of, atom.by * other.by, extents)
            terms = [*e.terms, (atom, -c), (other, -k), *((a, n * c) for a, n in joined.terms)]
            yield from_terms(terms, e.const + joined.const * c)


def _quotients(remainder: Mod, e: Affine, extents: Extents) -> Iterator[tuple[Affine, Affine]]:
    """Pairs (x, floor(x / m)) with x congruent to the remainder's operand, whose quotient may occur in `e`.

    A remainder's coefficients are below m while those of a division are not, so the two may differ by multiples of m.
    """
    by = remainder.by
    for atom, _ in e.terms:
        if isinstance(atom, FloorDiv) and atom.by == by:
            difference = atom.of - remainder.of
            if difference.const % by == 0 and all(c % by == 0 for _, c in difference.terms):
                yield atom.of, Affine(((atom, 1),))
    quotient = floordiv(remainder.of, by, extents)
    if quotient.terms:
        yield remainder.of, quotient


def substitute(e: Affine, by_axis: Mapping[str, Affine], extents: Extents | None = None) -> Affine:
    """`e` with axes replaced; axes that are not keys stay. `extents` of the *new* axes enable simplification."""
    return _substitute(e, by_axis, extents, True)


def _substitute(e: Affine, by_axis: Mapping[str, Affine], extents: Extents | None, narrow: bool) -> Affine:
    """narrow: as in `_simplify`."""
    known = extents or {}
    if len(e.terms) == 1 and not e.const and e.terms[0][1] == 1 and isinstance(e.terms[0][0], str):
        # A plain axis, as most subscripts are.
        whole = by_axis.get(e.terms[0][0], e)
        return _recombine(whole, known, narrow) if extents is not None else whole
    terms: list[Term] = []
    const = e.const
    for atom, c in e.terms:
        if isinstance(atom, str):
            if atom not in by_axis:
                terms.append((atom, c))
                continue
            part = by_axis[atom]
        else:
            of = _substitute(atom.of, by_axis, extents, isinstance(atom, FloorDiv))
            part = floordiv(of, atom.by, known) if isinstance(atom, FloorDiv) else mod(of, atom.by, known)
        terms.extend(part.terms if c == 1 else [(a, k * c) for a, k in part.terms])
        const += part.const * c
    total = from_terms(terms, const)
    return _recombine(total, known, narrow) if extents is not None else total


def evaluate(e: Affine, values: Mapping[str, Any]) -> Any:
    """The value of `e` where `values` gives each axis an integer or an integer array (broadcast together)."""
    total: Any = e.const
    for atom, c in e.terms:
        if isinstance(atom, str):
            part = values[atom]
        elif isinstance(atom, FloorDiv):
            part = evaluate(atom.of, values) // atom.by
        else:
            part = evaluate(atom.of, values) % atom.by
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
    terms: list[Term] = []
    const = 0
    for e, stride in zip(index, strides, strict=True):
        terms.extend((atom, c * stride) for atom, c in e.terms)
        const += e.const * stride
    return from_terms(terms, const)


def delinearise(flat: Affine, shape: tuple[int, ...], extents: Extents) -> tuple[Affine, ...]:
    """Row-major coordinates in `shape` of the flat position `flat`; the inverse of `linearise` with contiguous strides.

    The first coordinate of an extent above 1 is a quotient without a remainder. For a position outside the shape it is outside its extent,
    which guards test: a remainder would lead back into the shape.
    """
    # Leading extents of 1 have the coordinate 0.
    first = next((n for n, extent in enumerate(shape) if extent != 1), 0)
    out: list[Affine] = []
    # A quotient and its remainder must meet before a remainder by another number reduces their coefficients apart.
    rest = _recombine(flat, extents, True)
    for extent in reversed(shape[first + 1:]):
        out.append(mod(rest, extent, extents) if extent > 0 else number(0))
        rest = floordiv(rest, max(extent, 1), extents)
    if shape:
        out.append(rest if shape[first] > 0 else number(0))
    return (*(number(0) for _ in range(first)), *reversed(out))


def row_major_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a dense row-major tensor. Units: elements."""
    strides: list[int] = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))
