"""Work of a pipelined walk: cycles of the tensor cores, of the special unit and of threads in a turn, bytes that walked operands move.

Nothing here is a time; `domain/roofline.py` makes one of it.
"""
from __future__ import annotations

from dataclasses import dataclass

from tilefuse.base.construction import replace
from tilefuse.domain.work import BlockWork, LeastBlocks, StageWork, Unit, Work
from tilefuse.ir.dtype import F32
from tilefuse.ir.ops import SCALAR_OPS
from tilefuse.kernel.pipeline import WARPGROUP, WARPGROUP_ROWS
from tilefuse.target.device import DeviceSpec
from tilefuse.target.launch import Launch
from tilefuse.templates.staged.online.turn_work import Score, loads_of, score_of
from tilefuse.templates.staged.pipeline_work import port_cycles, tensor_operations
from tilefuse.templates.staged.walked.form import WalkForm
from tilefuse.templates.staged.walked.limit import without_mask
from tilefuse.templates.staged.walked.plan import WalkPlan, consumer_registers


@dataclass(frozen=True, slots=True)
class TurnScores:
    """Operations of a score in turns that a mask cuts, and in turns that it cuts nothing of. loads, other_loads: values that threads load
    for each score, and those of them that are no biases of the form."""

    cut: Score
    whole: Score
    loads: int
    other_loads: int


def turn_scores(form: WalkForm) -> TurnScores:
    """The operations of a form's scores."""
    cut = score_of(form.online)
    loads = loads_of(form.online)
    other_loads = loads_of(form.online, {b.read for b in form.biases}) if form.biases else loads
    return TurnScores(cut, cut if form.limit is None else score_of(without_mask(form.online, form.limit)), loads, other_loads)


def least_blocks_of(plan: WalkPlan, turn: StageWork, device: DeviceSpec) -> LeastBlocks:
    """Bound on the blocks of a plan, which leaves out the meetings of parts. turn: of `turn_of`."""
    choice, (tiles, turns) = plan.choice, plan.most_loaded
    _, tile, once = _around(plan, tiles, device)
    return LeastBlocks(choice.blocks, choice.num_threads, 1, turns * turn.busy_cycles,
                       turns * turn.wait_cycles + tiles * tile.wait_cycles, once.wait_cycles, device.fitted.pipelined.overlap)


def _around(plan: WalkPlan, tiles: int, device: DeviceSpec) -> tuple[StageWork, StageWork, StageWork]:
    """Three waits beside the turns: of one tile by itself, of each of a block's tiles, which may wait for its left operand, and of a block
    at its start. tiles: of the block."""
    choice, fitted = plan.choice, device.fitted.walks
    one_tile = StageWork((), fitted.tile_cycles + choice.warpgroups * fitted.warpgroup_tile_cycles)
    # One slot of the left operand: the copy of the next tile's begins when this tile ends.
    left_wait = fitted.left_wait_cycles if choice.left_slots == 1 and tiles > 1 else 0.0
    return one_tile, StageWork((), one_tile.wait_cycles + left_wait), StageWork((), fitted.start_cycles * choice.warpgroups)


def with_work(plan: WalkPlan, turn: StageWork, boundary: Work, scores_by_turn: TurnScores, device: DeviceSpec) -> WalkPlan:
    """The plan with its operations and its work. turn: of `turn_of`. boundary: the work of its boundary values."""
    choice, fitted, score = plan.choice, device.fitted.walks, scores_by_turn.cut
    tiles, turns = plan.most_loaded
    one_tile, tile, once = _around(plan, tiles, device)
    meetings = _meetings(plan, device)
    beside = tuple(m.times(tiles) for m in meetings) if tiles > 1 else ()
    share = fitted.around_share
    stages = (turn.times(turns), tile.times(tiles), *beside)
    blocks = BlockWork(choice.blocks, choice.num_threads, 1, 1, stages, (once,), device.fitted.pipelined.overlap)
    scores = plan.likely_turns * choice.rows * choice.columns
    products = 2 * scores * (plan.form.inner + plan.form.width)
    power = tensor_operations(products, plan.left.operand.dtype.name, choice.blocks, device)
    flight = sum(t.slot_bytes * plan.slots(t) for t in plan.tiles)
    brought = plan.num_items * plan.left.slot_bytes + plan.likely_turns * sum(t.slot_bytes for t in (plan.keys, plan.values, *plan.biases))
    launch = Launch(choice.blocks, choice.num_threads, 1, plan.shared_bytes)
    # Repeated reads through L2 are cycles of the turns: tensor copies are faster than the loads that measured the device's curve.
    missed = plan.missed_bytes(plan.keys.slot_bytes + plan.values.slot_bytes, device)
    factor = max(missed / max(boundary.global_bytes, 1), 1.0)
    work = replace(boundary, l2_bytes=boundary.global_bytes, traffic_factor=factor, grid=launch, blocks=(blocks,), operations=(power,),
                   flight_bytes=flight, shared_bytes=2 * brought, behind=meetings if tiles == 1 else (),
                   around=(once.times(share), one_tile.times(share), turn.times(share)),
                   serial_bytes=int(missed * fitted.missed_share + _bias_bytes(plan) * fitted.bias_missed_share))
    return replace(plan, work=work, flops=products + scores * score.flops)


def _meetings(plan: WalkPlan, device: DeviceSpec) -> tuple[StageWork, ...]:
    """The parts of a tile, through a workspace: stores of one block, its arrival, and the last block's loads."""
    sums, choice, fitted = plan.sums, plan.choice, device.fitted.pipelined.parts
    if sums is None:
        return ()
    sum_bytes = sums.elements * F32.itemsize
    moved = sum_bytes / fitted.stored_bytes_per_cycle + sum_bytes * choice.parts / fitted.loaded_bytes_per_cycle
    # Totals of the rows are loaded before their products.
    trips = 2 * -(-choice.parts // device.fitted.walks.parts_ahead) - 1
    return (StageWork(((("l2", moved),),), fitted.arrival_cycles + trips * device.fitted.walks.parts_cycles),)


def _bias_bytes(plan: WalkPlan) -> int:
    """Bytes of biases and masks in memory."""
    graph = plan.form.online.graph
    return sum(graph.type_of(v).num_bytes for v in dict.fromkeys(b.of.operand.value for b in plan.form.biases))


def _instructions(plan: WalkPlan, scores: TurnScores, device: DeviceSpec) -> float:
    """Instructions of a score in the mean of all turns, those of a turn spread over the scores of a thread."""
    fitted, whole, cut = device.fitted.walks, scores.whole, scores.cut
    cut_share = 0.0 if plan.form.limit is None else 1.0 - plan.whole_turns / plan.all_turns
    of_masks = cut_share * (cut.flops - whole.flops) * fitted.mask_instructions
    of_turn = fitted.turn_instructions * WARPGROUP / (WARPGROUP_ROWS * plan.choice.columns)
    of_draws = (fitted.draw_instructions - SCALAR_OPS["random_bits"].flops) * len(plan.draws)
    return fitted.score_instructions + whole.flops + of_masks + of_turn + of_draws + fitted.bias_instructions * len(plan.biases)


def turn_of(plan: WalkPlan, scores_by_turn: TurnScores, device: DeviceSpec) -> StageWork:
    """One turn of a block: products of one warpgroup beside the powers of another, which hides a part of either."""
    choice, fitted, pipelined = plan.choice, device.fitted.walks, device.fitted.pipelined
    scores = choice.rows * choice.columns
    tensor = scores * (plan.inner + max(plan.width, pipelined.least_columns)) / pipelined.narrow_per_cycle
    special = scores * scores_by_turn.whole.special / fitted.special_per_cycle
    instructions = _instructions(plan, scores_by_turn, device)
    # Rings bring all biases or none.
    loads = scores_by_turn.other_loads if plan.biases else scores_by_turn.loads
    threads = scores * (instructions / fitted.instructions_per_cycle + fitted.load_cycles * loads)
    moved_bytes = sum(t.slot_bytes for t in (plan.keys, plan.values, *plan.biases))
    moved = port_cycles(moved_bytes * pipelined.shared_reads, choice.blocks, device)
    # Consumers wait for threads that fill slots: these take so much longer than a turn that a second slot hides nothing.
    filled = choice.columns * choice.rows * fitted.bias_fill_cycles * sum(plan.is_loaded(t) for t in plan.biases)
    share = fitted.busy_shares[min(choice.warpgroups, len(fitted.busy_shares)) - 1]
    products: tuple[Unit, float] = ("tensor", tensor * share)
    powers: tuple[tuple[Unit, float], ...] = (("special", special * share), ("threads", threads * share))
    paths: tuple[tuple[tuple[Unit, float], ...], ...] = (*((products, p) for p in powers), (("tensor", tensor),), (("l2", moved),))
    # The latency of a turn is no unit's work: it fills up what the units leave.
    busy = StageWork(paths).busy_cycles
    wait = max(fitted.turn_cycles, fitted.least_turn_cycles - busy) + filled + _load_wait(plan, loads, device)
    return StageWork(paths, wait)


def _load_wait(plan: WalkPlan, loads: int, device: DeviceSpec) -> float:
    """Cycles of a turn in which a warpgroup waits for values that its threads load: as many are in flight as registers are free."""
    if not loads:
        return 0.0
    choice, fitted = plan.choice, device.fitted.walks
    of_thread = loads * WARPGROUP_ROWS * choice.columns // WARPGROUP
    free = max(consumer_registers(plan, device)[1] - plan.registers - fitted.registers, 1)
    return fitted.load_wait_cycles * -(-of_thread // free) / choice.warpgroups
