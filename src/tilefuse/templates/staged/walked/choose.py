"""Tiles of pipelined walks: every candidate that fits is priced by its work; the cheapest is taken."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.base.search.limits import SEARCH
from tilefuse.ir.layouts import Layouts
from tilefuse.kernel.pipeline import WARPGROUP_ROWS
from tilefuse.target.device import DeviceSpec
from tilefuse.target.warpgroup import MOST_COLUMNS
from tilefuse.templates.levels import boundary_work
from tilefuse.templates.staged.online.plan import padded
from tilefuse.templates.staged.pipelined.plan import why_no_map_of
from tilefuse.templates.staged.search import broken_rule, cheapest_plan
from tilefuse.templates.staged.walked.form import WalkForm
from tilefuse.templates.staged.walked.plan import INSTRUCTION_INNER, PANEL, WalkPlan, consumer_registers, placed
from tilefuse.templates.staged.walked.record import PipelinedWalk
from tilefuse.templates.staged.walked.walk_work import turn_scores, with_work


def choose_walk(form: WalkForm, layouts: Layouts, device: DeviceSpec, fixed: PipelinedWalk | None = None) -> WalkPlan | Rejected:
    """The tiles whose work has the least price, or why there are none. fixed: tiles made by hand or by a tuner."""
    if device.kind != "cuda" or not device.capabilities.warpgroup_products:
        return Rejected(Reason.OTHER_TEMPLATE, f"{device.name} has no warpgroup products")
    if form.width > MOST_COLUMNS:
        return Rejected(Reason.REGISTERS, f"%{form.values.operand.value} has {form.width} columns, and registers hold {MOST_COLUMNS}")
    boundary, scores = boundary_work(form.online.graph), turn_scores(form)

    def planned(choice: PipelinedWalk) -> WalkPlan | Rejected:
        plan = fit_walk(form, layouts, choice, device)
        return plan if isinstance(plan, Rejected) else with_work(plan, boundary, scores, device)

    return cheapest_plan([fixed] if fixed is not None else candidates(form, layouts, device), planned, device)


def candidates(form: WalkForm, layouts: Layouts, device: DeviceSpec) -> Iterator[PipelinedWalk]:
    """Every choice that is tried, those that do not fit among them."""
    online = form.online
    # Memory of the transposed values runs along the walked axis: in whole panels.
    step = PANEL if form.values.operand.inner_is_contiguous else INSTRUCTION_INNER
    longest = min(padded(online.length, step), MOST_COLUMNS)
    columns = sorted({min(c, longest) for c in range(2 * INSTRUCTION_INNER, MOST_COLUMNS + 1, INSTRUCTION_INNER) if c % step == 0})
    rings = SEARCH.pipelines.bias_slots if form.biases else (0,)
    for warpgroups, c, left_slots, bias_slots in product(range(1, SEARCH.pipelines.walk_warpgroups + 1), columns, (2, 1), rings):
        num_tiles = online.num_leads * -(-online.num_rows // (WARPGROUP_ROWS * warpgroups))
        blocks = min(num_tiles, device.num_multiprocessors)
        base = PipelinedWalk(c, warpgroups, left_slots, 1, 1, blocks, bias_slots=bias_slots)
        least = placed(form, base, layouts)
        each = least.keys.slot_bytes + least.values.slot_bytes
        room = device.shared_bytes_per_block - device.fitted.pipelined.barrier_bytes - least.shared_bytes
        slots = min(1 + room // each, SEARCH.pipelines.walk_slots)
        for band in _bands(form, device):
            yield replace(base, slots=slots, band=band)


def _bands(form: WalkForm, device: DeviceSpec) -> tuple[int, ...]:
    """Lead places whose tiles are taken together, where tiles differ in length: one, all whose walked operands L2 holds, or all."""
    online = form.online
    if form.limit is None:
        return (1,)
    each = online.length * (form.inner + form.width) * form.keys.operand.dtype.itemsize
    share = int(device.l2_bytes * device.fitted.traffic.pending_l2_share)
    most = max(min(share // max(each, 1), online.num_leads), 1)
    return tuple(sorted({1, max(n for n in range(1, most + 1) if online.num_leads % n == 0), online.num_leads}))


def fit_walk(form: WalkForm, layouts: Layouts, choice: PipelinedWalk, device: DeviceSpec) -> WalkPlan | Rejected:
    """The plan of one choice without its work, or why there is none."""
    online = form.online
    step = PANEL if form.values.operand.inner_is_contiguous else INSTRUCTION_INNER
    broken = broken_rule((
             (choice.warpgroups >= 1 and choice.num_threads <= device.max_threads_per_block, f"{choice.warpgroups} warpgroups"),
             (0 < choice.columns <= MOST_COLUMNS and choice.columns % step == 0,
              f"{choice.columns} columns a turn are no multiple of {step} up to {MOST_COLUMNS}"),
             (choice.rows <= MOST_COLUMNS, f"{choice.rows} rows a tile, and a tensor copy brings {MOST_COLUMNS}"),
             (choice.left_slots >= 1, f"{choice.left_slots} slots of the left operand"),
             (choice.slots >= 2, f"{choice.slots} slots, and a filling in use needs another beside it"),
             (choice.band >= 1 and online.num_leads % choice.band == 0, f"a band of {choice.band} among {online.num_leads} lead places"),
             (not choice.in_turn or choice.warpgroups > 1, "warpgroups in turn, and there is one"),
             (choice.bias_slots >= 0 and (not choice.bias_slots or bool(form.biases)), f"{choice.bias_slots} slots of biases"),
             (choice.blocks >= 1, f"{choice.blocks} blocks")))
    if broken is not None:
        return broken
    plan = placed(form, choice, layouts)
    return _limit(plan, device) or replace(plan, choice=replace(choice, blocks=min(choice.blocks, plan.num_tiles)))


def _limit(plan: WalkPlan, device: DeviceSpec) -> Rejected | None:
    """Why a plan does not fit the device: tensor maps, registers, shared memory."""
    for of, tile in zip(plan.brought, plan.tiles, strict=True):
        wrong = "" if plan.is_loaded(tile) else why_no_map_of(of.sizes, tile)
        if wrong:
            return Rejected(Reason.UNSUPPORTED_OP, f"no tensor copies bring %{of.operand.value}: {wrong}")
    registers = plan.registers + device.fitted.walks.registers
    _, most = consumer_registers(plan, device)
    if registers > min(most, device.max_registers_per_thread):
        return Rejected(Reason.REGISTERS, f"about {registers} registers a thread for {plan.choice.columns} columns, and {most} are left")
    if plan.shared_bytes + device.fitted.pipelined.barrier_bytes > device.shared_bytes_per_block:
        return Rejected(Reason.SHARED_MEMORY, f"{plan.shared_bytes} bytes of slots, at most {device.shared_bytes_per_block}")
    return None
