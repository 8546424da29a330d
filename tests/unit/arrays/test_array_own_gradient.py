"""Gradients that are stopped, and gradients that the user writes: values, compiled and not, of several arguments, and their errors."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilefuse.array as ta
from tilefuse import nn
from tilefuse.arrays.evaluation.gradients import grad
from tilefuse.arrays.graph import graph_of
from tilefuse.base.errors import CompilerError, ShapeError, TypeMismatchError, UserError
from tilefuse.passes import DEFAULT_PIPELINE, PassContext, Pipeline

X = np.linspace(-2.0, 3.0, 7)


def test_what_is_stopped_is_a_constant_for_gradients() -> None:
    """x * stop(x) has the gradient stop(x), its second derivative is 0; integers have none anyway."""
    x = ta.asarray(X)
    y = ta.sum(x * ta.stop_gradient(x) + ta.stop_gradient(ta.exp(x)))
    first = grad(y, x)
    second = grad(ta.sum(first), x)
    ta.evaluate(y, first, second)
    np.testing.assert_allclose(y.numpy(), (X * X + np.exp(X)).sum())
    np.testing.assert_array_equal(first.numpy(), X)
    np.testing.assert_array_equal(second.numpy(), np.zeros(7))
    n = ta.arange(3)
    assert ta.stop_gradient(n) is n and ta.stop_gradient(2.0).shape == ()


def test_complex_numbers_are_stopped_too() -> None:
    """The real part of x c has the gradient conj(c), in torch's convention."""
    z = np.array([1 + 2j, 3 - 1j], np.complex64)
    x = ta.asarray(z)
    slope = grad(ta.sum(ta.real(x * ta.stop_gradient(x))), x)
    np.testing.assert_array_equal(slope.numpy(), z.conj())


def test_nothing_is_computed_for_it() -> None:
    """In the program it is its operand, also where a product or a result reads it."""
    w = ta.asarray(np.ones((7, 7), np.float32))
    x = ta.asarray(X.astype(np.float32))
    with_it, without = (graph_of([ta.matmul(w, f(ta.exp(x)))])[0] for f in (ta.stop_gradient, lambda v: v))
    run = Pipeline.parse(DEFAULT_PIPELINE)
    assert len(run.run(with_it, PassContext()).nodes) == len(run.run(without, PassContext()).nodes)
    np.testing.assert_array_equal(ta.stop_gradient(x).numpy(), X.astype(np.float32))


@ta.custom_gradient
def softplus(x: Any) -> Any:
    """Its own formula's gradient is inf / inf where exp overflows."""
    e = ta.exp(x)

    def backward(g: Any) -> Any:
        return g * (1 - 1 / (1 + e))

    return ta.log1p(e), backward


def test_the_textbook_function_is_stable() -> None:
    x = ta.asarray(np.array([-3.0, 0.0, 900.0]))
    y = softplus(x)
    slope = grad(ta.sum(y), x)
    curve = grad(ta.sum(slope), x)
    ta.evaluate(y, slope, curve)
    s = 1 / (1 + np.exp(-np.array([-3.0, 0.0])))
    np.testing.assert_allclose(slope.numpy(), [*s, 1.0], rtol=1e-14)
    np.testing.assert_allclose(curve.numpy()[:2], s * (1 - s), rtol=1e-12)


def test_several_arguments_results_and_forms() -> None:
    """A tuple of results, a dict as an argument, an argument without gradient, a factor that shows whose gradient it is."""
    @ta.custom_gradient
    def pair(parts: dict[str, Any], k: Any, scale: float = 2.0) -> Any:
        a, b = parts["a"], parts["b"]

        def backward(g: Any, h: Any) -> Any:
            return {"a": 10.0 * g * b, "b": 100.0 * h}, None

        return (a * b * scale, ta.where(k > 0, b, -b)), backward

    a, b, k = ta.asarray(X), ta.asarray(X[::-1].copy()), ta.asarray(np.array([1, -1] * 3 + [1]))
    y, z = pair({"a": a, "b": b}, k, scale=3.0)
    ga, gb = grad(ta.sum(y) + 5.0 * ta.sum(z), [a, b])
    only = grad(ta.sum(z), [a, b])
    ta.evaluate(y, z, ga, gb, *only)
    np.testing.assert_allclose(y.numpy(), X * X[::-1] * 3.0)
    np.testing.assert_allclose(ga.numpy(), 10.0 * X[::-1])
    np.testing.assert_allclose(gb.numpy(), np.full(7, 500.0))
    np.testing.assert_allclose(only[0].numpy(), np.zeros(7))
    np.testing.assert_allclose(only[1].numpy(), np.full(7, 100.0))


def test_compiled_steps_use_it() -> None:
    """Clipped gradients inside a compiled function: the same as outside, and one program for all calls."""
    @ta.custom_gradient
    def clipped(x: Any) -> Any:
        return x, lambda g: ta.clip(g, -0.5, 0.5)

    @ta.compile
    def step(w: Any, x: Any) -> Any:
        return ta.value_and_grad(lambda v: ta.sum(clipped(v * x) * x))(w)

    w, x = np.ones(7, np.float32), X.astype(np.float32)
    for factor in (1.0, 2.0):
        value, slope = step(ta.asarray(w * factor), ta.asarray(x))
        np.testing.assert_allclose(value.numpy(), (w * factor * x * x).sum(), rtol=1e-6)
        np.testing.assert_allclose(slope.numpy(), np.clip(x, -0.5, 0.5) * x, rtol=1e-6)
    assert len(step.programs) == 1


def test_a_layer_may_use_it() -> None:
    """Straight-through rounding: the value is rounded, the gradient passes."""
    class Rounded(nn.Module):
        def forward(self, x: Any) -> Any:
            return x + ta.stop_gradient(ta.round(x) - x)

    x = ta.asarray(X.astype(np.float32))
    y = Rounded()(x)
    slope = grad(ta.sum(y * y), x)
    np.testing.assert_allclose(slope.numpy(), 2 * np.round(X), rtol=1e-6)


OUTSIDE = ta.asarray(X)


def _wrong(fn: Callable[..., Any], *args: Any) -> Callable[[], Any]:
    return lambda: ta.custom_gradient(fn)(*args)


@pytest.mark.parametrize(("error", "message", "wrong"), [
    (UserError, "not its result and a function", _wrong(lambda x: x * 2, OUTSIDE)),
    (UserError, "2 parts for 1 arguments", _wrong(lambda x: (x, lambda g: (g, g)), OUTSIDE)),
    (ShapeError, "has shape", _wrong(lambda x: (x, lambda g: ta.sum(g)), OUTSIDE)),
    (TypeMismatchError, "only arrays of floats", _wrong(lambda x: (x, lambda g: g > 0), OUTSIDE)),
    (TypeMismatchError, "arrays of floats", _wrong(lambda x: (x > 0, lambda g: g), OUTSIDE)),
    (UserError, "another form", _wrong(lambda x: (x[0] + x[1], lambda g: g), (OUTSIDE, OUTSIDE))),
    (UserError, "reads an array from outside", lambda: grad(ta.sum(ta.custom_gradient(
        lambda x: (x * OUTSIDE, lambda g: g * OUTSIDE))(ta.asarray(X) * 1.0)), OUTSIDE)),
    (UserError, "reads an array from outside", lambda: grad(ta.sum(ta.custom_gradient(
        lambda x: (x * OUTSIDE, lambda g: g))(ta.asarray(X) * 1.0)), OUTSIDE)),
])
def test_what_is_no_gradient_is_told_at_the_users_line(error: type[CompilerError], message: str, wrong: Callable[[], Any]) -> None:
    with pytest.raises(error, match=message) as caught:
        wrong()
    assert "test_array_own_gradient.py" in str(caught.value)
