"""Expressions of one level as expressions of another: the graph's as a pattern's or a kernel's, a pattern's as a kernel's.

Constants, index values, calls and guards are the same at every level. A resolver defines the positions of the axes and the replacement of
the leaves.
"""
from __future__ import annotations

import abc
from typing import Generic, TypeVar, Union

from tilefuse.ir.affine import Affine
from tilefuse.ir.scalar import Bound, Call, Const, Guard, Index

Leaf = TypeVar("Leaf")
NewLeaf = TypeVar("NewLeaf")
# An expression with leaves of one level.
Tree = Union[Const, Index, "Call[Tree[Leaf]]", "Guard[Tree[Leaf]]", Leaf]


class Resolver(abc.ABC, Generic[Leaf, NewLeaf]):
    """Rewrites expressions whose leaves are `Leaf` as expressions whose leaves are `NewLeaf`.

    guarded: the expression stands under a guard: no statement before the guard may evaluate it, since its reads may be out of range.
    """

    @abc.abstractmethod
    def index(self, e: Affine) -> Affine:
        """An index expression over the old axes as one over the new names."""

    @abc.abstractmethod
    def always(self, bound: Bound) -> bool:
        """Whether a bound over the new names holds everywhere: its guard is then left out."""

    def never(self, bound: Bound) -> bool:
        """Whether a bound over the new names is known to hold nowhere: its guard is then the other branch."""
        return False

    @abc.abstractmethod
    def leaf(self, e: Leaf, guarded: bool) -> Tree[NewLeaf]:
        """The new expression for a leaf."""

    def call(self, e: Call[Tree[Leaf]], guarded: bool) -> Tree[NewLeaf]:
        """The new expression for a call: the same function of the new operands."""
        return Call(e.fn, tuple(self.expression(a, guarded) for a in e.args))

    def expression(self, e: Tree[Leaf], guarded: bool = False) -> Tree[NewLeaf]:
        """The new expression for `e`."""
        match e:
            case Const():
                return e
            case Index(affine):
                return Index(self.index(affine))
            case Call():
                return self.call(e, guarded)
            case Guard(bounds, then, otherwise):
                new = tuple(Bound(self.index(b.index), b.low, b.high) for b in bounds)
                if all(self.always(b) for b in new):
                    return self.expression(then, guarded)
                if any(self.never(b) for b in new):
                    return self.expression(otherwise, guarded)
                return Guard(new, self.expression(then, True), self.expression(otherwise, True))
        return self.leaf(e, guarded)
