"""The form of a pipelined walk: that of `online/products.py` with one score and one weighted product, whose operands are tensors."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.domain.contraction import COLUMN, INNER, ROW, Contraction, any_contraction_of, matrix_arithmetic
from tilefuse.ir.affine import Affine
from tilefuse.ir.graph import Graph, Node
from tilefuse.ir.layouts import Layouts
from tilefuse.ir.scalar import Lookup, Read, indexed_axes, walk
from tilefuse.templates.staged.chain.form import NARROW
from tilefuse.templates.staged.online.products import WALK, OnlineForm, online_form
from tilefuse.templates.staged.pipelined.operand import Operand, operand_of
from tilefuse.templates.staged.walked.bias import Bias, biases_of
from tilefuse.templates.staged.walked.caps import with_short_scores
from tilefuse.templates.staged.walked.leads import digit_sizes, with_digits
from tilefuse.templates.staged.walked.limit import Limit, with_limit
from tilefuse.templates.staged.walked.operand import WalkOperand
from tilefuse.templates.staged.walked.paged.pages import PAGE, with_pages


@dataclass(frozen=True)
class WalkForm:
    """Two products with reductions along the walked axis between them.

    left    over rows and the inner axis of the scores
    keys    over the walked axis, which are the scores' columns, and their inner axis
    values  over the columns of the weighted product and the walked axis, which is its inner axis
    limit   the mask that ends each row's columns, if there is one; it counts rows of one head
    biases  values for each score that tensor copies can bring
    heads   lead places that are one of `online`, whose rows are rows * heads + head (`split/groups.py`)
    by_heads  forms with other numbers of heads, by these and by the rows of their tile, as far as they were asked for
    """

    online: OnlineForm
    left: WalkOperand
    keys: WalkOperand
    values: WalkOperand
    limit: Limit | None
    biases: tuple[Bias, ...] = ()
    heads: int = 1
    by_heads: dict[tuple[int, int], WalkForm | Rejected] = field(default_factory=dict, compare=False, repr=False)

    @cached_property
    def loads_columns(self) -> bool:
        """Whether threads load values that change along the walked axis, beside those that tensor copies can bring."""
        online = self.online
        brought = {b.read for b in self.biases}
        bodies = dict.fromkeys(t.body for t in (*online.totals, *(w.total for w in online.weighted)))
        return any(isinstance(e, Read | Lookup) and e.value not in online.reads and e not in brought and WALK in indexed_axes(e)
                   for body in bodies for e in walk(body))

    @property
    def rows_of_head(self) -> int:
        """Rows of one lead place of the products."""
        return self.online.num_rows // self.heads

    @property
    def inner(self) -> int:
        """Inner extent of the scores."""
        return self.keys.sizes[INNER]

    @property
    def width(self) -> int:
        """Columns of the weighted product."""
        return self.values.sizes[COLUMN]

    @property
    def staged_by(self) -> WalkOperand:
        """Right operand of the product with the results' columns."""
        return self.values

    @property
    def operands(self) -> tuple[WalkOperand, ...]:
        """All three of the products."""
        return self.left, self.keys, self.values


def walk_form(graph: Graph, layouts: Layouts) -> WalkForm | Rejected:
    """The form of a pattern given as a graph of its own, or why it has none."""
    online = online_form(graph)
    if isinstance(online, Rejected):
        return online
    if len(online.scores) != 1 or len(online.weighted) != 1:
        return Rejected(Reason.OTHER_TEMPLATE, f"{len(online.scores)} products of scores and {len(online.weighted)} weighted ones, and a "
                                               "pipeline holds the sums of one each")
    score, weighted = (graph.node_by_name[v] for v in (online.scores[0].value, online.weighted[0].value))
    sides: list[WalkOperand] = []
    for node, side, walked in ((score, "left", ""), (score, "right", COLUMN), (weighted, "right", INNER)):
        operand = walk_operand(graph, layouts, node, side, walked)
        if isinstance(operand, Rejected):
            return operand
        sides.append(operand)
    left, keys, values = sides
    if len({o.operand.dtype for o in sides}) > 1 or left.operand.dtype.name not in NARROW:
        return Rejected(Reason.UNSUPPORTED_OP, f"%{score.name} and %{weighted.name} of {left.operand.dtype} and {values.operand.dtype}: "
                                               "powers become operands of 16 bits")
    online, limit = with_limit(with_short_scores(online))
    return WalkForm(online, left, keys, values, limit, biases_of(graph, layouts, online))


def walk_operand(graph: Graph, layouts: Layouts, node: Node, side: str, walked: str = "") -> WalkOperand | Rejected:
    """An operand of a product that tensor copies may bring, or why there is none. walked: the axis along which it may lie in pages."""
    contraction = any_contraction_of(node, graph)
    assert contraction is not None, "the online form holds products only"
    types = [graph.type_of(v).dtype for v in (contraction.left, contraction.right)]
    if types[0].name not in NARROW or matrix_arithmetic(contraction, types[1], types[1]) != "":
        return Rejected(Reason.UNSUPPORTED_OP, f"%{node.name} multiplies {types[0]} by {types[1]} with precision {contraction.precision}")
    extents = dict(zip(contraction.axes, node.type.shape, strict=True))
    operand = operand_of(graph, layouts, contraction, side, extents)
    if isinstance(operand, Rejected):
        return operand
    sizes, digits = {**extents, INNER: contraction.inner}, dict[str, Affine]()
    if operand.element is not None:
        split = with_digits(graph, layouts, operand, sizes)
        digits_of_leads = None if split is None else digit_sizes(split[1], sizes)
        if split is None or digits_of_leads is None:
            return _paged(graph, layouts, operand, sizes, walked, _leads(contraction))
        operand, digits = split[0], dict(split[1])
        sizes |= digits_of_leads
    return WalkOperand(operand, sizes, _leads(contraction), digits)


def _paged(graph: Graph, layouts: Layouts, operand: Operand, sizes: Mapping[str, int], walked: str, leads: tuple[str, ...]
           ) -> WalkOperand | Rejected:
    """An operand in pages along the walked axis, or why there are none."""
    paged = with_pages(graph, layouts, operand, sizes, walked) if walked else ""
    if isinstance(paged, str):
        why = paged or f"%{operand.value} is computed, and tensor copies bring operands from memory"
        return Rejected(Reason.UNSUPPORTED_OP, why)
    strided, digits, pages = paged
    of_digits = digit_sizes(digits, sizes)
    if of_digits is None:
        return Rejected(Reason.UNSUPPORTED_OP, f"%{strided.value} lies at no one distance along the axes of its product")
    num_pages = graph.type_of(strided.value).shape[pages.dimension]
    return WalkOperand(strided, {**sizes, **of_digits, PAGE: num_pages}, leads, digits, pages)


def _leads(contraction: Contraction) -> tuple[str, ...]:
    assert contraction.axes[-2:] == (ROW, COLUMN)
    return contraction.axes[:-2]
