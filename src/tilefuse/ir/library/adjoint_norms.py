"""Adjoints of the softmax family, of moments and of norms: entries of the table in `ir/library/adjoint.py`.

Each rule uses the call's own result where that suffices instead of its operand, so that a forward pass saves only one of the two.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from tilefuse.ir.building.tensor import TensorBuilder
from tilefuse.ir.dtype import DType
from tilefuse.ir.graph import Node, Type
from tilefuse.ir.library.adjoint import LIBRARY_ADJOINTS, Request, adjoint_of, number_of, reduced_sum, softmax_gradient, wide_dtype
from tilefuse.ir.scalar import Expr, call, cast, const

__all__ = ["LIBRARY_ADJOINTS"]  # whole only with the rules of this file


def _axes(node: Node, rank: int) -> tuple[int, ...]:
    return tuple(range(rank)) if node.attribute("axes") is None else tuple(a % max(rank, 1) for a in node.integers("axes"))


def _kept(b: TensorBuilder, node: Node, value: str, axes: Sequence[int]) -> str:
    """The value of a reduction with extents 1 on its axes."""
    return value if node.attribute("keepdims") or not axes else b.expand_dims(value, list(axes))


# Softmax family


@adjoint_of("softmax")
def _softmax(b: TensorBuilder, request: Request) -> Sequence[str | None]:
    at = int(number_of(request.node, "axis", -1)) % max(b.rank_of(request.node.name), 1)
    return (softmax_gradient(b, request.node.name, request.gradients[0], at),)


@adjoint_of("log_softmax")
def _log_softmax(b: TensorBuilder, request: Request) -> Sequence[str | None]:
    """g - exp(y) * sum(g)."""
    y, g = request.node.name, request.gradients[0]
    at = int(number_of(request.node, "axis", -1)) % max(b.rank_of(y), 1)
    total = reduced_sum(b, lambda u: u, (g,), (at,), wide_dtype(b, g))

    def body(u: Expr, v: Expr, s: Expr) -> Expr:
        return call("sub", u, call("mul", call("exp", v), s))

    return (b.expression(body, g, y, total, dtype=b.dtype_of(y), name="log_softmax"),)


@adjoint_of("logsumexp")
def _logsumexp(b: TensorBuilder, request: Request) -> Sequence[str | None]:
    """exp(x - y) * g, 0 where all elements are -inf."""
    node = request.node
    (x,) = node.operands
    axes = _axes(node, b.rank_of(x))
    y, g = (_kept(b, node, v, axes) for v in (node.name, request.gradients[0]))
    work = wide_dtype(b, x)

    def body(v: Expr, m: Expr, u: Expr) -> Expr:
        share = call("exp", call("sub", v, m))
        return call("select", call("eq", m, const(float("-inf"), work)), const(0, work), call("mul", share, u))

    return (b.expression(body, x, y, g, dtype=b.dtype_of(x), name="logsumexp"),)


# Moments


def _count(b: TensorBuilder, x: str, axes: Sequence[int]) -> int:
    return prod(b.shape_of(x)[a] for a in axes)


def _mean_of(b: TensorBuilder, x: str, axes: Sequence[int]) -> str:
    """The mean in the compute dtype, with extents 1: the same nodes as the forward pass has where it needs one."""
    work = wide_dtype(b, x)
    total = reduced_sum(b, lambda v: v, (x,), axes, work)
    return b.expression(lambda s: call("div", s, const(_count(b, x, axes), work)), total, dtype=work, name="mean")


@adjoint_of("mean")
def _mean(b: TensorBuilder, request: Request) -> Sequence[str | None]:
    """g / n at every element."""
    node = request.node
    (x,) = node.operands
    axes = _axes(node, b.rank_of(x))
    g = _kept(b, node, request.gradients[0], axes)
    share = 1.0 / max(_count(b, x, axes), 1)
    return (b.broadcast_to(b.elementwise("mul", b.cast(g, wide_dtype(b, x)), share), b.shape_of(x)),)


def _freedom(b: TensorBuilder, node: Node, x: str, axes: Sequence[int]) -> float:
    """Divisor of the squared deviations."""
    return max(_count(b, x, axes) - number_of(node, "correction", 1.0), 0.0)


@adjoint_of("variance")
def _variance(b: TensorBuilder, request: Request) -> Sequence[str | None]:
    """2 (x - mean) / (n - correction) * g."""
    node = request.node
    (x,) = node.operands
    axes = _axes(node, b.rank_of(x))
    freedom = _freedom(b, node, x, axes)
    return (_deviation(b, x, axes, _kept(b, node, request.gradients[0], axes), 2.0 / freedom if freedom else float("nan")),)


def _deviation(b: TensorBuilder, x: str, axes: Sequence[int], g: str, factor: float) -> str:
    """(x - mean) * (factor * g)."""
    work = wide_dtype(b, x)

    def body(v: Expr, m: Expr, u: Expr) -> Expr:
        return call("mul", call("sub", v, m), call("mul", const(factor, work), u))

    return b.expression(body, x, _mean_of(b, x, axes), b.cast(g, work), dtype=b.dtype_of(x), name="deviation")


@adjoint_of("standard_deviation")
def _standard_deviation(b: TensorBuilder, request: Request) -> Sequence[str | None]:
    """(x - mean) / ((n - correction) * y) * g; 0 where all elements are equal, the least of the slopes there."""
    node = request.node
    (x,) = node.operands
    axes = _axes(node, b.rank_of(x))
    freedom = _freedom(b, node, x, axes)
    work = wide_dtype(b, x)
    y, g = (_kept(b, node, v, axes) for v in (node.name, request.gradients[0]))

    def ratio(u: Expr, s: Expr) -> Expr:
        wide = s if b.dtype_of(y) == work else cast(s, work)
        return call("select", call("eq", wide, const(0, work)), const(0, work), call("div", u, wide))

    share = b.expression(ratio, b.cast(g, work), y, dtype=work, name="share")
    return (_deviation(b, x, axes, share, 1.0 / freedom if freedom else float("nan")),)


# Norms


def _norm_operands(node: Node) -> tuple[int | None, int | None]:
    """Positions of weight and bias among the operands."""
    weight = 1 if node.attribute("has_weight") else None
    return weight, (1 + (weight is not None)) if node.attribute("has_bias") else None


def _result(b: TensorBuilder, request: Request, number: int, shape: Sequence[int]) -> str:
    """Another result of the same call; a node of its own if the graph does not have it yet."""
    if number in request.results:
        return request.results[number]
    node = request.node
    attributes = dict(node.attributes) | {"result": number}
    return b.library(f"result{number}", node.detail, Type(wide_dtype(b, node.operands[0]), tuple(shape)), node.operands, attributes)


def _placed(b: TensorBuilder, value: str, rank: int, axes: Sequence[int]) -> str:
    """A parameter over the extents of `axes`, with extents 1 elsewhere."""
    return b.expand_dims(value, [d for d in range(rank) if d not in axes]) if len(axes) < rank else value


@adjoint_of("layer_norm")
def _layer_norm(b: TensorBuilder, request: Request) -> Sequence[str | None]:
    node = request.node
    x = node.operands[0]
    shape = b.shape_of(x)
    axes = _axes(node, len(shape))
    small = [1 if d in axes else s for d, s in enumerate(shape)]
    mid, rstd = _result(b, request, 1, small), _result(b, request, 2, small)
    return _normalised_gradients(b, request, x, (mid, rstd), axes, axes, lambda v: v)


@adjoint_of("group_norm")
def _group_norm(b: TensorBuilder, request: Request) -> Sequence[str | None]:
    """As layer norm over each group, with the channels split so that groups are a dimension; weight and bias belong to channels."""
    node = request.node
    x = node.operands[0]
    shape = b.shape_of(x)
    groups = int(number_of(node, "groups", 1))
    parts = (shape[0], groups, shape[1] // groups, *shape[2:])
    statistics = tuple(
        b.reshape(_result(b, request, n, (shape[0], groups)), (shape[0], groups, *(1 for _ in parts[2:]))) for n in (1, 2)
    )

    def split(v: str) -> str:
        if b.rank_of(v) == 1:
            return b.reshape(v, (groups, -1))
        return b.reshape(v, parts if b.shape_of(v) == shape else (shape[0], groups, *(1 for _ in parts[2:])))

    gradients = _normalised_gradients(b, request, x, (statistics[0], statistics[1]), tuple(range(2, len(parts))), (1, 2), split)
    return [None if v is None else b.reshape(v, b.shape_of(o)) for v, o in zip(gradients, node.operands, strict=True)]


@adjoint_of("rms_norm")
def _rms_norm(b: TensorBuilder, request: Request) -> Sequence[str | None]:
    node = request.node
    x = node.operands[0]
    shape = b.shape_of(x)
    axes = _axes(node, len(shape))
    rstd = _result(b, request, 1, [1 if d in axes else s for d, s in enumerate(shape)])
    return _normalised_gradients(b, request, x, (None, rstd), axes, axes, lambda v: v)


def _normalised_gradients(
    b: TensorBuilder,
    request: Request,
    x: str,
    statistics: tuple[str | None, str],
    axes: Sequence[int],
    weight_axes: Sequence[int],
    view: Callable[[str], str],
) -> list[str | None]:
    """Gradients of (x - mid) * rstd * weight + bias with mid and rstd those of x over `axes`; without mid for a root mean square.

    With n = (x - mid) * rstd and p = g * weight the gradient of x is rstd * (p - mean(p) - n * mean(p * n)); gradients of the results mid
    and rstd themselves are added. `view` shapes the operands like the statistics.
    """
    node, work = request.node, wide_dtype(b, x)
    (mid, rstd), numbers = statistics, _norm_operands(node)
    x = view(x)
    rank = b.rank_of(x)
    g = view(request.gradients[0]) if 0 in request.gradients else None
    weight = None if numbers[0] is None else _placed(b, view(node.operands[numbers[0]]), rank, weight_axes)
    others = [d for d in range(rank) if d not in weight_axes]

    centre = () if mid is None else (mid,)

    def unpacked(rest: tuple[Expr, ...]) -> tuple[Expr, Expr | None, Expr, Expr | None]:
        """(x, mid, rstd, weight) of the operands that are there."""
        unread = list(rest)
        v, m, r = unread.pop(0), None if mid is None else unread.pop(0), unread.pop(0)
        return v, m, r, unread.pop(0) if unread else None

    gradients: list[str | None] = [None] * len(node.operands)
    if numbers[0] is not None and request.wanted[numbers[0]] and g is not None:
        def weight_body(u: Expr, *rest: Expr) -> Expr:
            return call("mul", u, _normal(*unpacked(rest)[:3]))

        along_weight = reduced_sum(b, weight_body, (g, x, *centre, rstd), others, work)
        gradients[numbers[0]] = b.reshape(along_weight, b.shape_of(node.operands[numbers[0]]))
    if numbers[1] is not None and request.wanted[numbers[1]] and g is not None:
        gradients[numbers[1]] = b.reshape(reduced_sum(b, lambda u: u, (g,), others, work), b.shape_of(node.operands[numbers[1]]))
    if not request.wanted[0]:
        return gradients
    parts: list[str] = []
    count = float(_count(b, x, axes))
    if g is not None:
        parts.append(_spread_gradient(b, g, x, mid, rstd, weight, axes, count, unpacked))
    at_mid = request.gradients.get(1) if mid is not None else None
    at_rstd = request.gradients.get(2 if mid is not None else 1)
    if at_mid is not None:
        parts.append(b.broadcast_to(b.elementwise("mul", b.reshape(at_mid, b.shape_of(rstd)), 1 / count), b.shape_of(x)))
    if at_rstd is not None:
        def rstd_body(u: Expr, *rest: Expr) -> Expr:
            v, m, r, _ = unpacked(rest)
            return call("mul", call("mul", const(-1 / count, work), u), call("mul", _normal(v, m, r), call("mul", r, r)))

        parts.append(b.expression(rstd_body, b.reshape(at_rstd, b.shape_of(rstd)), x, *centre, rstd, dtype=work, name="rstd"))
    gradients[0] = _sum_of(b, parts, work)
    return gradients


def _normal(x: Expr, mid: Expr | None, rstd: Expr) -> Expr:
    """(x - mid) * rstd."""
    return call("mul", x if mid is None else call("sub", x, mid), rstd)


def _sum_of(b: TensorBuilder, parts: Sequence[str], work: DType) -> str:
    """The sum of values, added in `work`; a single value unchanged."""
    total = parts[0]
    for part in parts[1:]:
        total = b.elementwise("add", b.cast(total, work), b.cast(part, work))
    return total


def _spread_gradient(
    b: TensorBuilder,
    g: str,
    x: str,
    mid: str | None,
    rstd: str,
    weight: str | None,
    axes: Sequence[int],
    count: float,
    unpacked: Callable[[tuple[Expr, ...]], tuple[Expr, Expr | None, Expr, Expr | None]],
) -> str:
    """rstd * (p - mean(p) - n * mean(p * n)) with p = g * weight and n the normalised x."""
    work = wide_dtype(b, x)
    operands = tuple(v for v in (x, mid, rstd, weight) if v is not None)

    def scaled(u: Expr, w: Expr | None) -> Expr:
        return u if w is None else call("mul", u, w)

    def product(u: Expr, *rest: Expr) -> Expr:
        v, m, r, w = unpacked(rest)
        return call("mul", scaled(u, w), _normal(v, m, r))

    def plain(u: Expr, *rest: Expr) -> Expr:
        return scaled(u, rest[0] if rest else None)

    along = reduced_sum(b, product, (g, *operands), axes, work)
    level = None if mid is None else reduced_sum(b, plain, (g, *([weight] if weight is not None else [])), axes, work)

    def body(u: Expr, q: Expr, *rest: Expr) -> Expr:
        unread = list(rest)
        s = None if level is None else unread.pop(0)
        v, m, r, w = unpacked(tuple(unread))
        p = scaled(u, w)
        if s is not None:
            p = call("sub", p, call("mul", const(1 / count, work), s))
        return call("mul", r, call("sub", p, call("mul", _normal(v, m, r), call("mul", const(1 / count, work), q))))

    levels = (level,) if level is not None else ()
    return b.expression(body, g, along, *levels, *operands, dtype=b.dtype_of(x), name="norm")
