"""Ranges of index expressions inside guards: intervals that follow from extents and from the bounds that hold.

A fact says that an index expression without constant lies in an interval. Entering a guard's `then` adds its bounds as facts;
entering `otherwise` adds the opposite where that is an interval, which is how a concatenation proves its second operand's reads.
"""
from __future__ import annotations

from collections.abc import Iterable

from tilefuse.ir.affine import Affine, Atom, Extents, FloorDiv, Mod
from tilefuse.ir.scalar import Bound

Interval = tuple[int, int]
Facts = tuple[tuple[Affine, Interval], ...]

NOWHERE: Interval = (1, 0)  # the facts contradict each other


def bounds_given(e: Affine, extents: Extents, facts: Facts) -> Interval | None:
    """Smallest and largest value of `e` (both included) where all facts hold; None where an axis of unknown extent occurs.

    NOWHERE where the facts contradict each other: the place is never reached. Conservative otherwise.
    """
    if not e.terms:
        return e.const, e.const
    low: int | None = e.const
    high: int | None = e.const
    for atom, c in e.terms:
        inner = _atom_bounds(atom, extents, facts)
        if inner is None:
            low = high = None
            break
        if inner[0] > inner[1]:
            return NOWHERE
        assert low is not None and high is not None
        low, high = low + min(inner[0] * c, inner[1] * c), high + max(inner[0] * c, inner[1] * c)
    best = None if low is None or high is None else (low, high)
    for n, (known, interval) in enumerate(facts):
        factor = _multiple(e, known)
        if not factor:
            continue
        rest = bounds_given(e - known * factor, extents, facts[:n] + facts[n + 1:])
        if rest is None:
            continue
        if interval[0] > interval[1] or rest[0] > rest[1]:
            return NOWHERE
        ends = (interval[0] * factor, interval[1] * factor)
        ends_of = (rest[0] + min(ends), rest[1] + max(ends))
        best = ends_of if best is None else (max(best[0], ends_of[0]), min(best[1], ends_of[1]))
    return best if best is None or best[0] <= best[1] else NOWHERE


def _multiple(e: Affine, part: Affine) -> int:
    """The factor k for which e - k * part has no atom of `part`; 0 if there is none."""
    coefficients = dict(e.terms)
    factor = 0
    for atom, c in part.terms:
        have = coefficients.get(atom, 0)
        if have == 0 or have % c or (factor and have // c != factor):
            return 0
        factor = have // c
    return factor


def _atom_bounds(atom: Atom, extents: Extents, facts: Facts) -> Interval | None:
    match atom:
        case str():
            return (0, max(extents[atom] - 1, 0)) if atom in extents else None
        case FloorDiv(of, by):
            inner = bounds_given(of, extents, facts)
            return inner if inner is None or inner[0] > inner[1] else (inner[0] // by, inner[1] // by)
        case Mod(of, by):
            inner = bounds_given(of, extents, facts)
            if inner is not None and inner[0] > inner[1]:
                return inner
            if inner is not None and inner[0] // by == inner[1] // by:
                return inner[0] % by, inner[1] % by
            return 0, by - 1
    raise TypeError(f"not an index atom: {atom!r}")


def _joined(facts: Facts, e: Affine, low: int, high: int) -> Facts:
    """The facts with `e` in an interval. One on the same expression is narrowed: many writes to one array nest as many guards."""
    bare, low, high = Affine(e.terms), low - e.const, high - e.const
    for n, (known, interval) in enumerate(facts):
        if known == bare:
            return (*facts[:n], (bare, (max(low, interval[0]), min(high, interval[1]))), *facts[n + 1:])
    return (*facts, (bare, (low, high)))


def assume(bounds: Iterable[Bound], facts: Facts) -> Facts:
    """The facts that hold where all `bounds` do too. Bounds on constants add nothing."""
    for b in bounds:
        if b.index.terms:
            facts = _joined(facts, b.index, b.low, b.high - 1)
    return facts


def deny(bounds: Iterable[Bound], extents: Extents, facts: Facts) -> Facts:
    """The facts that hold where not all `bounds` do: something new only if all but one of them always hold, and that one can be
    broken on one side only."""
    open_ones = [(b, bounds_given(b.index, extents, facts)) for b in bounds]
    open_ones = [(b, r) for b, r in open_ones if r is None or r[0] < b.low or r[1] >= b.high]
    if len(open_ones) != 1:
        return facts
    bound, span = open_ones[0]
    if span is None or not bound.index.terms:
        return facts
    if bound.low >= bound.high:
        return facts
    if span[0] >= bound.low:
        return _joined(facts, bound.index, max(bound.high, span[0]), span[1])
    if span[1] < bound.high:
        return _joined(facts, bound.index, span[0], min(bound.low - 1, span[1]))
    return facts


def always(bound: Bound, extents: Extents, facts: Facts = ()) -> bool:
    """Whether the bound holds at every point that the facts allow."""
    span = bounds_given(bound.index, extents, facts)
    return span is not None and (span[0] > span[1] or (span[0] >= bound.low and span[1] < bound.high))


def never(bound: Bound, extents: Extents, facts: Facts = ()) -> bool:
    """Whether the bound fails at every point that the facts allow."""
    span = bounds_given(bound.index, extents, facts)
    return span is not None and (span[0] > span[1] or span[1] < bound.low or span[0] >= bound.high)
