"""Work of a streamed product: bytes of weights once, of rows for every block, loads in flight, instructions of weights and of results.

Nothing here is a time; `domain/roofline.py` makes one of it.
"""
from __future__ import annotations

from dataclasses import replace

from tilefuse.domain.contraction import INNER
from tilefuse.domain.roofline import blocks_at_once
from tilefuse.domain.work import LoadChain, Operations, Work
from tilefuse.ir.graph import Graph
from tilefuse.ir.ops import NARROW_FLOPS, SCALAR_OPS
from tilefuse.ir.scalar import Call, walk
from tilefuse.target.device import DeviceSpec
from tilefuse.target.launch import Launch
from tilefuse.templates.staged.streamed.plan import SUM_BYTES, StreamPlan


def launch_of(plan: StreamPlan) -> Launch:
    """Grid and block."""
    return Launch(plan.num_blocks, plan.choice.num_threads, plan.choice.cluster, plan.shared_bytes)


def registers_of(plan: StreamPlan, device: DeviceSpec) -> int:
    """Registers of a thread, estimated: its sums, the elements of a step, addresses."""
    lanes = plan.lanes
    elements = lanes.accesses * lanes.elements * plan.form.left_dtype.itemsize // 4
    words = lanes.accesses * sum(s.access_bytes for s in plan.form.streams) // 4
    return plan.sums * len(plan.form.streams) + elements + words + device.fitted.pipelined.registers


def resident(plan: StreamPlan, device: DeviceSpec) -> int:
    """Blocks that a multiprocessor holds at once; 0 where not even one fits."""
    return blocks_at_once(plan.choice.num_threads, registers_of(plan, device), plan.shared_bytes, device)


def with_work(plan: StreamPlan, boundary: Work, device: DeviceSpec) -> StreamPlan:
    """The plan with its operations and its work. boundary: the work of its boundary values."""
    form, choice, lanes = plan.form, plan.choice, plan.lanes
    streams = form.streams
    weights = form.num_leads * form.columns * form.inner
    flops = 2 * len(streams) * weights * form.rows
    before, reduced = _bytes_of(form.graph, form.contraction.left), sum(_bytes_of(form.graph, n) for n in form.reductions)
    # Each block reads its share of the rows, and whole rows for their reductions.
    rows_bytes = plan.num_blocks * (before // choice.cluster + reduced)
    sums = plan.num_blocks * form.rows * plan.columns * SUM_BYTES * len(streams)
    each = 1.0 + sum(_flops(form.graph, s.contraction.right) for s in streams)
    if form.unit == "fma":
        each += len(streams) * form.rows
    each += len(streams) * device.fitted.streamed.access_instructions / lanes.elements
    before_us, behind_us = _waits_us(plan, device)
    flight_bytes = (choice.slots - 1) * lanes.accesses * sum(s.access_bytes for s in streams)
    chain = LoadChain(flight_bytes, max(resident(plan, device), 1), 1, before_us + behind_us, start_us=before_us)
    work = replace(boundary, grid=launch_of(plan), l2_bytes=boundary.global_bytes + rows_bytes,
                   shared_bytes=2 * weights * sum(s.access_bytes for s in streams) // lanes.elements + 2 * choice.along * sums,
                   operations=(Operations(int(2 * each * weights)),), loads=chain,
                   serial_us=behind_us, traffic_factor=_traffic_factor(plan, device))
    return replace(plan, work=work, flops=flops)


def _traffic_factor(plan: StreamPlan, device: DeviceSpec) -> float:
    """Time of the weights' traffic over that of a copy. Source: `StreamedFigures`, by the runs of memory that a warp reads at once."""
    figures, lanes = device.fitted.streamed, plan.lanes
    if lanes.along != INNER:
        return figures.column_traffic
    if any(s.dtype.itemsize < plan.form.left_dtype.itemsize for s in plan.form.streams):
        return figures.converted_traffic
    return figures.narrow_traffic if lanes.unit == "mma" else figures.wide_traffic


def _waits_us(plan: StreamPlan, device: DeviceSpec) -> tuple[float, float]:
    """(latency of a block before its first product, after its last). Units: microseconds. Source: `ScriptFigures`."""
    figures, reductions = device.fitted.scripts, len(plan.form.reductions)
    before_us = (1 + reductions) * (figures.load_latency_us + figures.exchange_us)
    return before_us, figures.exchange_us * (3 if plan.choice.cluster > 1 else 1)


def _bytes_of(graph: Graph, value: str) -> int:
    """Bytes of the boundary values that a value is computed from, up to reductions; those of its own body for a reduction."""
    seen, pending = {value}, [value]
    total = 0
    while pending:
        name = pending.pop()
        node = graph.node_by_name.get(name)
        if node is None:
            total += graph.type_of(name).num_bytes
            continue
        if node.category == "reduce" and name != value:
            continue
        for read in node.reads():
            if read not in seen:
                seen.add(read)
                pending.append(read)
    return total


def _flops(graph: Graph, value: str) -> int:
    """Operations on one element of a value, through maps."""
    node = graph.node_by_name.get(value)
    if node is None or node.body is None:
        return 0
    calls = [e for e in walk(node.body) if isinstance(e, Call)]
    own = sum(NARROW_FLOPS.get(e.fn, SCALAR_OPS[e.fn].flops) if e.fn in SCALAR_OPS else 1 for e in calls)
    return own + sum(_flops(graph, v) for v in node.reads())
