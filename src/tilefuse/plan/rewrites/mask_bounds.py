"""Masks that read data, as the documents of rows and columns, bound the walks of attention at run time where that is predicted faster.

    select(d[r] == d[c], s, -inf)  ->  least and greatest d of every 64 rows, the blocks of columns that these may see: two small kernels
                                       a walk from the first to the last of them, without the mask where documents fill its tiles

The summaries cost the same time with all data, and save more or less of the walk. The data is not there when plans are made: prices assume
that bounds leave a share of the walk (`SEARCH.pipelines.walked_share`).
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from tilefuse.base.search.limits import SEARCH
from tilefuse.ir.graph import Graph, Node
from tilefuse.ir.scalar import reads
from tilefuse.passes.choosing import ChoosingPass
from tilefuse.passes.facts import Prices
from tilefuse.passes.manager import PassContext, Properties, Property, register_pass
from tilefuse.plan.pattern import Pattern
from tilefuse.plan.rewrites.mask_summaries import clauses_of, with_bounds
from tilefuse.plan.walks import find_walks
from tilefuse.target.device import DeviceSpec


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
    """A walk and the maps behind its masks as a graph of its own. conditions: those of its maps that have data-dependent conditions."""

    graph: Graph
    conditions: tuple[str, ...]


def bounded_masks(graph: Graph, device: DeviceSpec, prices: Prices, eager_rounding: bool = False) -> tuple[list[MaskChoice], Graph]:
    """The choice for the masks of all walks, and the graph with those bounds that are faster."""
    by_maps: dict[tuple[str, ...], list[_Walk]] = {}
    for names in find_walks(graph, device):
        walk = _walk_of(graph, names)
        if walk.conditions:
            by_maps.setdefault(walk.conditions, []).append(walk)
    choices: list[MaskChoice] = []
    for maps, walks in by_maps.items():
        if any(n not in graph.node_by_name for n in maps) or not all(_has_kernel(w.graph, prices) for w in walks):
            continue
        us = sum(_us(w.graph, prices, eager_rounding) for w in walks)
        best: tuple[MaskChoice, Graph] | None = None
        for hides in (False, True):
            changed, summaries = with_bounds(graph, maps, hides)
            again = [_walk_of(changed, tuple(n.name for n in w.graph.nodes)).graph for w in walks]
            summary_us = sum(prices.kernel_us(changed, group, eager_rounding, 0) for group in _kernels(changed, summaries))
            choice = MaskChoice(maps, us, sum(_us(g, prices, eager_rounding) for g in again), summary_us)
            if best is None or choice.bounded_us < best[0].bounded_us:
                best = choice, changed
        assert best is not None
        choices.append(best[0])
        graph = best[1] if best[0].is_taken else graph
    return choices, graph


def _walk_of(graph: Graph, names: tuple[str, ...]) -> _Walk:
    nodes = graph.in_order(dict.fromkeys((*names, *_behind(graph, names))))
    product = next(n for n in nodes if n.category == "library")
    sides = product.type.shape[-2:]
    conditions = tuple(n.name for n in nodes if n.type.shape[-2:] == sides and _reads_ahead(n, graph, names))
    last = graph.node_by_name[names[-1]]
    inside = tuple(n.name for n in nodes)
    return _Walk(Pattern(inside, (last.name,)).graph(graph, "walk"), conditions)


def _reads_ahead(node: Node, graph: Graph, names: tuple[str, ...]) -> bool:
    """Whether a map has conditions, all of which read values that are there before the walk."""
    clauses = clauses_of(node, graph)
    return bool(clauses) and not any(v in names for c in clauses for v in reads(c.e))


def _behind(graph: Graph, names: tuple[str, ...]) -> Iterator[str]:
    """Maps with rows and columns that the maps and reductions of a walk read, and those behind them."""
    shape = graph.node_by_name[names[0]].type.shape[-2:]
    known, stack = set(names), [v for n in names for v in _read(graph.node_by_name[n])]
    while stack:
        node = graph.node_by_name.get(stack.pop())
        if node is None or node.name in known or node.category != "map" or node.type.shape[-2:] != shape:
            continue
        known.add(node.name)
        yield node.name
        stack += node.reads()


def _read(node: Node) -> tuple[str, ...]:
    return () if node.category == "library" else node.reads()


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
