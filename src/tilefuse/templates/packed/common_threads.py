"""One number of threads a block for schedules that were chosen apart: neighbours of each choice, and the number that costs least.

The parts of a packed kernel share its launch. A walk takes any number; a row schedule takes more rows a block or more threads a row.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import log2

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.domain.resolved import Domain
from tilefuse.domain.tile import TileProgram
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.columns.starts import between_columns
from tilefuse.templates.rows.modes import Rows
from tilefuse.templates.rows.starts import vectors_of
from tilefuse.templates.staged.choose_stitch import registers_of
from tilefuse.templates.staged.stitch_plan import StitchPlan
from tilefuse.templates.template import Choice, Columns, Pointwise, Stitched, Transpose

# Stages of a stitched kernel with fewer threads wait most of the time.
LEAST_STITCHED_THREADS = 64

# A part counts at least this many bytes: very small ones are bound by latency, which the number of threads changes too.
LEAST_BYTES = 1 << 14


def packable(program: TileProgram) -> Rejected | None:
    """Why a tile program cannot be one of several in a kernel; None where it can."""
    match program.choice:
        case Rows(cluster=cluster) if cluster > 1:
            return Rejected(Reason.SHARED_MEMORY, f"%{program.graph.results[0]} needs clusters of {cluster} blocks")
        # A bound on registers (`resident`) is the launch's, not the part's: a packed kernel goes without.
        case Rows() as rows if rows.groups:
            return Rejected(Reason.SHARED_MEMORY, f"%{program.graph.results[0]} is a persistent grid that fills the device")
        case Stitched(groups=groups) if groups:
            return Rejected(Reason.SHARED_MEMORY, f"%{program.graph.results[0]} is a persistent grid that fills the device")
        case Pointwise() | Transpose() | Rows() | Columns() | Stitched():
            return None
    return Rejected(Reason.UNSUPPORTED_OP, f"%{program.graph.results[0]} has a kernel of its own kind ({program.template})")


def threads_of(choice: object) -> int:
    """Threads a block. Raises: TypeError for a choice that is not `packable`."""
    match choice:
        case Pointwise(threads=threads) | Transpose(threads=threads) | Stitched(threads=threads):
            return threads
        case Rows(threads=threads, rows=rows):
            return threads * rows
        case Columns(threads_x=x, threads_y=y):
            return x * y
    raise TypeError(f"not a template that can be packed: {choice!r}")


def with_threads(program: TileProgram, threads: int, device: DeviceSpec) -> Choice | Stitched | None:
    """The program's choice with `threads` threads a block, or None where it has no such neighbour."""
    choice, domain = program.choice, program.internal
    match choice:
        case Pointwise() | Transpose():
            return replace(choice, threads=threads)
        case Stitched():
            return replace(choice, threads=threads) if threads % 32 == 0 and threads >= LEAST_STITCHED_THREADS else None
    assert isinstance(domain, Domain)
    match choice:
        case Rows() if choice.threads * choice.rows == threads:
            return choice
        case Rows() if device.kind == "host":
            return None
        case Rows(threads=lanes) if choice.split == 1 and threads % lanes == 0 and (lanes <= 128 or threads // lanes <= 2):
            return replace(choice, rows=threads // lanes)
        case Rows() if threads % 32 == 0 and (threads > choice.threads or not choice.in_registers):
            vectors = vectors_of(domain, choice)
            return replace(choice, threads=threads, rows=1, chunks=-(-vectors // (threads * choice.split)))
        case Columns(threads_x=x) if threads % x == 0:
            down = threads // x
            if down & (down - 1) or choice.on_chip and down < choice.threads_y:
                return None
            chunks = -(-domain.num_reduced // (down * choice.split))
            changed = replace(choice, threads_y=down, chunks=chunks, batch=chunks if choice.on_chip else choice.batch)
            return None if (between_columns(domain, changed) is None) != (between_columns(domain, choice) is None) else changed
    return None


def _slowdown(choice: object, changed: object, threads: int) -> float:
    """Share of a part's time that another number of threads a block costs.

    Source: H200: copies by blocks of 128 and of 512 threads differ by 3 per cent, row reductions by more threads a row than
    they need by about 10 for each doubling; blocks of fewer than 128 threads leave half of a multiprocessor's threads away.
    """
    steps = log2(threads / threads_of(choice))
    match choice, changed:
        case (Pointwise() | Transpose()), _:
            return 0.015 * steps if steps > 0 else 0.25 * -steps
        case Rows() as old, Rows() as new if old.threads == new.threads:
            return 0.02 * abs(steps)
    return 0.1 * abs(steps)


def common_threads(programs: Sequence[TileProgram], device: DeviceSpec) -> int | Rejected:
    """The number of threads a block that all programs can have, at the least cost in bytes that could have been moved instead.

    Requires: all are `packable`.
    """
    own = [threads_of(p.choice) for p in programs]
    candidates = dict.fromkeys(own)
    best: tuple[float, int] | None = None
    for threads in candidates:
        cost = 0.0
        for program in programs:
            changed = with_threads(program, threads, device)
            if changed is None:
                break
            cost += max(program.bytes_moved, LEAST_BYTES) * _slowdown(program.choice, changed, threads)
        else:
            best = min(best or (cost, threads), (cost, threads))
    if best is None:
        told = ", ".join(str(t) for t in sorted(candidates))
        return Rejected(Reason.REGISTERS, f"the parts want blocks of {told} threads, and no number suits them all")
    return best[1]


def resident_threads(program: TileProgram) -> tuple[int, int]:
    """(registers a thread, bytes of shared memory a block) that a schedule will need, roughly: what it keeps, plus what any kernel needs.

    Source: register counts of generated kernels for sm_90a: 24 to 40 beside the values held.
    """
    domain = program.internal
    if isinstance(domain, StitchPlan):
        return registers_of(domain), domain.shared_bytes
    assert isinstance(domain, Domain)
    itemsize = max((program.graph.type_of(v).dtype.itemsize for v in program.graph.type_by_name), default=4)
    operands = len(program.graph.inputs) + len(program.graph.results)
    match program.choice:
        case Pointwise(vector=vector, steps=steps):
            return 24 + min(operands, 8) * vector * steps * itemsize // 4, 0
        case Transpose(rows=rows, columns=columns, threads=threads):
            return 32 + rows * columns * itemsize // (4 * threads), rows * (columns + 2) * itemsize
        case Rows(vector=vector, chunks=chunks) as rows:
            return 40 + vector * (chunks if rows.in_registers else rows.batch) * len(program.graph.inputs), 1024
        case Columns(vector=vector, chunks=chunks, batch=batch, on_chip=on_chip, threads_x=x, threads_y=y):
            shared = sum(i.shared for i in domain.instances)
            return 40 + vector * (chunks if on_chip else batch) * len(program.graph.inputs), 8 * vector * x * y * max(shared, 1)
    return 0, 0
