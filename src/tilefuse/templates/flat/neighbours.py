"""Neighbours of flat walks for tuning: threads a block, steps a thread, lanes across a second axis; on the host vector widths."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tilefuse.target.device import DeviceSpec
from tilefuse.templates.flat.record import Pointwise


def flat_neighbours(base: Pointwise, device: DeviceSpec) -> Iterator[Pointwise]:
    """Choices near `base` on a device; some come twice, and `base` may be one of them."""
    if device.kind == "host":
        # A block is one thread there, with any number of steps.
        for vector in (1, 4, 8, 16):
            for steps in (base.steps // 4, base.steps, base.steps * 4):
                if vector <= base.vector and steps >= 1:
                    yield replace(base, vector=vector, steps=steps)
        return
    for threads in (128, 256, 512):
        for steps in (1, 2, 4, 8):
            yield replace(base, threads=threads, steps=steps)
    for side in (1, 8, 16, 32) if base.across else ():
        yield replace(base, side=side)
