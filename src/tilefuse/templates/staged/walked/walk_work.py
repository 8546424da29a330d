"""Work of a pipelined walk: cycles of the tensor cores, of the special unit and of threads in a turn, bytes that walked operands move.

Nothing here is a time; `domain/roofline.py` makes one of it.
"""
from __future__ import annotations

from dataclasses import replace

from tilefuse.base.search.limits import SEARCH
from tilefuse.domain.work import BlockWork, Operations, StageWork, Unit, Work
from tilefuse.target.device import DeviceSpec
from tilefuse.target.launch import Launch
from tilefuse.templates.staged.online.turn_work import Score, loads_of
from tilefuse.templates.staged.walked.plan import WalkPlan


def with_work(plan: WalkPlan, boundary: Work, score: Score, device: DeviceSpec) -> WalkPlan:
    """The plan with its operations and its work. boundary: the work of its boundary values."""
    choice, fitted = plan.choice, device.fitted.walks
    tiles, turns = most_loaded(plan)
    tile = StageWork((), fitted.tile_cycles + choice.warpgroups * fitted.warpgroup_tile_cycles)
    once = StageWork((), fitted.start_cycles * choice.warpgroups)
    blocks = BlockWork(choice.blocks, choice.num_threads, 1, 1, (_times(_turn(plan, score, device), turns), _times(tile, tiles)), (once,),
                       device.fitted.pipelined.overlap)
    scores = plan.all_turns * choice.rows * choice.columns
    products = 2 * scores * (plan.form.inner + plan.form.width)
    # Tensor cores at work draw so much power that the clock sinks. That limit is the device's: few blocks do not lower it.
    power = Operations(products, plan.left.operand.dtype.name, device.num_multiprocessors / min(choice.blocks, device.num_multiprocessors))
    flight = sum(t.slot_bytes * plan.slots(t) for t in plan.tiles)
    brought = plan.num_tiles * plan.left.slot_bytes + plan.all_turns * sum(t.slot_bytes for t in (plan.keys, plan.values, *plan.biases))
    launch = Launch(choice.blocks, choice.num_threads, 1, plan.shared_bytes)
    # Repeated reads through L2 are cycles of the turns: tensor copies are faster than the loads that measured the device's curve.
    missed = _missed_bytes(plan, device)
    factor = max(missed / max(boundary.global_bytes, 1), 1.0)
    work = replace(boundary, l2_bytes=boundary.global_bytes, traffic_factor=factor, grid=launch, blocks=(blocks,), operations=(power,),
                   flight_bytes=flight, shared_bytes=2 * brought, serial_bytes=int(missed * fitted.missed_share))
    return replace(plan, work=work, flops=products + scores * score.flops)


def _missed_bytes(plan: WalkPlan, device: DeviceSpec) -> float:
    """Bytes of walked operands that come from memory: once where L2 holds those of a band, else once for all tiles of a lead place that are
    at work together."""
    choice, each = plan.choice, plan.keys.slot_bytes + plan.values.slot_bytes
    if choice.band * plan.most_turns * each <= device.l2_bytes * device.fitted.traffic.pending_l2_share:
        return 0.0
    return plan.all_turns * each / max(choice.blocks / choice.band, 1.0)


def most_loaded(plan: WalkPlan) -> tuple[int, int]:
    """Tiles and turns of the block with the most turns. Blocks take tiles in turn, those with the most turns first, and every other time in
    the opposite order."""
    choice = plan.choice
    tiles = -(-plan.num_tiles // choice.blocks)
    if plan.form.limit is None:
        return tiles, tiles * plan.most_turns
    if tiles > SEARCH.pipelines.walk_tiles:
        return tiles, -(-plan.all_turns // choice.blocks)
    loads = [0] * choice.blocks
    of_band = choice.band * plan.row_tiles
    turns = [plan.turns(n) for n in range(plan.row_tiles)]
    for n in range(plan.num_tiles):
        round_, block = divmod(n, choice.blocks)
        loads[choice.blocks - 1 - block if round_ % 2 else block] += turns[plan.row_tiles - 1 - n % of_band // choice.band]
    return tiles, max(loads)


def _times(stage: StageWork, count: int) -> StageWork:
    paths = tuple(tuple((unit, cycles * count) for unit, cycles in path) for path in stage.paths)
    return StageWork(paths, stage.wait_cycles * count, stage.chain_cycles * count)


def _turn(plan: WalkPlan, score: Score, device: DeviceSpec) -> StageWork:
    """One turn of a block: products of one warpgroup beside the powers of another, which hides a part of either."""
    choice, fitted, pipelined = plan.choice, device.fitted.walks, device.fitted.pipelined
    scores = choice.rows * choice.columns
    tensor = scores * (plan.inner + max(plan.width, pipelined.least_columns)) / pipelined.narrow_per_cycle
    special = scores * score.special / fitted.special_per_cycle
    brought = {b.read for b in plan.form.biases[:len(plan.biases)]}
    instructions = fitted.score_instructions + score.flops + fitted.bias_instructions * len(plan.biases)
    threads = scores * (instructions / fitted.instructions_per_cycle + fitted.load_cycles * loads_of(plan.form.online, brought))
    a_port = max(pipelined.multiprocessors_a_port * choice.blocks / device.num_multiprocessors, 1.0)
    moved_bytes = sum(t.slot_bytes for t in (plan.keys, plan.values, *plan.biases))
    moved = moved_bytes * pipelined.shared_reads * a_port / pipelined.port_bytes_per_cycle
    # Consumers wait for threads that fill slots: these take so much longer than a turn that a second slot hides nothing.
    filled = choice.columns * choice.rows * fitted.bias_fill_cycles * sum(plan.is_loaded(t) for t in plan.biases)
    share = fitted.busy_shares[min(choice.warpgroups, len(fitted.busy_shares)) - 1]
    products: tuple[Unit, float] = ("tensor", tensor * share)
    powers: tuple[tuple[Unit, float], ...] = (("special", special * share), ("threads", threads * share))
    paths: tuple[tuple[tuple[Unit, float], ...], ...] = (*((products, p) for p in powers), (("tensor", tensor),), (("l2", moved),))
    # The latency of a turn is no unit's work: it fills up what the units leave.
    busy = StageWork(paths).busy_cycles
    return StageWork(paths, max(fitted.turn_cycles, fitted.least_turn_cycles - busy) + filled)
