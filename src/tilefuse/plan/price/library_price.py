"""Bytes and predicted time of a library call: for totals of a whole plan. Which kernels are chosen, `products` decides."""
from __future__ import annotations

from dataclasses import dataclass

from tilefuse.domain.contraction import contraction_of
from tilefuse.ir.graph import Graph
from tilefuse.plan.generators.products import library_product_us
from tilefuse.plan.pattern import LibraryCall
from tilefuse.plan.price.cost import transfer_us
from tilefuse.target.device import DeviceSpec


@dataclass(frozen=True, slots=True)
class CallPrice:
    """Units: `num_bytes` of the operands and results, each once; microseconds.

    us        predicted, or at least: the launch and the bytes at the rate of a copy
    is_bound  whether `us` is only that, because nothing predicts the operator
    """

    num_bytes: int
    us: float
    is_bound: bool


def price_call(call: LibraryCall, graph: Graph, device: DeviceSpec) -> CallPrice:
    """The price of a call. Source: matrix products `products.library_product_us`; others DeviceSpec.transfer_curve."""
    values = dict.fromkeys((*call.operands, *(v for _, v in call.results)))
    num_bytes = sum(graph.type_of(v).num_bytes for v in values)
    least_us = device.graph_launch_us + transfer_us(num_bytes, device)
    node = graph.node_by_name[call.results[0][1]]
    if contraction_of(node, graph) is None:
        return CallPrice(num_bytes, least_us, True)
    return CallPrice(num_bytes, library_product_us(node, graph, device), False)
