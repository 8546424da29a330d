"""Programs of one walk over a domain: a kernel of their own, or a part of a packed one."""
from __future__ import annotations

from collections.abc import Iterable

from tilefuse.base.errors import InternalError
from tilefuse.domain.tile import TileProgram
from tilefuse.emit.kernel_writer import KernelWriter
from tilefuse.kernel.ir import Kernel
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.columns.compose import compose_columns
from tilefuse.templates.flat.compose import compose_pointwise
from tilefuse.templates.rows.compose import compose_rows
from tilefuse.templates.rows.modes import Rows
from tilefuse.templates.template import Columns, Pointwise, Transpose
from tilefuse.templates.transpose.compose import compose_transpose


def compose_alone(program: TileProgram, device: DeviceSpec, taken: Iterable[str] = ()) -> Kernel:
    """The kernel IR of a program of one walk. `taken`: names that its buffers must not have. Raises: as `compose`."""
    writer = KernelWriter(program, device, taken)
    choice = program.choice
    match choice:
        case Pointwise():
            compose_pointwise(writer, choice)
        case Transpose():
            compose_transpose(writer, choice)
        case Rows():
            compose_rows(writer, choice)
        case Columns():
            compose_columns(writer, choice)
        case _:
            raise InternalError(f"no composer for the template of kernel {program.name}")
    return writer.finish()
