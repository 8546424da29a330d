"""Row kernels as parts of packed kernels: which of them may be one, and with which other numbers of threads a block."""
from __future__ import annotations

from dataclasses import replace
from math import log2

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.domain.resolved import Domain
from tilefuse.domain.tile import TileProgram
from tilefuse.target.device import DeviceSpec
from tilefuse.target.fitted.stages import PackedFigures
from tilefuse.templates.rows.modes import Rows
from tilefuse.templates.rows.starts import vectors_of


def row_part_refusal(choice: Rows, program: TileProgram) -> Rejected | None:
    """Why rows cannot be one part of a packed kernel; None where they can.

    A bound on registers (`resident`) is the launch's and not the part's: a packed kernel goes without.
    """
    if choice.cluster > 1:
        return Rejected(Reason.SHARED_MEMORY, f"%{program.graph.results[0]} needs clusters of {choice.cluster} blocks")
    if choice.groups:
        return Rejected(Reason.SHARED_MEMORY, f"%{program.graph.results[0]} is a persistent grid that fills the device")
    return None


def rows_with_threads(choice: Rows, domain: Domain, threads: int, device: DeviceSpec) -> Rows | None:
    """The choice with `threads` threads a block: more rows a block, or more threads a row; None where there is no such choice."""
    if choice.num_threads == threads:
        return choice
    if device.kind == "host":
        return None
    if choice.split == 1 and threads % choice.threads == 0 and (choice.threads <= 128 or threads // choice.threads <= 2):
        return replace(choice, rows=threads // choice.threads)
    if threads % 32 == 0 and (threads > choice.threads or not choice.in_registers):
        vectors = vectors_of(domain, choice)
        return replace(choice, threads=threads, rows=1, chunks=-(-vectors // (threads * choice.split)))
    return None


def row_thread_loss(choice: Rows, changed: Rows, fitted: PackedFigures) -> float:
    """Share of the rows' time that another number of threads a block adds: less where only the rows a block change."""
    doublings = abs(log2(changed.num_threads / choice.num_threads))
    return (fitted.row_blocks_loss if choice.threads == changed.threads else fitted.row_threads_loss) * doublings
