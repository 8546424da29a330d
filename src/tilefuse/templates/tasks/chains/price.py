"""Time of a chain in groups: its bodies side by side, where the values that they hand on stay in L2.

    ( max(boundary values through memory, all traffic through L2, stages of the product)
        + blocks of the others that a worker takes + tickets and publications of its tasks )  x  waiting factor
        + producers before the first product, users behind the last one

Tasks begin in their order, as many at a time as there are workers. A task that waits for one so many tasks before it, fewer than there are
workers, begins while that one is under way, and holds its worker until that one is done:

    264 workers, groups of 22 tasks, products 88 tasks behind their producers, users as many behind products: factor 2.4

Source: one H200 (winograd-groups-h200-20261130.jsonl): measured over predicted without the factor 4.4 for these, 2.3 for groups of 44 tasks
and 176 between (factor 1.2), 1.6, 1.6, 1.5 and 1.2 where none waits.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf

from tilefuse.base.search.limits import SEARCH
from tilefuse.domain.roofline import blocks_at_once, price_work
from tilefuse.domain.tile import TileProgram
from tilefuse.domain.work import Work, summed
from tilefuse.target.device import DeviceSpec
from tilefuse.target.fitted.stages import OverlapFigures
from tilefuse.templates.registry import kernel_template
from tilefuse.templates.tasks.chains.record import PRODUCER, PRODUCT, USER, GroupedChain, Rhythm
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


def ranked_products(first: TileProgram, products: Sequence[TileProgram], last: TileProgram, bound: int, groups: int, group_bytes: int,
                    device: DeviceSpec) -> list[TileProgram]:
    """Products in the order of the time that they take beside a producer and a user, the fastest first; those whose blocks fit.

    Boundary traffic and ends are not counted: they are the same for all. group_bytes: of %v and %m in one of so many groups.
    """
    own = [(kernel_template(b.choice).work(b, device), kernel_template(b.choice).resources(b, device)) for b in (first, last)]
    priced: list[tuple[float, int]] = []
    for n, p in enumerate(products):
        template = kernel_template(p.choice)
        works = [own[0][0], template.work(p, device), own[1][0]]
        workers = _workers((own[0][1], template.resources(p, device), own[1][1]), p.choice.num_threads, bound, device)
        if workers:
            bodies = first, p, last
            blocks = [-(-b.launch.num_blocks // groups) for b in bodies]
            tasks = [-(-count // each) for count, each in zip(blocks, blocks_a_task(bodies, blocks, groups), strict=True)]
            us = price_work(_side_by_side(works, workers, device), device).us + _walks_us(bodies, workers, device)
            us += -(-sum(tasks) * groups // workers) * device.fitted.tasks.task_us
            distance = max(min(groups_between(group_bytes, device), -(-workers // sum(tasks))), 1)
            rhythm = Rhythm(0, 1, distance, distance, (2 * distance + 1, 2 * distance + 1))
            priced.append((us * waiting_factor(workers, tasks, rhythm, groups), n))
    return [products[n] for _, n in sorted(priced)]


def groups_between(group_bytes: int, device: DeviceSpec) -> int:
    """Groups between tasks that wait for each other, of which both rings with one group a round fit a share of L2. group_bytes: of both."""
    return (int(device.l2_bytes * device.fitted.tasks.ring_l2_share) // group_bytes - 1) // 2


def blocks_a_task(bodies: Sequence[TileProgram], blocks: Sequence[int], groups: int) -> tuple[int, ...]:
    """Blocks of a task: those of the product one, those of the others as many as move about as many bytes, in equal tasks.

    blocks: of each body in one of so many groups.
    """
    moved = [body.bytes_moved / (groups * count) for body, count in zip(bodies, blocks, strict=True)]
    each = []
    for n, count in enumerate(blocks):
        most = max(int(moved[PRODUCT] / moved[n]), 1) if n != PRODUCT else 1
        each.append(max(e for e in range(1, min(most, count) + 1) if count % e == 0))
    return tuple(each)


def waiting_factor(workers: int, tasks: Sequence[int], rhythm: Rhythm, groups: int) -> float:
    """Time of a chain's tasks over that of tasks which wait for none, where each takes as long as another.

    Workers take a task at each interval x. A task waits for the last of those that it reads from, or whose slot it takes, which have begun
    as many intervals before it as tasks stand between. In times of a task:

        producer = 1 + (product - x between)     the last reader of its slot of %v
        product = 1 + (producer - x between)     and the user of its slot of %m
        user = 1 + (product - x between)         workers x = mean of the three

    tasks: of each body in one of so many groups.
    """
    per_group = sum(tasks)
    behind = rhythm.between * rhythm.together

    def tasks_between(distance: int) -> float:
        return max(distance, 0) * per_group

    product_behind, user_behind = (tasks_between(n) if n < groups else inf for n in (rhythm.ahead, behind))
    first_slots, second_slots = (tasks_between(n - distance) if n < groups else inf
                                 for n, distance in zip(rhythm.slots, (rhythm.ahead, behind), strict=True))
    shares = [count / per_group for count in tasks]

    def mean(interval: float) -> float:
        """Mean time of a task at an interval; infinite where each round of waits adds to the next."""
        times = [1.0, 1.0, 1.0]
        for _ in range(SEARCH.tasks.wait_rounds):
            waits = (times[PRODUCT] - first_slots * interval,
                     max(times[PRODUCER] - product_behind * interval, times[USER] - second_slots * interval),
                     times[PRODUCT] - user_behind * interval)
            again = [1.0 + max(wait, 0.0) for wait in waits]
            if again == times:
                return sum(share * time for share, time in zip(shares, times, strict=True))
            times = again
        return inf

    low = high = 1.0 / max(workers, 1)
    while high < 1.0 and mean(high) > workers * high:
        low, high = high, 2.0 * high
    while (high - low) * SEARCH.tasks.interval_parts > low:
        middle = (low + high) / 2
        low, high = (middle, high) if mean(middle) > workers * middle else (low, middle)
    return max(workers * high, 1.0)


def chain_work(program: TileProgram, choice: GroupedChain, device: DeviceSpec) -> Work:
    """The kernel's work. Source: the works of its bodies, `TaskFigures`."""
    works = [kernel_template(b.choice).work(b, device) for b in choice.bodies]
    side = replace(_side_by_side(works, choice.workers, device), read_bytes=program.bytes_read, global_bytes=program.bytes_moved)
    of_workers_us = _walks_us(choice.bodies, choice.workers, device) + _order_us(choice, device)
    factor = waiting_factor(choice.workers, [choice.tasks(n) for n in range(len(choice.bodies))], choice.rhythm, choice.groups)
    waits_us = (factor - 1.0) * (price_work(side, device).us + of_workers_us)
    return replace(side, serial_us=of_workers_us + waits_us + _ends_us(choice, works, device))


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
