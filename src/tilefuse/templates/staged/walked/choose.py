"""Tiles of pipelined walks: every candidate that fits is priced by its work; the cheapest is taken."""
from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import TypeAlias

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.base.construction import replace
from tilefuse.base.search.limits import SEARCH
from tilefuse.domain.roofline import least_around_us, least_blocks_us, price_candidate, price_work
from tilefuse.domain.work import StageWork
from tilefuse.ir.layouts import Layouts
from tilefuse.kernel.pipeline import WARPGROUP_ROWS
from tilefuse.target.device import DeviceSpec
from tilefuse.target.warpgroup import MOST_COLUMNS
from tilefuse.templates.levels import boundary_work
from tilefuse.templates.staged.online.plan import padded
from tilefuse.templates.staged.search import Rank, broken_rule, cheapest, why_too_large
from tilefuse.templates.staged.walked.form import WalkForm
from tilefuse.templates.staged.walked.own_rows import CHUNK
from tilefuse.templates.staged.walked.plan import INSTRUCTION_INNER, PANEL, WalkPlan, consumer_registers, placed
from tilefuse.templates.staged.walked.record import PipelinedWalk
from tilefuse.templates.staged.walked.split.groups import heads_that_share, with_heads
from tilefuse.templates.staged.walked.split.parts import parts_are_filled, why_no_parts
from tilefuse.templates.staged.walked.walk_work import TurnScores, least_blocks_of, turn_of, turn_scores, with_work

# Why no tensor copies bring a tile; "" where they do. By the heads of a tile, and the tile's operand, lines and depth.
MapReasons: TypeAlias = dict[tuple[int, str, int, int], str]


def choose_walk(form: WalkForm, layouts: Layouts, device: DeviceSpec, fixed: PipelinedWalk | None = None) -> WalkPlan | Rejected:
    """The tiles whose work has the least price, or why there are none. fixed: tiles made by hand or by a tuner."""
    if device.kind != "cuda" or not device.capabilities.warpgroup_products:
        return Rejected(Reason.OTHER_TEMPLATE, f"{device.name} has no warpgroup products")
    if form.width > MOST_COLUMNS:
        return Rejected(Reason.REGISTERS, f"%{form.values.operand.value} has {form.width} columns, and registers hold {MOST_COLUMNS}")
    search = WalkSearch(form, layouts, device)
    return cheapest([fixed] if fixed is not None else candidates(form, layouts, device), search.least, search.ranked)


class WalkSearch:
    """Prices of one walk's choices. Those that differ in their bands alone, all of which divide the lead places, share their tiles."""

    def __init__(self, form: WalkForm, layouts: Layouts, device: DeviceSpec) -> None:
        self._form, self._layouts, self._device = form, layouts, device
        self._boundary = boundary_work(form.online.graph)
        self._boundary_parts = price_work(self._boundary, device)
        self._scores_by_heads: dict[int, TurnScores] = {}
        self._reasons: MapReasons = {}
        self._fitting: dict[PipelinedWalk, tuple[WalkPlan, StageWork] | Rejected] = {}

    def fitted(self, choice: PipelinedWalk) -> tuple[WalkPlan, StageWork] | Rejected:
        """The plan of a choice and one of its turns, or why there is none."""
        alike = replace(choice, band=1)
        if alike not in self._fitting:
            plan = fit_walk(self._form, self._layouts, choice, self._device, self._reasons)
            self._fitting[alike] = plan if isinstance(plan, Rejected) else (plan, turn_of(plan, self._scores(plan), self._device))
        of = self._fitting[alike]
        if isinstance(of, Rejected) or of[0].choice.band == choice.band:
            return of
        return replace(of[0], choice=replace(of[0].choice, band=choice.band)), of[1]

    def _scores(self, plan: WalkPlan) -> TurnScores:
        heads = plan.choice.heads
        if heads not in self._scores_by_heads:
            self._scores_by_heads[heads] = turn_scores(plan.form)
        return self._scores_by_heads[heads]

    def least(self, choice: PipelinedWalk) -> Rank | Rejected:
        """Bounds on the price of a choice and on the time of its blocks, or why it does not fit."""
        of = self.fitted(choice)
        if isinstance(of, Rejected):
            return of
        blocks_us = least_blocks_us(least_blocks_of(*of, self._device), self._device)
        return least_around_us(self._boundary_parts, blocks_us, self._device), blocks_us

    def ranked(self, choice: PipelinedWalk, _bound: Rank, _best: Rank | None) -> tuple[Rank, WalkPlan] | Rejected:
        """The price of a choice and its plan, or why it does not fit."""
        of = self.fitted(choice)
        if isinstance(of, Rejected):
            return of
        plan = with_work(*of, self._boundary, self._scores(of[0]), self._device)
        price = price_candidate(plan.work, self._device)
        return (price.us, price.arithmetic_us), plan


def candidates(form: WalkForm, layouts: Layouts, device: DeviceSpec) -> Iterator[PipelinedWalk]:
    """Every choice that is tried, those that do not fit among them."""
    online, columns = form.online, _columns(form)
    rings = SEARCH.pipelines.bias_slots if form.biases else (0,)
    for warpgroups, c, left_slots, bias_slots in product(range(1, SEARCH.pipelines.walk_warpgroups + 1), columns, (2, 1), rings):
        num_tiles = online.num_leads * -(-online.num_rows // (WARPGROUP_ROWS * warpgroups))
        blocks = min(num_tiles, device.num_multiprocessors)
        base = PipelinedWalk(c, warpgroups, left_slots, 1, 1, blocks, bias_slots=bias_slots)
        slots = _most_slots(placed(form, base, layouts), device)
        for band in _bands(form, device):
            yield replace(base, slots=slots, band=band)
    yield from walks_of_few_rows(form, layouts, device)


def walks_of_few_rows(form: WalkForm, layouts: Layouts, device: DeviceSpec) -> Iterator[PipelinedWalk]:
    """Walks with the heads of a group as rows of one tile, whose keys are then read once for all of them, however many tiles there are;
    and walks in parts, with and without such heads, where tiles leave multiprocessors idle."""
    online = form.online
    for warpgroups in range(1, SEARCH.pipelines.walk_warpgroups + 1):
        rows = WARPGROUP_ROWS * warpgroups
        shared = heads_that_share(form, rows // online.num_rows) if online.num_rows <= rows else 1
        if online.num_rows * shared <= rows - WARPGROUP_ROWS:
            # The last warpgroup would have no rows.
            break
        for heads in dict.fromkeys((1, shared)):
            grouped = with_heads(form, heads, rows)
            if isinstance(grouped, Rejected):
                continue
            for c in _columns(form):
                yield from _parts(grouped, layouts, PipelinedWalk(c, warpgroups, 1, 1, 1, 1, heads=heads), device)


def _parts(form: WalkForm, layouts: Layouts, base: PipelinedWalk, device: DeviceSpec) -> Iterator[PipelinedWalk]:
    """Numbers of parts, with as many slots as fit. form: with the heads of `base`."""
    online = form.online
    tiles, turns = online.num_leads * -(-online.num_rows // base.rows), -(-online.length // base.columns)
    for parts in _numbers_of_parts(tiles, 1 if why_no_parts(online) else turns, device):
        if parts == base.heads == 1:
            # Whole walks of single heads are other candidates.
            continue
        blocks = min(tiles * parts, device.num_multiprocessors)
        for left_slots in (2, 1) if tiles * parts > blocks else (1,):
            choice = replace(base, parts=parts, left_slots=left_slots, blocks=blocks)
            yield replace(choice, slots=_most_slots(placed(form, choice, layouts), device))


def _numbers_of_parts(tiles: int, turns: int, device: DeviceSpec) -> Iterator[int]:
    """Parts of each of some tiles: those whose blocks all run at once, and the most that a few rounds of persistent blocks take where these
    leave fewer multiprocessors idle.

        96 tiles, 132 multiprocessors     one round of 96 blocks leaves 36 idle     4 parts: three rounds, of which the last one has 120
    """
    multiprocessors, tried = device.num_multiprocessors, dict[int, float]()
    most = max(min(multiprocessors // tiles, turns), 1)
    halves = [most >> n for n in range(most.bit_length())]
    for limit in (*halves, *(min(n * multiprocessors // tiles, turns) for n in range(2, SEARCH.pipelines.part_rounds + 1))):
        # Fewer parts may have as many turns.
        parts = -(-turns // -(-turns // max(limit, 1)))
        busy_share = tiles * parts / (-(-tiles * parts // multiprocessors) * multiprocessors)
        if parts not in tried and (parts <= most or busy_share > max(tried.values())):
            tried[parts] = busy_share
            yield parts


def _most_slots(least: WalkPlan, device: DeviceSpec) -> int:
    """Slots of the walked operands' rings that fit. least: the plan with one."""
    room = device.shared_bytes_per_block - device.fitted.pipelined.barrier_bytes - least.shared_bytes
    return min(1 + room // (least.keys.slot_bytes + least.values.slot_bytes), SEARCH.pipelines.walk_slots)


def _columns(form: WalkForm) -> list[int]:
    """Columns a turn that are tried."""
    # Memory of the transposed values runs along the walked axis: in whole panels.
    step = PANEL if form.values.operand.inner_is_contiguous else INSTRUCTION_INNER
    if form.limit is not None and form.limit.is_of_blocks and form.online.length >= CHUNK:
        # Turns of other columns would be cut in the middle of the blocks that memory bounds.
        step = CHUNK
    longest = min(padded(form.online.length, step), MOST_COLUMNS)
    columns = sorted({min(c, longest) for c in range(2 * INSTRUCTION_INNER, MOST_COLUMNS + 1, INSTRUCTION_INNER) if c % step == 0})
    sizes = {of.pages.size for of in (form.keys, form.values) if of.pages is not None}
    # Turns of other columns would take parts of pages, each by a copy of its own.
    return [c for c in columns if all(c % size == 0 or size % c == 0 for size in sizes)] or columns


def _bands(form: WalkForm, device: DeviceSpec) -> tuple[int, ...]:
    """Lead places whose tiles are taken together, where tiles differ in length: one, all whose walked operands L2 holds, or all."""
    online = form.online
    if form.limit is None:
        return (1,)
    each = online.length * (form.inner + form.width) * form.keys.operand.dtype.itemsize
    share = int(device.l2_bytes * device.fitted.traffic.pending_l2_share)
    most = max(min(share // max(each, 1), online.num_leads), 1)
    return tuple(sorted({1, max(n for n in range(1, most + 1) if online.num_leads % n == 0), online.num_leads}))


def fit_walk(form: WalkForm, layouts: Layouts, choice: PipelinedWalk, device: DeviceSpec,
             reasons: MapReasons | None = None) -> WalkPlan | Rejected:
    """The plan of one choice without its work, or why there is none. form: of single heads. reasons: those of tiles that were asked for
    before."""
    grouped = with_heads(form, choice.heads, choice.rows)
    if isinstance(grouped, Rejected):
        return grouped
    form, online = grouped, grouped.online
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
             (choice.blocks >= 1, f"{choice.blocks} blocks"), *_part_rules(form, choice)))
    if broken is not None:
        return broken
    plan = placed(form, choice, layouts)
    too_large = _limit(plan, device, {} if reasons is None else reasons)
    return too_large or replace(plan, choice=replace(choice, blocks=min(choice.blocks, plan.num_items)))


def _part_rules(form: WalkForm, choice: PipelinedWalk) -> tuple[tuple[bool, str], ...]:
    """(whether it holds, the problem else) of each rule of walked axes in parts."""
    if choice.parts == 1:
        return ()
    why, turns = why_no_parts(form.online), -(-form.online.length // max(choice.columns, 1))
    return ((choice.parts > 1, f"a walked axis in {choice.parts} parts"), (not why, why),
            (choice.parts <= turns and (form.limit is not None or parts_are_filled(turns, max(choice.parts, 1))),
             f"{choice.parts} parts of {turns} turns: some would be empty"))


def _limit(plan: WalkPlan, device: DeviceSpec, reasons: MapReasons) -> Rejected | None:
    """Why a plan does not fit the device: tensor maps, registers, shared memory."""
    for of, tile in zip(plan.brought, plan.tiles, strict=True):
        key = plan.choice.heads, tile.key, tile.lines, tile.depth
        if key not in reasons:
            reasons[key] = "" if plan.is_loaded(tile) else plan.why_no_map(of, tile)
        if wrong := reasons[key]:
            return Rejected(Reason.UNSUPPORTED_OP, f"no tensor copies bring %{of.operand.value}: {wrong}")
    fitted = device.fitted.walks
    registers = plan.registers + plan.edge_registers + fitted.registers
    if plan.draws and plan.form.loads_columns:
        # Loads in flight and the generator have registers at one time.
        registers += plan.draw_words + fitted.draw_registers
    _, most = consumer_registers(plan, device)
    return why_too_large(registers, most, f"{plan.choice.columns} columns", plan.shared_bytes, device)
