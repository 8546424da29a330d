"""Parts of a score's expression that are the same in a whole tile, computed once for it.

    s + (column - row) * 2 ** -(head + 1)      2 ** -(head + 1) in a register, from the tile's start on
"""
from __future__ import annotations

from collections.abc import Iterator

from tilefuse.ir.scalar import Call, Const, Expr, Guard, Index, Lookup, Read, children
from tilefuse.templates.staged.online.products import LEAD, OnlineForm
from tilefuse.templates.staged.walked.state import WalkState


def keep_lead_values(w: WalkState) -> None:
    """Puts values that depend on the lead place alone into registers, where computing them takes more than naming them."""
    for e in dict.fromkeys(_lead_values(w.walk.form.online)):
        w.keep(e, w.element(e), "of_lead")


def _lead_values(form: OnlineForm) -> Iterator[Expr]:
    for t in (*form.totals, *(x.total for x in form.weighted)):
        yield from _largest(t.body, frozenset(form.reads))


def _largest(e: Expr, walked: frozenset[str]) -> Iterator[Expr]:
    """The largest parts of an expression that no other axis than the lead place's changes. walked: values of the walk."""
    if _is_of_lead(e, walked):
        if isinstance(e, Read | Call) and not _is_constant(e):
            yield e
        return
    if isinstance(e, Guard):
        # Reads of either side may be out of range on the other.
        return
    for part in children(e):
        yield from _largest(part, walked)


def _is_of_lead(e: Expr, walked: frozenset[str]) -> bool:
    match e:
        case Read(value, index):
            return value not in walked and all(i.axes() <= {LEAD} for i in index)
        case Index(affine):
            return affine.axes() <= {LEAD}
        case Const():
            return True
        case Guard() | Lookup():
            return False
    return all(_is_of_lead(part, walked) for part in children(e))


def _is_constant(e: Expr) -> bool:
    return isinstance(e, Const) or isinstance(e, Call) and all(_is_constant(part) for part in children(e))
