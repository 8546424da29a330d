"""Kernel or call as a measured decision: calls are timed by their own measurer, remembered, and told in the explanation."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.base.options import Options
from tilefuse.domain.tile import TileProgram
from tilefuse.driver.explain.explain import explanation_of
from tilefuse.driver.lowering.lower import lower
from tilefuse.driver.measure.lone_kernel import drawn_inputs, lone_call
from tilefuse.driver.measure.measure import DiskRecords, KernelMeasurer
from tilefuse.driver.planning import plan_on_device
from tilefuse.ir.graph import Graph
from tilefuse.ir.layouts import Layouts
from tilefuse.ir.text import parse_graph
from tilefuse.plan.pattern import Plan
from tilefuse.plan.planner import plan_graph
from tilefuse.plan.price.cost import AnalyticCost
from tilefuse.plan.price.lone_call import LoneCall, lone_call_of
from tilefuse.plan.price.measure import MeasuredCost, Timing
from tilefuse.plan.price.products import library_product_us
from tilefuse.runtime.calls.library_version import library_version
from tilefuse.runtime.stores.measurements import Journal
from tilefuse.target.catalog import host_device
from tilefuse.target.device import H200

HOST = host_device()
NO_TIME = Rejected(Reason.DOES_NOT_RUN, "CUBLAS_STATUS_NOT_SUPPORTED")


def product_and_map(rows: int = 1024, inner: int = 1024, columns: int = 64) -> Graph:
    """A product that the planner leaves to the library, by a little, and a map of its result."""
    return parse_graph(f"""graph @g(%x: f32[{rows}, {inner}], %w: f32[{inner}, {columns}]) -> (f32[{rows}, {columns}]) {{
      %p: f32[{rows}, {columns}] = library.matmul (%x, %w) {{precision = "default", transpose_a = false, transpose_b = false}}
      %y: f32[{rows}, {columns}] = map [i, j] {{ exp(%p[i, j]) }}
      return %y
    }}""")


def lone_product() -> Graph:
    """A product of few rows: its own kernel is predicted to be faster than the call, by less than the margin of predictions."""
    return parse_graph("""graph @g(%x: f16[64, 1024], %w: f16[1024, 1024]) -> (f16[64, 1024]) {
      %p: f16[64, 1024] = library.matmul (%x, %w) {precision = "default", transpose_a = false, transpose_b = false}
      return %p
    }""")


class Rule:
    """Times by a rule. call_us: of every call, or why it has no time; kernel_us: of kernels that hold a product, others take 1 us."""

    def __init__(self, call_us: float | Rejected, kernel_us: float) -> None:
        self.call_us, self.kernel_us = call_us, kernel_us
        self.calls: list[LoneCall] = []
        self.kernels: list[TileProgram] = []

    def prepare(self, programs: Sequence[TileProgram]) -> None:
        pass

    def measure(self, program: TileProgram) -> Timing | Rejected:
        self.kernels.append(program)
        return Timing(self.kernel_us if any(n.category == "library" for n in program.graph.nodes) else 1.0, 0.01, 11)

    def measure_call(self, call: LoneCall) -> Timing | Rejected:
        self.calls.append(call)
        return self.call_us if isinstance(self.call_us, Rejected) else Timing(self.call_us, 0.01, 11)


def planned(graph: Graph, measurer: Rule, records: DiskRecords, given: Layouts | None = None, clock: Sequence[float] = ()) -> Plan:
    ticks = iter(clock)
    return plan_on_device(graph, given or {}, H200, Options(), result_layouts={}, layouts={}, measurer=measurer, records=records,
                          clock=lambda: next(ticks, 0.0))


def memory() -> DiskRecords:
    return DiskRecords(Journal(None))


def told(plan: Plan) -> dict[str, object]:
    """What the explanation says of the plan's only call."""
    (call,) = explanation_of(plan, lower(plan, H200, Options()), (), {}, H200)["library"]
    return dict(call)


def test_a_call_that_is_timed_slower_than_the_kernel_turns_the_decision() -> None:
    graph = product_and_map()
    assert plan_graph(graph, {}, H200, Options()).library_calls, "by prediction the call is faster"
    slow = Rule(call_us=40.0, kernel_us=9.0)
    plan = planned(graph, slow, memory())
    assert not plan.library_calls and len(slow.calls) == 1
    assert plan.timed_calls == {"p": 40.0}, "the kernel says what the call would have taken"


def test_a_call_that_is_timed_faster_stays_and_is_told_as_measured() -> None:
    plan = planned(product_and_map(), Rule(call_us=3.0, kernel_us=9.0), memory())
    assert told(plan)["time_source"] == "measurement" and told(plan)["predicted_us"] == 3.0
    predicted = plan_graph(product_and_map(), {}, H200, Options())
    assert told(predicted)["time_source"] == "prediction" and predicted.timed_calls == {}


@pytest.mark.parametrize(("call_us", "kernel_us", "holds"), [(5.5, 5.3, True), (5.3, 5.5, False), (40.0, 5.3, True)])
def test_measured_times_of_a_product_and_its_own_kernel_are_compared_without_a_margin(call_us: float, kernel_us: float,
                                                                                       holds: bool) -> None:
    """Also where predictions alone take the kernel: they are compared by its template's share."""
    assert plan_graph(lone_product(), {}, H200, Options()).kernels
    plan = planned(lone_product(), Rule(call_us, kernel_us), memory())
    assert (not plan.library_calls) == holds


def test_a_second_compile_measures_nothing_again() -> None:
    """Also a record that another process wrote: they are found by operator, types, strides, device and library."""
    journal = Journal(None)
    first = planned(product_and_map(), Rule(40.0, 9.0), DiskRecords(journal))
    again = Rule(1.0, 1.0)
    second = planned(product_and_map(), again, DiskRecords(journal))
    assert again.calls == [] and again.kernels == [] and second.timed_calls == first.timed_calls
    assert [k.program for k in second.kernels] == [k.program for k in first.kernels] and not second.library_calls
    (record,) = [r for r in DiskRecords(journal).all() if r.is_call]
    graph = product_and_map()
    assert record.timing.median_us == 40.0 and record.predicted_us == library_product_us(graph.nodes[0], graph, H200)


def test_a_call_that_cannot_be_timed_keeps_its_prediction_and_the_plan_says_so() -> None:
    failing = Rule(NO_TIME, kernel_us=9.0)
    records = memory()
    plan = planned(product_and_map(), failing, records)
    assert plan.library_calls and len(failing.calls) == 1, "it is not tried again in later rounds"
    assert [n for n in plan.notes if n.startswith("predicted, not timed")] == [
        "predicted, not timed: the call of matmul for %p: does-not-run: CUBLAS_STATUS_NOT_SUPPORTED"]
    assert told(plan)["time_source"] == "prediction" and not [r for r in records.all() if r.is_call]


def test_when_the_time_is_over_calls_keep_their_predictions_and_the_plan_says_so() -> None:
    measurer = Rule(40.0, 9.0)
    plan = planned(product_and_map(), measurer, memory(), clock=[0.0, *[1e9] * 20])
    assert measurer.calls == [] and plan.library_calls
    assert "predicted, not timed: the call of matmul for %p: the time for measuring is over" in plan.notes


def test_an_interrupted_timing_leaves_no_record() -> None:
    class Interrupted(Rule):
        def measure_call(self, call: LoneCall) -> Timing | Rejected:
            raise KeyboardInterrupt

    records = memory()
    with pytest.raises(KeyboardInterrupt):
        planned(product_and_map(), Interrupted(1.0, 1.0), records)
    assert records.all() == ()


def test_calls_are_timed_with_the_strides_of_the_plan() -> None:
    """Those of an input as the caller gives it, and those of a view, which has no memory of its own."""
    measurer = Rule(3.0, 9.0)
    planned(product_and_map(), measurer, memory(), given={"x": (1, 1024)})
    assert [c.layouts for c in measurer.calls] == [{"x": (1, 1024)}]
    turned = parse_graph("""graph @g(%x: f32[1024, 512], %w: f32[1024, 64]) -> (f32[512, 64]) {
      %t: f32[512, 1024] = map [i, j] { %x[j, i] }
      %p: f32[512, 64] = library.matmul (%t, %w) {precision = "default", transpose_a = false, transpose_b = false}
      return %p
    }""")
    measurer = Rule(3.0, 9.0)
    planned(turned, measurer, memory())
    assert [c.layouts for c in measurer.calls] == [{"t": (1, 512)}]


def test_a_timed_call_really_has_those_strides() -> None:
    call = lone_call_of("p", product_and_map(24, 16, 8), {"x": (1, 24), "w": (0, 1)}, "")
    program = lone_call(call, HOST, "host", Options())
    assert [t.stride() for t in drawn_inputs(program, 0)] == [(1, 24), (8, 1)], "nobody can fill a broadcast value's memory"
    assert isinstance(KernelMeasurer(HOST, "host", Options()).measure_call(call), Timing)


def test_calls_of_other_strides_types_and_libraries_have_other_records() -> None:
    graph = product_and_map(24, 16, 8)
    version = library_version("host")
    calls = [lone_call_of("p", graph, {}, version), lone_call_of("p", graph, {"x": (1, 24)}, version),
             lone_call_of("p", product_and_map(24, 16, 4), {}, version), lone_call_of("p", graph, {}, "torch 1.0")]
    assert torch.__version__ in version and len({c.key for c in calls}) == 4
    assert lone_call_of("p", graph, {}, version, predicted_us=7.0).key == calls[0].key


def test_timing_a_call_changes_nothing_of_the_users() -> None:
    """Operands are drawn by a generator of its own, and results are memory of its own."""
    x = torch.rand(24, 16)
    before, state = x.clone(), torch.get_rng_state()
    timing = KernelMeasurer(HOST, "host", Options()).measure_call(lone_call_of("p", product_and_map(24, 16, 8), {}, ""))
    assert isinstance(timing, Timing) and torch.equal(x, before) and torch.equal(torch.get_rng_state(), state)


def test_a_real_call_on_the_host_decides_beside_its_record() -> None:
    """The host's library is timed by the clock, whatever device the plan is for, and its time takes the prediction's place."""
    class OnHost(Rule):
        def measure_call(self, call: LoneCall) -> Timing | Rejected:
            self.calls.append(call)
            return KernelMeasurer(HOST, "host", Options()).measure_call(call)

    measurer = OnHost(0.0, kernel_us=1e-3)
    plan = planned(product_and_map(), measurer, memory())
    assert not plan.library_calls and len(measurer.calls) == 1
    assert plan.timed_calls["p"] > plan.objective_us


def test_predictions_of_calls_have_a_scale_of_their_own() -> None:
    """Calls that were timed twice as slow as predicted scale the predictions of other calls, and none of kernels'."""
    records = memory()
    model = MeasuredCost(AnalyticCost(H200), records)
    calls = [replace(lone_call_of("p", product_and_map(24, 16, n), {}, ""), predicted_us=2.0) for n in (8, 16, 24, 32, 40)]
    for call in calls:
        model.timing(call, Rule(4.0, 1.0))
    other = replace(lone_call_of("p", product_and_map(24, 16, 48), {}, ""), predicted_us=3.0)
    (kernel,) = plan_graph(product_and_map(), {}, H200, Options()).kernels
    before_us = model.cost(kernel.program).us
    assert model.call_us(other) == 3.0
    model.learn()
    assert model.call_us(other) == 6.0 and model.call_us(calls[0]) == 4.0 and model.cost(kernel.program).us == before_us
