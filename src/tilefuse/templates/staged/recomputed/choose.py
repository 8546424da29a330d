"""Tiles of walks between several products: every candidate that fits is priced by its work; the cheapest is taken."""
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
from tilefuse.templates.staged.recomputed.back_work import with_work
from tilefuse.templates.staged.recomputed.form import BackForm
from tilefuse.templates.staged.recomputed.plan import INSTRUCTION_INNER, BackPlan, placed
from tilefuse.templates.staged.recomputed.record import WalkedBack
from tilefuse.templates.staged.search import broken_rule, cheapest_plan, why_too_large
from tilefuse.templates.staged.walked.plan import PANEL


def choose_back(form: BackForm, layouts: Layouts, device: DeviceSpec, fixed: WalkedBack | None = None) -> BackPlan | Rejected:
    """The tiles whose work has the least price, or why there are none. fixed: tiles made by hand or by a tuner."""
    if device.kind != "cuda" or not device.capabilities.warpgroup_products:
        return Rejected(Reason.OTHER_TEMPLATE, f"{device.name} has no warpgroup products")
    if form.width > MOST_COLUMNS:
        return Rejected(Reason.REGISTERS, f"results of {form.width} columns, and registers hold {MOST_COLUMNS}")
    plan = _cheapest(form, layouts, device, fixed)
    # Turns that divide no segment reach over its end: then all columns are taken, and hidden ones are masked.
    return _cheapest(form.without_bounds, layouts, device, fixed) if isinstance(plan, Rejected) and form.segments > 1 else plan


def _cheapest(form: BackForm, layouts: Layouts, device: DeviceSpec, fixed: WalkedBack | None) -> BackPlan | Rejected:
    """The same for a form on a device that multiplies by warpgroups."""
    boundary = boundary_work(form.online.graph)

    def planned(choice: WalkedBack) -> BackPlan | Rejected:
        plan = fit_back(form, layouts, choice, device)
        return plan if isinstance(plan, Rejected) else with_work(plan, boundary, device)

    return cheapest_plan([fixed] if fixed is not None else candidates(form, layouts, device), planned, device)


def candidates(form: BackForm, layouts: Layouts, device: DeviceSpec) -> Iterator[WalkedBack]:
    """Every choice that is tried, those that do not fit among them."""
    online, step = form.online, _step(form)
    longest = min(padded(online.length, step), MOST_COLUMNS)
    columns = sorted({min(c, longest) for c in range(2 * INSTRUCTION_INNER, MOST_COLUMNS + 1, INSTRUCTION_INNER) if c % step == 0})
    rings = (True, False) if form.biases else (False,)
    for warpgroups, c, kept_slots, bias_ring in product(range(1, SEARCH.pipelines.walk_warpgroups + 1), columns, (2, 1), rings):
        num_tiles = online.num_leads * -(-online.num_rows // (WARPGROUP_ROWS * warpgroups))
        base = WalkedBack(c, warpgroups, kept_slots, 1, 1, min(num_tiles, device.num_multiprocessors), bias_ring)
        least = placed(form, base, layouts)
        if bias_ring and not least.biases:
            continue
        room = device.shared_bytes_per_block - device.fitted.pipelined.barrier_bytes - least.shared_bytes
        slots = min(1 + room // least.filling_bytes, SEARCH.pipelines.walk_slots)
        for band in _bands(form, device):
            yield replace(base, slots=slots, band=band)


def _step(form: BackForm) -> int:
    """Columns of a turn are a multiple of it: where memory runs along the walked axis, of whole panels."""
    return INSTRUCTION_INNER if all(of.operand.inner_is_contiguous for of in form.walked) else PANEL


def _bands(form: BackForm, device: DeviceSpec) -> tuple[int, ...]:
    """Lead places whose tiles are taken together, where tiles differ in length: one, all whose walked operands L2 holds, or all."""
    online = form.online
    if form.limit is None:
        return (1,)
    each = online.length * sum(of.operand.dtype.itemsize * online.scores[n].inner for n, of in enumerate(form.own))
    share = int(device.l2_bytes * device.fitted.traffic.pending_l2_share)
    most = max(min(share // max(each, 1), online.num_leads), 1)
    return tuple(sorted({1, max(n for n in range(1, most + 1) if online.num_leads % n == 0), online.num_leads}))


def fit_back(form: BackForm, layouts: Layouts, choice: WalkedBack, device: DeviceSpec) -> BackPlan | Rejected:
    """The plan of one choice without its work, or why there is none."""
    step = _step(form)
    broken = broken_rule((
             (choice.warpgroups >= 1 and choice.num_threads <= device.max_threads_per_block, f"{choice.warpgroups} warpgroups"),
             (0 < choice.columns <= MOST_COLUMNS and choice.columns % step == 0,
              f"{choice.columns} columns a turn are no multiple of {step} up to {MOST_COLUMNS}"),
             (form.segments == 1 or form.online.length // form.segments % choice.columns == 0,
              f"{choice.columns} columns a turn divide no segment of {form.online.length // form.segments}"),
             (choice.rows <= MOST_COLUMNS, f"{choice.rows} rows a tile, and a tensor copy brings {MOST_COLUMNS}"),
             (choice.kept_slots >= 1, f"{choice.kept_slots} slots of the rows' operands"),
             (choice.slots >= 2, f"{choice.slots} slots, and a filling in use needs another beside it"),
             (not choice.bias_ring or bool(form.biases), "a ring of biases, and no bias has rows and columns in memory"),
             (choice.band >= 1 and form.online.num_leads % choice.band == 0,
              f"a band of {choice.band} among {form.online.num_leads} lead places"),
             (choice.blocks >= 1, f"{choice.blocks} blocks")))
    if broken is not None:
        return broken
    plan = placed(form, choice, layouts)
    return _limit(plan, device) or replace(plan, choice=replace(choice, blocks=min(choice.blocks, plan.num_tiles)))


def _limit(plan: BackPlan, device: DeviceSpec) -> Rejected | None:
    """Why a plan does not fit the device: tensor maps, registers, shared memory."""
    for of, tile in zip(plan.brought, plan.tiles, strict=True):
        wrong = why_no_map_of(of.sizes, tile)
        if wrong:
            return Rejected(Reason.UNSUPPORTED_OP, f"no tensor copies bring %{of.operand.value}: {wrong}")
    fitted = device.fitted.walks
    registers = plan.registers + plan.edge_registers + fitted.registers + (fitted.draw_registers if plan.draws else 0)
    _, most = plan.choice.registers_of_roles(device.fitted.pipelined.copying_registers, device)
    return why_too_large(registers, most, f"{plan.choice.columns} columns", plan.shared_bytes, device)
