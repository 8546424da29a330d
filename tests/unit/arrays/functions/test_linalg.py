"""The linear algebra extension against the strict implementation of the standard; decompositions by what they promise."""
from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import array_api_strict as strict
import numpy as np
import pytest

import tilefuse.array as ta
from tests.unit.arrays.array_values import agree, pair, value
from tilefuse.base.errors import ShapeError, TypeMismatchError

# Functions left out: eigenvalues of general matrices are complex.
MISSING = {"eig", "eigvals"}
NAMES = sorted({*strict.linalg.__all__} | MISSING)


def drawn(*shape: int, seed: int = 1) -> np.ndarray[Any, Any]:
    """Numbers of a fixed seed in f64."""
    return np.random.default_rng(seed).standard_normal(shape)


@pytest.mark.parametrize("name", NAMES)
def test_signature(name: str) -> None:
    """Every function is there, with the standard's keywords."""
    if name in MISSING:
        assert not hasattr(ta.linalg, name)
        return
    wanted = [p.name for p in inspect.signature(getattr(strict.linalg, name)).parameters.values() if p.kind is p.KEYWORD_ONLY]
    assert set(wanted) <= set(inspect.signature(getattr(ta.linalg, name)).parameters)


@pytest.mark.parametrize("ord", (0, 1, 2, 3, 0.5, float("inf"), float("-inf")))
def test_vector_norm(ord: float) -> None:
    """All orders, axes kept or not, scalars and whole arrays."""
    x, y = pair(drawn(2, 3, 4))
    for axis in (None, 0, -1, (0, 2)):
        for keepdims in (False, True):
            agree(ta.linalg.vector_norm(x, axis=axis, keepdims=keepdims, ord=ord),
                  strict.linalg.vector_norm(y, axis=axis, keepdims=keepdims, ord=ord), ulps=16)


@pytest.mark.parametrize("ord", ("fro", "nuc", 1, -1, 2, -2, float("inf"), float("-inf")))
def test_matrix_norm(ord: Any) -> None:
    """All orders over stacks of matrices."""
    x, y = pair(drawn(2, 3, 4))
    for keepdims in (False, True):
        np.testing.assert_allclose(value(ta.linalg.matrix_norm(x, ord=ord, keepdims=keepdims)),
                                   np.asarray(strict.linalg.matrix_norm(y, ord=ord, keepdims=keepdims)), rtol=1e-12)


def test_kernels() -> None:
    """cross, trace, powers."""
    a, b = drawn(3, 4), drawn(2, 3, 4, seed=2)
    (x1, y1), (x2, y2) = pair(a), pair(b)
    agree(ta.linalg.cross(x1[None], x2, axis=-2), strict.linalg.cross(y1[None, ...] + 0 * y2, y2, axis=-2), ulps=2)
    agree(ta.linalg.trace(x2, offset=1), strict.linalg.trace(y2, offset=1), ulps=4)
    square = drawn(2, 3, 3)
    for n in (0, 1, 2, 5, -2):
        np.testing.assert_allclose(value(ta.linalg.matrix_power(ta.asarray(square), n)), np.linalg.matrix_power(square, n), rtol=1e-9)


def test_rank() -> None:
    """Singular values above a share of the largest; as many shares as matrices may be given."""
    a = drawn(3, 4, 2) @ drawn(3, 2, 5, seed=2)
    assert value(ta.linalg.matrix_rank(ta.asarray(a))).tolist() == np.linalg.matrix_rank(a).tolist() == [2, 2, 2]
    x = ta.asarray(np.stack([np.diag([1.0, 0.1, 0.01])] * 2))
    assert value(ta.linalg.matrix_rank(x, rtol=ta.asarray(np.array([0.5, 0.05])))).tolist() == [1, 2]
    assert int(value(ta.linalg.matrix_rank(ta.zeros((3, 3))))) == 0 and ta.linalg.matrix_rank(ta.zeros((2, 0, 3))).dtype == ta.int64
    for order in (1, 2, "nuc", float("inf")):
        assert float(value(ta.linalg.matrix_norm(ta.zeros((0, 3)), ord=order))) == 0.0


def test_framework_functions() -> None:
    """Inverses, determinants, solutions, factors."""
    a = drawn(2, 4, 4)
    positive = a @ a.swapaxes(-1, -2) + 4 * np.eye(4)
    x, p = ta.asarray(a), ta.asarray(positive)
    np.testing.assert_allclose(value(ta.linalg.inv(x)), np.linalg.inv(a), rtol=1e-9)
    np.testing.assert_allclose(value(ta.linalg.det(x)), np.linalg.det(a), rtol=1e-9)
    found = ta.linalg.slogdet(x)
    np.testing.assert_allclose(value(found.sign) * np.exp(value(found.logabsdet)), np.linalg.det(a), rtol=1e-9)
    np.testing.assert_allclose(value(ta.linalg.cholesky(p)), np.linalg.cholesky(positive), rtol=1e-9, atol=1e-12)
    upper = value(ta.linalg.cholesky(p, upper=True))
    np.testing.assert_allclose(upper.swapaxes(-1, -2), np.linalg.cholesky(positive), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(value(ta.linalg.eigvalsh(p)), np.linalg.eigvalsh(positive), rtol=1e-9)
    np.testing.assert_allclose(value(ta.linalg.pinv(x[..., :2])), np.linalg.pinv(a[..., :2]), rtol=1e-8, atol=1e-10)
    each = np.asarray([0.3, 0.6])
    np.testing.assert_allclose(value(ta.linalg.pinv(x[..., :3], rtol=ta.asarray(each))), np.linalg.pinv(a[..., :3], rcond=each), rtol=1e-8,
                               atol=1e-10)
    for right in (drawn(4), drawn(4, 3), drawn(2, 4, 1)):
        wanted = np.linalg.solve(a, right[:, None])[..., 0] if right.ndim == 1 else np.linalg.solve(a, right)
        np.testing.assert_allclose(value(ta.linalg.solve(x, ta.asarray(right))), wanted, rtol=1e-8)


@pytest.mark.parametrize("shape", ((4, 4), (5, 3), (2, 3, 5)))
def test_factors_multiply_to_the_matrix(shape: tuple[int, ...]) -> None:
    """qr and svd, reduced and complete."""
    a = drawn(*shape)
    x = ta.asarray(a)
    for mode in ("reduced", "complete"):
        q, r = ta.linalg.qr(x, mode=mode)
        np.testing.assert_allclose(value(q) @ value(r), a, rtol=1e-9, atol=1e-12)
        assert q.shape == np.linalg.qr(a, mode=mode)[0].shape  # type: ignore[call-overload]
    u, s, vh = ta.linalg.svd(x, full_matrices=False)
    np.testing.assert_allclose(value(u) * value(s)[..., None, :] @ value(vh), a, rtol=1e-9, atol=1e-12)
    assert [m.shape for m in ta.linalg.svd(x)] == [m.shape for m in np.linalg.svd(a)]


def test_refusals() -> None:
    """Shapes and types, at the user's line."""
    x = ta.ones((2, 3))
    cases: list[tuple[Callable[[], Any], type[Exception], str]] = [
        (lambda: ta.linalg.inv(x), ShapeError, "square matrices"), (lambda: ta.linalg.det(x[0]), ShapeError, "matrices are wanted"),
        (lambda: ta.linalg.solve(x[:, :2], x[0]), ShapeError, "as many rows"),
        (lambda: ta.linalg.cross(x[:, :2], x), ShapeError, "do not broadcast"),
        (lambda: ta.linalg.matrix_norm(x, ord=3), ShapeError, "no order 3"), (lambda: ta.linalg.qr(x, mode="raw"), ShapeError, "no mode"),
        (lambda: ta.linalg.svd(ta.ones((2, 2), dtype="float16")), TypeMismatchError, "float32 and float64, not float16"),
        (lambda: ta.linalg.vector_norm(ta.asarray([1, 2])), TypeMismatchError, "takes floats"),
    ]
    for call, kind, message in cases:
        with pytest.raises(kind, match=message) as refused:
            call()
        assert __file__ in str(refused.value)
