"""Loads from global memory that depend on nothing that their stage computes, moved before the stage's barrier.

    barrier, s = h @ w, b_v = b[..], s + b_v      ->      b_ahead = b[..], barrier, s = h @ w, b_v = b_ahead, s + b_v

Operands of a product are on their way to shared memory at that place, and its sums take a while: an element that is added to them has
arrived when it is needed. A compiler moves no load across a barrier. Only inputs of the kernel are loaded ahead, so that no load misses a
store. Loads inside of a loop are moved if it is unrolled. The free registers bound their number.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from math import prod

from tilefuse.ir.affine import Affine, axis, number
from tilefuse.kernel.ir import Assign, Buffer, Declare, For, If, Let, Load, Reg, Stmt, VectorLoad
from tilefuse.target.capabilities import REGISTER_BYTES


def loads_ahead(body: Sequence[Stmt], inputs: Mapping[str, Buffer], num_registers: int,
                fresh: Callable[[str], str]) -> tuple[list[Stmt], list[Stmt]]:
    """A stage's loads that may come before it, with the index names that they need, and the statements that stay.

    inputs: the kernel's inputs by name. num_registers: most that the elements may take in a thread. fresh: makes a name from a stem.
    """
    moved = _Moved(inputs, num_registers, fresh)
    before, behind = moved.parted(body)
    return ([*moved.arrays, *before], behind) if moved.arrays else ([], list(body))


class _Moved:
    """The loads of one stage that are moved, and the arrays that hold their elements."""

    def __init__(self, inputs: Mapping[str, Buffer], num_registers: int, fresh: Callable[[str], str]) -> None:
        self._inputs, self._left_bytes, self._fresh = inputs, num_registers * REGISTER_BYTES, fresh
        self.arrays: list[Declare] = []

    def parted(self, body: Sequence[Stmt], loops: tuple[tuple[str, int], ...] = (), is_inside: bool = False,
               unknown: Set[str] = frozenset()) -> tuple[list[Stmt], list[Stmt]]:
        """Statements that come before the stage, and those that stay. Inside of another statement, both have the index names.

        loops: variable and turns of each loop around the statements. unknown: index names that have no value before the stage.
        """
        before: list[Stmt] = []
        behind: list[Stmt] = []
        for s in body:
            if isinstance(s, Let):
                is_known = isinstance(s.value, Affine) and not s.value.axes() & unknown
                before += [s] if is_known else []
                behind += [] if is_known and not is_inside else [s]
                unknown = unknown if is_known else {*unknown, s.name}
                continue
            early, late = self._parts(s, loops, unknown)
            before += [] if early is None else [early]
            behind.append(late)
        return before, behind

    def _parts(self, s: Stmt, loops: tuple[tuple[str, int], ...], unknown: Set[str]) -> tuple[Stmt | None, Stmt]:
        """The loads of a statement that come before the stage (None: it has none), and the statement without them. No `Let`."""
        match s:
            case VectorLoad(dynamic=()) if not s.index.axes() & unknown:
                return self._vector(s, loops)
            case Declare(init=Load(dynamic=()) as load) if not load.index.axes() & unknown:
                return self._element(s, load, loops)
            case If() if not {name for b in s.bounds for name in b.index.axes()} & unknown:
                inner, rest = self.parted(s.body, loops, True, unknown)
                return (If(s.bounds, tuple(inner)) if _has_loads(inner) else None), replace(s, body=tuple(rest))
            case For(unroll=True, start=Affine(terms=()), stop=Affine(terms=()), step=1) if s.start.const == 0:
                inner, rest = self.parted(s.body, (*loops, (s.var, s.stop.const)), True, unknown)
                return (replace(s, body=tuple(inner)) if _has_loads(inner) else None), replace(s, body=tuple(rest))
        return None, s

    def _place(self, stem: str, buffer: str, width: int, loops: tuple[tuple[str, int], ...]) -> Reg | None:
        """The registers of the current turn's elements: the first of `width` in an array for all turns of the loops, or a variable for a
        single element. None where the buffer is no input or too few registers are left."""
        source = self._inputs.get(buffer)
        count = width * prod([turns for _, turns in loops])
        if source is None or count * source.dtype.itemsize > self._left_bytes:
            return None
        self._left_bytes -= count * source.dtype.itemsize
        name = self._fresh(f"{stem}_ahead")
        self.arrays.append(Declare(name, source.dtype, count if count > 1 else None))
        turn = number(0)
        for loop, turns in loops:
            turn = turn * turns + axis(loop)
        return Reg(name, source.dtype, turn * width if count > 1 else None)

    def _vector(self, s: VectorLoad, loops: tuple[tuple[str, int], ...]) -> tuple[Stmt | None, Stmt]:
        ahead = self._place(s.array, s.buffer, s.width, loops)
        if ahead is None:
            return None, s
        if ahead.index is None:
            single = Load(s.buffer, ahead.dtype, s.index, cache=s.cache)
            return Assign(ahead, single), Assign(Reg(s.array, ahead.dtype, s.array_index), ahead)
        lane = self._fresh("v")
        copied = Assign(Reg(s.array, ahead.dtype, s.array_index + axis(lane)), replace(ahead, index=ahead.index + axis(lane)))
        return replace(s, array=ahead.name, array_index=ahead.index), For(lane, number(0), number(s.width), 1, (copied,), unroll=True)

    def _element(self, s: Declare, load: Load, loops: tuple[tuple[str, int], ...]) -> tuple[Stmt | None, Stmt]:
        ahead = self._place(s.name, load.buffer, 1, loops) if s.dtype == load.dtype else None
        return (None, s) if ahead is None else (Assign(ahead, load), replace(s, init=ahead))


def _has_loads(body: Sequence[Stmt]) -> bool:
    return any(not isinstance(s, Let) for s in body)
