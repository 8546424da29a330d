"""Biases and masks in memory that a ring brings beside the keys: tiles of rows and columns, one filling a turn.

    s[r, c] + bias[head, r, c]      a box of the tile's rows and the turn's columns, read from shared memory in pairs of columns

Tensor copies fill it, or producing threads where no tensor map describes the value (`loaded.py`). Other values that scores depend on are
loaded by the threads that need them.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tilefuse.domain.contraction import INNER
from tilefuse.ir.affine import Affine, axis, bounds, linearise, number, row_major_strides, substitute
from tilefuse.ir.graph import Graph
from tilefuse.ir.layouts import Layouts
from tilefuse.ir.scalar import Expr, Guard, Read, children
from tilefuse.kernel.pipeline import WARPGROUP
from tilefuse.templates.staged.online.products import LEAD, ROW, WALK, OnlineForm
from tilefuse.templates.staged.pipelined.operand import Operand
from tilefuse.templates.staged.walked.limit import vanishes
from tilefuse.templates.staged.walked.operand import WalkOperand

# Threads that fill a slot where no tensor copy does.
LOADING_THREADS = WARPGROUP


@dataclass(frozen=True)
class Bias:
    """A value with rows and columns of the scores. read: how elements name it."""

    read: Read
    of: WalkOperand


def biases_of(graph: Graph, layouts: Layouts, online: OnlineForm) -> tuple[Bias, ...]:
    """The biases of a form whose elements are all powers relative to one maximum: only that one's elements read them."""
    relative = (*online.sums, *(w.total for w in online.weighted))
    if len(online.tops) != 1 or not all(vanishes(t, online) for t in relative):
        return ()
    reads = dict.fromkeys(unguarded_reads(online.tops[0].body))
    biases = (strided_bias(graph, layouts, online, e) for e in reads if e.value not in graph.node_by_name)
    return tuple(b for b in biases if b is not None)


def unguarded_reads(e: Expr) -> Iterator[Read]:
    """Reads in an expression that no guard protects."""
    if isinstance(e, Read):
        yield e
    if not isinstance(e, Guard):
        for part in children(e):
            yield from unguarded_reads(part)


def strided_bias(graph: Graph, layouts: Layouts, online: OnlineForm, e: Read, line: str = ROW, along: str = WALK) -> Bias | None:
    """A read as a bias whose elements follow each other along an axis; None for others. line: the other axis of the scores."""
    size_by_axis = {ROW: online.num_rows, WALK: online.length}
    sizes = {LEAD: online.num_leads, line: size_by_axis[line], INNER: size_by_axis[along]}
    value = graph.type_of(e.value)
    offset = linearise(e.index, tuple(layouts.get(e.value) or row_major_strides(value.shape)))
    offset = substitute(offset, {along: axis(INNER)} | {a: number(0) for a, n in sizes.items() if n == 1}, sizes)
    strides: dict[str, int] = {}
    digits: dict[str, Affine] = {}
    for atom, stride in offset.terms:
        place = Affine(((atom, 1),))
        span = bounds(place, sizes)
        if stride < 0 or span is None or span[0] < 0:
            return None
        name = atom if isinstance(atom, str) else f"digit {place}"
        if not isinstance(atom, str):
            if place.axes() != {LEAD}:
                return None
            digits[name], sizes[name] = place, span[1] + 1
        strides[name] = stride
    if strides.get(INNER) != 1 or line not in strides:
        return None
    operand = Operand(e.value, value.dtype, line, size_by_axis[line], strides, offset.const, True, value.dtype.itemsize)
    return Bias(e, WalkOperand(operand, sizes, (LEAD,), digits))
