"""Plans that start from an earlier plan, of a graph with the same nodes and wiring but other tensor sizes.

    earlier plan, before packing  ->  node by node onto the graph  ->  every kernel scheduled and priced at its new sizes
        no schedule, or dearer than its parts             ->  given up: taken apart as it was joined, or its nodes are single again
        neighbours are cheaper as one, or recomputed      ->  merged and recomputed, as greedy connecting does from nothing
    the resulting kernels are packed again

Only the assignment of nodes to kernels is reused: legality, templates, tiles and prices are computed for the new sizes. Where kernels with
products compare differently with the library's calls than before, that choice is open again, and the plan is made without the seed.
"""
from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from tilefuse.base.candidate import Rejected
from tilefuse.base.options import Options
from tilefuse.base.search.limits import SEARCH
from tilefuse.ir.graph import Graph
from tilefuse.plan.generators.connect import Connecting
from tilefuse.plan.generators.found import Found
from tilefuse.plan.generators.light import light_nodes
from tilefuse.plan.generators.units import Unit, Units, values_in_memory
from tilefuse.plan.pattern import Draft, DraftKernel, Pattern, Plan, Search, Start, View
from tilefuse.plan.price.price import Priced, Pricer
from tilefuse.plan.price.structure import digest_text
from tilefuse.plan.select.global_plan import pack_globally
from tilefuse.target.device import DeviceSpec


@dataclass(frozen=True, slots=True)
class SeedKernel:
    """A `DraftKernel` with its nodes as their numbers in the graph."""

    generator: str
    nodes: tuple[int, ...]
    share: float = 0.0
    fills: bool = False
    steps: tuple[tuple[int, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Seed:
    """Decisions of a plan, for graphs of its structure; nodes are their numbers in the graph.

    structure  digest of all but sizes (`structure_of`)
    sizes      (name, extents) of the inputs of the graph that the plan was made for
    kernels, packed, light   as of `Draft`
    """

    structure: str
    sizes: tuple[tuple[str, tuple[int, ...]], ...]
    kernels: tuple[SeedKernel, ...]
    packed: tuple[tuple[int, ...], ...]
    light: tuple[int, ...]

    def text(self) -> str:
        """The seed as text; `parse_seed` reads it back."""
        kernels = [[k.generator, k.nodes, k.share, k.fills, k.steps] for k in self.kernels]
        return json.dumps([self.structure, self.sizes, kernels, self.packed, self.light])


def parse_seed(text: str) -> Seed:
    """The seed in a text. Raises: ValueError, TypeError for a text that holds none."""
    structure, sizes, kernels, packed, light = json.loads(text)

    def numbers(row: Iterable[int]) -> tuple[int, ...]:
        return tuple(int(n) for n in row)

    return Seed(str(structure), tuple((str(name), numbers(extents)) for name, extents in sizes),
                tuple(SeedKernel(str(g), numbers(nodes), float(share), bool(fills), tuple(map(numbers, steps)))
                      for g, nodes, share, fills, steps in kernels),
                tuple(map(numbers, packed)), numbers(light))


def structure_of(graph: Graph, views: Mapping[str, View]) -> str:
    """A digest that graphs share if they are equal up to extents: kinds and types of nodes, wiring, results, updates and views.

    Cost: linear in the reads.
    """
    number: dict[str, int] = {i.name: n for n, i in enumerate(graph.inputs)}
    signature: list[Hashable] = [(i.type.dtype.name, len(i.type.shape)) for i in graph.inputs]
    for node in graph.nodes:
        signature.append((node.kind, node.type.dtype.name, len(node.type.shape), len(node.over), tuple(number[v] for v in node.reads()),
                          node.name in views))
        number[node.name] = len(number)
    signature += [tuple(number[r] for r in graph.results), tuple((number[t], number[v]) for t, v in graph.updates)]
    return digest_text(repr(signature))


def draft_of(plan: Found, graph: Graph, views: Mapping[str, View], pricer: Pricer, device: DeviceSpec) -> Draft:
    """A plan before packing. A product's own kernel is not a decision of a plan: it follows from the prices of kernel and call."""
    units = Units(graph, set(plan.light), dict(views))
    steps_of: dict[str, list[tuple[str, ...]]] = {}
    for step in plan.steps:
        steps_of.setdefault(step[0], []).append(step)
    kernels: list[DraftKernel] = []
    for item in plan.before_packing():
        if item.core and item.priced is not None:
            holds_product = _holds_products(item.core, units)
            share = item.priced.cost.us / parts_us(_joined(item.core, units), units, pricer) if holds_product else 0.0
            nodes = set(item.core)
            inside = tuple(step for n in item.core for step in steps_of.get(n, ()) if len(step) < len(nodes) and nodes.issuperset(step))
            kernels.append(DraftKernel(item.generator, item.core, share, holds_product and _fills(item.priced, device), inside))
    apart = {k.nodes for k in kernels}
    launches = (c.core or c.pattern.nodes for c in plan.chosen if c.priced is not None and c.generator in ("packing", "pack"))
    return Draft(tuple(kernels), tuple(nodes for nodes in launches if nodes not in apart), plan.light)


def seed_of(plan: Plan) -> Seed | None:
    """The decisions of a plan, for graphs of its structure; None for a plan that was itself made from a seed."""
    if plan.draft is None or plan.start is not None:
        return None
    number = plan.graph.position_by_name

    def numbers(names: Iterable[str]) -> tuple[int, ...]:
        return tuple(sorted(number[n] for n in names))

    kernels = (SeedKernel(k.generator, numbers(k.nodes), k.share, k.fills, tuple(map(numbers, k.steps))) for k in plan.draft.kernels)
    return Seed(structure_of(plan.graph, {v.value: v for v in plan.views}), tuple((i.name, i.type.shape) for i in plan.graph.inputs),
                tuple(kernels), tuple(map(numbers, plan.draft.packed)), numbers(plan.draft.light))


def plan_from_seed(seed: Seed, graph: Graph, views: dict[str, View], pricer: Pricer, options: Options,
                   device: DeviceSpec) -> tuple[Found, Search, Start] | str:
    """The plan for a seed at the graph's sizes, or the reason why there is none.

    Cost: a schedule for each structure of its kernels, of neighbours among them, and of kernels that may share a launch.
    Raises: ToolchainError where the solver fails.
    """
    if seed.structure != structure_of(graph, views):
        return "the graph that passes made differs in more than sizes"
    names = [n.name for n in graph.nodes]
    as_there = {names[n] for n in seed.light if graph.nodes[n].kind == "map"} - {v for _, v in graph.updates} - views.keys()
    # Maps that the earlier plan recomputed: only those that are light at these sizes too, or all of them; the cheaper plan wins.
    anew = as_there & light_nodes(graph, values_in_memory(graph, views), device)
    tries = [_tried(seed, light, graph, views, pricer, options, device) for light in ([anew] if anew == as_there else [anew, as_there])]
    plans = [t for t in tries if not isinstance(t, str)]
    if not plans:
        return str(tries[0])
    plan, start = min(plans, key=lambda t: t[0].total_us(pricer))
    plan, search = pack_globally(graph, views, pricer, options, device, plan, [[names[n] for n in nodes] for nodes in seed.packed])
    return plan, search, start


def _tried(seed: Seed, light: Set[str], graph: Graph, views: dict[str, View], pricer: Pricer, options: Options,
           device: DeviceSpec) -> tuple[Found, Start] | str:
    """The plan before packing where each user of the maps `light` computes them for itself, or the reason why there is none."""
    names = [n.name for n in graph.nodes]
    units = Units(graph, set(light), views)
    cores = [tuple(names[n] for n in kernel.nodes if names[n] in units.unit_of) for kernel in seed.kernels]
    if not units.have_an_order([sorted({units.unit_of[n] for n in core}) for core in cores if core]):
        return "its kernels would wait for each other"
    fitted = _fitted(seed, cores, units, pricer, device)
    if isinstance(fitted, str):
        return fitted
    plan = Connecting(graph, views, pricer, options, set(light)).continue_from(fitted.kept)
    if isinstance(plan, Rejected):
        return f"a node that its users compute for themselves cannot be computed by each: {plan}"
    return plan, Start(seed.sizes, len(fitted.kept), fitted.given_up, len(plan.steps))


@dataclass(frozen=True)
class _Fitted:
    """Kernels of a seed that are valid at a graph's sizes (generator, nodes, price), and the reasons why others are not."""

    kept: list[tuple[str, tuple[str, ...], Priced]]
    given_up: tuple[str, ...]


def _fitted(seed: Seed, cores: Sequence[tuple[str, ...]], units: Units, pricer: Pricer, device: DeviceSpec) -> _Fitted | str:
    """The kernels scheduled and priced, or the reason why the seed does not apply at these sizes.

    Extents decide whether a kernel or the library computes a product. That choice is open again where a kernel with products takes a
    relevant share of the plan's time and its share of its parts' time has changed, or where it filled the device before and no longer does.
    """
    fit = _Fitting(units, pricer, [n.name for n in units.graph.nodes])
    doubtful: list[str] = []
    doubtful_us = total_us = 0.0
    for kernel, core in zip(seed.kernels, cores, strict=True):
        if not core:
            continue
        us, priced = fit.add(kernel, core)
        total_us += us
        if not kernel.share:
            continue
        unit = _joined(core, units)
        share = us / parts_us(unit, units, pricer) if priced is None else priced.cost.us / parts_us(unit, units, pricer)
        if abs(share / kernel.share - 1) > device.fitted.cost.resolution:
            doubtful.append(f"the kernel of %{core[-1]} takes {share:.2f} of its parts' time, there {kernel.share:.2f}")
        elif priced is not None and _fills(priced, device) != kernel.fills:
            doubtful.append(f"the kernel of %{core[-1]} fills the device {'there and not here' if kernel.fills else 'here and not there'}")
        else:
            continue
        doubtful_us += us
    if doubtful_us > device.fitted.cost.resolution * total_us:
        return "; ".join(doubtful[:SEARCH.texts.named_kernels])
    return _Fitted(fit.kept, tuple(fit.given_up))


@dataclass
class _Fitting:
    """Kernels during fitting. names: of the graph's nodes, by number."""

    units: Units
    pricer: Pricer
    names: Sequence[str]
    kept: list[tuple[str, tuple[str, ...], Priced]] = field(default_factory=list)
    given_up: list[str] = field(default_factory=list)

    def add(self, kernel: SeedKernel, core: tuple[str, ...]) -> tuple[float, Priced | None]:
        """Adds a kernel, or its valid parts; its time at the new sizes, and its price. Units: microseconds."""
        steps = [frozenset(self.names[n] for n in step) & self.units.unit_of.keys() for step in kernel.steps]
        unit = _joined(core, self.units)
        priced = self.pricer.price(self.units.pattern(unit))
        us = self._add(kernel.generator, unit, priced, steps)
        return us, None if isinstance(priced, Rejected) else priced

    def _add(self, generator: str, unit: Unit, priced: Priced | Rejected, steps: Sequence[Set[str]]) -> float:
        if len(unit.core) == 1:
            if isinstance(priced, Rejected):
                self.given_up.append(f"the kernel of %{unit.core[-1]}: {priced}")
                return parts_us(unit, self.units, self.pricer)
            self.kept.append((generator, unit.core, priced))
            return priced.cost.us
        parts = [_joined(p, self.units) for p in _last_joined(unit.core, steps)]
        joined_us = self._parts_us(parts)
        alone_us = parts_us(unit, self.units, self.pricer)
        if not isinstance(priced, Rejected) and priced.cost.us <= min(joined_us, alone_us):
            self.kept.append((generator, unit.core, priced))
            return priced.cost.us
        why = str(priced) if isinstance(priced, Rejected) else f"{priced.cost.us:.3f} us, {min(joined_us, alone_us):.3f} us for its parts"
        self.given_up.append(f"the kernel of %{unit.core[-1]}: {why}")
        if alone_us <= joined_us:
            return alone_us
        return sum(self._add(generator, part, self.pricer.price(self.units.pattern(part)), steps) if len(part.core) > 1
                   else self._parts_us([part]) for part in parts)

    def _parts_us(self, parts: Sequence[Unit]) -> float:
        """Time of units as one kernel or call each. Units: microseconds."""
        return sum(self.pricer.calls_us(p.core) if p.is_library else _us(self.units.pattern(p), self.pricer) for p in parts)


def _last_joined(core: Sequence[str], steps: Sequence[Set[str]]) -> list[tuple[str, ...]]:
    """Sets that were joined last to form a kernel: the largest steps inside it, which are disjoint, and nodes outside of any."""
    inside, joined = set(core), []
    for step in sorted(steps, key=len, reverse=True):
        if 1 < len(step) < len(core) and inside.issuperset(step):
            inside -= step
            joined.append(tuple(n for n in core if n in step))
    return [*joined, *((n,) for n in core if n in inside)]


def _fills(priced: Priced, device: DeviceSpec) -> bool:
    return priced.figures.num_blocks >= device.num_multiprocessors


def _joined(core: Sequence[str], units: Units) -> Unit:
    """The unit that owns these nodes."""
    return units.union([units.units[n] for n in sorted({units.unit_of[v] for v in core})])


def _holds_products(core: Sequence[str], units: Units) -> bool:
    return len(core) > 1 and any(units.units[units.unit_of[n]].is_library for n in core)


def parts_us(unit: Unit, units: Units, pricer: Pricer) -> float:
    """Time of a kernel's parts: one kernel per node, or calls for its products and one kernel per connected rest, whichever is faster.

    units: of the graph before any merge. Units: microseconds.
    """
    calls = [n for n in unit.core if units.units[units.unit_of[n]].is_library]
    rest = [n for n in unit.core if n not in calls]
    total_us = pricer.calls_us(calls) + sum(_us(Pattern((n,), (n,)), pricer) for n in rest)
    if not calls:
        return total_us
    part_of: dict[str, list[str]] = {}
    for name in rest:
        near = {id(part_of[v]): part_of[v] for v in units.sources(units.units[units.unit_of[name]]) if v in part_of}
        joined = [*(n for part in near.values() for n in part), name]
        part_of.update(dict.fromkeys(joined, joined))
    parts = {id(part): part for part in part_of.values()}.values()
    return min(total_us, pricer.calls_us(calls) + sum(_us(units.pattern(_joined(part, units)), pricer) for part in parts))


def _us(pattern: Pattern, pricer: Pricer) -> float:
    priced = pricer.price(pattern)
    return float("inf") if isinstance(priced, Rejected) else priced.cost.us
