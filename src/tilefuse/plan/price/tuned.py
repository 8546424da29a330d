"""Tuning results: the fastest template of a pattern on a device, stored under the pattern's form.

A form contains no names, so a result holds for every layer that computes the same on the same shapes and layouts. Templates are stored in
canonical names (n0, n1, ...) and renamed to those of the kernel that uses them.
"""
from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from tilefuse.base import trace
from tilefuse.base.errors import UnsupportedError, UserError
from tilefuse.domain.tile import TileProgram
from tilefuse.plan.pattern import MEASUREMENT, Cost, Plan, PlannedKernel
from tilefuse.plan.price.cost import CostModel
from tilefuse.plan.price.structure import anonymous
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.by_hand import program_by_hand
from tilefuse.templates.notation import Template, parse_template


@dataclass(frozen=True, slots=True)
class Form:
    """A pattern without its names: `key` is equal for equal patterns; nodes and inputs are in canonical order."""

    key: str
    nodes: tuple[str, ...]
    inputs: tuple[str, ...]

    def canonical_names(self) -> dict[str, str]:
        """n0, n1, ... for nodes and i0, i1, ... for inputs, by their names."""
        return {name: f"{letter}{n}" for letter, names in (("n", self.nodes), ("i", self.inputs)) for n, name in enumerate(names)}


def form_of(program: TileProgram) -> Form:
    """The form of a program's pattern: node forms, wiring, boundary types and layouts."""
    graph = program.graph
    place: dict[str, str] = {}
    parts: list[object] = []
    for node in graph.nodes:
        reads = node.reads()
        for value in reads:
            if value not in place:
                place[value] = f"v{len(place)}"
                parts.append((place[value], graph.type_of(value), program.layouts.get(value)))
        parts.append((anonymous(node, reads), tuple(place[v] for v in reads)))
        place[node.name] = f"v{len(place)}"
    parts.append(tuple((place[r], program.layouts.get(r)) for r in graph.results))
    nodes = tuple(n.name for n in graph.nodes)
    return Form(hashlib.sha256(repr(parts).encode()).hexdigest()[:32], nodes, tuple(v for v in place if v not in graph.node_by_name))


def canonical(template: Template, form: Form) -> str:
    """A template's text in canonical names."""
    return str(_renamed(template, form.canonical_names()))


def named(text: str, form: Form) -> Template:
    """The template of a canonical text in the names of a form. Raises: ParseError for text that is no template."""
    return _renamed(parse_template(text, "<tuning result>"), {short: name for name, short in form.canonical_names().items()})


def _renamed(template: Template, names: Mapping[str, str]) -> Template:
    return replace(template, schedules=tuple(replace(s, name=names.get(s.name, s.name)) for s in template.schedules),
                   parts=tuple((count, _renamed(part, names)) for count, part in template.parts))


class TunedCost:
    """A cost model in which a kernel that holds a product costs its tuned time, beside which the product's call is a measurement too.

    Units: microseconds. Source: `us_of`, the best time of tuning by form key, for kernels of products; else the wrapped model's. Other
    kernels keep their predictions, so that one of many candidates for a pattern is not judged by a measurement that the others lack.
    """

    def __init__(self, model: CostModel, us_of: Callable[[str], float | None]) -> None:
        self._model, self._us_of = model, us_of

    def cost(self, program: TileProgram) -> Cost:
        """The tuned time, else the predicted one. Units: microseconds."""
        if any(n.category == "library" for n in program.graph.nodes):
            us = self._us_of(form_of(program).key)
            if us is not None:
                return Cost(us, MEASUREMENT)
        return self._model.cost(program)

    def limit_us(self, program: TileProgram) -> float:
        """As the wrapped model. Units: microseconds. Source: the wrapped model's."""
        return self._model.limit_us(program)


Find = Callable[[str], str | None]


def with_tuned(plan: Plan, find: Find, device: DeviceSpec, model: CostModel) -> Plan:
    """The plan with the tuned template of each kernel, where `find` (by form key) has one; the same object if none.

    A stored template that no longer fits its kernel is skipped with an event.
    """
    tuned_by_id: dict[int, TileProgram] = {}
    for program in plan.programs:
        form = form_of(program)
        text = find(form.key)
        if text is None:
            continue
        try:
            tuned = program_by_hand(program, named(text, form), device)
        except (UserError, UnsupportedError) as error:
            trace.current().event("stale tuning result", "plan", kernel=program.name, why=error.message)
            continue
        if tuned.choice != program.choice:
            tuned_by_id[id(program)] = replace(tuned, name=f"{program.name}_t{hashlib.sha256(text.encode()).hexdigest()[:4]}")
    if not tuned_by_id:
        return plan
    steps = tuple(replace(s, program=tuned_by_id[id(s.program)], cost=model.cost(tuned_by_id[id(s.program)]))
                  if isinstance(s, PlannedKernel) and id(s.program) in tuned_by_id else s for s in plan.steps)
    tuned_plan = replace(plan, steps=steps)
    gained_us = sum(k.cost.us for k in plan.kernels) - sum(k.cost.us for k in tuned_plan.kernels)
    return replace(tuned_plan, objective_us=plan.objective_us - gained_us,
                   notes=(*plan.notes, f"{len(tuned_by_id)} of {len(plan.programs)} kernels have a tuned template"))
