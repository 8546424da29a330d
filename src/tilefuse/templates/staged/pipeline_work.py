"""Figures that the work of all kernels with producing and consuming warpgroups has in common: ports to L2, and the tensor cores' power."""
from __future__ import annotations

from tilefuse.domain.work import Operations
from tilefuse.target.device import DeviceSpec


def port_cycles(num_bytes: float, blocks: int, device: DeviceSpec) -> float:
    """Cycles in which the port to L2 of one multiprocessor moves so many bytes. Few blocks have a port each."""
    fitted = device.fitted.pipelined
    a_port = max(fitted.multiprocessors_a_port * blocks / device.num_multiprocessors, 1.0)
    return num_bytes * a_port / fitted.port_bytes_per_cycle


def tensor_operations(flops: int, dtype: str, blocks: int, device: DeviceSpec) -> Operations:
    """Operations of the tensor cores as a load of the device.

    Tensor cores at work draw so much power that the clock sinks. That limit is the device's: few blocks do not lower it.
    """
    return Operations(flops, dtype, device.num_multiprocessors / min(blocks, device.num_multiprocessors))
