"""Chains in groups: a producer, a product and a user of a plan become tasks of one kernel, where that is allowed, legal and cheaper.

    before   k0 writes %v     product %m = %v x weights     k1 reads %m          %v and %m go through memory
    after    one kernel whose tasks take k0, the product and k1 group by group   %v and %m lie in rings that L2 keeps

Winograd convolutions are such chains: transforms of tiles, products of places, transforms of results.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilefuse.base import trace
from tilefuse.base.candidate import Reason, Rejected
from tilefuse.base.options import Options
from tilefuse.ir.graph import Graph, Node
from tilefuse.ir.layouts import Layouts
from tilefuse.plan.assemble import Chosen
from tilefuse.plan.pattern import Pattern, RejectedMerge, View
from tilefuse.plan.price.price import Pricer
from tilefuse.plan.price.products import library_product_us
from tilefuse.plan.price.structure import boundary
from tilefuse.plan.select.grid_level import Joined
from tilefuse.templates.tasks.build import Setting
from tilefuse.templates.tasks.chains.build import Patterns, build_chain


@dataclass(frozen=True, slots=True)
class _Chain:
    """Places in the plan of a producer, a product and a user, and the values that they hand on."""

    places: tuple[int, int, int]
    handed: tuple[str, str]


def join_in_groups(graph: Graph, views: Mapping[str, View], chosen: Sequence[Chosen], layouts: Layouts, pricer: Pricer,
                   options: Options) -> Joined:
    """The plan with chains in groups, as `Options.tile_groups` asks for them. Requires: `chosen` is in order of execution."""
    if options.tile_groups == "off":
        return Joined(tuple(chosen))
    items: list[Chosen | None] = list(chosen)
    saved_us, refused = 0.0, []
    for chain in _chains(graph, views, chosen):
        parts = [items[n] for n in chain.places]
        if any(p is None for p in parts):
            continue
        present = [p for p in parts if p is not None]
        alone_us = sum(_us(p, graph, layouts, pricer) for p in present)
        joined = _joined(graph, chain, present, layouts, pricer, options)
        if isinstance(joined, Chosen) and joined.priced is not None:
            us = joined.priced.cost.us
            trace.current().line("plan", f"%{chain.handed[1]} in groups: {us:.2f} us, {alone_us:.2f} us as kernels of their own")
            if options.tile_groups == "always" or us < alone_us:
                counted = (p.priced.cost.us if p.priced is not None else pricer.calls_us(p.pattern.nodes) for p in present)
                saved_us += sum(counted) - us
                for n in chain.places:
                    items[n] = None
                items[chain.places[-1]] = joined
                continue
            detail = f"{us:.2f} us in groups of one kernel, {alone_us:.2f} us as kernels of their own"
            joined = Rejected(Reason.WORSE_THAN_INCUMBENT, detail)
        if isinstance(joined, Rejected):
            refused.append(RejectedMerge(present[0].pattern.nodes[-1], present[-1].pattern.nodes[-1], joined))
            trace.current().line("plan", f"no chain in groups: {joined}")
    return Joined(tuple(i for i in items if i is not None), saved_us, tuple(refused))


def _chains(graph: Graph, views: Mapping[str, View], chosen: Sequence[Chosen]) -> list[_Chain]:
    """Products of the plan between the kernels that write one operand and read the result, each alone."""
    place_of = {v: n for n, c in enumerate(chosen) for v in c.pattern.written}
    updated = {value for _, value in graph.updates}
    chains = []
    for n, item in enumerate(chosen):
        node = _product(item, graph)
        if node is None:
            continue
        users = graph.users_by_name[node.name]
        readers = {place_of.get(w) for w in _written_with(users, chosen)}
        for v in dict.fromkeys(node.operands[:2]):
            first = place_of.get(v)
            if first is None or first == n or len(readers) != 1 or None in readers:
                continue
            last = next(r for r in readers if r is not None)
            alone = set(graph.users_by_name[v]) == {node.name}
            kernels = all(chosen[k].priced is not None for k in (first, last))
            escapes = {v, node.name} & (set(graph.results) | set(graph.escaping))
            between = updated.intersection(w for k in range(first, last) for w in chosen[k].pattern.written)
            whole = chosen[first].pattern.written == (v,) and _product(chosen[first], graph) is None
            if alone and kernels and whole and not escapes and not between and last > n > first and v not in views:
                chains.append(_Chain((first, n, last), (v, node.name)))
    return chains


def _product(item: Chosen, graph: Graph) -> Node | None:
    """The product of a kernel or a call that holds nothing else."""
    node = graph.node_by_name[item.pattern.nodes[-1]]
    return node if len(item.pattern.nodes) == 1 and node.kind == "library.matmul" else None


def _written_with(nodes: Sequence[str], chosen: Sequence[Chosen]) -> list[str]:
    """One written value of each kernel that computes some of the nodes."""
    among = set(nodes)
    return [c.pattern.written[0] for c in chosen if not among.isdisjoint(c.pattern.nodes)]


def _us(item: Chosen, graph: Graph, layouts: Layouts, pricer: Pricer) -> float:
    """Predicted time of a kernel or of a product's call. Units: microseconds."""
    if item.priced is not None:
        return item.priced.cost.us
    return library_product_us(graph.node_by_name[item.pattern.nodes[-1]], graph, pricer.device, layouts)


def _joined(graph: Graph, chain: _Chain, parts: Sequence[Chosen], layouts: Layouts, pricer: Pricer, options: Options) -> Chosen | Rejected:
    """The chain as one kernel, or why there is none."""
    nodes = {n for p in parts for n in p.pattern.nodes}
    pattern = Pattern(tuple(n.name for n in graph.nodes if n.name in nodes), parts[-1].pattern.written)
    values = boundary(graph, pattern)
    own = {v: layouts[v] for v in values if v in layouts}
    producer, product, user = (p.pattern.graph(graph) for p in parts)
    alone = tuple(p.priced.program for p in parts if p.priced is not None)
    patterns = Patterns(pattern.graph(graph, "chain"), producer, product, user, chain.handed, own, options.eager_rounding,
                        alone if len(alone) == len(parts) else ())
    setting = Setting(options.task_blocks, options.task_stages, options.task_ahead, options.task_limit_ms, options.task_times)
    program = build_chain(patterns, pricer.device, setting)
    if isinstance(program, Rejected):
        return program
    return Chosen("groups", pattern, pricer.priced(program, values))
