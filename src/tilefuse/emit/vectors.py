"""Splits adjacent elements into vector accesses of one thread."""
from __future__ import annotations

from tilefuse.domain.access import is_vector
from tilefuse.ir.affine import Affine
from tilefuse.ir.dtype import DType
from tilefuse.target.memory import ACCESS_BYTES


def vector_parts(offset: Affine, lane: str, count: int, dtype: DType) -> list[tuple[int, int]]:
    """(start, width) of the accesses that cover `count` lanes: the widest aligned ones, 16 bytes at most. Units: elements.

    offset: element offset as a function of `lane`, the lane's index name.
    """
    width = max(ACCESS_BYTES // dtype.itemsize, 1)
    while width > 1 and (count % width or not is_vector(offset, lane, width)):
        width //= 2
    return [(start, width) for start in range(0, count, width)]
