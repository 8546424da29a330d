"""Numbers that all records of kernels with producing and consuming warpgroups share."""
from __future__ import annotations

from tilefuse.kernel.pipeline import WARPGROUP
from tilefuse.target.device import DeviceSpec
from tilefuse.target.warpgroup import MOST_REGISTERS, REGISTER_STEP


class WithRoles:
    """A choice of a kernel whose persistent blocks have `warpgroups` consumer warpgroups, and one more that produces."""

    __slots__ = ()
    warpgroups: int

    @property
    def consumer_threads(self) -> int:
        """Threads that multiply."""
        return WARPGROUP * self.warpgroups

    @property
    def num_threads(self) -> int:
        """Threads a block."""
        return self.consumer_threads + WARPGROUP

    def registers_of_roles(self, producing: int, device: DeviceSpec) -> tuple[int, int]:
        """Registers of producers, `producing` or what the block starts with, and of consumers: the rest of those that it starts with.

        Producers give registers away: they cannot have more than the block starts with. Units: registers a thread.
        """
        started = device.registers_per_multiprocessor // (self.num_threads * self.resident) // REGISTER_STEP * REGISTER_STEP
        started = min(started, device.max_registers_per_thread)
        producing = min(producing, started)
        left = started * self.num_threads - producing * WARPGROUP
        return producing, min(left // self.consumer_threads // REGISTER_STEP * REGISTER_STEP, MOST_REGISTERS)

    @property
    def resident(self) -> int:
        """One block: its registers are distributed among its roles."""
        return 1

    @property
    def streams_results(self) -> bool:
        """As of `Choice`: results leave the cache before operands, which other blocks read again."""
        return True
