"""Implementations of a fusion: calling order, routine variants, geometry, instances, serial iterations and their direction, finish.

Candidates are listed from metadata alone and priced. They are scheduled, cheapest first, when a caller asks for them. Dominated ones are
pruned: the same fusion with more shared memory or registers and no fewer transfers, or an equal block from other instances and threads.
Source: Filipovic et al., "Optimizing CUDA Code by Kernel Fusion", section 4.2.
"""
from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.base.search.limits import SEARCH
from tilefuse.domain.roofline import Parts, price_work
from tilefuse.scripts.language.elementary import CallGraph, Implementation, ThreadMapping
from tilefuse.scripts.plan.combinations import ROUTINES, FusionImplementation
from tilefuse.scripts.plan.facts import ElementFacts, Facts
from tilefuse.scripts.plan.fusions import Fusion
from tilefuse.scripts.plan.routine_times import Environment, RoutineTimes
from tilefuse.scripts.plan.work import least_us, routine_work
from tilefuse.scripts.schedule.elements import ATOMICS, LAST_BLOCK, SECOND_KERNEL, SINGLE, Decision
from tilefuse.scripts.schedule.routines import FusedRoutines, schedule_routines
from tilefuse.target.device import DeviceSpec


@dataclass(frozen=True)
class Candidate:
    """One decision, the facts that follow from it, and its price."""

    decision: Decision
    facts: Facts
    prediction: Parts


@dataclass(frozen=True)
class Candidates:
    """Decisions of a fusion from the best predicted on, and the pruned ones: (decision, reason)."""

    ranked: tuple[Candidate, ...]
    pruned: tuple[tuple[Decision, Rejected], ...]


def list_candidates(graph: CallGraph, fusion: Fusion, device: DeviceSpec, deterministic: bool = False,
                    times: RoutineTimes | None = None) -> Candidates:
    """All decisions of a fusion that no other one dominates. deterministic: without atomics.

    Cost: linear in the decisions; nothing is scheduled.
    """
    candidates: list[Candidate] = []
    pruned: list[tuple[Decision, Rejected]] = []
    for decision, facts in _decisions(graph, fusion, device, deterministic):
        reason = _reason_to_prune(facts, device)
        if reason is not None:
            pruned.append((decision, reason))
            continue
        environment = Environment(decision.instances, decision.iterations, facts.shared_bytes, decision.direction)
        candidates.append(Candidate(decision, facts, price_work(routine_work(facts, device, times, environment), device)))
    useful = device.fitted.scripts.useful_flight_bytes
    candidates.sort(key=lambda c: (c.prediction.us, c.decision.instances, -min(c.facts.flight_bytes, useful), c.facts.registers,
                                   c.facts.shared_bytes))
    ranked: list[Candidate] = []
    candidates_by_grid: dict[object, list[Candidate]] = {}
    for c in candidates:
        d, f = c.decision, c.facts
        alike = candidates_by_grid.setdefault((d.direction, d.finish, d.unroll, f.blocks, f.threads, f.tiles), [])
        better = next((k for k in alike if _dominates(k.facts, f)), None)
        if better is None:
            alike.append(c)
            ranked.append(c)
        else:
            pruned.append((d, Rejected(Reason.WORSE_THAN_INCUMBENT, f"{better.decision} has no more traffic, registers or shared memory")))
    return Candidates(tuple(ranked), tuple(pruned))


def bound_us(graph: CallGraph, fusion: Fusion, device: DeviceSpec) -> float:
    """Lower bound on the predictions of `list_candidates`, without listing any. Units: microseconds.

    Each operand that covers the whole grid moves at least once; of a triangle half of it.
    """
    full = len(fusion.grid.extents)
    loaded: dict[str, int] = {}
    stored: dict[str, int] = {}
    computed = {r for c in fusion.calls for r in graph.calls[c].results}
    for c in fusion.calls:
        function = graph.calls[c].function
        for name, variable, sizes in graph.calls[c].operands:
            if len(sizes) < full:
                continue
            operand = graph.variables[variable]
            num_bytes = prod(operand.shape) * operand.dtype.itemsize // (2 if fusion.grid.triangle else 1)
            if variable not in computed:
                loaded[variable] = num_bytes
            elif name in {p.name for p in function.outputs} and not function.kind.reduces and (
                    variable in graph.outputs or any(u not in fusion.calls for u in graph.readers(variable))):
                stored[variable] = num_bytes
    return least_us(sum(loaded.values()), sum(stored.values()), device)


def implementations(graph: CallGraph, fusion: Fusion, device: DeviceSpec, name: str = "fused", *, deterministic: bool = False,
                    times: RoutineTimes | None = None, most: int | None = None,
                    candidates: Candidates | None = None) -> Iterator[FusionImplementation]:
    """Implementations of a fusion that can be built, from the best predicted on; `content` is the scheduled kernel.

    candidates: the result of `list_candidates` for these arguments, where a caller has it.
    """
    num_built = 0
    for c in (candidates or list_candidates(graph, fusion, device, deterministic, times)).ranked:
        if most is not None and num_built >= most:
            return
        fused = schedule_routines(graph, c.decision, name, device)
        if isinstance(fused, FusedRoutines):
            num_built += 1
            yield FusionImplementation(fusion.calls, ROUTINES, c.prediction.us, c.decision, fused)


def why_none(graph: CallGraph, fusion: Fusion, device: DeviceSpec, candidates: Candidates, name: str = "fused") -> Rejected | None:
    """The reason for which a fusion has no implementation; None where it has one.

    Cost: schedules candidates until one can be built.
    """
    reasons: list[Rejected] = []
    for c in candidates.ranked:
        fused = schedule_routines(graph, c.decision, name, device)
        if isinstance(fused, FusedRoutines):
            return None
        reasons.append(fused)
    reasons += [reason for _, reason in candidates.pruned]
    if not reasons:
        names = ", ".join(dict.fromkeys(graph.calls[c].function.name for c in fusion.calls))
        return Rejected(Reason.ILLEGAL_TEMPLATE, f"no geometries of {names} have elements of equal words along the grid")
    first, others = reasons[0], len(reasons) - 1
    kinds = ", ".join(dict.fromkeys(r.reason.value for r in reasons))
    return Rejected(first.reason, first.detail + (f"; {others} other decisions are rejected too ({kinds})" if others else ""))


def _decisions(graph: CallGraph, fusion: Fusion, device: DeviceSpec, deterministic: bool) -> Iterator[tuple[Decision, Facts]]:
    """Every decision with its facts. Decisions whose differences change nothing are left out."""
    grid = fusion.grid
    functions = [graph.calls[c].function for c in fusion.calls]
    finishes = [LAST_BLOCK, SECOND_KERNEL]
    if not deterministic and all(not (f.state or f.finishes) for f in functions if f.kind.reduces):
        finishes.append(ATOMICS)
    walk_matters = grid.nested or any(f.kind.reduces for f in functions)
    for chosen in _choices(graph, fusion):
        used = [f.implementations[n] for f, n in zip(functions, chosen, strict=True)]
        threads = max(prod(i.geometry.threads) for i in used)
        orders = calling_orders(graph, fusion.calls) if _any_shared(used) else [fusion.calls]
        for instances in _instances(grid.nested, threads):
            elements = ElementFacts(graph, fusion.calls, chosen, grid, instances, device)
            number = dict(zip(fusion.calls, chosen, strict=True))
            for direction in grid.extents:
                for unroll, iterations in _walks(elements, direction, device, walk_matters):
                    for order in orders:
                        walk = (order, tuple(number[c] for c in order), instances, iterations, direction, unroll)
                        first = Decision(*walk, LAST_BLOCK)
                        facts = elements.facts(first)
                        if not facts.partial_bytes:
                            yield Decision(*walk, SINGLE), facts
                            continue
                        for finish in finishes:
                            decision = Decision(*walk, finish)
                            yield decision, elements.finished(facts, decision)


def _choices(graph: CallGraph, fusion: Fusion) -> Iterator[tuple[int, ...]]:
    """Numbers of implementations, one for each call, whose elements have equal words along the grid; equal geometries first."""
    by_words: dict[tuple[int, ...], list[list[int]]] = {}
    directions = tuple(fusion.grid.extents)
    for position, (c, axis_of) in enumerate(zip(fusion.calls, fusion.grid.axis_of, strict=True)):
        for n, i in enumerate(graph.calls[c].function.implementations):
            along = {d: i.geometry.extents[size] for size, d in axis_of.items()}
            if axis_of:
                key = tuple(along[d] for d in directions)
                by_words.setdefault(key, [[] for _ in fusion.calls])[position].append(n)
    scalar = [not axis_of for axis_of in fusion.grid.axis_of]
    if all(scalar):
        yield tuple(0 for _ in fusion.calls)
        return
    for lists in by_words.values():
        lists = [[0] if is_scalar else numbers for numbers, is_scalar in zip(lists, scalar, strict=True)]
        if not all(lists):
            continue
        choices = sorted(itertools.islice(itertools.product(*lists), SEARCH.scripts.ordered_choices),
                         key=lambda chosen: _by_geometries(graph, fusion, chosen))
        # With one geometry for all calls nothing passes through shared memory. Mixed geometries are tried where no choice has one.
        fewest = _by_geometries(graph, fusion, choices[0])[0]
        yield from (chosen for chosen in choices[:SEARCH.scripts.choices] if _by_geometries(graph, fusion, chosen)[0] == fewest)


def _by_geometries(graph: CallGraph, fusion: Fusion, chosen: Sequence[int]) -> tuple[int, ...]:
    """Sort key of chosen implementations: those with fewer different geometries first."""
    geometries = {graph.calls[c].function.implementations[n].geometry.threads for c, n in zip(fusion.calls, chosen, strict=True)
                  if graph.calls[c].function.sizes}
    return (len(geometries), *chosen)


def _any_shared(used: Sequence[Implementation]) -> bool:
    """Whether the order of the calls can matter: an element lies in shared memory, or changes its mapping through it."""
    geometries = {i.geometry.threads for i in used if i.geometry.extents}
    return len(geometries) > 1 or any(not isinstance(p, ThreadMapping) for i in used for p in i.places.values())


def calling_orders(graph: CallGraph, calls: Sequence[int]) -> list[tuple[int, ...]]:
    """Orders of some calls in which each comes after those whose results it reads; at most `orders`, the script's own first."""
    needs = {c: {p for v in graph.calls[c].arguments if isinstance(v, str) and (p := graph.producer(v)) in calls} for c in calls}

    def extend(ordered: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if len(ordered) == len(calls):
            yield ordered
        for c in calls:
            if c not in ordered and needs[c] <= set(ordered):
                yield from extend((*ordered, c))

    return list(itertools.islice(extend(()), SEARCH.scripts.orders))


def _instances(nested: bool, threads: int) -> list[int]:
    if nested:
        return [1]
    return [i for i in (1, 2, 4) if i == 1 or threads * i <= SEARCH.scripts.threads // 2]


def _walks(elements: ElementFacts, direction: str, device: DeviceSpec, matters: bool) -> Iterator[tuple[int, int]]:
    """(tiles loaded together, tiles of a block) that are tried.

    Tiles together: as many as fill a thread's loads in flight. Tiles of a block: one group, where reductions do not accumulate; as many as
    make grids of a few waves; the whole walk, where there are enough blocks across it. Where elements are written along the walk, one or
    two groups as well: such kernels run like copies, which are fastest in many short blocks.
    """
    tiles, figures = elements.num_tiles[direction], device.fitted.scripts
    across = prod(n for d, n in elements.num_tiles.items() if d != direction)
    each = max(elements.flight_bytes(direction), 1)
    unrolls = [u for u in (1, 2, 4) if u == 1 or (u * each <= figures.most_flight_bytes and u <= tiles)]
    resident = device.num_multiprocessors * max(figures.busy_threads // elements.threads, 1)
    writes = any(direction in o.axes for o in elements.stores)
    for unroll in unrolls if writes else unrolls[-2:]:
        iterations = dict.fromkeys([unroll] if not matters or tiles * across <= figures.few_groups * resident else [])
        if matters and writes:
            iterations |= dict.fromkeys((unroll, 2 * unroll))
        if matters:
            for waves in SEARCH.scripts.grid_waves:
                chunks = max(waves * resident // max(across, 1), 1)
                iterations[max(-(-tiles // chunks), unroll)] = None
            if across >= device.num_multiprocessors:
                iterations[tiles] = None
        yield from ((unroll, n) for n in iterations)


def _reason_to_prune(facts: Facts, device: DeviceSpec) -> Rejected | None:
    """The reason for which facts alone rule a decision out; None where they do not."""
    if not SEARCH.scripts.least_threads <= facts.threads <= max(SEARCH.scripts.threads, SEARCH.scripts.least_threads) and facts.blocks > 1:
        return Rejected(Reason.ILLEGAL_TEMPLATE, f"{facts.threads} threads a block")
    most_registers = device.fitted.scripts.most_registers
    if facts.registers > most_registers:
        return Rejected(Reason.REGISTERS, f"{facts.registers} registers a thread, at most {most_registers}")
    if device.kind == "cuda" and facts.shared_bytes > device.shared_bytes_per_block:
        return Rejected(Reason.SHARED_MEMORY, f"{facts.shared_bytes} bytes, at most {device.shared_bytes_per_block}")
    return None


def _dominates(f: Facts, g: Facts) -> bool:
    """Whether f, over the same blocks as g, has no more traffic and no more memory on chip, and as many loads in flight."""
    return (f.bytes_moved <= g.bytes_moved and f.shared_bytes <= g.shared_bytes and f.registers <= g.registers and f.remapped <= g.remapped
            and f.flight_bytes >= g.flight_bytes)
