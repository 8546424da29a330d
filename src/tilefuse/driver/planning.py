"""Planning with a device at hand: plan, time what the plan uses, plan again with what was learnt.

    plan -> kernels timed against their parts -> slower ones cost what they were measured to cost -> plan ...
"""
from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial

from tilefuse import templates
from tilefuse.base import trace
from tilefuse.base.candidate import Rejected
from tilefuse.base.errors import UserError
from tilefuse.base.options import Options
from tilefuse.domain.tile import TileProgram
from tilefuse.driver.measure.measure import DiskRecords
from tilefuse.driver.measure.tuning_results import TuningResults
from tilefuse.driver.reuse.known_judgements import judgements
from tilefuse.ir.graph import Graph, Node
from tilefuse.ir.layouts import Layouts
from tilefuse.plan.pattern import Pattern, Plan, PlannedKernel, is_library
from tilefuse.plan.planner import plan_graph
from tilefuse.plan.price.cost import AnalyticCost
from tilefuse.plan.price.known_patterns import Store
from tilefuse.plan.price.measure import MAX_ROUNDS, LoneCall, MeasuredCost, Measurer, Records, Slower, timed_check
from tilefuse.plan.price.products import NO_PRODUCTS, Products, matrix_products
from tilefuse.plan.price.tuned import with_tuned
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
    plan = _planned(graph, given, device, options, result_layouts, layouts, measurer, records, clock, seed, given_up)
    if not options.tuned:
        return plan
    return with_tuned(plan, TuningResults.of(device, options).template, device, AnalyticCost(device))


def _planned(graph: Graph, given: Layouts, device: DeviceSpec, options: Options, result_layouts: Layouts, layouts: Layouts,
             measurer: Measurer | None, records: Records | None, clock: Callable[[], float], seed: Seed | None,
             given_up: Collection[str]) -> Plan:
    def plan(model: AnalyticCost | MeasuredCost, store: Store | None = None, products: Products | None = None,
             seed: Seed | None = None) -> Plan:
        return plan_graph(graph, given, device, options, result_layouts=result_layouts, layouts=layouts, cost_model=model, store=store,
                          products=products, seed=seed, given_up=given_up)

    if measurer is None or not options.fuse:
        with judgements(device, options) as store:
            return plan(AnalyticCost(device), store, seed=seed)
    model = MeasuredCost(AnalyticCost(device), records if records is not None else DiskRecords.of(device, options))
    deadline = clock() + options.measure_seconds
    products = _measured_products(graph, layouts, device, model) if options.stitch else NO_PRODUCTS
    replaced: dict[tuple[str, ...], Slower] = {}
    parts = partial(alone, graph=graph, layouts=layouts, device=device, options=options)
    best, best_us = plan(model, products=products), math.inf
    checked = best
    for round_number in range(MAX_ROUNDS):
        with trace.current().span("timed check", "plan", round=round_number):
            slower = timed_check(checked, model, measurer, parts, lambda: clock() > deadline)
        replaced.update((s.nodes, s) for s in slower)
        made_us = model.total_us(checked, products.call_us)
        if made_us < best_us:
            best, best_us = checked, made_us
        if clock() > deadline:
            break
        model.learn()
        model.only_measured = round_number >= MAX_ROUNDS - 2
        following = plan(model, products=products)
        if all(model.knows(k.program) for k in following.kernels if len(k.pattern.nodes) > 1):
            # Nothing in it is a guess any more.
            best = following if model.total_us(following, products.call_us) < best_us else best
            break
        checked = following
    kernel_nodes = {k.pattern.nodes for k in best.kernels}
    notes = (f"{'kept for want of time' if s.nodes in kernel_nodes else 'replaced after timing'}: {s}" for s in replaced.values())
    return replace(best, notes=(*best.notes, *notes))


def _measured_products(graph: Graph, layouts: Layouts, device: DeviceSpec, model: MeasuredCost) -> Products:
    """The products that kernels may hold, whose calls take what was measured where they were."""
    predicted = matrix_products(graph, device)

    def us(node: Node) -> float:
        inner = Pattern((node.name,), (node.name,)).graph(graph)
        return model.call_us(LoneCall(inner, {v: layouts[v] for v in inner.type_by_name if v in layouts}), predicted.us(node))

    return replace(predicted, us=us)


def _by_hand(graph: Graph, input_layouts: Layouts, device: DeviceSpec, options: Options, result_layouts: Layouts, layouts: Layouts) -> Plan:
    """The plan that the options write, or ours with the kernel that they write. Raises: UserError for what is not legal."""
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
    """Composes a kernel written by hand before anything is built. Raises: UserError where its shared memory does not fit a block."""
    used = compose(program, device).launch.shared_bytes
    if device.kind == "cuda" and used > device.shared_bytes_per_block:
        raise UserError(f"kernel {name} needs {used} bytes of shared memory a block, and {device.name} has {device.shared_bytes_per_block}",
                        hint="fewer stages, smaller tiles, or a wider cluster")


def alone(kernel: PlannedKernel, *, graph: Graph, layouts: Layouts, device: DeviceSpec,
          options: Options) -> Sequence[TileProgram | LoneCall | Rejected]:
    """The programs of a kernel's nodes, each in a kernel of its own; a product is a call of the library."""
    programs: list[TileProgram | LoneCall | Rejected] = []
    for name in kernel.pattern.nodes:
        inner = Pattern((name,), (name,)).graph(graph)
        own = {v: layouts[v] for v in inner.type_by_name if v in layouts}
        if is_library(graph.node_by_name[name]):
            programs.append(LoneCall(inner, own))
            continue
        programs.append(templates.schedule_pattern(inner, (name,), own, device, options.eager_rounding))
    return programs
