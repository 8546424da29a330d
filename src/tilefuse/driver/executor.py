"""The device that runs a plan."""
from __future__ import annotations

from tilefuse.base.options import Options
from tilefuse.target.catalog import host_device
from tilefuse.target.device import DeviceSpec


def executor_of(device: DeviceSpec, options: Options) -> DeviceSpec:
    """The device that runs the kernels and calls of a plan for `device`: the host with the option `plan_for`, else that device."""
    return host_device() if options.plan_for else device
