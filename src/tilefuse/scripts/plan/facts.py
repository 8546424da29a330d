"""Traffic, storage and repetition of a fused kernel of routines: the numbers that prediction and pruning need, without scheduling it.

Everything follows from the metadata: elements, threads, thread-to-data mappings. Nothing here knows how long anything takes.
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from tilefuse.scripts.language.elementary import CallGraph, Implementation, Parameter, SharedPlace, ThreadMapping
from tilefuse.scripts.schedule.elements import ATOMICS, SECOND_KERNEL, SINGLE, Decision
from tilefuse.scripts.schedule.grid import Grid, live_tiles
from tilefuse.target.device import DeviceSpec

# Length of a vector's rows for prices: a vector is one row, and longer than any tile's. Units: bytes.
ONE_ROW_BYTES = 1 << 16
# Shared memory that a block takes beside its own. Units: bytes. Source: CUDA C++ Programming Guide, compute capability 8.0 and later.
RESERVED_SHARED_BYTES = 1024
# Registers of a thread are given out in pieces of this many, and no kernel needs fewer for its elements than `LEAST_REGISTERS`.
REGISTER_PIECE, LEAST_REGISTERS = 8, 16


@dataclass(frozen=True)
class Moved:
    """One load or store of a kernel. Units: bytes in all, bytes that neighbouring threads touch side by side.

    resident: read again and again, so that the caches serve it. wide: in pieces of 16 bytes, not word by word. word_bytes: of one word.
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
    tiles, blocks    tiles computed in all, those left out of triangles not counted; blocks of the grid
    flushes          exchanges over the block (barriers and combination) that each tile needs
    flight_bytes     of loads that a thread has under way together
    partial_bytes    partial values written and read again by the last block or a second kernel
    atomics          atomic updates of global memory
    finish_loads     of partial values, that one thread of a last block makes one after the other
    extra_kernels    kernels before or behind
    passed           elements that change their mapping through shared memory, for every tile
    ragged           triangles: the share of a side that one block walks; blocks that meet the diagonal walk less
    """

    threads: int
    moved: tuple[Moved, ...]
    tiles: int
    blocks: int
    unroll: int
    flushes: int
    registers: int
    shared_bytes: int
    flight_bytes: int
    partial_bytes: int
    atomics: int
    finish_loads: int
    extra_kernels: int
    passed: int
    ragged: float = 0.0

    @property
    def bytes_moved(self) -> int:
        """All bytes between global memory and the chip."""
        return sum(m.num_bytes for m in self.moved)

    def resident_blocks(self, device: DeviceSpec) -> int:
        """Blocks that a multiprocessor runs at once, as far as registers, shared memory and threads allow."""
        if device.kind != "cuda":
            return 1
        registers = -(-min(self.registers, device.max_registers_per_thread) // REGISTER_PIECE) * REGISTER_PIECE
        by_registers = device.registers_per_multiprocessor // (registers * self.threads)
        by_shared = device.shared_bytes_per_multiprocessor // (self.shared_bytes + RESERVED_SHARED_BYTES)
        by_threads = device.max_threads_per_multiprocessor // self.threads
        return max(min(by_registers, by_shared, by_threads, device.max_blocks_per_multiprocessor), 1)


@dataclass(frozen=True)
class _Operand:
    """One element of a call. Units: words of all instances of a block; `held` by a thread, 0 in shared memory; `item` in bytes."""

    names: tuple[str, str, str]
    axes: tuple[str, ...]
    words: int
    shared_words: int
    held: int
    item: int


class ElementFacts:
    """Facts of all walks of some calls with chosen implementations: the elements are read once."""

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
        self.passed = self.made_held = self.made_shared = 0
        self._read(graph, calls, used)

    def _read(self, graph: CallGraph, calls: Sequence[int], used: Sequence[Implementation]) -> None:
        seen: dict[tuple[str, tuple[str, ...]], list[object]] = {}
        produced: set[str] = set()
        for c, implementation, axis_of in zip(calls, used, self.grid.axis_of, strict=True):
            call = graph.calls[c]
            for p, variable in zip(call.function.inputs, call.arguments, strict=True):
                if not p.extents or not isinstance(variable, str):
                    continue
                operand = self._operand(graph, c, p, implementation, axis_of, "load")
                places = seen.setdefault((variable, operand.axes), [])
                key = (implementation.places[p.name], implementation.geometry.threads if operand.held else None)
                if key in places:
                    continue
                if places:
                    self.passed += 1
                    self.made_shared += operand.words * operand.item
                    self.made_held += operand.held * operand.item // 4
                elif variable not in produced:
                    self.loads.append(operand)
                places.append(key)
            for p, variable in zip(call.function.outputs, call.results, strict=True):
                operand = self._operand(graph, c, p, implementation, axis_of, "store")
                produced.add(variable)
                if call.function.kind.reduces:
                    # A map's result takes the registers of its operands.
                    self.made_held += max(operand.held, 1) * operand.item // 4
                    self.reductions.append(operand)
                    continue
                place = (implementation.places.get(p.name), implementation.geometry.threads if operand.held else None)
                seen.setdefault((variable, operand.axes), []).append(place)
                self.made_shared += operand.shared_words * operand.item
                if p.extents and (variable in graph.outputs or any(u not in calls for u in graph.readers(variable))):
                    self.stores.append(operand)

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
        return sum((o.held or -(-o.words // self.threads)) * o.item for o in self.loads if walk in o.axes)

    def facts(self, decision: Decision) -> Facts:
        """The facts of one walk."""
        walk, unroll, num_tiles = decision.direction, decision.unroll, self.num_tiles
        blocks = {d: -(-n // decision.iterations) if d == walk else n for d, n in num_tiles.items()}

        def moved(o: _Operand) -> Moved:
            # An operand that the walk does not move is loaded once a block, everything else once a tile.
            times = self.live if walk in o.axes else prod(n if d != walk else blocks[d] for d, n in num_tiles.items())
            row = self.words[o.axes[-1]] * o.item if len(o.axes) == 2 else ONE_ROW_BYTES
            return Moved(*o.names, times * o.words * o.item, len(o.axes) < len(num_tiles), not o.shared_words, row, o.item)

        held, shared, flight = self.made_held, self.made_shared, 0
        for o in self.loads:
            copies = unroll if walk in o.axes else 1
            held += copies * o.held * o.item // 4
            shared += copies * o.shared_words * o.item
            flight += copies * (o.held or -(-o.words // self.threads)) * o.item
        # Tiles in shared memory: barriers between their loads and their use, and before the next ones.
        flushes = sum(walk in o.axes for o in self.reductions) + any(o.shared_words and walk in o.axes for o in self.loads)
        facts = Facts(self.threads, tuple(moved(o) for o in (*self.loads, *self.stores)), self.live, prod(blocks.values()),
                      unroll, flushes, max(held, LEAST_REGISTERS) + self.beside_registers, shared, flight, 0, 0, 0, 0, self.passed,
                      min(decision.iterations / num_tiles[walk], 1.0) if self.grid.triangle else 0.0)
        return self.finished(facts, decision, blocks)

    def finished(self, facts: Facts, decision: Decision, blocks: Mapping[str, int] | None = None) -> Facts:
        """The same walk with another finish of its reductions."""
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
                partial += 2 * shares * words * o.item
                extra += decision.finish == SECOND_KERNEL
                own = o.words // self.instances * (decision.iterations if decision.direction in o.axes else 1)
                loads += -(-own * shares // self.threads) if own < self.threads else -(-own // self.threads) * shares
        # Written out, as thousands are made before the first program and `replace` takes twice as long.
        return Facts(facts.threads, facts.moved, facts.tiles, facts.blocks, facts.unroll, facts.flushes, facts.registers,
                     facts.shared_bytes, facts.flight_bytes, partial, atomics, loads, extra, facts.passed, facts.ragged)
