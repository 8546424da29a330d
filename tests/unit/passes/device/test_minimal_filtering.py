"""Minimal filtering: the identity in exact fractions, the published matrices, and expressions that share parts."""
from __future__ import annotations

from fractions import Fraction
from random import Random

import pytest

from tilefuse.ir.affine import number
from tilefuse.ir.dtype import F64
from tilefuse.ir.scalar import Call, Const, Expr, Read, walk
from tilefuse.passes.device.minimal_filtering import Matrix, applied, minimal_filtering

SIZES = [(1, 3), (2, 3), (3, 3), (4, 3), (2, 2), (3, 2), (4, 2), (2, 5), (3, 4)]


def times(matrix: Matrix, vector: list[Fraction]) -> list[Fraction]:
    """matrix @ vector, exactly."""
    return [sum((c * x for c, x in zip(row, vector, strict=True)), Fraction(0)) for row in matrix]


@pytest.mark.parametrize(("results", "taps"), SIZES)
def test_filtering_is_exact_in_fractions(results: int, taps: int) -> None:
    """A^T [(G g) * (B^T d)] is the filter's result, bit for bit, since all arithmetic is that of fractions."""
    f, draw = minimal_filtering(results, taps), Random(results * 10 + taps)
    assert len(f.inputs) == len(f.filters) == f.positions == results + taps - 1
    for _ in range(20):
        d = [Fraction(draw.randint(-99, 99), draw.randint(1, 9)) for _ in range(f.positions)]
        g = [Fraction(draw.randint(-99, 99), draw.randint(1, 9)) for _ in range(taps)]
        products = [a * b for a, b in zip(times(f.filters, g), times(f.inputs, d), strict=True)]
        assert times(f.outputs, products) == [sum((d[i + k] * g[k] for k in range(taps)), Fraction(0)) for i in range(results)]


def test_matrices_are_the_published_ones() -> None:
    """Those of Lavin and Gray, up to signs that stand in B instead of G, or in both."""
    published: dict[int, tuple[list[list[int]], list[list[int]]]] = {
        2: ([[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]], [[1, 1, 1, 0], [0, 1, -1, -1]]),
        4: ([[4, 0, -5, 0, 1, 0], [0, -4, -4, 1, 1, 0], [0, 4, -4, -1, 1, 0], [0, -2, -1, 2, 1, 0], [0, 2, -1, -2, 1, 0],
             [0, 4, 0, -5, 0, 1]], [[1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 1]])}
    for results, (inputs, outputs) in published.items():
        f = minimal_filtering(results, 3)
        for row, theirs in zip(f.inputs, inputs, strict=True):
            assert list(row) in (theirs, [-c for c in theirs])
        assert [[abs(c) for c in row] for row in f.outputs] == [[abs(c) for c in row] for row in outputs]


def test_too_few_points() -> None:
    """F(6, 3) takes more points than are known."""
    with pytest.raises(ValueError, match="takes 7 points beside infinity, and 5 are known"):
        minimal_filtering(6, 3)


def value(e: Expr, by_name: dict[str, Fraction]) -> Fraction:
    """An expression of sums and products in exact fractions."""
    match e:
        case Read(name, _):
            return by_name[name]
        case Const():
            return Fraction(e.value)
        case Call(fn, (a, b)):
            x, y = value(a, by_name), value(b, by_name)
            return {"add": x + y, "sub": x - y, "mul": x * y}[fn]
    raise AssertionError(e)


@pytest.mark.parametrize(("results", "most"), [(2, (4, 6)), (4, (20, 16))])
def test_expressions_are_the_products_and_share_parts(results: int, most: tuple[int, int]) -> None:
    """Operations of one dimension, equal parts once, multiplications included."""
    f, draw = minimal_filtering(results, 3), Random(results)
    for matrix, limit in zip((f.inputs, f.outputs), most, strict=True):
        names = [f"d{n}" for n in range(f.positions)]
        expressions = applied(matrix, [Read(n, (number(0),)) for n in names], F64)
        vector = {n: Fraction(draw.randint(-99, 99), 8) for n in names}
        assert [value(e, vector) for e in expressions] == times(matrix, list(vector.values()))
        assert len({x for e in expressions for x in walk(e) if isinstance(x, Call)}) <= limit
