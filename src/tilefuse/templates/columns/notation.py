"""Column kernels in the notation: vectors of columns in a block, threads down each column, blocks that share a column.

    s [GRID-CTA_16,GRID_8-CTA_32]S; vector=4; chunks=2;     16 vectors of columns, 32 threads down each, 8 blocks a column
"""
from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from tilefuse.base.candidate import Rejected
from tilefuse.domain.resolved import Domain
from tilefuse.domain.tile import Level, TileProgram
from tilefuse.ir.graph import Node
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.columns.legality import column_steps_of, columns_refusal, written_columns_refusal
from tilefuse.templates.columns.record import Columns
from tilefuse.templates.notation import Attr, Schedule, Step, Template, Worker
from tilefuse.templates.reduced_loops import ReducedLoop, read_kept, read_reduced, reduced_attrs
from tilefuse.templates.walk_notation import WalkNotation, exchanged_to, num_kept_dims, sorted_numbers

WORKERS = (Worker.GRID, Worker.CTA, Worker.THREAD)


class ColumnsNotation(WalkNotation[Columns, Columns]):
    """The record's own fields are the settings."""

    kind: ClassVar[str] = "columns"
    shown_fields: ClassVar[frozenset[str]] = frozenset({"threads_x", "threads_y", "split"})

    def settings_of(self, choice: Columns) -> Columns:
        """The choice itself."""
        return choice

    def parameters(self, choice: Columns) -> tuple[tuple[str, Any], ...]:
        """All fields."""
        return sorted_numbers(choice)

    def attrs(self, choice: Columns, domain: Domain, node: Node) -> tuple[Attr, ...]:
        """Vectors of columns in a block for the last kept dimension; threads, and blocks that share a column, for the reduced one."""
        down = Step(Worker.THREAD) if choice.threads_y == 1 else Step(Worker.CTA, choice.threads_y)
        reduced = (Step(Worker.GRID, choice.split), down) if choice.split > 1 else (down,)
        return reduced_attrs(node, num_kept_dims(node, domain), (Step(Worker.GRID), Step(Worker.CTA, choice.threads_x)), reduced)

    def exchange_level(self, choice: Columns) -> Level:
        """Shared memory where several threads go down a column."""
        return Level.SHARED if choice.threads_y > 1 else Level.REGISTER

    def destinations(self, choice: Columns, is_exchanged: bool, is_result: bool) -> tuple[Level, ...]:
        """The level at which the threads of a column meet."""
        return exchanged_to(self.exchange_level(choice), is_exchanged, is_result)

    def in_own_words(self, template: Template, choice: Columns, program: TileProgram, device: DeviceSpec) -> Template:
        """As it is: the paper's forms reduce rows."""
        return template

    def with_loops(self, settings: Columns, schedule: Schedule, usual: Schedule, num_kept: int) -> Columns:
        """Threads along the columns, down each, and blocks that share one."""
        if num_kept:
            _, inside = read_kept(schedule.attrs[num_kept - 1], schedule, usual)
            settings = replace(settings, threads_x=inside or settings.threads_x)
        if num_kept == len(schedule.attrs):
            return settings
        loop = read_reduced(schedule.attrs[num_kept], ReducedLoop(1, settings.split, settings.threads_y), WORKERS, schedule, usual)
        return replace(settings, threads_y=loop.threads, split=loop.split)

    def with_covering_steps(self, settings: Columns, domain: Domain) -> Columns:
        """As many rows a thread as cover a column."""
        return replace(settings, chunks=column_steps_of(settings, domain))

    def choice_from(self, settings: Columns, usual: Columns, domain: Domain, device: DeviceSpec) -> Columns | Rejected:
        """The settings themselves, where threads are powers of two and vectors and rows cover the columns."""
        return written_columns_refusal(settings) or columns_refusal(settings, domain) or settings
