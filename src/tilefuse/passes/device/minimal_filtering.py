"""Matrices of Winograd's minimal filtering F(m, r), from their interpolation points, and the expressions that apply them.

    y = A^T [(G g) * (B^T d)]        m results of a filter of r taps from m + r - 1 elements, by as many multiplications

Cook and Toom: results and filter are polynomials, which are evaluated at m + r - 2 points and at infinity, multiplied there, and
interpolated. Filtering is the transpose of that. All entries are exact fractions.
Source: Lavin and Gray 2015, Fast Algorithms for Convolutional Neural Networks (arXiv:1509.09308), section 4 and the points of section 4.3.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import combinations

from tilefuse.ir.dtype import DType
from tilefuse.ir.scalar import Expr, call, const

Row = tuple[Fraction, ...]
Matrix = tuple[Row, ...]

# Interpolation points beside infinity, in the order in which they are taken: small numbers and their negatives keep rounding errors small.
POINTS = tuple(map(Fraction, (0, 1, -1, 2, -2)))


@dataclass(frozen=True, slots=True)
class MinimalFiltering:
    """F(results, taps). Shapes: `inputs` (B^T): [n, n]; `filters` (G): [n, taps]; `outputs` (A^T): [results, n], with n = `positions`."""

    results: int
    taps: int
    inputs: Matrix
    filters: Matrix
    outputs: Matrix

    @property
    def positions(self) -> int:
        """Products of one dimension."""
        return self.results + self.taps - 1

    @property
    def name(self) -> str:
        """The name of the two-dimensional algorithm: F(4x4, 3x3)."""
        return f"F({self.results}x{self.results}, {self.taps}x{self.taps})"


@cache
def minimal_filtering(results: int, taps: int = 3) -> MinimalFiltering:
    """F(results, taps) from the first points of `POINTS` and infinity.

    Each point's factor stands in G, with a positive sign as in the paper, so that B and A are of small whole numbers.
    Raises: ValueError where there are too few points.
    """
    count = results + taps - 2
    if not 0 < count <= len(POINTS):
        raise ValueError(f"F({results}, {taps}) takes {count} points beside infinity, and {len(POINTS)} are known")
    points = POINTS[:count]
    inputs: list[Row] = []
    filters: list[Row] = []
    for point in points:
        others = [p for p in points if p != point]
        scale = _value(others, point)
        sign = 1 if scale > 0 else -1
        inputs.append((*(sign * c for c in _coefficients(others)), Fraction(0)))
        filters.append(tuple(point**k / abs(scale) for k in range(taps)))
    inputs.append(_coefficients(points))
    filters.append(tuple(Fraction(k == taps - 1) for k in range(taps)))
    outputs = tuple((*(p**k for p in points), Fraction(k == results - 1)) for k in range(results))
    return MinimalFiltering(results, taps, tuple(inputs), tuple(filters), outputs)


def _value(roots: Sequence[Fraction], x: Fraction) -> Fraction:
    """The polynomial with these roots at x."""
    value = Fraction(1)
    for root in roots:
        value *= x - root
    return value


def _coefficients(roots: Sequence[Fraction]) -> Row:
    """Coefficients of the polynomial with these roots, the constant one first."""
    row = [Fraction(1)]
    for root in roots:
        row = [low - root * high for low, high in zip([Fraction(0), *row], [*row, Fraction(0)], strict=True)]
    return tuple(row)


# -- expressions ----------------------------------------------------------------------------------------------------------------


def applied(matrix: Matrix, terms: Sequence[Expr], dtype: DType) -> list[Expr]:
    """Expressions for `matrix @ terms`, a sum of nonzero products for each row, with equal parts written equally so that they are shared.

        columns that differ in signs alone     d1 + d2, d1 - d2           for all rows
        rows that differ in signs alone        even + odd, even - odd     each part once

    Requires: no row is zero.
    """
    columns, parts = _paired_columns(matrix, terms)
    rows = [tuple(column[n] for column in columns) for n in range(len(matrix))]
    expressions: dict[int, Expr] = {}
    for first, second in combinations(range(len(rows)), 2):
        if first in expressions or second in expressions:
            continue
        even = tuple((a + b) / 2 for a, b in zip(rows[first], rows[second], strict=True))
        odd = tuple((a - b) / 2 for a, b in zip(rows[first], rows[second], strict=True))
        if any(even) and any(odd) and not any(a and b for a, b in zip(even, odd, strict=True)):
            total, rest = _sum(even, parts, dtype), _sum(odd, parts, dtype)
            expressions[first], expressions[second] = call("add", total, rest), call("sub", total, rest)
    return [expressions[n] if n in expressions else _sum(row, parts, dtype) for n, row in enumerate(rows)]


def _paired_columns(matrix: Matrix, terms: Sequence[Expr]) -> tuple[list[Row], list[Expr]]:
    """The columns and their terms, where columns that differ in signs alone are replaced by those of the sum and of the difference."""
    columns: list[Row] = [tuple(row[n] for row in matrix) for n in range(len(terms))]
    parts = list(terms)
    free = set(range(len(terms)))
    for first, second in combinations(range(len(terms)), 2):
        if first in free and second in free and columns[first] != columns[second] and all(
                abs(a) == abs(b) for a, b in zip(columns[first], columns[second], strict=True)):
            free -= {first, second}
            a, b = columns[first], columns[second]
            columns[first] = tuple(x if x == y else Fraction(0) for x, y in zip(a, b, strict=True))
            columns[second] = tuple(x if x != y else Fraction(0) for x, y in zip(a, b, strict=True))
            parts[first], parts[second] = call("add", parts[first], parts[second]), call("sub", parts[first], parts[second])
    return columns, parts


def _sum(row: Row, parts: Sequence[Expr], dtype: DType) -> Expr:
    """The sum of the parts times their coefficients, that begins with a positive one where there is one; a common factor comes last."""
    factors = {abs(c) for c in row if c}
    if len(factors) == 1 and sum(map(bool, row)) > 1 and factors != {1}:
        factor = factors.pop()
        return call("mul", _sum(tuple(c / factor for c in row), parts, dtype), const(float(factor), dtype))
    terms = sorted(((c, part) for c, part in zip(row, parts, strict=True) if c), key=lambda term: (term[0] < 0, abs(term[0])))
    total: Expr | None = None
    for c, part in terms:
        if total is None:
            total = part if c == 1 else call("mul", part, const(float(c), dtype))
            continue
        scaled = part if abs(c) == 1 else call("mul", part, const(float(abs(c)), dtype))
        total = call("add" if c > 0 else "sub", total, scaled)
    assert total is not None, "a row of zeros"
    return total
