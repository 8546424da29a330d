"""Regions against brute force: what a block's tile reads through an index map lies in the region that was computed for it."""
from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilefuse.domain import regions
from tilefuse.domain.regions import (
    Region,
    Span,
    inside,
    joined,
    local_strides,
    num_elements,
    region_of,
    stored_elements,
    whole,
    within,
)
from tilefuse.ir.affine import Affine, axis, evaluate, number

AXES = ("i", "j", "k")
Tiling = tuple[dict[str, Span], dict[str, int], dict[str, int]]


@st.composite
def subscripts(draw: st.DrawFn) -> Affine:
    """Sums of axes with small factors, now and then divided, and a constant."""
    e = number(draw(st.integers(-2, 5)))
    for name in draw(st.lists(st.sampled_from(AXES), max_size=2, unique=True)):
        term = axis(name)
        kind = draw(st.sampled_from(("plain", "plain", "plain", "times", "floor", "rest", "turned")))
        e = e + {"plain": term, "times": term * draw(st.integers(2, 4)), "floor": term // draw(st.integers(2, 3)),
                 "rest": term % draw(st.integers(2, 3)), "turned": -1 * term}[kind]
    return e


@st.composite
def tilings(draw: st.DrawFn) -> Tiling:
    """(span of every axis, extents of the grid, extents of the axes)."""
    spans, grid, full = {}, {}, {}
    for name in AXES:
        extent = draw(st.integers(1, 9))
        tile = draw(st.integers(1, extent))
        full[name] = extent
        if tile < extent:
            grid[f"tile_{name}"] = -(-extent // tile)
            spans[name] = Span(axis(f"tile_{name}") * tile, tile)
        else:
            spans[name] = Span(number(0), extent)
    return spans, grid, full


def points(extents: dict[str, int]) -> list[dict[str, int]]:
    """All values of the axes."""
    return [dict(zip(extents, at, strict=True)) for at in product(*(range(e) for e in extents.values()))]


def starts_at(region: Region, block: dict[str, int]) -> list[int]:
    """Where a region starts in one block."""
    return [int(evaluate(s.offset, block)) for s in region]


@settings(max_examples=120, deadline=None)
@given(st.lists(subscripts(), min_size=1, max_size=3), st.lists(tilings(), min_size=2, max_size=4))
def test_known_spans_are_those_of_the_same_tiles_alone(index: list[Affine], several: list[Tiling]) -> None:
    """Tiles share spans: each region is what it is without the others, in whichever order a node names its axes."""
    shape = (7,) * len(index)
    cases = [({a: spans[a] for a in order}, grid) for spans, grid, _ in several for order in (AXES, AXES[::-1])]
    together = [region_of(tuple(index), spans, shape, grid) for spans, grid in cases]
    for (spans, grid), region in zip(cases, together, strict=True):
        regions._divided.cache_clear()
        assert region_of(tuple(index), spans, shape, grid) == region


@settings(max_examples=120, deadline=None)
@given(st.lists(subscripts(), min_size=1, max_size=3), tilings(), st.lists(st.integers(1, 12), min_size=3, max_size=3))
def test_a_region_holds_every_element_that_is_read(index: list[Affine], tiling: Tiling,
                                                   extents: list[int]) -> None:
    """Elements outside the value do not count: their reads stand under guards."""
    spans, grid, full = tiling
    shape = tuple(extents[:len(index)])
    region = region_of(tuple(index), spans, shape, grid)
    assert all(s.extent >= 1 for s in region)
    for block in points(grid):
        first = starts_at(region, block)
        local = {a: s.extent for a, s in spans.items()}
        for at in points(local):
            here = {a: int(evaluate(spans[a].offset, block)) + at[a] for a in AXES}
            if any(here[a] >= full[a] for a in AXES):
                continue
            read = [int(evaluate(e, here)) for e in index]
            if all(0 <= x < n for x, n in zip(read, shape, strict=True)):
                assert all(f <= x < f + s.extent for x, f, s in zip(read, first, region, strict=True)), (block, here, region)


@settings(max_examples=60, deadline=None)
@given(tilings(), st.lists(st.integers(0, 3), min_size=3, max_size=3))
def test_plain_subscripts_have_regions_of_the_tile(tiling: Tiling, shift: list[int]) -> None:
    """Exact, not merely sufficient: as long as the tile, moved by the constant."""
    spans, grid, full = tiling
    shape = tuple(full[a] + s + 1 for a, s in zip(AXES, shift, strict=True))
    region = region_of(tuple(axis(a) + s for a, s in zip(AXES, shift, strict=True)), spans, shape, grid)
    assert [s.extent for s in region] == [spans[a].extent for a in AXES]
    assert all((r.offset - spans[a].offset).const == s and (r.offset - spans[a].offset).is_const
               for r, a, s in zip(region, AXES, shift, strict=True))


def test_regions_of_common_reads() -> None:
    """A slice of columns, a turned axis, a window, a sum over everything, a subscript that mixes tile and axis."""
    spans = {"i": Span(axis("t") * 4, 4), "j": Span(number(0), 8)}
    grid = {"t": 3}
    i, j = axis("i"), axis("j")
    assert region_of((i, j + 8), spans, (12, 32), grid) == (Span(axis("t") * 4, 4), Span(number(8), 8))
    assert region_of((7 - j,), spans, (8,), grid) == (Span(number(0), 8),)
    assert region_of((i * 2,), spans, (24,), grid) == (Span(axis("t") * 8, 7),)
    assert region_of((number(3),), spans, (9,), grid) == (Span(number(3), 1),)
    assert region_of((i % 5,), spans, (5,), grid) == whole((5,))
    assert region_of((), spans, (), grid) == ()


def test_joined_regions_hold_both() -> None:
    t = axis("t") * 4
    left, right = (Span(t, 4), Span(number(0), 3)), (Span(t + 2, 4), Span(number(5), 2))
    assert joined(left, right) == (Span(t, 6), Span(number(0), 7))
    assert joined(right, left) == (Span(t, 6), Span(number(0), 7))
    assert joined(left, (Span(number(0), 12), Span(number(0), 3))) is None


@pytest.mark.parametrize(("extents", "pad", "strides", "elements"), [
    ((), 0, (), 1), ((7,), 4, (1,), 7), ((3, 5), 0, (5, 1), 15), ((3, 5), 3, (8, 1), 24), ((2, 3, 4), 4, (24, 8, 1), 48)])
def test_tiles_lie_row_major_with_padded_rows(extents: tuple[int, ...], pad: int, strides: tuple[int, ...], elements: int) -> None:
    region = whole(extents)
    assert local_strides(region, pad) == strides and stored_elements(region, pad) == elements
    assert num_elements(region) <= elements


def test_bounds_are_given_only_where_a_tile_reaches_beyond() -> None:
    t = axis("t") * 4
    point = (t + axis("x"),)
    assert inside((Span(t, 4),), point, (12,), {"t": 3}) == ()
    (bound,) = inside((Span(t, 4),), point, (11,), {"t": 3})
    assert (bound.low, bound.high) == (0, 11)
    assert len(inside((Span(t - 1, 4),), point, (12,), {"t": 3})) == 1
    assert within(t + axis("x"), Span(t, 4), {"t": 3, "x": 4}) and not within(t + axis("x"), Span(t, 4), {"t": 3, "x": 5})
    assert not within(axis("x"), Span(t, 4), {"t": 3, "x": 4})
