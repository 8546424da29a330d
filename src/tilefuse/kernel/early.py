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
    if kernel.groups:
        return tuple(s for g in kernel.groups for s in _before_waiting(g.body))
    pipeline = kernel.pipeline
    if pipeline is None or not pipeline.early:
        return _before_waiting(kernel.body)
    copies = tuple(s for s in statements(pipeline.body) if isinstance(s, TensorCopy) and s.ahead)
    return (*(s for s in kernel.body if s is not pipeline), *copies)


def _before_waiting(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    place = next((n for n, s in enumerate(body) if isinstance(s, AwaitEarlier)), 0)
    return body[:place]


def waits_inside(kernel: Kernel) -> bool:
    """Whether a statement says where the kernel waits for the previous one: of its body, or of each of its groups."""
    return any(isinstance(s, AwaitEarlier) for body in _bodies(kernel) for s in body)


def _bodies(kernel: Kernel) -> tuple[tuple[Stmt, ...], ...]:
    """The statements of the kernel's blocks: those of each group, of which a block runs one."""
    return tuple(g.body for g in kernel.groups) or (kernel.body,)


def _origins(kernel: Kernel) -> dict[str, frozenset[str]]:
    """The values behind each buffer in global memory: behind a group's slot, those of all its members."""
    origin_by_parameter = {b.name: b.origin for b in kernel.parameters}
    origins = {name: frozenset({origin}) for name, origin in origin_by_parameter.items()}
    for group in kernel.groups:
        for n, slot in enumerate(group.slots):
            origins[slot.name] = frozenset(origin_by_parameter[m.arguments[n]] for m in group.members)
    return origins


def fetched_early(kernel: Kernel) -> frozenset[str]:
    """Names in the kernel's graph of the values that it fetches while the previous kernel may still run."""
    origins = _origins(kernel)
    touched = {name for s in statements(before_waiting(kernel)) for name, _ in _touched(s, kernel)}
    return frozenset().union(*(origins[name] for name in touched if name in origins))


def untimely(kernel: Kernel, settled: Set[str]) -> list[str]:
    """Illegal work of the kernel before it has waited, one line each; empty for a correct kernel.

    settled: names in the kernel's graph of the values that neither this kernel nor the previous one writes, or that it may prefetch.
    """
    most = 0 if kernel.pipeline is not None and kernel.pipeline.early else 1
    least = 1 if kernel.groups and waits_inside(kernel) else 0
    violations = []
    for body in _bodies(kernel):
        waits = sum(isinstance(s, AwaitEarlier) for s in statements(body))
        if not least <= waits <= most or waits != sum(isinstance(s, AwaitEarlier) for s in body):
            violations.append(f"waits {waits} times, or in a branch")
    origins = _origins(kernel)
    for s in statements(before_waiting(kernel)):
        for name, is_safe in _touched(s, kernel):
            if name not in origins:
                continue
            is_legal = is_safe and origins[name] <= settled and (isinstance(s, Prefetch) or not isinstance(settled, PrefetchOnly))
            if not is_legal:
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
