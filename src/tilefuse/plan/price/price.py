"""Pricing: the schedule and the cost of a pattern, cached by structure.

The scheduler and the cost model are the only judges of a pattern. This file asks each of them once for every structure, and not at all for
structures that were judged before under the same device, options and compiler (`known_patterns.py`).
"""
from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.base.errors import InternalError
from tilefuse.base.options import Options
from tilefuse.domain.parts import structure_but_starts
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.graph import Graph
from tilefuse.ir.layouts import Layouts
from tilefuse.plan.pattern import MEASUREMENT, Cost, Pattern
from tilefuse.plan.price.cost import CostModel
from tilefuse.plan.price.known_patterns import Figures, Judgement, Store, judgement_text, parse_judgement
from tilefuse.plan.price.products import NO_PRODUCTS, Products
from tilefuse.plan.price.structure import Structures, boundary
from tilefuse.target.device import DeviceSpec
from tilefuse.templates.choose import as_part
from tilefuse.templates.pattern import pattern_graph
from tilefuse.templates.registry import template_named
from tilefuse.templates.staged.stitched.record import Tiles

Scheduler = Callable[[Graph, Sequence[str], Layouts, DeviceSpec], TileProgram | Rejected]


@dataclass(frozen=True)
class Priced:
    """A pattern that has a schedule. `boundary` are the boundary values in the program's names, in canonical order.

    figures: facts that planning needs before it chooses the program; `make` schedules the pattern, if that was not done yet.
    """

    figures: Figures
    cost: Cost
    limit_us: float
    boundary: tuple[str, ...]
    make: Callable[[], TileProgram] = field(compare=False, repr=False)

    @cached_property
    def program(self) -> TileProgram:
        """The tile program, with the names of the first pattern of this structure in its graph."""
        return self.make()


@dataclass(frozen=True, slots=True)
class Ways:
    """How patterns become tile programs.

    one: as one loop nest, or staged; packed: independent parts as one packed kernel (None: there are none).
    packed_again: the same as `packed`, faster, because it reuses the schedules of parts with their first names.
    tiles: the cache of `one` for staged patterns in this graph.
    """

    one: Scheduler
    packed: Scheduler | None = None
    packed_again: Scheduler | None = None
    tiles: Tiles = field(default_factory=dict)


class Pricer:
    """Schedules and prices patterns of one graph for one device; patterns equal up to names get the same object."""

    def __init__(self, graph: Graph, layouts: Layouts, device: DeviceSpec, options: Options, ways: Ways, model: CostModel,
                 products: Products = NO_PRODUCTS, store: Store | None = None) -> None:
        """products: library operators that a kernel may hold. store: judgements of other graphs, by the same model of costs."""
        self._graph = graph
        self._layouts = layouts
        self.device = device
        self._options = options
        self._ways = ways
        self._model = model
        self.products = products
        self.store = store
        self._structures = Structures(graph, layouts)
        self._known: dict[tuple[int, ...], Priced | Rejected] = {}
        self._packed: dict[tuple[int, ...], Priced | Rejected] = {}
        # Judgements of patterns with products by `_tiles_form`, as texts: their kernels differ in where they begin to read alone.
        self._text_by_form: dict[Hashable, str] = {}
        self._call_us: dict[str, float] = {}
        self._parts: dict[int, tuple[TileProgram, TileProgram]] = {}
        self._updated = frozenset(v for _, v in graph.updates)
        # Structures judged for this graph, and those of them that the store already had.
        self.num_judged = 0
        self.num_known = 0

    def as_part(self, program: TileProgram) -> TileProgram:
        """`choose.as_part`, once for each program."""
        if id(program) not in self._parts:  # the program is kept beside its part, so that no other one gets its number
            self._parts[id(program)] = program, as_part(program, self.device)
        return self._parts[id(program)][1]

    def calls_us(self, nodes: Iterable[str]) -> float:
        """The library's time for those of the nodes that a kernel could hold instead; all other calls are the same in every plan.

        Units: microseconds.
        """
        total = 0.0
        for name in nodes:
            if name not in self._call_us:
                self._call_us[name] = self.products.call_us(self._graph.node_by_name[name])
            total += self._call_us[name]
        return total

    def call_or_kernel(self, core: Sequence[str], pattern: Pattern) -> tuple[float, Priced | None]:
        """Time of a library unit by itself, and the kernel that replaces it where the kernel is faster than the call.

        Where either time is a prediction, the kernel must take less than its template's `own_kernel_share` of the call's time, unless the
        memory decides the kernel's: all its reads are counted then.
        core: the unit's nodes; pattern: its kernel's. Units: microseconds.
        """
        call_us = self.calls_us(core)
        if not call_us or len(core) > 1 or not self.products.alone(node := self._graph.node_by_name[core[0]]):
            return call_us, None
        kernel = self.price(pattern)
        if isinstance(kernel, Rejected):
            return call_us, None
        both_measured = kernel.cost.source == MEASUREMENT and self.products.measured(node)
        is_exact = both_measured or kernel.cost.source == "bandwidth"
        if kernel.cost.us > call_us * (1.0 if is_exact else template_named(kernel.figures.template).own_kernel_share(self.device)):
            return call_us, None
        return kernel.cost.us, kernel

    def form(self, pattern: Pattern) -> tuple[int, ...]:
        """Equal for patterns that are equal up to names."""
        return self._structures.key(pattern)

    def knows(self, pattern: Pattern, limited: bool = True) -> bool:
        """Whether a pattern of this structure was priced already, for this graph."""
        return self._structures.key(pattern) in (self._known if limited else self._packed)

    def price(self, pattern: Pattern, limited: bool = True) -> Priced | Rejected:
        """The pattern's kernel and its cost, or the reason why there is none.

        limited: the nodes form one kernel body, within the limit on operands; else independent parts become one packed kernel.
        """
        store = self._known if limited else self._packed
        key = self._structures.key(pattern)
        outcome = store.get(key)
        if outcome is None:
            outcome = store[key] = self._one(pattern) if limited else self._pack(pattern)
        if self._updated.isdisjoint(pattern.written) or isinstance(outcome, Rejected):
            return outcome
        return self._refused(pattern, outcome) or outcome

    def priced(self, program: TileProgram, values: tuple[str, ...]) -> Priced:
        """A kernel that another search has built, by the same model of costs: its measured time where there is one."""
        return Priced(Figures.of(program, values), self._model.cost(program), self._model.limit_us(program), values, lambda: program)

    def _refused(self, pattern: Pattern, priced: Priced) -> Rejected | None:
        """The reason why a pattern that updates an input is no kernel though its structure is one: the update would need an additional
        copy."""
        if not priced.figures.several:
            return None
        values = boundary(self._graph, pattern)
        copied = [values[n] for n in priced.figures.several if values[n] in self._updated]
        if not copied:
            return None
        return Rejected(Reason.NEEDS_GRID_SYNC, f"several blocks compute %{copied[0]}, the new contents of an input that they read")

    def _one(self, pattern: Pattern) -> Priced | Rejected:
        values = boundary(self._graph, pattern)
        if len(pattern.nodes) > 1 and len(values) > self._options.max_kernel_operands:
            return Rejected(Reason.TOO_MANY_OPERANDS, f"{len(values)} tensors, at most {self._options.max_kernel_operands}")
        return self._judged(pattern, values, self._ways.one, None)

    def _pack(self, pattern: Pattern) -> Priced | Rejected:
        packed = self._ways.packed
        if packed is None:
            return Rejected(Reason.UNSUPPORTED_OP, "this scheduler packs no kernels")
        # The parts of a chosen kernel get their own names, not those of parts of another pattern that was tried before.
        return self._judged(pattern, boundary(self._graph, pattern), self._ways.packed_again or packed, packed)

    def _judged(self, pattern: Pattern, values: tuple[str, ...], scheduler: Scheduler, afresh: Scheduler | None) -> Priced | Rejected:
        """afresh: builds the program for a plan, if that is another scheduler than the judging one."""
        self.num_judged += 1
        form = self._tiles_form(pattern, values) if afresh is None else None
        digest = ""
        if self.store is not None:
            tiles = None if form is None else self._ways.tiles.get(form)
            digest = self._structures.digest(pattern, ("one" if afresh is None else "packed", tiles))
            text = self.store.get(digest)
            names = self._structures.names(pattern)
            known = None if text is None else parse_judgement(text, names)
            if known is not None:
                self.num_known += 1
            elif form in self._text_by_form:
                text = self._text_by_form[form]
                known = parse_judgement(text, names)
                self.store.put(digest, text)
            if known is not None:
                if form is not None and known.tiles is not None:
                    self._ways.tiles[form] = known.tiles
                return self._priced(known, values, lambda: self._required(pattern, values, afresh or scheduler))
        program = self._scheduled(pattern, values, scheduler)
        judged = program if isinstance(program, Rejected) else (
            Figures.of(program, values), self._model.cost(program), self._model.limit_us(program))
        judgement = Judgement(judged, None if form is None else self._ways.tiles.get(form))
        if self.store is not None and (judgement_line := judgement_text(judgement, names)) is not None:
            self.store.put(digest, judgement_line)
            if form is not None:
                self._text_by_form[form] = judgement_line
        if isinstance(program, Rejected):
            return program
        return self._priced(judgement, values, (lambda: self._required(pattern, values, afresh)) if afresh is not None else lambda: program)

    def _priced(self, judged: Judgement, values: tuple[str, ...], make: Callable[[], TileProgram]) -> Priced | Rejected:
        return judged.verdict if isinstance(judged.verdict, Rejected) else Priced(*judged.verdict, values, make)

    def _scheduled(self, pattern: Pattern, values: tuple[str, ...], scheduler: Scheduler) -> TileProgram | Rejected:
        layouts = {v: self._layouts[v] for v in values if v in self._layouts}
        return scheduler(pattern.graph(self._graph), pattern.nodes, layouts, self.device)

    def _required(self, pattern: Pattern, values: tuple[str, ...], scheduler: Scheduler) -> TileProgram:
        """The program of a pattern that is known to have one. Raises: InternalError where it has none."""
        program = self._scheduled(pattern, values, scheduler)
        if isinstance(program, Rejected):
            raise InternalError(f"the kernel of %{pattern.written[-1]} was priced and has no schedule: {program}",
                                hint="TILEFUSE_PLAN_CACHE=0 plans without stored judgements; please report it with the graph's text")
        return program

    def _tiles_form(self, pattern: Pattern, values: tuple[str, ...]) -> Hashable | None:
        """Key that patterns share if they copy each other's tiles; None for one without products."""
        if self.store is None or not any(self._graph.node_by_name[n].category == "library" for n in pattern.nodes):
            return None
        inner = pattern_graph(pattern.graph(self._graph), pattern.nodes)
        return structure_but_starts(inner, {v: self._layouts[v] for v in values if v in self._layouts})


def require(priced: Priced | Rejected, name: str) -> Priced:
    """The priced pattern. Raises: InternalError where it was rejected although it must have a schedule."""
    if isinstance(priced, Rejected):
        raise InternalError(f"no schedule for %{name} alone: {priced}", hint="please report it with the graph's text (TILEFUSE_DUMP_DIR)")
    return priced
