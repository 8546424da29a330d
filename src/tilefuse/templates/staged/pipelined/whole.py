"""Tiles that lie inside the results' columns as a whole, and those that hang over their end.

    columns    |  tile 0  |  tile 1  |  tile 2  |  til
               |<----- no element is asked ---->| every pair of elements is asked whether it exists

A condition for each pair of elements costs more than most maps: the compiler makes a branch of it, around which it moves no instruction.
"""
from __future__ import annotations

from collections.abc import Callable

from tilefuse.ir.affine import axis
from tilefuse.ir.scalar import Bound
from tilefuse.kernel.ir import If
from tilefuse.templates.staged.pipelined.state import ProductState


def whole_or_cut(w: ProductState, write: Callable[[], None]) -> None:
    """What `write` writes for a tile: once for tiles inside the columns, and once for a last tile that these end in.

    Requires: `write` writes no barrier, and declares no register that later statements read.
    """
    count = w.form.columns // w.plan.choice.columns
    name = _own_name(w)
    if name is None or not count or w.form.columns % w.plan.choice.columns == 0:
        write()
        return
    with w.nested() as whole:
        whole.extents[name] = count
        write()
    with w.nested() as cut:
        write()
    w.emit(If((Bound(w.column_tile, 0, count),), tuple(whole.statements), tuple(cut.statements)))


def _own_name(w: ProductState) -> str | None:
    """The kernel's name of the tile's number; None where it is a constant."""
    terms = w.column_tile.terms
    return terms[0][0] if len(terms) == 1 and isinstance(terms[0][0], str) and w.column_tile == axis(terms[0][0]) else None
