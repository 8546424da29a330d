"""Sizes in which memory is moved and handed out, the same on every device that torch runs on.

Sources: CUDA C++ Best Practices Guide, "Device Memory Accesses" (lines and sectors); torch, c10/core/AllocatorConfig.h (`kSmallSize`).
"""
from __future__ import annotations

# A line of the caches, which a request brings, and the least part of it that global memory is read and written in. Units: bytes.
LINE_BYTES, SECTOR_BYTES = 128, 32
# The widest access of a thread to global or shared memory, and the alignment that it asks for. Units: bytes.
ACCESS_BYTES = 16
# Shared memory of each block that the system keeps for itself. Source: CUDA C++ Programming Guide, shared memory of compute capability 8.0
# and later. Units: bytes.
RESERVED_SHARED_BYTES = 1024
# Largest tensor that torch's allocator cuts from a piece which others share. Peaks that differ by less are alike: they take as many pieces
# from the device. Units: bytes.
SMALL_TENSOR_BYTES = 1 << 20
# Units: bytes.
MEBIBYTE = 1 << 20
