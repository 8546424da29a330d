"""Long reductions and scans on the host: no further from double precision than four times eager, or two roundings of the result."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tests.end_to_end.torch.strict import strict

pytestmark = pytest.mark.usefixtures("fresh")

SUMS: tuple[Callable[[torch.Tensor, tuple[int, ...]], torch.Tensor], ...] = (
    lambda x, d: (2 * x).sum(d), lambda x, d: (2 * x).mean(d), lambda x, d: x.var(d), lambda x, d: torch.linalg.vector_norm(x, 2, d),
    lambda x, d: torch.linalg.vector_norm(x, 1, d), lambda x, d: x.logsumexp(d),
)
SCANS: tuple[Callable[[torch.Tensor, int], torch.Tensor], ...] = (
    lambda x, d: (2 * x).cumsum(d), lambda x, d: (1 + (x - 1.5) * 1e-4).cumprod(d), lambda x, d: x.logcumsumexp(d),
)
# Shapes and the dimensions along which they are reduced.
SHAPES = {"whole": ((1 << 23,), (0,)), "rows": ((3, 1 << 20), (1,)), "odd rows": ((2, 1_000_003), (1,)), "columns": ((1 << 20, 5), (0,)),
          "wide columns": ((1 << 15, 96), (0,)), "middle": ((2, 1 << 16, 8), (1,))}


def distance(found: torch.Tensor, exact: torch.Tensor) -> float:
    """Largest relative distance of two results."""
    return float(((found.double() - exact).abs() / exact.abs()).max())


def check(results: tuple[torch.Tensor, ...], eager: tuple[torch.Tensor, ...], exact: tuple[torch.Tensor, ...]) -> None:
    for number, (found, other, wanted) in enumerate(zip(results, eager, exact, strict=True)):
        bound = max(4 * distance(other, wanted), 2 * torch.finfo(found.dtype).eps)
        assert distance(found, wanted) <= bound, f"result {number}"


@pytest.mark.parametrize("name", SHAPES)
def test_sums(name: str) -> None:
    shape, dims = SHAPES[name]
    x = torch.rand(shape, generator=torch.Generator().manual_seed(1)) + 1

    def reduced(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(fn(x, dims) for fn in SUMS)

    check(torch.compile(reduced, backend=strict)(x), reduced(x), reduced(x.double()))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_sums_of_narrow_types(dtype: torch.dtype) -> None:
    """Computed in single precision and rounded once."""
    x = (torch.rand(2, 1 << 20, generator=torch.Generator().manual_seed(1)) + 1).to(dtype) / 64

    def reduced(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.mean(1), x.var(1), x.sum(1), x.t().contiguous().sum(0)

    check(torch.compile(reduced, backend=strict)(x), reduced(x), reduced(x.double()))


@pytest.mark.parametrize("dim", [0, 1])
def test_scans(dim: int) -> None:
    shape = (1 << 17, 3) if dim == 0 else (3, 1 << 17)
    x = torch.rand(shape, generator=torch.Generator().manual_seed(1)) + 1

    def scanned(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(fn(x, dim) for fn in SCANS)

    check(torch.compile(scanned, backend=strict)(x), scanned(x), scanned(x.double()))


def test_infinities_and_empty_lanes_pass_through_stretches() -> None:
    x = torch.ones(2, 1 << 18)
    x[0, 77_777] = float("inf")
    x[1, 5] = float("nan")
    compiled = torch.compile(lambda x: ((2 * x).sum(1), x.var(1), (2 * x).sum(0)), backend=strict)
    total, spread, columns = compiled(x)
    assert total[0] == float("inf") and total[1].isnan() and spread.isnan().all()
    torch.testing.assert_close(columns, (2 * x).sum(0), equal_nan=True)
