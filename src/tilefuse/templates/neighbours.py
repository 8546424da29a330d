"""Candidates for tuning: the choices around the one that the scheduler made, for the same pattern and device, as its template names them.

    chosen: 8 rows a block, 16 lanes each     ->     other lanes, rows, vectors a thread, clusters, stages, splits
    packed: 12 x { w }  1 x { s }             ->     one part's body another way, the others as they are

Only what differs in speed is varied; a candidate may still be rejected by the scheduler, the compiler or the device.
"""
from __future__ import annotations

from collections.abc import Iterable

from tilefuse.base.candidate import Rejected
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
