"""Plans with separate launches for values computed from parameters alone, so that these are stored across calls (`keep_weights`).

    %p = pack(%w)  %q = turn(%x)  %y = convolution(%q, %p)
        one plan                p and q in one launch; y
        apart                   p  |  q; y             the part before the bar runs when %w has changed
"""
from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

from tilefuse.ir.graph import Graph, Input, Node
from tilefuse.ir.layouts import Layouts, strides_of
from tilefuse.plan.pattern import Plan, PlannedKernel, PlanStep
from tilefuse.plan.rewrites.views import find_views

Planner = Callable[[Graph, Layouts, Layouts], Plan]


def kept_values(graph: Graph, static: Collection[str], layouts: Layouts, fixed: Layouts) -> tuple[str, ...]:
    """Stored values computed from static inputs and constants alone: operands of library calls, and results of sums.

    Maps of parameters are computed in the kernels that read them, which costs less than loading stored results.
    """
    stable = (set(static) | {i.name for i in graph.inputs if i.constant}) - {target for target, _ in graph.updates}
    for node in graph.nodes:
        if stable.issuperset(node.reads()) and _depends_on_operands(node):
            stable.add(node.name)
    views = find_views(graph, layouts, fixed)
    escaping = set(graph.escaping)
    stored: dict[str, None] = {}
    for node in graph.nodes:
        if node.name in stable:
            continue
        for value in node.reads():
            base = views[value].base if value in views else value
            maker = graph.node_by_name.get(base)
            if maker is not None and base in stable and base not in escaping and (node.category == "library" or maker.category != "map"):
                stored[base] = None
    return tuple(stored)


def _depends_on_operands(node: Node) -> bool:
    """Whether a node computes equal results from equal operands; an operator of torch's or of the user's may draw numbers or have a
    state."""
    return bool(node.reads()) and (node.category != "library" or "." not in node.detail and node.detail != "random_seed")


def planned_apart(graph: Graph, kept: Collection[str], given: Layouts, layouts: Layouts, fixed: Layouts, plan: Planner) -> Plan:
    """The plan of a graph whose first steps compute exactly the values `kept`; `plan` plans a graph for given and required strides."""
    first = _reaching(graph, kept, set())
    read = {v for n in first for v in n.reads()}
    laid = {v: strides_of(graph, layouts, v) for v in kept}
    weights = plan(replace(graph, name=f"{graph.name}_weights", inputs=tuple(i for i in graph.inputs if i.name in read), nodes=first,
                           results=tuple(kept), updates=()), given, laid)
    inputs = (*graph.inputs, *(Input(v, graph.type_of(v)) for v in kept))
    rest = plan(replace(graph, inputs=inputs, nodes=_reaching(graph, graph.escaping, set(kept))), {**given, **laid}, fixed)
    return _joined(graph, weights, rest)


def _reaching(graph: Graph, values: Iterable[str], known: set[str]) -> tuple[Node, ...]:
    """The nodes from which these values are computed, given the `known` values."""
    needed = set(values) - known
    reaching = []
    for node in reversed(graph.nodes):
        if node.name in needed:
            reaching.append(node)
            needed.update(set(node.reads()) - known)
    return tuple(reversed(reaching))


def _joined(graph: Graph, weights: Plan, rest: Plan) -> Plan:
    """Both plans as one of the whole graph, one after the other. Kernels of one name are equal: the name contains a digest of the
    kernel."""
    steps: list[PlanStep] = []
    for step in (*weights.steps, *rest.steps):
        number = sum(isinstance(s, PlannedKernel) for s in steps)
        steps.append(replace(step, name=f"k{number}") if isinstance(step, PlannedKernel) else step)
    return replace(rest, graph=graph, steps=tuple(steps), views=(*weights.views, *rest.views), layouts={**weights.layouts, **rest.layouts},
                   objective_us=weights.objective_us + rest.objective_us, unfused_us=weights.unfused_us + rest.unfused_us,
                   unfused_kernels=weights.unfused_kernels + rest.unfused_kernels,
                   unfused_bytes=weights.unfused_bytes + rest.unfused_bytes, notes=(*weights.notes, *rest.notes),
                   unfused_kernels_us=weights.unfused_kernels_us + rest.unfused_kernels_us,
                   alone_us={**weights.alone_us, **rest.alone_us}, timed_calls={**weights.timed_calls, **rest.timed_calls})
