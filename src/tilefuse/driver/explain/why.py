"""Why steps of a plan do not share a kernel, and why the nodes of a kernel do, priced ahead for a page."""
from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import asdict
from itertools import combinations
from typing import Any

from tilefuse.base.options import Options
from tilefuse.domain.tile import Level
from tilefuse.plan.pattern import Plan, PlannedKernel, PlanStep, is_library
from tilefuse.plan.text.edit import Setting, setting_of_plan
from tilefuse.plan.text.why import why
from tilefuse.target.device import DeviceSpec

# Pairs that are priced for one page; equal pairs count once. Each pair schedules the kernels of the other choice.
MAX_PAIRS, MAX_CUTS, MAX_APART = 120, 240, 240
# Kernels with more steps or nodes from the one to the other are not priced as one: everything between them would be in it.
MAX_BETWEEN, MAX_NODES = 2, 48


def neighbour_answers(plan: Plan, device: DeviceSpec, options: Options, most: int = MAX_PAIRS,
                      about: Set[str] | None = None) -> list[dict[str, Any]]:
    """Answers of `plan.text.why`: for a value that a step writes and the first value that its reader makes of it, and for the two ends of
    each kernel.

    Equal pairs of steps are asked once, for the first of them. about: only pairs with one of these values.
    """
    setting = setting_of_plan(plan, device, options)
    pairs = [p for p in _pairs(plan) if about is None or not about.isdisjoint(p)][:most]
    return _answers(plan, setting, pairs)


def page_answers(plan: Plan, device: DeviceSpec, options: Options) -> list[dict[str, Any]]:
    """Answers for any two operators of a page: neighbours, every cut of each distinct kernel, and pairs of kernels that are no neighbours.

    `cut`: (kernel, number of its node behind which it is cut) of a cut, which is that of all kernels with this code. Pairs whose kernels
    only a call of the library lies between are left out: no price is there, and a page tells them from the graph.
    """
    setting = setting_of_plan(plan, device, options)
    neighbours = _pairs(plan)
    priced = _answers(plan, setting, list(neighbours)[:MAX_PAIRS])
    for kernel, place in list(_cuts(plan))[:MAX_CUTS]:
        (answer,) = _answers(plan, setting, [(kernel.pattern.nodes[0], kernel.pattern.nodes[place])])
        priced.append(answer | {"cut": [kernel.program.name, place]})
    apart = list(_apart(plan, neighbours))[:MAX_APART]
    others = (a for a in _answers(plan, setting, apart) if a["other_us"] is not None or a["decided_by"] not in ("not-convex", "view"))
    return [*priced, *others]


def _answers(plan: Plan, setting: Setting, pairs: Sequence[tuple[str, str]]) -> list[dict[str, Any]]:
    return [{key: value for key, value in asdict(why(plan, setting, first, second)).items() if key != "others"}
            for first, second in pairs]


def _cuts(plan: Plan) -> Iterator[tuple[PlannedKernel, int]]:
    """Places where a kernel of each form could be cut: in front of each of its nodes but the first."""
    seen: set[object] = set()
    for kernel in plan.kernels:
        if _form(kernel) not in seen:
            seen.add(_form(kernel))
            nodes = kernel.pattern.nodes
            # Scheduling stages again takes 0.1 s a cut: kernels of stages are cut where a value leaves the registers.
            leaves = {e.user for e in kernel.levels if e.level is not Level.REGISTER}
            staged = any(is_library(plan.graph.node_by_name[n]) for n in nodes)
            views = {v.value for v in plan.views}
            yield from ((kernel, place) for place in range(1, len(nodes))
                        if nodes[place] not in views and (not staged or nodes[place] in leaves))


def _apart(plan: Plan, neighbours: Set[tuple[str, str]] | dict[tuple[str, str], None]) -> Iterator[tuple[str, str]]:
    """Pairs of kernels that lie near each other and are no neighbours, the nearest first; each by its last and its first value."""
    neighbour_homes = {(_home(plan, a), _home(plan, b)) for a, b in neighbours}
    kernels = [(n, s) for n, s in enumerate(plan.steps) if isinstance(s, PlannedKernel)]
    near = [(b - a, a, b) for (a, _), (b, _) in combinations(kernels, 2) if b - a <= MAX_BETWEEN + 1 and (a, b) not in neighbour_homes
            and sum(len(_values(s)) for s in plan.steps[a:b + 1]) <= MAX_NODES]
    for _, a, b in sorted(near):
        first, second = plan.steps[a], plan.steps[b]
        if isinstance(first, PlannedKernel) and isinstance(second, PlannedKernel):
            yield first.pattern.nodes[-1], second.pattern.nodes[0]


def _home(plan: Plan, value: str) -> int:
    return next((n for n, s in enumerate(plan.steps) if value in _values(s)), -1)


def _pairs(plan: Plan) -> dict[tuple[str, str], None]:
    """Pairs of values to ask about, in order of execution."""
    home: dict[str, PlanStep] = {}
    seen_forms: set[tuple[object, ...]] = set()
    pairs: dict[tuple[str, str], None] = {}
    bases = {v.value: v.base for v in plan.views}
    for step in plan.steps:
        values = _values(step)
        for node in values:
            for read in plan.graph.node_by_name[node].reads():
                source = bases.get(read, read)
                other = home.get(source)
                if other is None or other is step:
                    continue
                form = (_form(other), _form(step))
                if form not in seen_forms:
                    seen_forms.add(form)
                    pairs[source, node] = None
        if isinstance(step, PlannedKernel) and len(values) > 1 and (_form(step),) not in seen_forms:
            seen_forms.add((_form(step),))
            pairs[values[0], values[-1]] = None
        home |= dict.fromkeys(values, step)
    return pairs


def _values(step: PlanStep) -> tuple[str, ...]:
    return step.pattern.nodes if isinstance(step, PlannedKernel) else tuple(v for _, v in step.results)


def _form(step: PlanStep) -> object:
    """Equal for steps that run the same code."""
    return id(step.program) if isinstance(step, PlannedKernel) else step.operator
