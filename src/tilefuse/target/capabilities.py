"""Capabilities of CUDA devices: which instructions a compute capability has, and for which architecture its code is compiled.

All comparisons of compute capabilities and of architecture names stand here; schedulers and emitters ask for the fact that they need.
Source: PTX ISA, target notes of each instruction; CUDA C++ Programming Guide, compute capabilities.
"""
from __future__ import annotations

import re
from dataclasses import dataclass

Capability = tuple[int, int]

# Threads of a warp; most threads of a block; barriers of a block, the one of all its threads among them (bar.sync).
WARP, BLOCK_THREADS, BLOCK_BARRIERS = 32, 1024, 16
# Quarters of a multiprocessor: each has a scheduler, a tensor core, and a fourth of the warps. Source: H100 architecture white paper.
WARP_SCHEDULERS = 4
# Tile of one matrix instruction: mma.m16n8k16 of 16-bit operands, mma.m16n8k8 of tf32.
MMA_ROWS, MMA_COLUMNS, MMA_INNER, MMA_INNER_F32 = 16, 8, 16, 8
# A register; registers that every thread gets at least, and the step in which it gets more. Units: bytes; registers a thread.
REGISTER_BYTES, LEAST_THREAD_REGISTERS, THREAD_REGISTER_STEP = 4, 16, 8
# Bytes that one asynchronous copy of a thread may move. Source: PTX ISA, cp.async.
ASYNC_COPY_BYTES = (4, 8, 16)
# Shared memory that a multiprocessor reads or writes in a cycle: 32 banks of 4 bytes. Source: CUDA C++ Programming Guide.
SHARED_BYTES_PER_CYCLE = 128
# Parameters of a kernel, from CUDA 12.1 on and compute capability 7.0; an address among them. Units: bytes.
# Source: CUDA C++ Programming Guide, kernel parameters.
PARAMETER_BYTES, ADDRESS_BYTES = 32764, 8

# From here on, code may use instructions of one architecture alone, and is compiled for its variant "a".
_OWN_INSTRUCTIONS: Capability = (9, 0)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Instructions and limits that kernels for a device may use.

    compute_capability  (major, minor); (0, 0): no CUDA device
    async_copies        cp.async from global to shared memory, thread by thread
    matrix_16bit        mma.sync.m16n8k16 of f16 and bf16
    matrix_tf32         mma.sync.m16n8k8 of tf32
    bulk_copies         cp.async.bulk to shared memory, told by transaction barriers
    clusters            thread block clusters with distributed shared memory
    early_start         programmatic dependent launch (griddepcontrol)
    pipelines           warps with roles: transaction barriers that threads arrive at, registers that move between warpgroups (setmaxnreg)
    warpgroup_products  asynchronous matrix instructions of a warpgroup (wgmma), of compute capability 9.0 alone
    """

    compute_capability: Capability = (0, 0)
    async_copies: bool = False
    matrix_16bit: bool = False
    matrix_tf32: bool = False
    bulk_copies: bool = False
    clusters: bool = False
    early_start: bool = False
    pipelines: bool = False
    warpgroup_products: bool = False


NO_CAPABILITIES = Capabilities()


def capabilities_of(capability: Capability) -> Capabilities:
    """The facts of a compute capability."""
    ampere, hopper = capability >= (8, 0), capability >= (9, 0)
    return Capabilities(capability, async_copies=ampere, matrix_16bit=ampere, matrix_tf32=ampere, bulk_copies=hopper, clusters=hopper,
                        early_start=hopper, pipelines=hopper, warpgroup_products=capability == (9, 0))


def arch_of(capability: Capability) -> str:
    """The architecture that code for a compute capability is compiled for: "sm_89", and "sm_90a" where it has instructions of its own."""
    major, minor = capability
    return f"sm_{major}{minor}{'a' if capability >= _OWN_INSTRUCTIONS else ''}"


def capability_of(arch: str) -> Capability | None:
    """The compute capability in an architecture's name; None for what names none ("x86_64")."""
    found = re.fullmatch(r"sm_(\d+)(\d)[af]?", arch)
    return None if found is None else (int(found[1]), int(found[2]))


def runs_on(compiled: str, present: str) -> bool:
    """Whether machine code for one architecture runs on another: on its own, and on later minor versions of the same major one unless it
    uses instructions that one architecture has alone."""
    made, here = capability_of(compiled), capability_of(present)
    if compiled == present or made is None or here is None:
        return compiled == present
    return compiled[-1].isdigit() and made[0] == here[0] and made <= here


def number_of(arch: str) -> str:
    """The number of an architecture as build tools write it: "90a" of "sm_90a"."""
    return arch.removeprefix("sm_")
