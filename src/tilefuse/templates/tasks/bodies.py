"""Which kernels may be bodies of tasks: block programs whose blocks know nothing of each other and need no launch of their own."""
from __future__ import annotations

from dataclasses import replace

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.domain.tile import TileProgram
from tilefuse.kernel.asynchronous import AwaitEarlier, BulkCopy, BulkWait, LetNextStart
from tilefuse.kernel.ir import Atomic, ClusterLoad, ClusterStore, Kernel, LastBlock, RoutineCall, Stmt
from tilefuse.kernel.pipeline import Pipeline, WarpgroupProduct
from tilefuse.kernel.tensor_map import TensorCopy, TensorStore
from tilefuse.kernel.visit import statements
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.registry import kernel_template

# Statements that a body cannot have, and why.
_REFUSED: tuple[tuple[type[Stmt] | tuple[type[Stmt], ...], str], ...] = (
    (LastBlock, "its blocks combine their sums through counters of their own"),
    (Atomic, "it adds to memory that must be zero first"),
    ((ClusterLoad, ClusterStore), "its blocks form clusters"),
    ((BulkCopy, BulkWait, Pipeline, WarpgroupProduct, TensorCopy, TensorStore), "its copies arrive at barriers that live with the block"),
    (RoutineCall, "it calls routines whose accesses are not known one by one"),
)


def body_refusal(program: TileProgram) -> Rejected | None:
    """Why a program cannot be a body of tasks, as far as its template knows; None where it may."""
    why = kernel_template(program.choice).part_refusal(program)
    if why is None and any(n.category == "scatter" for n in program.graph.nodes):
        return Rejected(Reason.UNSUPPORTED_OP, f"%{program.graph.results[0]} is a scatter, whose operand is copied before the kernel")
    if why is None and not program.launch.num_blocks:
        return Rejected(Reason.DOMAIN_MISMATCH, f"%{program.graph.results[0]} has no elements")
    return why


def composed_refusal(program: TileProgram, device: DeviceSpec) -> Rejected | None:
    """Why the kernel of a program cannot be a body of tasks; None where it can. Cost: composes the kernel."""
    kernel = kernel_template(program.choice).compose(program, device)
    result = f"%{program.graph.results[0]}"
    if kernel.launch.cluster > 1:
        return Rejected(Reason.UNSUPPORTED_OP, f"{result}: its blocks form clusters")
    if kernel.maps or kernel.sizes or kernel.num_barriers or any(b.role in ("workspace", "counter", "inout") for b in kernel.parameters):
        return Rejected(Reason.UNSUPPORTED_OP, f"{result}: its kernel has scratch memory, tensor maps or barriers of its own")
    for s in statements(kernel.body):
        for kinds, why in _REFUSED:
            if isinstance(s, kinds):
                return Rejected(Reason.UNSUPPORTED_OP, f"{result}: {why}")
    return None


def common_body(program: TileProgram, threads: int, device: DeviceSpec) -> TileProgram | None:
    """The program with `threads` threads a block; None where its template has none."""
    if program.choice.num_threads == threads:
        return program
    template = kernel_template(program.choice)
    choice = template.with_threads(program, threads, device)
    other = template.program_with(program, choice, device) if choice is not None else None
    return replace(other, name=program.name) if isinstance(other, TileProgram) else None


def without_start(kernel: Kernel) -> tuple[Stmt, ...]:
    """The statements of a body; the kernel around it waits for earlier kernels."""
    return tuple(s for s in kernel.body if not isinstance(s, AwaitEarlier | LetNextStart))
