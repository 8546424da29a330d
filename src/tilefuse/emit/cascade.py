"""Long sums by one thread, in stretches: no accumulator takes more than a fixed number of terms one after another.

    for each stretch of stretches:   middle = 0
      for each stretch:              part = 0
        for each term:               part += term
        middle += part
      total += middle                                              part = total

The rounding error of a chain grows with its length; that of nested chains with the sum of their lengths. Squared deviations are joined
by Chan's formula, on the host in f64 (`domain/wide_squares.py`).
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

# Terms that the innermost accumulator takes before it is added to the next, and that each of the others takes. A chain of up to twice as
# many terms is left as it is. Errors of inner chains average out over the outer ones, so that the outermost, the shortest, decides.
STRETCH, OUTER_STRETCH = 64, 16
CASCADED = ("sum", "m2")


def nested_counts(count: int) -> tuple[int, ...]:
    """Extents of nested loops that take `count` terms together, the outermost first; () where one chain is short enough.

    The innermost is `STRETCH`, those around it are `OUTER_STRETCH`, and the outermost is no longer than that. Together they may take a few
    steps more than `count`.
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
    """A reduction and its accumulators: one a component, each an array over `lanes`, or a scalar where that is 1."""

    instance: Instance
    parts: tuple[Reg, ...]
    lanes: int


class ByStretch(Protocol):
    """Reductions that see the innermost stretches as wholes."""

    def start(self) -> None:
        """Before a stretch."""
        ...

    def end(self, first: Affine) -> None:
        """After the stretch that begins with step `first`: sets the accumulators."""
        ...


class Cascade:
    """The accumulators of nested stretches of some reductions, for loops of the extents `counts`; a single extent is one stretch.

    restarted: registers beside the accumulators that start at zero with every stretch (a count). by_stretch: who else sees the stretches.
    within: number of the current step within its stretch.
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
        made = tuple(Reg(e.fresh(f"{p.name}_total{level or ''}"), p.dtype) for p in s.parts)
        for p in made:
            e.emit(Declare(p.name, p.dtype, None if s.lanes == 1 else s.lanes))
        self._start(s, made)
        return made

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
    def steps(self, wanted: str, count: int) -> Iterator[Affine]:
        """Inside is one step of `count`; yields its number."""
        e = self.emitter
        number_of_step = number(0)
        with contextlib.ExitStack() as stack:
            for level, extent in enumerate(self.counts):
                last = level == len(self.counts) - 1
                if last and self.by_stretch is not None:
                    stack.enter_context(self._whole_stretch(number_of_step * extent))
                index = stack.enter_context(e.loop(wanted if last else "stretch", extent))
                number_of_step, self.within = number_of_step * extent + index, index
                if not last:
                    stack.enter_context(self._around(level))
            stack.enter_context(e.when([Bound(number_of_step, 0, count)]))
            yield number_of_step

    @contextlib.contextmanager
    def _whole_stretch(self, first: Affine) -> Iterator[None]:
        """The innermost loop, with what sees it as a whole before and after it."""
        assert self.by_stretch is not None
        self.by_stretch.start()
        yield
        self.by_stretch.end(first)

    @contextlib.contextmanager
    def _around(self, level: int) -> Iterator[None]:
        """One stretch of loop `level` (0 is the outermost): what it sums starts anew and is added to the level above at its end."""
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
                    # Elements past the last stretch are added to the whole.
                    e.emit(*(Assign(Reg(p.name, p.dtype, v), t) for p, t in zip(s.parts, totals, strict=True)))
