"""The file of weights: a header of 64 bytes, then every constant as its program reads it, each aligned; and a table of them as text.

```text
0  "TFWEIGHT"   8  version   12  byte order   16  bytes of data (u64)   24  checksum of the data (CRC-32)   64  the data
```
"""
from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from tilefuse.base.errors import InternalError
from tilefuse.runtime.calls.arguments import bind_constant
from tilefuse.runtime.calls.call_plan import storage_bytes, storage_span
from tilefuse.runtime.spec import ProgramSpec, Value

ALIGNMENT_BYTES = 256
HEADER = struct.Struct("<8sIIQI36x")
VERSION = 1
BYTE_ORDER = 0x01020304


@dataclass(frozen=True, slots=True)
class Weights:
    """Places of the tensors that were written. Units: bytes, from the start of the data."""

    offsets: Mapping[str, int]
    num_bytes: int
    checksum: int
    table: str


def weight_offsets(spec: ProgramSpec) -> tuple[dict[str, int], int]:
    """Offset of every constant, and bytes of all. Units: bytes."""
    offsets: dict[str, int] = {}
    position = 0
    for value in spec.values:
        if value.role == "constant":
            offsets[value.name] = position
            position += -(-storage_bytes(value) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    return offsets, position


def write_weights(spec: ProgramSpec, constants: Mapping[str, object], path: Path) -> Weights:
    """Writes the constants of a program, laid out and packed as it reads them.

    Raises: InternalError where a constant has no data; OSError as writing does.
    """
    offsets, total = weight_offsets(spec)
    checksum = 0
    rows = ["# offset      bytes  dtype   extents  strides  name"]
    with path.open("wb") as file:
        file.write(HEADER.pack(b"TFWEIGHT", VERSION, BYTE_ORDER, total, 0))
        for value in spec.values:
            if value.role != "constant":
                continue
            if value.name not in constants:
                raise InternalError(f"program {spec.name} has no data for constant {value.name}")
            data = _storage(constants[value.name], value)
            data += b"\0" * (-len(data) % ALIGNMENT_BYTES)
            checksum = zlib.crc32(data, checksum)
            file.write(data)
            rows.append(f"{offsets[value.name]:10} {storage_bytes(value):10}  {value.dtype:6}  {list(value.shape)}  {list(value.strides)}  "
                        f"{value.name}")
        file.seek(0)
        file.write(HEADER.pack(b"TFWEIGHT", VERSION, BYTE_ORDER, total, checksum))
    return Weights(offsets, total, checksum, "\n".join([*rows, ""]))


def _storage(data: object, value: Value) -> bytes:
    """The bytes of a constant from its first to its last element, in the layout of its value."""
    tensor = bind_constant(data, value, torch.device("cpu"))
    flat = tensor.as_strided((storage_span(value.shape, value.strides),), (1,))
    return flat.contiguous().view(torch.uint8).numpy().tobytes() if flat.numel() else b""
