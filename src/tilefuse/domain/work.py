"""Work: the traffic, operations and waits of one kernel or library call, whatever device does it. `plan/price/roofline.py` prices it."""
from __future__ import annotations

from dataclasses import dataclass

from tilefuse.target.launch import Launch


@dataclass(frozen=True, slots=True)
class LoadChain:
    """Loads of a kernel whose text says how many are in flight, and the waits between them.

    flight_bytes      bytes of loads that one thread has in flight
    resident_blocks   blocks that a multiprocessor holds at once, registers counted
    iterations        groups of tiles that a block takes, one after the other
    wait_us           latency of a group's first load, and exchanges within the block

    Units: bytes; microseconds.
    """

    flight_bytes: int
    resident_blocks: int
    iterations: int
    wait_us: float


@dataclass(frozen=True, slots=True)
class Work:
    """Work of one step of a program. Parts that move data, compute and wait hide each other; launches and `serial_us` come on top.

    launches          kernels that are started one after another
    grid              grid and block of the kernel; None for work that fills any device (library calls, copies)
    read_bytes        part of `global_bytes` that is read
    global_bytes      boundary values, each once
    l2_bytes          bytes between L2 and the multiprocessors, repeated reads counted
    shared_bytes      bytes written to and read from shared memory
    scattered_adds    elements added at places that data give
    partial_sectors   sectors of which a store writes a part
    operations        operations on the unit named `unit`: "threads", a dtype name for a large matrix product of it, or a name that
                      `plan/price/roofline.py` lists
    efficiency        share of the unit's rate that this shape reaches
    stage_us          waits and issue slots of stages, and latency chains, that traffic and operations hide
    serial_us         waits that nothing hides
    serial_bytes      bytes that move while nothing else does
    traffic_factor    time of the traffic with global memory and L2, over that of a copy of as many bytes
    loads             loads in flight, where the kernel's text states them; else they follow from `read_bytes`
    follows_another   a kernel before it ends while this one starts, as in a graph of several kernels

    Units: bytes; operations; microseconds; `efficiency` is a fraction.
    """

    launches: int = 1
    grid: Launch | None = None
    read_bytes: int = 0
    global_bytes: int = 0
    l2_bytes: int = 0
    shared_bytes: int = 0
    scattered_adds: int = 0
    partial_sectors: int = 0
    operations: int = 0
    unit: str = "threads"
    efficiency: float = 1.0
    stage_us: float = 0.0
    serial_us: float = 0.0
    serial_bytes: int = 0
    traffic_factor: float = 1.0
    loads: LoadChain | None = None
    follows_another: bool = False
