"""Products of a mixture's experts: rows sorted by expert, of which each has a matrix of its own.

Sizes are experts.rows x columns x inner. The rows of experts are of unlike number, the same in every run. Each case is held against
torch's grouped product, and beside it against a loop of one product an expert, whose sizes are known when it is recorded (`bare`).
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.case import DTYPES, Case, Inputs, Tensors
from benchmarks.products.shapes import sized, text
from benchmarks.row_sample import RowSample

GROUPED = "grouped"
# Share of the rows of expert g among all: 1 + (g mod UNLIKE), so that the largest has as many times the rows of the smallest.
UNLIKE = 5


@dataclass(frozen=True)
class Experts:
    """One size: a rank as of `Case`, experts, and rows x columns x inner."""

    rank: int
    num_experts: int
    extents: tuple[int, int, int]


def cases(tiny: bool) -> list[Case]:
    """Every grouped product."""
    return [_case(pattern, size, tiny) for pattern, sizes in PATTERNS for size in sizes]


def ends_of(num_experts: int, rows: int) -> list[int]:
    """The row behind the last one of each expert."""
    shares = [1 + g % UNLIKE for g in range(num_experts)]
    return [rows * sum(shares[:g + 1]) // sum(shares) for g in range(num_experts)]


def grouped(x: Tensor, w: Tensor, ends: Tensor) -> Tensor:
    """Rows of x times the transposed matrix of their expert."""
    if x.dtype == torch.float64:
        return one_by_one(x, w, ends)
    return torch._grouped_mm(x, w.transpose(-2, -1), offs=ends)


def one_by_one(x: Tensor, w: Tensor, ends: Tensor) -> Tensor:
    """The same with a product for each expert."""
    bounds = [0, *ends_of(w.shape[0], x.shape[0])]
    return torch.cat([x[first:last] @ matrix.t() for first, last, matrix in zip(bounds[:-1], bounds[1:], w)])


def experts(x: Tensor, w: Tensor, ends: Tensor) -> Tensor:
    """The product alone."""
    return grouped(x, w, ends)


def gated_experts(x: Tensor, gate: Tensor, up: Tensor, ends: Tensor) -> Tensor:
    """silu(x gate') * (x up') of each expert."""
    return F.silu(grouped(x, gate, ends)) * grouped(x, up, ends)


def weighted_experts(x: Tensor, w: Tensor, ends: Tensor, weight: Tensor) -> Tensor:
    """The product times the router's weight of each row."""
    return grouped(x, w, ends) * weight


def loop(*operands: Tensor) -> Tensors:
    """A product for each expert and matrix."""
    x, ends = operands[0], operands[-1]
    return tuple(one_by_one(x, w, ends) for w in operands[1:-1])


@dataclass(frozen=True)
class Pattern:
    """A grouped product. num_matrices: of each expert; is_weighted: whether rows have weights."""

    name: str
    function: Callable[..., object]
    num_matrices: int = 1
    is_weighted: bool = False

    def inputs(self, dtype: str, num_experts: int, extents: Sequence[int]) -> Inputs:
        """x, the matrices, the ends of experts, and weights."""
        rows, columns, inner = extents

        def draw(device: torch.device, generator: torch.Generator) -> list[Tensor]:
            def normal(*shape: int, scale: float = 1.0) -> Tensor:
                return (torch.randn(shape, device=device, generator=generator) * scale).to(DTYPES[dtype])

            matrices = [normal(num_experts, columns, inner, scale=inner**-0.5) for _ in range(self.num_matrices)]
            ends = torch.tensor(ends_of(num_experts, rows), dtype=torch.int32, device=device)
            return [normal(rows, inner), *matrices, ends, *([normal(rows, 1)] if self.is_weighted else [])]

        return draw

    def products(self, inputs: Sequence[Tensor]) -> Tensors:
        """Operands of the products."""
        return tuple(inputs[:self.num_matrices + 2])


def _case(pattern: Pattern, size: Experts, tiny: bool) -> Case:
    num_experts, *extents = sized((size.num_experts, *size.extents), tiny)
    rows, columns, inner = extents
    # torch's operator asks for rows of 16 bytes.
    columns, inner = (-(-e // 8) * 8 for e in (columns, inner))
    extents = [rows, columns, inner]
    flops = 2 * pattern.num_matrices * rows * columns * inner
    return Case(f"{GROUPED}/{pattern.name}/bf16/{num_experts}.{text(extents)}", GROUPED, "bf16", pattern.function,
                pattern.inputs("bf16", num_experts, extents), rank=size.rank, min_of_limit=0.0, flops=flops, min_speedup=1.0,
                sample=RowSample(), bare=loop, bare_operands=pattern.products)


PATTERNS: tuple[tuple[Pattern, tuple[Experts, ...]], ...] = (
    (Pattern("experts", experts), (Experts(0, 64, (16384, 1408, 2048)), Experts(1, 8, (8192, 14336, 4096)),
                                   Experts(1, 32, (8192, 2048, 7168)), Experts(1, 8, (64, 14336, 4096)))),
    (Pattern("gated-experts", gated_experts, 2), (Experts(0, 16, (8192, 1408, 2048)), Experts(1, 8, (4096, 14336, 4096)))),
    (Pattern("weighted-experts", weighted_experts, 1, True), (Experts(0, 16, (8192, 2048, 1408)),)),
)
