"""Reductions of 2^28 elements on a device: no further from f64 than four times eager's error, or one rounding of the result."""
from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from tilefuse.driver.torch_backend import backend

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

ELEMENTS = 1 << 28
SHAPES = {"whole": (1, ELEMENTS), "rows": (1 << 12, 1 << 16), "long rows": (16, 1 << 24)}
FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda x: x.sum(1),
    "mean": lambda x: x.mean(1),
    "variance": lambda x: x.var(1),
    "norm": lambda x: torch.linalg.vector_norm(x, dim=1),
    "log-sum-exp": lambda x: x.logsumexp(1),
    "columns": lambda x: x.view(-1, 1 << 8).sum(0),
}
# Distance of two neighbouring f32, relative, at most.
ROUNDING = 2.0**-23


@pytest.fixture(scope="module")
def data() -> Iterator[torch.Tensor]:
    """1 GiB of numbers from 0 to 1."""
    if torch.cuda.mem_get_info()[0] < 12 << 30:
        pytest.skip("needs 12 GiB of memory")
    yield torch.rand(ELEMENTS, device="cuda", generator=torch.Generator("cuda").manual_seed(0))
    torch.cuda.empty_cache()


def relative_error(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float(((found.double() - exact).abs() / exact.abs()).max())


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_reduction_of_2_28_elements(name: str, shape: str, data: torch.Tensor) -> None:
    if name == "columns" and shape != "whole":
        pytest.skip("the columns are those of the whole")
    torch._dynamo.reset()
    x, fn = data.view(SHAPES[shape]), FUNCTIONS[name]
    exact = fn(x.double())
    found = relative_error(torch.compile(fn, backend=backend, options={"strict": True})(x), exact)
    eager = relative_error(fn(x), exact)
    print(f"{name} of {shape}: {found:.1e}, eager {eager:.1e}")
    assert found <= max(4 * eager, ROUNDING)


def test_a_running_sum_of_2_24_elements(data: torch.Tensor) -> None:
    """Eager's own error is up to 0.3 in long scans: the bound is that of sums of blocks."""
    x = data[: 1 << 24]
    found = torch.compile(lambda x: x.cumsum(0), backend=backend, options={"strict": True})(x)
    error = relative_error(found, x.double().cumsum(0))
    print(f"running sum: {error:.1e}, eager {relative_error(x.cumsum(0), x.double().cumsum(0)):.1e}")
    assert error <= 16 * ROUNDING
