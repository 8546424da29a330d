"""torch's products of 8-bit floats and integers on the host: equal to eager torch within a rounding of the result."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tilefuse

E4, E5 = torch.float8_e4m3fn, torch.float8_e5m2


def _scaled(out: torch.dtype | None, fast: bool = False) -> Callable[..., torch.Tensor]:
    def product(x: torch.Tensor, w: torch.Tensor, scale_x: torch.Tensor, scale_w: torch.Tensor, *bias: torch.Tensor) -> torch.Tensor:
        return torch._scaled_mm(x, w.t(), scale_x, scale_w, bias=bias[0] if bias else None, out_dtype=out, use_fast_accum=fast)

    return product


def _int(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch._int_mm(x, w.t())


def _dequantised(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return torch._int_mm(x, w).float() * scale


def _floats(*shape: int, dtype: torch.dtype = E4) -> torch.Tensor:
    return torch.randn(shape).to(dtype)


def _integers(*shape: int) -> torch.Tensor:
    return torch.randint(-128, 128, shape, dtype=torch.int8)


CASES: dict[str, tuple[Callable[..., torch.Tensor], Callable[[], tuple[Any, ...]]]] = {
    "scales of tensors": (_scaled(torch.bfloat16), lambda: (_floats(96, 272), _floats(208, 272), torch.tensor(0.5), torch.tensor([1.5]))),
    "fast sums, two types": (_scaled(torch.float32, True), lambda: (
        _floats(96, 272), _floats(208, 272, dtype=E5), torch.tensor(0.5), torch.tensor(1.5))),
    "a bias": (_scaled(torch.bfloat16), lambda: (
        _floats(96, 272), _floats(208, 272), torch.tensor(0.5), torch.tensor(1.5), torch.randn(208).bfloat16())),
    "scales of rows and columns": (_scaled(torch.bfloat16), lambda: (
        _floats(96, 272), _floats(208, 272), torch.rand(96, 1), torch.rand(1, 208))),
    "integers": (_int, lambda: (_integers(96, 272), _integers(208, 272))),
    "integers, columns contiguous, with a scale": (_dequantised, lambda: (_integers(96, 272), _integers(272, 208), torch.rand(208))),
}


@pytest.mark.parametrize("name", CASES)
def test_products_of_bytes_are_torchs(name: str) -> None:
    """A product and a map; eager torch rounds once as well."""
    function, inputs = CASES[name]
    torch.manual_seed(3)
    values = inputs()
    program = tilefuse.compile(function, values)
    got, want = program(*values), function(*values)
    assert got.dtype == want.dtype
    # The sums of at most 272 products have roundings of f32, in another order.
    bound = 2 * torch.finfo(want.dtype).eps if want.dtype.is_floating_point else 0.0
    assert float((got.double() - want.double()).abs().max()) <= bound * float(want.double().abs().max())


@pytest.mark.parametrize("out", (None, E4))
def test_a_product_in_8_bit_floats_is_torchs_call(out: torch.dtype | None) -> None:
    """Its sums beyond the greatest number saturate in libraries; a conversion makes them NaN."""
    values = (_floats(15, 16), _floats(32, 16), torch.tensor(448.0), torch.tensor(448.0))
    function = _scaled(out)
    program = tilefuse.compile(function, values)
    assert "library aten._scaled_mm.default" in str(program.explain())
    assert torch.equal(program(*values).view(torch.uint8), function(*values).view(torch.uint8))


def _blocks(x: torch.Tensor, s: torch.Tensor, w: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    wide = w.float() * t.repeat_interleave(128, 0).repeat_interleave(128, 1)
    return ((x.float() * s.repeat_interleave(128, 1)) @ wide.t()).bfloat16()


def _viewed_blocks(x: torch.Tensor, s: torch.Tensor, w: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    rows = (x.float().view(x.shape[0], -1, 128) * s[:, :, None]).view(x.shape)
    wide = (w.float().view(w.shape[0] // 128, 128, -1, 128) * t[:, None, :, None]).view(w.shape)
    return torch.nn.functional.linear(rows, wide).bfloat16()


@pytest.mark.parametrize("function", [_blocks, _viewed_blocks])
def test_scales_of_blocks_are_one_kernel_on_a_device(function: Callable[..., torch.Tensor]) -> None:
    """Both ways to write them; tensor copies bring the stored bytes. The host computes the definition."""
    values = (_floats(96, 512), torch.rand(96, 4), _floats(256, 512), torch.rand(2, 4))
    (kernel,) = tilefuse.compile(function, values, target="h200").plan.kernels
    assert kernel.program.template == "pipelined" and kernel.program.bytes_read < 2 * (96 + 256) * 512
    got, want = tilefuse.compile(function, values)(*values), function(*values)
    assert float((got.double() - want.double()).abs().max()) <= 2.0**-7 * float(want.double().abs().max())
