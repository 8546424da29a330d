"""Gradients by complex arrays are torch's: by the real part plus i times by the imaginary part, of each function, sum and product."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import tilefuse.array as ta
from tests.unit.arrays.array_values import value
from tilefuse.base.errors import UserError

# Name here -> torch's, where it differs.
UNARY = {**dict.fromkeys((
    "abs", "acos", "acosh", "angle", "asin", "asinh", "atan", "atanh", "cos", "cosh", "exp", "expm1", "imag", "log", "log10", "log1p",
    "log2", "positive", "real", "reciprocal", "sin", "sinh", "sqrt", "square", "tan", "tanh")),
    "negative": "neg", "conj": "conj_physical", "sign": "sgn"}
BINARY = {"add": "add", "subtract": "sub", "multiply": "mul", "divide": "div", "pow": "pow"}
COUNT = 24
# Both sides have rounded a few operations, whose condition the drawn numbers (lengths 0.02 to 7) keep below a thousand.
BOUND = 1e-10


def drawn(seed: int, shape: int | tuple[int, ...]) -> np.ndarray[Any, Any]:
    random = np.random.default_rng(seed)
    return np.exp(random.uniform(-4, 2, shape)) * np.exp(1j * random.uniform(-np.pi, np.pi, shape))


def check(ours: Callable[..., Any], theirs: Callable[..., Any], *data: np.ndarray[Any, Any]) -> None:
    """The gradients by all operands, of a weighted sum of the result."""
    xs, ts = [ta.asarray(d) for d in data], [torch.tensor(d, requires_grad=True) for d in data]
    made, wanted = ours(*xs), theirs(*ts)
    seed = drawn(9, tuple(wanted.shape))
    seed = seed if wanted.is_complex() else seed.real.copy()
    found = ta.grad(made, xs, seed=ta.asarray(seed))
    wanted.backward(torch.tensor(seed))
    for x, g, t in zip(xs, found, ts, strict=True):
        right = t.grad.resolve_conj().numpy()
        assert g.dtype == x.dtype and g.shape == x.shape
        assert np.abs(value(g) - right).max() <= BOUND * max(1.0, float(np.abs(right).max()))


@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_number(name: str) -> None:
    check(getattr(ta, name), getattr(torch, UNARY[name] or name), drawn(0, COUNT))


@pytest.mark.parametrize("name", BINARY)
def test_functions_of_two_numbers(name: str) -> None:
    check(getattr(ta, name), getattr(torch, BINARY[name]), drawn(1, COUNT), drawn(2, COUNT) / 4)
    check(getattr(ta, name), getattr(torch, BINARY[name]), drawn(3, COUNT), np.random.default_rng(4).normal(size=COUNT))


def test_reductions_products_and_subscripts() -> None:
    x, y = drawn(5, (4, 6)), drawn(6, (6, 3))
    mask = x.real > 0
    for ours, theirs, data in (
            (lambda a: ta.sum(a, axis=0), lambda a: a.sum(0), (x,)), (lambda a: ta.mean(a, axis=1), lambda a: a.mean(1), (x,)),
            (lambda a: ta.prod(a, axis=1), lambda a: a.prod(1), (x,)),
            (lambda a: ta.cumulative_sum(a, axis=1), lambda a: a.cumsum(1), (x,)),
            (lambda a: ta.cumulative_prod(a, axis=1), lambda a: a.cumprod(1), (x,)), (ta.matmul, torch.matmul, (x, y)),
            (ta.vecdot, torch.linalg.vecdot, (x, drawn(7, (4, 6)))), (lambda a: a[1:3, ::2], lambda a: a[1:3, ::2], (x,)),
            (ta.linalg.vector_norm, torch.linalg.vector_norm, (x,)),
            (lambda a: ta.where(ta.asarray(mask), a, a * 2j), lambda a: torch.where(torch.tensor(mask), a, a * 2j), (x,))):
        check(ours, theirs, *data)


def test_linear_algebra() -> None:
    a, y = drawn(8, (2, 3, 3)) + 4 * np.eye(3), drawn(6, (2, 3, 2))
    for ours, theirs, data in (
            (ta.linalg.solve, torch.linalg.solve, (a, y)), (ta.linalg.inv, torch.linalg.inv, (a,)), (ta.linalg.det, torch.linalg.det, (a,)),
            (lambda x: ta.linalg.pinv(x, rtol=1e-9), lambda x: torch.linalg.pinv(x, rtol=1e-9), (y,)),
            (lambda x: ta.linalg.cholesky(x @ ta.conj(x).mT), lambda x: torch.linalg.cholesky(x @ x.mH), (a,))):
        check(ours, theirs, *data)
    for name, number in (("svdvals", None), ("eigvalsh", None), ("slogdet", 1)):
        def values(ns: Any, x: Any, name: str = name, number: int | None = number) -> Any:
            found = getattr(ns.linalg, name)(x @ ns.conj(x).mT if name == "eigvalsh" else x)
            return found if number is None else found[number]

        check(lambda x, values=values: values(ta, x), lambda x, values=values: values(torch, x), y if name == "svdvals" else a)
    x = ta.asarray(a)
    for told, made in (("singular vectors", ta.linalg.svd(x).U), ("eigenvectors", ta.linalg.eigh(x).eigenvectors),
                       ("the operator aten.linalg_qr.default", ta.linalg.qr(x).R), ("the sign", ta.linalg.slogdet(x).sign)):
        with pytest.raises(UserError, match=f"no gradient is defined for {told}.* of complex"):
            ta.grad(ta.sum(ta.real(made)), x)


def test_lengths_have_gradient_zero_at_zero() -> None:
    x = ta.asarray(np.zeros(3, np.complex128))
    assert (value(ta.grad(ta.sum(ta.abs(x)), x)) == 0).all()


def test_gradients_have_gradients() -> None:
    data = drawn(10, COUNT) / 4
    x, t = ta.asarray(data), torch.tensor(data, requires_grad=True)
    slope = ta.grad(ta.sum(ta.abs(ta.exp(x) * x)), x)
    exact, = torch.autograd.grad((torch.exp(t) * t).abs().sum(), t, create_graph=True)
    twice, = torch.autograd.grad((exact.abs() ** 2).sum(), t)
    assert np.allclose(value(ta.grad(ta.sum(ta.abs(slope) ** 2), x)), twice.numpy(), rtol=BOUND)
