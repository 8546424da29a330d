"""The transposition in tiles as a template."""
from __future__ import annotations

from dataclasses import replace
from math import prod

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.domain.resolved import Domain
from tilefuse.domain.roofline import resident_blocks
from tilefuse.domain.tile import TileProgram
from tilefuse.domain.work import Ending, Work
from tilefuse.emit.kernel_writer import KernelWriter
from tilefuse.target.capabilities import WARP
from tilefuse.target.device import DeviceSpec
from tilefuse.target.launch import Launch
from tilefuse.templates.explained import LevelTile, extents_of
from tilefuse.templates.levels import LevelTraffic
from tilefuse.templates.neighbours import others_than
from tilefuse.templates.request import WalkedPattern
from tilefuse.templates.template import Overlaps, Resources
from tilefuse.templates.transpose.choose import choose_transpose
from tilefuse.templates.transpose.compose import compose_transpose
from tilefuse.templates.transpose.neighbours import transpose_neighbours
from tilefuse.templates.transpose.notation import TransposeNotation
from tilefuse.templates.transpose.record import Transpose
from tilefuse.templates.walk import WalkTemplate, elementwise_thread_loss, widest_itemsize


class TransposeTemplate(WalkTemplate[Transpose]):
    """Elementwise kernels that read along one axis and write along another, turned in shared memory."""

    record = Transpose
    notation = TransposeNotation()

    def walk_traffic(self, choice: Transpose, program: TileProgram, device: DeviceSpec, near_bytes: int) -> LevelTraffic:
        """Every operand passes through shared memory once."""
        return LevelTraffic(program.bytes_moved, 2 * program.bytes_read)

    def work(self, program: TileProgram, device: DeviceSpec) -> Work:
        """As of every walk, and the time in which a multiprocessor turns its first blocks' tiles, which all read first and then write.

        A tile that is one run of memory has short blocks, which hide each other's waits.
        """
        work, c = super().work(program, device), self.choice_of(program)
        if c.writes_run or not c.depth:
            return work
        tile_bytes = c.rows * c.columns * widest_itemsize(program)
        each = min(-(-program.launch.num_blocks // device.num_multiprocessors), resident_blocks(program.launch, device))
        return replace(work, stage_us=each * tile_bytes / 1024 * device.fitted.flat.turn_us)

    def endings(self, choice: Transpose, program: TileProgram) -> tuple[Ending, ...]:
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

    def refusal(self, choice: Transpose, domain: Domain, device: DeviceSpec) -> Rejected | None:
        """None: choosers and neighbours make tiles that fit, and the notation judges written ones."""
        return None

    def neighbours(self, program: TileProgram, device: DeviceSpec) -> tuple[Transpose, ...]:
        """Other tiles and threads."""
        base = self.choice_of(program)
        return others_than(base, transpose_neighbours(base, device))

    # -- from a pattern to a program -------------------------------------------------------------------------------------------

    priority = 1

    def choose(self, pattern: WalkedPattern) -> Transpose | Rejected:
        """Tiles for patterns that read across the order in which they write."""
        choice = None if pattern.exchanges_values else choose_transpose(pattern.domain, pattern.device, pattern.accesses)
        return choice or Rejected(Reason.OTHER_TEMPLATE, "no large read runs across the writes")

    def launch(self, choice: Transpose, domain: Domain) -> Launch:
        """A block for each tile."""
        others = prod(domain.extents[a] for a in choice.order if a not in (choice.read_axis, choice.write_axis))
        tiles = -(-domain.extents[choice.read_axis] // choice.columns) * -(-domain.extents[choice.write_axis] // choice.rows)
        return Launch(others * tiles, choice.threads)

    def in_one_pass(self, domain: Domain) -> Domain:
        """The domain itself: threads share no reductions."""
        return domain

    def keeps_elements(self, choice: Transpose) -> bool:
        """False: no reduction needs an element again."""
        return False

    def sums_vectors(self, choice: Transpose) -> bool:
        """False: each lane of a vector is a point of its own."""
        return False

    # -- updates in place, explanations, parts of packed kernels ---------------------------------------------------------------

    def loads_where_it_stores(self, program: TileProgram, value: str) -> bool:
        """Other threads load the elements of a tile than store them."""
        return False

    def tiles(self, program: TileProgram, launch: Launch) -> tuple[LevelTile, ...]:
        """A tile a block, and as many of its elements a thread."""
        c = self.choice_of(program)
        each = -(-c.rows * c.columns // max(c.threads, 1))
        return (LevelTile("grid", extents_of(program.domain, c.order)),
                LevelTile("block", ((c.write_axis, c.rows), (c.read_axis, c.columns))),
                LevelTile("warp", (("element", each * min(WARP, c.threads)),)), LevelTile("thread", (("element", each),)))

    def part_refusal(self, program: TileProgram) -> Rejected | None:
        """None: its blocks know nothing of each other."""
        return None

    def with_threads(self, program: TileProgram, threads: int, device: DeviceSpec) -> Transpose | None:
        """A tile takes any number of threads."""
        return replace(self.choice_of(program), threads=threads)

    def thread_loss(self, choice: Transpose, changed: Transpose, device: DeviceSpec) -> float:
        """As of a flat walk."""
        return elementwise_thread_loss(choice, changed, device)
