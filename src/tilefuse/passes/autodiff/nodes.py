"""Gradients of nodes by kind: the part that a sum, a maximum, a scan or a scatter passes on to its elements."""
from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilefuse.base.errors import InternalError
from tilefuse.ir.affine import Affine, axis, is_within, linearise, number, row_major_strides, simplify
from tilefuse.ir.dtype import DTYPES, I32, I64
from tilefuse.ir.graph import Node, Type
from tilefuse.ir.scalar import Bound, Const, Expr, Guard, Index, Lookup, Read, call, cast, checked_extent, const, substitute_axes, walk
from tilefuse.passes.autodiff.scalar import BodyAdjoint, ReadAdjoint, guarded, rounded_back, simplified_call
from tilefuse.passes.autodiff.sums import Gradients


def body_gradients(gradients: Gradients, node: Node) -> None:
    """Contributes the gradients of a map, gather, reduction or scan to the values that its body reads."""
    assert node.body is not None
    value: Expr | None = None
    match node.category:
        case "map" | "gather":
            gradient = gradients.at(node.name, node.axes)
            value = Read(node.name, gradients.here(node.name))
        case "reduce":
            gradient = _REDUCTIONS[node.detail](gradients, node)
        case "scan":
            gradient = _SCANS[node.detail](gradients, node)
        case _:
            raise InternalError(f"no gradient rule for the kind {node.kind}", where=f"%{node.name}")
    _contribute(gradients, node, gradient, value)


def _contribute(gradients: Gradients, node: Node, gradient: Expr, value: Expr | None) -> None:
    """Adds to all values that the body reads, given the gradient of the body over the node's domain."""
    assert node.body is not None
    extents = node.extents
    for item in BodyAdjoint(gradients.active, gradients.read_dtype, node.span, gradients.again).run(node.body, gradient, value):
        if isinstance(item.read, Read):
            gradients.add_read(item.read, extents, item.adjoint)
        else:
            _add_lookup(gradients, item, item.read, extents)


def _add_lookup(gradients: Gradients, item: ReadAdjoint, read: Lookup, extents: dict[str, int]) -> None:
    """A lookup clamps its subscripts, so its gradient is added at the clamped place. Outside of its guards nothing is added, since the
    values that its subscripts read may lie outside there."""
    shape = gradients.type_of(read.value).shape
    target = tuple(_clamped(gradients, s, extent) for s, extent in zip(read.subscripts, shape, strict=True))
    if any(isinstance(x, Read) for s in read.subscripts for x in walk(s)):
        target = tuple(guarded(t, item.guards, const(-1, gradients.dtype_of(t))) for t in target)
    have, work = gradients.read_dtype(read.value), gradients.work(read.value)
    gradients.add_scatter(read.value, extents, target, rounded_back(item.adjoint, have, work, gradients.read_dtype))


def _clamped(gradients: Gradients, subscript: Expr, extent: int) -> Expr:
    checked = checked_extent(subscript)
    if isinstance(subscript, (Index, Const)) or checked is not None and checked <= extent:
        return subscript
    kind = gradients.dtype_of(subscript)
    wide = subscript if kind.is_arithmetic else cast(subscript, I32)
    kind = kind if kind.is_arithmetic else I32
    return call("minimum", call("maximum", wide, const(0, kind)), const(extent - 1, kind))


# Reductions


def _gradient_here(gradients: Gradients, node: Node) -> Expr:
    return gradients.at(node.name, node.axes)


def _extremum(gradients: Gradients, node: Node) -> Expr:
    """The whole gradient goes to the first element that attains the extremum (a NaN counts), given by its position in the reduced domain.

    Neither the elements nor their extremum are read again; the position takes a byte where the domain is as small as a window.
    """
    b = gradients.build
    assert node.body is not None
    elements = prod(s for _, s in node.over)
    place = b.reduce_node(f"arg{node.detail}", I64, node.type.shape, node.axes, node.over, node.body, name=f"arg{node.detail}")
    small = DTYPES["i8" if elements < 1 << 7 else "i16" if elements < 1 << 15 else "i32"]
    if elements < 1 << 31:
        place = b.cast(place, small)
    first_place = Read(place, gradients.here(node.name))
    work = gradients.read_dtype(place) if gradients.read_dtype(place).is_arithmetic else I32
    extents = dict(node.over)
    flat = simplify(linearise(tuple(axis(a) for a in extents), row_major_strides(tuple(extents.values()))), extents)
    here: Expr = Index(flat) if work == I64 else cast(Index(flat), work)
    attained = call("eq", first_place if gradients.read_dtype(place) == work else cast(first_place, work), here)
    return simplified_call("select", attained, _gradient_here(gradients, node), const(0, node.type.dtype))


def _product(gradients: Gradients, node: Node) -> Expr:
    """The product of the other elements, y / x. With one zero among the elements, only the gradient of that element is not zero; with two,
    none."""
    b, dtype, body = gradients.build, node.type.dtype, node.body
    assert body is not None
    zero, one = const(0, dtype), const(1, dtype)
    is_zero = call("eq", body, zero)
    zeros = b.reduce_node("sum", dtype, node.type.shape, node.axes, node.over, call("select", is_zero, one, zero), name="zeros")
    others = b.reduce_node("prod", dtype, node.type.shape, node.axes, node.over, call("select", is_zero, one, body), name="others")
    here = gradients.here(node.name)
    count, rest = Read(zeros, here), Read(others, here)
    share = call("select", is_zero, call("select", call("eq", count, one), rest, zero),
                 call("select", call("eq", count, zero), call("div", rest, call("select", is_zero, one, body)), zero))
    return simplified_call("mul", _gradient_here(gradients, node), share)


def _deviations(gradients: Gradients, node: Node) -> Expr:
    """2 (x - mean) g: the part through the mean cancels."""
    b, dtype, body = gradients.build, node.type.dtype, node.body
    assert body is not None
    total = b.reduce_node("sum", dtype, node.type.shape, node.axes, node.over, body, name="sum")
    here = gradients.here(node.name)
    mean = b.map("mean", dtype, node.type.shape, node.axes, call("div", Read(total, here), const(prod(s for _, s in node.over), dtype)))
    twice = simplified_call("mul", const(2, dtype), _gradient_here(gradients, node))
    return simplified_call("mul", call("sub", body, Read(mean, here)), twice)


_REDUCTIONS = {"sum": _gradient_here, "max": _extremum, "min": _extremum, "prod": _product, "m2": _deviations}


# Scans


def _from_end(gradients: Gradients, node: Node, e: Expr, name: str, monoid: str = "sum") -> Expr:
    """e[i] for i >= j combined along the scan's axis, at the node's axes."""
    b = gradients.build
    last = dict(zip(node.axes, node.type.shape, strict=True))[node.along] - 1
    turned = substitute_axes(e, {node.along: last - axis(node.along)})
    scan = b.add(Node(b.fresh(name), node.type, f"scan.{monoid}", node.axes, along=node.along, body=turned, span=b.span))
    here = tuple((last - axis(a) if a == node.along else axis(a)) if s > 1 else number(0)
                 for a, s in zip(node.axes, node.type.shape, strict=True))
    return Read(scan, here)


def _running_sum(gradients: Gradients, node: Node) -> Expr:
    return _from_end(gradients, node, _gradient_here(gradients, node), "suffix")


def _running_product(gradients: Gradients, node: Node) -> Expr:
    """sum over i >= j of g[i] y[i] / x[j] before the first zero; at it the products without it; nothing behind it."""
    b, dtype, body = gradients.build, node.type.dtype, node.body
    assert body is not None
    zero, one = const(0, dtype), const(1, dtype)
    is_zero = call("eq", body, zero)
    here = gradients.here(node.name)

    def scanned(name: str, monoid: str, e: Expr) -> Read:
        scan = Node(b.fresh(name), node.type, f"scan.{monoid}", node.axes, along=node.along, body=e, span=b.span)
        return Read(b.add(scan), here)

    zeros = scanned("zeros", "sum", call("select", is_zero, one, zero))
    first = call("logical_and", is_zero, call("eq", zeros, one))
    without = scanned("others", "prod", call("select", first, one, body))
    g = _gradient_here(gradients, node)
    plain = _from_end(gradients, node, simplified_call("mul", g, Read(node.name, here)), "suffix")
    skipping = _from_end(gradients, node, simplified_call("mul", g, without), "skipping")
    return call("select", call("eq", zeros, zero), call("div", plain, call("select", is_zero, one, body)),
                call("select", first, skipping, zero))


def _running_extremum(gradients: Gradients, node: Node) -> Expr:
    """Each prefix's gradient goes to the element that set its extremum. It is added there atomically, since the place is data-dependent."""
    b, dtype, body = gradients.build, node.type.dtype, node.body
    assert body is not None
    here = gradients.here(node.name)
    along = axis(node.along) if node.extents[node.along] > 1 else number(0)
    before = tuple(along - 1 if a == node.along else e for a, e in zip(node.axes, here, strict=True))
    better = call("gt" if node.detail == "max" else "lt", body, Read(node.name, before))
    fresh: Expr = Guard((Bound(along, 1, max(node.extents[node.along], 2)),),
                  call("select", call("logical_or", better, call("isnan", body)), Index(along), const(0, I64)), const(0, I64))
    if node.extents[node.along] == 1:
        return _gradient_here(gradients, node)
    place = b.add(Node(b.fresh("place"), Type(I64, node.type.shape), "scan.max", node.axes, along=node.along, body=fresh,
                       span=b.span))
    zeros = b.full(node.type.shape, 0, dtype)
    target = tuple(Read(place, here) if a == node.along else Index(e) for a, e in zip(node.axes, here, strict=True))
    over = tuple(zip(node.axes, node.type.shape, strict=True))
    scattered = b.add(Node(b.fresh("scatter"), node.type, "scatter.sum", over=over, body=_gradient_here(gradients, node), target=target,
                           operands=(zeros,), span=b.span))
    return Read(scattered, here)


def _running_logarithm(gradients: Gradients, node: Node) -> Expr:
    """exp(x[j]) times the sum over i >= j of g[i] exp(-y[i]), in logarithms: positive and negative gradients separately."""
    dtype, body = node.type.dtype, node.body
    assert body is not None
    zero, g, y = const(0, dtype), _gradient_here(gradients, node), Read(node.name, gradients.here(node.name))

    def share(size: Expr, name: str) -> Expr:
        logarithm = call("select", call("gt", size, zero), call("sub", call("log", size), y), const(float("-inf"), dtype))
        return call("exp", call("add", _from_end(gradients, node, logarithm, name, node.detail), body))

    return call("sub", share(g, "gains"), share(call("neg", g), "losses"))


_SCANS = {"sum": _running_sum, "prod": _running_product, "max": _running_extremum, "min": _running_extremum,
          "logaddexp": _running_logarithm}


# Scatters


def seeds_of_scatter(gradients: Gradients, node: Node) -> None:
    """Contributes a scatter's gradient to its initial contents and to the written values.

    sum: everything to both. set: a written place passes nothing to the initial contents; of several writers of one place all get its
    gradient. max, min: shared evenly among the elements that attain the extremum. prod: the product of the other elements.
    """
    assert node.body is not None
    base = node.operands[0]
    reads_active = any(x in gradients.active for x in Node("", node.type, "map", body=node.body).reads())
    match node.detail:
        case "sum":
            if base in gradients.active:
                gradients.add_value(base, gradients.value_of(node.name))
            body = _where_written(gradients, node, gradients.value_of(node.name)) if reads_active else None
        case "set":
            if base in gradients.active:
                gradients.add_value(base, _set_to_zero(gradients, node))
            body = _where_written(gradients, node, gradients.value_of(node.name)) if reads_active else None
        case "max" | "min":
            body = _scattered_extremum(gradients, node)
        case "prod":
            body = _scattered_product(gradients, node)
        case _:
            raise InternalError(f"no gradient rule for the kind {node.kind}", where=f"%{node.name}")
    if body is not None and reads_active:
        _contribute(gradients, node, body, None)


def _set_to_zero(gradients: Gradients, node: Node) -> str:
    return _scattered(gradients, node, "kept", "set", gradients.value_of(node.name), const(0, node.type.dtype))


def _scattered(gradients: Gradients, node: Node, name: str, monoid: str, base: str, e: Expr) -> str:
    """Another element scattered to the same places as by `node`, into another value of its type."""
    b = gradients.build
    return b.add(Node(b.fresh(name), node.type, f"scatter.{monoid}", over=node.over, body=e, target=node.target, operands=(base,),
                      span=b.span))


def _where_written(gradients: Gradients, node: Node, value: str) -> Expr:
    """The element of `value` that a point of the scatter's domain writes, 0 where it writes outside."""
    zero = const(0, gradients.read_dtype(value))
    shape = node.type.shape
    plain = [_affine(t) for t in node.target]
    extents = node.extents
    if all(a is not None for a in plain):
        index = tuple(a for a in plain if a is not None)
        limits = tuple(Bound(a, 0, s) for a, s in zip(index, shape, strict=True))
        return Guard(limits, Read(value, index), zero) if limits else Read(value, index)
    inside: Expr | None = None
    for target, extent in zip(node.target, shape, strict=True):
        if isinstance(target, Index) and is_within(target.affine, extent, extents) or checked_extent(target) == extent:
            continue
        kind = gradients.dtype_of(target)
        subscript = target if kind.is_arithmetic else cast(target, I32)
        kind = kind if kind.is_arithmetic else I32
        for test in (call("ge", subscript, const(0, kind)), call("lt", subscript, const(extent, kind))):
            inside = test if inside is None else call("logical_and", inside, test)
    found_there = Lookup(value, node.target)
    return found_there if inside is None else call("select", inside, found_there, zero)


def _affine(target: Expr) -> Affine | None:
    if isinstance(target, Const):
        return number(int(target.value))
    return target.affine if isinstance(target, Index) else None


def _scattered_extremum(gradients: Gradients, node: Node) -> Expr:
    """g / n to the initial contents and to each written element that equals the result; n of them do."""
    b, dtype, body = gradients.build, node.type.dtype, node.body
    assert body is not None
    base = node.operands[0]
    axes, here = gradients.axes_of(node.name), gradients.here(node.name)
    one, zero = const(1, dtype), const(0, dtype)
    attains = b.map("attains", dtype, node.type.shape, axes, call("select", call("eq", Read(base, here), Read(node.name, here)), one, zero))
    ties = call("select", call("eq", body, _where_written(gradients, node, node.name)), one, zero)
    count = _scattered(gradients, node, "count", "sum", attains, ties)
    share = b.map("share", dtype, node.type.shape, axes, simplified_call(
        "div", gradients.at(node.name, axes), call("maximum", Read(count, here), one)))
    if base in gradients.active:
        gradients.add(base, _at(gradients, base, axes, simplified_call("mul", Read(share, here), Read(attains, here))))
    return simplified_call("mul", _where_written(gradients, node, share), ties)


def _scattered_product(gradients: Gradients, node: Node) -> Expr:
    """As for a reduction: the number of zeros and the product of the other elements at each place."""
    b, dtype, body = gradients.build, node.type.dtype, node.body
    assert body is not None
    base = node.operands[0]
    axes, here = gradients.axes_of(node.name), gradients.here(node.name)
    one, zero = const(1, dtype), const(0, dtype)

    def is_zero(e: Expr) -> Expr:
        return call("eq", e, zero)

    def scattered(name: str, monoid: str, initial: Expr, e: Expr) -> str:
        start = b.map(f"{name}_base", dtype, node.type.shape, axes, initial)
        return _scattered(gradients, node, name, monoid, start, e)

    own = Read(base, here)
    zeros = scattered("zeros", "sum", call("select", is_zero(own), one, zero), call("select", is_zero(body), one, zero))
    others = scattered("others", "prod", call("select", is_zero(own), one, own), call("select", is_zero(body), one, body))
    gradient = gradients.value_of(node.name)

    def share(e: Expr, count: Expr, rest: Expr, g: Expr) -> Expr:
        part = call("select", is_zero(e), call("select", call("eq", count, one), rest, zero),
                    call("select", is_zero(count), call("div", rest, call("select", is_zero(e), one, e)), zero))
        return simplified_call("mul", g, part)

    if base in gradients.active:
        gradients.add(base, _at(gradients, base, axes, share(own, Read(zeros, here), Read(others, here), gradients.at(node.name, axes))))
    return share(body, *(_where_written(gradients, node, v) for v in (zeros, others, gradient)))


def _at(gradients: Gradients, name: str, axes: Sequence[str], e: Expr) -> Expr:
    """An expression over `axes` as one over the own axes of a value of the same shape."""
    return substitute_axes(e, dict(zip(axes, gradients.here(name), strict=True)))
