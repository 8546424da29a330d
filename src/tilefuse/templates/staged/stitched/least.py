"""Bounds of all tiles of a pattern at once, before any regions: a tile whose bound is too high is not looked at.

    anchor [r, c]      reads  x[i, k] y[k, j]      x has r lines at least, y has c columns, for arrays r and c of all tiles

An extent is known where a subscript stays inside its dimension and is a sum of axes, of their quotients or of their remainders; any other
subscript counts as a single element.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import prod
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tilefuse.domain.regions import Subscript
from tilefuse.domain.roofline import least_tiles_us
from tilefuse.ir.affine import Atom, FloorDiv, axes_of, bounds
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.staged.stitched.cut import Stitcher
from tilefuse.templates.staged.stitched.record import Stitched
from tilefuse.templates.staged.stitched.stage_work import cache_rate, is_many, most_resident

# Extents of one dimension in all tiles, or the one that all have. Units: elements.
Extents: TypeAlias = NDArray[np.int64] | int
Cycles: TypeAlias = NDArray[np.float64]
Flags: TypeAlias = NDArray[np.bool_] | bool


class _Requested(NamedTuple):
    """One region that is requested of a value: all regions of the value together have as many elements.

    extents: at least so many elements in each dimension. moves: for each dimension, the tiles for which it certainly begins elsewhere for
    each block. is_only: whether nothing else requests the value, nor any value on the way to it, so that this is its region.
    """

    extents: list[Extents]
    moves: list[Flags]
    is_only: bool


class _Copied(NamedTuple):
    """A region of a boundary value. ranges: first and last place of each dimension that it has in all blocks together."""

    requested: _Requested
    ranges: tuple[tuple[int, int], ...]


def least_stages_us(stitcher: Stitcher, choices: Sequence[Stitched], device: DeviceSpec) -> list[float]:
    """Lower bounds on the time of the stages of each choice. Units: microseconds.

    Requires: `stitcher.analyse` found nothing.
    """
    shape = stitcher.graph.type_of(stitcher.anchor).shape
    number = {tiles: n for n, tiles in enumerate(dict.fromkeys(c.tiles for c in choices))}
    by_dimension = np.array(list(number), dtype=np.int64).reshape(len(number), len(shape)).T
    blocks: NDArray[np.int64] = np.ones(len(number), dtype=np.int64)
    for extents, full in zip(by_dimension, shape, strict=True):
        blocks *= -(-full // extents)
    requests, copies = _requests(stitcher, by_dimension)
    counts = [int(n) for n in blocks]
    cycles_of_byte = np.array([1.0 / cache_rate(n, device) for n in counts])
    alone = np.array([not is_many(n, device) for n in counts])
    busy = _busy_cycles(stitcher, requests, cycles_of_byte) + _copy_cycles(stitcher, copies, cycles_of_byte, alone)
    once = np.where(alone, device.fitted.stitch.global_cycles if copies else 0.0, 0.0)
    us_by_threads: dict[int, list[float]] = {}
    for threads in dict.fromkeys(c.threads for c in choices):
        us = least_tiles_us(blocks, threads, most_resident(threads, device), busy, stitcher.least_wait, once, device)
        us_by_threads[threads] = us.tolist()
    return [us_by_threads[c.threads][number[c.tiles]] for c in choices]


def _requests(stitcher: Stitcher, by_dimension: NDArray[np.int64]) -> tuple[dict[str, _Requested], dict[str, list[_Copied]]]:
    """A region of each value inside, from results to operands, and regions of boundary values that differ from each other."""
    tile_of = dict(zip(stitcher.anchor_roots, by_dimension, strict=True))
    times = Counter([*stitcher.graph.results, *(value for stop in stitcher.stops for value, _ in stop.reads)])
    requests: dict[str, _Requested] = {}
    copies: dict[str, list[_Copied]] = {}
    for result, dimensions in stitcher.result_dimensions:
        extents = [np.minimum(tile_of[root], whole.extent) if root in tile_of else whole.extent for root, whole in dimensions]
        moves = [e < whole.extent for e, (_, whole) in zip(extents, dimensions, strict=True)]
        requests[result] = _Requested(extents, moves, times[result] == 1)
    for stop in stitcher.stops:
        of = requests.get(stop.value)
        if of is None:
            continue
        over = {a: s.extent for a, s in stop.over.items()}
        full_of = dict(zip(stop.axes, stitcher.graph.type_of(stop.value).shape, strict=True)) | over
        extent_of, moves_of = dict(zip(stop.axes, of.extents, strict=True)) | over, dict(zip(stop.axes, of.moves, strict=True))
        for value, subscripts in stop.reads:
            reached = [_least_extent(s, extent_of, full_of) for s in subscripts]
            is_copied = value not in stitcher.inside
            is_only = of.is_only and (is_copied or times[value] == 1)
            moves = [is_only and _moves(s, e, moves_of) for s, e in zip(subscripts, reached, strict=True)]
            request = _Requested(reached, moves, is_only)
            if is_copied:
                ranges = tuple([_range(s, full_of) for s in subscripts])
                if all(_are_apart(ranges, other.ranges) for other in copies.setdefault(value, [])):
                    copies[value].append(_Copied(request, ranges))
            else:
                requests[value] = _larger(requests.get(value), request)
    return requests, copies


def _range(subscript: Subscript, full_of: Mapping[str, int]) -> tuple[int, int]:
    """First and last place that a sum of axes reaches in all blocks together; the whole dimension for other subscripts, and for those that
    leave it."""
    inside = bounds(subscript.of, full_of) if subscript.of.is_linear else None
    return (0, subscript.full - 1) if inside is None or inside[0] < 0 or inside[1] >= subscript.full else inside


def _are_apart(first: tuple[tuple[int, int], ...], second: tuple[tuple[int, int], ...]) -> bool:
    """Whether no place lies in both ranges."""
    return any(a[1] < b[0] or b[1] < a[0] for a, b in zip(first, second, strict=True))


def _larger(first: _Requested | None, second: _Requested) -> _Requested:
    """For each tile the region with more elements."""
    if first is None:
        return second
    is_second = np.greater(prod(second.extents), prod(first.extents))
    extents = [a if a is b else np.where(is_second, b, a) for a, b in zip(first.extents, second.extents, strict=True)]
    return _Requested(extents, [False] * len(extents), False)


def _least_extent(subscript: Subscript, extent_of: Mapping[str, Extents], full_of: Mapping[str, int]) -> Extents:
    """Elements of a dimension that a subscript reaches at least."""
    if subscript.axis is not None:
        # A region ends where its dimension ends.
        extent = extent_of.get(subscript.axis, 1)
        return np.minimum(extent, subscript.full) if isinstance(extent, np.ndarray) else min(extent, subscript.full)
    e = subscript.of
    inside = bounds(e, full_of)
    axes = [a for atom, _ in e.terms for a in axes_of(atom)]
    if inside is None or inside[0] < 0 or inside[1] >= subscript.full or len(set(axes)) < len(axes):
        return 1
    # Terms of different axes run independently.
    return sum([abs(factor) * (_num_values(atom, extent_of) - 1) for atom, factor in e.terms]) + 1


def _num_values(atom: Atom, extent_of: Mapping[str, Extents]) -> Extents:
    """Different values of an atom at least, where its axes take so many neighbouring values."""
    if isinstance(atom, str):
        return extent_of.get(atom, 1)
    of = atom.of
    if len(of.terms) != 1 or of.terms[0][1] != 1:
        return 1
    values = _num_values(of.terms[0][0], extent_of)
    if isinstance(atom, FloorDiv):
        return -(-values // atom.by)
    return np.minimum(values, atom.by) if isinstance(values, np.ndarray) else min(values, atom.by)


def _moves(subscript: Subscript, extent: Extents, moves_of: Mapping[str, Flags]) -> Flags:
    """Whether a sum of axes begins elsewhere for each block; one that reaches the whole dimension does not."""
    moves: Flags = False
    for atom, factor in subscript.of.terms:
        if not isinstance(atom, str) or factor < 0:
            return False
        moves = moves | moves_of.get(atom, False)
    return moves & (extent < subscript.full)


def _busy_cycles(stitcher: Stitcher, requests: Mapping[str, _Requested], cycles_of_byte: Cycles) -> Cycles:
    """Cycles of one tile: products at the best rate of their types, operations of maps and reductions and their reads of boundary values.
    """
    busy: Cycles = np.zeros(len(cycles_of_byte))
    for stop in stitcher.stops:
        if stop.value not in requests:
            continue
        extents = requests[stop.value].extents
        elements = prod(extents)
        if stop.kind == "product":
            busy = busy + elements * (stitcher.contractions[stop.value].inner / stitcher.best_rate(stop.value))
            continue
        steps = elements * stitcher.steps(stop.value)
        busy = busy + steps * (stitcher.flops(stop.value) / stitcher.fitted.multiply.fma_per_cycle)
        extent_of = dict(zip(stop.axes, extents, strict=True)) | {a: s.extent for a, s in stop.over.items()}
        for read in stitcher.outside_reads(stop.value):
            different = prod([extent_of.get(a, 1) for a in read.axes])
            busy = busy + np.minimum(steps, different) * read.itemsize * cycles_of_byte
    return busy


def _copy_cycles(stitcher: Stitcher, copies: Mapping[str, Sequence[_Copied]], cycles_of_byte: Cycles, alone: NDArray[np.bool_]) -> Cycles:
    """Cycles in which boundary values are brought for one tile. alone: whether blocks have one tile each and bring all operands for it."""
    cycles: Cycles = np.zeros(len(cycles_of_byte))
    for value, parts in copies.items():
        itemsize = stitcher.graph.type_of(value).dtype.itemsize
        for request, _ in parts:
            brought: Flags = alone if value in stitcher.product_operands else False
            for moves in request.moves:
                brought = brought | moves
            cycles = cycles + np.where(brought, prod(request.extents) * itemsize * cycles_of_byte, 0.0)
    return cycles
