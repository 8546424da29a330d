"""The common part of templates that are one walk over a domain: what they share of the protocol, and what each of them must say."""
from __future__ import annotations

from abc import abstractmethod
from collections.abc import Hashable, Iterable, Set
from math import log2

from tilefuse.base.candidate import Rejected
from tilefuse.domain.resolved import Domain
from tilefuse.domain.tile import Choice, TileProgram
from tilefuse.emit.kernel_writer import KernelWriter
from tilefuse.kernel.ir import Kernel
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.explained import NO_STAGES, Staging
from tilefuse.templates.levels import UNLIMITED, LevelTraffic
from tilefuse.templates.parts import PackedGroup
from tilefuse.templates.template import C, KernelTemplate


class WalkTemplate(KernelTemplate[C]):
    """A template whose programs walk one domain."""

    def priced_traffic(self, program: TileProgram, device: DeviceSpec, near_bytes: int = UNLIMITED) -> LevelTraffic:
        """The walk's traffic; a scatter's is its boundary's, because data decide where it stores."""
        ideal = LevelTraffic(program.bytes_moved, 0)
        return ideal if program.domain.scatter is not None else self.walk_traffic(self.choice_of(program), program, device, near_bytes)

    def traffic(self, program: TileProgram, device: DeviceSpec) -> LevelTraffic:
        """As `priced_traffic`: a walk has no estimate of its own time."""
        return self.priced_traffic(program, device)

    def compose(self, program: TileProgram, device: DeviceSpec, settled: Set[str] = frozenset(), taken: Iterable[str] = ()) -> Kernel:
        """The kernel of one walk."""
        writer = KernelWriter(program, device, taken)
        self.write(writer, self.choice_of(program))
        return writer.finish()

    # -- updates in place, explanations, parts of packed kernels ---------------------------------------------------------------

    def reads_end_before_writes(self, program: TileProgram, value: str, target: str) -> bool:
        """False where threads do not meet."""
        return False

    def reads_where_it_stores(self, program: TileProgram, value: str, target: str) -> bool:
        """False where the order of memory is not the order of the walk."""
        return False

    def computed_by_several(self, program: TileProgram) -> frozenset[str]:
        """None: each point of the domain is one block's."""
        return frozenset()

    def staging(self, program: TileProgram) -> Staging:
        """Nothing: composing the kernel finds what it needs of shared memory."""
        return NO_STAGES

    @property
    def packs(self) -> bool:
        """A walk is one pattern."""
        return False

    def groups(self, program: TileProgram) -> tuple[PackedGroup, ...]:
        """None: a walk is one pattern."""
        return ()

    def part_refusal(self, program: TileProgram) -> Rejected | None:
        """A walk whose blocks know nothing of each other may be a part."""
        return None

    def likeness(self, program: TileProgram) -> Hashable | None:
        """None: extents stand in the body of a walk."""
        return None

    @abstractmethod
    def walk_traffic(self, choice: C, program: TileProgram, device: DeviceSpec, near_bytes: int) -> LevelTraffic:
        """Traffic of a walk without a scatter. Units: bytes."""

    @abstractmethod
    def write(self, writer: KernelWriter, choice: C) -> None:
        """Writes the walk's statements."""


def widest_itemsize(program: TileProgram) -> int:
    """Bytes of the widest element of a program's values. Units: bytes."""
    return max((program.graph.type_of(v).dtype.itemsize for v in program.graph.type_by_name), default=4)


def num_shared(domain: Domain) -> int:
    """Reductions whose results several threads exchange."""
    return sum(i.shared for i in domain.instances)


def elementwise_thread_loss(choice: Choice, changed: Choice, device: DeviceSpec) -> float:
    """Share of the time of a walk without reductions that another number of threads a block adds. Source: `PackedFigures`."""
    doublings = log2(changed.num_threads / choice.num_threads)
    fitted = device.fitted.packed
    return fitted.wider_walk_loss * doublings if doublings > 0 else fitted.narrower_walk_loss * -doublings
