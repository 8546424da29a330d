"""The common part of templates that are one walk over a domain: what they share of the protocol, and what each of them must say."""
from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Set

from tilefuse.domain.resolved import Domain
from tilefuse.domain.tile import TileProgram
from tilefuse.emit.kernel_writer import KernelWriter
from tilefuse.kernel.ir import Kernel
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.levels import UNLIMITED, LevelTraffic
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
