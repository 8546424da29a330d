"""Whether an index expression numbers the points of its axes: each of 0 .. n - 1 at exactly one point. Decided at any size.

An axis is a number in a mixed radix: quotients and remainders by constants are runs of its digits. Once every atom is a sum of digits the
expression is a linear form on a box, and that numbers the box exactly where its coefficients are the weights of a mixed radix.

    5*(x % 3) + x // 3,  x < 15:   x = 3*h + l,   5*l + h with h < 5, l < 3:   weights 1, 5 of extents 5, 3
"""
from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from tilefuse.ir.affine import Affine, Extents, FloorDiv, Mod, axis, floordiv, mod, simplify, substitute

Form = tuple[Affine, dict[str, int]]  # an expression and the extents of the axes that it stands on


def numbers_its_axes(e: Affine, extents: Extents) -> bool:
    """Whether `e` takes each of 0 .. n - 1 exactly once while the axes it uses run through their extents, n the product of these.

    Exact: True is a proof. False where there is none: digits that cut one axis at numbers which do not divide each other, or a division
    of a sum of axes that is no number in a mixed radix.
    """
    whole = simplify(e, extents)
    form: Form | None = (whole, {a: extents[a] for a in sorted(whole.axes())})
    # Every step removes a division or a term of its operand, but cutting an axis that was joined before may bring one back.
    for _ in range(4 * (len(whole.axes()) + sum(1 for _ in _divisions(whole)))):
        if form is None or form[0].is_linear:
            break
        form = _cut(*form) or _join(*form)
    return form is not None and form[0].is_linear and _is_mixed_radix(*form)


def _is_mixed_radix(e: Affine, sizes: Extents) -> bool:
    """Whether a linear form numbers its box: every coefficient, from the least, is the product of the extents before it.

    An axis of negative coefficient counts down from its last value, which the constant must make up for.
    """
    weights = [(e.coefficient(a), extent) for a, extent in sizes.items() if extent > 1]
    step = 1
    for weight, extent in sorted((abs(c), extent) for c, extent in weights):
        if weight != step:
            return False
        step *= extent
    return e.const + sum(c * (extent - 1) for c, extent in weights if c < 0) == 0


def _divisions(e: Affine) -> Iterator[FloorDiv | Mod]:
    """Divisions and remainders in `e`, the inner ones first."""
    for atom, _ in e.terms:
        if not isinstance(atom, str):
            yield from _divisions(atom.of)
            yield atom


def _join(e: Affine, sizes: dict[str, int]) -> Form | None:
    """`e` with two axes as one, where a division or remainder takes a sum in which they run on into each other; None if none does."""
    divisions = [atom for atom in _divisions(e) if atom.of.is_linear]
    # Coefficients under a remainder are known up to its multiples only: divisions say more.
    for atom in sorted(divisions, key=lambda atom: isinstance(atom, Mod)):
        linear = [(name, c) for name, c in atom.of.terms if isinstance(name, str)]
        for outer, c in linear:
            for inner, k in linear:
                apart = c - k * sizes[inner]
                if outer != inner and (apart % atom.by if isinstance(atom, Mod) else apart) == 0:
                    return _joined(e, sizes, outer, inner)
    return None


def _joined(e: Affine, sizes: dict[str, int], outer: str, inner: str) -> Form:
    """`e` over an axis that counts the points of two, which are its quotient and remainder."""
    name, by = _fresh(sizes), sizes[inner]
    joined = {a: n for a, n in sizes.items() if a not in (outer, inner)} | {name: sizes[outer] * by}
    parts = {outer: floordiv(axis(name), by, joined), inner: mod(axis(name), by, joined)}
    return simplify(substitute(e, parts, joined), joined), joined


def _cut(e: Affine, sizes: dict[str, int]) -> Form | None:
    """`e` with an axis as its digits, where the divisors of the axis alone divide each other; None if there is no such axis."""
    places: dict[str, set[int]] = {}
    for atom in _divisions(e):
        if len(atom.of.terms) == 1 and atom.of == axis(name := str(atom.of.terms[0][0])):
            places.setdefault(name, set()).add(atom.by)
    for name in sorted(places):
        ends = sorted({1, sizes[name]} | places[name])
        if all(high % low == 0 for low, high in pairwise(ends)):
            return _with_digits(e, sizes, name, ends)
    return None


def _with_digits(e: Affine, sizes: dict[str, int], name: str, ends: list[int]) -> Form:
    """`e` over the digits of an axis in place of it; `ends`: weight of each digit, and the extent of the axis."""
    digits = {a: n for a, n in sizes.items() if a != name}
    total = Affine()
    for low, high in pairwise(ends):
        digit = _fresh(sizes | digits)
        digits[digit] = high // low
        total = total + axis(digit) * low
    return simplify(substitute(e, {name: total}, digits), digits), digits


def _fresh(taken: Extents) -> str:
    """A name of an axis that is not taken yet."""
    return next(name for n in range(len(taken) + 1) if (name := f"d{n}") not in taken)
