"""Tiles of pipelined products: candidates that fit, by the time of their blocks; the fastest is taken."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import isqrt

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.base.search.limits import SEARCH
from tilefuse.domain.contraction import ROW, SPLIT, any_contraction_of, warpgroup_arithmetic
from tilefuse.domain.roofline import blocks_us, powered_us, price_work
from tilefuse.ir.graph import Graph, Node
from tilefuse.kernel.pipeline import SWIZZLE_LINE_BYTES, SWIZZLE_ROWS, WARPGROUP_ROWS, panel_width
from tilefuse.target.device import DeviceSpec
from tilefuse.target.warpgroup import MOST_COLUMNS, TURNED_BITS
from tilefuse.templates.levels import boundary_work
from tilefuse.templates.request import Price
from tilefuse.templates.staged.pipelined.bounds.least_time import LeastTimes
from tilefuse.templates.staged.pipelined.exact.block_scales import SLOT_INNER, scaled_contraction
from tilefuse.templates.staged.pipelined.form import ProductForm, form_for
from tilefuse.templates.staged.pipelined.operand import runs_along_inner
from tilefuse.templates.staged.pipelined.operands import registers_of_roles
from tilefuse.templates.staged.pipelined.plan import ProductPlan, placed, row_tiles_of, shared_room, why_no_copies
from tilefuse.templates.staged.pipelined.product_work import with_work
from tilefuse.templates.staged.pipelined.record import Pipelined
from tilefuse.templates.staged.pipelined.split.shapes import split_rules, split_shapes
from tilefuse.templates.staged.pipelined.stages import STAGE_COLUMNS, STAGES
from tilefuse.templates.staged.pipelined.swapped.shapes import column_step, swapped_shapes
from tilefuse.templates.staged.pipelined.swapped.stream_work import IN_USE
from tilefuse.templates.staged.pipelined.thread_work import result_operations
from tilefuse.templates.staged.search import Rank, broken_rule, cheapest

# `contraction.Tiling.arithmetic` of the products that warpgroup instructions compute: operands of 16 and of 8 bits, tf32, and
# f32 as three products of tf32.
ARITHMETIC = ("", "tf32", SPLIT)


def choose_product(form: ProductForm, device: DeviceSpec, wanted: Pipelined | None = None,
                   ceiling: Price | None = None) -> ProductPlan | Rejected:
    """The tiles of the least price, or why there are none. wanted: tiles made by hand or by a tuner. ceiling: as of `cheapest`."""
    refused = _refusal(form, device)
    if refused is not None:
        return refused
    search = _Search(form, device, wanted is None)
    return cheapest([wanted] if wanted is not None else _shapes(form, device), search.least, search.ranked, ceiling)


def is_cheaper_unscattered(form: ProductForm, device: DeviceSpec) -> bool:
    """Whether the product has a plan that is cheaper than all plans with scattered clusters. Cost: less than that of the cheapest plan."""
    if _refusal(form, device) is not None:
        return False
    search = _Search(form, device, True)
    plan = cheapest(_shapes(form, device), search.least, search.ranked, decisive=lambda shape: shape.scattered)
    return not isinstance(plan, Rejected) and not plan.choice.scattered


class _Search:
    """Prices of one product's choices. free: whether the search decides the slots."""

    def __init__(self, form: ProductForm, device: DeviceSpec, free: bool) -> None:
        self._device, self._free, self._boundary = device, free, boundary_work(form.graph)
        self._forms, self._flops = tuple(form_for(form, swapped) for swapped in (False, True)), result_operations(form, device)
        boundary = price_work(self._boundary, device)
        self._bounds = tuple(LeastTimes(f, self._flops, boundary, device) for f in self._forms)

    def least(self, shape: Pipelined) -> Rank:
        """Bounds on a choice's rank."""
        return self._bounds[shape.swapped].of(shape)

    def ranked(self, shape: Pipelined, bound: Rank, _best: Rank | None) -> tuple[Rank, ProductPlan] | Rejected | None:
        """A choice's rank and plan; None where its slots fill nothing ahead of the products."""
        turned, device, choice = self._forms[shape.swapped], self._device, shape
        if self._free:
            room = shared_room(shape, device) // self._bounds[shape.swapped].slot_bytes(shape)
            if room <= IN_USE and not _fills_ahead(turned, shape):
                return None
            choice = _with_slots(turned, shape, device)
            if not _fills_ahead(turned, choice):
                return None
        plan = _fit(turned, choice, device)
        if isinstance(plan, Rejected):
            return plan
        plan = with_work(plan, self._boundary, self._flops, device)
        # Where memory decides, the tile whose blocks and whose energy take least; of tiles that are alike, the one whose products do.
        beside = powered_us(sum(blocks_us(b, device) for b in plan.work.blocks), plan.work.energy_pj, device)
        return (price_work(plan.work, device).us, beside, *bound[2:]), plan


def _refusal(form: ProductForm, device: DeviceSpec) -> Rejected | None:
    """Why no tile of the product can be computed by warpgroup instructions."""
    left = form.left
    for p in form.products:
        if warpgroup_arithmetic(p.contraction, left.dtype, p.right.dtype) not in ARITHMETIC:
            return Rejected(Reason.UNSUPPORTED_OP, f"%{p.node.name} of {left.dtype} and {p.right.dtype} has no warpgroup instruction")
    if form.num_groups and form.windows[ROW] != form.extents[ROW]:
        return Rejected(Reason.UNSUPPORTED_OP, f"results have {form.windows[ROW]} of {form.extents[ROW]} rows of "
                                               f"%{form.product.name}, a grouped product")
    if form.num_groups and form.reduced.stages:
        return Rejected(Reason.UNSUPPORTED_OP, f"rows of %{form.product.name}, a grouped product, are reduced")
    if not (form.num_leads and form.rows and form.columns and form.inner):
        return Rejected(Reason.DOMAIN_MISMATCH, f"%{form.product.name} is empty")
    widest = MOST_COLUMNS * device.max_cluster_blocks
    if form.reduced.stages and form.row_width > widest:
        return Rejected(Reason.SHARED_MEMORY, f"rows of {form.row_width} columns, and the blocks of a cluster hold {widest} at most")
    across = next((o for o in form.operands if not o.inner_is_contiguous), None)
    if across is not None and left.dtype.bits != TURNED_BITS:
        return Rejected(Reason.UNSUPPORTED_OP, f"%{across.value}, an operand of %{form.product.name} in {across.dtype}, is not contiguous "
                                               "along the inner axis")
    if device.kind != "cuda" or not device.capabilities.warpgroup_products:
        return Rejected(Reason.OTHER_TEMPLATE, f"{device.name} has no warpgroup products")
    return None


def may_be_pipelined(node: Node, graph: Graph, device: DeviceSpec) -> bool:
    """Whether warpgroup instructions multiply the operands of a node, as far as its types and the order of axes in memory tell."""
    contraction = any_contraction_of(node, graph)
    if contraction is None or not device.capabilities.warpgroup_products:
        return False
    if scaled_contraction(graph, contraction, node.type.shape) is not None:
        return True
    left, right = (graph.type_of(v).dtype for v in (contraction.left, contraction.right))
    if left.bits != TURNED_BITS and not all(runs_along_inner(graph, contraction, side) for side in ("left", "right")):
        return False
    return warpgroup_arithmetic(contraction, left, right) in ARITHMETIC


def candidates(form: ProductForm, device: DeviceSpec) -> Iterator[Pipelined]:
    """Every choice that may be tried, those that do not fit among them."""
    for shape in _shapes(form, device):
        turned = form_for(form, shape.swapped)
        choice = _with_slots(turned, shape, device)
        if _fills_ahead(turned, choice):
            yield choice


def _fills_ahead(form: ProductForm, choice: Pipelined) -> bool:
    """Whether a slot is filled ahead of the products. Tiles of one panel in a slot and whole inner axes may do without."""
    return choice.slots > IN_USE or choice.split == 1 and choice.depth == panel_width(SWIZZLE_LINE_BYTES, form.left.dtype.itemsize)


def _shapes(form: ProductForm, device: DeviceSpec) -> Iterator[Pipelined]:
    """The same with one slot each."""
    if not form.num_groups and not form.down.points:
        yield from swapped_shapes(form_for(form, True), device)
    form = form_for(form, False)
    depth = panel_width(SWIZZLE_LINE_BYTES, form.left.dtype.itemsize)
    forms = [(warpgroups, False) for warpgroups in range(1, SEARCH.pipelines.warpgroups + 1)] + [(SEARCH.pipelines.warpgroups, True)]
    for warpgroups, pingpong in forms:
        for rows, columns in SEARCH.pipelines.warpgroup_tiles:
            tall = rows if pingpong else rows * warpgroups
            cluster = _cluster(form, columns, device)
            if cluster is None or pingpong and form.splits_operands:
                continue
            row_tiles = row_tiles_of(form, tall)
            if cluster > 1:
                groups = -(-form.columns // form.row_width)
                items, band = form.num_leads * row_tiles * groups, _band(row_tiles) if groups > 1 else 1
                for scattered, most in ((False, device.clusters_at_once(cluster)), (True, device.num_multiprocessors // cluster)):
                    yield Pipelined(tall, columns, depth, 1, warpgroups, band, min(items, most) * cluster, pingpong, cluster,
                                    scattered=scattered)
                continue
            tiles = form.num_leads * row_tiles * -(-form.columns // columns)
            for panels in (1,) if pingpong or form.has_block_scales else SEARCH.pipelines.panels:
                band = _group_band(row_tiles, tall, columns, pingpong, device) if form.num_groups else _band(row_tiles)
                whole = Pipelined(tall, columns, panels * depth, 1, warpgroups, band, min(tiles, device.num_multiprocessors), pingpong)
                yield whole
                if not pingpong and not form.reduced.stages and not form.num_groups and not form.down.points:
                    yield from split_shapes(form.inner, whole, tiles, device)


def _with_slots(form: ProductForm, shape: Pipelined, device: DeviceSpec) -> Pipelined:
    """The choice with as many slots as shared memory holds: beside a second stage of each result, unless that leaves two slots, of which
    none is filled ahead of the products."""
    slots = 0
    for stages in range(STAGES, 0, -1):
        least = placed(form, shape, stages)
        slots = _most_slots(least, device)
        if slots > IN_USE or not least.staged:
            break
    return shape.with_slots(slots)


def _most_slots(plan: ProductPlan, device: DeviceSpec) -> int:
    """Slots that shared memory holds beside the stages of a plan."""
    room = shared_room(plan.choice, device) - plan.beside_bytes
    most = SEARCH.pipelines.swapped_slots if plan.choice.swapped else SEARCH.pipelines.slots
    return min(room // sum(t.slot_bytes for t in plan.operands), most)


def _cluster(form: ProductForm, columns: int, device: DeviceSpec) -> int | None:
    """Blocks that hold whole rows together, each `columns` columns; None for more than a cluster has. One where nothing reduces rows."""
    if not form.reduced.stages:
        return 1
    size = -(-form.row_width // columns)
    return size if size <= device.max_cluster_blocks and (not form.reduced.width or size * columns == form.reduced.width) else None


def _is_shared(form: ProductForm, choice: Pipelined) -> bool:
    """Whether the blocks of a cluster can bring parts of the left operand's tiles by tensor copies: whole repetitions of the swizzle."""
    left = placed(form, choice).left
    return choice.cluster_columns > 1 and left.panel_lines % (choice.cluster * SWIZZLE_ROWS) == 0 and not why_no_copies(form, left)


def _expands_all(form: ProductForm, choice: Pipelined) -> bool:
    """Whether consumers expand every left operand of the instructions, beside lines that lie along the inner axis."""
    plan = placed(form, choice)
    return choice.swapped and plan.left.operand.inner_is_contiguous and all(t.expanded is not None for t in plan.rights)


def _group_band(row_tiles: int, rows: int, columns: int, pingpong: bool, device: DeviceSpec) -> int:
    """Row tiles of a band of groups, whose last band may be lower: tiles at work have about as many rows as columns, so that they read the
    least operands."""
    at_work = device.num_multiprocessors * (SEARCH.pipelines.warpgroups if pingpong else 1)
    return max(min(row_tiles, isqrt(at_work * columns // rows)), 1)


def _band(row_tiles: int) -> int:
    return max(b for b in range(1, min(row_tiles, SEARCH.pipelines.band) + 1) if row_tiles % b == 0)


def _fit(form: ProductForm, choice: Pipelined, device: DeviceSpec) -> ProductPlan | Rejected:
    width, step = panel_width(SWIZZLE_LINE_BYTES, form.left.dtype.itemsize), column_step(form)
    sharing = 1 if choice.pingpong else choice.warpgroups
    broken = broken_rule((
             (choice.warpgroups >= 1 and choice.rows % (WARPGROUP_ROWS * sharing) == 0 and choice.rows > 0,
              f"{choice.rows} rows are no multiple of {WARPGROUP_ROWS} for each of {sharing} warpgroups"),
             (0 < choice.columns <= MOST_COLUMNS and choice.columns % step == 0,
              f"{choice.columns} columns are no multiple of {step} up to {MOST_COLUMNS}"),
             (not form.down.points or not choice.swapped and choice.split == 1 and choice.columns % STAGE_COLUMNS == 0,
              f"column sums are of {STAGE_COLUMNS} columns of tiles in the products' own order, whose inner axis is whole"),
             (not choice.swapped or not form.reduced.stages, "rows that are reduced are the columns of swapped operands"),
             (choice.depth > 0 and choice.depth % width == 0, f"{choice.depth} inner elements are no multiple of {width}"),
             (not form.has_block_scales or choice.depth == SLOT_INNER,
              f"{choice.depth} inner elements in a slot, and scales are those of {SLOT_INNER}"),
             (choice.slots >= 2, f"{choice.slots} slots, and a filling in use needs another beside it"),
             (choice.blocks >= 1, f"{choice.blocks} blocks"),
             (1 <= choice.cluster <= (device.num_multiprocessors if choice.scattered else device.max_cluster_blocks),
              f"clusters of {choice.cluster} blocks, and those of {device.name} have {device.max_cluster_blocks} at most"),
             (choice.blocks % choice.cluster == 0, f"{choice.blocks} blocks are no whole clusters of {choice.cluster}"),
             (not form.num_groups or not choice.swapped and choice.split == 1 and choice.cluster == 1,
              "rows of groups in swapped operands, parts of the inner axis or clusters"),
             *split_rules(form, choice),
             (choice.slots > IN_USE or not form.splits_operands, f"{choice.slots} slots, of which products read {IN_USE}"),
             (not (choice.pingpong and form.splits_operands), "warpgroups that take turns would write the low parts of operands that the "
                                                              "other's products still read"),
             (choice.cluster_columns * choice.columns >= form.row_width if form.reduced.stages else choice.cluster_columns == 1,
              f"clusters of {choice.cluster} tiles of {choice.columns} columns for rows of {form.row_width}"
              f"{'' if form.reduced.stages else ' that nothing reduces'}"),
             (not form.reduced.width or choice.cluster * choice.columns == form.reduced.width,
              f"clusters of {choice.cluster} tiles of {choice.columns} columns for groups of {form.reduced.width}"),
             (not choice.multicast or _is_shared(form, choice), f"blocks of clusters of {choice.cluster} bring no equal parts of left "
              f"tiles of {choice.rows} x {choice.depth}"),
             (not choice.scattered or choice.cluster_columns > 1 and not choice.multicast,
              f"scattered clusters of {choice.cluster} blocks, which exchange parts of rows alone"),
             (not choice.by_warps or _expands_all(form, choice),
              "single warps multiply only left operands that consumers expand, of products whose operands are swapped"),
             # The slots and accumulators of a block leave no place for another beside it.
             (not choice.scattered or choice.blocks <= device.num_multiprocessors,
              f"{choice.blocks} blocks that wait for each other, and {device.name} runs {device.num_multiprocessors} at once"),
             (choice.resident >= 1 and (choice.resident == 1 or not choice.scattered),
              f"{choice.resident} blocks at once on a multiprocessor"),
             (choice.num_threads <= device.max_threads_per_block, f"{choice.num_threads} threads a block")))
    if broken is not None:
        return broken
    room = shared_room(choice, device)
    plan = placed(form, choice)
    if plan.shared_bytes > room:
        plan = placed(form, choice, 1)
    if choice.band < 1 or plan.row_tiles % choice.band and not form.num_groups:
        return Rejected(Reason.ILLEGAL_TEMPLATE, f"{plan.row_tiles} tiles of rows are no whole bands of {choice.band}")
    registers = plan.registers + device.fitted.pipelined.registers
    if registers > min(device.max_registers_per_thread, registers_of_roles(plan, device)[1]):
        return Rejected(Reason.REGISTERS, f"about {registers} registers a thread for tiles of {choice.rows} x {choice.columns}"
                                           + (f" of {len(form.products)} products" if len(form.products) > 1 else ""))
    if plan.shared_bytes > room:
        return Rejected(Reason.SHARED_MEMORY, f"{plan.shared_bytes} bytes of slots, at most {room}")
    most = plan.most_items * choice.cluster
    return plan if choice.blocks <= most else placed(form, replace(choice, blocks=most), plan.stages)

