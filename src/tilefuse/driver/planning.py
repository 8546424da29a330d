"""Planning with a device present: by predictions, by hand, or by timing (`measure/measured_planning.py`)."""
from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import replace

from tilefuse.base.errors import UserError
from tilefuse.base.options import Options
from tilefuse.domain.tile import TileProgram
from tilefuse.driver.measure.measure import DiskRecords
from tilefuse.driver.measure.measured_planning import MeasuredPlanning
from tilefuse.driver.measure.product_calls import ProductCalls
from tilefuse.driver.measure.tuning_results import TuningResults
from tilefuse.driver.reuse.known_judgements import judgements
from tilefuse.ir.graph import Graph
from tilefuse.ir.layouts import Layouts
from tilefuse.plan.pattern import Plan
from tilefuse.plan.planner import plan_graph
from tilefuse.plan.price.cost import AnalyticCost, CostModel
from tilefuse.plan.price.known_patterns import Store
from tilefuse.plan.price.measure import MeasuredCost, Measurer, Records
from tilefuse.plan.price.products import Products
from tilefuse.plan.price.tuned import TunedCost, with_tuned
from tilefuse.plan.rewrites.views import find_views, without_views
from tilefuse.plan.seeded import Seed
from tilefuse.plan.text.edit import plan_of_outline, setting_of, with_template
from tilefuse.plan.text.text import parse_plan
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.compose import compose
from tilefuse.templates.notation import parse_template


def plan_on_device(graph: Graph, given: Layouts, device: DeviceSpec, options: Options, *, result_layouts: Layouts, layouts: Layouts,
                   measurer: Measurer | None = None, records: Records | None = None,
                   clock: Callable[[], float] = time.monotonic, seed: Seed | None = None, given_up: Collection[str] = ()) -> Plan:
    """The plan of a graph; with a measurer, one in which no kernel was measured to be slower than its nodes alone.

    The notes of the plan name what was replaced. `options.measure_seconds` bounds the time for measuring, not a single kernel's.
    seed: decisions of a plan of other sizes to start from; timed plans and those that the options write do not.
    given_up: inputs that nobody holds but the call.
    Raises: as `plan_graph`.
    """
    if options.plan or options.template:
        return _by_hand(graph, given, device, options, result_layouts, layouts)
    tuning = TuningResults.of(device, options) if options.tuned else None
    plan = _planned(graph, given, device, options, result_layouts, layouts, measurer, records, clock, seed, given_up, tuning)
    if tuning is None:
        return plan
    return with_tuned(plan, tuning.template, device, TunedCost(AnalyticCost(device), tuning.us))


def _planned(graph: Graph, given: Layouts, device: DeviceSpec, options: Options, result_layouts: Layouts, layouts: Layouts,
             measurer: Measurer | None, records: Records | None, clock: Callable[[], float], seed: Seed | None,
             given_up: Collection[str], tuning: TuningResults | None) -> Plan:
    """tuning: stored times of calls and of kernels that hold products; measured planning has records of its own."""
    def plan(model: CostModel, store: Store | None = None, products: Products | None = None,
             seed: Seed | None = None) -> Plan:
        return plan_graph(graph, given, device, options, result_layouts=result_layouts, layouts=layouts, cost_model=model, store=store,
                          products=products, seed=seed, given_up=given_up)

    decided = {**layouts, **given}
    views = find_views(graph, decided, result_layouts)
    if measurer is None or not options.fuse:
        strides = {**decided, **{name: view.strides for name, view in views.items()}}
        calls = ProductCalls(graph, strides, device, tuning) if tuning is not None and options.fuse and options.stitch else None
        if calls is not None and calls.us_by_name:
            # Judgements of patterns are kept for prices without measurements.
            timed = plan(TunedCost(AnalyticCost(device), calls.results.us), products=calls.products(), seed=seed)
            return replace(timed, timed_calls=calls.us_by_name, notes=(*timed.notes, calls.note()))
        with judgements(device, options) as store:
            return plan(AnalyticCost(device), store, seed=seed)
    model = MeasuredCost(AnalyticCost(device), records if records is not None else DiskRecords.of(device, options))
    learning = MeasuredPlanning(graph, without_views(decided, views), views, device, options, model, measurer, clock)
    return learning.run(lambda products: plan(model, products=products))


def _by_hand(graph: Graph, input_layouts: Layouts, device: DeviceSpec, options: Options, result_layouts: Layouts, layouts: Layouts) -> Plan:
    """The plan in the options, or the planner's plan with the kernel in the options. Raises: UserError for an illegal plan or kernel."""
    setting = setting_of(graph, input_layouts, layouts, result_layouts, device, options)
    if options.plan:
        plan = plan_of_outline(parse_plan(options.plan), setting)
    else:
        plan = plan_graph(graph, input_layouts, device, options, result_layouts=result_layouts, layouts=layouts)
    if options.template:
        plan = with_template(plan, parse_template(options.template), setting, options)
    for kernel in plan.kernels:
        if kernel.generator == "text":
            check_storage(kernel.name, kernel.program, device)
    return plan


def check_storage(name: str, program: TileProgram, device: DeviceSpec) -> None:
    """Composes a kernel written by hand before any build. Raises: UserError where its shared memory does not fit a block."""
    used = compose(program, device).launch.shared_bytes
    if device.kind == "cuda" and used > device.shared_bytes_per_block:
        raise UserError(f"kernel {name} needs {used} bytes of shared memory a block, and {device.name} has {device.shared_bytes_per_block}",
                        hint="fewer stages, smaller tiles, or a wider cluster")
