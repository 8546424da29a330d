"""Conditions that begin again in every part of the walked axis, as those of heads whose rows are walked one after another.

    column <= walk % 4096     over a walk of 4 * 4096     ->     column <= walk     over each of 4 segments
"""
from __future__ import annotations

from collections.abc import Callable

from tilefuse.ir.affine import Affine, Mod, axis, substitute
from tilefuse.ir.scalar import Bound, Call, Expr, Guard, Index, walk
from tilefuse.templates.staged.online.products import WALK


def segment_of(e: Expr, length: int) -> int:
    """The extent of the segments that an expression's conditions begin again in; the whole length where they do not."""
    extents = {atom.by for x in walk(e) for i in _places(x) for atom, _ in i.terms if isinstance(atom, Mod) and atom.of == axis(WALK)}
    extent = extents.pop() if len(extents) == 1 else length
    return extent if length % extent == 0 else length


def within_segment(e: Expr, length: int) -> Expr | None:
    """The expression with its conditions over the places within a segment; None where one depends on the segment."""
    changed = _with_places(e, lambda i: _within(i, length))
    depends = any(WALK in Affine(((atom, 1),)).axes() and atom != WALK for x in walk(changed) for i in _places(x) for atom, _ in i.terms)
    before = any(atom == WALK for x in walk(e) for i in _places(x) for atom, _ in i.terms)
    return None if depends or before else changed


def over_segments(e: Expr, length: int, whole: int) -> Expr:
    """The expression with conditions over places within a segment as those over the whole walked axis."""
    return _with_places(e, lambda i: substitute(i, {WALK: axis(WALK) % length}, {WALK: whole}))


def _within(i: Affine, length: int) -> Affine:
    place = Affine((), i.const)
    for atom, factor in i.terms:
        is_place = isinstance(atom, Mod) and atom.of == axis(WALK) and atom.by == length
        place = place + (axis(WALK) * factor if is_place else Affine(((atom, factor),)))
    return place


def _places(e: Expr) -> tuple[Affine, ...]:
    """Index expressions that an expression compares or computes with, those of reads left out."""
    match e:
        case Index(affine):
            return (affine,)
        case Guard(facts, _, _):
            return tuple(b.index for b in facts)
    return ()


def _with_places(e: Expr, change: Callable[[Affine], Affine]) -> Expr:
    match e:
        case Index(affine):
            return Index(change(affine))
        case Call(fn, args):
            return Call(fn, tuple(_with_places(a, change) for a in args))
        case Guard(facts, then, otherwise):
            bounds = tuple(Bound(change(b.index), b.low, b.high) for b in facts)
            return Guard(bounds, _with_places(then, change), _with_places(otherwise, change))
    return e
