"""The transposition in tiles as a template."""
from __future__ import annotations

from tilefuse.base.candidate import Rejected
from tilefuse.domain.tile import TileProgram
from tilefuse.emit.kernel_writer import KernelWriter
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.levels import LevelTraffic
from tilefuse.templates.neighbours import others_than
from tilefuse.templates.pattern import schedule_graph
from tilefuse.templates.template import Ending, Overlaps, Resources
from tilefuse.templates.transpose.compose import compose_transpose
from tilefuse.templates.transpose.neighbours import transpose_neighbours
from tilefuse.templates.transpose.record import Transpose
from tilefuse.templates.walk import WalkTemplate, widest_itemsize


class TransposeTemplate(WalkTemplate[Transpose]):
    """Elementwise kernels that read along one axis and write along another, turned in shared memory."""

    record = Transpose

    def walk_traffic(self, choice: Transpose, program: TileProgram, device: DeviceSpec, near_bytes: int) -> LevelTraffic:
        """Every operand passes through shared memory once."""
        return LevelTraffic(program.bytes_moved, 2 * program.bytes_read)

    def endings(self, program: TileProgram) -> tuple[Ending, ...]:
        """None: no block waits for another."""
        return ()

    def resources(self, program: TileProgram, device: DeviceSpec) -> Resources:
        """The tile, and a thread's part of it."""
        c, itemsize = self.choice_of(program), widest_itemsize(program)
        least = device.fitted.packed.transpose_registers
        return Resources(least + c.rows * c.columns * itemsize // (4 * c.threads), c.rows * (c.columns + 2) * itemsize)

    def overlaps(self, choice: Transpose) -> Overlaps:
        """Tiles of reads and of writes follow different axes: there is no one direction."""
        return Overlaps(walks_memory=False, turns=False, waits_itself=False, fetches_settled=False)

    def write(self, writer: KernelWriter, choice: Transpose) -> None:
        """A tile into shared memory, a barrier, and out again."""
        compose_transpose(writer, choice)

    def neighbours(self, program: TileProgram, device: DeviceSpec) -> tuple[Transpose, ...]:
        """Other tiles and threads."""
        base = self.choice_of(program)
        return others_than(base, transpose_neighbours(base, device))

    def program_with(self, program: TileProgram, choice: Transpose, device: DeviceSpec) -> TileProgram | Rejected:
        """The transposition in those tiles."""
        return schedule_graph(program.graph, program.layouts, device, choice)
