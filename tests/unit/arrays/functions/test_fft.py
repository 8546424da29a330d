"""Fourier transforms of arrays: values beside numpy's for odd sizes, axes, norms, cut and padded operands; gradients beside torch's."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tilefuse.array as ta
from tests.unit.arrays.array_values import value
from tilefuse.base.errors import AxisError, OptionError, ShapeError, TypeMismatchError

random = np.random.default_rng(0)
REAL = random.normal(size=(3, 5, 4))
COMPLEX = REAL + 1j * random.normal(size=REAL.shape)
OF_REAL = ("rfft", "ihfft", "rfftn")
# Errors of a transform of n elements grow as log n times the unit roundoff, relative to the root of the sum of squares.
BOUND = 16 * np.finfo(float).eps * float(np.linalg.norm(COMPLEX.reshape(-1)))


def data(name: str) -> np.ndarray[Any, Any]:
    """Arguments of a transform."""
    return REAL if name in OF_REAL else COMPLEX


@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft", "hfft", "ihfft"])
def test_along_one_dimension(name: str, norm: Any) -> None:
    for n in (None, 1, 3, 6, 7):
        for axis in (-1, 1):
            found = value(getattr(ta.fft, name)(ta.asarray(data(name)), n=n, axis=axis, norm=norm))
            wanted = getattr(np.fft, name)(data(name), n=n, axis=axis, norm=norm)
            assert found.shape == wanted.shape and found.dtype == wanted.dtype
            assert np.abs(found - wanted).max() <= BOUND * 8, (n, axis)


@pytest.mark.parametrize("s, axes", [(None, None), ((3, 4), None), ((6, 2), (0, 2)), ((2, 7), (2, 1)), (None, (1,)), (None, (-1, 0))])
@pytest.mark.parametrize("name", ["fftn", "ifftn", "rfftn", "irfftn"])
def test_along_several_dimensions(name: str, s: Any, axes: Any) -> None:
    found = value(getattr(ta.fft, name)(ta.asarray(data(name)), s=s, axes=axes, norm="ortho"))
    wanted = getattr(torch.fft, name)(torch.from_numpy(data(name)), s=s, dim=axes, norm="ortho").numpy()
    assert found.shape == wanted.shape and np.abs(found - wanted).max() <= BOUND * 8


def test_types_and_what_is_refused() -> None:
    x, r = ta.asarray(COMPLEX.astype(np.complex64)), ta.asarray(REAL.astype(np.float32))
    assert ta.fft.fft(x).dtype == ta.complex64 and ta.fft.fft(r).dtype == ta.complex64 and ta.fft.rfft(r).dtype == ta.complex64
    assert ta.fft.irfft(x).dtype == ta.float32 and ta.fft.hfft(x).dtype == ta.float32
    assert value(ta.fft.fft(ta.zeros((0, 4), dtype=ta.complex64))).shape == (0, 4)
    for error, match, call in (
            (TypeMismatchError, "rfft takes real floats", lambda: ta.fft.rfft(x)),
            (TypeMismatchError, "fft takes floats and complex numbers, not int64", lambda: ta.fft.fft(ta.asarray([1, 2]))),
            (OptionError, "no norm 'orthogonal'", lambda: ta.fft.fft(x, norm="orthogonal")),
            (ShapeError, "at least one element", lambda: ta.fft.fft(x, n=0)),
            (ShapeError, "would have no element", lambda: ta.fft.irfft(x[..., :1])),
            (ShapeError, "2 sizes for 1 dimensions", lambda: ta.fft.fftn(x, s=(2, 2), axes=(0,))),
            (AxisError, "axis 3 is outside", lambda: ta.fft.fft(x, axis=3))):
        with pytest.raises(error, match=match):
            call()


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_frequencies_and_shifts(n: int) -> None:
    assert np.array_equal(value(ta.fft.fftfreq(n, d=0.3, dtype=ta.float64)), np.fft.fftfreq(n, d=0.3))
    assert np.array_equal(value(ta.fft.rfftfreq(n, d=0.3, dtype=ta.float64)), np.fft.rfftfreq(n, d=0.3))
    assert ta.fft.fftfreq(n).dtype == ta.float32
    x = np.arange(3.0 * n).reshape(3, n)
    assert np.array_equal(value(ta.fft.fftshift(ta.asarray(x))), np.fft.fftshift(x))
    assert np.array_equal(value(ta.fft.ifftshift(ta.asarray(x), axes=1)), np.fft.ifftshift(x, axes=1))
    assert np.array_equal(value(ta.fft.ifftshift(ta.fft.fftshift(ta.asarray(x)))), x)


@pytest.mark.parametrize("name, settings", [
    ("fft", {"n": 7, "axis": 1}), ("ifft", {"norm": "ortho"}), ("rfft", {"n": 5}), ("rfft", {"n": 6, "axis": 1}), ("irfft", {}),
    ("irfft", {"n": 5, "norm": "forward"}), ("irfft", {"n": 1}), ("hfft", {}), ("ihfft", {}), ("fftn", {"s": (3, 3)}), ("rfftn", {}),
    ("irfftn", {"s": (4, 5), "axes": (0, 1)}),
])
def test_gradients_are_torchs(name: str, settings: dict[str, Any]) -> None:
    """Of a weighted sum of squared lengths, and the gradient of that gradient."""
    theirs = {{"axis": "dim", "axes": "dim"}.get(k, k): v for k, v in settings.items()}
    x, t = ta.asarray(data(name)), torch.tensor(data(name), requires_grad=True)
    made, wanted = getattr(ta.fft, name)(x, **settings), getattr(torch.fft, name)(t, **theirs)
    weights = np.cos(np.arange(wanted.numel())).reshape(wanted.shape)
    slope = ta.grad(ta.sum(ta.abs(made) ** 2 * ta.asarray(weights)), x)
    exact, = torch.autograd.grad((wanted.abs() ** 2 * torch.from_numpy(weights)).sum(), t, create_graph=True)
    twice, = torch.autograd.grad((exact.abs() ** 2).sum(), t)
    for ours, right in ((slope, exact), (ta.grad(ta.sum(ta.abs(slope) ** 2), x), twice)):
        right = right.detach().resolve_conj().numpy()
        assert np.allclose(value(ours), right, rtol=1e-11, atol=1e-11 * np.abs(right).max())
