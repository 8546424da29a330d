"""Planning: from a graph to the cheapest plan of all planning methods.

    every node alone  >=  greedy connecting  >=  integer program over all candidates          each with independent kernels packed

Greedy connecting (`connect.py`) begins and is never worse than every node alone; the integer program (`global_plan.py`) starts from its
plan and decides. This file calls them in order; layouts, prices, candidates and selection have files of their own.
"""
from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import partial

from tilefuse import templates
from tilefuse.base import trace
from tilefuse.base.errors import OptionError
from tilefuse.base.options import Options
from tilefuse.ir.graph import Graph
from tilefuse.ir.layouts import Layouts
from tilefuse.plan.assemble import Chosen, assemble
from tilefuse.plan.generators.connect import Connecting
from tilefuse.plan.generators.found import Found
from tilefuse.plan.generators.updates_last import updates_last
from tilefuse.plan.pattern import Pattern, Plan, Search, Start, View, is_library
from tilefuse.plan.price.cost import AnalyticCost, CostModel
from tilefuse.plan.price.known_patterns import Store
from tilefuse.plan.price.price import Pricer, Scheduler, Ways, require
from tilefuse.plan.price.products import NO_PRODUCTS, Products, matrix_products
from tilefuse.plan.rewrites.views import find_views, without_views
from tilefuse.plan.seeded import Seed, draft_of, plan_from_seed
from tilefuse.plan.select.global_plan import plan_globally
from tilefuse.plan.select.grid_level import join_in_tasks
from tilefuse.plan.select.ilp import SCORE_TOLERANCE_US
from tilefuse.plan.select.pack_kernels import pack_kernels
from tilefuse.plan.select.tile_groups import join_in_groups
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.staged.stitched.record import Tiles


def plan_graph(graph: Graph, input_layouts: Layouts, device: DeviceSpec, options: Options, *, result_layouts: Layouts | None = None,
               cost_model: CostModel | None = None, scheduler: Scheduler | None = None, layouts: Layouts | None = None,
               products: Products | None = None, store: Store | None = None, seed: Seed | None = None,
               given_up: Collection[str] = ()) -> Plan:
    """The plan of a graph: every node in a kernel, a library call or a view. Never slower than one kernel per node, by predicted time.

    input_layouts, result_layouts: strides of the caller's inputs and required strides of results; layouts: strides of all other values.
    products: library operators that kernels may hold; by default small matrix products (`options.stitch`).
    store: earlier judgements by the same cost model, for the same device and options; new ones are added.
    seed: decisions of a plan of other sizes to start from; where they do not fit, the plan is the one made without them.
    given_up: inputs that only the call holds: packing does not prolong their lives.
    Cost: about linear in the nodes; each pattern structure that the store does not know is scheduled once.
    Raises: OptionError for a ceiling on memory that the selected planner ignores; InternalError where the scheduler refuses a single node.
    """
    if options.peak_memory_mb and not (options.fuse and options.planner == "ilp"):
        other = "fuse=false" if not options.fuse else f"planner={options.planner}"
        raise OptionError(f"peak_memory_mb={options.peak_memory_mb} is a ceiling that plans of {other} do not keep",
                          hint="planner=ilp keeps it; peak_memory_mb=0 is no ceiling")
    decided: dict[str, tuple[int, ...]] = dict(layouts or {}) | dict(input_layouts)
    views = find_views(graph, decided, result_layouts or {})
    ways = Ways(scheduler) if scheduler is not None else _ways(options)
    if products is None:
        products = matrix_products(graph, device, decided) if options.stitch and options.fuse and scheduler is None else NO_PRODUCTS
    model = cost_model or AnalyticCost(device)
    pricer = Pricer(graph, without_views(decided, views), device, options, ways, model, products, store)
    unfused = _alone(graph, views, pricer)
    unfused_us = sum(c.priced.cost.us for c in unfused if c.priced) + pricer.calls_us(n.name for n in graph.nodes)
    started = _from_seed(seed, graph, views, pricer, options, device, unfused_us, given_up) if seed is not None else "there is none"
    if isinstance(started, str):
        if seed is not None:
            trace.current().event("earlier plan not used", "plan", reason=started)
            trace.current().line("plan", f"{graph.name} is planned from nothing: {started}")
            # A seed that did not fit must leave no trace: patterns of one structure use the tiles of the first one scheduled.
            pricer = Pricer(graph, without_views(decided, views), device, options, Ways(scheduler) if scheduler is not None else
                            _ways(options), model, products, store)
            unfused = _alone(graph, views, pricer)
        decisions, search = _from_nothing(graph, views, pricer, options, device, unfused_us, given_up)
        start = None
    else:
        decisions, search, start = started
    trace.current().event("planned", "plan", scheduled=pricer.num_judged - pricer.num_known, known=pricer.num_known,
                          kernels=sum(c.priced is not None for c in decisions.chosen))
    chosen = updates_last(graph, views, decisions.chosen)
    grouped = join_in_groups(graph, views, chosen, without_views(decided, views), pricer, options)
    joined = join_in_tasks(graph, views, grouped.chosen, without_views(decided, views), pricer, options)
    objective_us = decisions.total_us(pricer) - grouped.saved_us - joined.saved_us
    plan = assemble(graph, device, decided, views, joined.chosen, objective_us, unfused_us,
                    unfused, (*grouped.refused, *joined.refused, *decisions.kept_rejected()),
                    decisions.num_rejected + len(grouped.refused) + len(joined.refused), search)
    # Only plans without a seed become seeds.
    return replace(plan, draft=None if start is not None else draft_of(decisions, graph, views, pricer, device), start=start)


def _from_nothing(graph: Graph, views: dict[str, View], pricer: Pricer, options: Options, device: DeviceSpec,
                  unfused_us: float, given_up: Collection[str]) -> tuple[Found, Search | None]:
    """The cheapest plan of all planning methods. unfused_us: time of one kernel per node and one call per product."""
    decisions = Connecting(graph, views, pricer, options).run() if options.fuse else None
    if decisions is None or decisions.total_us(pricer) > unfused_us:
        # Recomputing light nodes can cost more than it saves only where no fusion saved anything.
        decisions = Connecting(graph, views, pricer, options, light=set()).run(merge=options.fuse)
    assert decisions.total_us(pricer) <= unfused_us + SCORE_TOLERANCE_US, "a plan is never worse than unfused under its own costs"
    search = None
    if options.fuse:
        packed = _packed(graph, views, decisions, pricer, given_up)
        if options.planner == "ilp":
            best, search = plan_globally(graph, views, pricer, options, device, decisions, given_up)
            search = replace(search, greedy_us=packed.objective_us)
            if not options.peak_memory_mb:
                best = packed if best is decisions else _packed(graph, views, best, pricer, given_up)
            if options.peak_memory_mb or best.total_us(pricer) < packed.total_us(pricer):
                packed = best
            elif search.planner == "ilp":
                is_equal = best.total_us(pricer) - packed.total_us(pricer) <= SCORE_TOLERANCE_US
                search = replace(search, planner="both" if is_equal else "greedy")
        decisions = packed
    return decisions, search


def _from_seed(seed: Seed, graph: Graph, views: dict[str, View], pricer: Pricer, options: Options, device: DeviceSpec,
               unfused_us: float, given_up: Collection[str]) -> tuple[Found, Search, Start] | str:
    """The plan for a seed of other sizes, packed; or the reason why there is none. unfused_us: as for `_from_nothing`."""
    if not options.fuse or options.planner != "ilp" or options.peak_memory_mb:
        return "options ask for another way to plan"
    started = plan_from_seed(seed, graph, views, pricer, options, device)
    if isinstance(started, str):
        return started
    decisions, search, start = started
    decisions = _packed(graph, views, decisions, pricer, given_up)
    if decisions.total_us(pricer) > unfused_us:
        return f"{decisions.total_us(pricer):.3f} us, and one kernel a node {unfused_us:.3f} us"
    return decisions, search, start


def _ways(options: Options) -> Ways:
    """The scheduler's price functions, with a cache for one graph."""
    tiles: Tiles = {}
    one = partial(templates.schedule_pattern, eager_rounding=options.eager_rounding, replaces_calls=True,
                  fetches_early=options.fetches_early)
    return Ways(partial(one, tiles=tiles), partial(one, packing=True), partial(one, packing=True, known=templates.Known()), tiles)


def _packed(graph: Graph, views: dict[str, View], decisions: Found, pricer: Pricer, given_up: Collection[str]) -> Found:
    """The plan with independent kernels in one launch where that is cheaper."""
    chosen = pack_kernels(graph, views, decisions.chosen, pricer, given_up)
    parts = tuple(decisions.before_packing())
    return replace(decisions, chosen=chosen, objective_us=sum(c.priced.cost.us for c in chosen if c.priced), parts=parts)


def _alone(graph: Graph, views: dict[str, View], pricer: Pricer) -> list[Chosen]:
    """Every node as a kernel of its own: the baseline that the plan is compared with."""
    return [Chosen("single", Pattern((n.name,), (n.name,)), require(pricer.price(Pattern((n.name,), (n.name,))), n.name))
            for n in graph.nodes if not is_library(n) and n.name not in views]
