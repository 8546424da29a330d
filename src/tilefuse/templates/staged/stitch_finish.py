"""The end of writing a kernel with tiles in shared memory: stitched ones, and those that walk an axis."""
from __future__ import annotations

from collections.abc import Sequence

from tilefuse.domain.tile import TileProgram
from tilefuse.kernel.ir import Buffer, Kernel, Stmt
from tilefuse.target.device import DeviceSpec
from tilefuse.target.launch import Launch


def finished_kernel(program: TileProgram, device: DeviceSpec, buffers: Sequence[Buffer], body: Sequence[Stmt], shared_bytes: int,
                    told: str, min_blocks: int) -> Kernel:
    """The kernel: buffers in parameter order, launch, header for the reader. `told`: what the header says of shared memory."""
    launch = Launch(program.launch.num_blocks, program.launch.num_threads, 1, shared_bytes, device.starts_early)
    header = (f"nodes: {', '.join('%' + n.name for n in program.graph.nodes)}", f"schedule: {program.notation}",
              f"reads {program.bytes_read} bytes, writes {program.bytes_written} bytes", f"shared memory: {told}")
    # Hardware approximations are lost in the rounding of the results where all of these are floats of 16 bits or fewer.
    results = [program.graph.type_of(r).dtype for r in program.graph.results]
    narrow = all(t.is_float and t.bits <= 16 for t in results)
    return Kernel(program.name, tuple(buffers), launch, tuple(body), header, min_blocks=min_blocks, narrow=narrow)
