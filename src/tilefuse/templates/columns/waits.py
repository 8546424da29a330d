"""The chain of a column walk's thread: batches of loads and their operations in every stage, one after another, then the results."""
from __future__ import annotations

from math import ceil

from tilefuse.domain.resolved import Domain, Instance, direct_touches
from tilefuse.domain.stages import after_shared, stages
from tilefuse.emit.kernel_writer import reachable
from tilefuse.ir.ops import flops_of
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.columns.record import Columns


def walk_cycles(domain: Domain, choice: Columns, device: DeviceSpec) -> float:
    """Cycles of a thread from its first load to its last reduction: no batch is asked for before the one ahead of it was computed, and no
    stage begins before the one ahead of it is reduced. Values that are read again lie in a cache.

    Source: `StitchFigures.global_cycles`, `StitchFigures.cached_cycles`, `WaitFigures.operation_cycles`.
    """
    fitted, depth = device.fitted.stitch, stages(domain)
    rows = ceil(domain.num_reduced / (choice.threads_y * choice.split))
    batches = 1 if choice.on_chip else ceil(rows / choice.batch)
    read: set[str] = set()
    cycles = operations = 0.0
    for stage in range(max(depth.values(), default=-1) + 1):
        work = _elements_of(domain, [key for key, at in depth.items() if at == stage])
        touched = {t.value for i in work for t in direct_touches(i.body) if t.offset.axes() & set(domain.reduced)}
        loads = fitted.global_cycles if touched - read else fitted.cached_cycles
        cycles += batches * loads if touched and not (choice.on_chip and touched <= read) else 0.0
        read |= touched
        operations += sum(flops_of(i.body) + i.shared for i in work)
    return cycles + operations * rows * choice.vector * device.fitted.waits.operation_cycles


def result_operations(domain: Domain, choice: Columns) -> float:
    """Operations of a thread on the results of its columns, behind the last reduction."""
    behind = [i for i in domain.instances if not i.shared and not i.depends & set(domain.reduced) and after_shared(domain, i.key)]
    return float(choice.vector * sum(flops_of(i.body) for i in behind))


def _elements_of(domain: Domain, reductions: list[int]) -> list[Instance]:
    """These reductions, and the values of every element that they need and that no reduction ahead gives."""
    ahead = {i.key for i in domain.instances if i.shared} - set(reductions)
    return [i for i in reachable(domain, reductions, ahead) if i.shared or i.depends & set(domain.reduced)]
