"""An expression as a flat product: its factors, whether each divides, the conditions under which it is not zero, and its conversions.

    (j <= i ? f32(bf16(a[i, k] * b[k, j])) : 0) / 8      ->      a[i, k], b[k, j], divided by 8;  where j <= i;  rounded to bf16

Maps that multiply are read through where their users gain by it: as the whole expression, or where one factor reads fewer axes than the
product and nothing else needs the product.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tilefuse.base.search.limits import SEARCH
from tilefuse.ir.affine import NO_EXTENT, Affine, number
from tilefuse.ir.dtype import DTYPES, DType
from tilefuse.ir.graph import Graph, Node
from tilefuse.ir.ops import dtype_of
from tilefuse.ir.scalar import Bound, Call, Const, Expr, Guard, Index, Read, is_cast, substitute_axes, walk
from tilefuse.passes.analyses import affines_of


@dataclass(frozen=True, slots=True)
class Term:
    """One factor of a flat product. divides: the product is divided by it."""

    element: Expr
    divides: bool


@dataclass(slots=True)
class FlatProduct:
    """An expression written as a product.

    terms     the factors, from left to right
    negative  whether the product's sign is turned
    bounds    conditions under which the product counts; elsewhere the expression is zero, also where a factor is not finite
    opened    maps that were read through and compute something, in order of occurrence
    narrowest type of the fewest bits that the product has before it is used; the expression's own type where it is never converted
    """

    narrowest: DType
    terms: list[Term] = field(default_factory=list)
    negative: bool = False
    bounds: list[Bound] = field(default_factory=list)
    opened: list[str] = field(default_factory=list)


def flat_product(e: Expr, graph: Graph, extents: Mapping[str, int]) -> FlatProduct:
    """The expression as a flat product; one factor where it multiplies nothing. extents: those of its axes."""
    flattener = _Flattener(graph, extents)
    flat = FlatProduct(flattener.dtype(e))
    flattener.add(flat, e, False, True, 0)
    return flat


def through_views(e: Expr, graph: Graph, extents: Mapping[str, int]) -> Expr:
    """An element with its read of a view replaced by the read of the viewed value, behind conversions too. extents: those of its axes."""
    return _Flattener(graph, extents).through_views(e)


def axes_of(e: Expr) -> frozenset[str]:
    """All axes on which an expression's value or its reads depend."""
    axes: set[str] = set()
    for x in walk(e):
        for a in affines_of(x):
            axes |= a.axes()
    return frozenset(axes)


@dataclass(frozen=True, slots=True)
class _Opened:
    """The expression behind conversions and maps; `names` of the maps that compute, `dtypes` of the conversions."""

    inner: Expr
    names: tuple[str, ...]
    dtypes: tuple[DType, ...]


class _Flattener:
    def __init__(self, graph: Graph, extents: Mapping[str, int]) -> None:
        self.graph = graph
        # Simplification needs positive extents; where one is zero nothing is read.
        self.extents = None if 0 in extents.values() else extents

    def dtype(self, e: Expr) -> DType:
        return dtype_of(e, lambda v: self.graph.type_of(v).dtype)

    def add(self, flat: FlatProduct, e: Expr, divides: bool, whole: bool, depth: int) -> None:
        """Adds the factors of `e` to the product. whole: the product is `e` and nothing else."""
        opened = self._open(e, whole, depth)
        if opened is None:
            flat.terms.append(Term(self.through_views(e), divides))
            return
        flat.opened += [n for n in opened.names if n not in flat.opened]
        flat.narrowest = min(flat.narrowest, self.dtype(opened.inner), *opened.dtypes, key=lambda t: t.bits)
        match opened.inner:
            case Call("mul", (a, b)):
                self.add(flat, a, divides, False, depth + 1)
                self.add(flat, b, divides, False, depth + 1)
            case Call("div", (a, b)):
                self.add(flat, a, divides, False, depth + 1)
                self.add(flat, b, not divides, False, depth + 1)
            case Call("neg", (a,)):
                flat.negative = not flat.negative
                self.add(flat, a, divides, whole, depth + 1)
            case Guard(bounds, then, _):
                flat.bounds += bounds
                self.add(flat, then, divides, whole, depth + 1)
            case Call("select", (condition, then, _)):
                flat.bounds += _bounds_of(condition) or ()
                self.add(flat, then, divides, whole, depth + 1)

    def _open(self, e: Expr, whole: bool, depth: int) -> _Opened | None:
        """The product behind conversions and maps; None for a factor. Source of the rule for maps: the module's text."""
        names: list[str] = []
        dtypes: list[DType] = []
        for _ in range(SEARCH.domain.factor_maps - depth):
            if self._multiplies(e, whole):
                return _Opened(e, tuple(names), tuple(dtypes))
            if is_cast(e) and isinstance(e, Call) and _keeps_numbers(self.dtype(e.args[0]), DTYPES[e.fn]):
                dtypes.append(DTYPES[e.fn])
                e = e.args[0]
                continue
            body = self._body_behind(e)
            if body is None or not isinstance(e, Read):
                return None
            if not isinstance(body, Read):
                if not whole and not self._pays(e, body):
                    return None
                names.append(e.value)
            e = body
        return None

    def _multiplies(self, e: Expr, whole: bool) -> bool:
        match e:
            case Call("mul" | "div", _):
                return self.dtype(e).kind != "bool"
            case Call("neg", _):
                return True
            case Guard(_, _, Const() as otherwise):
                return whole and otherwise.value == 0
            case Call("select", (condition, _, Const() as otherwise)):
                return whole and otherwise.value == 0 and _bounds_of(condition) is not None
        return False

    def _pays(self, read: Read, body: Expr) -> bool:
        """Whether a factor that is read from a map is better written as the map's product, whose parts read fewer axes."""
        if len(self.graph.users_by_name[read.value]) > 1 or read.value in self.graph.escaping:
            return False
        while is_cast(body) and isinstance(body, Call):
            body = body.args[0]
        match body:
            case Call("mul" | "div", (a, b)):
                return axes_of(a) != axes_of(b)
        return False

    def through_views(self, e: Expr) -> Expr:
        """As the function of this name."""
        if isinstance(e, Call) and is_cast(e):
            inner = self.through_views(e.args[0])
            return e if inner is e.args[0] else Call(e.fn, (inner,))
        while isinstance(body := self._body_behind(e), Read):
            e = body
        return e

    def _body_behind(self, e: Expr) -> Expr | None:
        """The element that a read finds in a map, over the reader's axes; None for other values, and for maps that cannot multiply."""
        node = self.graph.node_by_name.get(e.value) if isinstance(e, Read) else None
        if not isinstance(e, Read) or node is None or node.kind != "map" or node.body is None or not _may_multiply(node.body):
            return None
        return _element(node, e, self.extents)


def _may_multiply(body: Expr) -> bool:
    """Whether a body, looked at before its axes are replaced, is a view or may be a product."""
    while isinstance(body, Call) and is_cast(body):
        body = body.args[0]
    return isinstance(body, Read | Guard) or isinstance(body, Call) and body.fn in ("mul", "div", "neg", "select")


def _element(node: Node, read: Read, extents: Mapping[str, int] | None) -> Expr:
    assert node.body is not None
    return substitute_axes(node.body, dict(zip(node.axes, read.index, strict=True)), extents)


def _keeps_numbers(source: DType, target: DType) -> bool:
    """Whether a conversion only rounds or widens: conversions to 8 bits are deliberate quantisation, those between kinds change values."""
    return source.kind == target.kind and source.kind in ("float", "int", "uint") and min(source.bits, target.bits) > 8


def _bounds_of(condition: Expr) -> tuple[Bound, ...] | None:
    """A condition on positions as bounds that hold together; None where it depends on data or is no such conjunction."""
    match condition:
        case Call("logical_and" | "bit_and", (a, b)):
            first, second = _bounds_of(a), _bounds_of(b)
            return None if first is None or second is None else (*first, *second)
        case Call("ge" | "gt" | "le" | "lt" | "eq" as fn, (a, b)):
            left, right = _position(a), _position(b)
            if left is None or right is None:
                return None
            low_by_fn: Mapping[str, tuple[Callable[[Affine, Affine], Affine], int, int]] = {
                "ge": (_difference, 0, NO_EXTENT), "gt": (_difference, 1, NO_EXTENT), "eq": (_difference, 0, 1),
                "le": (_turned_difference, 0, NO_EXTENT), "lt": (_turned_difference, 1, NO_EXTENT)}
            difference, low, high = low_by_fn[fn]
            return (Bound(difference(left, right), low, high),)
    return None


def _difference(a: Affine, b: Affine) -> Affine:
    return a - b


def _turned_difference(a: Affine, b: Affine) -> Affine:
    return b - a


def _position(e: Expr) -> Affine | None:
    match e:
        case Index(affine):
            return affine
        case Const(_, dtype) if dtype.name == "i64":
            return number(int(e.value))
    return None
