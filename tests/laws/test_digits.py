"""Index expressions that number their axes, against brute force on small axes: proofs hold, and reshapes and turns are proved."""
from __future__ import annotations

from itertools import permutations
from math import prod

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.laws.test_affine import affines
from tilefuse.ir.affine import Affine, Extents, axis, delinearise, evaluate, floordiv, linearise, mod, row_major_strides, simplify
from tilefuse.ir.digits import numbers_its_axes

# Axes of a tensor whose reshapes cut it at numbers that divide each other, however they are turned.
CHAINS = ((2, 3, 4), (4, 3, 5), (2, 2, 2, 3), (5, 4), (7, 3, 2))


def numbers_by_trial(e: Affine, extents: Extents) -> bool:
    """The same by evaluation at every point."""
    used = sorted(e.axes())
    grid = np.meshgrid(*(np.arange(extents[a]) for a in used), indexing="ij", sparse=True)
    count = prod(extents[a] for a in used)
    values = np.ravel(np.broadcast_to(evaluate(e, dict(zip(used, grid, strict=True))), [extents[a] for a in used]))
    return sorted(values.tolist()) == list(range(count))


@given(affines(), st.fixed_dictionaries({name: st.integers(1, 9) for name in "ijk"}))
def test_proofs_hold_for_any_expression(e: Affine, extents: dict[str, int]) -> None:
    e = simplify(e, extents)
    assert not numbers_its_axes(e, extents) or numbers_by_trial(e, extents)


@st.composite
def walks(draw: st.DrawFn) -> tuple[Affine, dict[str, int]]:
    """The row-major position after reshapes and turns of a tensor. Sometimes a coordinate is halved: two points share a place."""
    divisors = draw(st.lists(st.sampled_from((2, 3, 4, 5)), min_size=2, max_size=4))
    extents = {f"r{n}": extent for n, extent in enumerate(divisors)}
    flat = linearise(tuple(map(axis, extents)), row_major_strides(tuple(divisors)))
    for _ in range(draw(st.integers(1, 3))):
        split = draw(st.permutations(divisors))
        joined = draw(st.integers(1, len(split)))
        shape = (prod(split[:joined]), *split[joined:])
        place = list(delinearise(flat, shape, extents))
        if draw(st.integers(0, 4)) == 0:
            place[0] = floordiv(place[0], 2, extents)
        order = draw(st.permutations(range(len(shape))))
        flat = simplify(linearise(tuple(place[n] for n in order), row_major_strides(tuple(shape[n] for n in order))), extents)
    return flat, extents


@given(walks())
def test_proofs_hold_for_reshapes_and_turns(walk: tuple[Affine, dict[str, int]]) -> None:
    e, extents = walk
    assume(e.terms)
    assert not numbers_its_axes(e, extents) or numbers_by_trial(e, extents)


def test_turned_reshapes_are_proved() -> None:
    """A tensor of one, two or all axes of a chain, reshaped to all of them, turned, reshaped and turned again."""
    for chain in CHAINS:
        for order in permutations(range(len(chain))):
            turned = tuple(chain[n] for n in order)
            for start in ((prod(chain),), (chain[0], prod(chain[1:])), chain):
                extents = {f"r{n}": extent for n, extent in enumerate(start)}
                flat = linearise(tuple(map(axis, extents)), row_major_strides(start))
                place = delinearise(flat, chain, extents)
                once = linearise(tuple(place[n] for n in order), row_major_strides(turned))
                assert numbers_its_axes(once, extents), (chain, order, start)
                again = delinearise(simplify(once, extents), (turned[0], prod(turned[1:])), extents)
                twice = linearise(again[::-1], row_major_strides((prod(turned[1:]), turned[0])))
                assert numbers_its_axes(twice, extents), (chain, order, start)


def test_falling_axes_are_proved() -> None:
    extents = {"i": 6, "j": 4}
    assert numbers_its_axes(Affine((("i", -4), ("j", 1)), 20), extents)
    assert not numbers_its_axes(Affine((("i", -4), ("j", 1)), 19), extents)


def test_the_decision_does_not_depend_on_the_size() -> None:
    """Half of a row, each element twice, misses the other half; a reshape across the rows does not. Up to 2^66 points."""
    for size in (4, 44, 2052, 8200, 1 << 22, 1 << 33):
        extents = {"row": size, "column": size}
        row, column = axis("row"), axis("column")
        assert not numbers_its_axes(row * size + floordiv(column, 2, extents), extents)
        assert not numbers_its_axes(row * size + mod(column, size // 2, extents), extents)
        assert numbers_its_axes(row * size + mod(column, 2, extents) * (size // 2) + floordiv(column, 2, extents), extents)
        flat = row * size + column
        assert numbers_its_axes(mod(flat, 2 * size, extents) * (size // 2) + floordiv(flat, 2 * size, extents), extents)
