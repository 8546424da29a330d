"""Tensor maps of prepared launches: encoded by the driver when a tensor lies elsewhere than at the last launch, else reused.

    launch   ->   address of x changed?   ->   cuTensorMapEncodeTiled   ->   cuLaunchKernelEx

A map is an argument by value. The driver copies arguments when a kernel is launched, and a CUDA graph holds its own copy from the recording
on, so the memory of a map may be encoded again while earlier launches and recordings still run.
"""
from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from tilefuse.base.errors import InternalError
from tilefuse.runtime.cuda_api import INVALID_CONTEXT, check, map_encoder
from tilefuse.runtime.spec import KernelCode
from tilefuse.target.tensor_map import MAP_ALIGNMENT_BYTES, MAP_BYTES


class LaunchMaps:
    """The tensor maps of one prepared launch. `addresses`: of each map's memory, for the launch's list of arguments.

    table: addresses of pointer arguments, of which the launch's own begin at `first`; each launch reads them anew.
    """

    def __init__(self, code: KernelCode, table: Any, first: int) -> None:
        if code.one_structure:
            raise InternalError(f"kernel {code.name} takes its pointers as one structure and tensor maps besides")
        self._memory = ctypes.create_string_buffer(MAP_BYTES * len(code.maps) + MAP_ALIGNMENT_BYTES)
        start = -(-ctypes.addressof(self._memory) // MAP_ALIGNMENT_BYTES) * MAP_ALIGNMENT_BYTES
        self.addresses = [start + MAP_BYTES * n for n in range(len(code.maps))]
        self._code = code
        self._table, self._first = table, first
        # Of each map: its slot in the table, the tensor's address that it was encoded for, and the call that encodes it.
        self._rows: list[list[Any]] = [[first + m.parameter, None, map_encoder(m, place)]
                                       for m, place in zip(code.maps, self.addresses, strict=True)]

    def encode(self) -> int:
        """Encodes the maps of tensors that lie elsewhere than at the last launch; 0, or the driver's code for a thread without a context.

        Raises: DeviceError where the driver refuses a map.
        """
        table = self._table
        for n, row in enumerate(self._rows):
            address = table[row[0]]
            if address != row[1]:
                code = row[2](address)
                if code:
                    row[1] = None
                    if code == INVALID_CONTEXT:
                        return INVALID_CONTEXT
                    check(code, "cuTensorMapEncodeTiled", f"kernel {self._code.name}: {self._code.maps[n]} of memory at {address:#x}")
                row[1] = address
        return 0

    def before(self, launch: Callable[[], int]) -> Callable[[], int]:
        """The launch, with the maps as the table's addresses then need them. Raises: as `encode`."""
        pointers = (ctypes.c_char * (8 * len(self._code.parameters))).from_buffer(self._table, 8 * self._first)
        seen = b""

        def encoded_launch() -> int:
            nonlocal seen
            # One comparison of all pointers' bytes takes a third of the time of one address after the other.
            addresses = pointers.raw
            if addresses != seen:
                code = self.encode()
                if code:
                    return code
                seen = addresses
            return launch()

        return encoded_launch
