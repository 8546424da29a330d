"""Predictions that rewritings of graphs need (`passes.facts.Prices`), by the models of time that price plans."""
from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace

from tilefuse.base.candidate import Rejected
from tilefuse.base.options import Options
from tilefuse.domain.contraction import any_contraction_of
from tilefuse.domain.parts import structure_but_starts, structure_of
from tilefuse.domain.roofline import price_work
from tilefuse.domain.tile import TileProgram
from tilefuse.domain.work import Work
from tilefuse.ir.graph import Graph, Node
from tilefuse.ir.layouts import Layouts
from tilefuse.ir.library.attention_gradient_call import AttentionGradientCall
from tilefuse.passes.facts import NO_LAYOUTS
from tilefuse.plan.pattern import Pattern, Plan
from tilefuse.plan.planner import plan_graph
from tilefuse.plan.price.attention import attention_gradient_work, attention_work
from tilefuse.plan.price.convolutions import convolution_works
from tilefuse.plan.price.cost import AnalyticCost
from tilefuse.plan.price.known_patterns import Store
from tilefuse.plan.price.library_price import price_call
from tilefuse.plan.price.products import fusible_product, library_product_us, matrix_products, may_be_alone
from tilefuse.plan.walks import find_walks
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.own_launch import OwnLaunchTemplate
from tilefuse.templates.pattern import pattern_graph, schedule_pattern
from tilefuse.templates.registry import kernel_template, kernel_templates
from tilefuse.templates.tasks.chains.build import Patterns, build_chain


def _no_store(_options: Options) -> AbstractContextManager[Store | None]:
    return nullcontext()


@dataclass(frozen=True)
class Predictions:
    """Predicted kernels and times of one device. Units: microseconds.

    store: judgements of patterns, for a compile with these options; plans of whole graphs read them and add theirs
    own_us_by_structure: times of kernels for products that were predicted before: layers of a model have the same ones again and again
    program_by_structure: kernels of nodes that were scheduled before, with the names of the first nodes of their structure
    """

    device: DeviceSpec
    store: Callable[[Options], AbstractContextManager[Store | None]] = field(default=_no_store, repr=False, compare=False)
    own_us_by_structure: dict[Hashable, float | None] = field(default_factory=dict, repr=False, compare=False)
    program_by_structure: dict[Hashable, TileProgram | Rejected] = field(default_factory=dict, repr=False, compare=False)

    def has_kernel(self, graph: Graph, nodes: tuple[str, ...], layouts: Layouts) -> bool:
        """Whether some template computes these nodes in one kernel."""
        return not isinstance(self._scheduled(graph, nodes, layouts), Rejected)

    def _scheduled(self, graph: Graph, nodes: tuple[str, ...], layouts: Layouts, eager_rounding: bool = False) -> TileProgram | Rejected:
        """`schedule_pattern`, once for nodes that are equal up to names."""
        key = structure_of(pattern_graph(graph, nodes), layouts), eager_rounding
        if key not in self.program_by_structure:
            self.program_by_structure[key] = schedule_pattern(graph, nodes, layouts, self.device, eager_rounding)
        return self.program_by_structure[key]

    def copy_us(self, num_bytes: int, launches: int = 0) -> float:
        """Predicted time of some copies. Units: bytes in, microseconds out. Source: the device's curve of copies."""
        return price_work(Work(launches, global_bytes=num_bytes), self.device).us

    def product_us(self, product: Node, graph: Graph, layouts: Layouts = NO_LAYOUTS) -> float:
        """Predicted time of the library's product. Units: microseconds. Source: `plan/price/products.py`."""
        return library_product_us(product, graph, self.device, layouts)

    def convolution_us(self, nodes: Sequence[Node], graph: Graph) -> float:
        """Predicted time of the library's convolution. Units: microseconds. Source: `plan/price/convolutions.py`."""
        return sum(price_work(work, self.device).us for work in convolution_works(nodes, graph, self.device))

    def attention_us(self, node: Node, graph: Graph) -> float | None:
        """Predicted time of the library's attention. Units: microseconds. Source: `plan/price/attention.py`."""
        work = attention_work(node, graph, self.device)
        return None if work is None else price_work(work, self.device).us

    def attention_gradient_us(self, call: AttentionGradientCall, graph: Graph) -> float | None:
        """Predicted time of the library's gradients. Units: microseconds. Source: `plan/price/attention.py`."""
        work = attention_gradient_work(call, graph, self.device)
        return None if work is None else price_work(work, self.device).us

    def kernel_us(self, graph: Graph, nodes: tuple[str, ...], eager_rounding: bool, near_bytes: int, layouts: Layouts = NO_LAYOUTS
                  ) -> float:
        """Predicted time of the best kernel for nodes. Units: microseconds; bytes. Source: `AnalyticCost`.

        The first-level cache is the same memory as shared memory and has its rate.
        """
        model = AnalyticCost(self.device)
        program = self._scheduled(graph, nodes, layouts, eager_rounding)
        if isinstance(program, Rejected):
            apart = (self._scheduled(graph, (n,), layouts, eager_rounding) for n in nodes)
            return sum(model.cost(p).us for p in apart if not isinstance(p, Rejected))
        work = model.work(program)
        return price_work(replace(work, shared_bytes=work.shared_bytes + near_bytes), self.device).us

    def plan_us(self, graph: Graph, layouts: Layouts, options: Options, greedy: bool = True) -> float:
        """Predicted time of a plan. Units: microseconds. Source: the prices of its kernels and calls."""
        plan = self._plan(graph, layouts, options, greedy)
        calls = (price_call(c, plan.graph, self.device, layouts=plan.layouts) for c in plan.library_calls)
        return sum(k.cost.us for k in plan.kernels) + sum(c.us for c in calls)

    def cut_us(self, graph: Graph, reads_of_product: Mapping[str, Collection[str]], layouts: Layouts, options: Options
               ) -> tuple[set[str], float, float]:
        """Products in kernels, the kernels' time, and that of their other nodes. Units: microseconds. Source: greedy plans."""
        in_kernels = set[str]()
        kernels_us = left_us = 0.0
        us_by_structure: dict[Hashable, float] = {}
        for kernel in self._plan(graph, layouts, options, greedy=True).kernels:
            reads = {p: reads_of_product[p] for p in kernel.pattern.nodes if p in reads_of_product}
            if not reads:
                continue
            in_kernels |= reads.keys()
            kernels_us += kernel.cost.us
            for left in parts_between(graph, kernel.pattern, reads):
                part = left.graph(graph)
                key = structure_but_starts(part, layouts)
                if key not in us_by_structure:
                    us_by_structure[key] = self.plan_us(part, layouts, options)
                left_us += us_by_structure[key]
        return in_kernels, kernels_us, left_us

    def _plan(self, graph: Graph, layouts: Layouts, options: Options, greedy: bool) -> Plan:
        """A plan whose judgements the store knows, and whose own ones enter it."""
        planner = "greedy" if greedy else options.planner
        with self.store(options) as store:
            return plan_graph(graph, layouts, self.device, replace(options, planner=planner, peak_memory_mb=0), store=store)

    def may_be_held(self, graph: Graph, products: Collection[str]) -> set[str]:
        """The products that some template holds beside other stages. Source: `matrix_products`."""
        if not products:
            return set()
        walked = matrix_products(graph, self.device).walked
        return {p for p in products if p in walked or any(
            t.holds_product(graph.node_by_name[p], graph, self.device) for t in kernel_templates() if not isinstance(t, OwnLaunchTemplate))}

    def own_product_us(self, graph: Graph, nodes: tuple[str, ...], layouts: Layouts) -> float | None:
        """Predicted time of a kernel that plans may take for a product and the maps behind it, and for nothing else; None where there is
        none. Units: microseconds. Source: `AnalyticCost`, over the share of a call's time that plans ask of its template alone."""
        product = graph.node_by_name[next(n for n in nodes if graph.node_by_name[n].category == "library")]
        behind = nodes[-1] != product.name or any(graph.node_by_name[u].category == "map" for u in graph.users_by_name[product.name])
        if not (fusible_product if behind else may_be_alone)(product, graph, self.device):
            return None
        key = structure_of(pattern_graph(graph, nodes), layouts), behind
        if key not in self.own_us_by_structure:
            self.own_us_by_structure[key] = self._kernel_us(graph, nodes, layouts, behind)
        return self.own_us_by_structure[key]

    def _kernel_us(self, graph: Graph, nodes: tuple[str, ...], layouts: Layouts, behind: bool) -> float | None:
        """`own_product_us` of nodes that plans may take for a kernel, scheduled. behind: maps follow the product."""
        program = schedule_pattern(graph, nodes, layouts, self.device)
        if isinstance(program, Rejected):
            return None
        share = 1.0 if behind else kernel_template(program.choice).own_kernel_share(self.device)
        return AnalyticCost(self.device).cost(program).us / share

    def chain_us(self, graph: Graph, parts: tuple[tuple[str, ...], str, tuple[str, ...]], layouts: Layouts, eager_rounding: bool
                 ) -> float | None:
        """Predicted time of a producer, a product and a user as tasks of one kernel in groups of tiles; None where there is no such kernel.

        Units: microseconds. Source: `AnalyticCost`.
        """
        producer, product, user = parts
        nodes = (*producer, product, *user)
        key = structure_of(pattern_graph(graph, nodes), layouts), eager_rounding, "chain"
        if key not in self.program_by_structure:
            whole, *own = (Pattern(p, (p[-1],)).graph(graph) for p in (nodes, producer, (product,), user))
            patterns = Patterns(whole, own[0], own[1], own[2], (producer[-1], product), layouts, eager_rounding)
            self.program_by_structure[key] = build_chain(patterns, self.device)
        program = self.program_by_structure[key]
        return None if isinstance(program, Rejected) else AnalyticCost(self.device).cost(program).us

    def held_products(self, graph: Graph, products: Collection[str]) -> set[str]:
        """Products that one generated kernel computes together faster than the library computes each, such as the two of an attention.

        Units: estimates in microseconds. The library's products count at their time when padded. The values between them are written and
        read once.
        """
        model, faster = AnalyticCost(self.device), dict[Hashable, bool]()
        held: set[str] = set()
        for walk in find_walks(graph, self.device):
            inside = [graph.node_by_name[n] for n in walk if graph.node_by_name[n].kind == "library.matmul"]
            first, last = inside[0], inside[-1]
            contraction = any_contraction_of(last, graph)
            walked = contraction is not None and contraction.inner == first.type.shape[-1]
            if not walked or not any(p.name in products for p in inside):
                continue
            key = tuple((graph.node_by_name[n].kind, graph.type_of(n)) for n in walk)
            if key not in faster:
                program = schedule_pattern(graph, walk, {}, self.device)
                apart_us = sum(self.product_us(p, graph) for p in inside) + self.copy_us(2 * first.type.num_bytes)
                faster[key] = not isinstance(program, Rejected) and model.cost(program).us < apart_us
            held |= {p.name for p in inside if faster[key]}
        return held


def parts_between(graph: Graph, pattern: Pattern, reads_of_product: Mapping[str, Collection[str]]) -> list[Pattern]:
    """The other nodes of a kernel, in parts that run one after the other once its products are calls: the longest way to each node of a
    part leads through as many products.

    reads_of_product: the values that each call reads.
    """
    nodes_by_depth: dict[int, list[str]] = {}
    depth_of: dict[str, int] = {}
    for name in pattern.nodes:
        reads = graph.node_by_name[name].reads()
        depth_of[name] = max((depth_of[v] + (v in reads_of_product) for v in reads if v in depth_of), default=0)
        if name not in reads_of_product:
            nodes_by_depth.setdefault(depth_of[name], []).append(name)
    read = set(pattern.written).union(*reads_of_product.values())
    for name in pattern.nodes:
        if name not in reads_of_product:
            read.update(v for v in graph.node_by_name[name].reads() if depth_of.get(v, depth_of[name]) != depth_of[name])
    parts = (Pattern(tuple(nodes), tuple(n for n in nodes if n in read)) for _, nodes in sorted(nodes_by_depth.items()))
    return [p for p in parts if p.written]
