"""Work of a pipelined product: cycles of the tensor cores and of L2 for a tile, instructions of its results, waits at the beginning.

Nothing here is a time; `domain/roofline.py` makes one of it.
"""
from __future__ import annotations

from math import log2

from tilefuse.base.construction import replace
from tilefuse.domain.work import BlockWork, StageWork, Unit, Work
from tilefuse.ir.dtype import F32
from tilefuse.kernel.pipeline import WARPGROUP, WARPGROUP_ROWS
from tilefuse.target.capabilities import SHARED_BYTES_PER_CYCLE
from tilefuse.target.device import DeviceSpec
from tilefuse.target.launch import Launch
from tilefuse.target.warpgroup import MOST_COLUMNS, NEIGHBOURS, ROW_HALVES
from tilefuse.templates.staged.pipeline_work import port_cycles
from tilefuse.templates.staged.pipelined.energy import PRODUCTS_OF_PARTS, energy_pj, repeated_bytes
from tilefuse.templates.staged.pipelined.form import ProductForm
from tilefuse.templates.staged.pipelined.plan import ProductPlan
from tilefuse.templates.staged.pipelined.record import Pipelined
from tilefuse.templates.staged.pipelined.stages import STAGE_COLUMNS
from tilefuse.templates.staged.pipelined.swapped.stream_work import (
    IN_USE,
    lane_paths,
    last_filling_cycles,
    refill_cycles,
    stepping_cycles,
    stream_latency_cycles,
    streaming_cycles,
)
from tilefuse.templates.staged.pipelined.thread_work import producing_cycles

# An element of a slot is written by a copy and read for its low part, which is written.
ACCESSES_OF_PARTS = 3


def with_work(plan: ProductPlan, boundary: Work, flops: int, device: DeviceSpec) -> ProductPlan:
    """The plan with its operations and its work. boundary: the work of its boundary values; flops: `result_operations` of its form."""
    choice, form, fitted = plan.choice, plan.form, device.fitted.pipelined
    filling = producing_cycles(plan, device)
    main, ending = _main_loop(plan, filling, device), _ending(plan, flops, device)
    meetings = meetings_of(choice, len(plan.rights), device)
    # Parts whose blocks take one each meet when all have been multiplied.
    behind = (*meetings, ending) if meetings and plan.turns == 1 else ()
    stages: tuple[StageWork, ...] = (main,) if behind else (main, *meetings, ending)
    once = fitted.fill_cycles + _first_slot_cycles(plan, filling, device) + last_filling_cycles(plan, device)
    if choice.pingpong:
        # Nothing hides the results of the last tile.
        stages, once = (_in_turn(main, ending, _beside_cycles(choice, flops, device), device),), once + ending.alone_cycles
    blocks = BlockWork(choice.blocks, choice.num_threads, 1, plan.turns, stages, (StageWork((), once),), fitted.overlap)
    product_flops = _product_flops(form)
    energy = energy_pj(form, choice, boundary.global_bytes, flops, device, plan.together) / _share_of_groups(plan, device)
    # Bytes from L2 are cycles of the tiles: tensor copies are faster than the loads that measured the device's curve.
    launch = Launch(choice.blocks, choice.num_threads, choice.cluster, plan.shared_bytes, scattered=choice.scattered)
    runs = 1.0 + fitted.parts.run_bytes / (choice.depth * form.left.dtype.itemsize) if behind else boundary.traffic_factor
    missed = repeated_bytes(form, choice, device)
    work = replace(boundary, grid=launch, blocks=(blocks,), energy_pj=energy, behind=behind,
                   traffic_factor=runs * (boundary.global_bytes + missed) / max(boundary.global_bytes, 1),
                   flight_bytes=choice.slots * _slot_bytes(plan),
                   shared_bytes=2 * plan.num_tiles * choice.split * plan.fillings * _slot_bytes(plan))
    return replace(plan, work=work, flops=product_flops + plan.num_tiles * choice.rows * choice.columns * flops)


def multiplied_columns(form: ProductForm, choice: Pipelined, together: int, device: DeviceSpec) -> int:
    """Columns of all products of a tile, narrow instructions counted as those that take as long. together: products of one instruction."""
    return len(form.products) // together * max(choice.columns * together, device.fitted.pipelined.least_columns)


def _product_flops(form: ProductForm) -> int:
    return 2 * len(form.products) * form.num_leads * form.rows * form.columns * form.inner


def rate_of(form: ProductForm, device: DeviceSpec) -> float:
    """Multiply-adds a cycle of warpgroup products of the operands' type."""
    fitted = device.fitted.pipelined
    if form.splits_operands:
        return fitted.tf32_per_cycle / PRODUCTS_OF_PARTS
    return {4: fitted.tf32_per_cycle, 2: fitted.narrow_per_cycle, 1: fitted.byte_per_cycle}[form.left.dtype.itemsize]


def _slot_bytes(plan: ProductPlan) -> int:
    """Bytes of one filling of a slot: tiles of all operands."""
    return sum(t.slot_bytes for t in plan.operands)


def _main_loop(plan: ProductPlan, filling: float, device: DeviceSpec) -> StageWork:
    """The main loop of a tile: tensor cores, the port to L2 and the consumers' own steps work side by side. filling: `producing_cycles`."""
    choice, fitted = plan.choice, device.fitted.pipelined
    products = choice.rows * multiplied_columns(plan.form, choice, plan.together, device) * choice.depth * plan.fillings
    tensor_cycles = products / rate_of(plan.form, device)
    further_panels = 0.0 if choice.swapped else (choice.depth // plan.left.width - 1) * fitted.further_panel_cycles
    paths: tuple[tuple[tuple[Unit, float], ...], ...] = (
        (("tensor", tensor_cycles),), (("l2", _port_cycles(plan, device)),),
        (("threads", stepping_cycles(plan, further_panels, device)),),
        (("threads", _producing_behind_first(plan, filling, device)),), *((("global", c),) for c in streaming_cycles(plan, device)),
        *lane_paths(plan, device))
    if plan.form.splits_operands:
        paths = (*paths, *_paths_of_parts(plan, tensor_cycles, device))
    elif plan.form.adds_partial_sums:
        sharing = choice.rows // choice.warpgroup_rows
        adding = plan.fillings * (fitted.added_cycles + _adding_cycles(plan, device))
        paths = (*paths, (("tensor", tensor_cycles / sharing), ("threads", adding)))
    return StageWork(paths, refill_cycles(plan, device), max(_copying_cycles(plan, device), stream_latency_cycles(plan, device)))


def _copying_cycles(plan: ProductPlan, device: DeviceSpec) -> float:
    """Latency of the copies of a tile into the slots ahead of the products, each of which begins when products have read its slot."""
    ahead = plan.choice.slots - IN_USE
    return plan.fillings * device.fitted.pipelined.copy_cycles / ahead if ahead > 0 else 0.0


def _first_slot_cycles(plan: ProductPlan, filling: float, device: DeviceSpec) -> float:
    """Cycles until producing threads have filled the first slot, beyond those of a tensor copy; weights fill their slots meanwhile.

    filling: `producing_cycles`.
    """
    tile_cycles = max(*streaming_cycles(plan, device), stream_latency_cycles(plan, device), 0.0)
    streamed = tile_cycles * min(plan.choice.slots, plan.fillings) / plan.fillings
    return max(filling - device.fitted.pipelined.load_cycles - streamed, 0.0)


def _producing_behind_first(plan: ProductPlan, filling: float, device: DeviceSpec) -> float:
    """Cycles in which producing threads fill all slots of a tile, less those that a block's start has for its first slot."""
    begun = min(filling, device.fitted.pipelined.load_cycles) + _first_slot_cycles(plan, filling, device)
    return plan.fillings * filling - begun / plan.turns


def _adding_cycles(plan: ProductPlan, device: DeviceSpec) -> float:
    """Cycles in which a warpgroup adds the products of one slot to its sums. Its own products wait, those of another warpgroup do not."""
    return plan.sums * len(plan.rights) * WARPGROUP / device.fitted.pipelined.issued_per_cycle


def _paths_of_parts(plan: ProductPlan, tensor_cycles: float, device: DeviceSpec) -> tuple[tuple[tuple[Unit, float], ...], ...]:
    """Products of high and low parts: shared memory, which products, low parts and copies read and write; and the steps of one slot."""
    fitted, choice = device.fitted.pipelined, plan.choice
    elements = sum(low.tile.elements for low in plan.lows)
    lines = choice.warpgroups * len(plan.rights) * (choice.warpgroup_rows + choice.warpgroup_rows // WARPGROUP_ROWS * choice.columns)
    read = PRODUCTS_OF_PARTS * lines * choice.depth + elements * ACCESSES_OF_PARTS
    shared = read * plan.form.left.dtype.itemsize / SHARED_BYTES_PER_CYCLE
    splitting = fitted.split_instructions * elements / (fitted.issued_per_cycle * choice.warpgroups)
    return ((("shared", plan.fillings * shared), ("threads", plan.fillings * fitted.meeting_cycles)),
            (("tensor", tensor_cycles), ("threads", plan.fillings * (_adding_cycles(plan, device) + splitting))))


def _port_cycles(plan: ProductPlan, device: DeviceSpec) -> float:
    """Cycles of the port to L2 for the operands of a tile.

    Blocks of neighbouring numbers take tiles of one band, and share the operand along which the band does not go: requests of several
    multiprocessors for the same bytes are answered together in part. Few blocks have a port each.
    """
    rows, *columns = (t.elements * t.operand.port_bytes / t.parts for t in plan.operands)
    return plan.fillings * slot_port_cycles(plan.choice, plan.choice.blocks, rows, sum(columns), device)


def slot_port_cycles(choice: Pipelined, blocks: int, rows: float, columns: float, device: DeviceSpec) -> float:
    """The same for one slot with so many bytes of rows and of columns."""
    fitted = device.fitted.pipelined
    own, shared = (rows, columns) if choice.band > 1 else (columns, rows)
    # Blocks of a cluster have other parts of the inner axis.
    num_bytes = own + (fitted.shared_reads if choice.cluster_parts == 1 else 1.0) * shared
    return port_cycles(num_bytes, blocks, device)


def meetings_of(choice: Pipelined, num_products: int, device: DeviceSpec) -> tuple[StageWork, ...]:
    """The sums of a tile's parts, through the shared memory of a cluster, then through a workspace: of one block that finishes a tile."""
    fitted = device.fitted.pipelined.parts
    meetings: list[StageWork] = []
    sum_bytes = num_products * choice.rows * choice.result_columns * F32.itemsize
    if choice.cluster_parts > 1:
        sent = sum_bytes * (choice.cluster_parts - 1)
        meetings.append(StageWork(((("l2", sent / fitted.sent_bytes_per_cycle),),)))
    if choice.memory_parts > 1:
        moved = sum_bytes / fitted.stored_bytes_per_cycle + sum_bytes * choice.memory_parts / fitted.loaded_bytes_per_cycle
        meetings.append(StageWork(((("l2", moved),),), fitted.arrival_cycles))
    return tuple(meetings)


def _ending(plan: ProductPlan, flops: int, device: DeviceSpec) -> StageWork:
    """The end of a tile: reductions of rows, maps on the sums, and stores. flops: operations of all these on one element."""
    choice, graph, fitted = plan.choice, plan.form.graph, device.fitted.pipelined
    elements = choice.rows * choice.result_columns
    staged, copied = {r.name for r in plan.staged}, len(plan.copied_results)
    by_rows, direct = len(staged) - copied, len(plan.form.tile_results) - len(staged)
    direct_bytes = sum(graph.type_of(r).dtype.itemsize for r in plan.form.tile_results if r not in staged) * elements
    row_bytes = sum(r.dtype.itemsize for r in plan.staged if r.by_rows) * elements
    instructions = (flops + fitted.staged_instructions * copied + fitted.row_stored_instructions * by_rows
                    + fitted.stored_instructions * direct)
    issued = fitted.issued_per_cycle * (choice.rows // choice.warpgroup_rows)
    # Eight lanes store neighbours of one row of a swapped product, as four lanes store pairs.
    in_pairs = choice.swapped or plan.form.columns % NEIGHBOURS == 0
    stored = direct_bytes / fitted.stored_bytes_per_cycle if in_pairs else direct * elements * fitted.lone_store_cycles
    stored += row_bytes / fitted.row_stored_bytes_per_cycle
    exchange = fitted.scattered_exchange_cycles if choice.scattered else fitted.exchange_cycles
    return StageWork(((("threads", elements * instructions / issued),), (("l2", stored),)),
                     fitted.tile_cycles + _result_loads(plan) * _load_wait(plan, device) + len(plan.exchanges) * exchange)


def _share_of_groups(plan: ProductPlan, device: DeviceSpec) -> float:
    """Share of the tensor cores' rate that tiles of groups keep: few rows have a right operand in common, so that small tiles read more."""
    if plan.form.num_groups < 2:
        return 1.0
    halvings = log2(WARPGROUP * MOST_COLUMNS / (plan.choice.rows * plan.choice.columns))
    return float(device.fitted.pipelined.grouped_half ** max(halvings, 0.0))


def _beside_cycles(choice: Pipelined, flops: int, device: DeviceSpec) -> float:
    """Cycles that the products of a tile lose to the maps of another warpgroup's results: both use the registers' ports.

    flops: operations of the maps on one element.
    """
    return device.fitted.pipelined.beside_cycles * choice.rows * choice.result_columns * flops / WARPGROUP


def _in_turn(main: StageWork, ending: StageWork, beside_cycles: float, device: DeviceSpec) -> StageWork:
    """A tile of two warpgroups that take turns: its results beside the main loop of the next tile, which is the other warpgroup's.

        warpgroup 0    |--- main 0 ---|- results 0 -|    |--- main 2 ---|
        warpgroup 1                   |--- main 1 ---|- results 1 -|

    beside_cycles: cycles that products lose to the maps. Stores take the port's time from copies. Results that take longer than a main
    loop keep their warpgroup from its next turn, once for two tiles.
    """
    stored = sum(cycles for path in ending.paths for unit, cycles in path if unit == "l2")
    beside_by_unit = {"l2": stored, "tensor": beside_cycles}
    paths = tuple(tuple((unit, cycles + beside_by_unit.get(unit, 0.0)) for unit, cycles in path) for path in main.paths)
    beside = replace(main, paths=paths, wait_cycles=main.wait_cycles + device.fitted.pipelined.turn_cycles)
    return replace(beside, wait_cycles=beside.wait_cycles + max(ending.alone_cycles - beside.alone_cycles, 0.0) / 2)


def _result_loads(plan: ProductPlan) -> int:
    """Groups of loads, one after another, with which a consumer thread gets the operands of a tile's maps: one for each half of its
    rows in a stage of 64 columns."""
    choice = plan.choice
    return ROW_HALVES * (choice.warpgroup_rows // WARPGROUP_ROWS) * max(choice.result_columns // STAGE_COLUMNS, 1)


def _load_wait(plan: ProductPlan, device: DeviceSpec) -> float:
    """Latency of one such group: of memory for values with an element for each result, of the caches for those that tiles share,
    none for values that come while the products are computed.

    Units: cycles.
    """
    fitted, form = device.fitted.pipelined, plan.form
    fetched = {f.source.name for f in plan.fetched}
    sizes = [v.type.num_elements for v in form.graph.inputs if v.name in form.values_of_results and v.name not in fetched]
    if not sizes:
        return 0.0
    return fitted.result_load_cycles if max(sizes) >= form.num_leads * form.rows * form.columns else fitted.shared_load_cycles
