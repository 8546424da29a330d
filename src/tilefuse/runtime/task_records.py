"""Records of the tasks of a kernel's last run: where the module keeps them (option `task_times`).

A recorded kernel writes the start, the end and the place of each task into an array of its own module, so that no launch and no argument
differs from those of the kernel without records.
"""
from __future__ import annotations

import ctypes
from dataclasses import dataclass

from tilefuse.base.errors import UserError
from tilefuse.runtime.compilers.host import host_symbol
from tilefuse.runtime.cuda_api import read_symbol
from tilefuse.runtime.program import Program

FIELDS = 3


@dataclass(frozen=True, slots=True)
class TaskTime:
    """One task of a kernel's last run. stage: its body; place: multiprocessor, 0 on the host. Units: nanoseconds of one clock."""

    kernel: str
    number: int
    stage: str
    part: int
    start_ns: int
    end_ns: int
    place: int


def task_times(program: Program) -> list[TaskTime]:
    """Times of all tasks of the last call, kernel by kernel, in the order in which blocks take them.

    Waits for the device. Raises: UserError for a program without recorded tasks.
    """
    times: list[TaskTime] = []
    for code, binary in zip(program.spec.kernels, program.binaries, strict=True):
        if not code.tasks:
            continue
        count = sum(n for _, n in code.tasks)
        symbol, num_bytes = f"{binary.symbol}_task_records", 8 * FIELDS * count
        if code.target == "host":
            numbers = list((ctypes.c_ulonglong * (FIELDS * count)).from_address(host_symbol(binary, symbol)))
        else:
            raw = read_symbol(binary.payload, symbol, num_bytes, program.device.index)
            numbers = list((ctypes.c_ulonglong * (FIELDS * count)).from_buffer_copy(raw))
        labels = [(stage, part) for stage, n in code.tasks for part in range(n)]
        times += [TaskTime(code.name, n, stage, part, *numbers[FIELDS * n:FIELDS * n + FIELDS]) for n, (stage, part) in enumerate(labels)]
    if not times:
        raise UserError(f"program {program.spec.name} records no tasks", hint="compile it with grid_level='always', task_times=True")
    return times
