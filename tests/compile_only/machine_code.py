"""Instructions of a kernel's machine code, read from the cubin itself, so that no disassembler is needed.

An instruction of compute capability 9.0 has 16 bytes; its lowest 12 bits are the opcode and its form. The numbers of the few instructions
that tests look for were read off `nvdisasm -hex` (CUDA 13.0).
"""
from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Mapping

INSTRUCTION_BYTES, OPCODE_BITS = 16, 12
# Warpgroup products of 16-bit floats and tf32 (left operand in shared memory, in registers), of 8-bit integers, of 8-bit floats.
WARPGROUP_PRODUCTS = {0x9F0: "HGMMA", 0xDF0: "HGMMA", 0x9F1: "IGMMA", 0x9F3: "QGMMA"}

# Copies of boxes of tensors by the copy engine: into shared memory of one block, of several, and out of it.
TENSOR_COPIES = {0x5B4: "UTMALDG", 0x3B4: "UTMALDG.MULTICAST", 0x3B5: "UTMASTG"}


def section(cubin: bytes, name: str) -> bytes:
    """Contents of a section of an ELF file of 64 bits. Raises: KeyError when it has none of this name."""
    start, = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names_at = struct.unpack_from("<HHH", cubin, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", cubin, start + n * size) for n in range(count)]
    names = headers[names_at][4]
    for header in headers:
        first = names + header[0]
        if cubin[first:cubin.index(b"\0", first)] == name.encode():
            return cubin[header[4]:header[4] + header[5]]
    raise KeyError(name)


def products_in(cubin: bytes, entry: str) -> Counter[str]:
    """How many warpgroup products of each kind a kernel's machine code contains."""
    return _named(cubin, entry, WARPGROUP_PRODUCTS)


def copies_in(cubin: bytes, entry: str) -> Counter[str]:
    """How many tensor copies of each kind a kernel's machine code contains."""
    return _named(cubin, entry, TENSOR_COPIES)


def _named(cubin: bytes, entry: str, names: Mapping[int, str]) -> Counter[str]:
    text = section(cubin, f".text.{entry}")
    opcodes = (int.from_bytes(text[n:n + 2], "little") % (1 << OPCODE_BITS) for n in range(0, len(text), INSTRUCTION_BYTES))
    return Counter(names[o] for o in opcodes if o in names)
