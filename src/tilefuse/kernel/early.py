"""Legal work of a kernel that starts early, before the kernels ahead of it have ended, and a check that it does no more.

    kernel n - 1   ... wait for n - 2, let n start ................ store results
    kernel n                              fetch weights ............. wait for n - 1, fetch results ...

Every kernel of a program waits before it lets the next one start. So once kernel n runs, all kernels before n - 1 have ended, and with them
whatever wrote the program's inputs, unless n - 1 updates one. Source: CUDA C++ Programming Guide, programmatic dependent launch.
"""
from __future__ import annotations

from collections.abc import Iterator, Set

from tilefuse.kernel.asynchronous import AsyncCopy, AwaitEarlier, BulkCopy, Prefetch
from tilefuse.kernel.ir import (
    Atomic,
    ClusterLoad,
    ClusterStore,
    For,
    If,
    IfValue,
    Kernel,
    LastBlock,
    Load,
    MatrixProduct,
    RoutineCall,
    Stmt,
    Store,
    VectorLoad,
    VectorStore,
)
from tilefuse.kernel.visit import parts, statements

# An asynchronous copy of this size passes by the first-level cache, which may hold lines from before the input was written.
PAST_CACHE_BYTES = 16


def before_waiting(kernel: Kernel) -> tuple[Stmt, ...]:
    """The statements that run while the kernel ahead may still do so; () where the kernel waits first."""
    place = next((n for n, s in enumerate(kernel.body) if isinstance(s, AwaitEarlier)), 0)
    return kernel.body[:place]


def fetched_early(kernel: Kernel) -> frozenset[str]:
    """Values that the kernel fetches while the kernel ahead may still run, by the names of the kernel's graph."""
    buffers = kernel.addressed
    touched = {name for s in statements(before_waiting(kernel)) for name, _ in _touched(s, kernel)}
    return frozenset(buffers[name].origin for name in touched if buffers[name].space == "global")


def untimely(kernel: Kernel, settled: Set[str]) -> list[str]:
    """Work that the kernel does before it has waited and must not: one line each, empty if all is well.

    settled: values that neither the kernel nor the one ahead writes, by the names of the kernel's graph.
    """
    found = [f"waits {n} times, or in a branch" for n in (sum(isinstance(s, AwaitEarlier) for s in statements(kernel.body)),)
             if n > 1 or n != sum(isinstance(s, AwaitEarlier) for s in kernel.body)]
    buffers = kernel.addressed
    for s in statements(before_waiting(kernel)):
        for name, is_safe in _touched(s, kernel):
            buffer = buffers[name]
            if buffer.space == "global" and not (is_safe and buffer.origin in settled):
                found.append(f"{type(s).__name__} touches {name} before the kernel ahead has ended")
    return found


def _touched(s: Stmt, kernel: Kernel) -> Iterator[tuple[str, bool]]:
    """(buffer, whether the access is one that is safe for settled values) of a statement's own accesses."""
    match s:
        case Prefetch(buffer):
            yield buffer, True
        case AsyncCopy(shared, _, buffer, _, num_elements):
            yield shared, True
            yield buffer, num_elements * kernel.addressed[buffer].dtype.itemsize == PAST_CACHE_BYTES
        case (VectorLoad(buffer=buffer) | VectorStore(buffer=buffer) | Store(buffer=buffer) | Atomic(buffer=buffer)
              | ClusterLoad(buffer=buffer) | ClusterStore(buffer=buffer) | LastBlock(counter=buffer)):
            yield buffer, False
        case BulkCopy():
            yield s.buffer, False
        case RoutineCall():
            yield from ((t.target, False) for t in s.touched if not t.register)
        case MatrixProduct():
            yield from ((n, False) for n in (s.left, s.right) if n in kernel.addressed)
    own = () if isinstance(s, (For, If)) else s.condition if isinstance(s, IfValue) else s
    yield from ((e.buffer, False) for e in parts(own) if isinstance(e, Load))
