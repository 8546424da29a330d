"""Work of a walk between several products: cycles of the tensor cores, of the special unit and of threads in a turn, bytes that it moves.

Figures are those of walks with one product on either side. Nothing here is a time; `domain/roofline.py` makes one of it.
Source: one H200, 32 kernels of 16 gradients (benchmarks/results/gradients-h200-20261129-kernels.jsonl): root of the mean square of the
logarithms of predicted over measured 0.11; 0.16 without reads of both operands of a score and without what traffic does not hide.
"""
from __future__ import annotations

from dataclasses import replace

from tilefuse.domain.work import BlockWork, StageWork, Unit, Work
from tilefuse.ir.ops import SCALAR_OPS
from tilefuse.kernel.pipeline import WARPGROUP, WARPGROUP_ROWS
from tilefuse.target.capabilities import MMA_ROWS, SHARED_BYTES_PER_CYCLE, WARP
from tilefuse.target.device import DeviceSpec
from tilefuse.target.launch import Launch
from tilefuse.target.warpgroup import NEIGHBOURS
from tilefuse.templates.staged.online.products import ROW, OnlineForm
from tilefuse.templates.staged.pipeline_work import port_cycles, tensor_operations
from tilefuse.templates.staged.recomputed.plan import BackPlan


def with_work(plan: BackPlan, boundary: Work, device: DeviceSpec) -> BackPlan:
    """The plan with its operations and its work. boundary: the work of its boundary values."""
    choice, fitted, form = plan.choice, device.fitted.walks, plan.form.online
    tiles, turns = plan.most_loaded
    kept_wait = fitted.left_wait_cycles if choice.kept_slots == 1 and tiles > 1 else 0.0
    one_tile = StageWork((), fitted.tile_cycles + choice.warpgroups * fitted.warpgroup_tile_cycles)
    tile = StageWork((), one_tile.wait_cycles + kept_wait)
    once = StageWork((), fitted.start_cycles * choice.warpgroups)
    turn, share = _turn(plan, device), fitted.around_share
    stages = turn.times(turns), tile.times(tiles)
    blocks = BlockWork(choice.blocks, choice.num_threads, 1, 1, stages, (once,), device.fitted.pipelined.overlap)
    scores = plan.likely_turns * choice.rows * choice.columns
    products = 2 * scores * (sum(s.inner for s in form.scores) + sum(w.width for w in form.weighted))
    power = tensor_operations(products, plan.walked[0].operand.dtype.name, choice.blocks, device)
    brought = plan.num_tiles * sum(t.slot_bytes for t in plan.own) + plan.likely_turns * plan.filling_bytes
    missed = plan.missed_bytes(plan.operand_bytes, device)
    bias_bytes = sum(form.graph.type_of(v).num_bytes for v in dict.fromkeys(b.tile.operand.value for b in plan.biases))
    # A warp's store of elements fills half of each sector: four lanes have neighbours of one row.
    half_filled = sum(form.graph.type_of(name).num_bytes for name, _ in form.element_results)
    work = replace(boundary, l2_bytes=boundary.global_bytes + half_filled, traffic_factor=max(missed / max(boundary.global_bytes, 1), 1.0),
                   grid=Launch(choice.blocks, choice.num_threads, 1, plan.shared_bytes), blocks=(blocks,), operations=(power,),
                   flight_bytes=sum(t.slot_bytes * plan.slots(t) for t in plan.tiles), shared_bytes=2 * brought,
                   around=(once.times(share), one_tile.times(share), turn.times(share)),
                   serial_bytes=int(missed * fitted.missed_share + bias_bytes * fitted.bias_missed_share))
    return replace(plan, work=work, flops=products + scores * plan.form.cut_score.flops)


def instructions(plan: BackPlan, device: DeviceSpec) -> float:
    """Instructions of a score in the mean of all turns, those of a turn spread over the scores of a thread."""
    fitted, form = device.fitted.walks, plan.form
    whole, cut = form.whole_score, form.cut_score
    cut_share = 0.0 if form.limit is None else 1.0 - plan.whole_turns / plan.all_turns
    of_masks = cut_share * (cut.flops - whole.flops) * fitted.mask_instructions
    of_turn = fitted.turn_instructions * WARPGROUP / (WARPGROUP_ROWS * plan.choice.columns)
    # Elements of turned tiles are read one by one, others with their neighbours.
    of_biases = fitted.bias_instructions * sum(NEIGHBOURS if b.is_turned else 1 for b in plan.biases)
    of_draws = sum((fitted.turned_draw_instructions if draw.along == ROW else fitted.draw_instructions) - SCALAR_OPS["random_bits"].flops
                   for draw in plan.draws)
    return fitted.score_instructions * len(form.elements) + whole.flops + of_masks + of_turn + of_biases + of_draws


def _turn(plan: BackPlan, device: DeviceSpec) -> StageWork:
    """One turn of a block: products of one warpgroup beside the elements of another, which hides a part of either."""
    choice, fitted, pipelined = plan.choice, device.fitted.walks, device.fitted.pipelined
    form: OnlineForm = plan.form.online
    scores, least = choice.rows * choice.columns, pipelined.least_columns
    deep = sum(plan.inner(n) for n in range(len(form.scores))) * max(choice.columns, _read_columns(plan, device)) / choice.columns
    deep += sum(max(plan.width(n), least) for n in range(len(form.weighted)))
    tensor = scores * deep / pipelined.narrow_per_cycle
    special = scores * plan.form.whole_score.special / fitted.special_per_cycle
    loads = plan.loads
    accesses = loads + len(form.element_results) / NEIGHBOURS
    threads = scores * (instructions(plan, device) / fitted.instructions_per_cycle + fitted.load_cycles * accesses)
    moved = port_cycles(plan.filling_bytes * pipelined.shared_reads, choice.blocks, device)
    share = fitted.busy_shares[min(choice.warpgroups, len(fitted.busy_shares)) - 1]
    products: tuple[Unit, float] = ("tensor", tensor * share)
    beside: tuple[tuple[Unit, float], ...] = (("special", special * share), ("threads", threads * share))
    paths: tuple[tuple[tuple[Unit, float], ...], ...] = (*((products, p) for p in beside), (("tensor", tensor),), (("l2", moved),))
    busy = StageWork(paths).busy_cycles
    return StageWork(paths, max(fitted.turn_cycles, fitted.least_turn_cycles - busy) + _load_wait(plan, loads, device))


def _read_columns(plan: BackPlan, device: DeviceSpec) -> float:
    """Columns whose products with 64 rows take as long as reading both operands of a score from shared memory."""
    itemsize = plan.walked[0].operand.dtype.itemsize
    read_bytes = (WARPGROUP_ROWS + plan.choice.columns) * itemsize
    return read_bytes / SHARED_BYTES_PER_CYCLE * device.fitted.pipelined.narrow_per_cycle / WARPGROUP_ROWS


def _load_wait(plan: BackPlan, loads: int, device: DeviceSpec) -> float:
    """Cycles of a turn in which a warpgroup waits for values that its threads load, those of scores and of vectors that no copy brings: as
    many are in flight as registers are free."""
    choice, fitted = plan.choice, device.fitted.walks
    # Lanes of a warp have 16 rows, each lane two.
    vectors = len(plan.form.of_columns) - len(plan.vectors)
    of_thread = loads * WARPGROUP_ROWS * choice.columns // WARPGROUP + vectors * choice.columns * MMA_ROWS // (2 * WARP)
    if not of_thread:
        return 0.0
    free = max(choice.registers_of_roles(device.fitted.pipelined.copying_registers, device)[1] - plan.registers - fitted.registers, 1)
    return fitted.load_wait_cycles * -(-of_thread // free) / choice.warpgroups
