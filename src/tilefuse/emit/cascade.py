"""Long sums by one thread, in stretches (blocked summation): each accumulator takes at most a fixed number of terms in a row.

    for each stretch of stretches:   middle = 0
      for each stretch:              part = 0
        for each term:               part += term
        middle += part
      total += middle                                              part = total

The rounding error of a chain grows with its length, and that of nested chains with the sum of their lengths. Squared deviations are
combined by Chan's formula, on the host in f64 (`domain/wide_squares.py`).
Source: Higham 2002, Accuracy and Stability of Numerical Algorithms, section 4.2 (blocked summation).
"""
from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from tilefuse.domain.resolved import Instance
from tilefuse.emit.emitter import Emitter
from tilefuse.ir.affine import Affine, number
from tilefuse.ir.scalar import Bound, const
from tilefuse.kernel.ir import Assign, Declare, Reg

# Terms of the innermost accumulator, and of each accumulator around it. A chain of at most 2 * STRETCH terms stays one chain. Errors of
# inner chains average out over the outer ones, so the outermost chain, which is the shortest, dominates.
STRETCH, OUTER_STRETCH = 64, 16
CASCADED = ("sum", "m2")


def nested_counts(count: int) -> tuple[int, ...]:
    """Extents of nested loops over `count` terms, the outermost first; () if one chain is short enough.

    The innermost extent is `STRETCH`. The others are `OUTER_STRETCH`, except the outermost, which may be smaller. Their product may exceed
    `count`.
    """
    if count <= 2 * STRETCH:
        return ()
    outer, between = -(-count // STRETCH), 0
    while outer > OUTER_STRETCH:
        outer = -(-outer // OUTER_STRETCH)
        between += 1
    return (outer, *(OUTER_STRETCH,) * between, STRETCH)


@dataclass(frozen=True)
class Summed:
    """A reduction and its accumulators: one per component, each an array over `lanes`, or a scalar if `lanes` is 1."""

    instance: Instance
    parts: tuple[Reg, ...]
    lanes: int


class ByStretch(Protocol):
    """Reductions that combine whole innermost stretches."""

    def start(self) -> None:
        """Emits the statements before a stretch."""
        ...

    def end(self, first: Affine) -> None:
        """Emits the statements after the stretch that begins with step `first`: they set the accumulators."""
        ...


class Cascade:
    """The accumulators of some reductions over nested stretches, for loops of the extents `counts`; a single extent is one stretch.

    restarted   further registers that every stretch sets to zero (a count)
    by_stretch  reductions that combine whole stretches
    within      number of the current step within its stretch
    """

    def __init__(self, emitter: Emitter, unroll: bool, summed: Sequence[Summed], counts: Sequence[int],
                 restarted: Sequence[Reg] = (), by_stretch: ByStretch | None = None) -> None:
        self.emitter, self.unroll, self.summed, self.restarted, self.by_stretch = emitter, unroll, summed, restarted, by_stretch
        self.counts = tuple(counts)
        self.within = number(0)
        upper = [[self._declared(s, level) for s in summed] for level in range(len(counts) - 1)]
        self.levels = [*upper, [s.parts for s in summed]]

    def _declared(self, s: Summed, level: int) -> tuple[Reg, ...]:
        e = self.emitter
        registers = tuple(Reg(e.fresh(f"{p.name}_total{level or ''}"), p.dtype) for p in s.parts)
        for p in registers:
            e.emit(Declare(p.name, p.dtype, None if s.lanes == 1 else s.lanes))
        self._start(s, registers)
        return registers

    def _start(self, s: Summed, parts: Sequence[Reg]) -> None:
        with self._lane(s) as v:
            for p, start in zip(parts, self.emitter.identities(s.instance), strict=True):
                self.emitter.emit(Assign(Reg(p.name, p.dtype, v), start))

    @contextlib.contextmanager
    def _lane(self, s: Summed) -> Iterator[Affine | None]:
        if s.lanes == 1:
            yield None
            return
        with self.emitter.lanes(s.lanes, self.unroll) as v:
            yield v

    @contextlib.contextmanager
    def steps(self, name: str, count: int) -> Iterator[Affine]:
        """Loops over `count` steps; yields the number of the step."""
        e = self.emitter
        number_of_step = number(0)
        with contextlib.ExitStack() as stack:
            for level, extent in enumerate(self.counts):
                last = level == len(self.counts) - 1
                if last and self.by_stretch is not None:
                    stack.enter_context(self._whole_stretch(number_of_step * extent))
                index = stack.enter_context(e.loop(name if last else "stretch", extent))
                number_of_step, self.within = number_of_step * extent + index, index
                if not last:
                    stack.enter_context(self._around(level))
            stack.enter_context(e.when([Bound(number_of_step, 0, count)]))
            yield number_of_step

    @contextlib.contextmanager
    def _whole_stretch(self, first: Affine) -> Iterator[None]:
        """Surrounds the innermost loop with the statements of `by_stretch`."""
        assert self.by_stretch is not None
        self.by_stretch.start()
        yield
        self.by_stretch.end(first)

    @contextlib.contextmanager
    def _around(self, level: int) -> Iterator[None]:
        """Surrounds one stretch of loop `level` (0 is the outermost): its accumulators restart, and their totals join the level above."""
        e = self.emitter
        for s, parts in zip(self.summed, self.levels[level + 1], strict=True):
            self._start(s, parts)
        if level == len(self.counts) - 2:
            e.emit(*(Assign(r, const(0, r.dtype)) for r in self.restarted))
        yield
        for s, into, parts in zip(self.summed, self.levels[level], self.levels[level + 1], strict=True):
            with self._lane(s) as v:
                totals = [Reg(p.name, p.dtype, v) for p in into]
                e.combine(s.instance.node.detail, totals, [Reg(p.name, p.dtype, v) for p in parts], e.dtype(s.instance.body))
                if level == 0:
                    # The total is current after every stretch: elements past the last one are added to it.
                    e.emit(*(Assign(Reg(p.name, p.dtype, v), t) for p, t in zip(s.parts, totals, strict=True)))
