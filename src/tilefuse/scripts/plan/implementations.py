"""Implementations of a fusion: calling order, routine variants, geometry, instances, serial iterations and their direction, finish.

Candidates are listed from metadata alone and predicted; they are scheduled, cheapest first, only when they are asked for. Dominated ones
go: the same fusion with more shared memory or registers and no fewer transfers, or the same block reached in another way.
Source: Filipovic et al., "Optimizing CUDA Code by Kernel Fusion", section 4.2.
"""
from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.plan.price.roofline import Parts, price_work
from tilefuse.scripts.language.elementary import CallGraph, Implementation, ThreadMapping
from tilefuse.scripts.plan.combinations import ROUTINES, FusionImplementation
from tilefuse.scripts.plan.facts import ElementFacts, Facts
from tilefuse.scripts.plan.fusions import Fusion
from tilefuse.scripts.plan.routine_times import Environment, RoutineTimes
from tilefuse.scripts.plan.work import least_us, routine_work
from tilefuse.scripts.schedule.elements import ATOMICS, LAST_BLOCK, SECOND_KERNEL, SINGLE, Decision
from tilefuse.scripts.schedule.routines import FusedRoutines, schedule_routines
from tilefuse.target.device import DeviceSpec

# Threads of a block: fewer cannot hide latency, more leave few blocks to balance.
LEAST_THREADS, MOST_THREADS = 64, 512
# Calling orders that are tried, ways to choose implementations that are tried, and ways that are ordered before.
MOST_ORDERS, MOST_CHOICES, MOST_ORDERED_CHOICES = 4, 32, 4096
# Waves of blocks that grids with long walks are tried with.
GRID_WAVES = (1, 2, 4)


@dataclass(frozen=True)
class Candidate:
    """One decision with what follows from it."""

    decision: Decision
    facts: Facts
    prediction: Parts


@dataclass(frozen=True)
class Candidates:
    """Decisions of a fusion from the best predicted on, and those that were pruned: (decision, why)."""

    kept: tuple[Candidate, ...]
    pruned: tuple[tuple[Decision, Rejected], ...]


def list_candidates(graph: CallGraph, fusion: Fusion, device: DeviceSpec, deterministic: bool = False,
                    times: RoutineTimes | None = None) -> Candidates:
    """All decisions of a fusion that are worth anything. deterministic: without atomics.

    Cost: linear in the decisions; nothing is scheduled.
    """
    candidates: list[Candidate] = []
    pruned: list[tuple[Decision, Rejected]] = []
    for decision, facts in _decisions(graph, fusion, device, deterministic):
        why = _pruned(facts, device)
        if why is not None:
            pruned.append((decision, why))
            continue
        environment = Environment(decision.instances, decision.iterations, facts.shared_bytes, decision.direction)
        candidates.append(Candidate(decision, facts, price_work(routine_work(facts, device, times, environment), device)))
    useful = device.fitted.scripts.useful_flight_bytes
    candidates.sort(key=lambda c: (c.prediction.us, c.decision.instances, -min(c.facts.flight_bytes, useful), c.facts.registers,
                                   c.facts.shared_bytes))
    kept: list[Candidate] = []
    by_walk: dict[object, list[Candidate]] = {}
    for c in candidates:
        d, f = c.decision, c.facts
        equals = by_walk.setdefault((d.direction, d.finish, d.unroll, f.blocks, f.threads, f.tiles), [])
        better = next((k for k in equals if _dominates(k.facts, f)), None)
        if better is None:
            equals.append(c)
            kept.append(c)
        else:
            pruned.append((d, Rejected(Reason.WORSE_THAN_INCUMBENT, f"{better.decision} needs no more of anything")))
    return Candidates(tuple(kept), tuple(pruned))


def bound_us(graph: CallGraph, fusion: Fusion, device: DeviceSpec) -> float:
    """Lower bound on the predictions of `list_candidates`, without listing any. Units: microseconds.

    Every word of what a fusion loads and stores along its whole grid is moved once at least; of triangles half of them.
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
            of = graph.variables[variable]
            num_bytes = prod(of.shape) * of.dtype.itemsize // (2 if fusion.grid.triangle else 1)
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

    candidates: what `list_candidates` gave for these arguments, where it was asked already.
    """
    num_built = 0
    for c in (candidates or list_candidates(graph, fusion, device, deterministic, times)).kept:
        if most is not None and num_built >= most:
            return
        fused = schedule_routines(graph, c.decision, name, device)
        if isinstance(fused, FusedRoutines):
            num_built += 1
            yield FusionImplementation(fusion.calls, ROUTINES, c.prediction.us, c.decision, fused)


def why_none(graph: CallGraph, fusion: Fusion, device: DeviceSpec, candidates: Candidates, name: str = "fused") -> Rejected | None:
    """Why a fusion has no implementation, as values; None where it has one.

    Cost: schedules candidates until one can be built.
    """
    refused: list[Rejected] = []
    for c in candidates.kept:
        fused = schedule_routines(graph, c.decision, name, device)
        if isinstance(fused, FusedRoutines):
            return None
        refused.append(fused)
    refused += [why for _, why in candidates.pruned]
    if not refused:
        names = ", ".join(dict.fromkeys(graph.calls[c].function.name for c in fusion.calls))
        return Rejected(Reason.ILLEGAL_TEMPLATE, f"no geometries of {names} have elements of equal words along the grid")
    number: dict[Reason, int] = {}
    for r in refused:
        number[r.reason] = number.get(r.reason, 0) + 1
    first = refused[0]
    others = len(refused) - 1
    return Rejected(first.reason, first.detail + (f", and so of {others} other decisions ({', '.join(r.value for r in number)})"
                                                  if others else ""))


def _decisions(graph: CallGraph, fusion: Fusion, device: DeviceSpec, deterministic: bool) -> Iterator[tuple[Decision, Facts]]:
    """Every combination of what a decision decides, those that make no difference left out."""
    grid = fusion.grid
    functions = [graph.calls[c].function for c in fusion.calls]
    finishes = [LAST_BLOCK, SECOND_KERNEL]
    if not deterministic and all(not (f.state or f.finishes) for f in functions if f.kind.reduces):
        finishes.append(ATOMICS)
    walks_matter = grid.nested or any(f.kind.reduces for f in functions)
    for chosen in _choices(graph, fusion):
        used = [f.implementations[n] for f, n in zip(functions, chosen, strict=True)]
        threads = max(prod(i.geometry.threads) for i in used)
        orders = calling_orders(graph, fusion.calls) if _any_shared(used) else [fusion.calls]
        for instances in _instances(grid.nested, threads):
            elements = ElementFacts(graph, fusion.calls, chosen, grid, instances, device)
            number = dict(zip(fusion.calls, chosen, strict=True))
            for direction in grid.extents:
                for unroll, iterations in _walks(elements, direction, device, walks_matter):
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
    """Numbers of implementations, one a call, whose elements agree along the grid; equal geometries first."""
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
        lists = [[0] if alone else some for some, alone in zip(lists, scalar, strict=True)]
        if not all(lists):
            continue
        ways = sorted(itertools.islice(itertools.product(*lists), MOST_ORDERED_CHOICES), key=lambda way: _mixed(graph, fusion, way))
        # Ways with one geometry for all calls pass nothing through shared memory: others are tried where there is none.
        least = _mixed(graph, fusion, ways[0])[0]
        yield from (way for way in ways[:MOST_CHOICES] if _mixed(graph, fusion, way)[0] == least)


def _mixed(graph: CallGraph, fusion: Fusion, way: Sequence[int]) -> tuple[int, ...]:
    """Orders ways to choose implementations: those of one geometry first."""
    geometries = {graph.calls[c].function.implementations[n].geometry.threads for c, n in zip(fusion.calls, way, strict=True)
                  if graph.calls[c].function.sizes}
    return (len(geometries), *way)


def _any_shared(used: Sequence[Implementation]) -> bool:
    """Whether the order of the calls can matter: some element lies in shared memory, or is passed through it."""
    geometries = {i.geometry.threads for i in used if i.geometry.extents}
    return len(geometries) > 1 or any(not isinstance(p, ThreadMapping) for i in used for p in i.places.values())


def calling_orders(graph: CallGraph, calls: Sequence[int]) -> list[tuple[int, ...]]:
    """Orders of some calls in which each comes after those whose results it reads; at most MOST_ORDERS, the script's own first."""
    needs = {c: {p for v in graph.calls[c].arguments if isinstance(v, str) and (p := graph.producer(v)) in calls} for c in calls}

    def extend(done: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if len(done) == len(calls):
            yield done
        for c in calls:
            if c not in done and needs[c] <= set(done):
                yield from extend((*done, c))

    return list(itertools.islice(extend(()), MOST_ORDERS))


def _instances(nested: bool, threads: int) -> list[int]:
    if nested:
        return [1]
    return [i for i in (1, 2, 4) if i == 1 or threads * i <= MOST_THREADS // 2]


def _walks(elements: ElementFacts, direction: str, device: DeviceSpec, matters: bool) -> Iterator[tuple[int, int]]:
    """(tiles loaded together, tiles a block) worth a try.

    Tiles together: until a thread has enough bytes under way. Tiles a block: one group, where reductions do not accumulate; grids of some
    rounds; the whole walk, where there are blocks enough across it. Where elements are written along the walk, one or two groups as well:
    such kernels run like copies, best by many short blocks.
    """
    tiles, figures = elements.num_tiles[direction], device.fitted.scripts
    across = prod(n for d, n in elements.num_tiles.items() if d != direction)
    each = max(elements.flight_bytes(direction), 1)
    unrolls = [u for u in (1, 2, 4) if u == 1 or (u * each <= figures.most_flight_bytes and u <= tiles)]
    at_once = device.num_multiprocessors * max(figures.busy_threads // elements.threads, 1)
    copies = any(direction in o.axes for o in elements.stores)
    for unroll in unrolls if copies else unrolls[-2:]:
        iterations = dict.fromkeys([unroll] if not matters or tiles * across <= figures.few_groups * at_once else [])
        if matters and copies:
            iterations |= dict.fromkeys((unroll, 2 * unroll))
        if matters:
            for waves in GRID_WAVES:
                chunks = max(waves * at_once // max(across, 1), 1)
                iterations[max(-(-tiles // chunks), unroll)] = None
            if across >= device.num_multiprocessors:
                iterations[tiles] = None
        yield from ((unroll, n) for n in iterations)


def _pruned(facts: Facts, device: DeviceSpec) -> Rejected | None:
    """Why facts alone rule a decision out."""
    if not LEAST_THREADS <= facts.threads <= max(MOST_THREADS, LEAST_THREADS) and facts.blocks > 1:
        return Rejected(Reason.ILLEGAL_TEMPLATE, f"{facts.threads} threads a block")
    most_registers = device.fitted.scripts.most_registers
    if facts.registers > most_registers:
        return Rejected(Reason.REGISTERS, f"{facts.registers} registers a thread, at most {most_registers}")
    if device.kind == "cuda" and facts.shared_bytes > device.shared_bytes_per_block:
        return Rejected(Reason.SHARED_MEMORY, f"{facts.shared_bytes} bytes, at most {device.shared_bytes_per_block}")
    return None


def _dominates(f: Facts, g: Facts) -> bool:
    """Whether g, over the same blocks as f, has no fewer transfers and no less memory on chip."""
    return (f.bytes_moved <= g.bytes_moved and f.shared_bytes <= g.shared_bytes and f.registers <= g.registers and f.passed <= g.passed
            and f.flight_bytes >= g.flight_bytes)
