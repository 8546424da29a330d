"""Converts a host kernel's report of an index out of range to the names of the program's source.

The kernel knows parameters by number (`support/host_memory.h`, tf_index_fault); the step that launched it maps them to values.
"""
from __future__ import annotations

import struct
from collections.abc import Sequence

from tilefuse.base.errors import IndexRangeError
from tilefuse.runtime.spec import KernelCode, ProgramSpec, Value

# Status of a kernel that met an index out of range.
INDEX_OUT_OF_RANGE = -1
# value, extent, place; found, number of the parameter indexed, dimension, number of the parameter of indices, whether they wrap.
_LAYOUT = struct.Struct("=3q5i")


def index_error(report: bytes, arguments: Sequence[str], spec: ProgramSpec, kernel: KernelCode) -> IndexRangeError:
    """The error: the index, its place, the subscripted dimension, and the legal range. `arguments`: the step's values."""
    value, extent, place, _, of, dimension, source, wraps = _LAYOUT.unpack_from(report)
    titles = dict(zip(spec.inputs, spec.told_inputs)) | dict(zip(spec.results, spec.told_results))
    by_name = {v.name: v for v in spec.values}
    index = f"index {value}"
    if 0 <= source < len(arguments) and arguments[source]:
        name = arguments[source]
        index += f" at {titles.get(name, name)}{_position(by_name[name], place)}"
    what = "is out of range"
    if 0 <= of < len(arguments) and arguments[of]:
        what += f" for dimension {dimension} of {titles.get(arguments[of], arguments[of])}"
    legal = f"it has {extent} elements" if of >= 0 else f"there are {extent}"
    low = -extent if wraps else 0
    return IndexRangeError(f"{index} {what}: {legal}", where=", ".join(f"%{n}" for n in kernel.nodes) or None,
                           hint=f"legal are {low} to {extent - 1}" if extent else None)


def _position(value: Value, offset: int) -> str:
    """The subscripts of the element at an offset of a value's memory. Units: elements."""
    at = [0] * len(value.shape)
    for d in sorted(range(len(at)), key=lambda d: -value.strides[d]):
        if value.strides[d] and value.shape[d] > 1:
            at[d] = min(offset // value.strides[d], value.shape[d] - 1)
            offset -= at[d] * value.strides[d]
    return f"[{', '.join(map(str, at))}]" if at else ""
