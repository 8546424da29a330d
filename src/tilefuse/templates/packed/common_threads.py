"""One number of threads a block for schedules that were chosen apart: neighbours of each choice, and the number that costs least.

The parts of a packed kernel share its launch. A walk takes any number; a row schedule takes more rows a block or more threads a row.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import log2

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.domain.resolved import Domain
from tilefuse.domain.tile import Choice, TileProgram
from tilefuse.target.device import DeviceSpec
from tilefuse.target.fitted.stages import PackedFigures
from tilefuse.templates.columns.record import Columns
from tilefuse.templates.columns.starts import between_columns
from tilefuse.templates.flat.record import Pointwise
from tilefuse.templates.rows.modes import Rows
from tilefuse.templates.rows.starts import vectors_of
from tilefuse.templates.staged.record import Stitched
from tilefuse.templates.transpose.record import Transpose


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


def with_threads(program: TileProgram, threads: int, device: DeviceSpec) -> Choice | None:
    """The program's choice with `threads` threads a block, or None where it has no such neighbour."""
    choice, domain = program.choice, program.internal
    match choice:
        case Pointwise() | Transpose():
            return replace(choice, threads=threads)
        case Stitched():
            legal = threads % 32 == 0 and threads >= device.fitted.packed.least_stitched_threads
            return replace(choice, threads=threads) if legal else None
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


def _slowdown(choice: Choice, changed: Choice, threads: int, fitted: PackedFigures) -> float:
    """Share of a part's time that another number of threads a block costs. Source: `PackedFigures`."""
    steps = log2(threads / choice.num_threads)
    match choice, changed:
        case (Pointwise() | Transpose()), _:
            return fitted.wider_walk_loss * steps if steps > 0 else fitted.narrower_walk_loss * -steps
        case Rows() as old, Rows() as new if old.threads == new.threads:
            return fitted.row_blocks_loss * abs(steps)
    return fitted.row_threads_loss * abs(steps)


def common_threads(programs: Sequence[TileProgram], device: DeviceSpec) -> int | Rejected:
    """The number of threads a block that all programs can have, at the least cost in bytes that could have been moved instead.

    Requires: all are `packable`.
    """
    own = [p.choice.num_threads for p in programs]
    candidates = dict.fromkeys(own)
    best: tuple[float, int] | None = None
    for threads in candidates:
        cost = 0.0
        for program in programs:
            changed = with_threads(program, threads, device)
            if changed is None:
                break
            loss = _slowdown(program.choice, changed, threads, device.fitted.packed)
            cost += max(program.bytes_moved, device.fitted.packed.least_bytes) * loss
        else:
            best = min(best or (cost, threads), (cost, threads))
    if best is None:
        told = ", ".join(str(t) for t in sorted(candidates))
        return Rejected(Reason.REGISTERS, f"the parts want blocks of {told} threads, and no number suits them all")
    return best[1]
