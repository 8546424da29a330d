"""Columns that a mask hides in whole tiles: a condition on the indices of row and column, recognised in the elements of a maximum.

    select(column > row + d, -inf, x)      row r has the columns 0 .. r + d
        tile of rows 64 .. 127, d = 0:     columns 128 and beyond are never computed, 0 .. 64 carry no mask

A hidden element adds exp(-inf) = 0 to every sum and every product, but where the operand that it multiplies is infinite or NaN.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tilefuse.ir.affine import Affine, axis, bounds, number
from tilefuse.ir.scalar import Call, Const, Expr, Guard, Index
from tilefuse.templates.staged.online.products import ROW, WALK, OnlineForm, Total


@dataclass(frozen=True)
class Limit:
    """Row r has the columns below r + `beyond` and no other one. masked: the element with its mask; bare: without it."""

    beyond: int
    masked: Expr
    bare: Expr


def limit_of(form: OnlineForm) -> Limit | None:
    """The mask of all maxima's elements that hides columns beyond a row's own; None where they have none, or several."""
    extents = {ROW: form.num_rows, WALK: form.length}
    limits = [_limit(t.body, extents) for t in form.tops]
    first = limits[0] if limits else None
    if first is None or any(limit != first for limit in limits) or first.beyond < 0:
        return None
    # Sums and products see hidden elements only through powers of the masked ones.
    bare = without_mask(form, first)
    relative = (*form.sums, *(w.total for w in form.weighted))
    return first if all(_vanishes(t, form) for t in relative) and bare.tops != form.tops else None


def without_mask(form: OnlineForm, limit: Limit) -> OnlineForm:
    """The form inside of tiles that the mask hides nothing of."""
    def bare(t: Total) -> Total:
        return replace(t, body=_replaced(t.body, {limit.masked: limit.bare}))

    return replace(form, totals=tuple(bare(t) for t in form.totals),
                   weighted=tuple(replace(w, total=bare(w.total)) for w in form.weighted))


def _vanishes(t: Total, form: OnlineForm) -> bool:
    """Whether an element is a power of a maximum's element, so that it is 0 where that is -inf."""
    tops = [top for top in form.tops if top.value == t.top]
    return any(t.shift is not None and t.body == Call("exp", (Call("sub", (top.body, t.shift)),)) for top in tops)


def _limit(body: Expr, extents: Mapping[str, int]) -> Limit | None:
    """The outermost mask of an element, if it has one condition that does not always hold."""
    match body:
        case Call("select", (Call() as condition, Const() as c, x)) if c.value == -float("inf"):
            places, hidden = _differences(condition), True
        case Call("select", (Call() as condition, x, Const() as c)) if c.value == -float("inf"):
            places, hidden = _differences(condition), False
        case Guard((bound,), x, Const() as c) if c.value == -float("inf"):
            places, hidden = [bound.index - number(bound.low), number(bound.high - 1) - bound.index], False
            places = [e for e in places if not _is_natural(e, extents)]
        case _:
            return None
    if len(places) != 1:
        return None
    difference, = places
    # Kept where `difference` >= 0, hidden where it is: then kept where -difference - 1 >= 0.
    kept = number(-1) - difference if hidden else difference
    rest = kept - axis(ROW) + axis(WALK)
    return Limit(rest.const + 1, body, x) if rest.is_const else None


def _differences(condition: Call[Expr]) -> list[Affine]:
    """The index expression that is not negative where a comparison of indices holds."""
    if condition.fn not in ("ge", "gt", "le", "lt"):
        return []
    left, right = (_index(e) for e in condition.args)
    if left is None or right is None:
        return []
    difference = left - right if condition.fn.startswith("g") else right - left
    return [difference - number(int(condition.fn.endswith("t")))]


def _is_natural(e: Affine, extents: Mapping[str, int]) -> bool:
    """Whether an index expression is never negative."""
    span = bounds(e, extents)
    return span is not None and span[0] >= 0


def _index(e: Expr) -> Affine | None:
    match e:
        case Index(affine):
            return affine
        case Const() if float(e.value).is_integer():
            return number(int(e.value))
        case Call("add" | "sub" as fn, (a, b)):
            left, right = _index(a), _index(b)
            if left is None or right is None:
                return None
            return left + right if fn == "add" else left - right
        case Call("i64" | "i32", (x,)):
            return _index(x)
    return None


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
