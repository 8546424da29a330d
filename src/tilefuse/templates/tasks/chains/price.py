"""Time of a chain in groups: its bodies side by side, where the values that they hand on stay in L2.

    max(boundary values through memory, all traffic through L2, stages of the product, operations of the others)
        + producers before the first product + users behind the last one + tickets, waits and publications of a block's tasks
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilefuse.domain.roofline import price_work
from tilefuse.domain.tile import TileProgram
from tilefuse.domain.work import Operations, Work, summed
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.registry import kernel_template
from tilefuse.templates.tasks.chains.record import PRODUCER, PRODUCT, USER, GroupedChain


def body_works(choice: GroupedChain, device: DeviceSpec) -> list[Work]:
    """Work of each body as a kernel of its own."""
    return [kernel_template(b.choice).work(b, device) for b in choice.bodies]


def chain_work(program: TileProgram, choice: GroupedChain, device: DeviceSpec) -> Work:
    """The kernel's work. Source: the works of its bodies, `TaskFigures`."""
    works = body_works(choice, device)
    together = summed(works)
    l2_bytes = sum(max(w.l2_bytes, w.global_bytes) for w in works)
    threads = tuple(Operations(b.flops) for n, b in enumerate(choice.bodies) if n != PRODUCT)
    blocks = tuple(replace(b, resident=choice.workers // device.num_multiprocessors) for w in works for b in w.blocks)
    return Work(1, None, program.bytes_read, program.bytes_moved, l2_bytes, together.shared_bytes,
                partial_sectors=works[USER].partial_sectors, operations=(*(o for w in works for o in w.operations), *threads),
                blocks=blocks, energy_pj=together.energy_pj, serial_us=_ends_us(choice, works, device) + _order_us(choice, device))


def _ends_us(choice: GroupedChain, works: Sequence[Work], device: DeviceSpec) -> float:
    """Time in which tasks of one body alone run: producers of the groups ahead, and users of the last rounds. Units: microseconds."""
    rhythm, groups = choice.rhythm, choice.groups
    shares = ((PRODUCER, min(rhythm.ahead, groups)), (USER, min(rhythm.between * rhythm.together, groups)))
    return sum(price_work(replace(works[n], grid=None), device).moved_us * count / groups for n, count in shares)


def _order_us(choice: GroupedChain, device: DeviceSpec) -> float:
    """Time of tickets, waits and publications: those of all tasks of a block, one after another. Units: microseconds."""
    figures = device.fitted.tasks
    tasks = -(-choice.tasks_a_group * choice.groups // max(choice.workers, 1))
    return tasks * figures.task_us + 2 * figures.wait_us
