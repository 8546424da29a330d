"""The launch contract of a kernel: its arguments as plain data, for callers that know nothing of kernel IR."""
from __future__ import annotations

from tilefuse.base.errors import InternalError
from tilefuse.kernel.ir import Kernel
from tilefuse.kernel.tensor_map import TensorMap
from tilefuse.target.launch import Parameter
from tilefuse.target.tensor_map import MapParameter


def pointer_parameters(kernel: Kernel) -> tuple[Parameter, ...]:
    """The kernel's pointer arguments, in order."""
    return tuple(Parameter(b.name, b.dtype.name, b.num_elements, b.role) for b in kernel.parameters)


def recorded_stages(kernel: Kernel) -> tuple[tuple[str, int], ...]:
    """(stage, number of its tasks) of a kernel that records its tasks, in order; empty for any other."""
    order = kernel.tasks
    if order is None or not order.recorded:
        return ()
    if order.mixture is not None:
        return tuple((order.names[group], 1) for group, _, _ in order.places())
    return tuple((f"stage {n}: {order.names[s.group]}", s.num_tasks) for n, s in enumerate(order.segments))


def map_parameters(kernel: Kernel) -> tuple[MapParameter, ...]:
    """The kernel's tensor maps, in order. Raises: InternalError for a map whose extents follow from the call's sizes."""
    numbers = {b.name: n for n, b in enumerate(kernel.parameters)}
    return tuple(_map_parameter(kernel, m, numbers[m.buffer]) for m in kernel.maps)


def _map_parameter(kernel: Kernel, m: TensorMap, number: int) -> MapParameter:
    if m.is_sized:
        raise InternalError(f"kernel {kernel.name}: tensor map {m.name} depends on the call's sizes, its program has fixed ones")
    extents, strides = ([e if isinstance(e, int) else e.const for e in row] for row in (m.extents, m.strides))
    return MapParameter(m.name, number, m.first, m.dtype.itemsize, tuple(extents), tuple(strides[:-1]), m.box, m.swizzle)
