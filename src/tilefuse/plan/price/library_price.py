"""Bytes and time of a library call, measured or predicted: for totals of a whole plan. `products` provides the times for choosing
kernels."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilefuse.domain.contraction import any_contraction_of
from tilefuse.domain.roofline import price_work
from tilefuse.domain.work import Work
from tilefuse.ir.graph import Graph
from tilefuse.ir.layouts import Layouts
from tilefuse.ir.library.attention_gradient_call import gradient_call_of
from tilefuse.ir.library.side_by_side import KIND as SIDE_BY_SIDE
from tilefuse.passes.facts import NO_LAYOUTS
from tilefuse.plan.pattern import MEASUREMENT, LibraryCall
from tilefuse.plan.price.attention import attention_gradient_work, attention_work
from tilefuse.plan.price.products import library_work
from tilefuse.target.device import DeviceSpec

# Sources of a call's time, beside `MEASUREMENT`: the models of products and of attention, or only the launch and the bytes.
PREDICTION, LOWER_BOUND = "prediction", "lower bound"


@dataclass(frozen=True, slots=True)
class CallPrice:
    """Units: `num_bytes` of the operands and results, each once; microseconds.

    us      the time of the call
    source  `MEASUREMENT`, `PREDICTION`, or `LOWER_BOUND`: launch and bytes at the rate of a copy, where nothing predicts the operator
    work    the work of which a predicted `us` is the price
    """

    num_bytes: int
    us: float
    source: str
    work: Work

    @property
    def is_bound(self) -> bool:
        """Whether `us` is only a lower bound."""
        return self.source == LOWER_BOUND


def price_call(call: LibraryCall, graph: Graph, device: DeviceSpec, timed: Mapping[str, float] | None = None,
               layouts: Layouts = NO_LAYOUTS) -> CallPrice:
    """The price of a call. timed: measured times by the node that a call computes (`Plan.timed_calls`). layouts: strides of values.

    Source: `timed`; else its work, priced by `roofline.price_work`, of which operators that nothing predicts only move their bytes.
    """
    values = dict.fromkeys((*call.operands, *(v for _, v in call.results)))
    num_bytes = sum(graph.type_of(v).num_bytes for v in values)
    node = graph.node_by_name[call.results[0][1]]
    if node.kind == SIDE_BY_SIDE:
        return CallPrice(0, 0.0, PREDICTION, Work(0))
    gradients = gradient_call_of(node, graph)
    attention = attention_work(node, graph, device) if gradients is None else attention_gradient_work(gradients, graph, device)
    is_known = attention is not None or any_contraction_of(node, graph) is not None
    work = attention or (library_work(node, graph, device, layouts) if is_known else Work(global_bytes=num_bytes))
    measured_us = (timed or {}).get(node.name)
    if measured_us is not None:
        return CallPrice(num_bytes, measured_us, MEASUREMENT, work)
    return CallPrice(num_bytes, price_work(work, device).us, PREDICTION if is_known else LOWER_BOUND, work)
