"""Tensors of a little more than 2^31 elements, one case for each template: the whole result where that is cheap, else rows of both ends.

What overflows 32 bits is the end of a tensor: results there are compared with eager torch on the same few rows.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F

pytestmark = [pytest.mark.gpu, pytest.mark.alone, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

Tensors = tuple[torch.Tensor, ...]
BEYOND = 1 << 31
GIB = 1 << 30


@dataclass(frozen=True)
class Large:
    """A function of large tensors.

    inputs    makes them
    part      the inputs of the first and of the last rows of the result (of the whole result where `rows` is 0)
    rows      rows of the result that are compared at either end
    gib       memory that the case takes at most. Units: GiB
    """

    function: Callable[..., Any]
    inputs: Callable[[], Tensors]
    rows: int = 3
    part: Callable[[Tensors, slice], Tensors] | None = None
    gib: int = 12
    tolerance: float = 0.0


def small_integers(*shape: int, dtype: torch.dtype = torch.int8) -> torch.Tensor:
    """Whole numbers from -4 to 3 that differ from row to row and do not repeat at a power of two."""
    flat = torch.empty(shape, dtype=dtype, device="cuda").view(-1)
    step = 251 * 1009
    block = torch.randint(-4, 4, (step,), device="cuda", generator=torch.Generator("cuda").manual_seed(5)).to(dtype)
    whole = flat.numel() // step * step
    flat[:whole].view(-1, step).copy_(block)
    flat[whole:].copy_(block[:flat.numel() - whole])
    return flat.view(shape)


def first_of_all(inputs: Tensors, rows: slice) -> Tensors:
    """The rows of the first input; the others whole."""
    return (inputs[0][rows], *inputs[1:])


def rows_of_all(inputs: Tensors, rows: slice) -> Tensors:
    """The rows of every input."""
    return tuple(x[rows] for x in inputs)


def columns_of_first(inputs: Tensors, rows: slice) -> Tensors:
    """The columns of the first input."""
    return (inputs[0][:, rows],)


def bf16(*shape: int) -> Callable[[], Tensors]:
    return lambda: (small_integers(*shape, dtype=torch.bfloat16),)


def i8(*shape: int) -> Callable[[], Tensors]:
    return lambda: (small_integers(*shape),)


def hot(position: int, size: int) -> Callable[[], Tensors]:
    """Zeros but for one element."""
    def make() -> Tensors:
        x = torch.zeros(size, dtype=torch.int8, device="cuda")
        x[position] = 1
        return (x,)
    return make


def table(rows: int, width: int, dtype: torch.dtype) -> Callable[[], Tensors]:
    """A table, and numbers of its rows from both ends."""
    def make() -> Tensors:
        ends = torch.cat([torch.arange(40, device="cuda"), rows - 1 - torch.arange(40, device="cuda")])
        return small_integers(rows, width, dtype=dtype), ends
    return make


def layer_norm_backward(g: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    n = (x.float() - x.float().mean(-1, keepdim=True)) * torch.rsqrt(x.float().var(-1, keepdim=True, correction=0) + 1e-5)
    h = g.float() * w
    return (h - h.mean(-1, keepdim=True) - n * (h * n).mean(-1, keepdim=True)).to(x.dtype)


ROWS = BEYOND // 1024 + 3
CASES: dict[str, Large] = {
    "map": Large(lambda x: x * 2 + 1, i8(BEYOND + 40), 4096, first_of_all),
    "odd-map": Large(lambda x: x * 2 + 1, i8(BEYOND + 43), 4096, first_of_all),
    "broadcast": Large(lambda x, y: x * y, lambda: (small_integers(ROWS, 1), small_integers(1, 1024)), 3, first_of_all),
    "transpose": Large(lambda x: x.t() * 2, i8(46344, 46349), 5, columns_of_first),
    "channels-last": Large(lambda x: (x * 2).permute(0, 2, 3, 1).contiguous(), i8(14300, 3, 224, 224), 2, first_of_all),
    "softmax": Large(lambda x: torch.softmax(x.float(), -1).bfloat16(), bf16(ROWS, 1024), 3, first_of_all, tolerance=2**-7),
    "short-rows": Large(lambda x: x.sum(-1, dtype=torch.int32), i8(BEYOND // 24 + 5, 24), 7, first_of_all),
    "cluster-rows": Large(lambda x: torch.softmax(x.float(), -1).bfloat16(), bf16(16400, 131072), 2, first_of_all, tolerance=2**-7),
    "norm-backward": Large(layer_norm_backward, lambda: (small_integers(ROWS, 1024, dtype=torch.bfloat16),
                                                         small_integers(ROWS, 1024, dtype=torch.bfloat16).flip(1),
                                                         torch.ones(1024, device="cuda")),
                           3, lambda given, rows: (given[0][rows], given[1][rows], given[2]), 24, 2**-6),
    "sum": Large(lambda x: x.sum(dtype=torch.int64), i8(BEYOND + 43), 0),
    "position": Large(lambda x: x.argmax(), hot(BEYOND + 9, BEYOND + 43), 0),
    "columns": Large(lambda x: x.sum(0, dtype=torch.int64), i8(ROWS, 1024), 0, gib=40),
    "scan": Large(lambda x: torch.cumsum(x, 1, dtype=torch.int32), i8(BEYOND // 4096 + 3, 4096), 3, first_of_all),
    "long-scan": Large(lambda x: torch.cumsum(x, 0, dtype=torch.int32), i8(BEYOND + 43), 0, gib=60),
    "gather": Large(lambda t, at: t[at] * 2, table(ROWS, 1024, torch.int8), 0),
    "scatter": Large(lambda t, at: t.index_add(0, at, torch.ones(80, 1024, device=t.device))[at],
                     table(ROWS, 1024, torch.float32), 0, gib=40),
    "joined": Large(lambda x, y: torch.cat([x, y], 1) + 1, lambda: (small_integers(ROWS, 1000), small_integers(ROWS, 24)),
                    3, rows_of_all),
    "padded": Large(lambda x: F.pad(x, (3, 5)) + 1, i8(ROWS, 1016), 3, first_of_all),
    "max-pool": Large(lambda x: F.max_pool2d(x, 3, 2, 1), bf16(300, 64, 340, 340), 1, first_of_all),
    "avg-pool": Large(lambda x: F.avg_pool2d(x, 11), lambda: (small_integers(16, 64, 2048, 2048, dtype=torch.float32),),
                      1, first_of_all, 20),
    "slice": Large(lambda x: (x[-4096:, ::3] * 2), i8(ROWS, 1024), 0),
    "turned-round": Large(lambda x: x.flip(0) + 1, i8(ROWS, 1024), 3, lambda given, rows: (given[0].flip(0)[rows].flip(0),), gib=16),
    "packed": Large(lambda x, y, z: (x + 1, y * 2, z - 1),
                    lambda: (small_integers(BEYOND + 40), small_integers(7), small_integers(BEYOND + 16)), 0, gib=30),
    "attention": Large(lambda q, k, v: torch.softmax((q @ k.transpose(1, 2)).float(), -1).half() @ v,
                       lambda: tuple(small_integers((1 << 19) + 2, 64, 64, dtype=torch.float16) for _ in range(3)),
                       1, rows_of_all, 60, 2**-5),
}


@pytest.fixture(autouse=True)
def _freed() -> Iterator[None]:
    torch.cuda.empty_cache()
    yield
    torch._dynamo.reset()
    torch.cuda.empty_cache()


@pytest.mark.parametrize("name", CASES)
def test_large_tensors(name: str) -> None:
    """Results at both ends are eager torch's."""
    import tilefuse

    case = CASES[name]
    if torch.cuda.mem_get_info()[0] < case.gib * GIB:
        pytest.skip(f"needs {case.gib} GiB of device memory")
    inputs = case.inputs()
    result = tilefuse.compile(case.function, inputs)(*inputs)
    results = result if isinstance(result, tuple) else (result,)
    if not case.rows:
        compare(results, case.function(*inputs), case.tolerance)
        return
    assert case.part is not None
    for rows in (slice(None, case.rows), slice(-case.rows, None)):
        compare(tuple(r[rows] for r in results), case.function(*case.part(inputs, rows)), case.tolerance)


def compare(results: Tensors, wanted: Any, tolerance: float) -> None:
    """Equal bits, or within a relative tolerance."""
    for got, want in zip(results, wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        assert got.shape == want.shape and got.dtype == want.dtype
        assert torch.equal(got, want) if not tolerance else torch.allclose(got.float(), want.float(), rtol=tolerance, atol=tolerance)


def test_a_script_over_long_vectors() -> None:
    """A BLAS script over 2^31 and a few words."""
    from tilefuse import blas

    if torch.cuda.mem_get_info()[0] < 40 * GIB:
        pytest.skip("needs 40 GiB of device memory")
    script = blas.compile("vector x, y; input x, y; t = sscal(0.5, x); w = saxpy(-0.25, y, t); r = sasum(w); return w, r;")
    x, y = (small_integers(BEYOND + 8, dtype=torch.float32) for _ in range(2))
    w, _ = script(x, y)
    for part in (slice(None, 64), slice(-64, None)):
        assert torch.equal(w[part], 0.5 * x[part] - 0.25 * y[part])
