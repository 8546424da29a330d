"""Traffic, storage and repetition of a fused kernel of routines: the numbers that its work and pruning need, without scheduling it.

All follow from the metadata: elements, threads, thread-to-data mappings. Times must not come in (`work.py` has them).
"""
from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from tilefuse.scripts.language.elementary import CallGraph, Implementation, Parameter, SharedPlace, ThreadMapping
from tilefuse.scripts.schedule.elements import ATOMICS, SECOND_KERNEL, SINGLE, Decision
from tilefuse.scripts.schedule.grid import Axes, Grid, live_tiles
from tilefuse.target.capabilities import LEAST_THREAD_REGISTERS, THREAD_REGISTER_STEP
from tilefuse.target.device import DeviceSpec
from tilefuse.target.memory import RESERVED_SHARED_BYTES

# Length of a vector's rows for prices: a vector is one row, and longer than any tile's. Units: bytes.
ONE_ROW_BYTES = 1 << 16


@dataclass(frozen=True)
class Moved:
    """One load or store of a kernel.

    num_bytes   over the whole kernel
    resident    read again and again, so that the caches serve it
    wide        in accesses of 16 bytes, not word by word
    row_bytes   bytes that neighbouring threads touch side by side
    word_bytes  bytes of one word
    """

    function: str
    implementation: str
    routine: str
    num_bytes: int
    resident: bool = False
    wide: bool = True
    row_bytes: int = ONE_ROW_BYTES
    word_bytes: int = 4


@dataclass(frozen=True)
class Facts:
    """Numbers of one fused kernel. Units: bytes; registers of 32 bits a thread.

    moved            loads and stores between global memory and the chip
    tiles            tiles that the kernel computes, without the skipped ones of a triangle
    blocks           blocks of the grid
    exchanges        exchanges over the block (barriers and combination) that each tile needs
    flight_bytes     bytes of loads that a thread has in flight
    partial_bytes    partial values, written once and read once by the last block or a second kernel
    atomics          atomic updates of global memory
    finish_loads     loads of partial values that one thread of a last block issues one after the other
    extra_kernels    kernels before or after the main one
    remapped         elements that change their mapping through shared memory, for every tile
    ragged           triangles: share of a side that one block takes; blocks that meet the diagonal take less
    """

    threads: int
    moved: tuple[Moved, ...]
    tiles: int
    blocks: int
    unroll: int
    exchanges: int
    registers: int
    shared_bytes: int
    flight_bytes: int
    partial_bytes: int
    atomics: int
    finish_loads: int
    extra_kernels: int
    remapped: int
    ragged: float = 0.0

    @functools.cached_property
    def bytes_moved(self) -> int:
        """All bytes between global memory and the chip."""
        return sum(m.num_bytes for m in self.moved)

    def resident_blocks(self, device: DeviceSpec) -> int:
        """Blocks that a multiprocessor runs at once, as far as registers, shared memory and threads allow."""
        if device.kind != "cuda":
            return 1
        registers = -(-min(self.registers, device.max_registers_per_thread) // THREAD_REGISTER_STEP) * THREAD_REGISTER_STEP
        by_registers = device.registers_per_multiprocessor // (registers * self.threads)
        by_shared = device.shared_bytes_per_multiprocessor // (self.shared_bytes + RESERVED_SHARED_BYTES)
        by_threads = device.max_threads_per_multiprocessor // self.threads
        return max(min(by_registers, by_shared, by_threads, device.max_blocks_per_multiprocessor), 1)


@dataclass(frozen=True)
class _Operand:
    """One element of a call.

    names         function, implementation and routine that loads or stores it
    words         of all instances of a block
    shared_words  the same with padding, in shared memory; 0 in registers
    held          words that one thread holds; 0 in shared memory
    word_bytes    bytes of one word
    """

    names: tuple[str, str, str]
    axes: Axes
    words: int
    shared_words: int
    held: int
    word_bytes: int


class ElementFacts:
    """Facts of all walks of some calls with chosen implementations. Elements are collected once for all walks."""

    def __init__(self, graph: CallGraph, calls: Sequence[int], chosen: Sequence[int], grid: Grid, instances: int,
                 device: DeviceSpec) -> None:
        self.beside_registers = device.fitted.scripts.beside_registers
        self.grid, self.instances = grid, 1 if grid.nested else instances
        used = [graph.calls[c].function.implementations[n] for c, n in zip(calls, chosen, strict=True)]
        self.words = {d: i.geometry.extents[size] for i, axis_of in zip(used, grid.axis_of, strict=True) for size, d in axis_of.items()}
        self.words = self.words or {"x": 1}
        self.num_tiles = {d: max(-(-e // (self.words[d] * self.instances)), 1) for d, e in grid.extents.items()}
        self.live = live_tiles(grid, {d: w * self.instances for d, w in self.words.items()}, self.num_tiles)
        self.threads = max(prod(i.geometry.threads) for i in used) * self.instances
        self.loads: list[_Operand] = []
        self.stores: list[_Operand] = []
        self.reductions: list[_Operand] = []
        # Elements that routines compute or that change their mapping. Units: registers a thread, bytes a block.
        self.remapped = self.computed_registers = self.computed_shared_bytes = 0
        self._collect(graph, calls, used)

    def _collect(self, graph: CallGraph, calls: Sequence[int], used: Sequence[Implementation]) -> None:
        """Collects the elements of all calls. The first reader of an input loads it; other mappings get it through shared memory."""
        places_by_element: dict[tuple[str, Axes], list[object]] = {}
        computed: set[str] = set()
        for c, implementation, axis_of in zip(calls, used, self.grid.axis_of, strict=True):
            call = graph.calls[c]
            for p, variable in zip(call.function.inputs, call.arguments, strict=True):
                if p.extents and isinstance(variable, str):
                    operand = self._operand(graph, c, p, implementation, axis_of, "load")
                    places = places_by_element.setdefault((variable, operand.axes), [])
                    self._add_input(operand, _place_of(operand, p, implementation), places, variable in computed)
            for p, variable in zip(call.function.outputs, call.results, strict=True):
                operand = self._operand(graph, c, p, implementation, axis_of, "store")
                computed.add(variable)
                if call.function.kind.reduces:
                    # A map's result takes the registers of its operands.
                    self.computed_registers += max(operand.held, 1) * operand.word_bytes // 4
                    self.reductions.append(operand)
                    continue
                places_by_element.setdefault((variable, operand.axes), []).append(_place_of(operand, p, implementation))
                self.computed_shared_bytes += operand.shared_words * operand.word_bytes
                if p.extents and (variable in graph.outputs or any(u not in calls for u in graph.readers(variable))):
                    self.stores.append(operand)

    def _add_input(self, operand: _Operand, place: object, places: list[object], is_computed: bool) -> None:
        """Adds an input's element; `places`: the places at which earlier calls of the kernel have it."""
        if place in places:
            return
        if places:
            self.remapped += 1
            self.computed_shared_bytes += operand.words * operand.word_bytes
            self.computed_registers += operand.held * operand.word_bytes // 4
        elif not is_computed:
            self.loads.append(operand)
        places.append(place)

    def _operand(self, graph: CallGraph, c: int, p: Parameter, implementation: Implementation, axis_of: Mapping[str, str],
                 verb: str) -> _Operand:
        function = graph.calls[c].function
        axes = tuple(axis_of[n] for n in p.extents)
        place = implementation.places.get(p.name)
        words = prod(self.words[d] for d in axes) * self.instances
        shared = 0
        if isinstance(place, SharedPlace):
            shared = words if len(axes) < 2 else self.words[axes[0]] * (self.words[axes[1]] + place.pad)
        held = place.words if isinstance(place, ThreadMapping) else 0
        return _Operand((function.timed_name, implementation.name, f"{verb} {p.name}"), axes, words, shared, held,
                        (p.dtype or function.dtype).itemsize)

    def flight_bytes(self, walk: str) -> int:
        """Bytes of loads that a thread starts for one tile of a walk."""
        return sum((o.held or -(-o.words // self.threads)) * o.word_bytes for o in self.loads if walk in o.axes)

    def facts(self, decision: Decision) -> Facts:
        """The facts of one walk."""
        walk, unroll, num_tiles = decision.direction, decision.unroll, self.num_tiles
        blocks = {d: -(-n // decision.iterations) if d == walk else n for d, n in num_tiles.items()}
        once_a_block = prod(blocks.values())

        def moved(o: _Operand) -> Moved:
            # Elements that the walk does not change move once for each block, all others once for each tile.
            times = self.live if walk in o.axes else once_a_block
            row = self.words[o.axes[-1]] * o.word_bytes if len(o.axes) == 2 else ONE_ROW_BYTES
            return Moved(*o.names, times * o.words * o.word_bytes, len(o.axes) < len(num_tiles), not o.shared_words, row, o.word_bytes)

        held, shared, flight = self.computed_registers, self.computed_shared_bytes, 0
        for o in self.loads:
            copies = unroll if walk in o.axes else 1
            held += copies * o.held * o.word_bytes // 4
            shared += copies * o.shared_words * o.word_bytes
            flight += copies * (o.held or -(-o.words // self.threads)) * o.word_bytes
        # Tiles in shared memory: barriers between their loads and their use, and before the next ones.
        exchanges = sum(walk in o.axes for o in self.reductions) + any(o.shared_words and walk in o.axes for o in self.loads)
        facts = Facts(self.threads, tuple(moved(o) for o in (*self.loads, *self.stores)), self.live, once_a_block,
                      unroll, exchanges, max(held, LEAST_THREAD_REGISTERS) + self.beside_registers, shared, flight, 0, 0, 0, 0,
                      self.remapped,
                      min(decision.iterations / num_tiles[walk], 1.0) if self.grid.triangle else 0.0)
        return self.finished(facts, decision, blocks)

    def finished(self, facts: Facts, decision: Decision, blocks: Mapping[str, int] | None = None) -> Facts:
        """The same walk with another way to finish its reductions."""
        if blocks is None:
            blocks = {d: -(-n // decision.iterations) if d == decision.direction else n for d, n in self.num_tiles.items()}
        partial = atomics = loads = extra = 0
        for o in self.reductions:
            shares = prod(n for d, n in blocks.items() if d not in o.axes)
            words = prod(self.num_tiles[d] for d in o.axes) * o.words // self.instances
            if shares == 1 or decision.finish == SINGLE:
                continue
            if decision.finish == ATOMICS:
                atomics, extra = atomics + shares * words, 1
            else:
                partial += 2 * shares * words * o.word_bytes
                extra += decision.finish == SECOND_KERNEL
                own = o.words // self.instances * (decision.iterations if decision.direction in o.axes else 1)
                loads += -(-own * shares // self.threads) if own < self.threads else -(-own // self.threads) * shares
        # Thousands of facts are computed before the first program, and `replace` takes twice as long as the constructor.
        return Facts(facts.threads, facts.moved, facts.tiles, facts.blocks, facts.unroll, facts.exchanges, facts.registers,
                     facts.shared_bytes, facts.flight_bytes, partial, atomics, loads, extra, facts.remapped, facts.ragged)


def _place_of(operand: _Operand, parameter: Parameter, implementation: Implementation) -> object:
    """A key that is equal for elements at the same place: threads matter where they hold it."""
    return implementation.places.get(parameter.name), implementation.geometry.threads if operand.held else None
