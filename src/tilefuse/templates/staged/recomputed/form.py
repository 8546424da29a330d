"""The form of a walk between several products without running maxima: elements of scores, each times an operand of the walked axis.

    s[r, c]  = sum q[r, k] k[c, k]         scores: products whose columns are walked, each with an operand of its rows and a walked one
    d[r, c]  = sum g[r, j] v[c, j]
    y[r, k]  = sum over c of x(s, d)[r, c] k[c, k]       weighted: products along the walked axis, of elements of the scores
    t[r]     = sum over c of x(s, d)[r, c]               totals: sums of elements, as those for the slope of a bias
    x[r, c]                                              elements that are written, as the gradient of a bias

A walked operand that a score and a weighted product read is one: its tile comes once a turn and is multiplied from either side.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.domain.contraction import COLUMN, INNER
from tilefuse.ir.affine import Affine
from tilefuse.ir.graph import Graph
from tilefuse.ir.layouts import Layouts
from tilefuse.ir.scalar import Expr, Read, walk
from tilefuse.templates.staged.online.products import LEAD, WALK, OnlineForm, form_with_elements
from tilefuse.templates.staged.online.turn_work import Score, score_of
from tilefuse.templates.staged.recomputed.biases import biases_between
from tilefuse.templates.staged.recomputed.powers import bodies_of, with_bounds, with_short_powers
from tilefuse.templates.staged.walked.bias import Bias
from tilefuse.templates.staged.walked.form import walk_operand
from tilefuse.templates.staged.walked.limit import Limit, without_mask
from tilefuse.templates.staged.walked.operand import WalkOperand


@dataclass(frozen=True)
class BackForm:
    """Several products with elements of their results between them.

    own       of each score: its left operand, over rows and an inner axis
    walked    distinct operands over the walked axis and an inner axis, the first one's lines
    rights    of each score: number of its walked operand
    weights   of each weighted product: number of its walked operand, whose inner axis is the product's columns
    limit     the mask that bounds the columns of each row, if there is one
    staged_by right operand of the first weighted product
    whole     the form in turns that the mask cuts nothing of
    segments  parts of the walked axis that the mask begins again in
    biases    values with rows and columns of the scores that copies may bring
    """

    online: OnlineForm
    own: tuple[WalkOperand, ...]
    walked: tuple[WalkOperand, ...]
    rights: tuple[int, ...]
    weights: tuple[int, ...]
    limit: Limit | None
    staged_by: WalkOperand
    whole: OnlineForm
    segments: int = 1
    biases: tuple[Bias, ...] = ()

    @property
    def without_bounds(self) -> BackForm:
        """The form that takes every column of every row."""
        return replace(self, limit=None, whole=self.online, segments=1)

    @cached_property
    def multiplied(self) -> tuple[Expr, ...]:
        """Distinct elements that weighted products multiply, in their order."""
        return multiplied_elements(self.online)

    @cached_property
    def elements(self) -> tuple[Expr, ...]:
        """Distinct elements that registers hold for all scores of a turn: those that are multiplied, then others that are written."""
        return held_elements(self.online)

    @property
    def width(self) -> int:
        """Columns of the widest weighted product."""
        return max(w.width for w in self.online.weighted)

    @cached_property
    def cut_score(self) -> Score:
        """Operations of a score in turns that the mask cuts."""
        return score_of(self.online)

    @cached_property
    def whole_score(self) -> Score:
        """Operations of a score in the other turns."""
        return score_of(self.whole)

    @cached_property
    def of_columns(self) -> tuple[Read, ...]:
        """Values of boundary vectors that change along the walked axis and not along the rows."""
        reads = (e for body in bodies_of(self.online) for e in walk(body) if isinstance(e, Read) and e.value not in self.online.reads)
        return tuple(dict.fromkeys(e for e in reads if _axes(e) in (frozenset([WALK]), frozenset([LEAD, WALK]))))


def multiplied_elements(form: OnlineForm) -> tuple[Expr, ...]:
    """As `BackForm.multiplied`."""
    return tuple(dict.fromkeys(w.total.body for w in form.weighted))


def held_elements(form: OnlineForm) -> tuple[Expr, ...]:
    """As `BackForm.elements`."""
    return tuple(dict.fromkeys((*multiplied_elements(form), *(e for _, e in form.element_results))))


def back_form(graph: Graph, layouts: Layouts) -> BackForm | Rejected:
    """The form of a pattern given as a graph of its own, or why it has none."""
    online = form_with_elements(graph)
    if isinstance(online, Rejected):
        return online
    if len(online.scores) + len(online.weighted) <= 2 or not online.weighted:
        return Rejected(Reason.OTHER_TEMPLATE, f"{len(online.scores)} scores and {len(online.weighted)} weighted products: this walk has "
                                               "several on one side")
    if any(t.monoid != "sum" or t.top or t.late for t in (*online.totals, *(w.total for w in online.weighted))):
        return Rejected(Reason.OTHER_TEMPLATE, "elements that are relative to a maximum, or reductions other than sums")
    if any(s.bias is not None for s in online.scores) or any(w.bias is not None for w in online.weighted):
        return Rejected(Reason.UNSUPPORTED_OP, "a product adds a bias of its own")
    own: list[WalkOperand] = []
    rights: list[WalkOperand] = []
    weights: list[WalkOperand] = []
    for value, side, operands in (*((s.value, "left", own) for s in online.scores), *((s.value, "right", rights) for s in online.scores),
                                  *((w.value, "right", weights) for w in online.weighted)):
        operand = walk_operand(graph, layouts, graph.node_by_name[value], side)
        if isinstance(operand, Rejected):
            return operand
        operands.append(operand)
    if len({o.operand.dtype for o in (*own, *rights, *weights)}) > 1:
        return Rejected(Reason.UNSUPPORTED_OP, "operands of several types, and elements become operands of one")
    turned = [_turned(o) for o in weights]
    walked = _distinct([*rights, *turned])
    online, limit, segments = with_bounds(online)
    whole = with_short_powers(online if limit is None else without_mask(online, limit))
    form = BackForm(with_short_powers(online), tuple(own), walked, tuple(map(walked.index, map(_plain, rights))),
                    tuple(map(walked.index, map(_plain, turned))), limit, weights[0], whole, segments,
                    biases_between(graph, layouts, online))
    # Elements that a mask hides are written as well: zeros.
    return form.without_bounds if online.element_results else form


def _turned(of: WalkOperand) -> WalkOperand:
    """The right operand of a weighted product with the walked axis, its inner one, as its lines."""
    operand, sizes = of.operand, dict(of.sizes)
    sizes[operand.line], sizes[INNER] = of.sizes[INNER], of.sizes[operand.line]
    strides = dict(operand.stride_by_axis)
    line, inner = strides.pop(operand.line, None), strides.pop(INNER, None)
    strides |= {a: s for a, s in ((operand.line, inner), (INNER, line)) if s is not None}
    turned = replace(operand, lines=sizes[operand.line], stride_by_axis=strides, inner_is_contiguous=strides.get(INNER, 1) == 1)
    return WalkOperand(turned, sizes, of.leads, of.digits)


def _plain(of: WalkOperand) -> WalkOperand:
    """An operand with its axes in one order, so that equal ones are equal."""
    assert of.operand.line == COLUMN
    strides = dict(sorted(of.operand.stride_by_axis.items()))
    digits: dict[str, Affine] = dict(sorted(of.digits.items()))
    return WalkOperand(replace(of.operand, stride_by_axis=strides, read_bytes=of.operand.dtype.itemsize, lone_reads=0),
                       dict(sorted(of.sizes.items())), of.leads, digits)


def _distinct(operands: Sequence[WalkOperand]) -> tuple[WalkOperand, ...]:
    distinct: list[WalkOperand] = []
    for of in map(_plain, operands):
        if of not in distinct:
            distinct.append(of)
    return tuple(distinct)


def _axes(e: Read) -> frozenset[str]:
    return frozenset[str]().union(*(i.axes() for i in e.index))
