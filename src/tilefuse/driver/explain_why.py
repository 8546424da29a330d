"""Why neighbouring steps of a plan do not share a kernel, and why the nodes of a kernel do, priced ahead for a page."""
from __future__ import annotations

from collections.abc import Set
from dataclasses import asdict
from typing import Any

from tilefuse.base.options import Options
from tilefuse.plan.edit import setting_of_plan
from tilefuse.plan.pattern import Plan, PlannedKernel, PlanStep
from tilefuse.plan.why import why
from tilefuse.target.device import DeviceSpec

# Pairs that are priced for one page; equal pairs count once. Each pair schedules the kernels of the other choice.
MAX_PAIRS = 120


def neighbour_answers(plan: Plan, device: DeviceSpec, options: Options, most: int = MAX_PAIRS,
                      about: Set[str] | None = None) -> list[dict[str, Any]]:
    """`plan.why`'s answers for a value that a step writes and the first that its reader makes of it, and for the two ends of each kernel.

    Equal pairs of steps are asked once, for the first of them. about: only pairs with one of these values.
    """
    setting = setting_of_plan(plan, device, options)
    made: list[dict[str, Any]] = []
    for first, second in [p for p in _pairs(plan) if about is None or not about.isdisjoint(p)][:most]:
        made.append({key: value for key, value in asdict(why(plan, setting, first, second)).items() if key != "others"})
    return made


def _pairs(plan: Plan) -> dict[tuple[str, str], None]:
    """Pairs of values to ask about, in order of execution."""
    home: dict[str, PlanStep] = {}
    asked: set[tuple[object, ...]] = set()
    pairs: dict[tuple[str, str], None] = {}
    bases = {v.value: v.base for v in plan.views}
    for step in plan.steps:
        values = step.pattern.nodes if isinstance(step, PlannedKernel) else tuple(v for _, v in step.results)
        for node in values:
            for read in plan.graph.node_by_name[node].reads():
                source = bases.get(read, read)
                other = home.get(source)
                if other is None or other is step:
                    continue
                form = (_form(other), _form(step))
                if form not in asked:
                    asked.add(form)
                    pairs[source, node] = None
        if isinstance(step, PlannedKernel) and len(values) > 1 and (_form(step),) not in asked:
            asked.add((_form(step),))
            pairs[values[0], values[-1]] = None
        home |= dict.fromkeys(values, step)
    return pairs


def _form(step: PlanStep) -> object:
    """Equal for steps that run the same code."""
    return id(step.program) if isinstance(step, PlannedKernel) else step.operator
