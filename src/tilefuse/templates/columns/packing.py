"""Column kernels as parts of packed kernels: with which other numbers of threads a block."""
from __future__ import annotations

from dataclasses import replace
from math import log2

from tilefuse.domain.resolved import Domain
from tilefuse.target.fitted.stages import PackedFigures
from tilefuse.templates.columns.record import Columns
from tilefuse.templates.columns.starts import between_columns


def columns_with_threads(choice: Columns, domain: Domain, threads: int) -> Columns | None:
    """The choice with `threads` threads a block, more or fewer of them down each column; None where there is no such choice."""
    if threads % choice.threads_x:
        return None
    down = threads // choice.threads_x
    if down & (down - 1) or choice.on_chip and down < choice.threads_y:
        return None
    chunks = -(-domain.num_reduced // (down * choice.split))
    changed = replace(choice, threads_y=down, chunks=chunks, batch=chunks if choice.on_chip else choice.batch)
    return None if (between_columns(domain, changed) is None) != (between_columns(domain, choice) is None) else changed


def column_thread_loss(choice: Columns, changed: Columns, fitted: PackedFigures) -> float:
    """Share of the columns' time that another number of threads a block adds."""
    return fitted.row_threads_loss * abs(log2(changed.num_threads / choice.num_threads))
