"""Combination of partial values that several threads hold: exchanges within a warp, then copies in shared memory.

    slots of a thread   0 1 2 3        free bits of the thread number: 0, 1 (lanes), 5 (warps)
    halving, bit 0      0 1 | 2 3      each lane sends the half that the other lane keeps: 2 shuffles
    halving, bit 1      0 | 1          1 shuffle; each lane holds one word
    slab                one row of words a warp, summed by the threads 0 .. words - 1 after a barrier

A bit of the thread number is free if threads that differ in this bit alone hold the same words.
"""
from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.ir.affine import Affine, axis, evaluate, mod, number, substitute
from tilefuse.scripts.language.elementary import ThreadMapping
from tilefuse.target.capabilities import WARP


@dataclass(frozen=True)
class ThreadCombination:
    """Steps that combine partial values over a block.

    lanes   (bit, halved) in order: an exchange of halves, or of all slots (then lanes with the bit set hold copies)
    slots   words that a thread holds afterwards
    at      coordinates of word `slot` of `thread` afterwards
    upper   free bits above the warp: their copies are combined through shared memory
    words   words of the element: the slab has `copies` rows of them
    """

    lanes: tuple[tuple[int, bool], ...]
    slots: int
    at: tuple[Affine, ...]
    upper: tuple[int, ...]
    words: int

    @property
    def copies(self) -> int:
        """Rows of the slab."""
        return 1 << len(self.upper)

    @property
    def repeated(self) -> tuple[int, ...]:
        """Lane bits whose lanes hold equal values afterwards."""
        return tuple(bit for bit, halved in self.lanes if not halved)

    @property
    def word(self) -> Affine:
        """Number of the word `slot` of `thread` in the element."""
        return self.at[0] if self.at else number(0)


def thread_coordinates(threads: tuple[int, int]) -> dict[str, Affine]:
    """tx and ty of a thread of the block for instances of (x, y) threads."""
    local = axis("thread") % prod(threads)
    return {"tx": mod(local, threads[0], {}), "ty": local // threads[0]}


def slot_coordinates(slots: Sequence[int], flat: Affine) -> dict[str, Affine]:
    """s0, s1, ... of the slot with number `flat`, last one fastest."""
    coordinates, left = {}, prod(slots)
    for n, extent in enumerate(slots):
        left //= extent
        coordinates[f"s{n}"] = (flat // left) % extent if n else flat // left
    return coordinates


def words_held(mapping: ThreadMapping, threads: tuple[int, int], num_threads: int) -> np.ndarray:
    """Coordinates of the words that every thread of a block holds.

    Shapes: result [thread, slot, dimension].
    """
    thread = np.arange(num_threads)[:, None]
    slot = np.arange(max(mapping.words, 1))[None, :]
    local = thread % prod(threads)
    points: dict[str, np.ndarray] = {"tx": local % threads[0], "ty": local // threads[0]}
    left = mapping.words
    for n, extent in enumerate(mapping.slots):
        left //= extent
        points[f"s{n}"] = slot // left % extent
    planes = [np.broadcast_to(np.asarray(evaluate(a, points)), (num_threads, slot.size)) for a in mapping.at]
    return np.stack(planes, -1) if planes else np.zeros((num_threads, slot.size, 0), np.int64)


def free_bits(held: np.ndarray) -> tuple[int, ...] | None:
    """Bits of the thread number that do not matter for the words held; None if bits alone do not distinguish the copies.

    Shapes: held [thread, slot, dimension].
    """
    count = held.shape[0]
    if count & (count - 1):
        return None
    flat = held.reshape(count, -1)
    thread = np.arange(count)
    bits = tuple(b for b in range(count.bit_length() - 1) if np.array_equal(flat[thread ^ (1 << b)], flat))
    return bits if len(np.unique(flat, axis=0)) << len(bits) == count else None


def leaders(mapping: ThreadMapping, threads: tuple[int, int], num_threads: int) -> tuple[int, ...] | None:
    """Bits that are 0 in one thread of each group that holds the same words; None if bits alone do not distinguish the copies."""
    return free_bits(words_held(mapping, threads, min(prod(threads), num_threads)))


@functools.cache
def combine_threads(mapping: ThreadMapping, threads: tuple[int, int], num_threads: int,
                    extents: Sequence[int]) -> ThreadCombination | Rejected:
    """The combination of an element's partial values over a block of `num_threads` threads.

    extents: words of the element along its dimensions. Cost: linear in threads * slots.
    """
    held = words_held(mapping, threads, num_threads)
    bits = free_bits(held)
    words = prod(extents)
    if bits is None:
        detail = (f"the threads that hold partial values of one word cannot be distinguished by free bits of their numbers: mapping "
                  f"{[str(a) for a in mapping.at]} of {threads[0]} x {threads[1]} threads in a block of {num_threads}")
        return Rejected(Reason.UNSUPPORTED_OP, detail)
    slots, start, lanes = mapping.words, number(0), []
    for bit in (b for b in bits if b < WARP.bit_length() - 1):
        halved = slots % 2 == 0
        lanes.append((bit, halved))
        if halved:
            slots //= 2
            start = start + (axis("thread") // (1 << bit)) % 2 * slots
    names = thread_coordinates(threads) | slot_coordinates(mapping.slots, start + axis("slot"))
    extents_of = {"thread": num_threads, "slot": slots}
    flat = number(0)
    for a, extent in zip(mapping.at, extents, strict=True):
        flat = flat * extent + substitute(a, names, extents_of)
    upper = tuple(b for b in bits if b >= WARP.bit_length() - 1)
    return ThreadCombination(tuple(lanes), slots, (flat,) if mapping.at else (), upper, words)
