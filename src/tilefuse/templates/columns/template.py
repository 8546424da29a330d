"""Reductions across memory as a template."""
from __future__ import annotations

from tilefuse.base.candidate import Rejected
from tilefuse.domain.access import accesses
from tilefuse.domain.contraction import WARP
from tilefuse.domain.tile import TileProgram
from tilefuse.emit.kernel_writer import KernelWriter
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.columns.compose import compose_columns
from tilefuse.templates.columns.neighbours import columns_neighbours
from tilefuse.templates.columns.record import Columns
from tilefuse.templates.columns.starts import num_tiles
from tilefuse.templates.levels import LevelTraffic, repeated_bytes, run_of, with_sectors
from tilefuse.templates.neighbours import others_than
from tilefuse.templates.pattern import schedule_graph
from tilefuse.templates.template import Ending, Overlaps, Resources
from tilefuse.templates.walk import WalkTemplate, num_shared


class ColumnsTemplate(WalkTemplate[Columns]):
    """Reductions whose results lie one after another in memory, and their elements do not."""

    record = Columns

    def walk_traffic(self, choice: Columns, program: TileProgram, device: DeviceSpec, near_bytes: int) -> LevelTraffic:
        """Each tile of columns reads what all columns share again."""
        domain = program.domain
        tiles = num_tiles(domain, choice)
        moved = sum(repeated_bytes(a, domain.kept, tiles, domain) for a in accesses(domain))
        lanes = min(choice.threads_x, WARP) * choice.vector
        below = max(WARP // choice.threads_x, 1)
        run = run_of(choice.kept_order, lanes, domain) + run_of(choice.reduced_order, below, domain)
        return with_sectors(LevelTraffic(max(moved, program.bytes_moved), 0), domain, device.fitted.traffic, run, run)

    def endings(self, program: TileProgram) -> tuple[Ending, ...]:
        """The last block adds up split columns."""
        choice = self.choice_of(program)
        return (Ending("last block of columns", choice.split),) if choice.split > 1 else ()

    def resources(self, program: TileProgram, device: DeviceSpec) -> Resources:
        """The rows of a column that a thread holds, and the results that threads exchange."""
        c = self.choice_of(program)
        exchanged = 8 * c.vector * c.num_threads * max(num_shared(program.domain), 1)
        least = device.fitted.packed.reduction_registers
        return Resources(least + c.vector * (c.chunks if c.on_chip else c.batch) * len(program.graph.inputs), exchanged)

    def overlaps(self, choice: Columns) -> Overlaps:
        """Blocks go down columns: their numbers do not turn that round."""
        return Overlaps(walks_memory=True, turns=False, waits_itself=False, fetches_settled=False)

    def write(self, writer: KernelWriter, choice: Columns) -> None:
        """The walks down the columns of a tile."""
        compose_columns(writer, choice)

    def neighbours(self, program: TileProgram, device: DeviceSpec) -> tuple[Columns, ...]:
        """Other threads along and down the columns, splits and batches."""
        base = self.choice_of(program)
        return others_than(base, columns_neighbours(base, program.domain, device))

    def program_with(self, program: TileProgram, choice: Columns, device: DeviceSpec) -> TileProgram | Rejected:
        """The walk by that choice."""
        return schedule_graph(program.graph, program.layouts, device, choice)
