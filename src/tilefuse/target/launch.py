"""The launch contract: what a caller must know of a kernel to start it, whichever executor runs it."""
from __future__ import annotations

from dataclasses import dataclass

from tilefuse.base.construction import quickly_built


@dataclass(frozen=True, slots=True)
class Parameter:
    """One pointer argument of a kernel. Units: `num_elements` elements.

    role: "in" read only, "out" written whole, "inout" read and written, "workspace" scratch, "counter" scratch that
    must be zero before the first launch and that the kernel leaves at zero.
    """

    name: str
    dtype: str
    num_elements: int
    role: str


@quickly_built
@dataclass(frozen=True, slots=True)
class Launch:
    """Grid and block of a kernel. All kernels use one grid dimension and one block dimension.

    Units: `shared_bytes` is dynamic shared memory a block; `cluster` is blocks a cluster (1: none).
    early: the kernel may start before the one ahead of it in the stream has ended; it waits for that one itself before it touches
    global memory.
    scattered: the blocks of a cluster lie on any multiprocessors and meet through global memory. A device starts all blocks of the launch
    at once or none (a cooperative launch), because blocks wait for each other.
    """

    num_blocks: int
    num_threads: int
    cluster: int = 1
    shared_bytes: int = 0
    early: bool = False
    scattered: bool = False
