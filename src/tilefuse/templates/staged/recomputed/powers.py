"""Elements between the products in a form of few instructions, and the masks that bound the columns of their rows.

    exp(c * s - l[r])  ->  exp2(c log2(e) * s - log2(e) * l[r])      one fused multiplication and one power a score

An element that has the power of a masked score as a factor is 0 where the mask hides it, unless its other factors are infinite or NaN.
Source: Dao 2023, arXiv:2307.08691 (gradients from the logarithms of the sums).
"""
from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from tilefuse.ir.dtype import DTYPES, F32
from tilefuse.ir.scalar import Call, Const, Expr, Guard, Index, Lookup, Read, const, index_maps, transform, walk
from tilefuse.templates.staged.online.lazy import reaches_lowest
from tilefuse.templates.staged.online.products import ROW, WALK, OnlineForm
from tilefuse.templates.staged.online.total import Total
from tilefuse.templates.staged.recomputed.segments import over_segments, segment_of, within_segment
from tilefuse.templates.staged.walked.conditions import Bounds, Conditions
from tilefuse.templates.staged.walked.limit import Limit, with_bodies

LOG2_E = math.log2(math.e)


def with_bounds(form: OnlineForm) -> tuple[OnlineForm, Limit | None, int]:
    """The form with the masks of its scores outside of these, those that bound the columns of each row, and the segments of the walked axis
    in each of which they do. None where there are no bounds, where powers are of different scores, or where an element is not 0 wherever a
    mask hides the score."""
    bodies = bodies_of(form)
    powers = list(dict.fromkeys(e for body in bodies for e in walk(body) if _is_power(e, form)))
    scores = list(dict.fromkeys(_exponent(e)[0] for e in powers))
    if len(scores) != 1 or not all(_vanishes(body, powers) for body in bodies):
        return form, None, 1
    length = segment_of(scores[0], form.length)
    score = scores[0] if length == form.length else within_segment(scores[0], length)
    unmasked = None if score is None else Conditions({ROW: form.num_rows, WALK: length}, form.is_integer).unmasked(score)
    if unmasked is None or unmasked.whole == Bounds():
        return form, None, 1
    masked, bare = unmasked.masked(F32), unmasked.bare(F32)
    if length != form.length:
        masked, bare = (over_segments(e, length, form.length) for e in (masked, bare))
    return with_bodies(form, {scores[0]: masked}), Limit(unmasked.bounds, unmasked.whole, masked, bare), form.length // length


def with_short_powers(form: OnlineForm) -> OnlineForm:
    """The form with powers of e as powers of two, the logarithm's constant in the factor that scores have anyway."""
    if form.sum_dtype != F32:
        return form

    def shorter(e: Expr) -> Expr:
        return _short(e, form)

    def short(t: Total) -> Total:
        return replace(t, body=transform(t.body, shorter))

    return replace(form, weighted=tuple(replace(w, total=short(w.total)) for w in form.weighted), totals=tuple(map(short, form.totals)),
                   element_results=tuple((name, transform(e, shorter)) for name, e in form.element_results))


def bodies_of(form: OnlineForm) -> list[Expr]:
    """Elements that products multiply, that are added up along the walked axis, and that are written."""
    return [*(w.total.body for w in form.weighted), *(t.body for t in form.totals), *(e for _, e in form.element_results)]


def rows_alone(form: OnlineForm, rows: str, walked: str) -> tuple[Expr, ...]:
    """The largest parts of all elements that do not change along the axis `walked`, where computing them takes more than naming them.

    Those that depend on `rows` come first; then those of the lead place alone.
    """
    names = frozenset(form.reads)
    parts = dict.fromkeys(e for body in bodies_of(form) for e in _largest(body, walked, names))
    return tuple(sorted(parts, key=lambda e: rows not in axes_in(e)))


def axes_in(e: Expr) -> frozenset[str]:
    """Axes that an expression depends on."""
    axes: set[str] = set()
    for x in walk(e):
        facts = tuple(b.index for b in x.bounds) if isinstance(x, Guard) else ()
        for i in (*index_maps(x), *facts):
            axes |= i.axes()
    return frozenset(axes)


def _largest(e: Expr, walked: str, names: frozenset[str]) -> Iterator[Expr]:
    free = not any(isinstance(x, Lookup | Guard) or isinstance(x, Read) and x.value in names for x in walk(e))
    if free and walked not in axes_in(e):
        if not isinstance(e, Const | Index) and any(isinstance(x, Read) for x in walk(e)):
            yield e
        return
    if isinstance(e, Guard):
        # Reads of either side may be out of range on the other.
        return
    match e:
        case Call(_, args):
            for part in args:
                yield from _largest(part, walked, names)


def _is_power(e: Expr, form: OnlineForm) -> bool:
    """Whether an expression is a power of a score less a value of its row or of its column."""
    names = frozenset(form.reads)
    match e:
        case Call("exp" | "exp2", (Call("sub", (x, shift)),)):
            reads = {r.value for r in walk(x) if isinstance(r, Read)}
            return bool(reads & names) and not any(isinstance(r, Read) and r.value in names for r in walk(shift))
    return False


def _exponent(e: Expr) -> tuple[Expr, Expr]:
    assert isinstance(e, Call) and isinstance(e.args[0], Call)
    x, shift = e.args[0].args
    return x, shift


def _vanishes(e: Expr, powers: list[Expr]) -> bool:
    """Whether an element has one of the powers as a factor."""
    if e in powers:
        return True
    match e:
        case Call("mul", (a, b)):
            return _vanishes(a, powers) or _vanishes(b, powers)
        case Call("div", (a, _)):
            return _vanishes(a, powers)
        case Call("add" | "sub", (a, b)):
            return _vanishes(a, powers) and _vanishes(b, powers)
        case Call("select", (_, a, b)):
            return all(_vanishes(x, powers) or isinstance(x, Const) and x.value == 0 for x in (a, b))
        case Call(fn, (a,)):
            return (fn == "neg" or fn in DTYPES) and _vanishes(a, powers)
        case Guard(_, a, b):
            return all(_vanishes(x, powers) or isinstance(x, Const) and x.value == 0 for x in (a, b))
    return False


def _short(e: Expr, form: OnlineForm) -> Expr:
    match e:
        case Call("exp", (Call("sub", (x, shift)) as difference,)) if reaches_lowest(x, form):
            return Call("exp2", (Call("mul", (difference, const(LOG2_E, F32))),))
        case Call("exp", (Call("sub", (x, shift)),)):
            return Call("exp2", (Call("sub", (_scaled(x, LOG2_E), Call("mul", (shift, const(LOG2_E, F32))))),))
        case Call("exp2", (Call("sub", (x, shift)),)):
            return Call("exp2", (Call("sub", (_scaled(x, 1.0), shift)),))
    return e


def _scaled(e: Expr, factor: float) -> Expr:
    """An expression times a factor, inside of masks and with the constants that it is multiplied by."""
    match e:
        case Const() if not math.isfinite(e.value):
            return e
        case Const():
            return const(float(e.value) * factor, F32)
        case Call("mul", (x, Const() as c)) | Call("mul", (Const() as c, x)):
            return _scaled(x, float(c.value) * factor)
        case Call("select", (condition, a, b)):
            return Call("select", (condition, _scaled(a, factor), _scaled(b, factor)))
        case Guard(facts, a, b):
            return Guard(facts, _scaled(a, factor), _scaled(b, factor))
        case Call("add" | "sub" as fn, (a, b)):
            return Call(fn, (_scaled(a, factor), _scaled(b, factor)))
    return e if factor == 1.0 else Call("mul", (e, const(factor, F32)))
