"""Complex tensors: maps, sums and views of them are compiled; transforms and products run in torch one by one, on pairs of reals."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import tilefuse
from tests.end_to_end.torch.strict import strict
from tilefuse.driver.torch_backend import compiled_parts

pytestmark = pytest.mark.usefixtures("fresh")


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.complex64)


def rotated(q: torch.Tensor, by: torch.Tensor) -> torch.Tensor:
    pairs = torch.view_as_complex(q.reshape(*q.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * by).flatten(-2) * 2


def halves(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.complex(x, y)


# Each operator that becomes a map, a reduction or a view, over operands of every kind it takes.
LOWERED: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "mul by real, number, complex number": (lambda a, x: (a * x, a * 2, a * (1 + 2j), x * 1j), (numbers(3, 4), torch.randn(3, 4))),
    "add and sub": (lambda a, x: (a + x, a - a.mT, torch.add(a, x, alpha=2j), torch.sub(x, a, alpha=3), 1 - a, -a),
                    (numbers(4, 4), torch.randn(4))),
    "div by real": (lambda a, x: (a / x, a / 3), (numbers(3, 4), torch.rand(3, 4) + 1)),
    "div by complex": (lambda a, b, x: (a / b, x / b, 2 / b, a / (1 + 2j), b.reciprocal()), (numbers(3, 4), numbers(4), torch.randn(3, 4))),
    "exponentials": (lambda a: (a.exp(), a.expm1(), a.sinh(), a.cosh(), a.tanh(), a.sin(), a.cos(), a.tan()), (numbers(3, 4),)),
    "logarithms and roots": (lambda a: (a.log(), a.log2(), a.log10(), a.log1p(), a.sqrt()), (numbers(3, 4),)),
    "inverse functions": (lambda a: (a.asin(), a.acos(), a.atan(), a.asinh(), a.acosh(), a.atanh()), (numbers(3, 4),)),
    "magnitude and angle": (lambda a: (a.abs(), a.angle(), a.real, a.imag, a.conj() * a), (numbers(5, 7),)),
    "joining": (lambda x, y: (halves(x, y), torch.polar(x.abs(), y), halves(x, y).to(torch.complex128)), (torch.randn(5), torch.randn(5))),
    "choice": (lambda a, x: torch.where(x > 0, a, a.conj()), (numbers(5), torch.randn(5))),
    "sums": (lambda a: (a.sum(), a.sum(-1), a.sum((0, -2), keepdim=True)), (numbers(3, 4, 5),)),
    "means": (lambda a: (a.mean(), a.mean(-1), a.mean((0, -2), keepdim=True)), (numbers(3, 4, 5),)),
    "powers": (lambda a, x, b: (a**2, a**3, a**2.5, a**-1.5, a**x, a**b, a ** (1 - 2j), 2.0**a, torch.pow(1j, a)),
               (numbers(3, 4), torch.randn(4), numbers(3, 1))),
    "powers of zero": (lambda a, x: (a**2.5, a**0.0, a**x), (torch.complex(torch.zeros(3), torch.tensor([0.0, -0.0, 1.0])), torch.ones(3))),
    "views": (lambda a: (a.permute(-1, 0, 1) + 1, a.transpose(-1, -2) + 1, a.unsqueeze(-1) + 1, a.reshape(-1) + 1, a[:, 1] + 1,
                         a[..., 1:3] + 1, a.flip(-1) + 1, a.expand(2, 3, 4, 5) + 1, torch.cat([a, a], -1) + 1, a.unbind(-1)[0] + 1,
                         a.split(2, -1)[1] + 1, a.squeeze(-1) + 1), (numbers(3, 4, 5),)),
    "two of a matrix": (lambda a: a.t() * 2, (numbers(3, 4),)),
    "to real": (lambda a: a.real.to(torch.float64) + 1, (numbers(4),)),
    "promoted": (lambda a, b: a * b, (numbers(4), torch.randn(4, dtype=torch.complex128))),
    "without elements": (lambda a: (a.sum(0), a * 2, a.abs()), (numbers(0, 4),)),
    "without dimensions": (lambda a: (a.sum(), a * 2, a.abs(), a.mT if a.dim() > 1 else a + 1), (numbers(1)[0],)),
    "infinities": (lambda a, x: (a * a, a * x, a - 1, a.abs(), a.angle()),
                   (torch.complex(torch.tensor([torch.inf, 0.0, 1.0]), torch.tensor([torch.nan, -torch.inf, -0.0])),
                    torch.tensor([0.0, torch.inf, -0.0]))),
    "pieces": (lambda a: (torch.cat([torch.zeros(0, dtype=torch.complex64), a]) * 2, F.pad(a, (1, 2)) + 1, (a * 0 + a).sgn(),
                          a.slice_scatter(a[:1] * 2, 0, 1, 2) + 1), (numbers(3, 4),)),
}


@pytest.mark.parametrize("name", LOWERED)
def test_operators_over_pairs_share_kernels(name: str) -> None:
    fn, inputs = LOWERED[name]
    torch.testing.assert_close(torch.compile(fn, backend=strict)(*inputs), fn(*inputs), rtol=1e-5, atol=1e-6, equal_nan=True)
    for part in compiled_parts():
        left = dict(part.imported.fallbacks)
        assert not left, left


def test_rotary_positions_are_one_kernel() -> None:
    q, by = torch.randn(2, 5, 8), torch.polar(torch.ones(5, 4), torch.randn(5, 4))
    torch.testing.assert_close(torch.compile(rotated, backend=strict)(q, by), rotated(q, by))
    (part,) = compiled_parts()
    assert len(part.program.spec.kernels) == 1 and not part.imported.fallbacks


CASES: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
    "spectrogram": (lambda x, w: torch.log1p(torch.stft(x * 2, 16, 8, window=w, return_complex=True).abs() ** 2).softmax(1),
                    (torch.randn(2, 64), torch.hann_window(16))),
    "convolution by transforms": (lambda x, w: F.gelu(torch.fft.irfft(torch.fft.rfft(x) * torch.fft.rfft(w), n=16) + x),
                                  (torch.randn(3, 16), torch.randn(3, 16))),
    "rotary positions": (rotated, (torch.randn(2, 5, 8), torch.polar(torch.ones(5, 4), torch.randn(5, 4)))),
    "in and out": (lambda a: (a * 2 + 1j, a.conj().imag.exp(), a.real + a.imag), (numbers(3, 4),)),
    "a scalar": (lambda a: a * (1 - 2j), (numbers(1)[0],)),
    "a lazily conjugated argument": (lambda a: (a + 1, a.imag * 3), (numbers(3, 4).conj(),)),
    "transposed": (lambda a: ((a * 2).transpose(0, 1), a.mT.contiguous() - 1), (numbers(3, 4).mT,)),
    "expanded": (lambda a: (a.sum(0, keepdim=True) * 2).expand(5, 4), (numbers(3, 4),)),
    "every other": (lambda a: a[:, ::2] * 1j, (numbers(3, 8)[:, 1:],)),
    "double": (lambda a: a.abs() + a.angle(), (torch.randn(3, 4, dtype=torch.complex128),)),
    "none": (lambda a: a * 2, (numbers(0, 4),)),
    "real becomes complex": (lambda a: a.to(torch.complex64) * 1j, (torch.randn(4),)),
    "infinities": (lambda a: (a * a).abs(), (torch.complex(torch.tensor([torch.inf, 0.0]), torch.tensor([torch.nan, -torch.inf])),)),
}


@pytest.mark.parametrize("name", CASES)
def test_complex_values_agree_with_torch(name: str) -> None:
    fn, inputs = CASES[name]
    compiled = torch.compile(fn, backend=strict)
    for _ in range(2):
        torch.testing.assert_close(compiled(*inputs), fn(*inputs), rtol=1e-5, atol=1e-5, equal_nan=True)
    assert compiled_parts()


def test_the_summary_names_the_operators_and_the_rest_is_compiled(caplog: pytest.LogCaptureFixture) -> None:
    x = torch.randn(4, 8)
    with caplog.at_level(logging.WARNING, "tilefuse"):
        made = torch.compile(lambda x: (torch.fft.fft(x * 2).abs() + 1).softmax(-1), backend=strict)(x)
    torch.testing.assert_close(made, (torch.fft.fft(x * 2).abs() + 1).softmax(-1))
    (line,) = [r.getMessage() for r in caplog.records if r.name == "tilefuse"]
    assert "aten._fft_r2c.default (complex numbers)" in line and "softmax" not in line
    assert compiled_parts()[0].program.kernels


def test_a_window_onto_an_operand_outlives_it() -> None:
    """A transposed complex view is read after the memory of what it views was used again."""

    def fn(x: torch.Tensor) -> torch.Tensor:
        view = torch.fft.fft(x).transpose(0, 1)
        y = (x.exp() * 3).softmax(-1).cumsum(0) @ x.mT
        return (view.abs().mT + y @ x) * y.sum()

    x = torch.randn(8, 8)
    torch.testing.assert_close(torch.compile(fn, backend=strict)(x), fn(x), rtol=1e-4, atol=1e-4)


def test_an_updated_argument() -> None:
    def step(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.mul_(2j)
        return (a.abs() + b).sin()

    a, b = numbers(3, 4), torch.randn(3, 4)
    other = a.clone()
    torch.testing.assert_close(torch.compile(step, backend=strict)(other, b), step(a, b))
    torch.testing.assert_close(other, a)


def test_gradients_through_transforms() -> None:
    class Filter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(numbers(9))
            self.linear = nn.Linear(16, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.fft.irfft(torch.fft.rfft(self.linear(x)) * self.weight, n=16).tanh()

    model, x = Filter(), torch.randn(4, 16)
    model(x).pow(2).sum().backward()
    wanted = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    torch.compile(model, backend=strict)(x).pow(2).sum().backward()
    torch.testing.assert_close([p.grad for p in model.parameters()], wanted, rtol=1e-4, atol=1e-4)


def test_a_compiled_and_saved_program_takes_complex_arguments(tmp_path: Path) -> None:
    z = numbers(3, 4)
    program = tilefuse.compile(lambda a: (a * 2j).abs().exp(), [z])
    wanted = (z * 2j).abs().exp()
    torch.testing.assert_close(program(z), wanted)
    program.save(str(tmp_path / "program"))
    made = tilefuse.load(str(tmp_path / "program"))(z)
    torch.testing.assert_close(made, wanted)
    assert torch.is_complex(tilefuse.compile(torch.fft.rfft, [torch.randn(8)])(torch.randn(8)))
