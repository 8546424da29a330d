"""Patterns that one stitched kernel could hold: many reductions, small products, independent updates, recurrences.

Each case has two limits: its bytes over the copy bandwidth of the run, and its operations over the rate that the run measured for a large
product of the same type. The larger one counts.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.case import DTYPES, Case, Inputs, Tensors
from benchmarks.patterns import EPS, batch_norm_relu
from benchmarks.precision import products_in
from benchmarks.recurrent import lstm_state
from benchmarks.timing import time_calls

# Compile time asked of tilefuse, as a share of torch.compile's.
COMPILE_SHARE = 0.25
ADAM_SIZES = ((1024, 1024), (4096,), (4096, 1024), (1024,), (1024, 4096), (512,), (3, 1024, 1024), (3072,))
ADAM_ROUNDS = 12


def cases(tiny: bool = False) -> list[Case]:
    """Every case; `tiny` shrinks the shapes to try the harness."""
    return [_attention(tiny), *_long_attention(tiny), _adam(tiny), _lstm(tiny), _chain(tiny), _product_softmax(tiny),
            _batch_norm(tiny), _narrow_layers(tiny), _wide_layer(tiny)]


def listed(tiny: bool = False) -> list[dict[str, Any]]:
    """The cases as plain facts."""
    return [{"name": c.name, "family": c.family, "dtype": c.dtype, "rank": c.rank, "min_of_limit": c.min_of_limit, "flops": c.flops,
             "min_speedup": c.min_speedup, "max_compile_share": COMPILE_SHARE} for c in cases(tiny)]


def dtypes() -> list[str]:
    """The types whose rate of a large product the limits need."""
    return sorted({case.dtype for case in cases() if case.flops})


def product_flops_per_s(dtype: str, side: int, device: torch.device) -> float:
    """The rate of a product of two square matrices, in tf32 where that is the type. Units: floating-point operations a second."""
    pairs = [tuple(torch.randn(side, side, device=device).to(DTYPES[dtype]) for _ in range(2)) for _ in range(2)]
    with products_in(dtype):
        timing, _ = time_calls([lambda a=a, b=b: a @ b for a, b in pairs], device)  # type: ignore[misc]
    return float(2 * side**3 / (timing.median_us * 1e-6))


def _normal(dtype: str, *shapes: tuple[int, ...], scales: Sequence[float] = ()) -> Inputs:
    def make(device: torch.device, generator: torch.Generator) -> list[Tensor]:
        return [(torch.randn(s, device=device, generator=generator) * (scales[n] if scales else 1)).to(DTYPES[dtype])
                for n, s in enumerate(shapes)]

    return make


# -- products with reductions between them -----------------------------------------------------------------------------------

def attention_with_log(q: Tensor, k: Tensor, v: Tensor, away: Tensor) -> Tensors:
    """Scaled scores less a value a column, their softmax times v, and the logarithm of each row's sum."""
    scores = torch.bmm(q, k.transpose(1, 2)) * q.shape[-1] ** -0.5 - away[:, None, :]
    powers = torch.exp(scores - scores.amax(-1, keepdim=True))
    total = powers.sum(-1, keepdim=True)
    return torch.bmm(powers / total, v), torch.log(total)[:, :, 0]


def _attention(tiny: bool) -> Case:
    batch, length, inner = (3, 20, 4) if tiny else (1500, 300, 16)
    wide = (batch, length, inner)
    return Case(f"attention-log/f32/{batch}x{length}x{inner}", "products", "f32", attention_with_log,
                _normal("f32", wide, wide, wide, (batch, length)), min_of_limit=0.0, flops=4 * batch * length * length * inner,
                min_speedup=4.0)


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention written out: scaled scores, their softmax, times v."""
    return torch.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5, -1) @ v


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same with all later keys masked."""
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    place = torch.arange(scores.shape[-1], device=q.device)
    return torch.softmax(scores.masked_fill(place > place[:, None], float("-inf")), -1) @ v


def _long_attention(tiny: bool) -> list[Case]:
    """Rows of scores too long to hold: their softmax is taken while the keys are walked."""
    shape = (2, 150, 16) if tiny else (64, 4096, 64)
    heads = (2, 2, 150, 16) if tiny else (4, 16, 4096, 64)
    flops = 4 * shape[0] * shape[1] ** 2 * shape[2]
    made = [Case(f"attention-long/{dtype}/{'x'.join(map(str, shape))}", "products", dtype, attention, _normal(dtype, shape, shape, shape),
                 min_of_limit=0.0, flops=flops, min_speedup=speedup) for dtype, speedup in (("f16", 2.0), ("f32", 1.1))]
    masked = Case(f"attention-causal/bf16/{'x'.join(map(str, heads))}", "products", "bf16", causal_attention,
                  _normal("bf16", heads, heads, heads), min_of_limit=0.0,
                  flops=2 * heads[0] * heads[1] * heads[2] * (heads[2] + 1) * heads[3], min_speedup=2.0)
    return [*made, masked]


def product_softmax(x: Tensor, w: Tensor) -> Tensor:
    """Softmax of the rows of a product."""
    return torch.softmax(x @ w, -1)


def _product_softmax(tiny: bool) -> Case:
    rows, inner, columns = (96, 8, 16) if tiny else (98304, 64, 128)
    return Case(f"matmul-softmax/f32/{rows}x{inner}x{columns}", "products", "f32", product_softmax,
                _normal("f32", (rows, inner), (inner, columns), scales=(1, inner**-0.5)), min_of_limit=0.0,
                flops=2 * rows * inner * columns, min_speedup=1.5)


def narrow_layers(x: Tensor, *weights: Tensor) -> Tensor:
    """Layers of a narrow perceptron, ReLU between them."""
    for w in weights[:-1]:
        x = F.relu(x @ w)
    return x @ weights[-1]


def _narrow_layers(tiny: bool) -> Case:
    rows, width, layers = (256, 16, 3) if tiny else (1 << 21, 64, 5)
    return Case(f"narrow-layers/f16/{rows}x{width}x{layers}", "products", "f16", narrow_layers,
                _normal("f16", (rows, width), *((width, width),) * layers, scales=(1, *((2 / width) ** 0.5,) * layers)), min_of_limit=0.0,
                flops=2 * layers * rows * width * width, min_speedup=3.0)


def wide_layer(x: Tensor, w: Tensor, b: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Layer norm of GELU of a linear layer."""
    return F.layer_norm(F.gelu(x @ w + b), (w.shape[1],), scale, shift, EPS)


def _wide_layer(tiny: bool) -> Case:
    rows, inner, columns = (16, 8, 32) if tiny else (8192, 1024, 4096)
    return Case(f"gemm-gelu-layernorm/f16/{rows}x{inner}x{columns}", "products", "f16", wide_layer,
                _normal("f16", (rows, inner), (inner, columns), (columns,), (columns,), (columns,), scales=(1, inner**-0.5, 1, 1, 1)),
                min_of_limit=0.0, flops=2 * rows * inner * columns, min_speedup=1.0)


# -- recurrences ---------------------------------------------------------------------------------------------------------------

def lstm(x: Tensor, into: Tensor, back: Tensor, bias: Tensor) -> Tensors:
    """All steps of an LSTM cell, written out: outputs and the last memory."""
    h = c = x.new_zeros(x.shape[1], back.shape[0])
    outputs = []
    for step in x.unbind(0):
        h, c = lstm_state(step @ into + h @ back + bias, c)
        outputs.append(h)
    return torch.stack(outputs), c


def _lstm(tiny: bool) -> Case:
    steps, batch, width = (3, 4, 8) if tiny else (32, 32, 256)
    return Case(f"lstm/f32/{steps}x{batch}x{width}", "recurrences", "f32", lstm,
                _normal("f32", (steps, batch, width), (width, 4 * width), (width, 4 * width), (4 * width,),
                        scales=(1, width**-0.5, width**-0.5, 1)),
                min_of_limit=0.0, flops=2 * steps * batch * 2 * width * 4 * width, min_speedup=2.0)


def norm_chain(x: Tensor, weights: Tensor) -> Tensor:
    """Steps of product, normalisation, tanh and residual."""
    for w in weights.unbind(0):
        x = x + torch.tanh(F.layer_norm(x @ w, (w.shape[1],), None, None, EPS))
    return x


def _chain(tiny: bool) -> Case:
    rows, width, steps = (4, 16, 3) if tiny else (32, 256, 12)
    return Case(f"norm-chain/f32/{rows}x{width}x{steps}", "recurrences", "f32", norm_chain,
                _normal("f32", (rows, width), (steps, width, width)), min_of_limit=0.0, flops=2 * rows * width * width * steps,
                min_speedup=2.0)


# -- memory-bound --------------------------------------------------------------------------------------------------------------

def adam_of_many(*tensors: Tensor) -> Tensors:
    """One Adam update of many tensors, operator by operator: given parameters, gradients and both moments, a quarter each."""
    count = len(tensors) // 4
    parameters, gradients, means, squares = (tensors[n * count:(n + 1) * count] for n in range(4))
    updated: list[list[Tensor]] = [[], [], []]
    for p, g, m, v in zip(parameters, gradients, means, squares):
        m = 0.9 * m + 0.1 * g
        v = 0.999 * v + 0.001 * g * g
        p = p - 1e-3 * (m / 0.271) / (torch.sqrt(v / 0.002997) + 1e-8)
        for group, tensor in zip(updated, (p, m, v)):
            group.append(tensor)
    return tuple(t for group in updated for t in group)


def _adam(tiny: bool) -> Case:
    shapes = tuple((5, *s[1:]) if len(s) == 1 else tuple(min(n, 6) for n in s) for s in ADAM_SIZES) if tiny else ADAM_SIZES
    rounds = 2 if tiny else ADAM_ROUNDS

    def make(device: torch.device, generator: torch.Generator) -> list[Tensor]:
        groups = [[torch.randn(s, device=device, generator=generator) for _ in range(rounds) for s in shapes] for _ in range(4)]
        return [*groups[0], *groups[1], *groups[2], *(t.square_() for t in groups[3])]

    return Case(f"adam-many/f32/{rounds * len(shapes)}", "memory", "f32", adam_of_many, make, min_of_limit=0.85, min_speedup=1.5)


def _batch_norm(tiny: bool) -> Case:
    shape = (2, 4, 6, 6) if tiny else (64, 256, 56, 56)
    return Case(f"batchnorm-relu/f16/{'x'.join(map(str, shape))}", "memory", "f16", batch_norm_relu,
                _normal("f16", shape, (shape[1],), (shape[1],)), min_of_limit=0.0, min_speedup=1.3)
