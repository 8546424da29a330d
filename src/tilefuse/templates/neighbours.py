"""Candidates for tuning: the choices around the one that the scheduler made, for the same pattern and device, as its template names them.

    chosen: 8 rows a block, 16 lanes each     ->     other lanes, rows, vectors a thread, clusters, stages, splits
    packed: 12 x { w }  1 x { s }             ->     one part's body another way, the others as they are

Only what differs in speed is varied; a candidate may still be rejected by the scheduler, the compiler or the device.

Programs that share a launch, scheduled apart, need one number of threads a block: each template says which of its choices have a number of
threads and at which cost, and the number that costs least is taken.
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.domain.tile import Choice, TileProgram
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.registry import kernel_template
from tilefuse.templates.template import C


def neighbours(program: TileProgram, device: DeviceSpec) -> tuple[Choice, ...]:
    """Choices near the program's own, which comes first; no choice twice. Raises: InternalError for a choice of no template."""
    return (program.choice, *kernel_template(program.choice).neighbours(program, device))


def program_with(program: TileProgram, choice: Choice, device: DeviceSpec) -> TileProgram | Rejected:
    """The program of the same pattern with another choice, or why there is none. Raises: InternalError for a choice of no template."""
    return kernel_template(choice).program_with(program, choice, device)


def others_than(base: C, choices: Iterable[C]) -> tuple[C, ...]:
    """The choices without repetitions and without `base`, in their order, as a template gives its neighbours."""
    return tuple(choice for choice in dict.fromkeys(choices) if choice != base)


def part_refusal(program: TileProgram) -> Rejected | None:
    """Why a program cannot be one part of a packed kernel; None where it can."""
    return kernel_template(program.choice).part_refusal(program)


def with_threads(program: TileProgram, threads: int, device: DeviceSpec) -> Choice | None:
    """The program's choice with `threads` threads a block, or None where it has no such neighbour."""
    choice: Choice | None = kernel_template(program.choice).with_threads(program, threads, device)
    return choice


def common_threads(programs: Sequence[TileProgram], device: DeviceSpec) -> int | Rejected:
    """The number of threads a block that all programs can have, at the least cost in bytes that could have been moved instead.

    Requires: `part_refusal` has nothing against any of them.
    """
    candidates = dict.fromkeys(p.choice.num_threads for p in programs)
    costs = [(cost_bytes, threads) for threads in candidates if (cost_bytes := _cost_bytes(programs, threads, device)) is not None]
    if costs:
        return min(costs)[1]
    threads_text = ", ".join(map(str, sorted(candidates)))
    return Rejected(Reason.REGISTERS, f"the parts want blocks of {threads_text} threads, and no number suits them all")


def _cost_bytes(programs: Sequence[TileProgram], threads: int, device: DeviceSpec) -> float | None:
    """Time that blocks of `threads` threads add to the programs; None where one of them has no such blocks.

    Units: bytes that could have been moved in that time.
    """
    cost_bytes = 0.0
    for program in programs:
        changed = with_threads(program, threads, device)
        if changed is None:
            return None
        loss = kernel_template(program.choice).thread_loss(program.choice, changed, device)
        cost_bytes += max(program.bytes_moved, device.fitted.packed.least_bytes) * loss
    return cost_bytes
