"""Programs of one walk over a domain: a kernel of their own, or a part of a packed one."""
from __future__ import annotations

from collections.abc import Iterable

from tilefuse.base.errors import InternalError
from tilefuse.codegen.compose_columns import compose_columns
from tilefuse.codegen.compose_pointwise import compose_pointwise
from tilefuse.codegen.compose_rows import compose_rows
from tilefuse.codegen.compose_transpose import compose_transpose
from tilefuse.codegen.kernel import Kernel
from tilefuse.codegen.kernel_writer import KernelWriter
from tilefuse.schedule.template import Columns, Pointwise, Rows, Transpose
from tilefuse.schedule.tile import TileProgram
from tilefuse.target.device import DeviceSpec


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
