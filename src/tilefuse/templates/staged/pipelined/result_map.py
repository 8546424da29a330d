"""Results as tensors whose innermost dimensions are rows and columns of the products, so that tensor stores write tiles of them.

Rows and columns may be split and the parts lie in any order, as heads of attention before rows do:

    y[head, row, place] = p[row, head * 64 + place]      a box of 1 x 64 x 64 at (column / 64, row, column % 64)

Dimensions that lie one behind the other in memory are one, as images and their tokens are:

    y[image, token, place] = p[image * 197 + token, place]      a box of 64 x 64 at (row, column)
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilefuse.domain.contraction import COLUMN, ROW
from tilefuse.ir.affine import Affine, axis, simplify


@dataclass(frozen=True)
class ResultMap:
    """Dimensions of a result with more than one element, its rows and its columns last.

    places   subscripts of a dimension over the products' axes
    lines    rows and columns of the products that one part of the result holds; 0: all
    Units: extents, strides and lines in elements.
    """

    places: tuple[Affine, ...]
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    lines: tuple[int, int]

    def holds_boxes(self, rows: int, columns: int) -> bool:
        """Whether every box of the products' elements that begins at multiples of its extents lies in one part of the result."""
        return self.lines[0] % rows == 0 and self.lines[1] % columns == 0


# Place, extent and stride of a dimension.
Dim = tuple[Affine, int, int]


def result_map(places: Sequence[Affine], shape: Sequence[int], strides: Sequence[int], axes: Mapping[str, int]) -> ResultMap | None:
    """The map of a result with these subscripts over the products' axes; None where it has no dimension along rows, or along columns.

    axes: extents of the products' axes.
    """
    dims = _joined([d for d in zip(places, shape, strides, strict=True) if d[1] > 1], axes)
    last: list[Dim] = []
    lines: list[int] = []
    for name in (ROW, COLUMN):
        whole = next((d for d in dims if d[0] == axis(name)), None)
        inner = next((d for d in dims if d[0] == axis(name) % d[1]), None)
        if whole is None and inner is None:
            return None
        last.append(whole or inner or dims[0])
        lines.append(0 if whole is not None else last[-1][1])
    ordered = [*(d for d in dims if d not in last), *last]
    return ResultMap(tuple(d[0] for d in ordered), tuple(d[1] for d in ordered), tuple(d[2] for d in ordered), (lines[0], lines[1]))


def _joined(dims: Sequence[Dim], axes: Mapping[str, int]) -> list[Dim]:
    """The dimensions with the parts of one axis joined that lie one behind the other: row / 197 and row % 197 are the row.

        s n (x / n) + s (x % n)      ->      s x
    """
    joined = list(dims)
    while (pair := _neighbours(joined, axes)) is not None:
        outer, inner, whole = pair
        joined[joined.index(inner)] = whole
        joined.remove(outer)
    return joined


def _neighbours(dims: Sequence[Dim], axes: Mapping[str, int]) -> tuple[Dim, Dim, Dim] | None:
    """Two dimensions that lie one behind the other and are parts of one axis, and the dimension that they are together."""
    for outer in dims:
        for inner in dims:
            if outer[2] == inner[1] * inner[2]:
                place = simplify(outer[0] * inner[1] + inner[0], axes)
                if len(place.terms) == 1 and not place.const:
                    return outer, inner, (place, outer[1] * inner[1], inner[2])
    return None
