"""Chains of products as kernel IR.

    for each tile of rows:  for each product:  its left operand from the sums before | steps over the inner axis | results from the sums
"""
from __future__ import annotations

from collections.abc import Sequence, Set

from tilefuse.domain.contraction import COLUMN, INNER, ROW
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.affine import Affine, axis, number
from tilefuse.ir.dtype import F32
from tilefuse.ir.scalar import Bound
from tilefuse.kernel.ir import Comment, Declare, Kernel, Reg
from tilefuse.kernel.pipeline import WARPGROUP, Consume, Pipeline, Produce, ReleaseSlots, WarpgroupProduct, WarpgroupWait
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.staged.chain.fragments import left_operand
from tilefuse.templates.staged.chain.plan import DEPTH, LEFT_RING, ChainPlan, PlannedLayer
from tilefuse.templates.staged.chain.repeats import num_repeated
from tilefuse.templates.staged.chain.state import ChainState
from tilefuse.templates.staged.kernel_ends import finished_kernel, prefetch_settled
from tilefuse.templates.staged.pipelined.results import store_results


def compose_chain(program: TileProgram, device: DeviceSpec, settled: Set[str] = frozenset()) -> Kernel:
    """The kernel IR of a chain of products. settled: as of `KernelTemplate.compose`."""
    plan = program.internal
    assert isinstance(plan, ChainPlan)
    choice = plan.choice
    w = ChainState(program, plan, device)
    prefetch_settled(w, settled, program.launch.num_blocks, program.launch.num_threads)
    w.frame.extents |= {"block": choice.blocks, "thread": choice.consumer_threads}
    with w.nested() as roles:
        if plan.stays:
            _load_rights(w)
        _tiles(w)
        w.emit(*(ReleaseSlots(layer.ring) for layer in plan.layers if plan.stays))
    registers = choice.registers_of_roles(device.fitted.pipelined.copying_registers, device)
    pipeline = Pipeline(tuple(w.rings), tuple(roles.statements), choice.consumer_threads, *registers)
    shared_line = f"{plan.shared_bytes} bytes of shared memory; right operands {'stay' if plan.stays else 'come for each tile'}"
    slots = {b.name: b for b in w.slots.values()}
    return finished_kernel(program, device, (*w.buffers.values(), *slots.values(), *w.stages.values()), (*w.frame.statements, pipeline),
                           plan.shared_bytes, shared_line, 1, maps=tuple(w.maps.values()))


def _load_rights(w: ChainState) -> None:
    """All right operands, once: their slots stay full until the block ends."""
    for layer in w.chain.layers:
        w.take(layer.plan)
        with w.loop("step", layer.fillings) as step:
            slot = _produce_right(w, layer, step)
            w.emit(Consume(layer.ring, slot, (), held_slots=layer.fillings))


def _produce_right(w: ChainState, layer: PlannedLayer, step: Affine) -> str:
    """The right operand's tile of one filling; the name of its slot."""
    return _produce_one_right(w, (layer,), number(0), step)


def _produce_one_right(w: ChainState, alike: Sequence[PlannedLayer], number_alike: Affine, step: Affine) -> str:
    """The same of the layer with that number among those that are alike."""
    slot = w.fresh("slot")
    w.frame.extents[slot] = w.chain.choice.slots or alike[0].fillings
    with w.nested() as produced:
        for n, layer in enumerate(alike):
            w.take(layer.plan)
            with w.when((Bound(number_alike, n, n + 1),)):
                w.copy(layer.right, axis(slot), {COLUMN: number(0), INNER: step * DEPTH})
    w.emit(Produce(alike[0].ring, slot, tuple(produced.statements)))
    return slot


def _tiles(w: ChainState) -> None:
    """The tiles of a block, one after another, each through all products."""
    plan, form = w.chain, w.chain.form.first
    with w.loop("tile", number(plan.num_tiles), start=axis("block"), step=plan.choice.blocks, extent=plan.num_tiles) as tile:
        lead, stride = tile // plan.row_tiles if form.num_leads > 1 else number(0), form.num_leads
        for a in form.leads:
            stride //= form.extents[a]
            w.env[a] = w.let(a, lead // stride % form.extents[a], form.extents[a])
        row_tile = w.let("row_tile", tile % plan.row_tiles if form.num_leads > 1 else tile, plan.row_tiles)
        first_row = row_tile * plan.choice.rows
        # One array for all products: waits for products settle every array in scope, and would keep earlier sums alive.
        total = Reg(w.fresh("sum"), F32)
        w.totals = (total,)
        w.emit(Declare(total.name, F32, plan.sums))
        first = plan.layers[0]
        w.take(first.plan)
        _announce(w, first)
        _first_product(w, first, total.name, first_row)
        _store(w, first, first_row)
        at = 1
        while at < len(plan.layers):
            alike = plan.layers[at:at + num_repeated(plan, at)]
            with w.loop("layer", len(alike), rolled=True) as number_alike:
                lefts = left_operand(w, plan.layers[at - 1], first_row)
                for layer in alike:
                    w.take(layer.plan)
                    _announce(w, layer)
                _held_product(w, alike, number_alike, total.name, lefts)
            at += len(alike)
            _store(w, alike[-1], first_row)


def _announce(w: ChainState, layer: PlannedLayer) -> None:
    w.emit(Comment(f"%{w.form.product.name}: the inner axis in {layer.fillings} steps"))


def _store(w: ChainState, layer: PlannedLayer, first_row: Affine) -> None:
    """The results that a layer's sums give."""
    if layer.results is not None:
        w.take(layer.results)
        store_results(w, _group(w), first_row + _group(w) * w.chain.rows, number(0))


def _group(w: ChainState) -> Affine:
    """The warpgroup's number."""
    return axis("thread") // WARPGROUP if w.chain.choice.warpgroups > 1 else number(0)


def _first_product(w: ChainState, layer: PlannedLayer, total: str, first_row: Affine) -> None:
    """The product whose left operand comes through a ring."""
    plan = w.chain
    left, right = plan.left, layer.right
    with w.loop("step", layer.fillings) as step:
        slot = w.fresh("left_slot")
        w.frame.extents[slot] = plan.choice.left_slots
        with w.nested() as produced:
            w.copy(left, axis(slot), {ROW: first_row, INNER: step * DEPTH})
        w.emit(Produce(LEFT_RING, slot, tuple(produced.statements)))
        at = step if plan.stays else axis(_produce_right(w, layer, step))
        first = _group(w) * (plan.rows * left.width if left.operand.inner_is_contiguous else plan.rows * left.depth)
        product = WarpgroupProduct(
            total, w.slots[left.key].name, axis(slot) * left.elements + first, left.panel_lines * left.width,
            not left.operand.inner_is_contiguous, w.slots[right.key].name, at * right.elements, right.panel_lines * right.width,
            right.operand.inner_is_contiguous, plan.rows, layer.columns, DEPTH, term=step)
        body = (product, WarpgroupWait(1))
        w.emit(Consume(LEFT_RING, slot, body if plan.stays else (Consume(layer.ring, str(at), body, held_slots=1),), held_slots=1))
    w.emit(WarpgroupWait(0), ReleaseSlots(LEFT_RING), *(() if plan.stays else (ReleaseSlots(layer.ring),)))


def _held_product(w: ChainState, alike: Sequence[PlannedLayer], number_alike: Affine, total: str, lefts: list[str]) -> None:
    """A product whose left operand is in registers; of layers that are alike, the one with that number."""
    plan, layer = w.chain, alike[0]
    for n, left in enumerate(lefts):
        at = number(n) if plan.stays else axis(_produce_one_right(w, alike, number_alike, number(n)))
        right = layer.right
        product = WarpgroupProduct(
            total, left, number(0), 0, False, w.slots[right.key].name, at * right.elements, right.panel_lines * right.width,
            right.operand.inner_is_contiguous, plan.rows, layer.columns, layer.depth(n), left_registers=True, term=number(n))
        if plan.stays:
            w.emit(product)
        else:
            w.emit(Consume(layer.ring, str(at), (product, WarpgroupWait(1)), held_slots=1))
    w.emit(WarpgroupWait(0), *(() if plan.stays else (ReleaseSlots(layer.ring),)))
