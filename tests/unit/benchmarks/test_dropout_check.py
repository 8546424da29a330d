"""How a dropout is judged without a reference: rounding is forgiven in every type, a wrong scale or probability is not."""
from __future__ import annotations

import pytest
import torch

from benchmarks.case import DTYPES, allowed_error
from benchmarks.patterns import dropout_add, dropout_error

NUM_ELEMENTS = 1 << 18


def _given(dtype: str) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(7)
    x, residual = torch.randn(2, NUM_ELEMENTS).to(DTYPES[dtype])
    return x, residual


def _dropped(dtype: str, probability: float, scale: float) -> float:
    """The error of a dropout in double precision, rounded once, that drops with this probability and multiplies by this scale."""
    x, residual = _given(dtype)
    kept = torch.rand(NUM_ELEMENTS) >= probability
    out = residual.double() + x.double() * scale * kept
    return dropout_error((x, residual), (out.to(x.dtype),))


@pytest.mark.parametrize("dtype", DTYPES)
def test_rounding_is_forgiven(dtype: str) -> None:
    """torch's own dropout, which rounds x / 0.9 before it is added, and one that rounds once."""
    x, residual = _given(dtype)
    assert dropout_error((x, residual), (dropout_add(x, residual),)) <= allowed_error(dtype)
    assert _dropped(dtype, 0.1, 1 / 0.9) <= allowed_error(dtype)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_x_that_is_lost_in_the_residual_tells_nothing(dtype: str) -> None:
    """Half of the elements have a residual that hardly an x can change: kept or not, they are equal."""
    x, residual = _given(dtype)
    residual[::2] = 4096.0
    assert dropout_error((x, residual), (dropout_add(x, residual),)) <= allowed_error(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [1.0, 1 / 0.8, 0.0, -1 / 0.9])
def test_wrong_scale_is_found(dtype: str, scale: float) -> None:
    """No scale, that of another probability, nothing kept, a wrong sign."""
    assert _dropped(dtype, 0.1, scale) > allowed_error(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("probability", [0.0, 0.09, 0.11, 0.5, 0.9])
def test_wrong_probability_is_found(dtype: str, probability: float) -> None:
    """Somewhat more than the six deviations of this many elements, and far more."""
    assert _dropped(dtype, probability, 1 / 0.9) == float("inf")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_one_value_that_is_not_finite_is_found(value: float) -> None:
    """It would hide the errors of all others in the norm."""
    x, residual = _given("bf16")
    out = dropout_add(x, residual)
    out[5] = value
    assert dropout_error((x, residual), (out,)) == float("inf")
