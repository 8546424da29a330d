"""Elements of a fused kernel and the order of its steps: which loads and stores are spared, which steps stand outside the loop.

A call reads its operand from the element that another call stored or loaded; an element of another thread-to-data mapping passes through
shared memory. Loads of elements that the walk does not change stand before the loop, stores of reductions along the walk after it.
Source: Filipovic et al., "Optimizing CUDA Code by Kernel Fusion", sections 3.2.3 and 4.3.2.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.ir.dtype import U32, DType
from tilefuse.scripts.language.elementary import CallGraph, Parameter, Place, SharedPlace, ThreadMapping
from tilefuse.scripts.schedule.elements import Decision, Element, function_of
from tilefuse.scripts.schedule.grid import Axes, Grid
from tilefuse.scripts.schedule.steps import Clear, Compute, Finish, Gather, Get, Load, Mask, Put, Step, Store

# Place of a scalar that a reduction computes: every thread holds a partial value of the one word.
EVERY_THREAD = ThreadMapping((1,), ())


@dataclass(frozen=True)
class Sections:
    """Elements by name, and the steps of a kernel's sections.

    before  before the loop
    group   `unroll` tiles together
    single  one tile
    edge    one tile that reaches over the edge of the data
    after   after the loop
    """

    elements: Mapping[str, Element]
    before: tuple[Step, ...]
    group: tuple[Step, ...]
    single: tuple[Step, ...]
    edge: tuple[Step, ...]
    after: tuple[Step, ...]

    def mapped(self, change: Callable[[Step], Step]) -> Sections:
        """The sections with every step replaced by `change` of it."""
        changed = (tuple(change(s) for s in section) for section in (self.before, self.group, self.single, self.edge, self.after))
        return Sections(self.elements, *changed)


@dataclass
class _Tile:
    """Steps of one tile of the walk. `elements_at`: names of its elements, by variable and directions."""

    loads: list[Step] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    finishes: list[Step] = field(default_factory=list)
    elements_at: dict[tuple[str, Axes], list[str]] = field(default_factory=dict)


def order_steps(graph: CallGraph, decision: Decision, grid: Grid, words: Mapping[str, int],
                state_bytes: Callable[[int], int]) -> Sections | Rejected:
    """The sections of a fused kernel, or the reason for which no kernel can run the calls.

    words: of an element along each direction. state_bytes: of the struct that holds partial values of call k; 0 for plain values.
    """
    return _Order(graph, decision, grid, words, state_bytes).ordered_sections()


class _Order:
    """Builds the sections of one kernel. Elements of tile copies beyond the first have a suffix in their names."""

    def __init__(self, graph: CallGraph, decision: Decision, grid: Grid, words: Mapping[str, int],
                 state_bytes: Callable[[int], int]) -> None:
        self.graph, self.decision, self.grid, self.words, self.state_bytes = graph, decision, grid, words, state_bytes
        self.elements: dict[str, Element] = {}
        self.calls = [graph.calls[c] for c in decision.calls]
        self.produced = {r for call in self.calls for r in call.results}
        self.computed_by_all = {r for call in self.calls for r in call.results if not call.function.sizes}
        self.outer = _Tile()
        self.rejected: Rejected | None = None

    def ordered_sections(self) -> Sections | Rejected:
        """The sections of the kernel, or the first reason against it."""
        after: list[Step] = []
        tiles = []
        for copy in range(self.decision.unroll):
            tiles.append(self.ordered_tile(copy, False, after if copy == 0 else []))
            if self.rejected:
                return self.rejected
        edge = self.ordered_tile(0, True, [])
        single = tiles[0]
        group = [s for t in tiles for s in t.loads] + [s for t in tiles for s in t.steps] + [s for t in tiles for s in t.finishes]
        ordered = [s for s in after if isinstance(s, Gather)] + [s for s in after if isinstance(s, Finish)]
        before = [*self.outer.loads, *self.outer.steps]
        return Sections(self.elements, tuple(before), tuple(group), (*single.loads, *single.steps, *single.finishes),
                      (*edge.loads, *edge.steps, *edge.finishes), tuple(ordered))

    def ordered_tile(self, copy: int, edge: bool, after: list[Step]) -> _Tile:
        """Steps of one tile. Steps outside the loop are added to `outer` and `after` by the first tile."""
        tile = _Tile()
        for k, call in enumerate(self.calls):
            function, implementation = function_of(self.graph, self.decision, k)
            named: list[str | None] = []
            if not function.sizes:
                if copy == 0 and not edge:
                    self.add_number_call(k)
                continue
            for p, variable in zip(function.inputs, call.arguments, strict=True):
                if not p.extents or not isinstance(variable, str):
                    named.append(None)
                    if isinstance(variable, str) and variable in self.produced - self.computed_by_all:
                        self.refuse(f"{function.name} needs the scalar {variable}, which the same kernel computes")
                    continue
                named.append(self.element_of_operand(tile, k, p, variable, copy, edge))
            finishing: list[Step] = []
            for p, variable in zip(function.outputs, call.results, strict=True):
                named.append(self.element_of_result(tile, k, p, variable, copy, finishing, after))
            tile.steps.append(Compute(k, tuple(named), len(function.outputs), copy))
            for step in finishing:
                (tile.finishes if isinstance(step, Finish) else tile.steps).append(step)
        return tile

    def add_number_call(self, k: int) -> None:
        """Adds a call on numbers alone: every thread computes it, before the loop."""
        function, implementation = function_of(self.graph, self.decision, k)
        call = self.calls[k]
        if any(isinstance(v, str) and v in self.produced - self.computed_by_all for v in call.arguments):
            self.refuse(f"{function.name} needs a number that the same kernel computes by a reduction")
        names = [self.add_element(v, (), EVERY_THREAD, implementation.geometry.threads, (k, p.name), self.dtype(k, p), 0)
                 for p, v in zip(function.outputs, call.results, strict=True)]
        self.outer.steps.append(Compute(k, (*(None for _ in function.inputs), *names), len(names)))
        self.outer.steps += [Store(n) for n, v in zip(names, call.results, strict=True) if self.is_used_outside(v)]

    def is_used_outside(self, variable: str) -> bool:
        """Whether another kernel or the script's result reads a variable."""
        return variable in self.graph.outputs or any(c not in self.decision.calls for c in self.graph.readers(variable))

    def refuse(self, detail: str) -> None:
        """Records the first reason against the kernel."""
        self.rejected = self.rejected or Rejected(Reason.NEEDS_GRID_SYNC, detail)

    # -- operands

    def element_of_operand(self, tile: _Tile, k: int, p: Parameter, variable: str, copy: int, edge: bool) -> str:
        """The element from which call k reads a parameter. Adds the steps that load it or change its mapping."""
        function, implementation = function_of(self.graph, self.decision, k)
        axes = self.axes(k, p)
        place, threads = implementation.places[p.name], implementation.geometry.threads
        home = tile if self.decision.direction in axes or variable in self.produced else self.outer
        copies = home.elements_at.setdefault((variable, axes), [])
        exact = next((n for n in copies if self.lies_at(self.elements[n], place, threads)), None)
        steps = tile.steps if home is tile else self.outer.steps
        if exact is None:
            source = next((n for n in copies if self.elements[n].in_registers), copies[0] if copies else None)
            if source is None and variable in self.produced:
                self.refuse(f"{function.name} needs {variable}, which is complete only after the kernel")
                return variable
            exact = self.add_element(variable, axes, place, threads, (k, p.name), self.dtype(k, p), copy)
            if source is None:
                home.loads.append(Load(exact))
            else:
                self.add_exchange(steps, source, exact, copy)
            copies.append(exact)
        if self.needs_mask(k, p, exact, edge):
            steps.append(Mask(exact, k, p.name))
        return exact

    def needs_mask(self, k: int, p: Parameter, name: str, edge: bool) -> bool:
        """Whether words outside the data need padding before call k reads the element. Its reader loads an invariant element itself."""
        function = function_of(self.graph, self.decision, k)[0]
        e = self.elements[name]
        if not edge or not function.kind.reduces or self.decision.direction not in e.axes and e.variable not in self.produced:
            return False
        if e.variable in self.produced:
            return True
        owner = function_of(self.graph, self.decision, e.owner[0])[0]
        return function.padding.get(p.name, "0") != owner.padding.get(e.owner[1], "0")

    def add_exchange(self, steps: list[Step], source: str, target: str, copy: int) -> None:
        """Adds the steps that copy an element to another mapping, through shared memory."""
        stored, needed = self.elements[source], self.elements[target]
        if stored.in_registers and not needed.in_registers:
            steps.append(Put(source, target))
        elif not stored.in_registers and needed.in_registers:
            steps.append(Get(source, target))
        elif stored.in_registers:
            pad = 1 if len(needed.extents) == 2 else 0
            shared = self.add_element(needed.variable, needed.axes, SharedPlace(pad), (1, 1), needed.owner, needed.unit, copy, "passed")
            steps += [Put(source, shared), Get(shared, target)]
        else:
            detail = f"%{needed.variable} in shared memory with two different paddings"
            self.rejected = self.rejected or Rejected(Reason.UNSUPPORTED_OP, detail)

    @staticmethod
    def lies_at(e: Element, place: Place, threads: tuple[int, int]) -> bool:
        """Whether an element lies at the place that a call needs."""
        return e.place == place and (e.threads == threads or not e.in_registers)

    # -- results

    def element_of_result(self, tile: _Tile, k: int, p: Parameter, variable: str, copy: int, finishing: list[Step],
                          after: list[Step]) -> str:
        """The element that call k writes. Adds the steps that clear it before the call and store it after."""
        function, implementation = function_of(self.graph, self.decision, k)
        axes = self.axes(k, p)
        place = implementation.places.get(p.name, EVERY_THREAD)
        threads = implementation.geometry.threads
        reduces = function.kind.reduces
        if not reduces and set(axes) != set(self.grid.extents):
            detail = f"{function.name} is a map, but {p.name} does not cover its grid"
            self.rejected = self.rejected or Rejected(Reason.DOMAIN_MISMATCH, detail)
        accumulated = reduces and self.decision.direction not in axes
        name = next((n for n, e in self.elements.items() if accumulated and e.variable == variable and e.owner == (k, p.name)), None)
        if name is None:
            name = self.add_element(variable, axes, place, threads, (k, p.name), self.dtype(k, p), copy, partial=reduces,
                            state=self.state_bytes(k))
            if accumulated:
                self.outer.steps.append(Clear(name))
        if accumulated:
            if not any(isinstance(s, Gather) and s.element == name for s in after):
                after += [Gather(name, ""), Finish(name, "")]
        elif reduces:
            tile.steps.append(Clear(name))
            finishing += [Gather(name, ""), Finish(name, "")]
        else:
            tile.elements_at[variable, axes] = [name]
            if self.is_used_outside(variable):
                finishing.append(Store(name))
        return name

    # -- elements

    def axes(self, k: int, p: Parameter) -> Axes:
        """Directions of a parameter's dimensions."""
        return tuple(self.grid.axis_of[k][n] for n in p.extents)

    def dtype(self, k: int, p: Parameter) -> DType:
        """Type of a word of a parameter."""
        function = function_of(self.graph, self.decision, k)[0]
        return function.dtype if function.kind.reduces else p.dtype or function.dtype

    def add_element(self, variable: str, axes: Axes, place: Place, threads: tuple[int, int], owner: tuple[int, str], unit: DType, copy: int,
            role: str = "", partial: bool = False, state: int = 0) -> str:
        """The name of a new element, or of an equal one that an earlier tile added."""
        stem = variable + (f"_{role}" if role else "") + (f"_{copy}" if copy else "")
        e = Element(stem, variable, axes, tuple(self.words[d] for d in axes), place,
                    threads if isinstance(place, ThreadMapping) else (1, 1), owner, U32 if state else unit, state // 4 if state else 1,
                    partial, copy)
        number = 1
        while e.name in self.elements and replace(self.elements[e.name], name=stem) != replace(e, name=stem):
            number += 1
            e = replace(e, name=f"{stem}_of_{number}")
        self.elements[e.name] = e
        return e.name
