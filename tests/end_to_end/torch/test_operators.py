"""Every lowered torch operator, against torch itself: the imported graph run by the interpreter.

One table of cases; each draws fresh inputs of odd sizes, in several types, non-contiguous too, with special values where the
operator has a meaning for them.
"""

# ruff: noqa: B008 -- a loop binds its function in the default of a lambda
from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.end_to_end.torch.reference import assert_same, flat, run_imported, trace
from tilefuse.frontends.torch.own.near_places import NEAR_BACKWARD

A = torch.ops.aten
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTS = (torch.int64, torch.int32, torch.int16, torch.uint8)


def normal(*shape: int) -> Callable[[torch.dtype, torch.Generator], torch.Tensor]:
    return lambda dtype, g: torch.randn(shape, generator=g, dtype=torch.float64).to(dtype)


def positive(*shape: int) -> Callable[[torch.dtype, torch.Generator], torch.Tensor]:
    return lambda dtype, g: (torch.rand(shape, generator=g, dtype=torch.float64) * 0.9 + 0.05).to(dtype)


def integers(low: int, high: int, *shape: int, dtype: torch.dtype | None = None) -> Callable[[torch.dtype, torch.Generator], torch.Tensor]:
    return lambda given, g: torch.randint(low, high, shape, generator=g).to(dtype or given)


def truth(*shape: int) -> Callable[[torch.dtype, torch.Generator], torch.Tensor]:
    return lambda dtype, g: torch.randint(0, 2, shape, generator=g).bool()


def special(dtype: torch.dtype, g: torch.Generator) -> torch.Tensor:
    base = torch.tensor([0.0, -0.0, 1.0, -1.0, float("inf"), float("-inf"), float("nan"), 0.5, -2.5, 3.5, 1e-3])
    return base.to(dtype)


def transposed(*shape: int) -> Callable[[torch.dtype, torch.Generator], torch.Tensor]:
    return lambda dtype, g: torch.randn(shape[::-1], generator=g, dtype=torch.float64).to(dtype).permute(*reversed(range(len(shape))))


def strided(*shape: int) -> Callable[[torch.dtype, torch.Generator], torch.Tensor]:
    return lambda dtype, g: torch.randn((*shape[:-1], shape[-1] * 2 + 1), generator=g, dtype=torch.float64).to(dtype)[..., 1::2]


def expanded(*shape: int) -> Callable[[torch.dtype, torch.Generator], torch.Tensor]:
    return lambda dtype, g: torch.randn((shape[0], *(1 for _ in shape[1:])), generator=g, dtype=torch.float64).to(dtype).expand(shape)


Case = tuple[str, Callable[..., Any], tuple[Any, ...], tuple[torch.dtype, ...]]
CASES: list[Case] = []


def case(name: str, fn: Callable[..., Any], *inputs: Any, dtypes: tuple[torch.dtype, ...] = (torch.float32,)) -> None:
    CASES.append((name, fn, inputs, dtypes))


# Elementwise
for name in (
    "exp",
    "expm1",
    "sin",
    "cos",
    "tanh",
    "sigmoid",
    "erf",
    "erfc",
    "neg",
    "abs",
    "sign",
    "floor",
    "ceil",
    "trunc",
    "round",
    "atan",
    "sinh",
    "cosh",
    "asinh",
    "relu",
    "isnan",
    "isinf",
    "isfinite",
    "signbit",
    "exp2",
    "square",
    "logical_not",
    "frac",
    "sgn",
    "nan_to_num",
    "positive",
    "deg2rad",
):
    case(name, getattr(torch, name), normal(7, 5), dtypes=FLOATS)
    case(f"{name} special", getattr(torch, name), special, dtypes=(torch.float32,))
for name in (
    "log",
    "log2",
    "log10",
    "log1p",
    "sqrt",
    "rsqrt",
    "reciprocal",
    "asin",
    "acos",
    "atanh",
    "lgamma",
    "digamma",
    "erfinv",
    "logit",
    "tan",
):
    case(name, getattr(torch, name), positive(7, 5), dtypes=FLOATS)
case("acosh", lambda x: torch.acosh(x + 2), positive(7, 5), dtypes=FLOATS)
for name in ("sqrt", "log", "reciprocal", "rsqrt", "log1p"):
    case(f"{name} special", getattr(torch, name), special)
for name in ("abs", "neg", "sign", "square", "floor", "ceil", "round", "relu"):
    case(f"{name} integers", getattr(torch, name), integers(-9, 9, 7, 5), dtypes=(torch.int64, torch.int32, torch.int16))
for name in ("exp", "sqrt", "sigmoid", "sin", "reciprocal"):
    case(f"{name} of integers", getattr(torch, name), integers(1, 9, 7), dtypes=INTS)
for name in (
    "add",
    "sub",
    "mul",
    "maximum",
    "minimum",
    "fmax",
    "fmin",
    "atan2",
    "hypot",
    "copysign",
    "div",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "remainder",
    "fmod",
    "logaddexp",
    "floor_divide",
):
    case(name, getattr(torch, name), normal(4, 1, 5), normal(3, 1), dtypes=FLOATS)
    case(f"{name} strided", getattr(torch, name), transposed(6, 5), strided(6, 5))
for name in (
    "maximum",
    "minimum",
    "fmax",
    "fmin",
    "add",
    "mul",
    "eq",
    "lt",
    "copysign",
    "remainder",
    "fmod",
    "div",
    "floor_divide",
    "atan2",
):
    case(f"{name} special", lambda x, y, f=getattr(torch, name): f(x[:, None], y), special, special)
for name in ("add", "sub", "mul", "maximum", "minimum", "eq", "lt", "bitwise_and", "bitwise_or", "bitwise_xor", "fmax"):
    case(f"{name} integers", getattr(torch, name), integers(0, 100, 9), integers(0, 100, 9), dtypes=INTS)
for name in ("remainder", "fmod", "floor_divide", "div"):
    case(f"{name} integers", getattr(torch, name), integers(-50, 50, 31), integers(1, 9, 31), dtypes=(torch.int64, torch.int32))
    case(
        f"{name} negative",
        lambda x, y, f=getattr(torch, name): f(x, -y),
        integers(-50, 50, 31),
        integers(1, 9, 31),
        dtypes=(torch.int64, torch.int32),
    )
for name in (
    "bitwise_and",
    "bitwise_or",
    "bitwise_xor",
    "logical_and",
    "logical_or",
    "logical_xor",
    "eq",
    "ne",
    "add",
    "mul",
    "maximum",
    "lt",
):
    case(f"{name} bool", getattr(torch, name), truth(5, 7), truth(7))
case("bitwise_not", torch.bitwise_not, integers(-9, 9, 7), dtypes=(torch.int64, torch.int32, torch.int8))
case("bitwise_not bool", torch.bitwise_not, truth(7))
case("shifts", lambda x: (x << 3, x >> 2, x << (x & 3)), integers(-99, 99, 17), dtypes=(torch.int64, torch.int32))
case("add alpha", lambda x, y: torch.add(x, y, alpha=0.3), normal(5), normal(5), dtypes=FLOATS)
case("sub alpha", lambda x, y: torch.sub(x, y, alpha=3), integers(0, 9, 5), integers(0, 9, 5), dtypes=(torch.int32,))
case("rsub", lambda x: 3.5 - x, normal(5), dtypes=FLOATS)
case("scalar float to integers", lambda x: (x + 1.5, x * 0.5, x > 2.5, x / 3), integers(0, 9, 6), dtypes=INTS)
case("compare rounds the number", lambda x: (x >= 0.1, x == 0.1), lambda dtype, g: torch.full((3,), 0.1).to(dtype), dtypes=FLOATS)
case("mixed types", lambda x, y: (x + y, x * y, x < y), normal(4), integers(0, 5, 4, dtype=torch.int32), dtypes=FLOATS)
case(
    "mixed floats",
    lambda x, y: (x + y, torch.maximum(x, y), torch.where(x > y, x, y)),
    normal(4),
    lambda d, g: torch.randn(4, generator=g),
    dtypes=FLOATS,
)
case("mixed scalar tensor", lambda x, y: x * y + y, normal(4), lambda d, g: torch.tensor(1.5, dtype=torch.float64), dtypes=FLOATS)
for exponent in (0, 1, 2, 3, 4, 0.5, -0.5, -1, -2, 1.7):
    case(f"pow {exponent}", lambda x, e=exponent: x**e, positive(6), dtypes=FLOATS)
case("pow tensors", torch.pow, positive(6), normal(6), dtypes=FLOATS)
case("pow of a number", lambda x: 2.0**x, normal(6), dtypes=FLOATS)
case("pow integers", lambda x: (x**2, x**3, x**5), integers(-3, 4, 9), dtypes=(torch.int64, torch.int32))
case(
    "div modes",
    lambda x, y: (torch.div(x, y, rounding_mode="floor"), torch.div(x, y, rounding_mode="trunc")),
    normal(9),
    normal(9),
    dtypes=FLOATS,
)
case(
    "div modes integers",
    lambda x: (torch.div(x, 3, rounding_mode="floor"), torch.div(x, 3, rounding_mode="trunc")),
    integers(-9, 9, 9),
    dtypes=(torch.int64, torch.int32),
)
case(
    "addcmul",
    lambda x, y, z: (torch.addcmul(x, y, z, value=0.7), torch.addcdiv(x, y, z.abs() + 1, value=2.0)),
    normal(6),
    normal(6),
    normal(6),
    dtypes=FLOATS,
)
case("lerp", lambda x, y: (torch.lerp(x, y, 0.3), torch.lerp(x, y, 0.8)), normal(6), normal(6), dtypes=FLOATS)
case("lerp weight", torch.lerp, normal(6), normal(6), positive(6), dtypes=FLOATS)
case("clamp", lambda x: (x.clamp(-0.5, 0.5), x.clamp(min=0.1), x.clamp(max=0.2)), normal(9), dtypes=FLOATS)
case("clamp special", lambda x: (x.clamp(-0.5, 0.5), x.clamp(min=0.0), F.hardtanh(x), F.relu6(x)), special)
case("clamp tensors", lambda x, y: (torch.clamp(x, y, y + 1), torch.clamp(x, min=y)), normal(5, 4), normal(4), dtypes=FLOATS)
case(
    "round decimals",
    lambda x: (torch.round(x, decimals=2), torch.round(x * 100, decimals=-1)),
    normal(9),
    dtypes=(torch.float32, torch.float64),
)
case(
    "where",
    lambda c, x, y: (torch.where(c, x, y), torch.where(c, x, 2.0), torch.where(c, 1.0, y)),
    truth(4, 1),
    normal(4, 5),
    normal(5),
    dtypes=FLOATS,
)
case("masked_fill", lambda x, m: (x.masked_fill(m, float("-inf")), x.masked_fill(m, 2)), normal(4, 5), truth(5), dtypes=FLOATS)
for name in (
    "gelu",
    "silu",
    "elu",
    "selu",
    "celu",
    "leaky_relu",
    "softplus",
    "mish",
    "hardswish",
    "hardsigmoid",
    "logsigmoid",
    "relu6",
    "softsign",
    "tanhshrink",
    "hardshrink",
    "softshrink",
    "hardtanh",
):
    case(name, getattr(F, name), normal(7, 5), dtypes=FLOATS)
case("gelu tanh", lambda x: F.gelu(x, approximate="tanh"), normal(9), dtypes=FLOATS)
case("glu", lambda x: F.glu(x), normal(3, 8), dtypes=FLOATS)
case("prelu", lambda x, w: F.prelu(x, w), normal(3, 4, 5), normal(4), dtypes=FLOATS)
case(
    "casts",
    lambda x: tuple(x.to(t) for t in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.bool)),
    normal(9),
    dtypes=FLOATS,
)
case(
    "casts of integers",
    lambda x: tuple(x.to(t) for t in (torch.float32, torch.float16, torch.int8, torch.uint8, torch.int64, torch.bool)),
    integers(-300, 300, 9),
    dtypes=(torch.int64, torch.int32),
)
case(
    "constants",
    lambda x: (
        x + torch.ones(3),
        torch.zeros_like(x),
        torch.full_like(x, 2.5),
        x.new_full((2,), 3.0),
        torch.arange(5),
        torch.arange(1.0, 2.0, 0.25),
        torch.eye(3),
        torch.linspace(0, 1, 5),
        torch.arange(7, 1, -2),
    ),
    normal(3),
)
case("one element", lambda x, y: (x + y, x.sum(), (x * y).exp()), normal(1), normal(1, 1), dtypes=FLOATS)
case("scalars", lambda x, y: (x + y, x.exp(), x.sum(), x.reshape(1)), normal(), normal(), dtypes=FLOATS)
case("empty", lambda x: (x + 1, x.sum(0), x.sum(1), x.exp().reshape(-1), torch.cat([x, x], 0)), normal(0, 3), dtypes=FLOATS)
case(
    "foreach",
    lambda x, y: (
        *torch._foreach_add([x, y], [y, x], alpha=0.5),
        *torch._foreach_mul([x, y], 2.0),
        *torch._foreach_sqrt([x.abs(), y.abs()]),
        *torch._foreach_sigmoid([x, y]),
        *torch._foreach_pow([x.abs(), y.abs()], [x, y]),
        *torch._foreach_norm([x, y, x[:0]]),
        *torch._foreach_norm([x, y], float("inf")),
        *torch._foreach_norm([x.half(), y.half()], 1, dtype=torch.float32),
        *torch._foreach_addcdiv([x, y], [y, x], [x.abs() + 1, y.abs() + 1], value=0.1),
        *torch._foreach_lerp([x, y], [y, x], 0.2),
    ),
    normal(5),
    normal(5),
)

# Reductions
REDUCED = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
for name in ("sum", "mean", "amax", "amin", "var", "std", "logsumexp"):
    case(f"{name} last", lambda x, f=getattr(torch, name): (f(x, -1), f(x, 1, keepdim=True), f(x, (0, 2))), normal(3, 5, 7), dtypes=REDUCED)
    case(f"{name} strided", lambda x, f=getattr(torch, name): f(x, (1,)), transposed(4, 5, 6))
for name in ("sum", "mean", "prod", "max", "min", "argmax", "argmin", "amax"):
    case(f"{name} all", getattr(torch, name), normal(3, 5), dtypes=REDUCED)
for name in ("max", "min"):
    case(f"{name} dim", lambda x, f=getattr(torch, name): f(x, 1), normal(3, 5, 2), dtypes=REDUCED)
    case(
        f"{name} dim keep", lambda x, f=getattr(torch, name): f(x, 0, keepdim=True), integers(0, 4, 6, 5), dtypes=(torch.int64, torch.int32)
    )
case("max special", lambda x: (x.max(), x.min(), x.argmax(), x.argmin(), x.amax(0)), special)
case("argmax ties", lambda x: (x.argmax(1), x.argmin(0), x.argmax()), integers(0, 3, 5, 9), dtypes=(torch.int64, torch.float32))
case("argmax keep", lambda x: (x.argmax(1, keepdim=True), x.argmin(-1, keepdim=True)), normal(4, 6))
case("sum integers", lambda x: (x.sum(), x.sum(0), x.prod(1), x.sum(1, dtype=torch.float32)), integers(0, 5, 3, 5), dtypes=INTS)
case("sum bool", lambda x: (x.sum(), x.sum(0), x.any(), x.all(), x.any(0), x.all(1, keepdim=True)), truth(3, 5))
case("sum dtype", lambda x: (x.sum(0, dtype=torch.float64), x.mean(0, dtype=torch.float32)), normal(9, 4), dtypes=FLOATS)
case(
    "any all",
    lambda x: (x.any(), x.all(), x.any(1), x.all(0), torch.any(x, (0, 1))),
    integers(0, 2, 3, 4),
    dtypes=(torch.float32, torch.int32, torch.uint8),
)
case(
    "var corrections",
    lambda x: (x.var(1, correction=0), x.var((0, 1)), x.std(correction=2), torch.var_mean(x, 1), torch.std_mean(x, 0)),
    normal(5, 8),
    dtypes=REDUCED,
)
for p in (0, 1, 2, 3, float("inf"), float("-inf"), 0.5):
    case(
        f"norm {p}",
        lambda x, p=p: (torch.linalg.vector_norm(x, p), torch.linalg.vector_norm(x, p, 1, keepdim=True)),
        normal(5, 6),
        dtypes=REDUCED,
    )
case("normalize", lambda x: F.normalize(x, dim=1), normal(5, 6), dtypes=REDUCED)
case("softmax", lambda x: (x.softmax(-1), x.softmax(0), F.log_softmax(x, 1), F.softmin(x, 1)), normal(3, 5, 7), dtypes=REDUCED)
case(
    "softmax dtype",
    lambda x: (F.softmax(x, -1, dtype=torch.float32), F.log_softmax(x, -1, dtype=torch.float32)),
    normal(3, 5),
    dtypes=(torch.float16, torch.bfloat16),
)
case("softmax masked", lambda x: x.masked_fill(torch.arange(5) > 2, float("-inf")).softmax(-1), normal(3, 5), dtypes=REDUCED)
case("softmax scalar", lambda x: (x.softmax(0), x.log_softmax(0)), normal())
case("cumsum", lambda x: (x.cumsum(0), x.cumsum(-1), x.flip(1).cumsum(1)), normal(4, 9), dtypes=(torch.float32, torch.float64))
case("cumsum integers", lambda x: (x.cumsum(0), x.cumprod(1)), integers(1, 4, 4, 5), dtypes=(torch.int64, torch.int32))
case("cumprod", lambda x: x.cumprod(0), normal(6, 2), dtypes=(torch.float32, torch.float64))
case("nansum", lambda x: (x.nansum(), torch.nanmean(x)), lambda d, g: torch.tensor([1.0, float("nan"), 2.0]).to(d), dtypes=REDUCED)
case(
    "count_nonzero",
    lambda x: (torch.count_nonzero(x), torch.count_nonzero(x, 1)),
    integers(0, 2, 5, 6),
    dtypes=(torch.int64, torch.float32),
)
case("aminmax", lambda x: (*torch.aminmax(x), *torch.aminmax(x, dim=1)), normal(4, 5))
case("dist", lambda x, y: (torch.dist(x, y), F.cosine_similarity(x, y), F.pairwise_distance(x, y)), normal(4, 5), normal(4, 5))

# Layout
case(
    "views",
    lambda x: (
        x.reshape(6, -1),
        x.view(2, 15).clone(),
        x.flatten(),
        x.unsqueeze(1),
        x[None].squeeze(0),
        x.t().reshape(-1),
        x.expand(2, 5, 6),
    ),
    normal(5, 6),
    dtypes=FLOATS,
)
case(
    "permutes",
    lambda x: (x.permute(2, 0, 1), x.transpose(0, 2), x.mT, x.movedim(0, -1), x.permute(2, 0, 1).contiguous()),
    normal(2, 3, 4),
    dtypes=FLOATS,
)
case(
    "slices",
    lambda x: (x[1:], x[:, ::2], x[-3:-1, 1:-1], x[2], x[..., -1], x[1:4:2, 3], x.narrow(0, 1, 2), x[:, 5:5]),
    normal(5, 6),
    dtypes=FLOATS,
)
case("splits", lambda x: (*x.split(2), *x.chunk(3, 1), *x.unbind(0), *x.split([1, 4], 0), *torch.tensor_split(x, 2, 1)), normal(5, 6))
case(
    "cat",
    lambda x, y: (
        torch.cat([x, y], 0),
        torch.cat([x, x, x], 1),
        torch.cat([x, y.half()], 0),
        torch.stack([x, x + 1], 1),
        torch.hstack([x, x]),
    ),
    normal(2, 3),
    normal(4, 3),
)
case("cat empty", lambda x: (torch.cat([x, x[:0]], 0), torch.cat([x.new_zeros(0), x], 0)), normal(3, 2))
case("flip roll", lambda x: (x.flip(0), x.flip(0, 1), x.roll(2, 0), x.roll((1, -1), (0, 1)), x.roll(3), x.rot90()), normal(4, 5))
case("repeat", lambda x: (x.repeat(2, 3), x.repeat(2, 1, 1), x.tile(2), x.repeat_interleave(3, 0), x.repeat_interleave(2)), normal(2, 3))
case("pad", lambda x: (F.pad(x, (1, 2)), F.pad(x, (1, 0, 2, 1), value=3.5), F.pad(x, (-1, 2))), normal(2, 3, 4), dtypes=FLOATS)
case(
    "pad reflect",
    lambda x: (F.pad(x, (1, 2), mode="reflect"), F.pad(x, (2, 3), mode="replicate"), F.pad(x, (2, 1), mode="circular")),
    normal(2, 3, 4),
)
case("pad reflect plane", lambda x: (F.pad(x, (1, 2, 2, 1), mode="reflect"), F.pad(x, (1, 2, 0, 3), mode="replicate")), normal(1, 2, 4, 5))
case("triangles", lambda x: (x.tril(), x.triu(1), x.tril(-2), torch.tril(x, 2), x.triu(-1)), normal(2, 4, 5))
case("diagonal", lambda x: (x.diagonal(), x.diagonal(1), torch.diagonal(x, -1, 0, 1), x.diag_embed(), x[:4, :4].trace()), normal(4, 5))
case("unfold", lambda x: (x.unfold(1, 3, 2), x.unfold(0, 2, 1)), normal(4, 9))
case("im2col", lambda x: F.unfold(x, (2, 3), dilation=(1, 2), padding=(1, 0), stride=(1, 2)), normal(2, 3, 6, 7))
case(
    "pixel shuffle",
    lambda x: (F.pixel_shuffle(x, 2), F.pixel_unshuffle(F.pixel_shuffle(x, 2), 2), F.channel_shuffle(x, 2)),
    normal(2, 8, 3, 5),
)
case("as_strided", lambda x: (x.as_strided((3, 4), (2, 1)), x.as_strided((2, 2), (1, 5), 3)), normal(20))
case("slice assign", lambda x, y: (_assign(x, y), x * 1), normal(5, 6), normal(5, 2))
case("meshgrid", lambda x, y: torch.meshgrid(x, y, indexing="ij"), normal(3), normal(4))
case(
    "upsample",
    lambda x: (
        F.interpolate(x, scale_factor=2),
        F.interpolate(x, size=(7, 5)),
        F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False),
    ),
    normal(1, 2, 4, 3),
)
case("outer", lambda x, y: (torch.outer(x, y), torch.einsum("i,j->ij", x, y), torch.kron(x, y)), normal(3), normal(4))


def _assign(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = x.clone()
    out[:, 1:5:2] = y
    out[0].fill_(1.0)
    out[:, -1].add_(2.0)
    return out


# Subscripts
case("embedding", lambda w, i: F.embedding(i, w), normal(11, 4), integers(0, 11, 3, 5, dtype=torch.int64), dtypes=FLOATS)
case("embedding int32", lambda w, i: F.embedding(i, w, padding_idx=2), normal(11, 4), integers(0, 11, 7, dtype=torch.int32))
case(
    "embedding backward",
    lambda g, i: A.embedding_dense_backward(g, i, 11, 2, False),
    normal(3, 5, 4),
    integers(0, 11, 3, 5, dtype=torch.int64),
    dtypes=FLOATS,
)
case(
    "gather",
    lambda x, i: (x.gather(1, i), torch.take_along_dim(x, i, 1)),
    normal(4, 6),
    integers(0, 6, 4, 3, dtype=torch.int64),
    dtypes=FLOATS,
)
case(
    "index_select",
    lambda x, i: (x.index_select(1, i), x[:, i], x[i[:3] % 4]),
    normal(4, 6),
    integers(0, 6, 5, dtype=torch.int64),
    dtypes=FLOATS,
)
case(
    "index",
    lambda x, i, j: (x[i], x[i, j], x[:, i, j], x[i, :, j], x[:, i[:, None], j[None]], x[-i - 1]),
    normal(5, 5, 5),
    integers(0, 5, 4, dtype=torch.int64),
    integers(0, 5, 4, dtype=torch.int64),
)
case("take", lambda x, i: torch.take(x, i), normal(4, 5), integers(0, 20, 3, 2, dtype=torch.int64))
case(
    "index_put",
    lambda x, i, v: (x.index_put((i,), v), x.index_put((i,), v, accumulate=True)),
    normal(9, 3),
    lambda d, g: torch.randperm(9, generator=g)[:4],
    normal(4, 3),
)
case(
    "index_put add",
    lambda x, i, v: x.index_put((i, i), v, accumulate=True),
    normal(5, 5, 2),
    integers(0, 5, 7, dtype=torch.int64),
    normal(7, 2),
)
case("index_put mask", lambda x, m: x.index_put((m,), torch.full((), 2.0)), normal(4, 5), truth(4, 5))
case("index_put mask rows", lambda x, m: x.index_put((m,), torch.full((), 2.0)), normal(4, 5), truth(4))
case(
    "scatter",
    lambda x, i, v: (x.scatter(0, i, v), x.scatter(0, i, 1.5)),
    normal(9, 3),
    lambda d, g: torch.stack([torch.randperm(9, generator=g)[:4] for _ in range(3)], 1),
    normal(6, 3),
)
case(
    "scatter_add",
    lambda x, i, v: (
        x.scatter_add(1, i, v),
        x.scatter_reduce(1, i, v, "amax"),
        x.scatter_reduce(1, i, v, "sum"),
        x.scatter_reduce(1, i, v, "prod"),
    ),
    normal(4, 6),
    integers(0, 6, 4, 8, dtype=torch.int64),
    normal(4, 9),
    dtypes=(torch.float32, torch.float64),
)
case(
    "index_add",
    lambda x, i, v: (x.index_add(1, i, v), x.index_add(1, i, v, alpha=0.5)),
    normal(4, 6),
    integers(0, 6, 9, dtype=torch.int64),
    normal(4, 9),
    dtypes=(torch.float32, torch.float64),
)
case(
    "index_copy",
    lambda x, i, v: (x.index_copy(0, i, v), x.index_fill(0, i, 2.5)),
    normal(9, 3),
    lambda d, g: torch.randperm(9, generator=g)[:4],
    normal(4, 3),
)
case("one_hot", lambda i: F.one_hot(i, 7), integers(0, 7, 3, 4, dtype=torch.int64))

# Normalisation
case(
    "layer_norm",
    lambda x, w, b: (F.layer_norm(x, (7,), w, b), F.layer_norm(x, (5, 7))),
    normal(3, 5, 7),
    normal(7),
    normal(7),
    dtypes=FLOATS,
)
case(
    "layer_norm backward",
    lambda g, x, w, b: A.native_layer_norm_backward(g, x, (7,), *A.native_layer_norm(x, (7,), w, b, 1e-5)[1:], w, b, (True, True, True)),
    normal(3, 7),
    normal(3, 7),
    normal(7),
    normal(7),
    dtypes=(torch.float32, torch.float64),
)
case("rms_norm", lambda x, w: (F.rms_norm(x, (7,), w, 1e-6), F.rms_norm(x, (7,))), normal(3, 5, 7), normal(7), dtypes=FLOATS)
case("group_norm", lambda x, w, b: F.group_norm(x, 2, w, b), normal(3, 4, 5), normal(4), normal(4), dtypes=FLOATS)
case(
    "group_norm backward",
    lambda g, x, w: A.native_group_norm_backward(
        g, x, *A.native_group_norm(x, w, None, 3, 4, 5, 2, 1e-5)[1:], w, 3, 4, 5, 2, (True, True, True)
    ),
    normal(3, 4, 5),
    normal(3, 4, 5),
    normal(4),
    dtypes=(torch.float32, torch.float64),
)
case("instance_norm", lambda x, w, b: F.instance_norm(x, weight=w, bias=b), normal(3, 4, 5, 2), normal(4), normal(4))
case(
    "batch_norm",
    lambda x, m, v, w, b: F.batch_norm(x, m, v.abs(), w, b),
    normal(3, 4, 5),
    normal(4),
    normal(4),
    normal(4),
    normal(4),
    dtypes=FLOATS,
)
case(
    "batch_norm training",
    lambda x, m, v, w, b: A._native_batch_norm_legit_functional(x, w, b, m, v, True, 0.1, 1e-5),
    normal(3, 4, 5),
    normal(4),
    positive(4),
    normal(4),
    normal(4),
)
case(
    "batch_norm backward",
    lambda g, x, w, m, v: A.native_batch_norm_backward(
        g, x, w, m, v, *A._native_batch_norm_legit_functional(x, w, None, m, v, True, 0.1, 1e-5)[1:3], True, 1e-5, (True, True, True)
    ),
    normal(3, 4, 5),
    normal(3, 4, 5),
    normal(4),
    normal(4),
    positive(4),
)
case("local response", lambda x: F.local_response_norm(x, 3), normal(2, 5, 4))

# Pooling
for ceil in (False, True):
    case(
        f"max_pool2d ceil={ceil}",
        lambda x, c=ceil: F.max_pool2d(x, 3, 2, 1, ceil_mode=c, return_indices=True),
        normal(2, 3, 8, 7),
        dtypes=FLOATS,
    )
    case(
        f"avg_pool2d ceil={ceil}",
        lambda x, c=ceil: (
            F.avg_pool2d(x, 3, 2, 1, ceil_mode=c),
            F.avg_pool2d(x, (2, 3), (1, 2), (1, 1), c, False),
            F.avg_pool2d(x, 2, divisor_override=3),
        ),
        normal(2, 3, 8, 7),
        dtypes=FLOATS,
    )
case("max_pool2d dilation", lambda x: F.max_pool2d(x, 2, 1, 1, 2), normal(2, 3, 8, 7))
case(
    "pool 1d 3d",
    lambda x: (F.avg_pool1d(x[0], 3, 2), F.max_pool1d(x[0], 2), F.avg_pool3d(x[None], 2), F.max_pool3d(x[None], 2, 1)),
    normal(2, 3, 6, 6),
)
case(
    "max_pool2d backward",
    lambda x, g: A.max_pool2d_with_indices_backward(
        g, x, (3, 3), (2, 2), (1, 1), (1, 1), False, A.max_pool2d_with_indices(x, (3, 3), (2, 2), (1, 1))[1]
    ),
    normal(2, 3, 8, 7),
    normal(2, 3, 4, 4),
)
case(
    "max_pool2d backward dilation",
    lambda x, g: A.max_pool2d_with_indices_backward(
        g, x, (2, 2), (2, 1), (0, 1), (2, 3), False, A.max_pool2d_with_indices(x, (2, 2), (2, 1), (0, 1), (2, 3))[1]
    ),
    normal(2, 3, 8, 7),
    normal(2, 3, 3, 6),
)
# Places within windows, as the two parts of a training step keep them.
case(
    "max_pool near backward",
    lambda g, p: NEAR_BACKWARD(g, p.clamp(4, 5).to(torch.uint8), [2, 3, 8, 7], [3, 3], [2, 2], [1, 1], [1, 1], False),
    normal(2, 3, 4, 4),
    normal(2, 3, 4, 4),
)
case(
    "max_pool near backward dilation",
    lambda g, p: NEAR_BACKWARD(g, p.abs().clamp(0, 3).to(torch.uint8), [2, 3, 8, 7], [2, 2], [2, 1], [0, 0], [2, 3], False),
    normal(2, 3, 3, 4),
    normal(2, 3, 3, 4),
)
for include in (True, False):
    case(
        f"avg_pool2d backward pad={include}",
        lambda x, g, p=include: A.avg_pool2d_backward(g, x, (3, 3), (2, 2), (1, 1), False, p, None),
        normal(2, 3, 8, 7),
        normal(2, 3, 4, 4),
    )
case(
    "avg_pool2d backward ceil",
    lambda x, g: (
        A.avg_pool2d_backward(g, x, (2, 3), (2, 2), (0, 1), True, True, None),
        A.avg_pool2d_backward(g, x, (2, 3), (2, 2), (0, 1), True, False, 5),
    ),
    normal(2, 3, 7, 7),
    normal(2, 3, 4, 4),
)
case(
    "adaptive pools",
    lambda x: (
        F.adaptive_avg_pool2d(x, (2, 4)),
        F.adaptive_avg_pool2d(x, (3, 5)),
        F.adaptive_avg_pool2d(x, 1),
        *F.adaptive_max_pool2d(x, (3, 4), return_indices=True),
    ),
    normal(2, 3, 8, 8),
)
case("adaptive 1d", lambda x: (F.adaptive_avg_pool1d(x, 3), F.adaptive_max_pool1d(x, 3)), normal(2, 3, 7))
case("adaptive_avg_pool2d backward", lambda x, g: A._adaptive_avg_pool2d_backward(g, x), normal(2, 3, 8, 6), normal(2, 3, 4, 3))
case(
    "adaptive_max_pool2d backward",
    lambda x, g: A.adaptive_max_pool2d_backward(g, x, A.adaptive_max_pool2d(x, (3, 3))[1]),
    normal(2, 3, 8, 7),
    normal(2, 3, 3, 3),
)

# Losses
for reduction in ("none", "mean", "sum"):
    case(
        f"cross_entropy {reduction}",
        lambda x, t, r=reduction: F.cross_entropy(x, t, reduction=r),
        normal(6, 9),
        integers(0, 9, 6, dtype=torch.int64),
        dtypes=FLOATS,
    )
    case(
        f"nll_loss {reduction}",
        lambda x, t, w, r=reduction: F.nll_loss(x, t, w, ignore_index=2, reduction=r),
        normal(6, 9),
        integers(0, 9, 6, dtype=torch.int64),
        positive(9),
    )
case(
    "cross_entropy plane",
    lambda x, t, w: F.cross_entropy(x, t, w),
    normal(2, 5, 3, 4),
    integers(0, 5, 2, 3, 4, dtype=torch.int64),
    positive(5),
)
case(
    "cross_entropy ignore",
    lambda x, t: F.cross_entropy(x, t, ignore_index=-100),
    normal(4, 5),
    lambda d, g: torch.tensor([1, -100, 3, -100]),
)
case("cross_entropy smooth", lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1), normal(4, 5), integers(0, 5, 4, dtype=torch.int64))
case(
    "nll backward",
    lambda x, t, w: A.nll_loss_backward(x.sum(), x, t, w, 1, 2, w.sum()),
    normal(6, 9),
    integers(0, 9, 6, dtype=torch.int64),
    positive(9),
)
case(
    "nll2d backward",
    lambda x, t: A.nll_loss2d_backward(x[:, 0], x, t, None, 0, -100, x.sum()),
    normal(2, 5, 3, 4),
    integers(0, 5, 2, 3, 4, dtype=torch.int64),
)
for name in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "soft_margin_loss"):
    case(
        name,
        lambda x, y, f=getattr(F, name): (f(x, y), f(x, y, reduction="sum"), f(x, y, reduction="none")),
        normal(4, 5),
        normal(4, 5),
        dtypes=(torch.float32, torch.float64),
    )
case(
    "bce",
    lambda x, y: (F.binary_cross_entropy(x, y), F.binary_cross_entropy_with_logits(x, y), F.kl_div(x.log(), y)),
    positive(4, 5),
    positive(4, 5),
)
case(
    "margin losses",
    lambda x, y: (F.hinge_embedding_loss(x, y.sign()), F.cosine_embedding_loss(x, y, torch.ones(4)), F.poisson_nll_loss(x, y.abs())),
    normal(4, 5),
    normal(4, 5),
)

# Library calls
case(
    "products",
    lambda x, y, v: (x @ y, torch.mm(x, y), x @ v, v @ v, torch.addmm(v[:6], x, y), torch.addmm(v[:6], x, y, alpha=0.5, beta=2.0)),
    normal(5, 7),
    normal(7, 6),
    normal(7),
)
case(
    "linear",
    lambda x, w, b: (F.linear(x, w, b), F.relu(F.linear(x, w, b))),
    normal(2, 3, 5),
    normal(4, 5),
    normal(4),
    dtypes=(torch.float32, torch.float64),
)
case(
    "batched",
    lambda x, y: (torch.bmm(x, y), torch.baddbmm(x @ y, x, y), torch.einsum("bij,bjk->bik", x, y), x[0] @ y),
    normal(3, 4, 5),
    normal(3, 5, 2),
)
case(
    "convolutions",
    lambda x, w, b: (F.conv2d(x, w, b, 2, 1), F.relu(F.conv2d(x, w, b)), F.conv_transpose2d(F.conv2d(x, w), w, None, 2, 1, 1)),
    normal(2, 4, 8, 9),
    normal(6, 4, 3, 3),
    normal(6),
)
case(
    "convolution 1d groups",
    lambda x, w: (F.conv1d(x, w, groups=2, dilation=2), F.conv1d(x, w, padding="same", groups=2)),
    normal(2, 4, 9),
    normal(6, 2, 3),
)
case(
    "convolution backward",
    lambda g, x, w: A.convolution_backward(g, x, w, [6], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, True, True]),
    normal(2, 6, 6, 7),
    normal(2, 4, 8, 9),
    normal(6, 4, 3, 3),
)
case(
    "attention",
    lambda q, k, v: (F.scaled_dot_product_attention(q, k, v), F.scaled_dot_product_attention(q, k, v, is_causal=True)),
    normal(2, 3, 5, 8),
    normal(2, 3, 5, 8),
    normal(2, 3, 5, 8),
)

# Only torch can do these: they must come through as library nodes
case("put", lambda x, i, v: (x.put(i, v[:2]), x.put(i, v[2:], accumulate=True), x.put(i[:0], v[:0])),
     transposed(4, 5), lambda dtype, g: torch.tensor([3, -2]), normal(4), dtypes=(torch.float32, torch.float16, torch.int32))
case("matrix transposes", lambda x: (A.mT(x) + 1, A.mH(x) * 2, A.adjoint(x) - 1), normal(2, 4, 5))

# Scans by other operators, searches, histograms, bags of embeddings, distances
for name in ("cummax", "cummin"):
    case(f"{name} of floats", lambda x, f=getattr(torch, name): (*f(x, 0), *f(x, -1)), normal(4, 37), dtypes=FLOATS)
    case(f"{name} of integers", lambda x, f=getattr(torch, name): (*f(x, 0), *f(x[0, 0], 0)), integers(0, 4, 9, 3),
         dtypes=(*INTS, torch.bool))
    case(f"{name} special", lambda x, f=getattr(torch, name): (*f(x, 0), *f(x.flip(0), 0), *f(x[:0], 0)), special)
case("logcumsumexp", lambda x: (x.logcumsumexp(0), (x * 40).logcumsumexp(-1), x[:, 0, None].logcumsumexp(1)), strided(5, 37), dtypes=FLOATS)
case("logcumsumexp special", lambda x: (x.logcumsumexp(0), x[:6].logcumsumexp(0), x[5:6].logcumsumexp(0), x[:0].logcumsumexp(0)), special,
     dtypes=(torch.float32, torch.float64))
case(
    "searchsorted",
    lambda s, v, w: (torch.searchsorted(s.sort(-1)[0], v), torch.searchsorted(s.sort(-1)[0], v, right=True, out_int32=True),
                     torch.searchsorted(s[0].sort()[0], w, side="right"), torch.searchsorted(s[:, :0], v),
                     torch.searchsorted(s[0, :1].contiguous(), w)),
    normal(3, 17), transposed(3, 9), normal(2, 3, 5), dtypes=FLOATS,
)
case("searchsorted with equal elements", lambda s, v: (torch.searchsorted(s.sort()[0], v), torch.searchsorted(s.sort()[0], v, right=True),
                                                      torch.searchsorted(s.sort()[0], 3), torch.bucketize(3, s.sort()[0], right=True)),
     integers(0, 6, 33), integers(-1, 8, 4, 5), dtypes=INTS)
case("searchsorted by an order", lambda s, v: torch.searchsorted(s, v, sorter=s.argsort(-1)), normal(2, 3, 8), normal(2, 3, 4))
case("bucketize special", lambda v, s: (torch.bucketize(v, s.sort()[0]), torch.bucketize(v, s.sort()[0], right=True)), special, normal(64))
case("histc", lambda x: (x.histc(7), x.histc(5, -1, 1.5), x.histc(4, 1, 1), (x * 0 + 3).histc(3), x[:0].histc(3)), normal(9, 11),
     dtypes=FLOATS[:2])
case("histc special", lambda x: x.histc(6, -3, 3), special)
for reduce in ("prod", "mean", "amax", "amin"):
    case(
        f"index_reduce {reduce}",
        lambda x, i, v, how=reduce: (x.index_reduce(1, i, v, how), x.index_reduce(1, i, v, how, include_self=False)),
        normal(3, 7), integers(0, 5, 9, dtype=torch.int64), normal(3, 9), dtypes=FLOATS[:2],
    )
    if reduce != "mean":
        case(f"index_reduce {reduce} of integers", lambda x, i, v, how=reduce: x.index_reduce(0, i, v, how, include_self=False),
             integers(1, 4, 5), integers(0, 4, 6, dtype=torch.int64), integers(1, 4, 6), dtypes=INTS)


def starts(dtype: torch.dtype, g: torch.Generator) -> torch.Tensor:
    """Where bags of 20 indices begin; two are empty."""
    return torch.tensor([0, 3, 3, 9, 20])


for mode in ("sum", "mean", "max"):
    case(
        f"embedding_bag {mode}",
        lambda w, i, o, how=mode: (
            F.embedding_bag(i, w, o, mode=how), F.embedding_bag(i, w, o, mode=how, include_last_offset=True),
            F.embedding_bag(i, w, o.int(), mode=how, padding_idx=2), F.embedding_bag(i.view(4, 5).int(), w, mode=how),
            F.embedding_bag(i[:0], w, o[:1], mode=how)),
        normal(6, 5), integers(0, 6, 20, dtype=torch.int64), starts, dtypes=FLOATS,
    )
case("embedding_bag weighted", lambda w, i, o, s: (F.embedding_bag(i, w, o, mode="sum", per_sample_weights=s),
                                                F.embedding_bag(i, w, o, mode="sum", per_sample_weights=s, padding_idx=1)),
     normal(6, 5), integers(0, 6, 20, dtype=torch.int64), starts, normal(20), dtypes=FLOATS)
for p in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, float("inf")):
    case(f"cdist {p}", lambda x, y, p=p: (torch.cdist(x, y, p), torch.cdist(x[0], y[0], p), torch.cdist(x[..., :0], y[..., :0], p)),
         normal(2, 7, 5), normal(2, 4, 5), dtypes=FLOATS[:2])
    case(f"cdist {p} backward", lambda g, x, y, p=p: A._cdist_backward(g, x, y, p, torch.cdist(x, y, p)),
         normal(2, 7, 4), normal(2, 7, 5), normal(2, 4, 5), dtypes=FLOATS[:2])

FALLBACKS: list[Case] = [
    ("sort", lambda x: torch.sort(x + 1, 1), (normal(4, 5),), (torch.float32,)),
    ("topk", lambda x: torch.topk(x * 2, 2), (normal(4, 5),), (torch.float32,)),
    ("kthvalue", lambda x: torch.kthvalue(x, 2, 0), (normal(4, 5),), (torch.float32,)),
    ("median", lambda x: torch.median(x, 1), (normal(4, 5),), (torch.float32,)),
    ("grid_sample", lambda x, y: F.grid_sample(x, y, align_corners=False), (normal(1, 2, 4, 4), normal(1, 3, 3, 2)), (torch.float32,)),
]


def inputs_for(name: str, makers: tuple[Any, ...], dtype: torch.dtype) -> list[torch.Tensor]:
    seed = zlib.crc32(f"{name} {dtype}".encode())
    print(f"seed {seed}")
    generator = torch.Generator().manual_seed(seed)
    return [make(dtype, generator) for make in makers]

# Gradients and rearrangements that torch gives as operators of their own
case(
    "adaptive pool backward, unequal windows",
    lambda x, g, h: (A._adaptive_avg_pool2d_backward(g, x), A._adaptive_avg_pool2d_backward(h, x)),
    normal(2, 3, 7, 5), normal(2, 3, 3, 4), normal(2, 3, 9, 5),
    dtypes=(torch.float32, torch.float64, torch.bfloat16),
)
case("adaptive max pool backward of one image", lambda x, g, i: A.adaptive_max_pool3d_backward(g, x, i),
     normal(3, 4, 4, 6), normal(3, 2, 2, 2), integers(0, 96, 3, 2, 2, 2, dtype=torch.int64))
case("adaptive pool backward of no images", lambda x, g: A._adaptive_avg_pool2d_backward(g, x), normal(0, 3, 7, 5), normal(0, 3, 3, 4))
case(
    "replication pad backward",
    lambda x, g, h: (A.replication_pad2d_backward(g, x, (2, 1, 0, 3)), A.replication_pad2d_backward(h, x, (-1, 2, 3, -2))),
    normal(2, 3, 4, 5), normal(2, 3, 7, 8), normal(2, 3, 5, 6),
    dtypes=(torch.float32, torch.float64),
)
case("diagonal_scatter", lambda x, s, t: (torch.diagonal_scatter(x, s, -2), torch.diagonal_scatter(x, t, 1)),
     normal(5, 4), normal(3), normal(3))
case("diagonal_scatter of planes", lambda x, s: torch.diagonal_scatter(x, s, 1, 2, 0), normal(4, 3, 5), normal(3, 3))
case("masked_scatter", lambda x, m, s: x.masked_scatter(m, s), normal(5, 7), truth(5, 7), normal(40))
case("masked_scatter of rows", lambda x, m, s: x.masked_scatter(m[:, None], s), normal(5, 7), truth(5), normal(6, 7))
for reduce in ("sum", "prod", "amax", "amin", "mean"):
    case(
        f"scatter_reduce {reduce} without self",
        lambda x, i, v, how=reduce: (x.scatter_reduce(1, i, v, how, include_self=False), x.scatter_reduce(1, i, v, how)),
        normal(3, 7), integers(0, 5, 3, 9, dtype=torch.int64), normal(3, 9),
    )
case("one place of no dimension", lambda x, i: (x.index_fill(0, i, 3.0), x.index_copy(0, i, x * 2)), normal(),
     integers(0, 1, 1, dtype=torch.int64))
case("group_norm of no samples", lambda x: F.group_norm(x, 1), normal(0, 2, 3))
case("batch norm by narrow running statistics", lambda x, m, v: A._native_batch_norm_legit(x, None, None, m, v, False, 0.1, 1e-5)[0],
     normal(5, 3), normal(3), positive(3), dtypes=(torch.bfloat16, torch.float32))
case("angle", lambda x: x.angle(), special, dtypes=FLOATS[:2])
case("addbmm", lambda c, x, y: (torch.addbmm(c, x, y), torch.addbmm(c, x, y, beta=0.5, alpha=2.0)),
     normal(3, 4), normal(5, 3, 6), normal(5, 6, 4))
case("linspace of integers", lambda x: x + torch.linspace(4.3, -3, 50, dtype=torch.int64), normal(50))
case("grid_sample", lambda x, g: (F.grid_sample(x, g, align_corners=False), F.grid_sample(x, g, "nearest", "border", align_corners=True)),
     normal(2, 3, 5, 6), normal(2, 4, 3, 2))



@pytest.mark.parametrize(
    ("name", "fn", "makers", "dtype"), [pytest.param(n, f, m, d, id=f"{n}-{str(d)[6:]}") for n, f, m, ds in CASES for d in ds]
)
def test_lowered(name: str, fn: Callable[..., Any], makers: tuple[Any, ...], dtype: torch.dtype) -> None:
    inputs = inputs_for(name, makers, dtype)
    imported = trace(fn, inputs)
    assert_same(flat(run_imported(imported, inputs)), flat(fn(*inputs)))
    assert imported.fallbacks == (), imported.fallbacks


@pytest.mark.parametrize(("name", "fn", "makers", "dtypes"), FALLBACKS, ids=[f[0] for f in FALLBACKS])
def test_left_to_torch(name: str, fn: Callable[..., Any], makers: tuple[Any, ...], dtypes: tuple[torch.dtype, ...]) -> None:
    inputs = inputs_for(name, makers, dtypes[0])
    imported = trace(fn, inputs)
    assert_same(flat(run_imported(imported, inputs)), flat(fn(*inputs)))
