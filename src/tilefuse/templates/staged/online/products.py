"""Products along an axis that is walked in tiles: reductions over it, and products whose inner axis it is, with all of it never on chip.

    s[r, c] = sum q[r, k] k[c, k]          scores: products whose columns are walked
    m[r]    = max over c of x(s)           totals: reductions along c
    t[r]    = sum over c of exp(x - m)
    y[r, j] = sum over c of (exp(x - m) / t[r]) v[c, j]      weighted: products along c

What is relative to a maximum that still grows is rescaled by exp(old - new) whenever it does; a factor that is only known at the end, such
as 1 / t, is applied at the end. Everything here is about expressions: node names fall away, axes become LEAD, ROW and WALK (and WIDTH for
the columns of weighted products). Source: Milakov and Gimelshein 2018, arXiv:1805.02867; Rabe and Staats 2021, arXiv:2112.05682.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod

from tilefuse.base.candidate import Reason, Rejected
from tilefuse.base.construction import quickly_built
from tilefuse.base.memo import remembered_for_last
from tilefuse.domain.contraction import INNER, RESULT_DTYPE, Contraction, any_contraction_of, contraction_of
from tilefuse.ir.affine import NO_EXTENT, Affine, axis, delinearise, number, row_major_strides, substitute
from tilefuse.ir.dtype import DTYPES, F32, F64, DType
from tilefuse.ir.graph import Graph, Node
from tilefuse.ir.ops import SCALAR_OPS, dtype_of
from tilefuse.ir.scalar import Bound, Call, Const, Expr, Guard, Index, Lookup, Read, cast, const, index_maps, walk
from tilefuse.templates.staged.online.late import ZERO_WHERE
from tilefuse.templates.staged.online.permuted import permuted_point
from tilefuse.templates.staged.online.shifts import relative_to_top, same_total
from tilefuse.templates.staged.online.total import Total

# Axes of every expression of the form: the number of the lead place (all lead dimensions as one), and the places in the two products.
LEAD, ROW, WALK, WIDTH = "lead", "row", "walk", "width"
NARROW = ("f16", "bf16")
# Values that are written, with their elements.
Results = tuple[tuple[str, Expr], ...]


@quickly_built
@dataclass(frozen=True, slots=True)
class Operand:
    """One operand of a product as an expression over LEAD and the two axes named; `rows` is the axis that memory's rows go along."""

    value: str
    body: Expr
    dtype: DType
    rows: str
    columns: str


@dataclass(frozen=True)
class Score:
    """A product whose columns are walked: left over ROW and INNER, right over WALK and INNER."""

    value: str
    left: Operand
    right: Operand
    inner: int
    bias: Expr | None = None


@dataclass(frozen=True)
class Weighted:
    """A product along the walked axis: the powers `total` (as a sum would have them) times `right` over WALK and WIDTH."""

    value: str
    total: Total
    right: Operand
    width: int
    bias: Expr | None = None


@dataclass(frozen=True)
class OnlineForm:
    """A pattern in which one axis is walked. Units: extents in elements; `num_leads` counts lead places.

    row_results, width_results: (value, its element) of what is written, over LEAD and ROW, and WIDTH as well
    element_results: the same of values with an element for each score, over LEAD, ROW and WALK
    reads, points: the read by which expressions know a value of the walk, and the subscripts of each result
    sum_dtype: type in which products and sums are held
    """

    graph: Graph
    num_leads: int
    num_rows: int
    length: int
    scores: tuple[Score, ...]
    totals: tuple[Total, ...]
    weighted: tuple[Weighted, ...]
    row_results: Results
    width_results: Results
    reads: Mapping[str, Read]
    points: Mapping[str, tuple[Affine, ...]]
    sum_dtype: DType
    element_results: Results = ()

    @property
    def tops(self) -> tuple[Total, ...]:
        """The running maxima, in order."""
        return tuple(t for t in self.totals if t.monoid == "max")

    def is_integer(self, value: str) -> bool:
        """Whether a value is one of memory that holds integers."""
        return value not in self.graph.node_by_name and self.graph.type_of(value).dtype.is_integer

    def products_in(self, e: Expr) -> tuple[int, ...]:
        """Numbers of the weighted products whose results an element reads; they have one width. All of them for an element without any."""
        values = {x.value for x in walk(e) if isinstance(x, Read)}
        return tuple(n for n, w in enumerate(self.weighted) if w.value in values) or tuple(range(len(self.weighted)))

    def relative(self, top: str) -> tuple[Total, ...]:
        """Sums and weighted products' elements that are relative to a maximum."""
        return tuple(t for t in (*self.sums, *(w.total for w in self.weighted)) if t.top == top)

    @property
    def sums(self) -> tuple[Total, ...]:
        """The running sums, in order."""
        return tuple(t for t in self.totals if t.monoid == "sum")


@dataclass(frozen=True)
class _Parts:
    """An element as `early`, relative to `top`, times (or divided by) row values; fields as of `Total`."""

    early: Expr
    top: str = ""
    shift: Expr | None = None
    late: tuple[tuple[str, Expr], ...] = ()


def online_form(graph: Graph) -> OnlineForm | Rejected:
    """The form of a pattern that writes no elements of scores, or why it has none. Otherwise as `form_with_elements`."""
    form = form_with_elements(graph)
    if isinstance(form, OnlineForm) and form.element_results:
        return Rejected(Reason.DOMAIN_MISMATCH, f"%{form.element_results[0][0]} is written, and has other elements than the walk gives")
    return form


@remembered_for_last
def form_with_elements(graph: Graph) -> OnlineForm | Rejected:
    """The form of a pattern given as a graph of its own, or why it has none.

    Exact: no. Sums are in another order, rescaled, and divided after the product instead of before; what stays inside is not rounded to
    16 bits where the graph would.
    """
    return _Finder(graph).find()


def shape_at(shape: tuple[int, ...], last: tuple[Affine, ...]) -> tuple[Affine, ...]:
    """Subscripts of the element of a value of `shape` at lead place LEAD and at `last` in its last dimensions."""
    leads = shape[:len(shape) - len(last)]
    places: list[Affine] = []
    for n, (extent, stride) in enumerate(zip(leads, row_major_strides(leads), strict=True)):
        place = axis(LEAD) // stride if stride > 1 else axis(LEAD)
        places.append(number(0) if extent == 1 else place % extent if n and prod(leads[:n]) > 1 else place)
    return (*places, *last)


def keeps_sums(node: Node, graph: Graph) -> bool:
    """Whether a product of 16-bit values has its sums as results, in f32."""
    types = {graph.type_of(v).dtype.name for v in node.operands[:2]}
    return node.attribute(RESULT_DTYPE) == F32.name and len(types) == 1 and types <= set(NARROW)


class _Finder:
    """State of one recognition. `problem`: the first thing that does not fit."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.nodes = graph.node_by_name
        self.problem: Rejected | None = None
        self.kinds: dict[str, frozenset[str]] = {}  # what a value depends on: "wide", "row", "width"
        self.widths: dict[str, frozenset[int]] = {}  # columns of the weighted products that a value depends on
        self.at: dict[str, tuple[Affine, ...]] = {}  # values that expressions keep as reads, and at which subscripts
        self.extents: dict[str, int] = {}
        self.expanded: dict[tuple[str, tuple[Affine, ...]], Expr] = {}
        self.scores: list[tuple[Node, Contraction]] = []
        self.totals: dict[str, Total] = {}
        self.same: dict[str, str] = {}  # totals that are equal to an earlier one
        self.weighted: list[Weighted] = []
        self.points: dict[str, tuple[Affine, ...]] = {}

    def fail(self, reason: Reason, detail: str) -> None:
        self.problem = self.problem or Rejected(reason, detail)

    def find(self) -> OnlineForm | Rejected:
        for node in self.graph.nodes:
            self._node(node)
            if self.problem is not None:
                return self.problem
        if not self.scores or not (self.totals or self.weighted):
            return Rejected(Reason.LIBRARY_CALL, "no product whose columns are reduced or multiplied again")
        rows, wide, elements = self._results()
        scores = tuple(self._score(n, c) for n, c in self.scores)
        if self.problem is not None:
            return self.problem
        return OnlineForm(self.graph, self.extents[LEAD], self.extents[ROW], self.extents[WALK], scores, tuple(self.totals.values()),
                          tuple(self.weighted), rows, wide, {v: Read(v, at) for v, at in self.at.items()}, self.points,
                          self._sum_dtype(), elements)

    def _sum_dtype(self) -> DType:
        return F64 if self.scores[0][0].type.dtype == F64 else F32

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def _node(self, node: Node) -> None:
        read = frozenset().union(*(self.kinds.get(v, frozenset()) for v in node.reads()))
        self.widths[node.name] = frozenset().union(*(self.widths.get(v, frozenset()) for v in node.reads()))
        if not node.type.num_elements or any(e == 0 for _, e in node.over):
            return self.fail(Reason.DOMAIN_MISMATCH, f"%{node.name} is empty")
        match node.category:
            case "library":
                self._product(node)
            case "reduce":
                self._reduction(node, read)
            case "map" | "gather":
                self.kinds[node.name] = read
            case _:
                self.fail(Reason.UNSUPPORTED_OP, f"%{node.name} is a {node.category}: no walk along an axis holds it")
        return None

    def _product(self, node: Node) -> None:
        contraction = any_contraction_of(node, self.graph) if keeps_sums(node, self.graph) else contraction_of(node, self.graph)
        if contraction is None:
            return self.fail(Reason.LIBRARY_CALL, f"%{node.name} is a library call")
        left, right = (self.kinds.get(v, frozenset()) for v in (contraction.left, contraction.right))
        if right or "width" in left or left and "wide" not in left:
            return self.fail(Reason.NEEDS_GRID_SYNC, f"%{node.name} multiplies by what the walk gives only at its end")
        types = {self.graph.type_of(v).dtype.name for v in (contraction.left, contraction.right)}
        is_one = node.type.dtype.name in types or not left and keeps_sums(node, self.graph)
        if len(types) > 1 or types & {"f16", "bf16", "f32", "f64"} != types or not is_one:
            return self.fail(Reason.UNSUPPORTED_OP, f"%{node.name} is a product of {' and '.join(sorted(types))}")
        shape = node.type.shape
        if not left:
            extents = {LEAD: prod(shape[:-2]), ROW: shape[-2], WALK: shape[-1]}
            if self.scores and (extents != self.extents or node.type.dtype != self.scores[0][0].type.dtype):
                return self.fail(Reason.DOMAIN_MISMATCH, f"%{node.name} has other rows and columns than %{self.scores[0][0].name}")
            if shape[-1] == 1:
                return self.fail(Reason.DOMAIN_MISMATCH, f"%{node.name} has one column: nothing to walk")
            self.extents = extents
            self.scores.append((node, contraction))
            self.kinds[node.name] = frozenset(["wide"])
            self.at[node.name] = self._simple(shape_at(shape, (axis(ROW), axis(WALK))))
            return None
        if prod(shape[:-2]) != self.extents[LEAD] or shape[-2] != self.extents[ROW] or contraction.inner != self.extents[WALK]:
            return self.fail(Reason.DOMAIN_MISMATCH, f"%{node.name} does not go along the columns of %{self.scores[0][0].name}")
        at = self._places(contraction, shape) | {"row": axis(ROW), "column": axis(WIDTH), INNER: axis(WALK)}
        index = tuple(substitute(e, at, self.extents) for e in contraction.left_index)
        parts = self._parts(node.name, self._typed(self._read(contraction.left, index))[0])
        if parts is None:
            return None
        self.extents[WIDTH] = shape[-1]
        self.widths[node.name] = frozenset((shape[-1],))
        right_at = self._operand(contraction, shape, "right", WALK, WIDTH)
        total = Total(contraction.left, "sum", self._sum_dtype(), parts.early, parts.top, parts.shift, parts.late)
        self.weighted.append(Weighted(node.name, total, right_at, shape[-1], self._bias(contraction, at)))
        self.kinds[node.name] = frozenset(["width"])
        self.at[node.name] = self._simple(shape_at(shape, (axis(ROW), axis(WIDTH))))
        return None

    def _places(self, contraction: Contraction, shape: tuple[int, ...]) -> dict[str, Affine]:
        leads = self._simple(shape_at(shape, (axis(ROW), axis(WALK))))[:-2]
        return dict(zip(contraction.axes, leads, strict=False))

    def _score(self, node: Node, contraction: Contraction) -> Score:
        at = self._places(contraction, node.type.shape) | {"row": axis(ROW), "column": axis(WALK)}
        left = self._operand(contraction, node.type.shape, "left", ROW, INNER)
        right = self._operand(contraction, node.type.shape, "right", WALK, INNER)
        return Score(node.name, left, right, contraction.inner, self._bias(contraction, at))

    def _bias(self, contraction: Contraction, at: dict[str, Affine]) -> Expr | None:
        if not contraction.bias:
            return None
        return self._read(contraction.bias, tuple(substitute(e, at, self.extents) for e in contraction.bias_index))

    def _operand(self, contraction: Contraction, shape: tuple[int, ...], which: str, rows: str, columns: str) -> Operand:
        """An operand; `rows` and `columns` are exchanged where memory runs along `rows`."""
        value, index = (contraction.left, contraction.left_index) if which == "left" else (contraction.right, contraction.right_index)
        # "row", "column" and INNER of the contraction under the names of the form.
        renamed = {"row": axis(ROW), "column": axis(columns if columns == WIDTH else WALK),
                   INNER: axis(INNER if INNER in (rows, columns) else WALK)}
        at = self._places(contraction, shape) | renamed
        body = self._read(value, tuple(substitute(e, at, self.extents | {INNER: contraction.inner}) for e in index))
        last = [e.index[-1] for e in walk(body) if isinstance(e, Read) and e.index]
        turned = sum(e.coefficient(rows) == 1 for e in last) > sum(e.coefficient(columns) == 1 for e in last)
        dtype = self.graph.type_of(value).dtype
        return Operand(value, body, dtype, *((columns, rows) if turned else (rows, columns)))

    def _reduction(self, node: Node, read: frozenset[str]) -> None:
        if "wide" not in read or "width" in read or not self.extents:
            return self.fail(Reason.NEEDS_GRID_SYNC, f"%{node.name} reduces something else than the walked axis")
        at = self._row_point(node)
        if at is None or [e for _, e in node.over] != [self.extents[WALK]]:
            return self.fail(Reason.DOMAIN_MISMATCH, f"%{node.name} does not reduce the walked axis alone")
        if node.detail not in ("max", "sum"):
            return self.fail(Reason.REDUCTION_MISMATCH, f"%{node.name} is a {node.kind}, which nothing rescales")
        assert node.body is not None
        body, dtype = self._typed(self._body(node, at, {node.over[0][0]: axis(WALK)}))
        if not dtype.is_float:
            return self.fail(Reason.UNSUPPORTED_OP, f"%{node.name} reduces {dtype}")
        parts = self._parts(node.name, body)
        if parts is None:
            return None
        if node.detail == "max" and (parts.top or parts.late):
            return self.fail(Reason.REDUCTION_MISMATCH, f"%{node.name} is the maximum of what is relative to another")
        total = relative_to_top(Total(node.name, node.detail, dtype, parts.early, parts.top, parts.shift, parts.late))
        same = same_total(self.totals, total)
        if same:
            self.same[node.name] = same
        else:
            self.totals[node.name] = total
        self.kinds[node.name] = frozenset(["row"])
        self.at[node.name] = at
        return None

    def _row_point(self, node: Node) -> tuple[Affine, ...] | None:
        """Subscripts of a value with one element a row, its last dimensions those of the rows, as heads that share keys and their rows."""
        shape = node.type.shape
        for count in range(1, len(shape) + 1):
            last = shape[len(shape) - count:]
            if prod(last) == self.extents[ROW] and self._is_at(shape, last):
                return self._simple(shape_at(shape, delinearise(axis(ROW), last, self.extents)))
        return None

    def _is_at(self, shape: tuple[int, ...], last: tuple[int, ...]) -> bool:
        rest = len(shape) - len(last)
        return rest >= 0 and shape[rest:] == last and prod(shape[:rest]) == self.extents[LEAD]

    def _results(self) -> tuple[Results, Results, Results]:
        """Row results, results with columns of weighted products, and elements of scores."""
        rows: list[tuple[str, Expr]] = []
        wide: list[tuple[str, Expr]] = []
        elements: list[tuple[str, Expr]] = []
        all_widths = frozenset(w.width for w in self.weighted)
        for name in self.graph.results:
            node, kinds = self.nodes[name], self.kinds[name]
            widths_read = self.widths[name] or all_widths
            if len(widths_read) == 1:
                self.extents[WIDTH], = widths_read
            elif "width" in kinds:
                self.fail(Reason.DOMAIN_MISMATCH, f"%{name} combines products of {' and '.join(map(str, sorted(widths_read)))} columns")
            if kinds == {"row"}:
                at = self._row_point(node)
                if at is not None:
                    self.points[name] = at
                    rows.append((name, self._typed(self._read(name, at))[0]))
                    continue
            elif kinds == {"wide"} and node.category == "map" and self._is_at(node.type.shape, (self.extents[ROW], self.extents[WALK])):
                at = self._simple(shape_at(node.type.shape, (axis(ROW), axis(WALK))))
                self.points[name] = at
                elements.append((name, self._typed(self._read(name, at))[0]))
                continue
            elif kinds and "wide" not in kinds and self._is_at(node.type.shape, (self.extents[ROW], self.extents.get(WIDTH, 0))):
                at = self._simple(shape_at(node.type.shape, (axis(ROW), axis(WIDTH))))
                self.points[name] = at
                wide.append((name, self._typed(self._read(name, at))[0]))
                continue
            elif "width" in kinds and "wide" not in kinds and node.category == "map":
                widths = {w.value: self.at[w.value] for w in self.weighted}
                point = permuted_point(self.graph, node, widths)
                if point is not None:
                    at = self._simple(point[a] for a in node.axes)
                    self.points[name] = at
                    wide.append((name, self._typed(self._read(name, at))[0]))
                    continue
            self.fail(Reason.DOMAIN_MISMATCH, f"%{name} is written, and has other elements than the walk gives")
        return tuple(rows), tuple(wide), tuple(elements)

    # -- expressions -----------------------------------------------------------------------------------------------------

    def _simple(self, index: Iterable[Affine]) -> tuple[Affine, ...]:
        single = {a: number(0) for a, extent in self.extents.items() if extent == 1}
        return tuple(substitute(e, single, self.extents) for e in index)

    def _read(self, value: str, index: tuple[Affine, ...]) -> Expr:
        """An element of a value with the bodies of inner maps written out."""
        axes_of_read = self.at.get(value)
        index = self._simple(index)
        if axes_of_read is not None:
            if index != axes_of_read:
                self.fail(Reason.DOMAIN_MISMATCH, f"%{value} is read at another element than the one at hand")
            first = self.same.get(value, value)
            return Read(first, self.at[first])
        node = self.nodes.get(value)
        if node is None:
            return Read(value, index)
        expanded = self.expanded.get((value, index))
        if expanded is None:
            expanded = self.expanded[value, index] = self._body(node, index, {})
        return expanded

    def _body(self, node: Node, index: tuple[Affine, ...], over: dict[str, Affine]) -> Expr:
        assert node.body is not None
        return self._written_out(node.body, dict(zip(node.axes, index, strict=True)) | over)

    def _written_out(self, e: Expr, at: dict[str, Affine]) -> Expr:
        extents = self.extents | {INNER: NO_EXTENT}
        match e:
            case Read(value, index):
                return self._read(value, tuple(substitute(x, at, extents) for x in index))
            case Index(affine):
                return Index(substitute(affine, at, extents))
            case Call(fn, args):
                return Call(fn, tuple(self._written_out(a, at) for a in args))
            case Guard(facts, then, otherwise):
                new = tuple(Bound(substitute(b.index, at, extents), b.low, b.high) for b in facts)
                return Guard(new, self._written_out(then, at), self._written_out(otherwise, at))
            case Lookup(value, subscripts):
                if value in self.nodes:
                    self.fail(Reason.NEEDS_GRID_SYNC, f"elements of %{value} are looked up in the same kernel")
                return Lookup(value, tuple(self._written_out(s, at) for s in subscripts))
        return e

    def _typed(self, e: Expr) -> tuple[Expr, DType]:
        """`e` in the precision that its values have inside the kernel, and its type: roundings to 16 bits fall away."""
        match e:
            case Const():
                return e, e.dtype
            case Read(value, _):
                if value in self.totals:
                    return e, self.totals[value].dtype
                return e, self._sum_dtype() if value in self.at else self.graph.type_of(value).dtype
            case Call(fn, (inner,)) if fn in DTYPES:
                operand, dtype = self._typed(inner)
                if operand != inner and dtype.is_float and fn in NARROW or dtype.name == fn:
                    return operand, dtype
                stays_wide = fn in NARROW and dtype == F32 and self._inside(inner)
                return (operand, dtype) if stays_wide else (cast(operand, DTYPES[fn]), DTYPES[fn])
            case Call(fn, args):
                typed = [self._typed(a) for a in args]
                floats = {d.name for _, d in typed if d.is_float}
                if len(floats) > 1:
                    widest = F64 if "f64" in floats else F32
                    typed = [(_as(a, widest), widest) if d.is_float and d != widest else (a, d) for a, d in typed]
                operand = Call(fn, tuple(a for a, _ in typed))
                op = SCALAR_OPS[fn]
                return operand, typed[1][1] if fn == "select" else typed[0][1] if op.result == "same" else DTYPES[op.result]
            case Guard(facts, then, otherwise):
                (a, x), (b, y) = self._typed(then), self._typed(otherwise)
                if x != y and x.is_float and y.is_float:
                    widest = F64 if F64 in (x, y) else F32
                    a, b, x = _as(a, widest), _as(b, widest), widest
                return Guard(facts, a, b), x
        return e, dtype_of(e, lambda v: self.graph.type_of(v).dtype)

    def _inside(self, e: Expr) -> bool:
        """Whether an element is computed from what the kernel computes: then its rounding to 16 bits is left out."""
        return any(isinstance(x, Read) and x.value in self.at for x in walk(e))

    # -- what a growing maximum does to an element -----------------------------------------------------------------------

    def _parts(self, name: str, e: Expr) -> _Parts | None:
        parts = self._split(e) if self.problem is None else None
        if parts is None:
            self.fail(Reason.REDUCTION_MISMATCH, f"%{name} depends on reductions in a way that no factor makes good when they change")
        return parts

    def _split(self, e: Expr) -> _Parts | None:
        """`e` as a factor that is known while walking and row values that are known at the end; None where it is no such product."""
        if not self._reads_totals(e):
            return _Parts(e)
        match e:
            case Call("exp", (Call("sub", (x, shift)),)) if not self._reads_totals(x) and self._is_row(shift):
                read = {r.value for r in walk(shift) if isinstance(r, Read) and r.value in self.totals}
                top = read.pop()
                return _Parts(e, top, shift) if not read and self.totals[top].monoid == "max" else None
            case Call("mul", (a, b)):
                for factor, other in ((a, b), (b, a)):
                    if self._is_row(other):
                        inner = self._split(factor)
                        return inner and replace(inner, late=(*inner.late, ("mul", other)))
                one, two = self._split(a), self._split(b)
                if one is None or two is None or one.top and two.top:
                    return None
                return _Parts(Call("mul", (one.early, two.early)), one.top or two.top, one.shift or two.shift, (*one.late, *two.late))
            case Call("div", (a, b)):
                inner = self._split(a)
                if inner is None or self._is_row(b):
                    return inner and replace(inner, late=(*inner.late, ("div", b)))
                return None if self._reads_totals(b) else replace(inner, early=Call("div", (inner.early, b)))
            case Call("select", (condition, Const() as zero, x)) if zero.value == 0 and self._is_late_condition(condition):
                inner = self._split(x)
                return inner and replace(inner, late=(*inner.late, (ZERO_WHERE, condition)))
            case Call("select", (condition, x, Const() as zero)) if zero.value == 0 and self._is_late_condition(condition):
                inner = self._split(x)
                return inner and replace(inner, late=(*inner.late, (ZERO_WHERE, Call("logical_not", (condition,)))))
            case Call("select", (condition, a, b)) if not self._reads_totals(condition):
                return self._either(a, b, lambda x, y: Call("select", (condition, x, y)))
            case Guard(facts, a, b):
                return self._either(a, b, lambda x, y: Guard(facts, x, y))
            case Call("add" | "sub" as fn, (a, b)):
                return self._either(a, b, lambda x, y: Call(fn, (x, y)))
            case Call(fn, (a,)) if fn == "neg" or fn in ("f32", "f64"):
                inner = self._split(a)
                return inner and replace(inner, early=Call(fn, (inner.early,)))
        return None

    def _either(self, a: Expr, b: Expr, join: Callable[[Expr, Expr], Expr]) -> _Parts | None:
        """Two elements that are relative to the same maximum and wait for the same row values; zero is relative to anything."""
        one, two = self._split(a), self._split(b)
        if one is None or two is None:
            return None
        for x, y in ((one, two), (two, one)):
            if isinstance(x.early, Const) and x.early.value == 0 and not x.top:
                return replace(y, early=join(one.early, two.early))
        same = (one.top, one.shift, one.late) == (two.top, two.shift, two.late)
        return replace(one, early=join(one.early, two.early)) if same else None

    def _reads_totals(self, e: Expr) -> bool:
        return any(isinstance(x, Read) and x.value in self.totals for x in walk(e))

    def _is_late_condition(self, e: Expr) -> bool:
        """Whether a condition of a row is known only at the end."""
        return self._reads_totals(e) and self._is_row(e)

    def _is_row(self, e: Expr) -> bool:
        """Whether an element is the same along the walked axis."""
        for x in walk(e):
            facts = tuple(b.index for b in x.bounds) if isinstance(x, Guard) else ()
            if any(WALK in i.axes() for i in (*index_maps(x), *facts)) or isinstance(x, Lookup):
                return False
        return True


def _as(e: Expr, dtype: DType) -> Expr:
    """`e` converted; constants at once."""
    return const(e.value, dtype) if isinstance(e, Const) else cast(e, dtype)
