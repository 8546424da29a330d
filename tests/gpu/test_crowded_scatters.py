"""Sums, extrema and counts that crowd on few places, on a GPU: reductions in place of atomics, which stay for large tables."""
from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tilefuse.driver import torch_backend

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def added(table: torch.Tensor, g: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    return table.index_put((at,), g.permute(1, 2, 0), accumulate=True)


def counts(start: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    return start.scatter_add(0, at, torch.ones_like(at))


def maxima(start: torch.Tensor, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
    return start.scatter_reduce(0, at, x, "amax")


def rows(g: torch.Tensor, at: torch.Tensor, number: int) -> torch.Tensor:
    return torch.ops.aten.embedding_dense_backward(g, at, number, -1, False)


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, device="cuda").to(dtype)


def places(end: int, *shape: int) -> torch.Tensor:
    return torch.randint(end, shape, device="cuda")


# (function, operands, whether atomics go)
CASES: dict[str, tuple[Callable[..., torch.Tensor], Callable[[], tuple[object, ...]], bool]] = {
    "table of positions": (added, lambda: (normal(32, 12), normal(12, 509, 517), places(32, 509, 517)), True),
    "table of positions, bf16": (added, lambda: (normal(32, 12, dtype=torch.bfloat16), normal(12, 509, 517, dtype=torch.bfloat16),
                                                 places(32, 509, 517)), True),
    "more places than reductions": (added, lambda: (normal(100, 2), normal(2, 509, 517), places(100, 509, 517)), True),
    "counts": (counts, lambda: (places(9, 16), places(16, (1 << 22) + 7)), True),
    "maxima": (maxima, lambda: (normal(8, 64), normal(65537, 64), places(8, 65537, 64)), True),
    "types of tokens": (rows, lambda: (normal(64, 129, 768), places(2, 64, 129), 2), True),
    "words": (rows, lambda: (normal(64, 129, 768), places(30522, 64, 129), 30522), False),
}


@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_torch(name: str) -> None:
    torch.manual_seed(7)
    torch._dynamo.reset()
    torch_backend.reset()
    function, operands, is_reduced = CASES[name]
    given = operands()
    y = torch.compile(function, backend=torch_backend.backend, dynamic=False, options={"strict": True})(*given)
    wide = [x.double() if isinstance(x, torch.Tensor) and x.dtype.is_floating_point else x for x in given]
    exact = function(*wide)
    kernels = [k for p in torch_backend.compiled_parts() for k in p.program.explain(json=True)["kernels"]]
    assert any(k["template"] in ("rows", "columns") for k in kernels) == is_reduced, kernels
    bound = 2.0**-8 if y.dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(y.double(), exact.double(), rtol=bound, atol=bound * float(exact.abs().max()))


def test_sums_are_equal_from_call_to_call() -> None:
    """Nothing depends on the order of atomics."""
    torch._dynamo.reset()
    torch_backend.reset()
    given = normal(32, 12), normal(12, 512, 512), places(32, 512, 512)
    compiled = torch.compile(added, backend=torch_backend.backend, dynamic=False, options={"strict": True})
    first = compiled(*given).clone()
    assert all(torch.equal(compiled(*given), first) for _ in range(5))
