"""Bounds of tiles composed from those of other tiles: each dimension of a region follows from the tiles of few dimensions of the anchor.

    tiles [r, c] of x w          x w [r, c]      x [r, -]      w [-, c]
    known of [1, 8], [2, 8] and [1, 16]      ->      extents of [2, 16], without its regions
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import prod

from tilefuse.base.candidate import Rejected
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.staged.stitched.cut import Stitcher
from tilefuse.templates.staged.stitched.plan import Regions
from tilefuse.templates.staged.stitched.stage_work import LeastCycles, LeastTile, least_cycles, least_of_values

Dimensions = frozenset[int]
# A dimension of a value: the number of the set of dimensions that decide its span, and by their tiles its extent and whether it moves.
_Spans = tuple[int, dict[tuple[int, ...], tuple[int, bool]]]


def deciding_dimensions(stitcher: Stitcher) -> dict[str, Sequence[Dimensions]] | None:
    """For each dimension of everything with a region: the dimensions of the anchor whose tiles decide the spans that are requested of it.
    None if tiles may be refused because blocks would all compute the same result.

    Requires: `stitcher.analyse` found nothing.
    """
    by_root: dict[tuple[str, int], Dimensions] = {}
    for d, root in enumerate(stitcher.anchor_roots):
        by_root[root] = by_root.get(root, frozenset()) | {d}
    cut = {d for d, extent in enumerate(stitcher.graph.type_of(stitcher.anchor).shape) if extent > 1}
    by_value: dict[str, Sequence[Dimensions]] = {}
    for result, dimensions in stitcher.result_dimensions:
        by_value[result] = [by_root.get(root, frozenset()) for root, _ in dimensions]
        if not stitcher.graph.users_by_name[result] and not cut <= frozenset[int]().union(*by_value[result]):
            return None
    for stop in stitcher.stops:
        if stop.value not in by_value:
            continue
        of_axis = dict(zip(stop.axes, by_value[stop.value], strict=True))
        for read, subscripts in stop.reads:
            requested = [frozenset[int]().union(*(of_axis.get(a, frozenset()) for a in s.of.axes())) for s in subscripts]
            by_value[read] = [a | b for a, b in zip(by_value.get(read, requested), requested, strict=True)]
    return by_value


class ComposedCycles:
    """Least cycles of one pattern's tiles. Requires: `stitcher.analyse` found nothing.

    Tiles are noted if all requests of each value are the same region. Others are composed if every span is that of noted ones: then all
    requests of a value agree in every dimension, and it has one region with these spans.
    """

    def __init__(self, stitcher: Stitcher, device: DeviceSpec) -> None:
        self._stitcher, self._device = stitcher, device
        self._shape = stitcher.graph.type_of(stitcher.anchor).shape
        self._deciding = deciding_dimensions(stitcher)
        sets = dict.fromkeys(d for dimensions in (self._deciding or {}).values() for d in dimensions)
        self._sets = [tuple(sorted(s)) for s in sets]
        number = {s: n for n, s in enumerate(sets)}
        self._spans: dict[str, list[_Spans]] = {v: [(number[d], {}) for d in of] for v, of in (self._deciding or {}).items()}
        # Values with several requests, whose regions may be other ones than these.
        requests = Counter([*stitcher.graph.results, *(value for stop in stitcher.stops for value, _ in stop.reads)])
        self._several = frozenset(value for value, times in requests.items() if times > 1)
        # Value, kind, bytes an element and spans, in the order of `Regions.values`; empty before tiles are noted.
        self._values: list[tuple[str, str, int, list[_Spans]]] = []

    def of(self, tiles: tuple[int, ...]) -> LeastCycles | Rejected:
        """`least_cycles` of the regions of these tiles, or why they have none."""
        values = self._composed(tiles)
        if values is not None:
            number = prod([-(-extent // tile) for tile, extent in zip(tiles, self._shape, strict=True)])
            return least_of_values(self._stitcher, number, values, self._device)
        regions = self._stitcher.regions(tiles)
        if isinstance(regions, Rejected):
            return regions
        if self._deciding is not None and self._is_plain(tiles, regions):
            self._note(tiles, regions)
        return least_cycles(self._stitcher, regions, self._device)

    def _composed(self, tiles: tuple[int, ...]) -> list[LeastTile] | None:
        """The regions' facts from the noted spans; None if one is missing."""
        if not self._values:
            return None
        keys = [tuple([tiles[d] for d in dimensions]) for dimensions in self._sets]
        values: list[LeastTile] = []
        for value, kind, itemsize, spans in self._values:
            known = [by_tiles.get(keys[number]) for number, by_tiles in spans]
            if None in known:
                return None
            moves = kind == "copy" and any(s[1] for s in known if s)
            values.append(LeastTile(value, kind, tuple([s[0] for s in known if s]), itemsize, moves))
        return values

    def _is_plain(self, tiles: tuple[int, ...], regions: Regions) -> bool:
        """Whether every value has one region, and each of its users and the kernel's results request this region."""
        by_value = {v.value: v.region for v in regions.values}
        if len(by_value) < len(regions.values):
            return False
        several = self._several
        return (all(by_value[value] == region for reads in regions.reads for value, region in reads if value in several)
                and all(by_value[result] == region for result, region in self._stitcher.result_regions(tiles) if result in several))

    def _note(self, tiles: tuple[int, ...], regions: Regions) -> None:
        """Enters the spans of these tiles."""
        keys = [tuple([tiles[d] for d in dimensions]) for dimensions in self._sets]
        for v in regions.values:
            for (number, by_tiles), span in zip(self._spans[v.value], v.region, strict=True):
                by_tiles[keys[number]] = span.extent, bool(span.offset.terms)
        self._values = self._values or [(v.value, v.kind, v.dtype.itemsize, self._spans[v.value]) for v in regions.values]
