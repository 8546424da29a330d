"""Reductions across memory as a template."""
from __future__ import annotations

from dataclasses import replace

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.domain.access import accesses
from tilefuse.domain.resolved import Domain
from tilefuse.domain.tile import TileProgram
from tilefuse.domain.work import Ending, Work
from tilefuse.emit.kernel_writer import KernelWriter
from tilefuse.target.capabilities import WARP
from tilefuse.target.device import DeviceSpec
from tilefuse.target.launch import Launch
from tilefuse.templates.columns.choose import choose_columns
from tilefuse.templates.columns.compose import compose_columns
from tilefuse.templates.columns.legality import columns_refusal
from tilefuse.templates.columns.neighbours import columns_neighbours
from tilefuse.templates.columns.notation import ColumnsNotation
from tilefuse.templates.columns.packing import column_thread_loss, columns_with_threads
from tilefuse.templates.columns.record import Columns
from tilefuse.templates.columns.starts import between_columns, num_tiles
from tilefuse.templates.columns.waits import result_operations, walk_cycles
from tilefuse.templates.exchanges import exchange_by_halves
from tilefuse.templates.explained import LevelTile, extents_of, length_of
from tilefuse.templates.levels import LevelTraffic, repeated_bytes, run_of, with_sectors
from tilefuse.templates.neighbours import others_than
from tilefuse.templates.overwrites import has_one_value_a_row, reads_end_at_sums
from tilefuse.templates.request import WalkedPattern
from tilefuse.templates.template import Overlaps, Resources
from tilefuse.templates.walk import WalkTemplate, further_reductions, num_shared


class ColumnsTemplate(WalkTemplate[Columns]):
    """Reductions whose results lie one after another in memory, and their elements do not."""

    record = Columns
    notation = ColumnsNotation()

    def work(self, program: TileProgram, device: DeviceSpec) -> Work:
        """As of every walk, and the chain of a thread: stages, exchanges between the threads of a column, results."""
        choice, domain = self.choice_of(program), program.domain
        return replace(super().work(program, device), exchange=exchange_by_halves(domain, choice.threads_y, device.fitted.stitch),
                       thread_cycles=walk_cycles(domain, choice, device), item_operations=result_operations(domain, choice))

    def walk_traffic(self, choice: Columns, program: TileProgram, device: DeviceSpec, near_bytes: int) -> LevelTraffic:
        """Each tile of columns reads what all columns share again."""
        domain = program.domain
        tiles = num_tiles(domain, choice)
        moved = sum(repeated_bytes(a, choice.kept_order, choice.threads_x * choice.vector, tiles, domain) for a in accesses(domain))
        lanes = min(choice.threads_x, WARP) * choice.vector
        below = max(WARP // choice.threads_x, 1)
        run = run_of(choice.kept_order, lanes, domain) + run_of(choice.reduced_order, below, domain)
        return with_sectors(LevelTraffic(max(moved, program.bytes_moved), 0), domain, device.fitted.traffic, run, run)

    def endings(self, choice: Columns, program: TileProgram) -> tuple[Ending, ...]:
        """The last block adds up split columns."""
        return (Ending("last block of columns", choice.split),) if choice.split > 1 else ()

    def resources(self, program: TileProgram, device: DeviceSpec) -> Resources:
        """The rows of a column that a thread holds, and the results that threads exchange."""
        c = self.choice_of(program)
        exchanged = 8 * c.vector * c.num_threads * max(num_shared(program.domain), 1)
        least = device.fitted.packed.reduction_registers
        values = c.vector * (c.chunks if c.on_chip else c.batch) * len(program.graph.inputs)
        return Resources(least + values + c.vector * further_reductions(program.domain, device), exchanged)

    def overlaps(self, choice: Columns) -> Overlaps:
        """Blocks go down columns: their numbers do not turn that round."""
        return Overlaps(walks_memory=True, turns=False, waits_itself=False, fetches_settled=False)

    def write(self, writer: KernelWriter, choice: Columns) -> None:
        """The walks down the columns of a tile."""
        compose_columns(writer, choice)

    def refusal(self, choice: Columns, domain: Domain, device: DeviceSpec) -> Rejected | None:
        """Vectors and rows of a thread cover the columns."""
        return columns_refusal(choice, domain)

    def neighbours(self, program: TileProgram, device: DeviceSpec) -> tuple[Columns, ...]:
        """Other threads along and down the columns, splits and batches."""
        base = self.choice_of(program)
        return others_than(base, columns_neighbours(base, program.domain, device))

    # -- from a pattern to a program -------------------------------------------------------------------------------------------

    priority = 1

    def choose(self, pattern: WalkedPattern) -> Columns | Rejected:
        """Columns of kept axes along memory."""
        if not pattern.exchanges_values or pattern.carries_sums or not pattern.sums_columns:
            return Rejected(Reason.OTHER_TEMPLATE, "no reductions across memory")
        return choose_columns(pattern.domain, pattern.device, pattern.accesses)

    def launch(self, choice: Columns, domain: Domain) -> Launch:
        """The blocks of each tile that share its columns."""
        return Launch(num_tiles(domain, choice) * choice.split, choice.threads_x * choice.threads_y)

    def in_one_pass(self, domain: Domain) -> Domain:
        """The domain itself: reductions down a column are passes of their own."""
        return domain

    def keeps_elements(self, choice: Columns) -> bool:
        """Whether registers hold the columns."""
        return choice.on_chip

    def sums_vectors(self, choice: Columns) -> bool:
        """False: each lane of a vector is a column of its own."""
        return False

    # -- updates in place, explanations, parts of packed kernels ---------------------------------------------------------------

    def loads_where_it_stores(self, program: TileProgram, value: str) -> bool:
        """Whether `value` has one element a column. Threads without a column of their own load operands of others, but store nothing."""
        return has_one_value_a_row(program, value)

    def reads_end_before_writes(self, program: TileProgram, value: str, target: str) -> bool:
        """Whether the threads of a column have read `target` when they meet at the column's sum.

        Tiles that have a vector in common read each other's columns: their blocks do not meet.
        """
        choice = self.choice_of(program)
        meet = (choice.split > 1 or choice.threads_y > 1) and between_columns(program.domain, choice) is None
        return (meet and self.loads_where_it_stores(program, value)
                and reads_end_at_sums(program.domain, value, target, choice.vector * choice.threads_x, choice.on_chip))

    def tiles(self, program: TileProgram, launch: Launch) -> tuple[LevelTile, ...]:
        """Columns of a block, and the shares of a column of its threads."""
        c, domain = self.choice_of(program), program.domain
        kept, reduced = "*".join(c.kept_order) or "column", "*".join(c.reduced_order) or "element"
        share = -(-length_of(domain, c.reduced_order) // c.split)
        return (LevelTile("grid", extents_of(domain, (*c.reduced_order, *c.kept_order))),
                LevelTile("block", ((reduced, share), (kept, c.vector * c.threads_x))),
                LevelTile("warp", ((reduced, c.chunks * max(WARP // c.threads_x, 1)), (kept, min(c.threads_x, WARP) * c.vector))),
                LevelTile("thread", ((reduced, c.chunks), (kept, c.vector))))

    def part_refusal(self, program: TileProgram) -> Rejected | None:
        """None: its blocks know nothing of each other, or meet through global memory."""
        return None

    def with_threads(self, program: TileProgram, threads: int, device: DeviceSpec) -> Columns | None:
        """More or fewer threads down each column."""
        return columns_with_threads(self.choice_of(program), program.domain, threads)

    def thread_loss(self, choice: Columns, changed: Columns, device: DeviceSpec) -> float:
        """As much for each doubling as for each halving."""
        return column_thread_loss(choice, changed, device.fitted.packed)
