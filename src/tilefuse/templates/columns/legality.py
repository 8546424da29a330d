"""Legality of column kernels: vectors, rows a thread, blocks that share a column; and the threads that a template may write."""
from __future__ import annotations

from tilefuse.base.candidate import Rejected
from tilefuse.domain.resolved import Domain
from tilefuse.domain.stages import is_multi_stage
from tilefuse.templates.columns.record import Columns
from tilefuse.templates.columns.starts import between_columns
from tilefuse.templates.walk_legality import first_refusal, widest_whole


def columns_refusal(choice: Columns, domain: Domain) -> Rejected | None:
    """Why a pattern has no column kernel of this choice; None where it has one."""
    covered = choice.threads_y * choice.chunks * choice.split
    return first_refusal(
        (domain.num_kept % choice.vector == 0 or between_columns(domain, choice) is not None,
         f"{domain.num_kept} columns are no whole vectors of {choice.vector}", f"vector={widest_whole(domain.num_kept)}"),
        (covered >= domain.num_reduced, f"columns of {domain.num_reduced} elements, but threads x chunks are {covered}",
         f"chunks={column_steps_of(choice, domain)} at least"),
        (choice.split == 1 or not choice.on_chip and not is_multi_stage(domain),
         f"{choice.split} blocks share a column whose elements are needed again after its reductions",
         "the reduced dimension without GRID"))


def written_columns_refusal(choice: Columns) -> Rejected | None:
    """Why a template may not write these columns; choosers may leave threads along the columns away where these end."""
    return first_refusal((choice.threads_x & (choice.threads_x - 1) == 0 and choice.threads_y & (choice.threads_y - 1) == 0,
                          f"{choice.threads_x} x {choice.threads_y} threads are no powers of two", "powers of two"))


def column_steps_of(choice: Columns, domain: Domain) -> int:
    """Least `chunks` of a choice with its threads and split. Units: rows a thread."""
    return max(1, -(-domain.num_reduced // (choice.threads_y * choice.split)))
