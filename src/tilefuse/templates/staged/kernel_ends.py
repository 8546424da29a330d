"""The beginning and the end of kernels that read the graph's own expressions: prefetches into the second-level cache, the finished kernel.

    prefetch weights | wait for the kernel ahead | ... the first copy of a weight finds it in L2
"""
from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace

from tilefuse.domain.tile import TileProgram
from tilefuse.ir.affine import axis
from tilefuse.ir.scalar import Bound, Lookup, walk
from tilefuse.kernel.asynchronous import AwaitEarlier, Prefetch
from tilefuse.kernel.ir import Buffer, Kernel, Stmt
from tilefuse.kernel.tensor_map import TensorMap
from tilefuse.target.device import DeviceSpec
from tilefuse.target.memory import LINE_BYTES
from tilefuse.templates.levels import pending_bytes
from tilefuse.templates.staged.graph_values import GraphStatements


def prefetch_lines(w: GraphStatements, buffers: Sequence[Buffer], num_blocks: int, num_threads: int) -> None:
    """Prefetches of all lines of some global buffers, spread over the threads of all blocks."""
    for buffer in buffers:
        step = LINE_BYTES // buffer.dtype.itemsize
        lines, everyone = -(-buffer.num_elements // step), num_blocks * num_threads
        turns = -(-lines // everyone)
        with w.loop("ask", turns) as turn:
            line = w.let("line", turn * everyone + axis("block") * num_threads + axis("thread"), turns * everyone)
            with w.when([Bound(line, 0, lines)]):
                w.emit(Prefetch(buffer.name, line * step))


def prefetch_settled(w: GraphStatements, settled: Set[str], num_blocks: int, num_threads: int) -> None:
    """Prefetches of settled operands, then the wait for the kernel ahead; nothing where none is prefetched.

    settled: as of `KernelTemplate.compose`.
    """
    if prefetch_whole(w, settled, num_blocks, num_threads):
        w.emit(AwaitEarlier())


def prefetch_whole(w: GraphStatements, settled: Set[str], num_blocks: int, num_threads: int) -> bool:
    """Prefetches of settled operands that lie densely in memory and are read whole: in order, those that together fit the share of L2 that
    pending operands may take. The answer is whether there are any."""
    partly = {e.value for n in w.graph.nodes if n.body is not None for e in walk(n.body) if isinstance(e, Lookup)}
    w.frame.extents |= {"block": num_blocks, "thread": num_threads}
    left_bytes = pending_bytes(w.device)
    chosen: list[Buffer] = []
    for value in w.graph.inputs:
        buffer = w.buffers[value.name]
        num_bytes = buffer.num_elements * buffer.dtype.itemsize
        if value.name in settled - partly and buffer.num_elements == value.type.num_elements and num_bytes <= left_bytes:
            left_bytes -= num_bytes
            chosen.append(buffer)
    prefetch_lines(w, chosen, num_blocks, num_threads)
    return bool(chosen)


def finished_kernel(program: TileProgram, device: DeviceSpec, buffers: Sequence[Buffer], body: Sequence[Stmt], shared_bytes: int,
                    shared_line: str, min_blocks: int, narrow: bool | None = None, num_barriers: int = 0,
                    maps: Sequence[TensorMap] = ()) -> Kernel:
    """The kernel: buffers in parameter order, launch, header for the reader. `shared_line`: the header's line about shared memory.

    narrow: None where the types of the results decide.
    """
    # Blocks that wait for each other start at once, behind the kernel ahead.
    early = device.starts_early and not program.launch.scattered
    launch = replace(program.launch, shared_bytes=shared_bytes, early=early)
    header = (f"nodes: {', '.join('%' + n.name for n in program.graph.nodes)}", f"schedule: {program.notation}",
              f"reads {program.bytes_read} bytes, writes {program.bytes_written} bytes", shared_line)
    if narrow is None:
        # Hardware approximations are lost in the rounding of the results where all of these are floats of 16 bits or fewer.
        narrow = all(t.is_float and t.bits <= 16 for t in (program.graph.type_of(r).dtype for r in program.graph.results))
    return Kernel(program.name, tuple(buffers), launch, tuple(body), header, min_blocks=min_blocks, narrow=narrow,
                  num_barriers=num_barriers, maps=tuple(maps))
