"""Plans written by hand: an outline (a plan's text, perhaps edited) becomes a plan, or the first error in it is reported.

    outline  ->  names known, values written once, levels given  ->  order without a cycle  ->  every kernel scheduled  ->  plan

The text determines which nodes share a kernel and which values it writes. Tiles, costs and names of kernels follow as in a plan of the
planner.
"""
from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from graphlib import CycleError, TopologicalSorter
from types import MappingProxyType

from tilefuse import templates
from tilefuse.base.candidate import Rejected
from tilefuse.base.errors import NameLookupError, UserError, nearest
from tilefuse.base.options import Options
from tilefuse.base.search.limits import SEARCH
from tilefuse.domain.tile import EdgeLevel, TileProgram
from tilefuse.ir.graph import Graph, Node, library_call_key, node_inputs
from tilefuse.ir.layouts import Layouts
from tilefuse.plan.assemble import Chosen, assemble
from tilefuse.plan.pattern import LibraryCall, Pattern, Plan, PlannedKernel, View, is_library, needed_nodes, verify_plan
from tilefuse.plan.price.cost import AnalyticCost
from tilefuse.plan.price.price import Priced, Pricer, Ways
from tilefuse.plan.price.structure import boundary
from tilefuse.plan.rewrites.views import find_views, without_views
from tilefuse.plan.text.text import KernelOutline, Outline
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.by_hand import program_by_hand
from tilefuse.templates.notation import Template
from tilefuse.templates.registry import kernel_template

# Generators whose kernels are one walk or staged, and the generator whose kernels are packed; for "packing" the faster of both is used.
UNPACKED = ("single", "connect", "recompute", "substitution", "exploratory", "walk")
PACKED = "pack"
# The generator of kernels of tasks (`select/grid_level.py`).
TASKS = "tasks"


@dataclass(frozen=True, slots=True)
class Setting:
    """Context that completes an outline: the graph after passes, its layouts and views, and the pricer of its kernels."""

    graph: Graph
    device: DeviceSpec
    layouts: Layouts
    views: Mapping[str, View]
    pricer: Pricer


def setting_of(graph: Graph, given: Layouts, layouts: Layouts, result_layouts: Layouts, device: DeviceSpec,
               options: Options) -> Setting:
    """The setting of a graph under the decided layouts."""
    decided = dict(layouts) | dict(given)
    one = partial(templates.schedule_pattern, eager_rounding=options.eager_rounding, fetches_early=options.fetches_early)
    many = partial(one, packing=True)
    views = find_views(graph, decided, result_layouts)
    pricer = Pricer(graph, without_views(decided, views), device, options, Ways(one, many), AnalyticCost(device))
    return Setting(graph, device, decided, views, pricer)


def setting_of_plan(plan: Plan, device: DeviceSpec, options: Options) -> Setting:
    """The setting in which a plan was made, for pricing other choices in it."""
    setting = setting_of(plan.graph, {}, plan.layouts, {}, device, options)
    return replace(setting, views={v.value: v for v in plan.views})


def plan_of_outline(outline: Outline, setting: Setting) -> Plan:
    """The plan that an outline writes.

    Raises: NameLookupError for an unknown value, kernel or library operator; UserError for another device's plan, a value with no writer or
    with two, an edge without a level or with one that its kernel does not have, a cycle, and a kernel that cannot be scheduled.
    """
    if outline.device != setting.device.name:
        raise UserError(f"the plan is for {outline.device}, not for {setting.device.name}",
                        hint=f"its head says for which device it is; --target {outline.device} compiles for that one")
    kernels = [s for s in outline.steps if isinstance(s, KernelOutline)]
    _check_names(outline, kernels, setting)
    _check_views(outline, setting)
    place = {n.name: number for number, n in enumerate(setting.graph.nodes)}
    kernels = [replace(k, pattern=Pattern(*(tuple(sorted(names, key=place.__getitem__)) for names in (k.pattern.nodes, k.pattern.written))))
               for k in kernels]
    _check_cover(kernels, _library_units(setting.graph, {n for k in kernels for n in k.pattern.nodes}), setting)
    _check_spare(kernels, setting)
    plan = plan_of_patterns([(k.name, k.pattern) for k in kernels], setting, priced={k.name: _as_written(setting, k) for k in kernels})
    _check_levels(plan, {k.pattern.nodes: k for k in kernels})
    findings = verify_plan(plan)
    if findings:
        notes = [f"{f.rule}: {f.message}" for f in findings[1:SEARCH.texts.listed]]
        raise UserError(f"the plan is not legal: {findings[0].message}", notes=notes)
    return plan


def plan_of_patterns(kernels: Sequence[tuple[str, Pattern]], setting: Setting, generator: str = "text",
                     priced: Mapping[str, Priced | Rejected] = MappingProxyType({})) -> Plan:
    """The plan whose kernels are these patterns, named for messages; nodes in none of them are library calls or views.

    generator: the generator's name in the plan; priced: kernels by name that are already decided.
    Raises: UserError for a cycle, and for a kernel that cannot be scheduled.
    """
    calls = _library_units(setting.graph, {n for _, p in kernels for n in p.nodes})
    ordered = _ordered([*(p for _, p in kernels), *calls], [*(name for name, _ in kernels), *(c.nodes[0] for c in calls)], setting)
    name_of = {id(pattern): name for name, pattern in kernels}
    chosen: list[Chosen] = []
    for pattern in ordered:
        if id(pattern) not in name_of:
            chosen.append(Chosen("library", pattern, None))
            continue
        outcome = priced.get(name_of[id(pattern)]) or price(setting, pattern)
        if isinstance(outcome, Rejected):
            raise UserError(f"kernel {name_of[id(pattern)]} cannot be one kernel: {outcome}", hint="take some of its nodes out")
        chosen.append(Chosen(generator, pattern, outcome))
    alone = [Chosen("single", p, one) for p in _single(setting) if not isinstance(one := setting.pricer.price(p), Rejected)]
    return assemble(setting.graph, setting.device, setting.layouts, dict(setting.views), chosen,
                    sum(c.priced.cost.us for c in chosen if c.priced), sum(c.priced.cost.us for c in alone if c.priced), alone, (), 0)


def price(setting: Setting, pattern: Pattern, generator: str = "") -> Priced | Rejected:
    """The pattern's kernel: one loop nest (or its stages in one block), or the packed kernel of its independent parts; the faster of both.

    generator: the proposer of the pattern. A pattern from connecting or a similar generator is packed only where no other kernel exists; a
    packed one stays packed, so that a printed plan gives its own kernels back.
    """
    whole = setting.pricer.price(pattern)
    if generator in UNPACKED and not isinstance(whole, Rejected):
        return whole
    packed = setting.pricer.price(pattern, limited=False)
    if isinstance(packed, Rejected):
        return whole
    if generator == PACKED or isinstance(whole, Rejected) or packed.cost.us <= whole.cost.us:
        return packed
    return whole


def _as_written(setting: Setting, kernel: KernelOutline) -> Priced | Rejected:
    """The kernel that an outline means: where a pattern has two, the levels of the edges may distinguish them.

    Raises: UserError for a kernel of tasks.
    """
    if kernel.generator == TASKS:
        raise UserError(f"kernel {kernel.name} consists of tasks, which a written plan cannot have yet",
                        hint="write its stages as kernels: the plan's text with grid_level=off has them")
    outcome = price(setting, kernel.pattern, kernel.generator)
    if isinstance(outcome, Rejected) or _levels(setting, kernel.pattern, outcome) == set(kernel.levels):
        return outcome
    for limited in (True, False):
        other = setting.pricer.price(kernel.pattern, limited)
        if not isinstance(other, Rejected) and _levels(setting, kernel.pattern, other) == set(kernel.levels):
            return other
    return outcome


def _levels(setting: Setting, pattern: Pattern, priced: Priced) -> set[EdgeLevel]:
    binding = tuple(zip(priced.boundary, boundary(setting.graph, pattern), strict=True))
    return set(PlannedKernel("", pattern, priced.program, binding, "", priced.cost, priced.limit_us).levels)


def _single(setting: Setting) -> list[Pattern]:
    return [Pattern((n.name,), (n.name,)) for n in setting.graph.nodes if not is_library(n) and n.name not in setting.views]


def _unknown(name: str, what: str, known: Iterable[str]) -> NameLookupError:
    listed = list(known)
    return NameLookupError(f"{what} names %{name}, which the graph does not have", hint=nearest(name, listed) or
                           "names are those of the graph after passes: tilefuse explain prints them")


def _check_names(outline: Outline, kernels: Sequence[KernelOutline], setting: Setting) -> None:
    nodes = setting.graph.node_by_name
    inputs = {i.name for i in setting.graph.inputs}
    names_in_use: set[str] = set()
    for kernel in kernels:
        if kernel.name in names_in_use:
            raise UserError(f"two kernels are called {kernel.name}")
        names_in_use.add(kernel.name)
        if not kernel.pattern.nodes:
            raise UserError(f"kernel {kernel.name} holds no nodes")
        for name in (*kernel.pattern.nodes, *kernel.pattern.written):
            if name in inputs:
                raise UserError(f"kernel {kernel.name} holds %{name}, which is an input", hint="take it out: kernels hold nodes")
            if name not in nodes:
                raise _unknown(name, f"kernel {kernel.name}", nodes)
        twice = next((n for n in kernel.pattern.nodes if kernel.pattern.nodes.count(n) > 1), None)
        if twice is not None:
            raise UserError(f"kernel {kernel.name} names %{twice} twice", hint="name each node once")
        for name in kernel.pattern.written:
            if name not in kernel.pattern.nodes:
                raise UserError(f"kernel {kernel.name} writes %{name}, which it does not compute", hint="add it to the kernel's nodes")
    _check_calls(outline, kernels, nodes)


def _check_calls(outline: Outline, kernels: Sequence[KernelOutline], nodes: Mapping[str, Node]) -> None:
    """Checks library lines for contradictions. Library calls themselves follow from the graph and from the kernels' contents."""
    for call in (s for s in outline.steps if isinstance(s, LibraryCall)):
        for _, value in call.results:
            if value not in nodes:
                raise _unknown(value, f"library call {call.operator}", nodes)
            if not is_library(nodes[value]) or nodes[value].detail != call.operator:
                what = f"a call of {nodes[value].detail}, not of {call.operator}" if is_library(nodes[value]) else "no call of the library"
                raise UserError(f"%{value} is {what}", hint="leave library lines as they were printed, or take them out")
            holder = next((k.name for k in kernels if value in k.pattern.nodes), None)
            if holder is not None:
                raise UserError(f"%{value} is computed by kernel {holder} and by a library call", hint="take one of them out")


def _check_views(outline: Outline, setting: Setting) -> None:
    for view in outline.views:
        if setting.views.get(view.value) != view:
            raise UserError(f"%{view.value} is not that view of %{view.base} in this graph",
                            hint="views and layouts are decided before kernels; leave their lines as they were printed")
    for value, strides in outline.layouts:
        if tuple(setting.layouts.get(value, ())) != strides:
            raise UserError(f"%{value} does not have strides {list(strides)} here", hint="leave layout lines as they were printed")


def _library_units(graph: Graph, held_calls: Set[str]) -> list[Pattern]:
    """The library calls that no kernel holds."""
    calls: dict[object, list[str]] = {}
    for node in graph.nodes:
        if is_library(node) and node.name not in held_calls:
            calls.setdefault(library_call_key(node), []).append(node.name)
    return [Pattern(tuple(names), tuple(names)) for names in calls.values()]


def _check_cover(kernels: Sequence[KernelOutline], calls: Sequence[Pattern], setting: Setting) -> None:
    """Checks that exactly one kernel writes every value that is needed in memory."""
    writer: dict[str, str] = {}
    for kernel in kernels:
        for value in kernel.pattern.written:
            if value in writer:
                raise UserError(f"%{value} is written by {writer[value]} and by {kernel.name}", hint="take it out of one of their -> lists")
            writer[value] = kernel.name
    nodes = setting.graph.node_by_name

    def need(values: Iterable[str], reader: str) -> None:
        for value in values:
            base = setting.views[value].base if value in setting.views else value
            holder = next((k.name for k in kernels if base in k.pattern.nodes), None)
            if base in nodes and base not in writer and (holder is not None or not is_library(nodes[base])):
                hint = f"write it from {holder}: -> {{..., %{base}}}" if holder else "add it to a kernel, or give it one of its own"
                raise UserError(f"no kernel writes %{base}, which {reader} reads", hint=hint)

    for kernel in kernels:
        need(node_inputs(nodes[n] for n in kernel.pattern.nodes), kernel.name)
    for call in calls:
        need(nodes[call.nodes[0]].operands, nodes[call.nodes[0]].detail)
    need(sorted(setting.graph.escaping), "the caller")


def _check_spare(kernels: Sequence[KernelOutline], setting: Setting) -> None:
    """Checks that every kernel needs all the nodes that it computes."""
    for kernel in kernels:
        needed = needed_nodes(setting.graph, kernel.pattern)
        for name in (n for n in kernel.pattern.nodes if n not in needed):
            raise UserError(f"kernel {kernel.name} computes %{name}, and neither writes nor reads it",
                            hint=f"take it out, or write it: -> {{..., %{name}}}")


def _ordered(patterns: Sequence[Pattern], names: Sequence[str], setting: Setting) -> list[Pattern]:
    """The patterns in an order in which each value is written before it is read. Raises: UserError naming a cycle."""
    writer = {v: n for n, p in enumerate(patterns) for v in p.written}
    nodes = setting.graph.node_by_name
    before: dict[int, list[int]] = {}
    for number, pattern in enumerate(patterns):
        reads = node_inputs(nodes[n] for n in pattern.nodes)
        bases = [setting.views[v].base if v in setting.views else v for v in (*reads, *nodes[pattern.nodes[0]].operands)]
        before[number] = [writer[v] for v in dict.fromkeys(bases) if v in writer and writer[v] != number]
    try:
        return [patterns[n] for n in TopologicalSorter(before).static_order()]
    except CycleError as cause:
        cycle = [names[n] for n in cause.args[1]]
        raise UserError(f"the kernels wait for each other: {' -> '.join(reversed(cycle))}",
                        hint="a kernel must not hold both a value and another value computed from it outside the kernel") from cause


def _check_levels(plan: Plan, outlines: Mapping[tuple[str, ...], KernelOutline]) -> None:
    """Checks that every edge inside a kernel has the level that its schedule gives it."""
    for kernel in plan.kernels:
        outline = outlines[kernel.pattern.nodes]
        edges = {(e.producer, e.user): e for e in kernel.levels}
        for edge in kernel.levels:
            line = f"edge %{edge.producer} -> %{edge.user} in {outline.name} {edge.level.value}"
            if edge in outline.levels:
                continue
            edge_text = f"edge %{edge.producer} -> %{edge.user} of kernel {outline.name}"
            other = next((e for e in outline.levels if (e.producer, e.user) == (edge.producer, edge.user) and e not in kernel.levels), None)
            if other is None:
                raise UserError(f"{edge_text} has no level", hint=f"add the line: {line}")
            raise UserError(f"{edge_text} cannot live at level {other.level.value}", hint=f"the kernel's schedule has it as: {line}")
        for extra in (e for e in outline.levels if e not in kernel.levels):
            scheduled = edges.get((extra.producer, extra.user))
            hint = "take the line out" + (f"; the kernel's schedule has it at level {scheduled.level.value}" if scheduled else "")
            raise UserError(f"kernel {outline.name} has no edge %{extra.producer} -> %{extra.user} "
                            + (f"at level {extra.level.value}" if scheduled else "inside"), hint=hint)


def with_template(plan: Plan, template: Template, setting: Setting, options: Options) -> Plan:
    """The plan in which the kernel that holds all of a handwritten template's values follows that template.

    Raises: NameLookupError for a value that no kernel schedules; UserError where its values lie in several kernels; as `program_by_hand`.
    """
    schedules = [s for t in (template, *(part for _, part in template.parts)) for s in t.schedules]
    if not schedules:
        raise UserError("a template names its kernel by a value, and this one has no schedule", hint="as in: y [GRID-CTA_128];")
    first = schedules[0]
    home = [k for k in plan.kernels if first.name in k.pattern.nodes]
    if not home:
        nodes = [n for k in plan.kernels for n in k.pattern.nodes]
        raise NameLookupError(f"no kernel computes %{first.name}", where=first.span, hint=nearest(first.name, nodes) or
                              f"values in kernels: {', '.join(nodes[:SEARCH.texts.listed])}")
    kernel = home[-1]
    if template.parts and (template.schedules or not kernel_template(kernel.program.choice).packs):
        reason = "schedules beside the parts" if template.schedules else f"kernel {kernel.name} is no packed kernel"
        raise UserError(f"a template of parts is that of a packed kernel: {reason}", where=first.span)
    for schedule_ in schedules:
        holder = next((k.name for k in plan.kernels if schedule_.name in k.pattern.nodes), None)
        if schedule_.name not in kernel.pattern.nodes and holder is not None:
            raise UserError(f"%{schedule_.name} is computed by kernel {holder} and %{first.name} by {kernel.name}", where=schedule_.span,
                            hint="a template describes one kernel")
    own = _with_own_names(kernel, setting, options)
    program = program_by_hand(own, template, setting.device)
    model = AnalyticCost(setting.device)
    rescheduled = replace(kernel, program=replace(program, name=f"{kernel.program.name}_by_hand"), generator="text",
                          binding=tuple((v, v) for v in (*(i.name for i in program.graph.inputs), *program.graph.results)),
                          cost=model.cost(program), limit_us=model.limit_us(program))
    steps = tuple(rescheduled if s is kernel else s for s in plan.steps)
    return replace(plan, steps=steps, objective_us=plan.objective_us - kernel.cost.us + rescheduled.cost.us)


def _with_own_names(kernel: PlannedKernel, setting: Setting, options: Options) -> TileProgram:
    """The kernel's program in the names of the plan's graph (equal kernels share one program with the first one's names)."""
    pattern = kernel.pattern.graph(setting.graph)
    layouts = {v: setting.layouts[v] for v in pattern.type_by_name if v in setting.layouts}
    outcome = templates.schedule_pattern(pattern, kernel.pattern.nodes, layouts, setting.device, options.eager_rounding,
                                          packing=kernel_template(kernel.program.choice).packs)
    if isinstance(outcome, Rejected):
        raise UserError(f"kernel {kernel.name} takes no template by hand: {outcome}")
    return outcome
