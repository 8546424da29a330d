"""A fused kernel of routines as a program: kernel IR printed for the device, parameters bound to the script's variables."""
from __future__ import annotations

from collections.abc import Mapping

from tilefuse.base.options import Options
from tilefuse.driver.lowering.lower import compiler_flags, started_late
from tilefuse.ir.counts import count_value
from tilefuse.kernel.ir import Buffer, Kernel
from tilefuse.kernel.launch_contract import map_parameters, pointer_parameters
from tilefuse.printers.cuda import print_cuda
from tilefuse.printers.host import print_host
from tilefuse.runtime.spec import KernelCode, KernelStep, ProgramSpec, Value
from tilefuse.scripts.compose.compose import compose_routines
from tilefuse.scripts.language.elementary import CallGraph
from tilefuse.scripts.schedule.routines import FusedRoutines
from tilefuse.scripts.schedule.sizes import expected_sizes
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.early import waits_itself

# Roles of parameters that no variable of the script stands for.
OWN_ROLES = ("workspace", "counter")


def routine_spec(fused: FusedRoutines, device: DeviceSpec, options: Options) -> ProgramSpec:
    """The program of one fusion: its kernels in order. Inputs and results have the names of the script's variables."""
    graph = fused.graph
    chosen = [graph.calls[c] for c in fused.decision.calls]
    computed = dict.fromkeys(r for c in chosen for r in c.results)
    codes: list[KernelCode] = []
    steps: list[KernelStep] = []
    values: dict[str, Value] = {}
    for kernel in compose_routines(fused):
        arguments = tuple("" if b.role in OWN_ROLES else b.name for b in kernel.parameters)
        for buffer in kernel.parameters:
            if buffer.role not in OWN_ROLES and buffer.name not in values:
                values[buffer.name] = _value(buffer, graph, buffer.name in computed)
        steps.append(KernelStep(len(codes), arguments))
        codes.append(_code(kernel, fused, device, options))
    inputs = tuple(n for n, v in values.items() if v.role == "input")
    results = tuple(n for n in computed if n in values)
    return ProgramSpec(fused.name, device.kind, inputs, results, tuple(values.values()), tuple(codes), tuple(steps))


def _value(buffer: Buffer, graph: CallGraph, computed: bool) -> Value:
    variable = graph.variables.get(buffer.name)
    if variable is None:  # partial values that a second kernel combines
        return Value(buffer.name, buffer.dtype.name, (buffer.num_elements,), (1,), "intermediate")
    return Value(buffer.name, variable.dtype.name, variable.shape, variable.word_strides, "result" if computed else "input")


def _code(kernel: Kernel, fused: FusedRoutines, device: DeviceSpec, options: Options) -> KernelCode:
    moved = moved_bytes(kernel, fused, expected_sizes(fused.graph))
    kernel = starting(kernel, moved, device, options)
    source = print_host(kernel, check=options.check) if device.kind == "host" else print_cuda(kernel, device)
    nodes = tuple(r for c in fused.decision.calls for r in fused.graph.calls[c].results)
    return KernelCode(kernel.name, kernel.name, source, device.kind, device.arch, kernel.launch, pointer_parameters(kernel), nodes,
                      limit_us=moved / device.global_bytes_per_s * 1e6, flags=compiler_flags(device, options), maps=map_parameters(kernel))


def moved_bytes(kernel: Kernel, fused: FusedRoutines, sizes: Mapping[str, int]) -> int:
    """Bytes that a kernel of a fusion moves; `sizes`: expected sizes, where calls give them."""
    if kernel.name == fused.name:
        return fused.transfers * max(b.dtype.itemsize for b in kernel.parameters)
    return sum((b.num_elements if b.count is None else count_value(b.count, sizes)) * b.dtype.itemsize for b in kernel.parameters)


def starting(kernel: Kernel, moved: int, device: DeviceSpec, options: Options) -> Kernel:
    """The kernel with its start: during the previous kernel or after its end, whichever is faster for `moved` bytes.

    Kernels that clear sums or combine partial values are short and may start during the large kernel.
    """
    if options.early_start != "off" and waits_itself(moved, kernel.launch, device):
        return kernel
    return started_late(kernel, moved, device, options)
