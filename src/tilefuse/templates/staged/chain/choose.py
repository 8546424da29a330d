"""Tiles of chains of products: every candidate that fits is priced by its work; the cheapest is taken."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.base.search.limits import SEARCH
from tilefuse.domain.contraction import contraction_of, matrix_arithmetic
from tilefuse.ir.graph import Graph, Node
from tilefuse.kernel.pipeline import WARPGROUP_ROWS
from tilefuse.target.capabilities import MMA_COLUMNS
from tilefuse.target.device import DeviceSpec
from tilefuse.target.warpgroup import MOST_COLUMNS
from tilefuse.templates.levels import boundary_work
from tilefuse.templates.staged.chain.chain_work import with_work
from tilefuse.templates.staged.chain.form import NARROW, ChainForm
from tilefuse.templates.staged.chain.plan import INSTRUCTION_INNER, ChainPlan, placed
from tilefuse.templates.staged.chain.record import ProductChain
from tilefuse.templates.staged.online.plan import padded
from tilefuse.templates.staged.pipelined.plan import why_no_copies
from tilefuse.templates.staged.pipelined.stages import STAGE_COLUMNS
from tilefuse.templates.staged.search import broken_rule, cheapest_plan, why_too_large

MOST_ROWS = SEARCH.pipelines.chain_row_tiles * WARPGROUP_ROWS


def choose_chain(form: ChainForm, device: DeviceSpec, fixed: ProductChain | None = None) -> ChainPlan | Rejected:
    """The tiles whose work has the least price, or why there are none. fixed: tiles made by hand or by a tuner."""
    refused = _refusal(form, device)
    if refused is not None:
        return refused
    boundary = boundary_work(form.graph)

    def planned(choice: ProductChain) -> ChainPlan | Rejected:
        plan = _fit(form, choice, device)
        return plan if isinstance(plan, Rejected) else with_work(plan, boundary, device)

    return cheapest_plan([fixed] if fixed is not None else candidates(form, device), planned, device)


def _refusal(form: ChainForm, device: DeviceSpec) -> Rejected | None:
    """Why no tile of the chain can be computed by warpgroup instructions."""
    if device.kind != "cuda" or not device.capabilities.warpgroup_products:
        return Rejected(Reason.OTHER_TEMPLATE, f"{device.name} has no warpgroup products")
    for layer in form.layers:
        if layer.columns > MOST_COLUMNS:
            return Rejected(Reason.REGISTERS, f"%{layer.form.product.name} has {layer.columns} columns, and registers hold {MOST_COLUMNS}")
    if not (form.first.num_leads and form.rows and all(layer.columns and layer.form.inner for layer in form.layers)):
        return Rejected(Reason.DOMAIN_MISMATCH, f"%{form.first.product.name} is empty")
    return None


def may_be_chained(node: Node, graph: Graph, device: DeviceSpec) -> bool:
    """Whether warpgroup instructions multiply the operands of a node and hold its rows of sums, as far as its types tell."""
    contraction = contraction_of(node, graph)
    if contraction is None or not device.capabilities.warpgroup_products or node.type.shape[-1] > MOST_COLUMNS:
        return False
    left, right = graph.type_of(contraction.left).dtype, graph.type_of(contraction.right).dtype
    return left.name in NARROW and matrix_arithmetic(contraction, left, right) == ""


def candidates(form: ChainForm, device: DeviceSpec) -> Iterator[ProductChain]:
    """Every choice that is tried, those that do not fit among them."""
    inner = tuple(padded(layer.columns, INSTRUCTION_INNER) for layer in form.layers[:-1])
    last = form.layers[-1].columns
    ends = {padded(last, MMA_COLUMNS), min(padded(last, STAGE_COLUMNS), MOST_COLUMNS)}
    warpgroups_tried, rows_tried = range(1, SEARCH.pipelines.chain_warpgroups + 1), range(WARPGROUP_ROWS, MOST_ROWS + 1, WARPGROUP_ROWS)
    for warpgroups, rows, end in product(warpgroups_tried, rows_tried, sorted(ends)):
        tall = warpgroups * rows
        blocks = min(form.first.num_leads * -(-form.rows // tall), device.num_multiprocessors)
        for right_slots in (0, *range(SEARCH.pipelines.chain_slots, 1, -1)):
            base = ProductChain(tall, (*inner, end), 1, right_slots, warpgroups, blocks)
            least = placed(form, base)
            each = least.left.elements * least.left.operand.dtype.itemsize
            room = device.shared_bytes_per_block - device.fitted.pipelined.barrier_bytes - least.shared_bytes
            yield replace(base, left_slots=min(1 + room // each, SEARCH.pipelines.chain_slots))


def _fit(form: ChainForm, choice: ProductChain, device: DeviceSpec) -> ChainPlan | Rejected:
    least = tuple(padded(layer.columns, MMA_COLUMNS if layer is form.layers[-1] else INSTRUCTION_INNER) for layer in form.layers)
    broken = broken_rule((
             (choice.warpgroups >= 1 and choice.rows > 0 and choice.rows % (WARPGROUP_ROWS * choice.warpgroups) == 0,
              f"{choice.rows} rows are no multiple of {WARPGROUP_ROWS} for each of {choice.warpgroups} warpgroups"),
             (len(choice.columns) == len(least) and all(n <= c <= MOST_COLUMNS and c % MMA_COLUMNS == 0
                                                        for c, n in zip(choice.columns, least, strict=False)),
              f"columns {choice.columns} are no multiples of {MMA_COLUMNS} from {least} up to {MOST_COLUMNS}"),
             (choice.left_slots >= 2, f"{choice.left_slots} slots of the left operand, and a filling in use needs another beside it"),
             (choice.slots == 0 or choice.slots >= 2, f"{choice.slots} slots, and a filling in use needs another beside it"),
             (choice.blocks >= 1, f"{choice.blocks} blocks"),
             (choice.num_threads <= device.max_threads_per_block, f"{choice.num_threads} threads a block")))
    if broken is not None:
        return broken
    plan = placed(form, choice)
    return _limit(plan, device) or replace(plan, choice=replace(choice, blocks=min(choice.blocks, plan.num_tiles)))


def _limit(plan: ChainPlan, device: DeviceSpec) -> Rejected | None:
    """Why a plan does not fit the device: tensor maps, registers, shared memory, right operands that change within a block."""
    for layer in plan.layers:
        wrong = why_no_copies(layer.form, layer.right) or (why_no_copies(layer.form, plan.left) if layer is plan.layers[0] else "")
        if wrong:
            return Rejected(Reason.UNSUPPORTED_OP, f"no tensor copies bring the operands of %{layer.form.product.name}: {wrong}")
        moving = [a for a in plan.form.first.leads if layer.right.operand.stride_by_axis.get(a)]
        if plan.stays and moving:
            return Rejected(Reason.ILLEGAL_TEMPLATE, f"%{layer.right.operand.value} differs between places of the batch and cannot stay")
    registers = plan.registers + device.fitted.pipelined.registers
    _, most = plan.choice.registers_of_roles(device.fitted.pipelined.copying_registers, device)
    return why_too_large(registers, most, f"{plan.rows} rows a warpgroup", plan.shared_bytes, device)
