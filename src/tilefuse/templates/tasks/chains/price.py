"""Time of a chain in groups: its bodies side by side, where the values that they hand on stay in L2.

    max(boundary values through memory, all traffic through L2, stages of the product)
        + blocks of the others that a worker takes + producers before the first product, users behind the last one
        + tickets, waits and publications of a worker's tasks
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tilefuse.domain.roofline import blocks_at_once, price_work
from tilefuse.domain.tile import TileProgram
from tilefuse.domain.work import Work, summed
from tilefuse.target.device import DeviceSpec
from tilefuse.target.fitted.stages import OverlapFigures
from tilefuse.templates.registry import kernel_template
from tilefuse.templates.tasks.chains.record import PRODUCER, PRODUCT, USER, GroupedChain
from tilefuse.templates.template import Resources


def workers_of(bodies: Sequence[TileProgram], bound: int, device: DeviceSpec) -> int:
    """Blocks that the device holds at once; 0 where none fits a multiprocessor. bound: as `GroupedChain.resident`."""
    needs = [kernel_template(b.choice).resources(b, device) for b in bodies]
    return _workers(needs, bodies[PRODUCT].choice.num_threads, bound, device)


def _workers(needs: Sequence[Resources], threads: int, bound: int, device: DeviceSpec) -> int:
    registers, shared = max(n.registers for n in needs), max(n.shared_bytes for n in needs)
    if bound:
        registers = min(registers, device.registers_per_multiprocessor // (threads * bound))
    together = min(blocks_at_once(threads, registers, shared, device), bound or device.max_blocks_per_multiprocessor)
    return together * device.num_multiprocessors


def ranked_products(first: TileProgram, products: Sequence[TileProgram], last: TileProgram, bound: int, device: DeviceSpec
                    ) -> list[TileProgram]:
    """Products in the order of the time that they take beside a producer and a user, the fastest first; those whose blocks fit.

    Boundary traffic, ends and waits are not counted: they are the same for all.
    """
    own = [(kernel_template(b.choice).work(b, device), kernel_template(b.choice).resources(b, device)) for b in (first, last)]
    priced: list[tuple[float, int]] = []
    for n, p in enumerate(products):
        template = kernel_template(p.choice)
        works = [own[0][0], template.work(p, device), own[1][0]]
        workers = _workers((own[0][1], template.resources(p, device), own[1][1]), p.choice.num_threads, bound, device)
        if workers:
            us = price_work(_side_by_side(works, workers, device), device).us
            priced.append((us + _walks_us((first, p, last), workers, device), n))
    return [products[n] for _, n in sorted(priced)]


def chain_work(program: TileProgram, choice: GroupedChain, device: DeviceSpec) -> Work:
    """The kernel's work. Source: the works of its bodies, `TaskFigures`."""
    works = [kernel_template(b.choice).work(b, device) for b in choice.bodies]
    serial_us = _walks_us(choice.bodies, choice.workers, device) + _ends_us(choice, works, device) + _order_us(choice, device)
    return replace(_side_by_side(works, choice.workers, device), read_bytes=program.bytes_read, global_bytes=program.bytes_moved,
                   serial_us=serial_us)


def _side_by_side(works: Sequence[Work], workers: int, device: DeviceSpec) -> Work:
    """Traffic of three bodies, and the stages of the product, whose tasks come in no waves of blocks."""
    together = summed(works)
    blocks = tuple(replace(b, resident=workers // device.num_multiprocessors, overlap=_overlap(b.overlap, device))
                   for w in works for b in w.blocks)
    return Work(1, None, 0, 0, sum(max(w.l2_bytes, w.global_bytes) for w in works), together.shared_bytes,
                partial_sectors=works[USER].partial_sectors, operations=works[PRODUCT].operations, blocks=blocks,
                energy_pj=together.energy_pj)


def _walks_us(bodies: Sequence[TileProgram], workers: int, device: DeviceSpec) -> float:
    """Time of the blocks of producers and users, which a worker takes between products. Units: microseconds. Source: `TaskFigures.walk_us`.

    Blocks have as many threads as those of the product.
    """
    threads = bodies[PRODUCT].choice.num_threads
    blocks = sum(-(-b.launch.num_blocks * b.choice.num_threads // threads) for n, b in enumerate(bodies) if n != PRODUCT)
    return blocks / max(workers, 1) * device.fitted.tasks.walk_us


def _overlap(own: OverlapFigures, device: DeviceSpec) -> OverlapFigures:
    """How blocks hide each other's waits where they are tasks. Source: `TaskFigures.product_share`."""
    return replace(own, last_wave=0.0, counted_share=max(own.counted_share, device.fitted.tasks.product_share))


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
