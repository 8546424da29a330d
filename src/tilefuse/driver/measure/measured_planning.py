"""Planning by timing: plan, time the plan's kernels and calls, plan again with the measured times.

    plan -> calls timed, kernels timed against their parts -> each costs what it was measured to cost -> plan ...

A product that a kernel may hold is a candidate twice: as a call of the library and as part of a kernel. Both are timed on the device.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from tilefuse.base import trace
from tilefuse.base.candidate import Rejected
from tilefuse.base.options import Options
from tilefuse.base.search.limits import SEARCH
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.graph import Graph, Node
from tilefuse.ir.layouts import Layouts
from tilefuse.plan.pattern import Pattern, Plan, PlannedKernel, View, is_library
from tilefuse.plan.price.lone_call import LoneCall, lone_call_of
from tilefuse.plan.price.measure import MeasuredCost, Measurer, Slower, replaces_others, timed_check
from tilefuse.plan.price.products import NO_PRODUCTS, Products, matrix_products
from tilefuse.plan.rewrites.views import is_window
from tilefuse.runtime.calls.library_version import library_version
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.pattern import schedule_pattern
from tilefuse.templates.registry import kernel_template


class MeasuredPlanning:
    """Plans of one graph, in which no kernel was measured to be slower than its parts, and no call slower than its kernel.

    layouts: strides of values with memory that are not dense; views: values that only name memory. clock: seconds;
    `options.measure_seconds` bounds the time for measuring, not that of a single kernel or call.
    """

    def __init__(self, graph: Graph, layouts: Layouts, views: Mapping[str, View], device: DeviceSpec, options: Options,
                 model: MeasuredCost, measurer: Measurer, clock: Callable[[], float]) -> None:
        self._graph, self._layouts, self._views, self._device, self._options = graph, layouts, views, device, options
        self._strides = {**layouts, **{name: view.strides for name, view in views.items()}}
        self._model, self._measurer, self._clock = model, measurer, clock
        self._deadline = clock() + options.measure_seconds
        self._predicted = matrix_products(graph, device, self._strides) if options.stitch else NO_PRODUCTS
        self._replaced: dict[tuple[str, ...], Slower] = {}
        # Calls that were not timed, and why.
        self._untimed: dict[str, str] = {}
        self._products = replace(self._predicted, us=self._call_us, measured=self._is_measured)

    def run(self, plan: Callable[[Products], Plan]) -> Plan:
        """The best plan of some rounds. Its notes name the kernels that were replaced, and the calls that could not be timed."""
        best, best_us = plan(self._products), math.inf
        current = best
        for round_number in range(SEARCH.selection.measured_rounds):
            self._time(current, round_number)
            current_us = self._total_us(current)
            if current_us < best_us:
                best, best_us = current, current_us
            if self._is_over():
                break
            self._model.learn()
            self._model.only_measured = round_number >= SEARCH.selection.measured_rounds - 2
            following = plan(self._products)
            if self._is_known(following):
                # Nothing in it is a guess any more.
                best = following if self._total_us(following) <= best_us else best
                break
            current = following
        return replace(best, notes=(*best.notes, *self._notes(best)), timed_calls=self._timed_calls())

    def _time(self, plan: Plan, round_number: int) -> None:
        """Calls first: they need no compiler, and their times decide which kernels are worth compiling."""
        with trace.current().span("timed check", "plan", round=round_number):
            self._time_calls(plan)
            slower = timed_check(plan, self._model, self._measurer, self._parts, self._is_over)
        self._replaced.update((s.nodes, s) for s in slower)

    def _time_calls(self, plan: Plan) -> None:
        """Times the calls of a plan that a kernel may hold. A call that a kernel alone may beat is timed together with that kernel."""
        for node in self._choosable_calls(plan):
            call = self._call(node.name)
            if self._model.knows(call):
                continue
            if self._is_over():
                self._untimed[node.name] = "the time for measuring is over"
                continue
            timing = self._model.timing(call, self._measurer)
            if isinstance(timing, Rejected):
                self._untimed[node.name] = str(timing)
                trace.current().event("call not timed", "plan", node=node.name, why=str(timing))
                continue
            own = self._scheduled((*self._views_of(node), node.name)) if self._products.alone(node) else None
            if isinstance(own, TileProgram) and not self._model.knows(own) and self._model.cost(own).us < timing.median_us:
                self._model.timing(own, self._measurer)

    def _choosable_calls(self, plan: Plan) -> list[Node]:
        """Products that the plan calls and a kernel may hold."""
        nodes = [plan.graph.node_by_name[v] for c in plan.library_calls for _, v in c.results]
        return [n for n in nodes if self._products.may_be_held(n)]

    def _parts(self, kernel: PlannedKernel) -> Sequence[TileProgram | LoneCall | Rejected]:
        """The kernels that a kernel stands for, else the programs of its nodes: a product is a call of the library, a view is nothing."""
        others = kernel_template(kernel.program.choice).stands_for(kernel.program)
        return others or [self._call(n) if is_library(self._graph.node_by_name[n]) else self._scheduled((n,))
                for n in kernel.pattern.nodes if n not in self._views]

    def _views_of(self, node: Node) -> list[str]:
        """Views that the kernel of a product computes by its subscripts, in graph order. It reads windows as they are."""
        views: list[str] = []
        values = list(node.operands)
        while values:
            view = self._views.get(values.pop())
            if view is not None and not is_window(self._graph, view):
                views.append(view.value)
                values.extend(self._graph.node_by_name[view.value].reads())
        return [n.name for n in self._graph.in_order(views)]

    def _scheduled(self, nodes: tuple[str, ...]) -> TileProgram | Rejected:
        """The kernel of some nodes of which only the last one is written."""
        inner = Pattern(nodes, nodes[-1:]).graph(self._graph)
        layouts = {v: self._layouts[v] for v in inner.type_by_name if v in self._layouts}
        return schedule_pattern(inner, nodes, layouts, self._device, self._options.eager_rounding,
                                fetches_early=self._options.fetches_early)

    def _call(self, name: str) -> LoneCall:
        predicted_us = self._predicted.us(self._graph.node_by_name[name])
        return lone_call_of(name, self._graph, self._strides, library_version(self._device.kind), predicted_us)

    def _call_us(self, node: Node) -> float:
        return self._model.call_us(self._call(node.name))

    def _is_measured(self, node: Node) -> bool:
        return self._model.measured_call_us(self._call(node.name)) is not None

    def _total_us(self, plan: Plan) -> float:
        return self._model.total_us(plan, self._products.call_us)

    def _is_known(self, plan: Plan) -> bool:
        """Whether all chosen alternatives were measured."""
        kernels = [k.program for k in plan.kernels if replaces_others(k.program.graph)]
        calls = [self._call(n.name) for n in self._choosable_calls(plan)]
        return all(map(self._model.knows, kernels)) and all(map(self._model.knows, calls))

    def _is_over(self) -> bool:
        return self._clock() > self._deadline

    def _notes(self, plan: Plan) -> list[str]:
        kernel_nodes = {k.pattern.nodes for k in plan.kernels}
        called = {v for c in plan.library_calls for _, v in c.results}
        notes = [f"{'kept for want of time' if s.nodes in kernel_nodes else 'replaced after timing'}: {s}" for s in self._replaced.values()]
        notes += [f"predicted, not timed: the call of {self._graph.node_by_name[name].detail} for %{name}: {why}"
                  for name, why in self._untimed.items() if name in called and not self._is_measured(self._graph.node_by_name[name])]
        return notes

    def _timed_calls(self) -> dict[str, float]:
        products = [n for n in self._graph.nodes if self._products.may_be_held(n)]
        timed = {n.name: self._model.measured_call_us(self._call(n.name)) for n in products}
        return {name: us for name, us in timed.items() if us is not None}
