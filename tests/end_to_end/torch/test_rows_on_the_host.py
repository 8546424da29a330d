"""Reductions over nothing, scans from both ends, results over a part of the rows: compiled on the host, against torch."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.end_to_end.torch.strict import strict

pytestmark = pytest.mark.usefixtures("fresh")


def test_no_axis_is_one_element() -> None:
    """The greatest of one number stands at position 0, and its variance is 0, whatever the number."""

    def fn(x: Tensor) -> tuple[Any, ...]:
        return x.argmax(), x.argmin(0), x.max(0), x.var(correction=0), x.std(correction=0), x.sum(), x.prod(), x.any()

    for x in (torch.tensor(3.0), torch.tensor(float("nan"))):
        torch.testing.assert_close(torch.compile(fn, backend=strict)(x), tuple(fn(x)), equal_nan=True)


@pytest.mark.parametrize("fn", [
    lambda x: x.cumsum(1) * x.flip(1).cumsum(1).flip(1),
    lambda x: x.cumsum(0) + x.flip(0).cumsum(0).flip(0),
    lambda x: x.flip(1).cumsum(1).flip(1) * x.sum(1, keepdim=True),
    lambda x: x.cumsum(1) + x.reshape(5, 7).t().contiguous().view(5, 7).cumsum(1),
], ids=["rows", "columns", "with-sums", "other-order"])
def test_scans_from_both_ends(fn: Callable[[Tensor], Tensor]) -> None:
    """A scan read from its end starts there, also where its kernel scans from the beginning."""
    x = torch.randn(5, 7)
    torch.testing.assert_close(torch.compile(fn, backend=strict)(x), fn(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dim", [None, 0, 1])
def test_gradient_of_a_product(dim: int | None) -> None:
    """Torch takes it apart into running products from both ends."""
    x = torch.randn(5, 4, requires_grad=True)

    def fn(x: Tensor) -> Tensor:
        return x.prod() if dim is None else x.prod(dim)

    made, wanted = (torch.autograd.grad(f(x).sum(), x) for f in (torch.compile(fn, backend=strict), fn))
    torch.testing.assert_close(made, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("fn", [
    lambda x, y: ((x * 2).sum(1), (x * y).sum(2)),
    lambda x, y: (s := (x * 2).sum(1), (x * y).sum(2) + s),
    lambda x, y: (s := (x * 2).sum(0), (x * y).sum(1) + s),
    lambda x, y: ((x * 2).softmax(1).amax(1), (x * y).softmax(2)),
], ids=["rows", "read-again", "columns", "beside-whole-rows"])
@pytest.mark.parametrize("shape", [(11, 6), (7, 700)], ids=str)
def test_a_result_that_many_rows_compute_is_written_by_one(fn: Callable[..., Any], shape: tuple[int, int]) -> None:
    """Sums over x[None] * y and over x share a kernel; checking mode saw every row of the former write the latter."""
    x, y = torch.randn(shape), torch.randn(3, 1, 1)
    compiled = torch.compile(fn, backend=strict, options={"check": True})
    torch.testing.assert_close(compiled(x, y), fn(x, y), rtol=1e-4, atol=1e-4)
