"""Buffers of the values that a kernel reads from global memory and writes there."""
from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilefuse.ir.dtype import DType
from tilefuse.kernel.ir import Buffer


def boundary_buffer(name: str, dtype: DType, num_elements: int, role: str, value: str, shape: Sequence[int]) -> Buffer:
    """The buffer `name` of a graph's value. num_elements: from its first to its last in memory, the gaps that strides leave included."""
    count = prod(shape)
    return Buffer(name, dtype, num_elements, "global", role, value, num_held=count if count < num_elements else 0)
