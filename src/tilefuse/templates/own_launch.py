"""Templates whose kernels have a launch of their own: none is a part of a packed kernel, and none holds parts."""
from __future__ import annotations

from collections.abc import Hashable
from typing import TypeVar

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.domain.tile import Choice, TileProgram
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.any_size import AnySize
from tilefuse.templates.parts import PackedGroup
from tilefuse.templates.template import KernelTemplate

C = TypeVar("C", bound=Choice)


class OwnLaunchTemplate(KernelTemplate[C]):
    """Answers to the questions about packed kernels and about updates in place. Registers, shared memory or roles of warps are those of a
    whole launch; tiles of operands pass through shared memory."""

    def own_kernel_share(self, device: DeviceSpec) -> float:
        """That of kernels whose prices leave out reads of cold weights."""
        return device.fitted.products.own_kernel_share

    @property
    def any_size(self) -> AnySize[C] | None:
        """None: its kernels are no parts."""
        return None

    @property
    def packs(self) -> bool:
        """Its kernels hold one pattern."""
        return False

    def stands_for(self, program: TileProgram) -> tuple[TileProgram, ...]:
        """None: its nodes would be kernels of their own."""
        return ()

    def groups(self, program: TileProgram) -> tuple[PackedGroup, ...]:
        """None: a kernel holds one pattern."""
        return ()

    def part_refusal(self, program: TileProgram) -> Rejected | None:
        """Names the result and the kind of kernel."""
        return Rejected(Reason.UNSUPPORTED_OP, f"%{program.graph.results[0]} has a kernel of its own kind ({program.template})")

    def with_threads(self, program: TileProgram, threads: int, device: DeviceSpec) -> C | None:
        """None: its kernels are no parts."""
        return None

    def in_turns(self, program: TileProgram, blocks: int, fetches_early: bool, device: DeviceSpec) -> TileProgram | None:
        """None: its kernels are no parts."""
        return None

    def turns_bytes(self, program: TileProgram) -> int:
        """0: as `in_turns`."""
        return 0

    def thread_loss(self, choice: C, changed: C, device: DeviceSpec) -> float:
        """Nothing: its kernels are no parts."""
        return 0.0

    def likeness(self, program: TileProgram) -> Hashable | None:
        """None: its kernels are no parts."""
        return None

    def loads_where_it_stores(self, program: TileProgram, value: str) -> bool:
        """False: products read elements that other threads load."""
        return False

    def reads_end_before_writes(self, program: TileProgram, value: str, target: str) -> bool:
        """False: other blocks may still read the operand."""
        return False

    def reads_where_it_stores(self, program: TileProgram, value: str, target: str) -> bool:
        """False: tiles of operands and of results differ, and elements that maps read beside the sums are not looked at."""
        return False

    def computed_by_several(self, program: TileProgram) -> frozenset[str]:
        """None: each element of results is one block's."""
        return frozenset()
