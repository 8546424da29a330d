"""Index expressions against brute force: every simplification keeps the value at every point of the domain."""
from __future__ import annotations

from itertools import product

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tilefuse.ir.affine import (
    Affine,
    FloorDiv,
    Mod,
    axis,
    bounds,
    delinearise,
    evaluate,
    floordiv,
    from_terms,
    linearise,
    mod,
    number,
    row_major_strides,
    simplify,
    substitute,
)
from tilefuse.ir.ranges import always, assume, bounds_given, deny, never
from tilefuse.ir.scalar import Bound
from tilefuse.ir.text import parse_affine

AXES = ("i", "j", "k")


@st.composite
def affines(draw: st.DrawFn, depth: int = 2) -> Affine:
    """A sum of up to three terms, some of them divisions or remainders kept as written."""
    terms = []
    for _ in range(draw(st.integers(0, 3))):
        if depth and draw(st.booleans()):
            of, by = draw(affines(depth=depth - 1)), draw(st.sampled_from((1, 2, 3, 4, 6, 8, 12)))
            atom = FloorDiv(of, by) if draw(st.booleans()) else Mod(of, by)
        else:
            atom = draw(st.sampled_from(AXES))
        terms.append((atom, draw(st.integers(-4, 12))))
    return from_terms(terms, draw(st.integers(-9, 9)))


extents = st.fixed_dictionaries({name: st.integers(1, 9) for name in AXES})


def points(sizes: dict[str, int]) -> dict[str, np.ndarray]:
    grid = np.array(list(product(*(range(sizes[name]) for name in AXES))))
    return {name: grid[:, n] for n, name in enumerate(AXES)}


def values(e: Affine, sizes: dict[str, int]) -> np.ndarray:
    grid = points(sizes)
    return np.broadcast_to(evaluate(e, grid), grid["i"].shape)


@given(affines(), extents)
def test_simplify_keeps_every_value(e: Affine, sizes: dict[str, int]) -> None:
    assert (values(simplify(e, sizes), sizes) == values(e, sizes)).all()


@given(affines(), extents)
def test_simplify_without_extents_keeps_every_value(e: Affine, sizes: dict[str, int]) -> None:
    assert (values(simplify(e, {}), sizes) == values(e, sizes)).all()


@given(affines(), extents)
def test_simplify_twice_changes_nothing(e: Affine, sizes: dict[str, int]) -> None:
    once = simplify(e, sizes)
    assert simplify(once, sizes) == once


@given(affines(), st.integers(1, 24), extents)
def test_division_and_remainder(e: Affine, by: int, sizes: dict[str, int]) -> None:
    exact = values(e, sizes)
    for known in (sizes, {}):
        assert (values(floordiv(e, by, known), sizes) == exact // by).all()
        assert (values(mod(e, by, known), sizes) == exact % by).all()


@given(affines(), affines(), affines(), extents)
def test_substitution(e: Affine, first: Affine, second: Affine, sizes: dict[str, int]) -> None:
    replaced = evaluate(e, points(sizes) | {"i": values(first, sizes), "j": values(second, sizes)})
    for known in (sizes, None):
        assert (values(substitute(e, {"i": first, "j": second}, known), sizes) == replaced).all()


@given(affines(), affines(), st.integers(-5, 5), extents)
def test_sums_and_multiples(e: Affine, other: Affine, factor: int, sizes: dict[str, int]) -> None:
    a, b = values(e, sizes), values(other, sizes)
    assert (values(e + other, sizes) == a + b).all()
    assert (values(e - other, sizes) == a - b).all()
    assert (values(e * factor + 3, sizes) == a * factor + 3).all()
    assert (values(5 - e, sizes) == 5 - a).all()
    assert e + other == other + e
    assert (e - e) == number(0)


@given(affines(), extents)
def test_bounds_contain_every_value(e: Affine, sizes: dict[str, int]) -> None:
    low, high = bounds(e, sizes)
    exact = values(e, sizes)
    assert low <= exact.min() and exact.max() <= high
    if e.is_linear:
        assert (low, high) == (exact.min(), exact.max())


bound_lists = st.lists(st.builds(Bound, affines(depth=1), st.integers(-10, 10), st.integers(-10, 40)), max_size=3)


@given(affines(), bound_lists, bound_lists, extents)
def test_bounds_under_guards_contain_every_value(e: Affine, inner: list[Bound], outer: list[Bound], sizes: dict[str, int]) -> None:
    def holds(tests: list[Bound]) -> np.ndarray:
        inside = np.ones(points(sizes)["i"].shape, dtype=bool)
        for b in tests:
            at = values(b.index, sizes)
            inside &= (at >= b.low) & (at < b.high)
        return inside

    facts = assume(outer, ())
    exact = values(e, sizes)
    for deeper, where in ((assume(inner, facts), holds(inner)), (deny(inner, sizes, facts), ~holds(inner))):
        here = exact[where & holds(outer)]
        low, high = bounds_given(e, sizes, deeper)
        if here.size:
            assert low <= here.min() and here.max() <= high
    for b in inner:
        if always(b, sizes, facts):
            assert (holds([b]) | ~holds(outer)).all()
        if never(b, sizes, facts):
            assert not (holds([b]) & holds(outer)).any()


shapes = st.lists(st.integers(1, 6), min_size=1, max_size=4).map(tuple)


@given(shapes)
def test_delinearise_undoes_linearise(shape: tuple[int, ...]) -> None:
    names = [f"a{n}" for n in range(len(shape))]
    sizes = dict(zip(names, shape, strict=True))
    plain = tuple(axis(n) if sizes[n] > 1 else number(0) for n in names)
    flat = linearise(plain, row_major_strides(shape))
    assert tuple(simplify(e, sizes) for e in delinearise(flat, shape, sizes)) == plain


@given(shapes, st.data())
def test_reshape_there_and_back_is_the_identity(shape: tuple[int, ...], data: st.DataObject) -> None:
    """x.reshape(other).reshape(shape): the composed subscripts simplify to the plain axes."""
    total = int(np.prod(shape))
    first = data.draw(st.sampled_from([d for d in range(1, total + 1) if total % d == 0]))
    other = (first, total // first)
    names = [f"a{n}" for n in range(len(shape))]
    sizes = dict(zip(names, shape, strict=True))
    plain = tuple(axis(n) if sizes[n] > 1 else number(0) for n in names)
    there = delinearise(linearise(plain, row_major_strides(shape)), other, sizes)
    back = delinearise(linearise(there, row_major_strides(other)), shape, sizes)
    grid = dict(zip(names, np.indices(shape).reshape(len(shape), -1), strict=True))
    for found, expected in zip(back, plain, strict=True):
        assert (np.asarray(evaluate(found, grid)) == evaluate(expected, grid)).all()
    assert tuple(simplify(e, sizes) for e in back) == plain


@given(affines())
def test_text_round_trip(e: Affine) -> None:
    assert parse_affine(str(e)) == e
    assert str(parse_affine(str(e))) == str(e)


@given(affines(), affines())
def test_equal_text_means_equal_value(a: Affine, b: Affine) -> None:
    assert (str(a) == str(b)) == (a == b)
