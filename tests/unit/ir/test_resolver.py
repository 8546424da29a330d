"""Expressions of one level as expressions of another."""
from __future__ import annotations

from dataclasses import dataclass

from tilefuse.ir.affine import Affine, axis, bounds, substitute
from tilefuse.ir.dtype import F32
from tilefuse.ir.resolver import Resolver
from tilefuse.ir.scalar import Bound, Call, Const, GraphLeaf, Guard, Index, Lookup, Read, const

EXTENTS = {"t": 8}
ZERO = const(0.0, F32)


@dataclass(frozen=True)
class Place:
    """A leaf of the new level."""

    value: str
    offset: Affine
    guarded: bool


class Placed(Resolver[GraphLeaf, Place]):
    """Axis `i` is twice the name `t`."""

    def index(self, e: Affine) -> Affine:
        return substitute(e, {"i": axis("t") * 2}, EXTENTS)

    def always(self, bound: Bound) -> bool:
        span = bounds(bound.index, EXTENTS)
        return span is not None and bound.low <= span[0] and span[1] < bound.high

    def leaf(self, e: GraphLeaf, guarded: bool) -> Place:
        return Place(e.value, self.index(e.index[0]) if isinstance(e, Read) else Affine(), guarded)


READ = Read("x", (axis("i"),))
HERE = axis("t") * 2


def test_leaves_change_and_all_else_stays() -> None:
    e = Call("add", (Call("exp", (READ,)), Call("mul", (ZERO, Index(axis("i") + 1)))))
    assert Placed().expression(e) == Call("add", (Call("exp", (Place("x", HERE, False),)), Call("mul", (ZERO, Index(HERE + 1)))))
    assert Placed().expression(Lookup("y", (READ,))) == Place("y", Affine(), False)


def test_a_constant_stays_the_same_object() -> None:
    assert Placed().expression(ZERO) is ZERO and isinstance(ZERO, Const)


def test_branches_of_a_guard_are_guarded() -> None:
    """A statement before the guard would read out of range where the guard fails."""
    e = Guard((Bound(axis("i"), 0, 9),), Call("neg", (READ,)), READ)
    there = Place("x", HERE, True)
    assert Placed().expression(e) == Guard((Bound(HERE, 0, 9),), Call("neg", (there,)), there)


def test_a_guard_that_always_holds_is_left_out() -> None:
    """Its expression stands under no guard then, unless another one is around it."""
    e = Guard((Bound(axis("i"), 0, 16),), READ, ZERO)
    assert Placed().expression(e) == Place("x", HERE, False)
    assert Placed().expression(e, guarded=True) == Place("x", HERE, True)
