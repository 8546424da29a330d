"""Whether a kernel may stand ready before the kernel ahead of it has ended. Lowering decides by it, and prices count the start by it."""
from __future__ import annotations

from tilefuse.base.construction import replace
from tilefuse.domain.roofline import early_start_us
from tilefuse.domain.tile import TileProgram
from tilefuse.domain.work import Work
from tilefuse.target.device import DeviceSpec
from tilefuse.target.fitted.starts import StartFigures
from tilefuse.target.launch import Launch
from tilefuse.templates.template import Overlaps


def starts_early(overlaps: Overlaps, program: TileProgram, device: DeviceSpec, calls_library: bool = False) -> bool:
    """Whether the kernel begins before the one ahead of it ends.

    overlaps: of the program's choice. calls_library: the program around it has calls of the library, which divide shared memory and cache
    in another way.
    """
    if not device.starts_early:
        return False
    if overlaps.one_wave and early_start_us(program.bytes_moved, device) > 0.0:
        return True
    if overlaps.waits_itself and not calls_library:
        return waits_itself(program.bytes_moved, program.launch, device)
    return not overlaps.one_wave and program.bytes_moved <= device.fitted.starts.most_bytes


def beside_others(work: Work, overlaps: Overlaps, program: TileProgram, device: DeviceSpec) -> Work:
    """A kernel's work as one of several kernels: it may begin before the one ahead of it ends. overlaps: of the program's choice."""
    return replace(work, starts_early=True) if starts_early(overlaps, program, device) else work


def waits_itself(moved_bytes: int, launch: Launch, device: DeviceSpec) -> bool:
    """Whether a kernel of this size may start while its predecessor still runs: its blocks then wait, unless it is too large for that."""
    fitted = device.fitted.starts
    if moved_bytes <= fitted.most_bytes:
        return True
    return blocks_move_enough(moved_bytes, launch, fitted) and moved_bytes <= fitted.most_walked_bytes


def blocks_move_enough(moved_bytes: int, launch: Launch, fitted: StartFigures) -> bool:
    """Whether each block, and each of its threads, moves so many bytes that signalling the next start costs little."""
    return max(fitted.thread_bytes * launch.num_threads, fitted.block_bytes) * launch.num_blocks <= moved_bytes
