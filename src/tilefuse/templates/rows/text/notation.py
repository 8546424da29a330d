"""Row kernels in the notation: rows in a block, lanes or threads along a row, blocks that share one; modes in flat words (`RowSettings`).

    m [GRID-CTA_4,WARP_16]W;          a block of 4 rows, each shared by 16 lanes
    m [GRID,CLUSTER_4-CTA_256]C;      4 blocks of 256 threads share a row through a cluster
    m [GRID_264,CTA_256]S; stages=3;  264 blocks take rows in turns out of a queue of 3 slots
"""
from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from tilefuse.base.candidate import Rejected
from tilefuse.domain.resolved import Domain
from tilefuse.domain.tile import Level, TileProgram
from tilefuse.ir.graph import Node
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.notation import Attr, Schedule, Step, Template, Worker
from tilefuse.templates.reduced_loops import ReducedLoop, read_kept, read_reduced, reduced_attrs
from tilefuse.templates.rows.legality import row_steps_of, rows_from
from tilefuse.templates.rows.modes import Rows, RowSettings, settings_of_rows
from tilefuse.templates.rows.text.whole_in_block import with_rows_of_blocks
from tilefuse.templates.walk_notation import WalkNotation, exchanged_to, num_kept_dims, sorted_numbers

WORKERS = (Worker.CLUSTER, Worker.GRID, Worker.CTA, Worker.WARP, Worker.THREAD)


class RowsNotation(WalkNotation[Rows, RowSettings]):
    """Modes are written in flat words, which `mode_of` judges."""

    kind: ClassVar[str] = "rows"
    shown_fields: ClassVar[frozenset[str]] = frozenset({"threads", "rows", "cluster", "split", "groups"})

    def settings_of(self, choice: Rows) -> RowSettings:
        """The mode in flat words."""
        return settings_of_rows(choice)

    def parameters(self, choice: Rows) -> tuple[tuple[str, Any], ...]:
        """All flat words."""
        return sorted_numbers(settings_of_rows(choice))

    def attrs(self, choice: Rows, domain: Domain, node: Node) -> tuple[Attr, ...]:
        """Rows of a block for the last kept dimension; lanes or threads, and blocks that share a row, for the reduced one."""
        if any(i.carried and i.node is node for i in domain.instances):
            # Groups of rows over the grid, columns as the row's elements, and the rows of a group one after another.
            inside = Step(Worker.CTA, choice.rows) if choice.rows > 1 else Step(Worker.THREAD)
            return (_groups(choice), *(_along_row(choice),) * (len(node.type.shape) - 1), (inside,))
        kept = (*_groups(choice), Step(Worker.CTA, choice.rows)) if choice.rows > 1 else _groups(choice)
        return reduced_attrs(node, num_kept_dims(node, domain), kept, _along_row(choice))

    def exchange_level(self, choice: Rows) -> Level:
        """The smallest level that all threads of a row share."""
        if choice.cluster > 1:
            return Level.CLUSTER
        return Level.SHARED if choice.threads > 32 else Level.WARP if choice.threads > 1 else Level.REGISTER

    def destinations(self, choice: Rows, is_exchanged: bool, is_result: bool) -> tuple[Level, ...]:
        """The level at which the threads of a row meet."""
        return exchanged_to(self.exchange_level(choice), is_exchanged, is_result)

    def in_own_words(self, template: Template, choice: Rows, program: TileProgram, device: DeviceSpec) -> Template:
        """Blocks of whole dimensions as rows of a block."""
        return with_rows_of_blocks(template, choice, program.domain, _kept_extents(program))

    def with_loops(self, settings: RowSettings, schedule: Schedule, usual: Schedule, num_kept: int) -> RowSettings:
        """Rows a block, blocks that take rows in turns, and the workers along a row."""
        if num_kept:
            settings = _with_kept(settings, schedule, usual, num_kept)
        if num_kept == len(schedule.attrs):
            return settings
        own = ReducedLoop(settings.cluster, settings.split, settings.threads)
        loop = read_reduced(schedule.attrs[num_kept], own, WORKERS, schedule, usual)
        return replace(settings, threads=loop.threads, cluster=loop.cluster, split=loop.split)

    def with_covering_steps(self, settings: RowSettings, domain: Domain) -> RowSettings:
        """As many vectors a thread as cover a row."""
        return replace(settings, chunks=row_steps_of(settings, domain))

    def choice_from(self, settings: RowSettings, usual: RowSettings, domain: Domain, device: DeviceSpec) -> Rows | Rejected:
        """The mode that the flat words write, where it is legal."""
        return rows_from(settings, domain, device)


def _groups(choice: Rows) -> Attr:
    """Blocks, or clusters, over the grid: counted where they take rows in turns."""
    return (Step(Worker.GRID, choice.groups or None),)


def _along_row(choice: Rows) -> Attr:
    """The workers that share a row."""
    threads = choice.threads
    lanes = Step(Worker.THREAD) if threads == 1 else Step(Worker.WARP if threads <= 32 else Worker.CTA, threads)
    if choice.cluster > 1:
        return (Step(Worker.CLUSTER, choice.cluster), lanes)
    return (Step(Worker.GRID, choice.split), lanes) if choice.split > 1 else (lanes,)


def _with_kept(settings: RowSettings, schedule: Schedule, usual: Schedule, num_kept: int) -> RowSettings:
    groups, inside = read_kept(schedule.attrs[num_kept - 1], schedule, usual)
    settings = replace(settings, rows=inside or settings.rows)
    # GRID_n without a queue of rows would only say how many blocks follow from the extent.
    is_extent = not settings.stages and not settings.span
    return settings if groups is None or is_extent else replace(settings, groups=groups)


def _kept_extents(program: TileProgram) -> dict[str, tuple[int, ...]]:
    """Extents of the kept dimensions of every value whose loops the kernel shows, but of sums carried from row to row."""
    domain = program.domain
    carried = {i.node.name for i in domain.instances if i.carried}
    return {n.name: n.type.shape[:num_kept_dims(n, domain)] for n in program.graph.nodes if n.name not in carried}
