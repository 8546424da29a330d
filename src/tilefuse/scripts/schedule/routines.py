"""Schedule of a fused kernel of routine calls: elements and their places, spared transfers, order, barriers, storage, reductions.

    q = sgemv(A, p); s = sgemtv(A, r)      grid y, x      loop along y over tiles of A
    before: Load p, Clear s     each tile: Load A, Load r, Compute s, Clear q, Compute q, Gather q, Finish q     after: Gather s, Finish s

Registers hold an element if all routines that touch it have the same thread-to-data mapping; otherwise it goes through shared memory.
Source: Filipovic et al., "Optimizing CUDA Code by Kernel Fusion", sections 3.2.3, 4.3 and 4.4.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.domain.storage import Request, SharedPlan, plan_shared
from tilefuse.scripts.language.elementary import CallGraph, FunctionCall, Implementation, ThreadMapping, routine_macros
from tilefuse.scripts.language.routine_source import cut_routines, state_bytes
from tilefuse.scripts.schedule.barriers import PlacedSections, SharedAccesses, place_barriers
from tilefuse.scripts.schedule.combine import ThreadCombination, combine_threads
from tilefuse.scripts.schedule.elements import ATOMICS, LAST_BLOCK, SINGLE, Decision, Element, function_of
from tilefuse.scripts.schedule.grid import Axes, Grid, bind_grid, live_tiles
from tilefuse.scripts.schedule.order import Sections, order_steps
from tilefuse.scripts.schedule.sizes import GivenSizes
from tilefuse.scripts.schedule.steps import Clear, Compute, Finish, Gather, Get, Load, Mask, Put, Step, Store, elements_of
from tilefuse.target.device import DeviceSpec

# The largest index of 32 bits.
LARGEST_INT32 = 2**31 - 1


@dataclass(frozen=True)
class Reduction:
    """How partial values of an output become the result.

    accumulated  the element adds up partial values over the tiles of the walk
    over         directions that are reduced away
    partials     blocks that hold partial values of one word
    finish       "single", or how the blocks' values are combined
    combination  of the block's threads; None for an element in shared memory
    """

    variable: str
    accumulated: bool
    over: Axes
    partials: int
    finish: str
    combination: ThreadCombination | None


@dataclass(frozen=True)
class FusedRoutines:
    """The schedule of one kernel of routine calls. `scripts.compose.compose` turns it into kernel IR without further decisions.

    tiles               direction -> words of a tile along it (all instances)
    num_tiles           direction -> number of tiles, of which the last may be partial
    chunks              blocks along the walk: each takes every `chunks`-th tile
    before, group, single, edge, after   steps of the kernel's sections (`scripts.schedule.order.Sections`)
    shared              element or slab -> its offset in shared memory, in bytes
    slab_words          slab -> its words
    transfers           words moved between global memory and the chip
    extra_shared_bytes  allocated and not used: a probe has them in place of other data of a fusion
    wide_routines       functions whose routines compute indices of 64 bits; those of all others have 32
    sized               sizes that each call decides; None for fixed sizes. Numbers of tiles, blocks and words are then the expected ones
    """

    name: str
    graph: CallGraph
    decision: Decision
    grid: Grid
    threads: int
    tiles: Mapping[str, int]
    num_tiles: Mapping[str, int]
    chunks: int
    elements: Mapping[str, Element]
    reductions: Mapping[str, Reduction]
    before: tuple[Step, ...]
    group: tuple[Step, ...]
    single: tuple[Step, ...]
    edge: tuple[Step, ...]
    after: tuple[Step, ...]
    shared: Mapping[str, int]
    slab_words: Mapping[str, int]
    shared_bytes: int
    wide_routines: frozenset[str]
    transfers: int
    device: DeviceSpec = field(repr=False)
    extra_shared_bytes: int = 0
    sized: GivenSizes | None = None

    def call(self, k: int) -> FunctionCall:
        """The call at position k of the calling order."""
        return self.graph.calls[self.decision.calls[k]]

    def implementation(self, k: int) -> Implementation:
        """Its implementation."""
        return self.call(k).function.implementations[self.decision.implementations[k]]

    @property
    def walk(self) -> str:
        """Direction of the loop over tiles."""
        return self.decision.direction

    @property
    def num_blocks(self) -> int:
        """Blocks of the grid."""
        return self.chunks * prod(n for d, n in self.num_tiles.items() if d != self.walk)

    @property
    def registers(self) -> int:
        """32-bit registers that elements need a thread, at least."""
        live = sum(e.held * e.units * e.unit.itemsize // 4 for e in self.elements.values())
        return live + 16


def schedule_routines(graph: CallGraph, decision: Decision, name: str, device: DeviceSpec) -> FusedRoutines | Rejected:
    """The schedule of some calls as one kernel, or the reason for which there is none."""
    grid = bind_grid(graph, decision.calls)
    if isinstance(grid, Rejected):
        return grid
    words = _element_words(graph, decision, grid)
    if isinstance(words, Rejected):
        return words
    threads = _num_threads(graph, decision)
    if threads > device.max_threads_per_block and device.kind == "cuda":
        return Rejected(Reason.REGISTERS, f"{threads} threads a block, at most {device.max_threads_per_block}")
    tiles = {d: w * (decision.instances if not grid.nested else 1) for d, w in words.items()}
    # Data without words have one tile of padding: it makes the results of reductions neutral.
    num_tiles = {d: max(-(-grid.extents[d] // tiles[d]), 1) for d in grid.extents}
    walk = decision.direction
    if walk not in num_tiles:
        return Rejected(Reason.DOMAIN_MISMATCH, f"no direction {walk} in a grid of {', '.join(num_tiles)}")
    chunks = -(-num_tiles[walk] // decision.iterations)
    sized = GivenSizes(grid.nested and chunks == 1) if grid.named else None
    wide = wide_routines(graph, decision, grid, tiles)
    sections = order_steps(graph, decision, grid, words, lambda k: _unit(graph, decision, k, wide))
    if isinstance(sections, Rejected):
        return sections
    reductions = _reductions(graph, decision, grid, sections, threads, num_tiles, chunks, sized)
    if isinstance(reductions, Rejected):
        return reductions
    instances = decision.instances if not grid.nested else 1
    sections, slab_words = _with_slabs(sections, reductions, instances)
    plan = _storage(sections, slab_words, instances, device)
    if isinstance(plan, Rejected):
        return plan
    placed = _barriers(sections, slab_words, plan, instances)
    return FusedRoutines(name, graph, decision, grid, threads, tiles, num_tiles, chunks, sections.elements, reductions, placed.before,
                         placed.bodies[0], placed.bodies[1], placed.bodies[2], placed.after, plan.offset_by_name, slab_words,
                         plan.allocated_bytes, wide, _transfers(sections, grid, tiles, num_tiles, chunks, walk), device, sized=sized)


def _element_words(graph: CallGraph, decision: Decision, grid: Grid) -> dict[str, int] | Rejected:
    """Direction -> words of an element along it, the same for all calls."""
    words: dict[str, int] = {} if any(grid.axis_of) else {"x": 1}
    for k, axis_of in enumerate(grid.axis_of):
        function, implementation = function_of(graph, decision, k)
        for size, direction in axis_of.items():
            own = implementation.geometry.extents[size]
            if words.setdefault(direction, own) != own:
                return Rejected(Reason.DOMAIN_MISMATCH,
                                f"{function.name} takes {own} words along {direction}, another call {words[direction]}")
    return words


def _num_threads(graph: CallGraph, decision: Decision) -> int:
    needs = (prod(function_of(graph, decision, k)[1].geometry.threads) for k in range(len(decision.calls)))
    return max(needs) * decision.instances


def wide_routines(graph: CallGraph, decision: Decision, grid: Grid, tiles: Mapping[str, int]) -> frozenset[str]:
    """Functions of a kernel whose routines need indices of 64 bits: the offset of some word of an operand exceeds 32 bits.

    A routine may compute (first word of the tile + words of the tile) * stride, summed over the dimensions, before it compares with the
    size of the data. Where calls give the sizes, all functions need 64 bits.
    """
    wide = set()
    for c, axis_of in zip(decision.calls, grid.axis_of, strict=True):
        call = graph.calls[c]
        for _, name, sizes in call.operands:
            v = graph.variables[name]
            ends = (call.sizes[n] + tiles[axis_of[n]] for n in sizes)
            largest = sum(end * max(stride, 1) for end, stride in zip(ends, v.word_strides, strict=True))
            if call.named or largest > LARGEST_INT32:
                wide.add(call.function.name)
    return frozenset(wide)


def extent_in_memory(graph: CallGraph, variable: str) -> int:
    """Words from the first to the last of a variable in memory; 0 if it has none."""
    v = graph.variables[variable]
    if 0 in v.shape:
        return 0
    return 1 + sum((e - 1) * s for e, s in zip(v.shape, v.word_strides, strict=True))


def _unit(graph: CallGraph, decision: Decision, k: int, wide: frozenset[str]) -> int:
    """Bytes of the struct that holds partial values of call k; 0 where they are plain values."""
    function, implementation = function_of(graph, decision, k)
    if not function.state:
        return 0
    macros = routine_macros(function, implementation) | {"INDEX": index_type(function.name in wide)}
    return state_bytes(cut_routines(implementation.source, macros, [function.state]), function.state)


def index_type(wide: bool) -> str:
    """The C type that the routines of a function know as INDEX."""
    return "long long" if wide else "int"


def _reductions(graph: CallGraph, decision: Decision, grid: Grid, sections: Sections, threads: int, num_tiles: Mapping[str, int],
                chunks: int, sized: GivenSizes | None) -> dict[str, Reduction] | Rejected:
    reductions: dict[str, Reduction] = {}
    for e in sections.elements.values():
        if not e.partial or e.variable in reductions:
            continue
        over = tuple(d for d in grid.extents if d not in e.axes)
        accumulated = decision.direction in over
        partials = prod(chunks if d == decision.direction else num_tiles[d] for d in over)
        single = partials == 1 if sized is None else not over or over == (decision.direction,) and sized.walks_all
        # A sum that needs no combination at the expected sizes may need one at others.
        finish = SINGLE if single else LAST_BLOCK if decision.finish == SINGLE else decision.finish
        function = graph.calls[decision.calls[e.owner[0]]].function
        if finish == ATOMICS and (function.state or function.finishes):
            return Rejected(Reason.REDUCTION_MISMATCH,
                            f"{function.name} combines partial values with a routine, for which there are no atomics")
        combination = None
        if isinstance(e.place, ThreadMapping):
            combined = combine_threads(e.place, e.threads, threads, e.extents)
            if isinstance(combined, Rejected):
                return combined
            combination = combined
        reductions[e.variable] = Reduction(e.variable, accumulated, over, partials, finish, combination)
    return reductions


def _with_slabs(sections: Sections, reductions: Mapping[str, Reduction], instances: int) -> tuple[Sections, dict[str, int]]:
    """The sections with the slabs of Gather and Finish named, and the words of each slab."""
    words: dict[str, int] = {}

    def with_slab(step: Step) -> Step:
        if not isinstance(step, Gather | Finish):
            return step
        e = sections.elements[step.element]
        combination = reductions[e.variable].combination
        if combination is None or combination.copies == 1:
            return step
        slab = step.element + "_partials"
        words[slab] = combination.copies * e.words
        return type(step)(step.element, slab)

    return sections.mapped(with_slab), words


def _storage(sections: Sections, slab_words: Mapping[str, int], instances: int, device: DeviceSpec) -> SharedPlan | Rejected:
    """Offsets in shared memory: elements with disjoint live ranges may overlap."""
    sequence = [*sections.before, *sections.group, *sections.after]
    start, end = len(sections.before), len(sections.before) + len(sections.group) - 1
    spans: dict[str, list[int]] = {}
    for n, step in enumerate(sequence):
        for name in elements_of(step):
            spans.setdefault(name, []).append(n)
    requests = []
    for name, at in spans.items():
        e = sections.elements.get(name)
        if e is not None and e.in_registers:
            continue
        first, last = at[0], at[-1]
        if first < start <= last:
            last = max(last, end)
        if name in slab_words:
            element = sections.elements[name.removesuffix("_partials")]
            num_bytes = slab_words[name] * element.units * element.unit.itemsize
        else:
            assert e is not None
            num_bytes = e.shared_words * instances * e.units * e.unit.itemsize
        requests.append(Request(name, num_bytes, first, last))
    limit = device.shared_bytes_per_block if device.kind == "cuda" else None
    return plan_shared(requests, {r.name: () for r in requests}, limit)


def _barriers(sections: Sections, slab_words: Mapping[str, int], plan: SharedPlan, instances: int) -> PlacedSections:
    """The sections with the barriers of the paper's algorithm 2."""
    elements = sections.elements
    spans: dict[str, tuple[int, int]] = {}
    for name, at in plan.offset_by_name.items():
        element = elements[name.removesuffix("_partials")] if name in slab_words else elements[name]
        words = slab_words.get(name, element.shared_words * instances)
        spans[name] = (at, at + words * element.units * element.unit.itemsize)

    def overlap(a: str, b: str) -> bool:
        return spans[a][0] < spans[b][1] and spans[b][0] < spans[a][1]

    return place_barriers(sections.before, (sections.group, sections.single, sections.edge), sections.after,
                          lambda step: shared_accesses(step, elements), overlap)


def shared_accesses(step: Step, elements: Mapping[str, Element]) -> SharedAccesses:
    """Accesses of a step to shared memory, each with its accessor."""

    def shared(name: str) -> bool:
        return not elements[name].in_registers

    match step:
        case Load(e) if shared(e):
            return SharedAccesses(writes=((e, step),))
        case Put(source, target):
            return SharedAccesses(writes=((target, (elements[source].place, elements[source].threads)),))
        case Get(source, target):
            return SharedAccesses(reads=((source, (elements[target].place, elements[target].threads)),))
        case Clear(e) if shared(e):
            return SharedAccesses(writes=((e, "clear"),))
        case Mask(e) if shared(e):
            return SharedAccesses(((e, "mask"),), ((e, "mask"),))
        case Store(e) if shared(e):
            return SharedAccesses(((e, step),))
        case Compute(call, named):
            touched = tuple((e, ("compute", call)) for e in named if e is not None and shared(e))
            return SharedAccesses(touched, tuple(a for a in touched if a[0] in step.outputs))
        case Gather(_, slab) if slab:
            return SharedAccesses(writes=((slab, "gather"),))
        case Finish(e, slab) if slab or shared(e):
            return SharedAccesses(((slab or e, "finish"),))
    return SharedAccesses()


def _transfers(sections: Sections, grid: Grid, tiles: Mapping[str, int], num_tiles: Mapping[str, int], chunks: int, walk: str) -> int:
    """Words moved between global memory and the chip by the whole kernel."""
    blocks = {d: chunks if d == walk else n for d, n in num_tiles.items()}
    live, every = live_tiles(grid, tiles, num_tiles), prod(num_tiles.values())

    def times(e: Element, each_tile: bool) -> int:
        along = {d: num_tiles[d] if d != walk or each_tile else blocks[d] for d in num_tiles}
        whole = prod(n if d in e.axes else along[d] for d, n in num_tiles.items()) * e.words
        return whole * live // every if each_tile else whole

    total = 0
    for steps, each_tile in ((sections.before, False), (sections.single, True), (sections.after, False)):
        for step in steps:
            if isinstance(step, Load | Store | Finish):
                total += times(sections.elements[step.element], each_tile)
    return total
