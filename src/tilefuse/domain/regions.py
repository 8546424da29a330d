"""Regions: the part of a value that one block needs, as an offset over the grid's axes and an extent for each dimension.

    y[i, j] for 16*bi <= i < 16*bi + 16      reads      p[i, j + 256]      ->      p at [16*bi + 16), [256 + 64)

Tile shapes propagate from results to operands through the index maps (Welder 3.2). A region is exact if a subscript is a sum of axes;
otherwise it is the whole dimension.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from tilefuse.base.construction import quickly_built
from tilefuse.base.memo import remembered
from tilefuse.ir.affine import Affine, Extents, Term, axes_of, axis, bounds, from_terms, number, simplify, single_axis, substitute
from tilefuse.ir.scalar import Bound


@quickly_built
@dataclass(frozen=True, slots=True)
class Span:
    """`extent` elements of a dimension from `offset` on, an expression over grid axes. Units: elements."""

    offset: Affine
    extent: int


Region = tuple[Span, ...]


def whole(shape: tuple[int, ...]) -> Region:
    """The region that contains all of a value."""
    return tuple(Span(number(0), e) for e in shape)


def num_elements(region: Region) -> int:
    """Elements of a region."""
    return prod([s.extent for s in region])


def local_strides(region: Region, pad: int = 0) -> tuple[int, ...]:
    """Strides of a region that is stored row-major, with rows padded by `pad` elements. Units: elements."""
    strides: list[int] = []
    step = 1
    for position, span in enumerate(reversed(region)):
        strides.append(step)
        step *= span.extent + (pad if position == 0 and len(region) > 1 else 0)
    return tuple(reversed(strides))


def stored_elements(region: Region, pad: int = 0) -> int:
    """Elements of storage that a region with padded rows takes."""
    return num_elements(region[:-1]) * (region[-1].extent + pad) if len(region) > 1 else num_elements(region)


def local_name(name: str) -> str:
    """Name of the axis inside a region along a node's axis. No node's axis has a dot in its name."""
    return f"{name}.in"


class Subscript(NamedTuple):
    """A subscript of a read into a dimension of `full` elements, with the facts that are the same for all tiles.

    axis: the axis that it is, if it is a single one. fixed: its span, if it is a constant. whole: the span of the whole dimension.
    """

    of: Affine
    full: int
    axis: str | None
    fixed: Span | None
    whole: Span


def subscripts_of(index: tuple[Affine, ...], shape: tuple[int, ...]) -> tuple[Subscript, ...]:
    """The subscripts of one read of a value of `shape`."""
    return tuple([Subscript(e, full, single_axis(e), None if e.terms else _clipped(Span(e, 1), {}, full), _whole_span(full))
                  for e, full in zip(index, shape, strict=True)])


def region_of(index: tuple[Affine, ...], spans: Mapping[str, Span], shape: tuple[int, ...], grid: Extents) -> Region:
    """`region_at` of the subscripts of one read of a value of `shape`."""
    return region_at(subscripts_of(index, shape), spans, grid)


def region_at(subscripts: tuple[Subscript, ...], spans: Mapping[str, Span], grid: Extents) -> Region:
    """The region of a value that subscripts access while every axis runs over its span.

    grid: extents of the grid's axes. A subscript that is no sum of grid axes, local axes and a constant gives the whole dimension.
    """
    region: list[Span] = []
    for e, full, name, fixed, whole_span in subscripts:
        if fixed is not None:
            region.append(fixed)
            continue
        # Most subscripts are a single axis whose span begins at a sum of axes.
        span = None if name is None else spans.get(name)
        if span is not None and span.offset.is_linear:
            region.append(whole_span if span.extent >= full else _clipped(span, grid, full))
            continue
        linear = _linear(e, spans, grid)
        if linear is not None:
            region.append(_clipped(linear, grid, full))
            continue
        axes = e.axes()
        region.append(_divided(e, tuple([pair for pair in spans.items() if pair[0] in axes]), full, tuple(grid.items())))
    return tuple(region)


@remembered
def _divided(e: Affine, spans: tuple[tuple[str, Span], ...], full: int, grid: tuple[tuple[str, int], ...]) -> Span:
    """Span of a subscript with divisions. The same come again in all patterns of a graph that hold its node, as these grow."""
    by_axis = {a: s.offset + axis(local_name(a)) for a, s in spans}
    extents = dict(grid) | {local_name(a): s.extent for a, s in spans}
    return _span(substitute(e, by_axis, extents), dict(grid), extents, full)


def _linear(e: Affine, spans: Mapping[str, Span], grid: Extents) -> Span | None:
    """Span of a sum of axes whose spans begin at sums of grid axes; None for others. As `_span`, without the rules of divisions."""
    terms: list[Term] = []
    low = high = 0
    const = e.const
    for atom, c in e.terms:
        span = spans.get(atom) if isinstance(atom, str) else None
        if span is None:
            return None
        for a, k in span.offset.terms:
            # An axis of one element is none of the offset's.
            if not isinstance(a, str) or grid.get(a, 1) == 1:
                return None
            terms.append((a, k * c))
        const += span.offset.const * c
        reach = max(span.extent - 1, 0) * c
        low, high = low + min(reach, 0), high + max(reach, 0)
    return Span(from_terms(terms, const + low), high - low + 1)


def _span(e: Affine, grid: Extents, extents: Extents, full: int) -> Span:
    """Span of one subscript."""
    simple = simplify(e, extents)
    fixed = [(atom, c) for atom, c in simple.terms if axes_of(atom) <= grid.keys()]
    moving = [(atom, c) for atom, c in simple.terms if not axes_of(atom) & grid.keys()]
    if len(fixed) + len(moving) != len(simple.terms):
        return Span(number(0), full)
    span = bounds(from_terms(moving, 0), extents)
    if span is None:
        return Span(number(0), full)
    return _clipped(Span(from_terms(fixed, simple.const + span[0]), span[1] - span[0] + 1), grid, full)


def _clipped(span: Span, grid: Extents, full: int) -> Span:
    """The span, clipped to a dimension of `full` elements if its offset is constant."""
    offset, extent = span.offset, span.extent
    if extent >= full:
        return _whole_span(full)
    if offset.is_const:
        if offset.const >= 0 and offset.const + extent <= full:
            return span
        low, high = max(offset.const, 0), min(offset.const + extent, full)
        return Span(number(low), max(high - low, 1)) if low < full else Span(number(0), 1)
    for atom, _ in offset.terms:
        if atom not in grid and (isinstance(atom, str) or bounds(offset, grid) is None):
            return _whole_span(full)
    return span


@remembered
def _whole_span(full: int) -> Span:
    return Span(number(0), full)


def joined(a: Region, b: Region) -> Region | None:
    """The smallest region that contains both; None unless their offsets differ by constants."""
    spans: list[Span] = []
    for x, y in zip(a, b, strict=True):
        difference = y.offset - x.offset
        if not difference.is_const:
            return None
        low = min(0, difference.const)
        spans.append(Span(x.offset + low, max(x.extent, difference.const + y.extent) - low))
    return tuple(spans)


def within(index: Affine, span: Span, extents: Extents) -> bool:
    """Whether a subscript provably lies in a span."""
    reach = bounds(simplify(index - span.offset, extents), extents)
    return reach is not None and reach[0] >= 0 and reach[1] < span.extent


def inside(region: Region, points: tuple[Affine, ...], shape: tuple[int, ...], grid: Extents) -> tuple[Bound, ...]:
    """Bounds that hold if a point of a region is an element of the value; () if the region never leaves the value."""
    limits: list[Bound] = []
    for span, point, full in zip(region, points, shape, strict=True):
        reach = bounds(span.offset, grid)
        if reach is None or reach[0] < 0 or reach[1] + span.extent > full:
            limits.append(Bound(point, 0, full))
    return tuple(limits)


def holds(outer: Region, inner: Region) -> bool:
    """Whether a region contains another for every block."""
    if outer == inner:  # the common case
        return True
    for a, b in zip(outer, inner, strict=True):
        difference = b.offset - a.offset
        if not difference.is_const or difference.const < 0 or difference.const + b.extent > a.extent:
            return False
    return True
