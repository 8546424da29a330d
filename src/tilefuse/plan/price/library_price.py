"""Bytes and predicted time of a library call: for totals of a whole plan. Which kernels are chosen, `products` decides."""
from __future__ import annotations

from dataclasses import dataclass

from tilefuse.domain.contraction import contraction_of
from tilefuse.domain.work import Work
from tilefuse.ir.graph import Graph
from tilefuse.plan.pattern import LibraryCall
from tilefuse.plan.price.products import library_work
from tilefuse.plan.price.roofline import price_work
from tilefuse.target.device import DeviceSpec


@dataclass(frozen=True, slots=True)
class CallPrice:
    """Units: `num_bytes` of the operands and results, each once; microseconds.

    us        predicted, or at least: the launch and the bytes at the rate of a copy
    is_bound  whether `us` is only that, because nothing predicts the operator
    work      the work that `us` is the price of
    """

    num_bytes: int
    us: float
    is_bound: bool
    work: Work


def price_call(call: LibraryCall, graph: Graph, device: DeviceSpec) -> CallPrice:
    """The price of a call. Source: its work, priced by `roofline.price_work`; operators that nothing predicts only move their bytes."""
    values = dict.fromkeys((*call.operands, *(v for _, v in call.results)))
    num_bytes = sum(graph.type_of(v).num_bytes for v in values)
    node = graph.node_by_name[call.results[0][1]]
    is_bound = contraction_of(node, graph) is None
    work = Work(global_bytes=num_bytes) if is_bound else library_work(node, graph, device)
    return CallPrice(num_bytes, price_work(work, device).us, is_bound, work)
