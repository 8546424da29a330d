"""Legal work of a kernel that starts before its predecessor has ended, and a check that the kernel does nothing else.

    kernel n - 1   ... wait for n - 2, let n start ................ store results
    kernel n                              fetch weights ............. wait for n - 1, fetch results ...

Every kernel of a program waits before it lets the next one start. Once kernel n runs, all kernels before n - 1 have therefore ended. All
writes of the program's inputs are then complete, except those of n - 1. Source: CUDA C++ Programming Guide, programmatic dependent launch.
"""
from __future__ import annotations

from collections.abc import Iterator, Set

from tilefuse.kernel.asynchronous import AsyncCopy, AwaitEarlier, BulkCopy, Prefetch
from tilefuse.kernel.ir import (
    Atomic,
    Barrier,
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
from tilefuse.kernel.pipeline import Consume, EachWarpgroup, InTurn, Pipeline, Produce, WarpgroupProduct
from tilefuse.kernel.tensor_map import TensorCopy, TensorStore
from tilefuse.kernel.visit import parts, statements

# Size of an asynchronous copy that bypasses L1, in bytes. L1 may hold lines from before the input was written.
PAST_CACHE_BYTES = 16


class PrefetchOnly(frozenset[str]):
    """Names in a kernel's graph of the values that it may prefetch into L2 while the previous kernel still runs, and not read.

    Prefetches change no value, and writes of all multiprocessors arrive in L2: a prefetched line is never old.
    """


def before_waiting(kernel: Kernel) -> tuple[Stmt, ...]:
    """Statements that may run while the previous kernel still runs; () for a kernel that waits first."""
    place = next((n for n, s in enumerate(kernel.body) if isinstance(s, AwaitEarlier)), 0)
    pipeline = kernel.pipeline
    if pipeline is None or not pipeline.early:
        return kernel.body[:place]
    copies = tuple(s for s in statements(pipeline.body) if isinstance(s, TensorCopy) and s.ahead)
    return (*(s for s in kernel.body if s is not pipeline), *copies)


def fetched_early(kernel: Kernel) -> frozenset[str]:
    """Names in the kernel's graph of the values that it fetches while the previous kernel may still run."""
    buffers = kernel.addressed
    touched = {name for s in statements(before_waiting(kernel)) for name, _ in _touched(s, kernel)}
    return frozenset(buffers[name].origin for name in touched if buffers[name].space == "global")


def untimely(kernel: Kernel, settled: Set[str]) -> list[str]:
    """Illegal work of the kernel before it has waited, one line each; empty for a correct kernel.

    settled: names in the kernel's graph of the values that neither this kernel nor the previous one writes, or that it may prefetch.
    """
    waits = sum(isinstance(s, AwaitEarlier) for s in statements(kernel.body))
    most = 0 if kernel.pipeline is not None and kernel.pipeline.early else 1
    violations = []
    if waits > most or waits != sum(isinstance(s, AwaitEarlier) for s in kernel.body):
        violations.append(f"waits {waits} times, or in a branch")
    buffers = kernel.addressed
    for s in statements(before_waiting(kernel)):
        for name, is_safe in _touched(s, kernel):
            buffer = buffers[name]
            is_legal = is_safe and buffer.origin in settled and (isinstance(s, Prefetch) or not isinstance(settled, PrefetchOnly))
            if buffer.space == "global" and not is_legal:
                violations.append(f"{type(s).__name__} touches {name} before the kernel ahead has ended")
    return violations


def _touched(s: Stmt, kernel: Kernel) -> Iterator[tuple[str, bool]]:
    """A statement's own accesses: (buffer, whether a settled value may be accessed in this way)."""
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
            yield s.shared, True
            # The copy engine reads past L1.
            yield s.buffer, True
        case Barrier(counter=counter) if counter:
            yield counter, False
        case TensorCopy(map=name, buffer=shared):
            yield shared, True
            # The copy engine reads past L1. Source: PTX ISA, asynchronous proxy.
            yield kernel.map_named(name).buffer, True
        case TensorStore(map=name):
            yield kernel.map_named(name).buffer, False
        case RoutineCall():
            yield from ((t.target, False) for t in s.touched if not t.register)
        case MatrixProduct() | WarpgroupProduct():
            yield from ((n, False) for n in (s.left, s.right) if n in kernel.addressed)
    compound = (For, If, Pipeline, Produce, Consume, EachWarpgroup, InTurn)
    own = () if isinstance(s, compound) else s.condition if isinstance(s, IfValue) else s
    yield from ((e.buffer, False) for e in parts(own) if isinstance(e, Load))
