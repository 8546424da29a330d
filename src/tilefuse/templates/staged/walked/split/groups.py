"""Heads that share keys and values as rows of one tile, so that keys are read once for all of them.

    q[head, r, ..]   k[head / 4, c, ..]      4 heads of few rows   ->   tile row r * 4 + head % 4 of lead place head / 4

Rows of the heads are a box of the left operand's tensor map, as long as all of them lie in one tile. Everything else is expressions: the
lead place becomes lead * heads + row % heads, the row row / heads.
"""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.domain.contraction import INNER
from tilefuse.ir.affine import NO_EXTENT, Affine, axis, substitute
from tilefuse.ir.scalar import Expr, Read, indexed_axes, substitute_axes
from tilefuse.templates.staged.online.products import LEAD, ROW, WALK, WIDTH, OnlineForm, Operand
from tilefuse.templates.staged.online.total import Total
from tilefuse.templates.staged.pipelined.plan import OperandMap, OperandTile, map_of_tile
from tilefuse.templates.staged.walked.conditions import Bounds
from tilefuse.templates.staged.walked.form import WalkForm
from tilefuse.templates.staged.walked.limit import Limit
from tilefuse.templates.staged.walked.operand import WalkOperand


def heads_that_share(form: WalkForm, most: int) -> int:
    """The most heads, up to `most`, whose rows one tile may hold: neighbours that share both walked operands. 1 where there are none."""
    last = head_axis(form.left)
    if not last:
        return 1
    number = form.left.sizes[last]
    return max((n for n in range(1, min(most, number) + 1) if number % n == 0 and all(
        _is_shared(of, n) for of in (form.keys, form.values))), default=1)


def head_axis(of: WalkOperand) -> str:
    """The last lead axis of a product with more than one place; "" without one."""
    return next((a for a in reversed(of.leads) if of.sizes[a] > 1), "")


def _is_shared(of: WalkOperand, heads: int) -> bool:
    """Whether so many neighbouring heads read the same elements of an operand."""
    last = head_axis(of)
    number = of.sizes.get(last, 1)
    if of.operand.stride_by_axis.get(last) or number % heads:
        return False
    extents = {**of.sizes, last: number // heads, "head": heads}
    place = {last: axis(last) * heads + axis("head")}
    if of.pages is not None and "head" in indexed_axes(substitute_axes(of.pages.number, place, extents)):
        return False
    return all("head" not in substitute(digit, place, extents).axes() for digit in of.digits.values())


def with_heads(form: WalkForm, heads: int, rows: int) -> WalkForm | Rejected:
    """The form with the rows of `heads` lead places in one tile of `rows` rows."""
    if heads == 1:
        return form
    if (heads, rows) not in form.by_heads:
        form.by_heads[heads, rows] = _with_heads(form, heads, rows)
    return form.by_heads[heads, rows]


def _with_heads(form: WalkForm, heads: int, rows: int) -> WalkForm | Rejected:
    last, online = head_axis(form.left), form.online
    if heads < 1 or heads_that_share(form, heads) != heads:
        return Rejected(Reason.ILLEGAL_TEMPLATE, f"{heads} heads in a tile share no %{form.keys.operand.value} and "
                                                 f"%{form.values.operand.value}")
    if online.num_rows * heads > rows:
        return Rejected(Reason.ILLEGAL_TEMPLATE, f"{online.num_rows} rows of {heads} heads, and a tile has {rows}")
    if not form.left.operand.stride_by_axis.get(last) or not form.left.operand.inner_is_contiguous or last in _axes_of_digits(form.left):
        return Rejected(Reason.ILLEGAL_TEMPLATE, f"heads of %{form.left.operand.value} do not lie at one distance, rows contiguous")
    if online.num_rows > 1 and rows % heads:
        return Rejected(Reason.ILLEGAL_TEMPLATE, f"{heads} heads do not divide a tile of {rows} rows")
    place = {LEAD: axis(LEAD) * heads + (axis(ROW) % heads if online.num_rows > 1 else axis(ROW)), ROW: axis(ROW) // heads}
    extents = {LEAD: online.num_leads // heads, ROW: online.num_rows * heads, WALK: online.length, WIDTH: form.width, INNER: NO_EXTENT}
    limit = form.limit
    if limit is not None:
        bounds, whole = (_bounds_of_heads(b, place, extents) for b in (limit.bounds, limit.whole))
        if bounds is None or whole is None:
            return Rejected(Reason.ILLEGAL_TEMPLATE, "heads of a tile have ends of their own in memory")
        limit = Limit(bounds, whole, *(substitute_axes(e, place, extents) for e in (limit.masked, limit.bare)))
    return replace(form, online=_placed(online, place, extents), limit=limit, biases=(), heads=heads, by_heads={})


def _bounds_of_heads(bounds: Bounds, place: Mapping[str, Affine], extents: Mapping[str, int]) -> Bounds | None:
    """Bounds whose integers of memory are those of the new lead places; None where heads of one differ in them."""
    moved = {e: e if e.data is None else replace(e, data=substitute_axes(e.data, place, extents)) for e in bounds.edges}
    if any(ROW in indexed_axes(e.data) for e in moved.values() if e.data is not None):
        return None
    ends, starts = (tuple(tuple(moved[e] for e in group) for group in groups) for groups in (bounds.ends, bounds.starts))
    return Bounds(ends, starts)


def _axes_of_digits(of: WalkOperand) -> frozenset[str]:
    return frozenset().union(*(d.axes() for d in of.digits.values()))


def _placed(online: OnlineForm, place: Mapping[str, Affine], extents: Mapping[str, int]) -> OnlineForm:
    """The form with its lead places and rows elsewhere."""
    def moved(e: Expr) -> Expr:
        return substitute_axes(e, place, extents)

    def moved_read(e: Read) -> Read:
        return Read(e.value, tuple(substitute(i, place, extents) for i in e.index))

    def total(t: Total) -> Total:
        return replace(t, body=moved(t.body), shift=None if t.shift is None else moved(t.shift),
                       late=tuple((fn, moved(e)) for fn, e in t.late))

    def operand(o: Operand) -> Operand:
        return replace(o, body=moved(o.body))

    def bias(e: Expr | None) -> Expr | None:
        return None if e is None else moved(e)

    return replace(
        online, num_leads=extents[LEAD], num_rows=extents[ROW],
        scores=tuple(replace(s, left=operand(s.left), right=operand(s.right), bias=bias(s.bias)) for s in online.scores),
        totals=tuple(map(total, online.totals)),
        weighted=tuple(replace(w, total=total(w.total), right=operand(w.right), bias=bias(w.bias)) for w in online.weighted),
        row_results=tuple((name, moved(e)) for name, e in online.row_results),
        width_results=tuple((name, moved(e)) for name, e in online.width_results),
        reads={name: moved_read(e) for name, e in online.reads.items()},
        points={name: tuple(substitute(i, place, extents) for i in index) for name, index in online.points.items()})


def map_of_heads(of: WalkOperand, tile: OperandTile, heads: int) -> OperandMap:
    """The map of the left operand, whose box has rows of several heads: those of one row behind each other.

        box    [rows of the tile / heads, heads, panel]     of one row a head: heads of the tile, those of other lead places among them
    """
    m = map_of_tile(of.sizes, tile)
    if heads == 1:
        return m
    last, line, inner = head_axis(of), of.operand.line, m.axes[-1]
    order = (*(a for a in m.axes if a not in (last, line, inner)), line, last, inner)
    extent_by_axis, stride_by_axis = dict(zip(m.axes, m.extents, strict=True)), dict(zip(m.axes, m.strides, strict=True))
    lines = (tile.panel_lines // heads, heads) if of.sizes[line] > 1 else (1, tile.panel_lines)
    return OperandMap(order, tuple(extent_by_axis[a] for a in order), tuple(stride_by_axis[a] for a in order),
                      (*(1 for _ in order[:-3]), *lines, tile.width))
