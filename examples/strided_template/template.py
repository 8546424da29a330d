"""The template: which patterns it takes, what its kernels cost, and how they are written."""
from __future__ import annotations

from dataclasses import replace

from examples.strided_template.notation import StridedNotation
from examples.strided_template.record import Strided
from tilefuse.base.candidate import Reason, Rejected
from tilefuse.domain.access import by_memory_order, flat_axes
from tilefuse.domain.resolved import Domain
from tilefuse.domain.tile import TileProgram
from tilefuse.domain.work import Ending
from tilefuse.emit.kernel_writer import KernelWriter
from tilefuse.ir.affine import axis
from tilefuse.ir.scalar import Bound
from tilefuse.target.device import DeviceSpec
from tilefuse.target.launch import Launch
from tilefuse.templates.explained import LevelTile, extents_of, length_of
from tilefuse.templates.levels import LevelTraffic
from tilefuse.templates.request import WalkedPattern
from tilefuse.templates.template import Overlaps, Resources
from tilefuse.templates.walk import WalkTemplate
from tilefuse.templates.walk_legality import first_refusal

# Threads a block, where the device takes so many.
THREADS = 256


class StridedTemplate(WalkTemplate[Strided]):
    """Maps with more elements than the device has threads."""

    record = Strided
    notation = StridedNotation()
    priority = 0

    # -- from a pattern to a program -------------------------------------------------------------------------------------------

    def choose(self, pattern: WalkedPattern) -> Strided | Rejected:
        """A grid that fits the device at once, for maps with more elements than it has threads."""
        domain, device = pattern.domain, pattern.device
        if domain.scatter is not None or pattern.exchanges_values or domain.serial_loops:
            return Rejected(Reason.OTHER_TEMPLATE, "not a map")
        order = by_memory_order(domain.kept + domain.reduced, pattern.accesses, domain.extents)
        threads = min(THREADS, device.max_threads_per_block)
        blocks = device.num_multiprocessors * max(1, device.max_threads_per_multiprocessor // threads)
        if length_of(domain, order) <= blocks * threads:
            return Rejected(Reason.OTHER_TEMPLATE, "every element has a thread of its own")
        return Strided(order, blocks, threads)

    def launch(self, choice: Strided, domain: Domain) -> Launch:
        """The grid of the choice, whatever the domain."""
        return Launch(choice.blocks, choice.threads)

    def in_one_pass(self, domain: Domain) -> Domain:
        """The domain itself: a map has no reductions to join."""
        return domain

    def keeps_elements(self, choice: Strided) -> bool:
        """False: no element is read twice."""
        return False

    def sums_vectors(self, choice: Strided) -> bool:
        """False: nothing is summed."""
        return False

    def refusal(self, choice: Strided, domain: Domain, device: DeviceSpec) -> Rejected | None:
        """Grids that no device starts."""
        most = device.max_threads_per_block
        return first_refusal(
            (choice.blocks >= 1, f"{choice.blocks} blocks compute nothing", "blocks=1, or more"),
            (1 <= choice.threads <= most, f"{choice.threads} threads a block, and {device.name} has at most {most}", "a smaller block"))

    def neighbours(self, program: TileProgram, device: DeviceSpec) -> tuple[Strided, ...]:
        """Half and twice as many blocks."""
        choice = self.choice_of(program)
        return tuple(replace(choice, blocks=b) for b in (choice.blocks // 2, choice.blocks * 2) if b)

    # -- from a program to a kernel --------------------------------------------------------------------------------------------

    def write(self, writer: KernelWriter, choice: Strided) -> None:
        """element = turn * blocks * threads + block * threads + thread, computed and stored while it is one of the domain."""
        e, domain = writer.emitter, writer.domain
        count, stride = length_of(domain, choice.order), choice.blocks * choice.threads
        turns = -(-count // stride)
        e.hoist([key for _, key, _ in domain.outputs], frozenset())
        e.frame.extents |= {"block": choice.blocks, "thread": choice.threads}
        with e.loop("turn", turns) as turn:
            element = e.let("element", turn * stride + axis("block") * choice.threads + axis("thread"), turns * stride)
            with e.when([Bound(element, 0, count)]):
                e.narrow_to(element, count)
                e.env = e.env | flat_axes(choice.order, element, domain.extents, e.extents)
                writer.write_values(domain.outputs)

    # -- work, resources, overlap ----------------------------------------------------------------------------------------------

    def walk_traffic(self, choice: Strided, program: TileProgram, device: DeviceSpec, near_bytes: int) -> LevelTraffic:
        """Every boundary value once: neighbouring threads share sectors, and nothing is read again."""
        return LevelTraffic(program.bytes_moved, 0)

    def endings(self, choice: Strided, program: TileProgram) -> tuple[Ending, ...]:
        """None: no thread waits for another."""
        return ()

    def resources(self, program: TileProgram, device: DeviceSpec) -> Resources:
        """An address and an element of each boundary value, beside what every flat walk needs."""
        return Resources(device.fitted.packed.flat_registers + 3 * (len(program.graph.inputs) + len(program.graph.results)), 0)

    def overlaps(self, choice: Strided) -> Overlaps:
        """A block comes back to each part of memory: there is no direction."""
        return Overlaps(walks_memory=False, turns=False, waits_itself=True, fetches_settled=False)

    # -- updates in place, explanations, parts of packed kernels ---------------------------------------------------------------

    def loads_where_it_stores(self, program: TileProgram, value: str) -> bool:
        """A thread loads the operands of the elements that it stores."""
        return True

    def tiles(self, program: TileProgram, launch: Launch) -> tuple[LevelTile, ...]:
        """Elements of a block and of a thread over all turns."""
        choice = self.choice_of(program)
        turns = -(-length_of(program.domain, choice.order) // (choice.blocks * choice.threads))
        return (LevelTile("grid", extents_of(program.domain, choice.order)),
                LevelTile("block", (("element", turns * choice.threads),)), LevelTile("thread", (("element", turns),)))

    def part_refusal(self, program: TileProgram) -> Rejected | None:
        """The grid is as large as the device."""
        return Rejected(Reason.OTHER_TEMPLATE, "a strided kernel fills the device alone")

    def with_threads(self, program: TileProgram, threads: int, device: DeviceSpec) -> Strided | None:
        """None: it is no part of other kernels."""
        return None

    def thread_loss(self, choice: Strided, changed: Strided, device: DeviceSpec) -> float:
        """None: its threads do not change."""
        return 0.0
