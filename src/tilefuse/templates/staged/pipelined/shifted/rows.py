"""Left operands whose rows begin anywhere in memory, by tensor copies: the rows of a tile lie whole 16 bytes apart.

    rows of 5 elements, 2 in a word     row 0 |0 1|2 3|4        step = 2: rows 0, 2, 4 .. begin at a word,
                                        row 1  0|1 2|3 4|       rows 1, 3, 5 .. one element behind the first of a word

    tile of rows 1, 3, 5 ..             left    | . 0 | 1 2 | 3 4 |     begins at the word in which its rows begin; . is another row's
                                        right   | 0 | row 0 of w | row 1 of w | ..     begins one element earlier too, with a zero

A tile takes every `step`-th row, so that all its rows begin at the same place of 16 bytes, its shift. The right operands begin as many
inner elements before their first one, where tensor copies write zeros. Elements of neighbouring rows may be infinite or no numbers, so
consumers overwrite them by zeros, in the first and the last slots of a tile.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd

from tilefuse.domain.contraction import INNER, ROW
from tilefuse.ir.affine import Affine
from tilefuse.target.tensor_map import GRANULE_BYTES, MOST_EXTENT
from tilefuse.templates.staged.pipelined.operand import Operand


@dataclass(frozen=True, slots=True)
class ShiftedRows:
    """How the rows of a left operand lie. Units: elements.

    step     rows of a tile are so many rows of the product apart
    each     elements of 16 bytes; shifts are smaller
    pitch    from one row to the next
    first    of the first row in the value's memory
    strides  of the lead axes, in order
    rows     of the operand
    end      of the last row in the value's memory
    """

    step: int
    each: int
    pitch: int
    first: int
    strides: tuple[tuple[str, int], ...]
    rows: int
    end: int

    def begin(self, of_step: Affine, place: Mapping[str, Affine]) -> Affine:
        """Where row `of_step` lies in memory, at the lead axes' place."""
        return sum((place[a] * s for a, s in self.strides), of_step * self.pitch + self.first)

    @property
    def tensors(self) -> tuple[tuple[int, int], ...]:
        """(rows, length of a row) of the tensors that tiles read: every row is `step` rows long, and none ends behind the operand.

        The first `rows` % `step` rows of a tensor of all rows have one more behind them than the others, if there are any.
        """
        counts = [-(-self.rows // self.step)] if self.rows % self.step else []
        counts += [self.rows // self.step] if self.rows >= self.step else []
        return tuple((n, self.end - (n - 1) * self.step * self.pitch) for n in counts)


def shifted_rows(left: Operand, rights: tuple[Operand, ...], extents: Mapping[str, int]) -> ShiftedRows | None:
    """How tensor copies bring a left operand whose rows begin between multiples of 16 bytes; None where they cannot, or need not.

    The inner axis is the one along which the left operand lies and the right ones do not: these may begin at any inner element.
    """
    inner, pitch = left.stride_by_axis.get(INNER, 0), left.stride_by_axis.get(ROW, 0)
    strides = tuple((a, s) for a, s in left.stride_by_axis.items() if a not in (INNER, ROW) and s)
    if left.element is not None or inner != 1 or pitch <= 0 or any(s < 0 for _, s in strides):
        return None
    if any(r.element is not None or r.inner_is_contiguous for r in rights):
        return None
    size = left.dtype.itemsize
    if all(n * size % GRANULE_BYTES == 0 for n in (left.first, pitch, *(s for _, s in strides))):
        return None
    last = sum(((extents[a] - 1) * s for a, s in strides), left.first + (left.lines - 1) * pitch)
    rows = ShiftedRows(GRANULE_BYTES // gcd(GRANULE_BYTES, pitch * size), GRANULE_BYTES // size, pitch, left.first, strides, left.lines,
                       last + extents[INNER])
    return rows if rows.end <= MOST_EXTENT else None
