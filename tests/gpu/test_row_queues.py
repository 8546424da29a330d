"""Rows that persistent kernels fetch ahead of themselves: many turns of every queue, run again and again on the same data."""
from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from benchmarks.case import as_tuple

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

Rows = Callable[..., object]


def _layer_norm(x: torch.Tensor, _y: torch.Tensor, w: torch.Tensor, b: torch.Tensor, _mean: torch.Tensor, _rstd: torch.Tensor) -> object:
    return F.layer_norm(x, x.shape[-1:], w, b)


def _residual(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor, b: torch.Tensor, _mean: torch.Tensor, _rstd: torch.Tensor) -> object:
    total = x + y
    return total, F.layer_norm(total, x.shape[-1:], w, b)


def _norm_backward(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor, b: torch.Tensor, mean: torch.Tensor, rstd: torch.Tensor) -> object:
    return torch.ops.aten.native_layer_norm_backward(y, x, x.shape[-1:], mean, rstd, w, b, [True, True, True])


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize(("rows", "length"), [
    *((rows, length) for rows in (_layer_norm, _residual, _norm_backward) for length in (32768, 65536, 262144)),
    # Teams with queues of their own: of rows that share a warp, of rows of one warp, of two, of eight.
    *((_norm_backward, length) for length in (256, 512, 1024, 4096)),
], ids=lambda v: v.__name__[1:] if callable(v) else str(v))
def test_queued_rows_are_the_same_every_time(rows: Rows, length: int, dtype: torch.dtype, runs: int = 12) -> None:
    """A copy that comes too early, or is read too early, leaves a few wrong elements in some of the runs."""
    import tilefuse

    generator = torch.Generator("cuda").manual_seed(length)
    count = (1 << 25) // length
    x, y = (torch.randn((count, length), device="cuda", generator=generator).to(dtype) for _ in range(2))
    w, b = (torch.randn(length, device="cuda", generator=generator).to(dtype) for _ in range(2))
    variance, mean = torch.var_mean(x.float(), -1, correction=0, keepdim=True)
    given = (x, y, w, b, mean, torch.rsqrt(variance + 1e-5))
    program = tilefuse.compile(rows, given)
    first = as_tuple(program(*given))
    wanted = rows(*given)
    unit = 2.0**-11 if dtype == torch.float16 else 2.0**-24
    for made, ref in zip(first, as_tuple(wanted), strict=True):
        error = (made.double() - ref.double()).norm() / ref.double().norm()
        assert error < 16 * unit + 512 * 2.0**-24, f"relative error {error.item():.3g}"
    for run in range(1, runs):
        for number, (made, before) in enumerate(zip(as_tuple(program(*given)), first, strict=True)):
            assert torch.equal(made, before), f"run {run}: {(made != before).sum().item()} elements of result {number} differ"


def test_rows_without_elements_free_their_pieces(length: int = 1 << 19, count: int = 60) -> None:
    """Rows of 2 MiB in pieces, walked twice and not written: the kernel stood still after its first turn."""
    import tilefuse

    def distances(x: torch.Tensor) -> torch.Tensor:
        return (x - x.amax(-1, keepdim=True)).abs().sum(-1)

    x = torch.randn((count, length), device="cuda", generator=torch.Generator("cuda").manual_seed(1))
    program = tilefuse.compile(distances, (x,))
    assert any("stages=" in k["notation"] for k in program.explain(json=True)["kernels"])
    for _ in range(3):
        torch.testing.assert_close(program(x), distances(x), rtol=1e-5, atol=1e-2)
