"""The memory-bound patterns, each at sizes that move a few hundred megabytes: what tilefuse must run at the speed of a copy."""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
import torch.nn.functional as F

from benchmarks import image_patterns, jax_patterns
from benchmarks.case import DTYPES, Case, Inputs, Tensors

LENGTHS = (256, 1024, 4096, 8192, 32768, 65536, 262144)
FIRST_LENGTHS = (1024, 8192, 65536, 262144)
ITEM_BYTES = {"f32": 4, "f16": 2, "bf16": 2}
EPS = 1e-5
LONG_ROW = 262144


def cases(size_mib: int = 256) -> list[Case]:
    """Every case, those of rank 0 first. Units: each case moves about `size_mib` MiB."""
    size = size_mib << 20
    found: list[Case] = []
    for dtype in ("f16", "f32", "bf16"):
        found += _elementwise(dtype, size)
        found += _layouts(dtype, size)
        for length in LENGTHS:
            found += _rows(dtype, length, size)
        found += _columns(dtype, size)
    found += _adam(size)
    found += image_patterns.cases(size)
    return sorted(found, key=lambda case: case.rank)


def _rank(dtype: str, length: int | None = None) -> int:
    is_first = length is None or length in FIRST_LENGTHS
    return (0 if dtype == "f16" else 1 if dtype == "f32" else 2) + (0 if is_first else 1)


def _share(length: int) -> float:
    return 0.8 if length >= LONG_ROW else 0.9


def _normal(*shapes: tuple[int, ...], dtype: str, scale: float = 1.0) -> Inputs:
    def make(device: torch.device, generator: torch.Generator) -> list[torch.Tensor]:
        return [
            (torch.randn(shape, device=device, generator=generator) * scale).to(DTYPES[dtype])
            for shape in shapes
        ]

    return make


def _num_rows(dtype: str, length: int, size: int, tensors: int) -> int:
    return max(1, size // (ITEM_BYTES[dtype] * tensors * length))


# -- elementwise -------------------------------------------------------------------------------------------------------------

def chain(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Six elementwise operators on two tensors."""
    return torch.tanh(x * 0.5 + y) * torch.sigmoid(y) - x


def gelu_bias(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """GELU (exact form) of x plus a bias over the last axis."""
    return F.gelu(x + b)


def gelu_tanh_bias(x: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """GELU (tanh form) of x plus a bias."""
    return F.gelu(x + b, approximate="tanh")


def swiglu_bias(gate: torch.Tensor, up: torch.Tensor, bg: torch.Tensor, bu: torch.Tensor) -> torch.Tensor:
    """silu(gate + bias) * (up + bias)."""
    return F.silu(gate + bg) * (up + bu)


def dropout_add(x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
    """residual + dropout(x): the random bits are drawn inside."""
    return residual + F.dropout(x, 0.1, True)


def dropout_error(inputs: Sequence[torch.Tensor], outputs: Tensors) -> float:
    """Every element is residual or residual + x / 0.9, and nine tenths (within six deviations) are kept.

    Which elements are kept is counted where rounding cannot hide it: an x that is lost in the residual's last place tells nothing, and
    whether it is, the random bits do not decide. Infinite where a result is NaN or infinite.
    """
    x, residual = (t.double() for t in inputs)
    out = outputs[0].double()
    if not out.isfinite().all():
        return float("inf")
    change = x / 0.9
    kept = (out - residual - change).abs()
    dropped = (out - residual).abs()
    eps = torch.finfo(outputs[0].dtype).eps
    told = change.abs() > 2 * eps * residual.abs()
    count = told.sum().item()
    share = ((kept < dropped) & told).sum().item() / max(count, 1)
    # A random number that is itself rounded to the type meets the bound of 0.1 within a unit in its last place.
    if abs(share - 0.9) > 6 * (0.09 / max(count, 1)) ** 0.5 + eps / 16:
        return float("inf")
    return (torch.minimum(kept, dropped).norm() / out.norm()).item()


def _elementwise(dtype: str, size: int) -> Iterator[Case]:
    width = 4096
    rank = _rank(dtype)
    normal = partial(_normal, dtype=dtype)
    n2, n3 = _num_rows(dtype, width, size, 2), _num_rows(dtype, width, size, 3)
    make = partial(Case, dtype=dtype, rank=rank)
    yield make(f"elementwise/{dtype}/{n3}x{width}", "elementwise", function=chain, inputs=normal((n3, width), (n3, width)),
               jax=jax_patterns.chain)
    yield make(f"gelu-bias/{dtype}/{n2}x{width}", "gelu-bias", function=gelu_bias, inputs=normal((n2, width), (width,)),
               jax=jax_patterns.gelu_bias)
    yield make(f"gelu-tanh-bias/{dtype}/{n2}x{width}", "gelu-bias", function=gelu_tanh_bias, inputs=normal((n2, width), (width,)),
               jax=jax_patterns.gelu_tanh_bias)
    yield make(f"swiglu-bias/{dtype}/{n3}x{width}", "swiglu-bias", function=swiglu_bias,
               inputs=normal((n3, width), (n3, width), (width,), (width,)), jax=jax_patterns.swiglu_bias)
    yield make(f"dropout-add/{dtype}/{n3}x{width}", "dropout-add", function=dropout_add, inputs=normal((n3, width), (n3, width)),
               check=dropout_error, tags=("random",))


def adam(p: torch.Tensor, g: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> Tensors:
    """One AdamW update of one tensor: new parameter and moments."""
    m = 0.9 * m + 0.1 * g
    v = 0.999 * v + 0.001 * g * g
    update = (m / 0.271) / (torch.sqrt(v / 0.002997) + 1e-8)
    return p * (1 - 1e-5) - 1e-3 * update, m, v


def _adam(size: int) -> Iterator[Case]:
    elements = size // (4 * 7)

    def make(device: torch.device, generator: torch.Generator) -> list[torch.Tensor]:
        p, g, m, v = (torch.randn(elements, device=device, generator=generator) for _ in range(4))
        return [p, g, m, v.square()]

    yield Case(f"adam/f32/{elements}", "adam", "f32", adam, make, jax=jax_patterns.adam)


# -- layouts -----------------------------------------------------------------------------------------------------------------

def permuted(*order: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """A function that permutes into fresh row-major storage."""

    def permute(x: torch.Tensor) -> torch.Tensor:
        return x.permute(order).contiguous()

    return permute


def _layouts(dtype: str, size: int) -> Iterator[Case]:
    elements = size // (2 * ITEM_BYTES[dtype])
    side = int(elements**0.5) // 64 * 64 or 64
    batch = max(1, elements // (1024 * 1024))
    images = max(1, elements // (256 * 56 * 56))
    sentences = max(1, elements // (2048 * 16 * 64))
    shapes = (
        ("transpose", (side, side), (1, 0)),
        ("transpose-batched", (batch, 1024, 1024), (0, 2, 1)),
        ("permute-channels-last", (images, 256, 56, 56), (0, 2, 3, 1)),
        ("permute-heads", (sentences, 2048, 16, 64), (0, 2, 1, 3)),
    )
    for name, shape, order in shapes:
        yield Case(f"{name}/{dtype}/{'x'.join(map(str, shape))}", "transpose", dtype, permuted(*order), _normal(shape, dtype=dtype),
                   jax=jax_patterns.permuted(*order), rank=_rank(dtype), min_of_limit=0.8)


# -- rows --------------------------------------------------------------------------------------------------------------------

def softmax(x: torch.Tensor) -> torch.Tensor:
    """Softmax of the last axis."""
    return torch.softmax(x, -1)


def log_softmax(x: torch.Tensor) -> torch.Tensor:
    """Logarithm of the softmax of the last axis."""
    return torch.log_softmax(x, -1)


def softmax_backward(g: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Gradient of softmax from the gradient of its result and the result."""
    return torch.ops.aten._softmax_backward_data(g, y, -1, y.dtype)


def log_softmax_backward(g: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Gradient of log-softmax from the gradient of its result and the result."""
    return torch.ops.aten._log_softmax_backward_data(g, y, -1, y.dtype)


def layer_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Layer norm of the last axis with weight and bias."""
    return F.layer_norm(x, x.shape[-1:], w, b, EPS)


def layer_norm_backward(g: torch.Tensor, x: torch.Tensor, mean: torch.Tensor, rstd: torch.Tensor, w: torch.Tensor,
                        b: torch.Tensor) -> Tensors:
    """Gradients of layer norm for input, weight and bias."""
    return torch.ops.aten.native_layer_norm_backward(g, x, x.shape[-1:], mean, rstd, w, b, [True, True, True])


def rms_norm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Root-mean-square norm of the last axis with weight, in single precision inside."""
    wide = x if x.dtype == torch.float64 else x.float()
    return ((wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS)) * w).to(x.dtype)


def rms_norm_eager(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Torch's own fused operator."""
    return F.rms_norm(x, x.shape[-1:], w, EPS)


def rms_norm_backward(g: torch.Tensor, x: torch.Tensor, rstd: torch.Tensor, w: torch.Tensor) -> Tensors:
    """Gradients of the root-mean-square norm for input and weight."""
    wide = (lambda t: t) if x.dtype == torch.float64 else (lambda t: t.float())
    normal = wide(x) * rstd
    scaled = wide(g) * wide(w)
    grad_x = rstd * (scaled - normal * (scaled * normal).mean(-1, keepdim=True))
    grad_w = (wide(g) * normal).sum(0)
    return grad_x.to(x.dtype), grad_w.to(w.dtype)


def residual_layer_norm(x: torch.Tensor, residual: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> Tensors:
    """x + residual and its layer norm; both are kept."""
    total = x + residual
    return total, F.layer_norm(total, total.shape[-1:], w, b, EPS)


def cross_entropy(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy of class logits against class numbers."""
    return F.cross_entropy(logits, target)


def argmax(x: torch.Tensor) -> torch.Tensor:
    """Position of the first largest element of each row."""
    return x.argmax(-1)


def argmax_error(inputs: Sequence[torch.Tensor], outputs: Tensors) -> float:
    """Share of the rows whose named element is not the largest (which of several equal ones is named may differ between peers)."""
    x = inputs[0]
    named = x.gather(-1, outputs[0].to(torch.int64).reshape(-1, 1))[:, 0]
    return (named != x.amax(-1)).double().mean().item()


def cumsum(x: torch.Tensor) -> torch.Tensor:
    """Running sum along each row."""
    return x.cumsum(-1)


def _row_statistics(dtype: str, rows: int, length: int, *, with_mean: bool) -> Inputs:
    def make(device: torch.device, generator: torch.Generator) -> list[torch.Tensor]:
        kind = DTYPES[dtype]
        g = torch.randn((rows, length), device=device, generator=generator).to(kind)
        x = torch.randn((rows, length), device=device, generator=generator).to(kind)
        wide = x.float()
        w = torch.randn(length, device=device, generator=generator).to(kind)
        if not with_mean:
            return [g, x, torch.rsqrt(wide.square().mean(-1, keepdim=True) + EPS), w]
        variance, mean = torch.var_mean(wide, -1, correction=0, keepdim=True)
        return [g, x, mean, torch.rsqrt(variance + EPS), w, torch.zeros_like(w)]

    return make


def _backward_of(result: Callable[[torch.Tensor], torch.Tensor], dtype: str, rows: int, length: int) -> Inputs:
    def make(device: torch.device, generator: torch.Generator) -> list[torch.Tensor]:
        g, x = _normal((rows, length), (rows, length), dtype=dtype)(device, generator)
        return [g, result(x)]

    return make


def _classes(dtype: str, rows: int, length: int) -> Inputs:
    def make(device: torch.device, generator: torch.Generator) -> list[torch.Tensor]:
        logits = _normal((rows, length), dtype=dtype)(device, generator)[0]
        return [logits, torch.randint(0, length, (rows,), device=device, generator=generator)]

    return make


def _rows(dtype: str, length: int, size: int) -> Iterator[Case]:
    rank, share = _rank(dtype, length), _share(length)
    n1, n2, n3, n4 = (_num_rows(dtype, length, size, tensors) for tensors in (1, 2, 3, 4))
    normal = partial(_normal, dtype=dtype)
    make = partial(Case, dtype=dtype, rank=rank, min_of_limit=share)

    def name(family: str, rows: int) -> str:
        return f"{family}/{dtype}/{rows}x{length}"

    yield make(name("softmax", n2), "softmax", function=softmax, inputs=normal((n2, length)), jax=jax_patterns.softmax)
    yield make(name("layernorm", n2), "layernorm", function=layer_norm, inputs=normal((n2, length), (length,), (length,)),
               jax=jax_patterns.layer_norm)
    yield make(name("rmsnorm", n2), "rmsnorm", function=rms_norm, inputs=normal((n2, length), (length,)), eager=rms_norm_eager,
               jax=jax_patterns.rms_norm)
    yield make(name("residual-layernorm", n4), "residual-layernorm", function=residual_layer_norm,
               inputs=normal((n4, length), (n4, length), (length,), (length,)), jax=jax_patterns.residual_layer_norm)
    yield make(name("cross-entropy", n1), "cross-entropy", function=cross_entropy, inputs=_classes(dtype, n1, length),
               jax=jax_patterns.cross_entropy)
    yield make(name("argmax", n1), "argmax", function=argmax, inputs=normal((n1, length)), jax=jax_patterns.argmax,
               check=argmax_error)
    yield make(name("layernorm-backward", n3), "layernorm-backward", function=layer_norm_backward,
               inputs=_row_statistics(dtype, n3, length, with_mean=True))
    yield make(name("softmax-backward", n3), "softmax-backward", function=softmax_backward,
               inputs=_backward_of(softmax, dtype, n3, length), jax=jax_patterns.softmax_backward)
    yield make(name("rmsnorm-backward", n3), "rmsnorm-backward", function=rms_norm_backward,
               inputs=_row_statistics(dtype, n3, length, with_mean=False), jax=jax_patterns.rms_norm_backward)
    yield make(name("log-softmax", n2), "log-softmax", function=log_softmax, inputs=normal((n2, length)), jax=jax_patterns.log_softmax)
    yield make(name("log-softmax-backward", n3), "log-softmax-backward", function=log_softmax_backward,
               inputs=_backward_of(log_softmax, dtype, n3, length))
    yield make(name("cumsum", n2), "cumsum", function=cumsum, inputs=normal((n2, length)), jax=jax_patterns.cumsum)


# -- columns -----------------------------------------------------------------------------------------------------------------

def column_sum(x: torch.Tensor) -> torch.Tensor:
    """Sum over the rows."""
    return x.sum(0)


def batch_norm_relu(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Batch norm with the batch's own statistics, then ReLU."""
    return torch.relu(F.batch_norm(x, None, None, w, b, True, 0.1, EPS))


def _columns(dtype: str, size: int) -> Iterator[Case]:
    for length in (256, 4096, 65536):
        rows = _num_rows(dtype, length, size, 1)
        yield Case(f"column-sum/{dtype}/{rows}x{length}", "column-sum", dtype, column_sum, _normal((rows, length), dtype=dtype),
                   jax=jax_patterns.column_sum, rank=_rank(dtype), min_of_limit=0.8)
    for channels, side in ((256, 56), (512, 28)):
        images = max(2, size // (2 * ITEM_BYTES[dtype] * channels * side * side))
        shape = (images, channels, side, side)
        yield Case(f"batchnorm-relu/{dtype}/{'x'.join(map(str, shape))}", "batchnorm-relu", dtype, batch_norm_relu,
                   _normal(shape, (channels,), (channels,), dtype=dtype), jax=jax_patterns.batch_norm_relu, rank=_rank(dtype),
                   min_of_limit=0.9)
