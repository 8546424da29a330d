"""Sums, extrema and counts that crowd on few places: an H200's plans, run by the checking host executor, beside eager torch."""
from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tilefuse.driver import torch_backend

OPTIONS = {"plan_for": "h200", "check": True, "strict": True}


def compiled(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    torch._dynamo.reset()
    torch_backend.reset()
    return torch.compile(function, backend=torch_backend.backend, dynamic=False, options=OPTIONS)


def templates() -> list[str]:
    """Of the kernels that the last compile made."""
    return [k["template"] for p in torch_backend.compiled_parts() for k in p.program.explain(json=True)["kernels"]]


def table_of_positions(g: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    return torch.zeros(10, 3, dtype=g.dtype).index_put((at,), g.sum(0).permute(1, 2, 0), accumulate=True)


def narrow_table(g: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    return torch.zeros(10, 3, dtype=g.dtype).index_put((at,), g.permute(1, 2, 0), accumulate=True)


def counts(at: torch.Tensor) -> torch.Tensor:
    return torch.zeros(7, dtype=torch.int64).scatter_add(0, at, torch.ones_like(at))


def maxima(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    return torch.full((5, 8), -0.5).scatter_reduce(0, at, x, "amax")


def rows_of_types(g: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten.embedding_dense_backward(g, at, 3, 1, False)


def tables(g: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.ones(4, 6, dtype=g.dtype).index_put((a, b), g, accumulate=True)


CASES: dict[str, tuple[Callable[..., torch.Tensor], Callable[[], tuple[torch.Tensor, ...]]]] = {
    "positions": (table_of_positions, lambda: (torch.randn(2, 3, 181, 190), torch.randint(-10, 10, (181, 190)))),
    "positions, bf16": (narrow_table, lambda: (torch.randn(3, 181, 190).bfloat16(), torch.randint(0, 10, (181, 190)))),
    "counts": (counts, lambda: (torch.randint(0, 7, (70001,)),)),
    "maxima": (maxima, lambda: (torch.randn(20001, 8), torch.randint(0, 5, (20001, 8)))),
    "types, one left out": (rows_of_types, lambda: (torch.randn(91, 41, 64), torch.randint(0, 3, (91, 41)))),
    "two subscripts": (tables, lambda: (torch.randn(30011), torch.randint(0, 4, (30011,)), torch.randint(-6, 6, (30011,)))),
}


@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_torch(name: str) -> None:
    torch.manual_seed(5)
    function, inputs = CASES[name]
    given = inputs()
    y = compiled(function)(*given)
    exact = function(*(x.double() if x.dtype.is_floating_point and name != "maxima" else x for x in given))
    assert y.dtype == function(*given).dtype and set(templates()) & {"rows", "columns"}, templates()
    torch.testing.assert_close(y.double(), exact.double(), rtol=2.0**-8 if y.dtype == torch.bfloat16 else 1e-5, atol=2e-4)


@pytest.mark.parametrize("wrong", [10, -11, 1 << 40])
def test_a_subscript_out_of_range_is_an_error(wrong: int) -> None:
    g, at = torch.randn(2, 3, 181, 190), torch.randint(0, 10, (181, 190))
    at[77, 5] = wrong
    with pytest.raises(Exception, match="10"):
        compiled(table_of_positions)(g, at)
    assert set(templates()) & {"rows", "columns"}


def test_gradients_of_a_table_of_positions() -> None:
    """The bias of every pair of positions, from a table of their distances, and its gradient."""
    torch.manual_seed(6)
    table, at = torch.randn(9, 4, requires_grad=True), (torch.arange(160)[:, None] - torch.arange(160)).clamp(-4, 4) + 4
    x = torch.randn(4, 160, 160)

    def loss(table: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return (x + table[at].permute(2, 0, 1)).tanh().square().sum()

    (gradient,) = torch.autograd.grad(compiled(loss)(table, x), table)
    wide = table.detach().double().requires_grad_()
    (exact,) = torch.autograd.grad(loss(wide, x.double()), wide)
    torch.testing.assert_close(gradient.double(), exact, rtol=1e-5, atol=2e-4)
