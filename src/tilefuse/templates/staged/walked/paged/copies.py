"""Copies of the pages of a turn: their numbers are loaded together, so that they share a round trip, then a copy is started for each.

    turn of 64 columns, pages of 16      n0 n1 n2 n3 from the table  |  copies of pages n0, n1, n2, n3
"""
from __future__ import annotations

from collections.abc import Callable, Mapping

from tilefuse.ir.affine import Affine, axis, number
from tilefuse.ir.dtype import I64
from tilefuse.ir.scalar import Bound, Guard, Lookup, const, substitute_axes
from tilefuse.kernel.ir import FromMemory, KExpr, Let
from tilefuse.templates.staged.online.state import OnlineState
from tilefuse.templates.staged.walked.paged.pages import PAGE, Pages


def copy_pages(w: OnlineState, pages: Pages, columns: int, place: Mapping[str, Affine],
               copy: Callable[[Affine, Mapping[str, Affine]], None]) -> None:
    """Starts the copies of a turn. columns: of the turn; place: of its first column, by axis of the operand.

    copy: starts the copies to the rows of a slot from a row on, from places in memory of axes that pages decide
    """
    rows = pages.rows_of_copy(columns)
    count = columns // rows
    together = max(n for n in range(1, w.device.fitted.walks.pages_ahead + 1) if count % n == 0)

    def start(group: Affine) -> None:
        firsts = [(group + n) * rows for n in range(together)]
        numbers = [_number(w, pages, {**place, pages.along: place[pages.along] + row}) for row in firsts]
        for row, page in zip(firsts, numbers, strict=True):
            copy(row, {PAGE: page, pages.along: (place[pages.along] + row) % pages.size})

    if count == together:
        start(number(0))
        return
    with w.loop("group", count // together, rolled=True) as group:
        start(group * together)


def _number(w: OnlineState, pages: Pages, place: Mapping[str, Affine]) -> Affine:
    """The name of the number of the page at a place; behind the end of the axis that of no page, whose rows are zeros."""
    element = substitute_axes(pages.element, place, w.extents)
    assert isinstance(element, Lookup)
    num_pages = w.graph.type_of(element.value).shape[pages.dimension]
    within = Bound(w.simplified(place[pages.along]), 0, pages.length)
    value: KExpr = w.here.subscript(element, pages.dimension, guarded=True)
    if not w.always(within):
        value = Guard((within,), value, const(num_pages, I64))
    name = w.fresh("page")
    w.emit(Let(name, FromMemory(value), num_pages + 1))
    w.frame.extents[name] = num_pages + 1
    return axis(name)
