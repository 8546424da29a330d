"""Pipelined products as kernel IR.

    for each tile of the block:  main loop over the inner axis: producers fill slots, consumers multiply | results from the sums
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Set

from tilefuse.domain.contraction import sum_dtype
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.affine import Affine, axis, number
from tilefuse.ir.dtype import F32
from tilefuse.ir.scalar import Bound
from tilefuse.kernel.ir import Barrier, Comment, Declare, IfValue, Kernel, Reg, Stmt
from tilefuse.kernel.pipeline import (
    WARPGROUP,
    Consume,
    EachWarpgroup,
    Pipeline,
    Produce,
    ReleaseSlots,
    Ring,
    WarpgroupProduct,
    WarpgroupWait,
)
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.staged.kernel_ends import finished_kernel, prefetch_settled
from tilefuse.templates.staged.pipelined.exact.operand_parts import finished_sum, split_step
from tilefuse.templates.staged.pipelined.exact.partial_sums import added, for_each_sum, low_sums, partial_sums
from tilefuse.templates.staged.pipelined.exact.scaled_sums import scaled_sums
from tilefuse.templates.staged.pipelined.operands import fill, fillings_of, registers_of_roles
from tilefuse.templates.staged.pipelined.places import TilePlace, begin_groups, items_of, place_of
from tilefuse.templates.staged.pipelined.plan import OperandTile, ProductPlan
from tilefuse.templates.staged.pipelined.results import await_values, fetch_values, store_results
from tilefuse.templates.staged.pipelined.rows.sums import reduce_rows
from tilefuse.templates.staged.pipelined.rows.tile import row_tile
from tilefuse.templates.staged.pipelined.shifted.tiles import clear_neighbours
from tilefuse.templates.staged.pipelined.split.sums import finisher, load_sums, receive_sums, store_sums
from tilefuse.templates.staged.pipelined.state import ProductState
from tilefuse.templates.staged.pipelined.swapped.ahead import fetched_ahead
from tilefuse.templates.staged.pipelined.swapped.expand import ExpandedProducts


def compose_product(program: TileProgram, device: DeviceSpec, settled: Set[str] = frozenset()) -> Kernel:
    """The kernel IR of pipelined products. settled: as of `KernelTemplate.compose`."""
    plan = program.internal
    assert isinstance(plan, ProductPlan)
    w = ProductState(program, plan, device)
    w.ahead = fetched_ahead(plan, settled)
    if not w.ahead:
        prefetch_settled(w, settled, program.launch.num_blocks, program.launch.num_threads)
    begin_groups(w)
    # Inside the roles; producers are as many threads or fewer.
    cluster = plan.choice.cluster
    w.frame.extents |= {"block": plan.choice.blocks, "thread": plan.choice.consumer_threads, "rank": cluster,
                        "cluster": plan.choice.num_clusters}
    with w.nested() as roles:
        _tiles(w)
    # The blocks of a cluster send each other signals once all of them run and their barriers are ready.
    meeting = (Barrier("cluster", memory=False),) if cluster > 1 and not plan.choice.scattered else ()
    threads = plan.choice.consumer_threads
    rings = tuple(Ring(f.ring, plan.choice.slots, tuple(dict.fromkeys(w.slots[t.key].name for t in f.tiles)),
                       any(t.parts > 1 for t in f.tiles)) for f in fillings_of(plan))
    pipeline = Pipeline(rings, tuple(roles.statements), threads, *registers_of_roles(plan, device), early=bool(w.ahead))
    tables = (w.tables.tiles, w.tables.rows) if w.tables is not None else ()
    buffers = (*w.buffers.values(), *tables, *dict.fromkeys(w.slots.values()), *w.lows.values(), *w.stages.values(),
               *(b for e in w.exchanged for b in e.values()), *w.received, *w.workspaces,
               *(c for c in (w.counter, w.met) if c is not None))
    body = (*w.frame.statements, *meeting, pipeline)
    shared_line = f"{plan.choice.slots} slots of {plan.shared_bytes // plan.choice.slots} bytes of shared memory"
    return finished_kernel(program, device, buffers, body, plan.shared_bytes, shared_line, plan.choice.resident, plan.form.narrow,
                           plan.num_signals, tuple(w.maps.values()))


def _tiles(w: ProductState) -> None:
    """The tiles of a block, or parts of tiles, one after another. Loops are the same for all blocks of a cluster, so that these exchange
    in step."""
    plan, choice = w.plan, w.plan.choice
    if choice.pingpong:
        _tiles_in_turn(w)
        return
    count, step = plan.most_items, choice.num_clusters
    with w.loop("tile" if choice.memory_parts == 1 else "item", items_of(w), start=axis("cluster" if choice.cluster > 1 else "block"),
                step=step, extent=count) as item:
        w.turn = w.let("turn", item // step, plan.most_turns) if plan.exchanges or plan.received or plan.lows else item // step
        tile, part = _tile_and_part(w, item)
        place = place_of(w, tile)
        first_row, first_column = place.first_row, place.first_column
        _declare_sums(w)
        group = axis("thread") // WARPGROUP if choice.warpgroups > 1 else number(0)
        own_row = first_row + group * choice.warpgroup_rows
        own_column = w.simplified(first_column + finisher(w) * choice.result_columns)
        fetch_values(w, group, own_row, own_column)
        _main_loop(w, group, place, part)
        if not choice.by_warps:
            w.emit(WarpgroupWait(0), *(ReleaseSlots(filling.ring) for filling in fillings_of(plan)))
        if plan.received is not None:
            receive_sums(w, w.turn)
        with w.when([Bound(axis("rank"), 0, choice.finishers)] if choice.finishers < choice.cluster_parts else []):
            _end_of_parts(w, tile, part, lambda: _end(w, group, first_row, own_column))


def _end_of_parts(w: ProductState, tile: Affine, part: Affine, end: Callable[[], None]) -> None:
    """The end of a tile: of parts that meet in the workspace, in the block that is the last to store its part."""
    if w.plan.choice.memory_parts == 1:
        end()
        return
    last = store_sums(w, tile, part)
    with w.nested() as finished:
        load_sums(w, tile)
        end()
    w.emit(IfValue(last, tuple(finished.statements), uniform=True))


def _tile_and_part(w: ProductState, item: Affine) -> tuple[Affine, Affine]:
    """The tile of an item, and the number of its part among those that meet in the workspace: neighbouring items are other tiles."""
    plan = w.plan
    if plan.choice.memory_parts == 1:
        return item, number(0)
    return w.let("tile", item % plan.num_tiles, plan.num_tiles), w.let("part", item // plan.num_tiles, plan.choice.memory_parts)


def _tiles_in_turn(w: ProductState) -> None:
    """The same, a tile for each warpgroup: its main loop when the warpgroup before has ended its own, results beside the next one's."""
    plan, choice = w.plan, w.plan.choice
    count, stride = plan.most_items, choice.num_clusters * choice.warpgroups
    with w.loop("first", items_of(w), start=axis("cluster" if choice.cluster > 1 else "block"), step=stride, extent=count) as first:
        w.turn = w.let("turn", first // stride, -(-count // stride)) if plan.exchanges else first // stride
        group = w.fresh("group")
        with w.nested() as turn:
            turn.extents |= {group: choice.warpgroups, "thread": WARPGROUP}
            item = first + axis(group) * choice.num_clusters
            place = place_of(w, w.let("tile", item, count))
            first_row, first_column = place.first_row, place.first_column
            _declare_sums(w)
            fetch_values(w, axis(group), first_row, first_column)
            _main_loop(w, number(0), place, number(0))
            end = len(turn.statements)
            w.emit(WarpgroupWait(0), *(ReleaseSlots(filling.ring) for filling in fillings_of(plan)))
            _end(w, axis(group), first_row, first_column)
        w.emit(EachWarpgroup(group, tuple(turn.statements[:end]), tuple(turn.statements[end:]),
                             (Bound(item, 0, count) if w.row_tiles is None else Bound(items_of(w) - item, 1, count + 1),)))


def _end(w: ProductState, group: Affine, first_row: Affine, first_column: Affine) -> None:
    """Rows that are reduced, then the results of a tile. group: the warpgroup's number."""
    part = number(0) if w.plan.choice.pingpong else group
    own_first_row = first_row + part * w.plan.choice.warpgroup_rows
    await_values(w, group)
    if w.form.reduced.stages:
        reduce_rows(w, row_tile(w, group, own_first_row, first_column))
    if w.form.tile_results:
        store_results(w, group, own_first_row, first_column)
    w.forget_rows()


def _declare_sums(w: ProductState) -> None:
    """The accumulators of a tile: an array for each product, or one for all of an instruction."""
    names, count = [p.node.name for p in w.form.products], w.plan.together
    arrays = [Reg(w.fresh(f"{name}_sum"), sum_dtype(w.form.left.dtype)) for name in (["_".join(names)] if count > 1 else names)]
    w.totals = tuple(arrays * count)
    w.emit(*(Declare(total.name, total.dtype, w.plan.sums * count) for total in arrays))


def _first_step(w: ProductState, part: Affine) -> Affine:
    """First step of the block's part of the inner axis. part: its number among those that meet in the workspace."""
    choice = w.plan.choice
    if choice.split == 1:
        return number(0)
    number_of = part * choice.cluster_parts + (axis("rank") if choice.cluster_parts > 1 else 0)
    return w.let("first_step", number_of * w.plan.fillings, choice.split * w.plan.fillings)


def _main_loop(w: ProductState, group: Affine, place: TilePlace, part: Affine) -> None:
    """Fills and multiplies. group: the warpgroup's part of the tile's rows; part: as of `_first_step`."""
    plan = w.plan
    choice = plan.choice
    fillings = fillings_of(plan)
    slot_by_key: dict[str, str] = {}
    used: tuple[Stmt, ...]
    first_step = _first_step(w, part)
    of_part = f"part of the inner axis, one of {choice.split}," if choice.split > 1 else "inner axis"
    w.emit(Comment(f"{', '.join('%' + n.name for n in plan.form.nodes)}: the {of_part} in {plan.fillings} steps"))
    accumulators = partial_sums(w) if plan.form.adds_partial_sums else w.totals
    lows = low_sums(w) if plan.form.splits_operands else ()
    expanding = ExpandedProducts(w, group, place.first_row)
    expanding.begin(first_step)
    with w.loop("step", number(0) + plan.fillings, extent=plan.fillings) as step:
        inner = (first_step + step) * choice.depth
        for filling in fillings:
            slot = w.fresh(f"{filling.ring}_slot")
            w.frame.extents[slot] = choice.slots
            slot_by_key |= dict.fromkeys((t.key for t in filling.tiles), slot)
            with w.nested() as produced:
                fill(w, filling, axis(slot), place.read_row, place.read_column, inner)
            w.emit(Produce(filling.ring, slot, tuple(produced.statements), filling.threads))
        held_slots = 1
        if any(t.expanded for t in plan.rights):
            held_slots = 0 if choice.by_warps else 1
            expanding.fetch(step)
            used = expanding.use(inner, step, {key: axis(slot) for key, slot in slot_by_key.items()})
        else:
            products = [_product(w, accumulator, tile, slot_by_key, group, number(0) if plan.form.adds_partial_sums else step)
                        for accumulator, tile in zip(accumulators, plan.rights, strict=True) if not tile.number_of]
            cleared = clear_neighbours(w, plan.left, axis(slot_by_key[plan.left.key]), group, inner)
            used = (*cleared, *products, WarpgroupWait(len(products)))
            if plan.form.splits_operands:
                used = split_step(w, products, lows, added(w, accumulators), step, slot_by_key, group)
            elif plan.form.has_block_scales:
                scales, sums = scaled_sums(w, accumulators, group, place, inner)
                held_slots, used = 0, (*products, *scales, WarpgroupWait(0), *sums)
            elif plan.form.adds_partial_sums:
                held_slots, used = 0, (*products, WarpgroupWait(0), *added(w, accumulators))
        for filling in reversed(fillings):
            used = (Consume(filling.ring, slot_by_key[filling.tiles[0].key], used, held_slots),)
        w.emit(*used)
    if plan.form.splits_operands:
        w.emit(WarpgroupWait(0))
        w.emit(*for_each_sum(w, finished_sum, accumulators, lows))


def _product(w: ProductState, total: Reg, own: OperandTile, slot_by_key: Mapping[str, str], group: Affine,
             step: Affine) -> WarpgroupProduct:
    """The product of a slot's tiles for one warpgroup. own: the tile that no other product has, or the first of those side by side."""
    choice = w.plan.choice
    left, right = (own, w.plan.left) if choice.swapped else (w.plan.left, own)
    rows = choice.warpgroup_rows
    first = group * (rows * left.width if left.operand.inner_is_contiguous else rows * left.depth)
    return WarpgroupProduct(
        total.name, w.slots[left.key].name, axis(slot_by_key[left.key]) * left.pitch + first, left.panel_lines * left.width,
        not left.operand.inner_is_contiguous, w.slots[right.key].name, axis(slot_by_key[right.key]) * right.pitch,
        right.panel_lines * right.width, right.operand.inner_is_contiguous, rows, choice.columns * own.beside, choice.depth,
        arithmetic=_arithmetic(left), term=step)


def _arithmetic(left: OperandTile) -> str:
    return "tf32" if left.operand.dtype == F32 else ""
