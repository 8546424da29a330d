"""TileProgram -> kernel IR, by the template of the program's choice.

Composing decides nothing: template, widths and launch were chosen in `schedule`. It adds an order: loads of a stage before
their first use, values shared between users held in registers, barriers where a value changes hands.
"""
from __future__ import annotations

from collections.abc import Set

from tilefuse.domain.tile import TileProgram
from tilefuse.kernel.ir import Kernel
from tilefuse.kernel.widths import check_launch, with_index_bits
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.registry import kernel_template


def compose(program: TileProgram, device: DeviceSpec, settled: Set[str] = frozenset()) -> Kernel:
    """The kernel IR of a tile program. `settled`: boundary values that the kernel may fetch while the kernel ahead of it runs (`early.py`).

    Requires: `program` was made for a device of the same kind. Raises: InternalError when a template meets what it cannot hold;
    UnsupportedError where the kernel has more blocks than a launch can have.
    """
    kernel = kernel_template(program.choice).compose(program, device, settled)
    if device.kind == "cuda":
        check_launch(kernel)
    return with_index_bits(kernel)
