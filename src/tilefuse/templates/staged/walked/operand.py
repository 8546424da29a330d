"""Operands of a pipelined walk that tensor copies bring."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilefuse.ir.affine import Affine
from tilefuse.templates.staged.pipelined.operand import Operand
from tilefuse.templates.staged.walked.paged.pages import Pages


@dataclass(frozen=True)
class WalkOperand:
    """An operand of one of the two products, over that product's axes.

    sizes   extents of these axes, of INNER, and of digits
    leads   lead axes in order
    digits  axes of the operand that are digits of the lead axes, as where heads share keys
    pages   in which the operand lies along the walked axis; None: at one distance
    """

    operand: Operand
    sizes: Mapping[str, int]
    leads: tuple[str, ...]
    digits: Mapping[str, Affine]
    pages: Pages | None = None

    @property
    def lines(self) -> int:
        """Lines of the operand: rows or columns of its product."""
        return self.sizes[self.operand.line]
