"""Time of a kernel of tasks: its stages on the longest chain of waits, each with the wait in front of it.

    launch + sum over the critical path of (wait + task + stage)        against        sum over kernels of (launch + kernel)
"""
from __future__ import annotations

from collections.abc import Sequence

from tilefuse.domain.roofline import launches_us, price_work
from tilefuse.domain.tile import TileProgram
from tilefuse.domain.work import Work, summed
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.registry import kernel_template
from tilefuse.templates.tasks.record import Stage, Tasks


def stage_us(body: TileProgram, device: DeviceSpec) -> float:
    """Time of a stage within the kernel, without its wait. Units: microseconds. Source: the price of its kernel without the launch."""
    work = kernel_template(body.choice).work(body, device)
    return max(price_work(work, device).us - launches_us(work.launches, device), 0.0)


def critical_path(stages: Sequence[Stage], us: Sequence[float], device: DeviceSpec) -> tuple[float, tuple[int, ...]]:
    """Time of the longest chain of stages that wait for each other, and its stages in order.

    Units: microseconds. Source: `TaskFigures`, and the stages' own times.
    """
    figures = device.fitted.tasks
    ends: list[float] = []
    chains: list[tuple[int, ...]] = []
    for n, stage in enumerate(stages):
        last = max(stage.awaits, key=lambda a: (ends[a], -a), default=None)
        start = 0.0 if last is None else ends[last] + figures.wait_us
        ends.append(start + figures.task_us + us[n])
        chains.append((n,) if last is None else (*chains[last], n))
    longest = max(range(len(ends)), key=lambda n: (ends[n], -n))
    return ends[longest], chains[longest]


def tasks_work(program: TileProgram, choice: Tasks, device: DeviceSpec) -> Work:
    """The kernel's work: traffic of all stages, and the time of the critical path as a wait that nothing hides beyond that traffic."""
    works = [kernel_template(b.choice).work(b, device) for b in choice.bodies]
    together = summed(works[s.body] for s in choice.stages)
    moved = Work(read_bytes=program.bytes_read, global_bytes=program.bytes_moved, l2_bytes=together.l2_bytes)
    path_us, _ = critical_path(choice.stages, choice.us, device)
    return Work(1, None, program.bytes_read, program.bytes_moved, together.l2_bytes, together.shared_bytes,
                serial_us=max(path_us - price_work(moved, device).moved_us, 0.0))
