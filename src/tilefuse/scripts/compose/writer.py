"""Statements of the steps of a fused kernel: routine calls as in the paper's algorithm 2, with their accesses for the checking mode.

    if (thread < 128) {                             a call that needs fewer threads than the block has: whole warps,
      saxpy::load_x(x, 1, x_l, tx_1, ty_1, ...);    with their own thread indices
    }
Source: Filipovic et al., "Optimizing CUDA Code by Kernel Fusion", section 4.3.3.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from tilefuse.ir.affine import Affine, axis, number, substitute
from tilefuse.ir.dtype import DType
from tilefuse.ir.scalar import Bound, const
from tilefuse.kernel.ir import (
    Assign,
    Buffer,
    Declare,
    For,
    If,
    KExpr,
    Let,
    Load,
    Pointer,
    Reg,
    RoutineCall,
    Stmt,
    Store,
    Touched,
)
from tilefuse.scripts.compose.launch import LaunchSizes
from tilefuse.scripts.compose.namespace import Namespaces
from tilefuse.scripts.language.elementary import ElementaryFunction, Implementation, Parameter, ThreadMapping
from tilefuse.scripts.schedule import steps
from tilefuse.scripts.schedule.combine import leaders, slot_coordinates
from tilefuse.scripts.schedule.elements import Element
from tilefuse.scripts.schedule.routines import LARGEST_INT32, FusedRoutines, index_type
from tilefuse.scripts.schedule.sizes import strides_of


@dataclass
class Iteration:
    """The iteration of the loop over tiles in which a step stands.

    tile    the tile along the walk, as an index expression; None outside the loop
    inside  direction -> whether tiles lie wholly inside the data along it
    stride  tiles from one tile in flight to the next
    """

    tile: Affine | None
    inside: Mapping[str, bool]
    stride: Affine = Affine()


def _wide(fused: FusedRoutines, function: ElementaryFunction) -> bool:
    """Whether the routines of a function compute indices of 64 bits. A struct of partial values has one layout in all cases of sizes."""
    if fused.sized is None or function.state:
        return function.name in fused.wide_routines
    return fused.sized.case.most_indexed > LARGEST_INT32


class RoutineWriter:
    """Writes the statements of one fused kernel, and collects its parameters, arrays and routines."""

    def __init__(self, fused: FusedRoutines) -> None:
        self.fused = fused
        self.namespaces = Namespaces(lambda function: index_type(_wide(fused, function)))
        self.buffers: dict[str, Buffer] = {}
        self.scratch: list[Buffer] = []
        self.extra_buffers: list[Buffer] = []
        self.extra_is_read = False  # whether a last block's sums read the extra buffers since the last barrier
        self.geometries: dict[tuple[int, int], tuple[Affine, ...]] = {}
        self.scalars: dict[str, Reg] = {}
        self.computed: set[str] = set()
        self.walk = fused.walk
        self.across = next((d for d in fused.grid.extents if d != self.walk), None)
        self.sizes = LaunchSizes(fused)
        self.index_lets: list[Stmt] = []

    # -- names of the kernel

    def coordinates(self, threads: tuple[int, int]) -> tuple[Affine, ...]:
        """(tx, ty, instance) of this thread for instances of (x, y) threads."""
        if threads not in self.geometries:
            n = len(self.geometries)
            x, y = threads
            size = x * y
            one = size == self.fused.threads
            local = axis("thread") if one else axis("thread") % size
            instances = 1 if one or self.fused.grid.nested else -(-self.fused.threads // size)
            named = (("tx", local if y == 1 else local % x, x), ("ty", local // x, y), ("instance", axis("thread") // size, instances))
            self.index_lets += [Let(f"{name}_{n}", value, extent) for name, value, extent in named if extent > 1]
            self.geometries[threads] = tuple(axis(f"{name}_{n}") if extent > 1 else number(0) for name, _, extent in named)
        return self.geometries[threads]

    def block(self, direction: str) -> Affine:
        """Number of the block along a direction."""
        return axis(f"block_{direction}")

    def blocks(self, direction: str) -> Affine:
        """Blocks along a direction."""
        return self.sizes.chunks if direction == self.walk else self.sizes.tiles(direction)

    def first_word(self, direction: str, iteration: Iteration, instance: Affine, copy: int = 0) -> Affine:
        """First word of this instance's element along a direction."""
        fused = self.fused
        if direction == self.walk:
            assert iteration.tile is not None
            tile = iteration.tile + iteration.stride * copy
        else:
            tile = self.block(direction)
        at = tile * fused.tiles[direction]
        return at if fused.grid.nested else at + instance * (fused.tiles[direction] // fused.decision.instances)

    def role(self, k: int, name: str) -> tuple[ElementaryFunction, Implementation, Parameter]:
        """Function, implementation and parameter of an element's owner."""
        function = self.fused.call(k).function
        return function, self.fused.implementation(k), function.parameter(name)

    def register(self, e: Element, word: Affine | None = None) -> Reg:
        """The thread's array of an element, starting at a word."""
        return Reg(f"{e.name}_l", e.unit, (number(0) if word is None else word) * e.units)

    def shared_index(self, e: Element, instance: Affine, at: Sequence[Affine] = ()) -> Affine:
        """Index of a word of an instance's element in shared memory. Units: `Element.unit`."""
        place = instance * e.shared_words
        for n, a in enumerate(at):
            place = place + (a * e.pitch if n == 0 and len(e.extents) == 2 else a)
        return place * e.units

    def participates(self, threads: tuple[int, int]) -> tuple[Bound, ...]:
        """Bounds that hold for the threads of a call with instances of (x, y) threads."""
        instances = 1 if self.fused.grid.nested else self.fused.decision.instances
        needed = prod(threads) * instances
        return (Bound(axis("thread"), 0, needed),) if needed < self.fused.threads else ()

    def where_participating(self, threads: tuple[int, int], body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        """The body, under the bounds of the participating threads."""
        bounds = self.participates(threads)
        return (If(bounds, body),) if bounds else body

    # -- accesses of routines, for the checking mode

    def first_thread(self, threads: tuple[int, int]) -> tuple[Bound, ...]:
        """Bounds that hold for the first thread of each instance."""
        tx, ty, _ = self.coordinates(threads)
        return tuple(Bound(a, 0, 1) for a, extent in ((tx, threads[0]), (ty, threads[1])) if extent > 1)

    def touches_element(self, e: Element, threads: tuple[int, int], writes: bool) -> Touched:
        """All words of an element."""
        if e.in_registers:
            return Touched(f"{e.name}_l", axis("tf_w"), (("tf_w", e.held * e.units),), writes, True)
        _, _, instance = self.coordinates(threads)
        loops = tuple((f"tf_w{n}", extent) for n, extent in enumerate(e.extents))
        at = [axis(name) for name, _ in loops]
        return Touched(f"{e.name}_l", self.shared_index(e, instance, at), loops, writes, False, (), self.first_thread(threads))

    def touches_memory(self, e: Element, iteration: Iteration, threads: tuple[int, int], writes: bool) -> Touched:
        """The words of an element that lie inside the data, in global memory."""
        _, _, instance = self.coordinates(threads)
        strides = strides_of(self.fused.graph.variables[e.variable])
        index, loops, bounds, scaled = number(0), [], [], []
        for n, (d, extent, stride) in enumerate(zip(e.axes, e.extents, strides, strict=True)):
            at = self.first_word(d, iteration, instance, e.copy) + axis(f"tf_w{n}")
            loops.append((f"tf_w{n}", extent))
            bounds.append(self.sizes.inside(at, d))
            if stride.is_const:
                index = index + at * stride.const
            else:
                scaled.append((at, stride))
        return Touched(e.variable, index, tuple(loops), writes, False, tuple(bounds), self.first_thread(threads), tuple(scaled))

    # -- steps

    def transfer(self, e: Element, iteration: Iteration, verb: str) -> tuple[Stmt, ...]:
        """A load or store routine."""
        function, implementation, p = self.role(*e.owner)
        if not e.axes:
            self.add_parameter(e.variable, True)
            first_thread = (Bound(axis("thread"), 0, 1), Bound(axis("block"), 0, 1))
            return (If(first_thread, (Store(e.variable, number(0), self.register(e)),)),)
        threads = implementation.geometry.threads
        tx, ty, instance = self.coordinates(threads)
        strides = strides_of(self.fused.graph.variables[e.variable])
        inside = all(iteration.inside[d] for d in e.axes)
        contiguous = self.contiguous(e.owner[0]) if inside else frozenset()
        firsts = [self.first_word(d, iteration, instance, e.copy) for d in e.axes]
        # Inside the data the element's own end is the bound: compilers fold it with the routine's comparison.
        ends = [f + extent if inside else self.sizes.extent(d)
                for d, f, extent in zip(e.axes, firsts, e.extents, strict=True)]
        array = self.register(e) if e.in_registers else Pointer(f"{e.name}_l", self.shared_index(e, instance))
        name = self.namespaces.routine(function, implementation, f"{verb} {p.name}", contiguous)
        arguments = (Pointer(e.variable, number(0)), *strides, array, tx, ty, *firsts, *ends)
        loads = verb == "load"
        touched = (self.touches_memory(e, iteration, threads, not loads), self.touches_element(e, threads, loads))
        self.add_parameter(e.variable, not loads)
        return self.where_participating(threads, (RoutineCall(name, arguments, touched if loads else touched[::-1]),))

    def contiguous(self, k: int) -> frozenset[str]:
        """Parameters of a call whose elements, inside the data, have rows that are 16-byte aligned in memory."""
        call, implementation = self.fused.call(k), self.fused.implementation(k)
        names = set()
        for p, variable in zip((*call.function.inputs, *call.function.outputs), (*call.arguments, *call.results), strict=True):
            if p.extents and isinstance(variable, str):
                v = self.fused.graph.variables[variable]
                vector, strides = 16 // v.dtype.itemsize, strides_of(v)
                own = implementation.geometry.extents[p.extents[-1]]
                aligned = self.fused.sized is not None and self.fused.sized.case.aligned
                rows = all(s.const % vector == 0 if s.is_const else aligned for s in strides[:-1])
                if strides[-1] == number(1) and own % vector == 0 and rows:
                    names.add(p.name)
        return frozenset(names)

    def add_parameter(self, variable: str, writes: bool, updates: bool = False) -> None:
        """Makes a variable a parameter of the kernel."""
        if variable not in self.buffers:
            role = "inout" if updates else "out" if writes else "in"
            v = self.fused.graph.variables[variable]
            words, count = self.sizes.words(variable)
            self.buffers[variable] = Buffer(variable, v.dtype, words, "global", role, variable, 0, count)

    def compute(self, s: steps.Compute, iteration: Iteration) -> tuple[Stmt, ...]:
        """A compute routine."""
        call, implementation = self.fused.call(s.call), self.fused.implementation(s.call)
        function, threads = call.function, implementation.geometry.threads
        tx, ty, instance = self.coordinates(threads)
        arguments: list[Pointer | Reg | Affine | KExpr] = []
        reads, writes, held = [], [], 1
        operands = (*call.arguments, *call.results)
        for n, (p, name) in enumerate(zip((*function.inputs, *function.outputs), s.elements, strict=True)):
            if name is None:
                arguments.append(self.scalar(operands[n], p.dtype or function.dtype))
                continue
            e = self.fused.elements[name]
            arguments.append(self.register(e) if e.in_registers else Pointer(f"{e.name}_l", self.shared_index(e, instance)))
            if n < len(function.inputs) or e.partial:
                reads.append(self.touches_element(e, threads, False))
            if n >= len(function.inputs):
                writes.append(self.touches_element(e, threads, True))
                held = e.held
        if function.positions:
            arguments += [self.first_word(self.fused.grid.axis_of[s.call][n], iteration, instance, s.copy) for n in function.sizes]
        name = self.namespaces.compute(function, implementation, held)
        if not function.sizes:
            values = [(self.fused.elements[n], v) for n, v in zip(s.outputs, call.results, strict=True)]
            named = tuple(Declare(f"{v}_value", e.unit, None, self.register(e)) for e, v in values)
            self.scalars |= {v: Reg(f"{v}_value", e.unit) for e, v in values}
            self.computed |= {v for _, v in values}
            return (RoutineCall(name, (*arguments, tx, ty), (*reads, *writes)), *named)
        return self.where_participating(threads, (RoutineCall(name, (*arguments, tx, ty), (*reads, *writes)),))

    def scalar(self, operand: str | float, dtype: DType) -> KExpr:
        """A scalar argument: a number, or the word of a variable, loaded once."""
        if not isinstance(operand, str):
            return const(operand, dtype)
        if operand not in self.scalars:
            self.add_parameter(operand, False)
            self.scalars[operand] = Reg(f"{operand}_l", dtype)
        return self.scalars[operand]

    def clear(self, e: Element) -> tuple[Stmt, ...]:
        """Partial values become neutral, in all threads: the combination reads those of idle threads too."""
        function, implementation, _ = self.role(*e.owner)
        if e.in_registers:
            name = self.namespaces.clear(function, implementation, e.held)
            return (RoutineCall(name, (self.register(e),), (self.touches_element(e, implementation.geometry.threads, True),)),)
        name = self.namespaces.clear(function, implementation, 1)
        instances = 1 if self.fused.grid.nested else self.fused.decision.instances
        array = f"{e.name}_l"
        return self.spread_over_threads(e.shared_words * instances, lambda w: (RoutineCall(
            name, (Pointer(array, w * e.units),), (Touched(array, w * e.units + axis("tf_w"), (("tf_w", e.units),), True),)),))

    def spread_over_threads(self, words: int | Affine, body: Callable[[Affine], Iterable[Stmt]]) -> tuple[Stmt, ...]:
        """body(word) for every word below `words`, spread over the threads of the block."""
        threads = self.fused.threads
        if isinstance(words, Affine):
            if not words.is_const:
                w = axis("turn") * threads + axis("thread")
                inner = If((self.sizes.below(w, words),), tuple(body(w)))
                return (For("turn", number(0), (words + (threads - 1)) // threads, 1, (inner,)),)
            words = words.const
        if words <= threads:
            once = tuple(body(axis("thread")))
            return (If((Bound(axis("thread"), 0, words),), once),) if words < threads else once
        w = axis("turn") * threads + axis("thread")
        inner_body = tuple(body(w))
        if words % threads:
            inner_body = (If((Bound(w, 0, words),), inner_body),)
        return (For("turn", number(0), number(-(-words // threads)), 1, inner_body),)

    def slots(self, e: Element, body: Callable[[Affine, list[Affine]], Iterable[Stmt]]) -> tuple[Stmt, ...]:
        """body(slot, coordinates) for every word that a thread holds."""
        assert isinstance(e.place, ThreadMapping)
        tx, ty, _ = self.coordinates(e.threads)
        statements: list[Stmt] = []
        for slot in range(e.held):
            names = {"tx": tx, "ty": ty} | slot_coordinates(e.place.slots, number(slot))
            statements += body(number(slot), [substitute(a, names) for a in e.place.at])
        return tuple(statements)

    def put(self, source: Element, target: Element) -> tuple[Stmt, ...]:
        """Registers to shared memory; one of the threads with equal words writes."""
        assert isinstance(source.place, ThreadMapping)
        _, _, instance = self.coordinates(source.threads)
        bits = leaders(source.place, source.threads, self.fused.threads)
        leading = tuple(Bound(axis("thread") // (1 << b) % 2, 0, 1) for b in bits or ())
        body = self.slots(source, lambda slot, at: [
            Store(f"{target.name}_l", self.shared_index(target, instance, at), self.register(source, slot))])
        return self.where_participating(source.threads, (If(leading, body),) if leading else body)

    def get(self, source: Element, target: Element) -> tuple[Stmt, ...]:
        """Shared memory to registers."""
        _, _, instance = self.coordinates(target.threads)
        body = self.slots(target, lambda slot, at: [Assign(self.register(target, slot), Load(
            f"{source.name}_l", source.unit, self.shared_index(source, instance, at)))])
        return self.where_participating(target.threads, body)

    def mask(self, e: Element, k: int, parameter: str, iteration: Iteration) -> tuple[Stmt, ...]:
        """Words outside the data become the padding of a call's parameter."""
        function, implementation, _ = self.role(k, parameter)
        name = self.namespaces.padding(function, implementation, parameter)

        def outside(at: list[Affine], instance: Affine) -> tuple[Bound, ...]:
            return tuple(self.sizes.inside(self.first_word(d, iteration, instance, e.copy) + a, d) for d, a in zip(e.axes, at, strict=True))

        if e.in_registers:
            _, _, instance = self.coordinates(e.threads)

            def one(slot: Affine, at: list[Affine]) -> list[Stmt]:
                touched = Touched(f"{e.name}_l", slot, (), True, True)
                return [If(outside(at, instance), (), (RoutineCall(name, (self.register(e, slot),), (touched,)),))]

            return self.where_participating(e.threads, self.slots(e, one))
        instances = 1 if self.fused.grid.nested else self.fused.decision.instances

        def word(w: Affine) -> list[Stmt]:
            local = w % e.words
            at = [local // e.extents[1], local % e.extents[1]] if len(e.extents) == 2 else [local]
            index = self.shared_index(e, w // e.words, at)
            return [If(outside(at, w // e.words), (), (RoutineCall(name, (Pointer(f"{e.name}_l", index),),
                                                                   (Touched(f"{e.name}_l", index, (), True),)),))]

        return self.spread_over_threads(e.words * instances, word)
