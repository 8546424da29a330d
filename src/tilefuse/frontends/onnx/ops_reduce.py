"""ONNX reductions, scans, sorting and normalisations. The softmax family and the norms become the same composites as from torch."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilefuse.frontends.onnx.call import Call, Value, onnx_op
from tilefuse.frontends.onnx.model import ELEMENT_OF_DTYPE, element_dtype
from tilefuse.frontends.onnx.ops_random import seed_of
from tilefuse.ir.dtype import BOOL, F64, I64, compute_dtype
from tilefuse.ir.graph import Attribute, Type
from tilefuse.ir.scalar import Expr, call, const

# The first version of each reduction that takes its axes as an operand.
AXES_OPERAND_FROM = {"ReduceSum": 13}

# Up to this many elements TopK counts, for every element, those that go before it; longer axes are sorted by the framework.
RANKED_LIMIT = 1024


def reduction_axes(n: Call) -> list[int] | None:
    """The axes reduced over, or None where the operator keeps the shape."""
    rank = len(n.shape(0))
    if n.version >= AXES_OPERAND_FROM.get(n.op, 18):
        axes = n.ints(1, "the axes") if n.has(1) else []
    else:
        axes = n.attr("axes") or []
    if not axes:
        return None if n.attr("noop_with_empty_axes", 0) else list(range(rank))
    return sorted({n.axis(a, rank) for a in axes})


@onnx_op(
    "ReduceSum",
    "ReduceMax",
    "ReduceMin",
    "ReduceProd",
    "ReduceMean",
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceSumSquare",
)
def reduction(n: Call) -> str:
    axes, keep = reduction_axes(n), bool(n.attr("keepdims", 1))
    x, have = n[0], n.dtype(0)
    over = [] if axes is None else axes
    match n.op:
        case "ReduceSum":
            return reduced(n, x, "sum", over, keep)
        case "ReduceProd":
            return reduced(n, x, "prod", over, keep)
        case "ReduceMax" | "ReduceMin":
            return reduced(n, x, _extremum(n.op == "ReduceMax", have == BOOL), over, keep)
        case "ReduceL1":
            return reduced(n, n.b.elementwise("abs", x), "sum", over, keep)
        case "ReduceSumSquare":
            return reduced(n, n.b.elementwise("mul", x, x), "sum", over, keep)
        case "ReduceL2":
            if have.is_float and over:
                return n.b.norm(x, 2.0, over, keep)
            work = compute_dtype(have) if have.is_float else element_dtype(ELEMENT_OF_DTYPE["f64"], n.place)
            wide = n.b.cast(x, work)
            return n.b.cast(n.b.elementwise("sqrt", reduced(n, n.b.elementwise("mul", wide, wide), "sum", over, keep)), have)
        case "ReduceLogSum":
            total = reduced(n, x, "sum", over, keep)
            return n.b.elementwise("log", total) if have.is_float else n.b.cast(n.b.elementwise("log", n.b.cast(total, F64)), have)
        case "ReduceLogSumExp":
            if not over:
                return x
            return n.b.logsumexp(x, over, keep) if have.is_float else n.b.cast(n.b.logsumexp(n.b.cast(x, F64), over, keep), have)
    if have.is_float:
        return n.b.mean(x, over, keep) if over else x
    count = prod(n.shape(0)[d] for d in over)
    return n.b.elementwise("truncdiv", reduced(n, x, "sum", over, keep), count)


def reduced(n: Call, x: str, monoid: str, axes: list[int], keep: bool) -> str:
    """`x` reduced; itself where there is no axis."""
    return n.b.reduce(x, monoid, axes, keep) if axes else x


def _extremum(largest: bool, of_bool: bool) -> str:
    if of_bool:
        return "any" if largest else "all"
    return "max" if largest else "min"


@onnx_op("ArgMax", "ArgMin")
def arg_extremum(n: Call) -> str:
    """The first position, or, if requested, the last: that is the first of the reversed axis, counted back."""
    have = n.shape(0)
    at = n.axis(n.attr("axis", 0), len(have))
    monoid = "argmax" if n.op == "ArgMax" else "argmin"
    if not n.attr("select_last_index", 0):
        return n.b.reduce(n[0], monoid, [at], bool(n.attr("keepdims", 1)))
    back = n.b.reduce(n.b.flip(n[0], [at]), monoid, [at], bool(n.attr("keepdims", 1)))
    return n.b.expression(lambda e: call("sub", const(have[at] - 1, I64), e), back, dtype=I64, name="last")


@onnx_op("CumSum", "CumProd")
def cumulative(n: Call) -> str:
    at = n.axis(n.ints(1, "the axis")[0], len(n.shape(0)))
    return n.b.scan(n[0], "sum" if n.op == "CumSum" else "prod", at, bool(n.attr("exclusive", 0)), bool(n.attr("reverse", 0)))


@onnx_op("TopK")
def top_k(n: Call) -> list[str]:
    """The k largest (smallest) with their positions, equal ones in order of position."""
    have = n.shape(0)
    at = n.axis(n.attr("axis", -1), len(have))
    count = n.attr("k") if n.version < 10 else n.ints(1, "k")[0]
    largest = bool(n.attr("largest", 1))
    if count > have[at]:
        raise n.wrong(f"k = {count} exceeds the axis' extent {have[at]}")
    if have[at] > RANKED_LIMIT:
        return top_k_library(n, at, count, largest)
    x = n[0]
    first = n.b.expand_dims(x, at + 1)
    other = n.b.expand_dims(x, at)
    before = n.b.elementwise("gt" if largest else "lt", other, first)
    equal = n.b.elementwise("eq", other, first)
    if n.dtype(0).is_float:
        before, equal = _with_nan(n, first, other, before, equal, largest)
    shape = [1] * (len(have) + 1)
    shape[at] = shape[at + 1] = have[at]
    row, column = n.b.iota(shape, at), n.b.iota(shape, at + 1)
    earlier = n.b.elementwise("logical_and", equal, n.b.elementwise("lt", column, row))
    rank = n.b.reduce(n.b.cast(n.b.elementwise("logical_or", before, earlier), I64), "sum", [at + 1])
    slots = [count if d == at else e for d, e in enumerate(have)]
    places = n.b.scatter(
        n.b.full(slots, 0, I64), rank, n.b.broadcast_to(n.b.iota([have[at] if d == at else 1 for d in range(len(have))], at), have), at
    )
    return [n.b.gather_elements(x, places, at), places]


def _with_nan(n: Call, first: str, other: str, before: str, equal: str, largest: bool) -> tuple[str, str]:
    """The order completed where elements are NaN: each counts as larger than every number, and all are equal.

    Without it two elements would claim one place of the result.
    """
    b = n.b
    here, there = b.elementwise("isnan", first), b.elementwise("isnan", other)
    winner, loser = (there, here) if largest else (here, there)
    ahead = b.elementwise("logical_and", winner, b.elementwise("logical_not", loser))
    return b.elementwise("logical_or", before, ahead), b.elementwise("logical_or", equal, b.elementwise("logical_and", here, there))


def top_k_library(n: Call, at: int, count: int, largest: bool) -> list[str]:
    """TopK as the first elements of the framework's stable sort: its own top-k may exchange equal elements."""
    args = (("%", 0),)
    kwargs = (("stable", True), ("dim", at), ("descending", largest))
    results = []
    for result, dtype in enumerate((n.dtype(0), I64)):
        attributes: dict[str, Attribute] = {"args": args, "kwargs": kwargs, "result": result}
        ordered = n.b.library("sort", "aten.sort.stable", Type(dtype, n.shape(0)), (n[0],), attributes)
        results.append(n.b.slice(ordered, [0], [count], axes=[at]))
    return results


@onnx_op("Softmax", "LogSoftmax")
def softmax(n: Call) -> str:
    """Below opset 13 everything from the axis on is one dimension."""
    make = n.b.softmax if n.op == "Softmax" else n.b.log_softmax
    have = n.shape(0)
    if n.version >= 13:
        return make(n[0], n.axis(n.attr("axis", -1), len(have)))
    at = n.axis(n.attr("axis", 1), len(have))
    if at == len(have) - 1:
        return make(n[0], at)
    return n.b.reshape(make(n.b.reshape(n[0], (prod(have[:at]), prod(have[at:]))), 1), have)


@onnx_op("Hardmax")
def hardmax(n: Call) -> str:
    have = n.shape(0)
    x, shape, at = n[0], have, n.axis(n.attr("axis", -1 if n.version >= 13 else 1), len(have))
    if n.version < 13:
        shape = (prod(have[:at]), prod(have[at:]))
        x, at = n.b.reshape(x, shape), 1
    first = n.b.reduce(x, "argmax", [at])
    return n.b.reshape(n.b.one_hot(first, shape[at], at, dtype=n.dtype(0)), have)


# Normalisations


@onnx_op("BatchNormalization")
def batch_normalization(n: Call) -> list[str] | str:
    """Inference: (x - mean) * (scale / sqrt(variance + eps)) + bias, one map. Training also updates the running statistics."""
    have = n.shape(0)
    around = (-1, *(1,) * (len(have) - 2)) if len(have) > 1 else (-1,)
    eps, momentum = n.attr("epsilon", 1e-5), n.attr("momentum", 0.9)
    if n.version < 9 and not n.attr("spatial", 1):
        raise n.unsupported("statistics for every activation (spatial = 0)")
    training = n.attr("training_mode", 0) if n.version >= 14 else n.num_outputs > 1
    scale, bias, mean, var = (n[i] for i in range(1, 5))
    if training:
        over = [d for d in range(len(have)) if d != 1]
        old_mean, old_var = mean, var
        mean = n.b.mean(n[0], over)
        var = n.b.variance(n[0], over, 0)
    out = normalised(n, n[0], [n.b.reshape(v, around) for v in (mean, var, scale, bias)], eps)
    if not training:
        return out
    running = [
        n.b.elementwise(
            "add", n.b.elementwise("mul", old, momentum), n.b.elementwise("mul", n.b.cast(new, n.b.dtype_of(old)), 1 - momentum)
        )
        for old, new in ((old_mean, mean), (old_var, var))
    ]
    return [out, *running]


def normalised(n: Call, x: str, statistics: Sequence[str], eps: float) -> str:
    """(x - mean) * (scale * rsqrt(var + eps)) + bias in the compute dtype; `statistics` are mean, variance, scale and bias."""
    have = n.b.dtype_of(x)
    work = compute_dtype(have)

    def body(e: Expr, m: Expr, v: Expr, s: Expr, c: Expr) -> Expr:
        factor = call("mul", s, call("rsqrt", call("add", v, const(eps, work))))
        return call("add", call("mul", call("sub", e, m), factor), c)

    # Statistics may have a wider type than the data; both are computed in one.
    parts = [p if compute_dtype(n.b.dtype_of(p)) == work else n.b.cast(p, work) for p in statistics]
    return n.b.expression(body, x, *parts, dtype=have, name="batch_norm")


@onnx_op("InstanceNormalization")
def instance_normalization(n: Call) -> str:
    return n.b.group_norm(n[0], n.shape(0)[1], n[1], n[2], n.attr("epsilon", 1e-5))[0]


@onnx_op("GroupNormalization")
def group_normalization(n: Call) -> str:
    """Scale and bias have one element for each group in version 18, one for each channel from 21 on."""
    groups, channels = n.needed_attr("num_groups"), n.shape(0)[1]
    scale, bias = n[1], n[2]
    if n.b.shape_of(scale)[0] != channels:
        scale, bias = (n.b.repeat_interleave(v, channels // groups, 0) for v in (scale, bias))
    return n.b.group_norm(n[0], groups, scale, bias, n.attr("epsilon", 1e-5))[0]


@onnx_op("LayerNormalization")
def layer_normalization(n: Call) -> list[str]:
    """Results y, mean and 1 / standard deviation; statistics have the type of `stash_type` (f32)."""
    have = n.shape(0)
    axes = list(range(n.axis(n.attr("axis", -1), len(have)), len(have)))
    stash = element_dtype(n.attr("stash_type", 1), n.place)
    weight, bias = affine_part(n, 1, have, axes), affine_part(n, 2, have, axes)
    beside = any(n.has(i) and part is None for i, part in ((1, weight), (2, bias)))
    y, mean, rstd = n.b.layer_norm(n[0], axes, None if beside else weight, None if beside else bias, n.attr("epsilon", 1e-5))
    if beside:
        y = n.b.elementwise("mul", y, n[1])
        y = n.b.elementwise("add", y, n[2]) if n.has(2) else y
    return [y, n.b.cast(mean, stash), n.b.cast(rstd, stash)]


@onnx_op("RMSNormalization")
def rms_normalization(n: Call) -> str:
    have = n.shape(0)
    axes = list(range(n.axis(n.attr("axis", -1), len(have)), len(have)))
    weight = affine_part(n, 1, have, axes)
    y = n.b.rms_norm(n[0], axes, weight, n.attr("epsilon", 1e-5))[0]
    return n.b.elementwise("mul", y, n[1]) if weight is None else y


def affine_part(n: Call, i: int, have: tuple[int, ...], axes: list[int]) -> str | None:
    """Operand `i` with exactly the extents of the normalised axes, as the composites want it; None where it varies along another axis."""
    if not n.has(i):
        return None
    expected = tuple(have[d] for d in axes)
    value = n[i]
    shape = n.b.shape_of(value)
    if shape == expected:
        return value
    extra = len(shape) - len(expected)
    if extra > 0 and any(e != 1 for e in shape[:extra]):
        return None
    return n.b.broadcast_to(n.b.reshape(value, shape[max(extra, 0) :]), expected)


@onnx_op("LpNormalization")
def lp_normalization(n: Call) -> str:
    """x over its norm along the axis; 0 where the norm is 0."""
    at, p = n.axis(n.attr("axis", -1), len(n.shape(0))), n.attr("p", 2)
    size = n.b.norm(n[0], float(p), [at], keepdims=True)
    return n.b.where(n.b.elementwise("eq", size, 0), 0, n.b.elementwise("div", n[0], size))


@onnx_op("LRN")
def lrn(n: Call) -> str:
    """x / (bias + alpha / size * sum of squares over neighbouring channels) ** beta."""
    size, alpha, beta, bias = n.needed_attr("size"), n.attr("alpha", 1e-4), n.attr("beta", 0.75), n.attr("bias", 1.0)
    x, have = n[0], n.dtype(0)
    rank, work = len(n.shape(0)), compute_dtype(n.dtype(0))
    wide = n.b.cast(x, work)
    squares = n.b.elementwise("mul", wide, wide)
    pairs = [(0, 0)] * rank
    pairs[1] = ((size - 1) // 2, size - 1 - (size - 1) // 2)
    near = n.b.reduce(n.b.windows(n.b.pad(squares, pairs), 1, size, 1), "sum", [rank])

    def body(e: Expr, s: Expr) -> Expr:
        base = call("add", const(bias, work), call("mul", const(alpha / size, work), s))
        return call("div", e, call("pow", base, const(beta, work)))

    return n.b.expression(body, x, near, dtype=have, name="lrn")


@onnx_op("Dropout")
def dropout(n: Call) -> list[str | Value]:
    """The operand itself when inferring. Training draws its mask from the framework's generator, or from `seed`."""
    have = n.shape(0)
    training = (
        bool(n.known(2, "whether it is training").reshape(-1)[0])
        if n.version >= 12 and n.has(2)
        else n.version < 7 and not n.attr("is_test", 0)
    )
    if not training:
        mask_dtype = BOOL if n.version >= 10 else n.dtype(0)
        return [n.operand(0), n.b.full(have, 1, mask_dtype)] if n.num_outputs > 1 else [n.operand(0)]
    rate = float(n.known(1, "the rate").reshape(-1)[0]) if n.version >= 12 and n.has(1) else n.attr("ratio", 0.5)
    if rate == 0.0:
        return [n.operand(0), n.b.full(have, True, BOOL)]
    return list(n.b.dropout(n[0], rate, seed_of(n)))
