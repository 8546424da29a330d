"""Rows of the tiles of a grouped product: which group's rows a tile holds, and why no two tiles share a row.

    offsets 5 5 9       rows   0 1 2 3 4 | 5 6 7 8 | 9 10 11       groups 0, 2, and the rows behind the last offset
    tiles of 4 rows            0 0 0 0 1 | 2 2 2 2 | 3 3  3

Boundaries are b[0] = 0, b[g + 1] = max(b[g], min(offsets[g], rows)), and b[groups + 1] = rows: they never fall, for any offsets.
Group g has ceil((b[g + 1] - b[g]) / height) tiles, and its tile k holds rows b[g] + k * height up to the next tile or b[g + 1]. Tiles are
numbered group by group, so a tile's number gives g and k. The intervals of one group do not meet, and those of different groups lie between
different boundaries: together they are all rows, each once.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TileRows:
    """The rows of one tile: those of `group` from `first` on, below `end`. The group behind the last one has rows of zeros."""

    group: int
    first: int
    end: int


def tile_rows(offsets: Sequence[int], rows: int, height: int) -> Iterator[TileRows]:
    """The rows of every tile in order, as kernels compute them from the offsets.

    Exact: for any offsets, the rows of all tiles are 0 .. rows - 1, each once.
    """
    begin = 0
    for group, offset in enumerate((*offsets, rows)):
        end = max(begin, min(offset, rows))
        for first in range(begin, end, height):
            yield TileRows(group, first, min(first + height, end))
        begin = end


def most_tiles(num_groups: int, rows: int, height: int) -> int:
    """Most tiles of any offsets: each group with rows, the rows behind the last one too, has less than one tile more than its rows fill."""
    return (rows + min(num_groups + 1, rows) * (height - 1)) // height


def usual_tiles(num_groups: int, rows: int, height: int) -> int:
    """Tiles of groups of about equal size, half of whose last tiles are empty: the number that prices count.

    Source: the mean of ceil(n / height) over n of unlike size is n / height + 1 / 2.
    """
    return max(-(-rows // height), min(num_groups, rows), rows // height + num_groups // 2)
