"""The passes fusion, codegen and rtc: a graph's patterns as fused nodes, their sources, their machine code.

    %a, %b, %y  ->  %y = library.fused(%x) {kernel = "k0", result = 0}     "subgraph": {"y": graph of %a, %b, %y}

The graph and "subgraph" decide which kernels are generated: a pass between these three may change both. Unchanged, they give the kernels of
`tilefuse.compile`, and the stored plan of an earlier run for the same graph, device and options is reused.
"""
from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from typing import Any, ClassVar

from tilefuse.base.errors import UserError
from tilefuse.base.options import Options
from tilefuse.driver.compile import Generated, Prepared, prepare
from tilefuse.driver.explain.explain import explanation_of
from tilefuse.driver.graph_passes import device_of
from tilefuse.driver.lowering.lower import lower
from tilefuse.driver.planning import plan_on_device
from tilefuse.driver.reuse.known_programs import find_program, is_keepable, keep_program, program_digest
from tilefuse.ir.graph import Graph, Node
from tilefuse.passes.manager import Pass, PassContext, Properties, Property, register_pass
from tilefuse.plan.pattern import Pattern, Plan
from tilefuse.plan.text.edit import plan_of_patterns, setting_of
from tilefuse.plan.text.text import KernelOutline, Outline, outline_of, parse_plan, print_plan
from tilefuse.runtime.compilers.binaries import build_kernels
from tilefuse.runtime.compilers.nvrtc import Resources, parse_resources
from tilefuse.runtime.spec import KernelStep, ProgramSpec
from tilefuse.runtime.stores.cache import cache_of
from tilefuse.target.device import DeviceSpec

FUSED = "fused"


@dataclass(frozen=True)
class Planned:
    """Decisions of the pass fusion: the prepared graph, the patterns by kernel name, and the plan or a known program's parts.

    given: the graph before passes. digest: under which the program is stored; "" where it is not. spec: of a known program; plan: of a new
    one.
    """

    given: Graph
    prepared: Prepared
    patterns: Mapping[str, Pattern]
    digest: str
    plan: Plan | None = None
    spec: ProgramSpec | None = None
    known_constants: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class CompiledKernel:
    """Machine code of one kernel: a cubin or a shared object, and the compiler's output."""

    name: str
    symbol: str
    payload: bytes
    log: str

    @property
    def resources(self) -> Resources | None:
        """Registers, spills and shared memory, for CUDA kernels."""
        return parse_resources(self.log)


@register_pass
@dataclass(frozen=True)
class Fusion(Pass):
    """Normal form, layouts, plan: every kernel becomes a fused node, "subgraph" maps it to its computation, "plan" is the plan's text.

    Exact: no; as the passes of a whole compile, which it runs first.
    """

    name: ClassVar[str] = "fusion"
    exact: ClassVar[bool] = False
    idempotent: ClassVar[bool] = False
    depends: ClassVar[tuple[str, ...]] = ("constants",)
    provides: ClassVar[tuple[str, ...]] = ("subgraph", "plan", "planned")

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        """The graph with a fused node for each value that a kernel writes."""
        device, options = device_of(ctx), ctx.options
        ready = prepare(graph, constants=ctx.constants, device=device, options=options)
        digest, known = "", None
        if is_keepable(options):
            digest = program_digest(graph, ctx.constants, None, device, options, (), None, ())
            known = find_program(digest, options)
        if known is not None:
            outline = parse_plan(known.spec.plan_text)
            planned = Planned(graph, ready, _patterns(outline), digest, spec=known.spec, known_constants=known.constants)
            text = known.spec.plan_text
        else:
            plan = plan_on_device(ready.graph, ready.given, device, options, result_layouts=ready.fixed, layouts=ready.layouts)
            outline = outline_of(plan)
            planned, text = Planned(graph, ready, _patterns(outline), digest, plan=plan), print_plan(plan)
        fused, subgraphs = fused_graph(ready.graph, planned.patterns)
        ctx.attributes |= {"subgraph": subgraphs, "plan": text, "planned": planned}
        ctx.constants = dict(ready.constants)
        return fused


@register_pass
@dataclass(frozen=True)
class Codegen(Pass):
    """The source of every fused node's kernel: "kernel" maps the node to it (`.source`, `.launch`), "spec" is the whole program.

    Exact: the graph stays as it is.
    """

    name: ClassVar[str] = "codegen"
    preserves: ClassVar[Properties] = frozenset(Property)
    depends: ClassVar[tuple[str, ...]] = ("subgraph", "planned")
    provides: ClassVar[tuple[str, ...]] = ("kernel", "spec")

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        """The graph unchanged. Raises: UserError for inconsistent subgraphs, or ones that no kernel computes."""
        planned: Planned = ctx.attributes["planned"]
        flat, patterns = flattened(graph, ctx.attributes["subgraph"])
        unchanged = same_graph(flat, planned.prepared.graph) and patterns == dict(planned.patterns)
        names = list(planned.patterns)
        if unchanged and planned.spec is not None:
            spec = planned.spec
        else:
            plan = planned.plan if unchanged else None
            if plan is None:
                plan = _planned_again(flat, patterns, planned.prepared, device_of(ctx), ctx.options)
                called = {p: name for name, p in patterns.items()}
                names = [called.get(k.pattern, k.name) for k in plan.kernels]
            spec = _program_spec(plan, ctx, planned.given)
        launches = [spec.kernels[s.kernel] for s in spec.steps if isinstance(s, KernelStep)]
        code_of = dict(zip(names, launches, strict=True))
        kernels = {n.name: code_of[kernel] for n in graph.nodes if (kernel := kernel_of(n))}
        ctx.attributes |= {"kernel": kernels, "spec": spec, "unchanged": unchanged}
        return graph


def _program_spec(plan: Plan, ctx: PassContext, imported: Graph) -> ProgramSpec:
    """The program of a plan with its texts, as `generate` makes it. given: the graph before passes."""
    device = device_of(ctx)
    spec = lower(plan, device, ctx.options)
    explanation = json.dumps(explanation_of(plan, spec, (), ctx.options.changed(), device, imported))
    return replace(spec, plan_text=print_plan(plan), explanation=explanation,
                   plan_seconds=plan.search.seconds if plan.search is not None else None)


@register_pass
@dataclass(frozen=True)
class Rtc(Pass):
    """Machine code of every fused node's kernel: "rtc" maps the node to it. The graph can then be called.

    Exact: the graph stays as it is.
    """

    name: ClassVar[str] = "rtc"
    preserves: ClassVar[Properties] = frozenset(Property)
    depends: ClassVar[tuple[str, ...]] = ("kernel", "spec")
    provides: ClassVar[tuple[str, ...]] = ("rtc",)

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        """The graph unchanged. Raises: ToolchainError where a compiler fails."""
        spec: ProgramSpec = ctx.attributes["spec"]
        options = ctx.options
        store = cache_of(options.cache, options.cache_dir)
        entries = build_kernels(spec.kernels, store, jobs=options.jobs, cxx=options.cxx)
        compiled = {code: CompiledKernel(code.name, e.symbol, e.payload, e.log) for code, e in zip(spec.kernels, entries, strict=True)}
        planned: Planned = ctx.attributes["planned"]
        if planned.digest and planned.spec is None and planned.plan is not None and ctx.attributes["unchanged"]:
            constant_names = {v.name for v in spec.values if v.role == "constant"}
            constants = {k: v for k, v in ctx.constants.items() if k in constant_names}
            keep_program(planned.digest, Generated(planned.plan, spec, constants, device_of(ctx)), constants, options)
        ctx.attributes |= {"rtc": {node: compiled[code] for node, code in ctx.attributes["kernel"].items()}, "binaries": entries}
        return graph


def kernel_of(node: Node) -> str:
    """The kernel that a fused node stands for; "" for any other node."""
    return str(node.attribute("kernel", "")) if node.kind == f"library.{FUSED}" else ""


def _patterns(outline: Outline) -> dict[str, Pattern]:
    return {s.name: s.pattern for s in outline.steps if isinstance(s, KernelOutline)}


def fused_graph(graph: Graph, patterns: Mapping[str, Pattern]) -> tuple[Graph, dict[str, Graph]]:
    """The graph with one node for each value that a kernel writes, and the subgraph of each of these nodes."""
    inside = {n for p in patterns.values() for n in p.nodes}
    nodes: list[Node] = []
    subgraphs: dict[str, Graph] = {}
    for name, pattern in patterns.items():
        own = pattern.graph(graph, name)
        operands = tuple(i.name for i in own.inputs)
        for number, value in enumerate(pattern.written):
            nodes.append(Node(value, graph.type_of(value), f"library.{FUSED}", operands=operands,
                              attributes=(("kernel", name), ("result", number)), span=graph.node_by_name[value].span))
            subgraphs[value] = own
    nodes.extend(n for n in graph.nodes if n.name not in inside)
    return replace(graph, nodes=tuple(in_dependence_order(nodes, graph))), subgraphs


def in_dependence_order(nodes: Sequence[Node], graph: Graph) -> list[Node]:
    """The nodes with operands before users. Raises: UserError for a cycle."""
    by_name = {n.name: n for n in nodes}
    try:
        order = TopologicalSorter({n.name: [v for v in n.reads() if v in by_name] for n in nodes}).static_order()
        return [by_name[name] for name in order]
    except CycleError as cause:
        raise UserError(f"nodes of graph @{graph.name} wait for each other: {' -> '.join(f'%{n}' for n in cause.args[1])}") from cause


def flattened(fused: Graph, subgraphs: Mapping[str, Graph]) -> tuple[Graph, dict[str, Pattern]]:
    """The graph with every fused node replaced by its subgraph, and the patterns by kernel name.

    Raises: UserError for a fused node without a subgraph, a subgraph that does not compute the node's value or reads other values, and two
    subgraphs that define one value differently.
    """
    nodes: dict[str, Node] = {}
    patterns: dict[str, Pattern] = {}
    for node in fused.nodes:
        kernel = kernel_of(node)
        if not kernel:
            nodes[node.name] = node
            continue
        own = subgraphs.get(node.name)
        _check_subgraph(node, own, fused)
        assert own is not None
        if kernel in patterns:
            continue
        patterns[kernel] = Pattern(tuple(n.name for n in own.nodes), own.results)
        for inner in own.nodes:
            if nodes.setdefault(inner.name, inner) != inner:
                raise UserError(f"two subgraphs define %{inner.name} differently", hint="give one of them another name")
    return replace(fused, nodes=tuple(in_dependence_order(tuple(nodes.values()), fused))), patterns


def _check_subgraph(node: Node, own: Graph | None, fused: Graph) -> None:
    if own is None:
        raise UserError(f"fused node %{node.name} has no subgraph", hint="the attribute \"subgraph\" maps every fused node to one")
    if node.name not in own.results or own.type_of(node.name) != node.type:
        raise UserError(f"the subgraph of %{node.name} does not give a value %{node.name} of type {node.type}")
    unknown = [i.name for i in own.inputs if i.name not in fused.type_by_name or fused.type_of(i.name) != i.type]
    if unknown:
        raise UserError(f"the subgraph of %{node.name} reads %{unknown[0]}, which the graph does not have (or of another type)")


def same_graph(a: Graph, b: Graph) -> bool:
    """Whether two graphs compute the same values in the same way, in any order of nodes."""
    return (a.inputs, a.results, a.updates) == (b.inputs, b.results, b.updates) and dict(a.node_by_name) == dict(b.node_by_name)


def _planned_again(flat: Graph, patterns: Mapping[str, Pattern], ready: Prepared, device: DeviceSpec, options: Options) -> Plan:
    """A plan with the patterns left by a pass. Raises: UserError for a pattern that cannot be a kernel."""
    layouts = {v: s for v, s in ready.layouts.items() if flat.type_by_name.get(v) == ready.graph.type_by_name.get(v)}
    setting = setting_of(flat, ready.given, layouts, ready.fixed, device, options)
    in_patterns = {n for p in patterns.values() for n in p.nodes}
    loose = [n.name for n in flat.nodes if n.category != "library" and n.name not in in_patterns and n.name not in setting.views]
    alone = {f"alone_{name}": Pattern((name,), (name,)) for name in loose}
    return plan_of_patterns([*patterns.items(), *alone.items()], setting, "fusion")
