"""TileProgram -> kernel IR: the dispatch over templates, each of which has its file.

Composing decides nothing: template, widths and launch were chosen in `schedule`. What is added is order: loads of a stage before
their first use, values shared between users held in registers, barriers where a value changes hands.
"""
from __future__ import annotations

from collections.abc import Set

from tilefuse.domain.tile import TileProgram
from tilefuse.kernel.ir import Kernel
from tilefuse.kernel.widths import check_launch, with_index_bits
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.compose_alone import compose_alone
from tilefuse.templates.packed.compose import compose_packed
from tilefuse.templates.packed.packed import Packed
from tilefuse.templates.staged.compose_online import compose_online
from tilefuse.templates.staged.compose_stitch import compose_stitch
from tilefuse.templates.template import Online, Stitched


def compose(program: TileProgram, device: DeviceSpec, settled: Set[str] = frozenset()) -> Kernel:
    """The kernel IR of a tile program. `settled`: boundary values that the kernel may fetch while the kernel ahead of it runs (`early.py`).

    Requires: `program` was made for a device of the same kind. Raises: InternalError when a template meets what it cannot hold;
    UnsupportedError where the kernel has more blocks than a launch can have.
    """
    kernel = _composed(program, device, settled)
    if device.kind == "cuda":
        check_launch(kernel)
    return with_index_bits(kernel)


def _composed(program: TileProgram, device: DeviceSpec, settled: Set[str]) -> Kernel:
    if isinstance(program.choice, Packed):
        return compose_packed(program, program.choice, device)
    if isinstance(program.choice, Stitched):
        return compose_stitch(program, device, settled=settled)
    if isinstance(program.choice, Online):
        return compose_online(program, device)
    return compose_alone(program, device)
