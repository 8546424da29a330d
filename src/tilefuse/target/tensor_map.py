"""Tensor maps of kernels as plain data: fields that a launch encodes, and the limits that the driver sets on them.

A tensor map describes a tensor in global memory to the copy engine of a multiprocessor. It contains the tensor's address, so each
launcher encodes it: the runtime, or the C++ of an exported program.
Source: CUDA driver API, cuTensorMapEncodeTiled; PTX ISA, cp.async.bulk.tensor.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MOST_DIMENSIONS = 5
MOST_BOX_EXTENT = 256
# Coordinates are signed 32-bit numbers.
MOST_EXTENT = 1 << 31
# Strides are below this number. Units: bytes.
STRIDE_LIMIT_BYTES = 1 << 40
# The tensor's address, its strides and the innermost extent of a box are multiples of this.
GRANULE_BYTES = 16
# A box begins in shared memory at a multiple of this if its map has no swizzle.
BOX_ALIGNMENT_BYTES = 128
# Bytes of a row of a swizzle pattern, and the rows of one pattern. 0: no swizzle.
SWIZZLES = (0, 32, 64, 128)
SWIZZLE_ROWS = 8
MAP_BYTES, MAP_ALIGNMENT_BYTES = 128, 64


@dataclass(frozen=True, slots=True)
class MapParameter:
    """A tensor map among a kernel's arguments; maps follow the pointers, in order.

    Dimensions are in row-major order: the innermost comes last.

    parameter  number of the pointer argument (`Parameter`) that the tensor lies in
    first      element of that memory at which the tensor begins
    itemsize   bytes of an element: 1, 2, 4 or 8
    extents    extent of each dimension
    strides    stride of each dimension but the innermost, whose stride is 1. Units: elements.
    box        extents of one copy
    swizzle    bytes of a row of the swizzle pattern in shared memory; 0: none
    """

    name: str
    parameter: int
    first: int
    itemsize: int
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int = 0


def box_alignment_bytes(swizzle: int) -> int:
    """Alignment of a box in shared memory: whole swizzle patterns. Units: bytes."""
    return SWIZZLE_ROWS * swizzle or BOX_ALIGNMENT_BYTES


def why_no_tensor(itemsize: int, extents: Sequence[int], strides: Sequence[int], first: int = 0) -> str:
    """The first limit of tensor maps that a tensor breaks, with its values; "" for a tensor that a map can describe.

    Units: `strides` (of all dimensions) and `first` in elements, as in `MapParameter`. The memory itself must begin at 16 bytes.
    """
    if itemsize not in (1, 2, 4, 8):
        return f"elements of {itemsize} bytes, not of 1, 2, 4 or 8"
    if not 1 <= len(extents) <= MOST_DIMENSIONS:
        return f"{len(extents)} dimensions, not 1 to {MOST_DIMENSIONS}"
    if len(strides) != len(extents):
        return f"{len(extents)} extents and {len(strides)} strides"
    for extent in extents:
        if not 1 <= extent <= MOST_EXTENT:
            return f"an extent of {extent}, not 1 to {MOST_EXTENT}"
    if strides[-1] != 1:
        return f"an innermost stride of {strides[-1]} elements, not 1"
    for stride in strides[:-1]:
        if stride * itemsize % GRANULE_BYTES or not 0 < stride * itemsize < STRIDE_LIMIT_BYTES:
            return f"a stride of {stride * itemsize} bytes, not a positive multiple of {GRANULE_BYTES} below {STRIDE_LIMIT_BYTES}"
    if first < 0 or first * itemsize % GRANULE_BYTES:
        return f"a tensor that begins at byte {first * itemsize}, not at a multiple of {GRANULE_BYTES}"
    return ""


def why_no_box(itemsize: int, box: Sequence[int], swizzle: int = 0) -> str:
    """The first limit of tensor maps that a box breaks, with its values; "" for a box that one copy can move.

    A row of a swizzled box fills a row of the pattern. (The driver takes shorter rows too; they leave gaps in shared memory, which
    buffers of kernel IR do not describe.)
    """
    if swizzle not in SWIZZLES:
        return f"a swizzle of {swizzle} bytes, not one of {SWIZZLES}"
    for extent in box:
        if not 1 <= extent <= MOST_BOX_EXTENT:
            return f"a box extent of {extent}, not 1 to {MOST_BOX_EXTENT}"
    row_bytes = box[-1] * itemsize
    if row_bytes % GRANULE_BYTES:
        return f"rows of a box of {row_bytes} bytes, not a multiple of {GRANULE_BYTES}"
    if swizzle and row_bytes != swizzle:
        return f"rows of a box of {row_bytes} bytes under a swizzle of {swizzle} bytes"
    return ""
