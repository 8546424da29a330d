"""Matrix products of a graph as calls of the library: those that a kernel may hold instead, and the times that tuning stored for them."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from tilefuse.driver.measure.tuning_results import TunedCall, TuningResults
from tilefuse.ir.graph import Graph, Node
from tilefuse.plan.pattern import Plan
from tilefuse.plan.price.lone_call import LoneCall, lone_call_of
from tilefuse.plan.price.products import Products, matrix_products
from tilefuse.runtime.calls.library_version import library_version
from tilefuse.target.device import DeviceSpec


@dataclass(frozen=True)
class ProductCalls:
    """The products of a graph for which kernel and call are alternatives.

    strides: of values that are not dense, views among them. results: times of earlier tuning.
    """

    graph: Graph
    strides: Mapping[str, tuple[int, ...]]
    device: DeviceSpec
    results: TuningResults
    _calls: dict[str, LoneCall] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def of(cls, plan: Plan, device: DeviceSpec, results: TuningResults) -> ProductCalls:
        """The products of a plan's graph."""
        return cls(plan.graph, {**plan.layouts, **{v.value: v.strides for v in plan.views}}, device, results)

    @cached_property
    def predicted(self) -> Products:
        """The products with the predicted times of their calls."""
        return matrix_products(self.graph, self.device, self.strides)

    def call(self, node: Node) -> LoneCall:
        """The call for a product, as it is timed."""
        call = self._calls.get(node.name)
        if call is None:
            version = library_version(self.device.kind)
            call = self._calls[node.name] = lone_call_of(node.name, self.graph, self.strides, version, self.predicted.us(node))
        return call

    def timed(self, node: Node) -> TunedCall | None:
        """The stored time of a product's call."""
        return self.results.find_call(self.call(node).key)

    @cached_property
    def us_by_name(self) -> dict[str, float]:
        """The stored times of calls, by the node that they compute. Units: microseconds. Source: tuning."""
        if not self.results.calls():
            return {}
        timed = {n.name: self.timed(n) for n in self.graph.nodes if self.predicted.may_be_held(n)}
        return {name: t.us for name, t in timed.items() if t is not None}

    def note(self) -> str:
        """The number of products with a stored time, as a plan's note."""
        number = sum(map(self.predicted.may_be_held, self.graph.nodes))
        return f"{len(self.us_by_name)} of {number} products that a kernel may hold have a measured call (tilefuse tune)"

    def products(self) -> Products:
        """The products as planning takes them: a call that tuning has timed costs its time, and counts as measured."""
        return replace(self.predicted, us=lambda n: self.us_by_name[n.name] if n.name in self.us_by_name else self.predicted.us(n),
                       measured=lambda n: n.name in self.us_by_name)
