"""Elements of a fused kernel and the order of its steps: which loads and stores are spared, what stands outside the loop.

A call finds its operand where another call left or loaded it; with another thread-to-data mapping it is passed through shared memory.
Loads of what the walk does not move along stand before the loop, stores of reductions along the walk after it.
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

# A scalar that a reduction gives: every thread holds a partial value of the one word.
EVERY_THREAD = ThreadMapping((1,), ())


@dataclass(frozen=True)
class Stages:
    """Elements by name, and the steps: before the loop, `unroll` tiles together, one tile, one tile over the edge, after the loop."""

    elements: Mapping[str, Element]
    before: tuple[Step, ...]
    group: tuple[Step, ...]
    single: tuple[Step, ...]
    edge: tuple[Step, ...]
    after: tuple[Step, ...]

    def mapped(self, change: Callable[[Step], Step]) -> Stages:
        """The same with every step changed."""
        changed = (tuple(change(s) for s in stage) for stage in (self.before, self.group, self.single, self.edge, self.after))
        return Stages(self.elements, *changed)


@dataclass
class _Tile:
    """Steps of one tile of the walk, in the making."""

    loads: list[Step] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    finishes: list[Step] = field(default_factory=list)
    at: dict[tuple[str, Axes], list[str]] = field(default_factory=dict)


def order_steps(graph: CallGraph, decision: Decision, grid: Grid, words: Mapping[str, int],
                state_bytes: Callable[[int], int]) -> Stages | Rejected:
    """The stages of a fused kernel, or why the calls cannot be glued.

    words: of an element along each direction. state_bytes: of the struct that holds partial values of call k; 0 for plain values.
    """
    return _Order(graph, decision, grid, words, state_bytes).stages()


class _Order:
    """Elements found so far. Names of tile copies beyond the first have a suffix."""

    def __init__(self, graph: CallGraph, decision: Decision, grid: Grid, words: Mapping[str, int],
                 state_bytes: Callable[[int], int]) -> None:
        self.graph, self.decision, self.grid, self.words, self.state_bytes = graph, decision, grid, words, state_bytes
        self.elements: dict[str, Element] = {}
        self.calls = [graph.calls[c] for c in decision.calls]
        self.produced = {r for call in self.calls for r in call.results}
        self.computed_by_all = {r for call in self.calls for r in call.results if not call.function.sizes}
        self.outer = _Tile()
        self.refused: Rejected | None = None

    def stages(self) -> Stages | Rejected:
        """All of it."""
        after: list[Step] = []
        tiles = []
        for copy in range(self.decision.unroll):
            tiles.append(self.tile(copy, False, after if copy == 0 else []))
            if self.refused:
                return self.refused
        edge = self.tile(0, True, [])
        single = tiles[0]
        group = [s for t in tiles for s in t.loads] + [s for t in tiles for s in t.steps] + [s for t in tiles for s in t.finishes]
        ordered = [s for s in after if isinstance(s, Gather)] + [s for s in after if isinstance(s, Finish)]
        before = [*self.outer.loads, *self.outer.steps]
        return Stages(self.elements, tuple(before), tuple(group), (*single.loads, *single.steps, *single.finishes),
                      (*edge.loads, *edge.steps, *edge.finishes), tuple(ordered))

    def tile(self, copy: int, edge: bool, after: list[Step]) -> _Tile:
        """Steps of one tile; what belongs outside the loop is added there the first time."""
        tile = _Tile()
        for k, call in enumerate(self.calls):
            function, implementation = function_of(self.graph, self.decision, k)
            named: list[str | None] = []
            if not function.sizes:
                if copy == 0 and not edge:
                    self.numbers(k)
                continue
            for p, variable in zip(function.inputs, call.arguments, strict=True):
                if not p.extents or not isinstance(variable, str):
                    named.append(None)
                    if isinstance(variable, str) and variable in self.produced - self.computed_by_all:
                        self.refuse(f"{function.name} needs the scalar {variable}, which the same kernel computes")
                    continue
                named.append(self.operand(tile, k, p, variable, copy, edge))
            finishing: list[Step] = []
            for p, variable in zip(function.outputs, call.results, strict=True):
                named.append(self.result(tile, k, p, variable, copy, finishing, after))
            tile.steps.append(Compute(k, tuple(named), len(function.outputs), copy))
            for step in finishing:
                (tile.finishes if isinstance(step, Finish) else tile.steps).append(step)
        return tile

    def numbers(self, k: int) -> None:
        """A call of numbers alone: every thread computes it, before the loop."""
        function, implementation = function_of(self.graph, self.decision, k)
        call = self.calls[k]
        if any(isinstance(v, str) and v in self.produced - self.computed_by_all for v in call.arguments):
            self.refuse(f"{function.name} needs a number that the same kernel computes by a reduction")
        names = [self.new(v, (), EVERY_THREAD, implementation.geometry.threads, (k, p.name), self.dtype(k, p), 0)
                 for p, v in zip(function.outputs, call.results, strict=True)]
        self.outer.steps.append(Compute(k, (*(None for _ in function.inputs), *names), len(names)))
        self.outer.steps += [Store(n) for n, v in zip(names, call.results, strict=True) if self.is_wanted(v)]

    def is_wanted(self, variable: str) -> bool:
        """Whether a variable is needed outside the kernel."""
        return variable in self.graph.outputs or any(c not in self.decision.calls for c in self.graph.readers(variable))

    def refuse(self, detail: str) -> None:
        """Notes why there is no such kernel."""
        self.refused = self.refused or Rejected(Reason.NEEDS_GRID_SYNC, detail)

    # -- operands

    def operand(self, tile: _Tile, k: int, p: Parameter, variable: str, copy: int, edge: bool) -> str:
        """The element from which call k reads a parameter, with the steps that bring it there."""
        function, implementation = function_of(self.graph, self.decision, k)
        axes = self.axes(k, p)
        place, threads = implementation.places[p.name], implementation.geometry.threads
        moves = self.decision.direction in axes
        home = tile if moves or variable in self.produced else self.outer
        known = home.at.setdefault((variable, axes), [])
        exact = next((n for n in known if self.agrees(self.elements[n], place, threads)), None)
        steps = tile.steps if home is tile else self.outer.steps
        if exact is None:
            source = next((n for n in known if self.elements[n].in_registers), known[0] if known else None)
            if source is None and variable in self.produced:
                self.refuse(f"{function.name} needs {variable}, which is complete only after the kernel")
                return variable
            exact = self.new(variable, axes, place, threads, (k, p.name), self.dtype(k, p), copy)
            if source is None:
                home.loads.append(Load(exact))
            else:
                self.exchange(steps, source, exact, copy)
            known.append(exact)
        if self.masks(k, p, exact, edge):
            steps.append(Mask(exact, k, p.name))
        return exact

    def masks(self, k: int, p: Parameter, name: str, edge: bool) -> bool:
        """Whether words outside the data must be set before call k reads the element. Invariant elements are loaded by its reader."""
        function = function_of(self.graph, self.decision, k)[0]
        e = self.elements[name]
        if not edge or not function.kind.reduces or self.decision.direction not in e.axes and e.variable not in self.produced:
            return False
        if e.variable in self.produced:
            return True
        owner = function_of(self.graph, self.decision, e.owner[0])[0]
        return function.padding.get(p.name, "0") != owner.padding.get(e.owner[1], "0")

    def exchange(self, steps: list[Step], source: str, target: str, copy: int) -> None:
        """An element of another mapping: through shared memory."""
        have, want = self.elements[source], self.elements[target]
        if have.in_registers and not want.in_registers:
            steps.append(Put(source, target))
        elif not have.in_registers and want.in_registers:
            steps.append(Get(source, target))
        elif have.in_registers:
            pad = 1 if len(want.extents) == 2 else 0
            passed = self.new(want.variable, want.axes, SharedPlace(pad), (1, 1), want.owner, want.unit, copy, "passed")
            steps += [Put(source, passed), Get(passed, target)]
        else:
            self.refused = self.refused or Rejected(Reason.UNSUPPORTED_OP, f"%{want.variable} in shared memory with two different paddings")

    @staticmethod
    def agrees(e: Element, place: Place, threads: tuple[int, int]) -> bool:
        """Whether an element lies as a call wants it."""
        return e.place == place and (e.threads == threads or not e.in_registers)

    # -- results

    def result(self, tile: _Tile, k: int, p: Parameter, variable: str, copy: int, finishing: list[Step], after: list[Step]) -> str:
        """The element that call k writes, with the steps that clear it before and store it behind."""
        function, implementation = function_of(self.graph, self.decision, k)
        axes = self.axes(k, p)
        place = implementation.places.get(p.name, EVERY_THREAD)
        threads = implementation.geometry.threads
        reduces = function.kind.reduces
        if not reduces and set(axes) != set(self.grid.extents):
            why = f"{function.name} is a map, but {p.name} does not cover its grid"
            self.refused = self.refused or Rejected(Reason.DOMAIN_MISMATCH, why)
        accumulated = reduces and self.decision.direction not in axes
        name = next((n for n, e in self.elements.items() if accumulated and e.variable == variable and e.owner == (k, p.name)), None)
        if name is None:
            name = self.new(variable, axes, place, threads, (k, p.name), self.dtype(k, p), copy, partial=reduces,
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
            tile.at[variable, axes] = [name]
            if self.is_wanted(variable):
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

    def new(self, variable: str, axes: Axes, place: Place, threads: tuple[int, int], owner: tuple[int, str], unit: DType, copy: int,
            role: str = "", partial: bool = False, state: int = 0) -> str:
        """A new element, or the one of an earlier pass over the same tile; its name."""
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
