"""Masks that read data, as the documents of rows and columns, bound the walks of attention at run time where that is predicted faster.

    select(d[r] == d[c], s, -inf)  ->  least and greatest d of every 64 rows, the blocks of columns that these may see: two small kernels
                                       a walk from the first to the last of them, without the mask where documents fill its tiles

The summaries cost the same time with all data, and save more or less of the walk. The data is not there when plans are made: prices assume
that bounds leave a share of the walk (`SEARCH.pipelines.walked_share`).
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from tilefuse.base.candidate import Rejected
from tilefuse.base.search.limits import SEARCH
from tilefuse.ir.graph import Graph, Node
from tilefuse.ir.names import free_name
from tilefuse.ir.scalar import Read, reads, walk
from tilefuse.passes.choosing import ChoosingPass
from tilefuse.passes.facts import Prices
from tilefuse.passes.manager import PassContext, Properties, Property, register_pass
from tilefuse.plan.pattern import Pattern
from tilefuse.plan.rewrites.mask_summaries import clauses_of, with_bounds
from tilefuse.plan.rewrites.renamed import with_names
from tilefuse.plan.walks import find_walks
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.staged.recomputed.form import back_form
from tilefuse.templates.staged.walked.form import walk_form


@register_pass
@dataclass(frozen=True)
class BoundMasks(ChoosingPass):
    """Bound masks that read data by summaries of their blocks, which are computed at run time, where that is predicted faster.

    Exact: bit for bit; bounds follow from the conditions.
    """

    name: ClassVar[str] = "bound-masks"
    preserves: ClassVar[Properties] = frozenset({Property.PRIMITIVE_OPS_ONLY, Property.UPDATES_SEPARATE, Property.FILLS_SEPARATE})
    asks_prices: ClassVar[bool] = True
    for_fusion: ClassVar[bool] = True

    def rewrite(self, graph: Graph, device: DeviceSpec, ctx: PassContext) -> Graph:
        """The graph with bounds; `graph` itself where none are faster."""
        assert ctx.prices is not None
        choices, bounded = bounded_masks(graph, device, ctx.prices, ctx.eager_rounding)
        self.keep(choices, ctx)
        ctx.count("bounded", sum(c.is_taken for c in choices))
        return bounded


@dataclass(frozen=True, slots=True)
class MaskChoice:
    """Maps with a mask of some walks. Units: microseconds: of the walks as they are, of those with bounds, of the summaries."""

    maps: tuple[str, ...]
    us: float
    bounded_us: float
    summary_us: float

    @property
    def is_taken(self) -> bool:
        """Whether walks are bounded."""
        return self.bounded_us + self.summary_us < self.us

    def text(self) -> str:
        """The choice in a line."""
        taken = "bounds walks by what it reads" if self.is_taken else "hides elements one by one"
        return (f"%{', %'.join(self.maps)}: the mask {taken}; predicted {self.bounded_us:.1f} us where {SEARCH.pipelines.walked_share:.0%} "
                f"of the tiles remain, as is assumed, {self.summary_us:.1f} us of summaries at run time, {self.us:.1f} us with all tiles")


@dataclass(frozen=True)
class _Walk:
    """A walk and the maps behind its masks as a graph of its own. maps: those behind; conditions: its maps that have data-dependent
    conditions; turned: whether the walk's rows are their last axis."""

    graph: Graph
    maps: tuple[str, ...]
    conditions: tuple[str, ...]
    turned: bool


def bounded_masks(graph: Graph, device: DeviceSpec, prices: Prices, eager_rounding: bool = False) -> tuple[list[MaskChoice], Graph]:
    """The choice for the masks of all walks, and the graph with those bounds that are faster."""
    groups: dict[tuple[tuple[str, ...], bool], dict[str, tuple[str, ...]]] = {}
    for names in find_walks(graph, device):
        own = _walk_of(graph, names)
        product = next(n for n in names if graph.node_by_name[n].category == "library")
        group = groups.get((own.conditions, own.turned), {})
        if own.conditions and product not in group and _is_walk(own.graph) and _has_kernel(own.graph, prices):
            groups[own.conditions, own.turned] = group | {product: names}
    choices: list[MaskChoice] = []
    for (conditions, turned), by_product in groups.items():
        apart, copies = _with_own_maps(graph, list(by_product.values()))
        us = sum(_us(_walk_of(apart, names).graph, prices, eager_rounding) for names in by_product.values())
        best: tuple[MaskChoice, Graph] | None = None
        for hides in (False, True):
            changed, summaries = with_bounds(apart, [copies.get(n, n) for n in conditions], hides, turned)
            bounded_us = sum(_us(_walk_of(changed, names).graph, prices, eager_rounding) for names in by_product.values())
            summary_us = sum(prices.kernel_us(changed, nodes, eager_rounding, 0) for nodes in _kernels(changed, summaries))
            if best is None or bounded_us < best[0].bounded_us:
                best = MaskChoice(conditions, us, bounded_us, summary_us), changed
        assert best is not None
        choices.append(best[0])
        graph = best[1] if best[0].is_taken else graph
    return choices, graph


def _with_own_maps(graph: Graph, walks: Sequence[tuple[str, ...]]) -> tuple[Graph, dict[str, str]]:
    """The graph in which walks read maps behind their masks that no others read: copies where others do, and the names of these."""
    readers = {n for names in walks for n in _behind_products(graph, names)}
    maps = dict.fromkeys(m for names in walks for m in _walk_of(graph, names).maps)
    shared = any(m in graph.escaping or any(u not in readers and u not in maps for u in graph.users_by_name[m]) for m in maps)
    if not shared:
        return graph, {}
    taken = set(graph.type_by_name)
    copies = {m: free_name(f"{m}_bounded", taken) for m in maps}
    nodes: list[Node] = []
    for node in graph.nodes:
        nodes.append(with_names(node, copies | {node.name: node.name}) if node.name in readers else node)
        if node.name in copies:
            nodes.append(with_names(node, copies))
    return replace(graph, nodes=tuple(nodes)), copies


def _behind_products(graph: Graph, walked: tuple[str, ...]) -> tuple[str, ...]:
    """The products of a walk and all its nodes that depend on them: maps that a mask alone is computed by are left out."""
    inside: dict[str, None] = {}
    for node in graph.in_order(dict.fromkeys(walked)):
        if node.category == "library" or not inside.keys().isdisjoint(node.reads()):
            inside[node.name] = None
    return tuple(inside)


def _walk_of(graph: Graph, walked: tuple[str, ...]) -> _Walk:
    names = _behind_products(graph, walked)
    inside = set(names)
    product = next(graph.node_by_name[n] for n in names if graph.node_by_name[n].category == "library")
    sides = product.type.shape[-2:]
    turned_by_map = _behind(graph, names, sides)
    nodes = graph.in_order(dict.fromkeys((*names, *turned_by_map)))
    conditions = [n for n in nodes if n.type.shape[-2:] in (sides, sides[::-1]) and _reads_ahead(n, graph, names)]
    turned = {turned_by_map.get(n.name, False) for n in conditions}
    written = tuple(n for n in names if n in graph.escaping or not inside.issuperset(graph.users_by_name[n]))
    alone = Pattern(tuple(n.name for n in nodes), written).graph(graph, "walk")
    return _Walk(alone, tuple(turned_by_map), tuple(n.name for n in conditions) if len(turned) == 1 else (), True in turned)


def _behind(graph: Graph, names: tuple[str, ...], sides: tuple[int, ...]) -> dict[str, bool]:
    """Maps with rows and columns that the maps and reductions of a walk read, and those behind them: whether each has the walk's rows as
    its last axis. sides: rows and columns of the walk."""
    known: dict[str, bool] = {}
    stack = [(n, False) for n in names if graph.node_by_name[n].category != "library"]
    while stack:
        name, turned = stack.pop()
        node = graph.node_by_name[name]
        for e in walk(node.body) if node.body is not None else ():
            if isinstance(e, Read) and e.value in graph.node_by_name and e.value not in names and e.value not in known:
                read = graph.node_by_name[e.value]
                if read.category == "map" and read.type.shape[-2:] in (sides, sides[::-1]) and len(e.index) > 1:
                    line = (*node.axes, *(a for a, _ in node.over))[-1:]
                    known[e.value] = turned != (set(line) <= e.index[-2].axes() and not set(line) <= e.index[-1].axes())
                    stack.append((e.value, known[e.value]))
    return known


def _reads_ahead(node: Node, graph: Graph, names: tuple[str, ...]) -> bool:
    """Whether a map has conditions, all of which read values that are there before the walk."""
    clauses = clauses_of(node, graph)
    return bool(clauses) and not any(v in names for c in clauses for v in reads(c.e))


def _is_walk(graph: Graph) -> bool:
    """Whether a kernel may leave turns out. Products with other reductions between them are no walk: the same kernel would read more."""
    return not all(isinstance(form, Rejected) for form in (walk_form(graph, {}), back_form(graph, {})))


def _has_kernel(graph: Graph, prices: Prices) -> bool:
    return prices.has_kernel(graph, tuple(n.name for n in graph.nodes), {})


def _us(graph: Graph, prices: Prices, eager_rounding: bool) -> float:
    return prices.kernel_us(graph, tuple(n.name for n in graph.nodes), eager_rounding, 0)


def _kernels(graph: Graph, summaries: tuple[str, ...]) -> list[tuple[str, ...]]:
    """The summaries by kernels as plans have them: those of one domain together, with the maps behind."""
    by_domain: dict[tuple[object, ...], list[str]] = {}
    last: tuple[object, ...] = ()
    for name in summaries:
        node = graph.node_by_name[name]
        last = (node.type.shape, node.over) if node.category == "reduce" else last
        by_domain.setdefault(last, []).append(name)
    return [tuple(names) for names in by_domain.values()]
