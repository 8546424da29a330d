"""Columns that a mask hides in whole tiles: conditions on the indices of row and column, recognised in the elements of a maximum.

    select(column > row + d, -inf, x)                    row r has the columns 0 .. r + d
    select(row - column < w and column <= row, x, -inf)  row r has the columns r - w + 1 .. r
    select(column < length[batch], x, -inf)              the walk ends where memory says, at run time
    select(column // 64 < end[row // 64], x, -inf)       so does that of every 64 rows
        tile of rows 64 .. 127, d = 0:                   columns 128 and beyond are never computed, 0 .. 64 carry no mask

A hidden element adds exp(-inf) = 0 to every sum and every product, but where the operand that it multiplies is infinite or NaN. A mask that
is added hides nothing of scores that are infinite or NaN.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tilefuse.ir.scalar import Call, Const, Expr, Guard
from tilefuse.templates.staged.online.products import ROW, WALK, OnlineForm
from tilefuse.templates.staged.online.total import Total
from tilefuse.templates.staged.walked.conditions import Bounds, Conditions, Edge


@dataclass(frozen=True)
class Limit:
    """The columns that rows have at most. whole: bounds of columns of which rows have all, `bounds` among them. masked: the element with
    its masks; bare: the element of columns within `whole`."""

    bounds: Bounds
    whole: Bounds
    masked: Expr
    bare: Expr

    @property
    def is_of_blocks(self) -> bool:
        """Whether memory has bounds of its own for blocks of rows, so that the turns of a tile are known at run time alone."""
        return any(e.rows for e in self.bounds.edges)


@dataclass(frozen=True)
class Turns:
    """Turns of a tile of rows, numbered along the walked axis.

    first, end              those that some row has columns of; one at least
    whole_first, whole_end  those of them in which every row has all columns
    gap                     number of those before `whole_first` that no row has columns of
    """

    first: int
    end: int
    whole_first: int
    whole_end: int
    gap: int = 0

    @property
    def count(self) -> int:
        """Turns that are computed."""
        return self.end - self.first - self.gap


def with_limit(form: OnlineForm) -> tuple[OnlineForm, Limit | None]:
    """The form with the masks of its maxima's elements outside of these, and the masks that bound the columns of each row; None where
    they have none, or several."""
    conditions = Conditions({ROW: form.num_rows, WALK: form.length}, form.is_integer)
    unmasked_by_top = {t: conditions.unmasked(t.body) for t in form.tops}
    relative = (*form.sums, *(w.total for w in form.weighted))
    # Sums and products see hidden elements only through powers of the masked ones.
    if len({t.body for t in form.tops}) != 1 or not all(vanishes(t, form) for t in relative):
        return form, None
    top, unmasked = next(iter(unmasked_by_top.items()))
    if unmasked.whole == Bounds():
        return form, None
    limit = Limit(unmasked.bounds, unmasked.whole, unmasked.masked(top.dtype), unmasked.bare(top.dtype))
    return with_bodies(form, {top.body: limit.masked}), limit


def without_mask(form: OnlineForm, limit: Limit) -> OnlineForm:
    """The form inside of tiles that the mask hides nothing of."""
    return with_bodies(form, {limit.masked: limit.bare})


def with_bodies(form: OnlineForm, by: Mapping[Expr, Expr]) -> OnlineForm:
    """The form with parts of its elements exchanged."""
    def changed(t: Total) -> Total:
        return replace(t, body=_replaced(t.body, by))

    return replace(form, totals=tuple(changed(t) for t in form.totals),
                   weighted=tuple(replace(w, total=changed(w.total)) for w in form.weighted),
                   element_results=tuple((name, _replaced(e, by)) for name, e in form.element_results))


def turns_of(bounds: Bounds, first_row: int, rows: int, columns: int, length: int, whole: Bounds | None = None) -> Turns:
    """The turns of a tile of rows, the most that memory may leave. whole: bounds of the columns that rows have all of, where these are
    others. `turn_range.py` has the same arithmetic in the kernel."""
    inner = bounds if whole is None else whole
    last_row = first_row + rows - 1
    most = -(-length // columns)
    first = min(bounds.start(first_row) // columns, most - 1)
    end = max(-(-min(bounds.end(last_row, length), length) // columns), first + 1)
    whole_end = max(min(inner.end(first_row, length) // columns, end - 1), first)
    whole_first = min(-(-inner.start(last_row) // columns), whole_end)
    gap_begin, gap_end = bounds.gap(first_row, last_row, length)
    gap = min(gap_end // columns, whole_first) - max(-(-gap_begin // columns), first)
    return Turns(first, end, whole_first, whole_end, max(gap, 0))


def latest(edges: tuple[tuple[Edge, ...], ...], row: int, length: int) -> int:
    """The greatest edge of a row. Numbers of memory are cut off so that they add `length` at most."""
    return max((e.at(row) if e.data is None else e.slope * row + length for group in edges for e in group), default=0)


def vanishes(t: Total, form: OnlineForm) -> bool:
    """Whether an element is a power of a maximum's element, or 0 where a condition drops it, so that it is 0 where that is -inf."""
    tops = [top for top in form.tops if top.value == t.top]
    return any(t.shift is not None and _kept(t.body) == Call("exp", (Call("sub", (top.body, t.shift)),)) for top in tops)


def _kept(e: Expr) -> Expr:
    """An element without the conditions that make it 0."""
    match e:
        case Call("select", (_, x, Const() as zero)) | Call("select", (_, Const() as zero, x)) if zero.value == 0:
            return _kept(x)
    return e


def _replaced(e: Expr, by: Mapping[Expr, Expr]) -> Expr:
    """An expression with parts of it exchanged."""
    if e in by:
        return by[e]
    match e:
        case Call(fn, args):
            return Call(fn, tuple(_replaced(a, by) for a in args))
        case Guard(facts, then, otherwise):
            return Guard(facts, _replaced(then, by), _replaced(otherwise, by))
    return e
