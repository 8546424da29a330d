"""Products with their neighbours: the eleven patterns of the anchors and variants of other sizes, types and forms.

Sizes are rows x columns x inner. Weights are stored as linear layers store them, [columns, inner]. Each case is held against the time of
its products alone by torch (`bare`), and against torch.compile.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.case import DTYPES, Case, Inputs, Tensors
from benchmarks.patterns import EPS, rms_norm, rms_norm_eager
from benchmarks.products.shapes import normal, sized, text
from benchmarks.row_sample import RowSample

MLP_GAIN = 2.0


@dataclass(frozen=True)
class Size:
    """One size of a pattern: type, rows x columns x inner. `max_us`: the time asked of it on an H200 (0: none). Units: microseconds."""

    dtype: str
    extents: tuple[int, ...]
    rank: int = 1
    max_us: float = 0.0


def cases(tiny: bool) -> list[Case]:
    """Every fused product; the first size of a pattern is that of the anchors."""
    return [case for pattern, sizes in PATTERNS for case in _cases(pattern, sizes, tiny)]


def max_us_by_name() -> dict[str, float]:
    """Time asked on an H200, by case. Units: microseconds."""
    return {name_of(pattern, size.dtype, size.extents): size.max_us for pattern, sizes in PATTERNS for size in sizes if size.max_us}


def name_of(pattern: Pattern, dtype: str, extents: Sequence[int]) -> str:
    """The name of a case."""
    return f"{pattern.name}/{dtype}/{text(extents)}"


# -- patterns ------------------------------------------------------------------------------------------------------------------

def linear_gelu(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """GELU (exact form) of a linear layer."""
    return F.gelu(F.linear(x, w, b))


def linear_gelu_tanh(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """GELU (tanh form) of a linear layer."""
    return F.gelu(F.linear(x, w, b), approximate="tanh")


def gated_pair(x: Tensor, gate: Tensor, up: Tensor) -> Tensor:
    """silu(x gate') * (x up'): SwiGLU."""
    return F.silu(F.linear(x, gate)) * F.linear(x, up)


def linear_residual_layer_norm(x: Tensor, w: Tensor, b: Tensor, residual: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """Layer norm of residual plus a linear layer: a post-norm transformer's block ends so."""
    return F.layer_norm(residual + F.linear(x, w, b), (w.shape[0],), scale, shift, EPS)


def rms_norm_linear(x: Tensor, scale: Tensor, w: Tensor) -> Tensor:
    """A product of RMS-normalised rows."""
    return F.linear(rms_norm(x, scale), w)


def rms_norm_linear_eager(x: Tensor, scale: Tensor, w: Tensor) -> Tensor:
    """The same with torch's own norm."""
    return F.linear(rms_norm_eager(x, scale), w)


def layer_norm_linear(x: Tensor, scale: Tensor, shift: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """A linear layer of layer-normalised rows."""
    return F.linear(F.layer_norm(x, (x.shape[-1],), scale, shift, EPS), w, b)


def linear_softmax(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Softmax of a linear layer's rows."""
    return torch.softmax(F.linear(x, w, b), -1)


def linear_cross_entropy(x: Tensor, w: Tensor, target: Tensor) -> Tensor:
    """Mean cross-entropy of a classifier: its scores in single precision for the loss."""
    scores = F.linear(x, w)
    return F.cross_entropy(scores if scores.dtype == torch.float64 else scores.float(), target)


def int8_weight_linear(x: Tensor, w: Tensor, scale: Tensor) -> Tensor:
    """A product with weights of 8 bits, a scale for each column."""
    return F.linear(x, w.to(x.dtype)) * scale


def scaled_linear_gelu(x: Tensor, w: Tensor, scale_x: Tensor, scale_w: Tensor) -> Tensor:
    """GELU of a product of 8-bit floats with scales of rows and columns."""
    if x.dtype == torch.float64:
        return F.gelu(x @ w.t() * scale_x * scale_w)
    return F.gelu(torch._scaled_mm(x, w.t(), scale_x, scale_w, out_dtype=torch.bfloat16))


def mlp(x: Tensor, *weights: Tensor) -> Tensor:
    """Layers of one width, ReLU between them."""
    for w in weights[:-1]:
        x = F.relu(x @ w)
    return x @ weights[-1]


def linear_relu_squared(x: Tensor, w: Tensor) -> Tensor:
    """The square of ReLU of a product."""
    return F.relu(F.linear(x, w)).square()


def rms_norm_linear_residual(x: Tensor, scale: Tensor, w: Tensor, residual: Tensor) -> Tensor:
    """Residual plus a product of RMS-normalised rows: a decode step's row."""
    return residual + F.linear(rms_norm(x, scale), w)


def rms_norm_linear_residual_eager(x: Tensor, scale: Tensor, w: Tensor, residual: Tensor) -> Tensor:
    """The same with torch's own norm."""
    return residual + F.linear(rms_norm_eager(x, scale), w)


def linear_backward(g: Tensor, x: Tensor, w: Tensor) -> Tensors:
    """Gradients of a linear layer for its input, weight and bias."""
    return g @ w, g.t() @ x, g.sum(0)


def linear_gelu_backward(g: Tensor, h: Tensor, x: Tensor, w: Tensor) -> Tensors:
    """The same through GELU, of which `h` was the argument."""
    g = torch.ops.aten.gelu_backward(g, h)
    return g @ w, g.t() @ x, g.sum(0)


# -- operands ------------------------------------------------------------------------------------------------------------------

def _x_w_vectors(num_vectors: int) -> Callable[[str, tuple[int, ...]], Inputs]:
    """x, w, and vectors of a column each (bias)."""
    def of(dtype: str, extents: tuple[int, ...]) -> Inputs:
        m, n, k = extents
        return normal(dtype, (m, k), (n, k), *((n,),) * num_vectors, scales=(1.0, k**-0.5, *(1.0,) * num_vectors))
    return of


def _two_weights(dtype: str, extents: tuple[int, ...]) -> Inputs:
    m, n, k = extents
    return normal(dtype, (m, k), (n, k), (n, k), scales=(1.0, k**-0.5, k**-0.5))


def _residual_norm(dtype: str, extents: tuple[int, ...]) -> Inputs:
    m, n, k = extents
    return normal(dtype, (m, k), (n, k), (n,), (m, n), (n,), (n,), scales=(1.0, k**-0.5, 1.0, 1.0, 1.0, 1.0))


def _norm_weight(num_inner_vectors: int, num_vectors: int, has_residual: bool) -> Callable[[str, tuple[int, ...]], Inputs]:
    """x, vectors of the norm, w, vectors of a column each, and a residual."""
    def of(dtype: str, extents: tuple[int, ...]) -> Inputs:
        m, n, k = extents
        behind = (*((n,),) * num_vectors, *(((m, n),) if has_residual else ()))
        return normal(dtype, (m, k), *((k,),) * num_inner_vectors, (n, k), *behind,
                      scales=(1.0, *(1.0,) * num_inner_vectors, k**-0.5, *(1.0,) * len(behind)))
    return of


def _classes(dtype: str, extents: tuple[int, ...]) -> Inputs:
    m, n, k = extents
    floats = normal(dtype, (m, k), (n, k), scales=(1.0, k**-0.5))

    def draw(device: torch.device, generator: torch.Generator) -> list[Tensor]:
        return [*floats(device, generator), torch.randint(0, n, (m,), device=device, generator=generator)]

    return draw


def _int8_weight(dtype: str, extents: tuple[int, ...]) -> Inputs:
    m, n, k = extents

    def draw(device: torch.device, generator: torch.Generator) -> list[Tensor]:
        x = torch.randn((m, k), device=device, generator=generator).to(DTYPES[dtype])
        w = torch.randint(-127, 128, (n, k), device=device, generator=generator, dtype=torch.int8)
        return [x, w, (torch.rand(n, device=device, generator=generator) * (0.02 * k**-0.5)).to(DTYPES[dtype])]

    return draw


def _scaled_floats(_dtype: str, extents: tuple[int, ...]) -> Inputs:
    """Operands in e4m3 with a scale for each row of both. On a GPU torch asks for inner axes and columns of multiples of 16."""
    m, n, k = extents

    def draw(device: torch.device, generator: torch.Generator) -> list[Tensor]:
        x, w = (torch.randn((e, k), device=device, generator=generator).to(torch.float8_e4m3fn) for e in (m, n))
        scales = [(torch.rand(shape, device=device, generator=generator) + 0.5) * k**-0.25 for shape in ((m, 1), (1, n))]
        return [x, w, *scales]

    return draw


def _layers(dtype: str, extents: tuple[int, ...]) -> Inputs:
    rows, width, layers = extents
    return normal(dtype, (rows, width), *((width, width),) * layers, scales=(1.0, *((MLP_GAIN / width) ** 0.5,) * layers))


def _gradient(num_wide: int) -> Callable[[str, tuple[int, ...]], Inputs]:
    """g and, for an activation, its argument; x; w."""
    def of(dtype: str, extents: tuple[int, ...]) -> Inputs:
        m, n, k = extents
        return normal(dtype, *((m, n),) * num_wide, (m, k), (n, k), scales=(*(1.0,) * num_wide, 1.0, n**-0.5))
    return of


# -- their products alone --------------------------------------------------------------------------------------------------------

def _x_w(inputs: Sequence[Tensor]) -> Tensors:
    return inputs[0], inputs[1]


def _widened(inputs: Sequence[Tensor]) -> Tensors:
    return inputs[0], inputs[1].to(inputs[0].dtype)


def _x_and_fourth(inputs: Sequence[Tensor]) -> Tensors:
    return inputs[0], inputs[3]


def _x_and_third(inputs: Sequence[Tensor]) -> Tensors:
    return inputs[0], inputs[2]


def _without_argument(inputs: Sequence[Tensor]) -> Tensors:
    return inputs[0], inputs[2], inputs[3]


def _all(inputs: Sequence[Tensor]) -> Tensors:
    return tuple(inputs)


def products_of_layers(x: Tensor, *weights: Tensor) -> Tensors:
    """x times each weight."""
    return tuple(x @ w for w in weights)


def products_of_linear(x: Tensor, *weights: Tensor) -> Tensors:
    """x times each transposed weight."""
    return tuple(F.linear(x, w) for w in weights)


def products_of_floats(x: Tensor, w: Tensor, scale_x: Tensor, scale_w: Tensor) -> Tensor:
    """The product of 8-bit floats with its scales."""
    return torch._scaled_mm(x, w.t(), scale_x, scale_w, out_dtype=torch.bfloat16)


def products_of_gradient(g: Tensor, x: Tensor, w: Tensor) -> Tensors:
    """The two products of a linear layer's gradients."""
    return g @ w, g.t() @ x


@dataclass(frozen=True)
class Pattern:
    """A fused product.

    inputs         the inputs from type and sizes
    bare, bare_operands  as of `Case`
    sample         which rows are judged
    num_products   that the pattern consists of, all of rows x columns x inner; None: as many as the third extent says, square ones
    eager          what eager runs, where torch has a fused operator
    """

    name: str
    function: Callable[..., object]
    inputs: Callable[[str, tuple[int, ...]], Inputs]
    bare: Callable[..., object]
    bare_operands: Callable[[Sequence[Tensor]], Tensors]
    sample: RowSample
    num_products: int | None = 1
    eager: Callable[..., object] | None = None


def _flops(pattern: Pattern, extents: tuple[int, ...]) -> int:
    if pattern.num_products is None:
        rows, width, layers = extents
        return 2 * rows * width * width * layers
    m, n, k = extents
    return 2 * pattern.num_products * m * n * k


def _cases(pattern: Pattern, sizes: Sequence[Size], tiny: bool) -> Iterator[Case]:
    for size in sizes:
        extents = sized(size.extents, tiny)
        yield Case(name_of(pattern, size.dtype, extents), "fused", size.dtype, pattern.function, pattern.inputs(size.dtype, extents),
                   eager=pattern.eager, rank=size.rank, min_of_limit=0.0, flops=_flops(pattern, extents), min_speedup=1.0,
                   sample=pattern.sample, bare=pattern.bare, bare_operands=pattern.bare_operands)


def _rows_of_x(num_inputs: int, *more: int) -> RowSample:
    """Rows of the first input, and of those at `more`."""
    return RowSample(tuple(0 if n in (0, *more) else None for n in range(num_inputs)), (0,))


EVERY_ROW = RowSample()
PATTERNS: tuple[tuple[Pattern, tuple[Size, ...]], ...] = (
    (Pattern("linear-gelu", linear_gelu, _x_w_vectors(1), products_of_linear, _x_w, _rows_of_x(3)),
     (Size("f16", (8192, 4096, 1024), 0, 125.0), Size("bf16", (16384, 3072, 768)), Size("f16", (512, 16384, 4096), 2),
      Size("f32", (8192, 4096, 1024)))),
    (Pattern("scaled-linear-gelu", scaled_linear_gelu, _scaled_floats, products_of_floats, _all, RowSample((0, None, 0, None), (0,))),
     (Size("bf16", (8192, 4096, 1024)), Size("bf16", (4096, 4096, 4096)))),
    (Pattern("linear-gelu-tanh", linear_gelu_tanh, _x_w_vectors(1), products_of_linear, _x_w, _rows_of_x(3)),
     (Size("bf16", (8192, 14336, 4096)), Size("tf32", (4096, 4096, 1024), 2))),
    (Pattern("gated-pair", gated_pair, _two_weights, products_of_linear, _all, _rows_of_x(3), 2),
     (Size("bf16", (4096, 11008, 4096), 0, 1050.0), Size("f16", (8192, 2816, 1024)), Size("bf16", (16, 14336, 4096)))),
    (Pattern("linear-residual-layernorm", linear_residual_layer_norm, _residual_norm, products_of_linear, _x_w, _rows_of_x(6, 3)),
     (Size("f16", (16384, 768, 3072), 0, 135.0), Size("bf16", (8192, 1024, 4096)), Size("f16", (16384, 768, 768), 2))),
    (Pattern("rmsnorm-linear", rms_norm_linear, _norm_weight(1, 0, False), products_of_linear, _x_and_third, _rows_of_x(3),
             eager=rms_norm_linear_eager),
     (Size("bf16", (8192, 6144, 4096), 0), Size("bf16", (64, 6144, 4096)), Size("f16", (16384, 2048, 2048), 2))),
    (Pattern("layernorm-linear", layer_norm_linear, _norm_weight(2, 1, False), products_of_linear, _x_and_fourth, _rows_of_x(5)),
     (Size("bf16", (16384, 2304, 768)), Size("f16", (8192, 3072, 1024), 2))),
    (Pattern("linear-softmax", linear_softmax, _x_w_vectors(1), products_of_linear, _x_w, _rows_of_x(3)),
     (Size("f16", (8192, 1000, 2048), 0), Size("bf16", (16384, 512, 1024)), Size("f16", (4096, 8192, 1024), 2))),
    (Pattern("linear-crossentropy", linear_cross_entropy, _classes, products_of_linear, _x_w, EVERY_ROW),
     (Size("bf16", (8192, 32000, 2048), 0), Size("bf16", (4096, 50304, 768)), Size("f16", (8192, 10000, 1024), 2))),
    (Pattern("int8-weight-linear", int8_weight_linear, _int8_weight, products_of_linear, _widened, _rows_of_x(3)),
     (Size("bf16", (16, 11008, 4096), 0, 14.0), Size("bf16", (1, 4096, 11008)), Size("f16", (64, 14336, 4096)))),
    (Pattern("mlp", mlp, _layers, products_of_layers, _all, RowSample((0, None, None, None, None), (0,)), None),
     (Size("f16", (65536, 256, 4), 0, 75.0), Size("bf16", (65536, 128, 4)), Size("f16", (16384, 512, 4), 2))),
    (Pattern("linear-relu-squared", linear_relu_squared, _x_w_vectors(0), products_of_linear, _x_w, _rows_of_x(2)),
     (Size("bf16", (8192, 8192, 2048), 0), Size("f16", (16384, 3072, 768)), Size("bf16", (4096, 16384, 4096), 2))),
    (Pattern("rmsnorm-linear-residual", rms_norm_linear_residual, _norm_weight(1, 0, True), products_of_linear, _x_and_third,
             _rows_of_x(4, 3), eager=rms_norm_linear_residual_eager),
     (Size("bf16", (1, 4096, 4096), 0, 9.5), Size("bf16", (1, 14336, 4096)), Size("f16", (16, 4096, 4096)))),
    (Pattern("linear-backward", linear_backward, _gradient(1), products_of_gradient, _all, EVERY_ROW, 2),
     (Size("bf16", (8192, 4096, 1024), 0), Size("f16", (16384, 768, 3072)), Size("bf16", (4096, 4096, 4096), 2))),
    (Pattern("linear-gelu-backward", linear_gelu_backward, _gradient(2), products_of_gradient, _without_argument, EVERY_ROW, 2),
     (Size("bf16", (8192, 4096, 1024)),)),
)
