"""Tiles of a streamed product: every candidate that fits is priced by its work; the cheapest is taken."""
from __future__ import annotations

from collections.abc import Iterator

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.domain.contraction import COLUMN, contraction_of
from tilefuse.domain.roofline import price_candidate
from tilefuse.ir.graph import Graph, Node
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.levels import boundary_work
from tilefuse.templates.staged.streamed.form import MOST_ROWS, StreamForm
from tilefuse.templates.staged.streamed.plan import StreamPlan
from tilefuse.templates.staged.streamed.record import Streamed
from tilefuse.templates.staged.streamed.stream_work import registers_of, resident, with_work

# Numbers that are tried: units of columns of a warp, warps along the columns and along the inner axis, blocks that share the inner axis.
TRIED_WIDE, TRIED_ACROSS, TRIED_ALONG = (1, 2, 4, 8), (1, 2, 4), (4, 8, 16)
TRIED_CLUSTERS, TRIED_SLOTS = (1, 2, 4, 8), (3, 4, 6, 8, 12, 16)
MOST_WARPS = 16
# Blocks of a cluster that every device with clusters starts. Source: CUDA C++ Programming Guide, thread block clusters.
PORTABLE_CLUSTER = 8


def choose_stream(form: StreamForm, device: DeviceSpec, by_hand: Streamed | None = None) -> StreamPlan | Rejected:
    """The tiles whose work has the least price, or why there are none. by_hand: tiles of a person or of a tuner."""
    if device.kind != "cuda" or not device.has_matrix_unit:
        return Rejected(Reason.OTHER_TEMPLATE, f"{device.name} has no matrix instructions")
    best: tuple[float, float, StreamPlan] | None = None
    why: Rejected | None = None
    boundary = boundary_work(form.graph)
    for choice in [by_hand] if by_hand is not None else candidates(form, device):
        plan = StreamPlan(form, choice)
        refused = _refusal(plan, device)
        if refused is not None:
            why = why or refused
            continue
        plan = with_work(plan, boundary, device)
        price = price_candidate(plan.work, device)
        if best is None or (price.us, price.arithmetic_us) < best[:2]:
            best = (price.us, price.arithmetic_us, plan)
    return best[2] if best is not None else why or Rejected(Reason.SHARED_MEMORY, "no tile fits")


def may_be_streamed(node: Node, graph: Graph, device: DeviceSpec) -> bool:
    """Whether a node is a product of few rows that may be streamed, as far as its type tells."""
    return (device.has_matrix_unit and contraction_of(node, graph) is not None and node.type.shape[-2] <= MOST_ROWS
            and node.type.dtype.name in ("f16", "bf16", "f32"))


def candidates(form: StreamForm, device: DeviceSpec) -> Iterator[Streamed]:
    """Every choice that is tried, those that do not fit among them."""
    for cluster in TRIED_CLUSTERS:
        for wide in TRIED_WIDE:
            for across in TRIED_ACROSS:
                for along in TRIED_ALONG:
                    if cluster > device.max_cluster_blocks or across * along > MOST_WARPS:
                        continue
                    steps = StreamPlan(form, Streamed(wide, across, along, cluster, 2)).steps
                    for slots in TRIED_SLOTS:
                        # More slots than steps hold nothing.
                        if slots <= max(steps + 1, TRIED_SLOTS[0]):
                            yield Streamed(wide, across, along, cluster, slots)


def _refusal(plan: StreamPlan, device: DeviceSpec) -> Rejected | None:
    """Why a choice is not legal on the device."""
    choice, lanes = plan.choice, plan.lanes
    legal = ((min(choice.wide, choice.across, choice.along, choice.cluster) >= 1, "numbers of columns, warps and blocks are positive"),
             (choice.slots >= 2, f"{choice.slots} slots, and a step in use needs another beside it"),
             (choice.num_threads <= device.max_threads_per_block, f"{choice.num_threads} threads a block"),
             (choice.cluster <= min(max(device.max_cluster_blocks, 1), PORTABLE_CLUSTER), f"clusters of {choice.cluster} blocks"),
             (lanes.along != COLUMN or lanes.elements % 2 == 0, f"{lanes.elements} columns in an access"))
    for holds, problem in legal:
        if not holds:
            return Rejected(Reason.ILLEGAL_TEMPLATE, problem)
    registers = registers_of(plan, device)
    if registers > min(device.max_registers_per_thread, device.registers_per_multiprocessor // choice.num_threads):
        return Rejected(Reason.REGISTERS, f"about {registers} registers a thread")
    if plan.shared_bytes > device.shared_bytes_per_block or not resident(plan, device):
        return Rejected(Reason.SHARED_MEMORY, f"{plan.shared_bytes} bytes of rows and weights, at most {device.shared_bytes_per_block}")
    return None
