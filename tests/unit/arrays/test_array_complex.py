"""Complex arrays: values and special cases of functions beside numpy's, reductions, products, decompositions, and what refuses them."""
from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import tilefuse.array as ta
from tests.unit.arrays.array_values import value
from tilefuse.base.errors import ShapeError, TypeMismatchError

inf, nan = float("inf"), float("nan")
# Name here -> numpy's, of functions of one number.
UNARY = {
    "abs": "abs", "acos": "arccos", "acosh": "arccosh", "angle": "angle", "asin": "arcsin", "asinh": "arcsinh", "atan": "arctan",
    "atanh": "arctanh", "conj": "conj", "cos": "cos", "cosh": "cosh", "exp": "exp", "imag": "imag", "log": "log", "log10": "log10",
    "log2": "log2", "negative": "negative", "positive": "positive", "real": "real", "reciprocal": "reciprocal", "round": "round",
    "sign": "sign", "sin": "sin", "sinh": "sinh", "sqrt": "sqrt", "square": "square", "tan": "tan", "tanh": "tanh",
}
BINARY = ("add", "divide", "equal", "multiply", "not_equal", "pow", "subtract")
# Each function is a few operations of the real library, each within a few units in the last place; a power multiplies the error of
# log |x| and of the angle, by up to |y| (|log |x|| + pi).
ULPS, ULPS_OF_POWER = 16, 256
SPECIAL = [complex(a, b) for a in (0.0, -0.0, 1.0, -1.5, inf, -inf, nan) for b in (0.0, -0.0, 1.0, -1.5, inf, -inf, nan)]
# Where the C standard and numpy say what the result is, but for the sign of a zero or an infinity beside a NaN.
BY_THE_STANDARD = ("acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "exp", "log", "log10", "log2", "sin", "sinh", "sqrt",
                   "tan", "tanh")


def drawn(seed: int, shape: int | tuple[int, ...], dtype: str = "complex128") -> np.ndarray[Any, Any]:
    """Complex numbers of lengths from 1e-3 to 10."""
    random = np.random.default_rng(seed)
    length = np.exp(random.uniform(-7, 2.3, shape))
    return (length * np.exp(1j * random.uniform(-np.pi, np.pi, shape))).astype(dtype)


def check(found: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any], name: str, ulps: float = ULPS) -> None:
    """Equal up to so many units in the last place of the complex number's length."""
    eps = np.finfo(found.dtype).eps if found.dtype.kind in "fc" else 0
    assert found.shape == wanted.shape and found.dtype.kind == wanted.dtype.kind, name
    with np.errstate(invalid="ignore"):
        error = np.abs(found - wanted) if found.dtype.kind != "b" else found != wanted
        assert (error <= ulps * eps * np.abs(wanted)).all(), name


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_functions_have_numpys_values(dtype: str) -> None:
    x, y = drawn(0, 300, dtype), drawn(1, 300, dtype)
    wide = x.astype(np.complex128), y.astype(np.complex128)
    for name, theirs in UNARY.items():
        check(value(getattr(ta, name)(ta.asarray(x))), getattr(np, theirs)(wide[0]), name)
    # numpy's own of these two cancel.
    check(value(ta.expm1(ta.asarray(x))), _exp_less_one(wide[0]), "expm1")
    check(value(ta.exp(ta.log1p(ta.asarray(x)))), 1 + wide[0], "log1p", ULPS * 4)
    for name in BINARY:
        theirs = getattr(np, "power" if name == "pow" else name)
        check(value(getattr(ta, name)(ta.asarray(x), ta.asarray(y))), theirs(*wide), name, ULPS_OF_POWER if name == "pow" else ULPS)


def _exp_less_one(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """exp(x) - 1 by its real parts, which do not cancel."""
    half = np.sin(x.imag / 2)
    return np.expm1(x.real) * np.cos(x.imag) - 2 * half * half + 1j * np.exp(x.real) * np.sin(x.imag)


def test_expm1_and_log1p_keep_the_digits_of_small_numbers() -> None:
    x = np.array([1e-12 + 2e-13j, -3e-10 + 1e-14j, 4e-9j])
    # Two terms of either series: the third is beyond the last place.
    check(value(ta.expm1(ta.asarray(x))), x + x * x / 2, "expm1", 4)
    check(value(ta.log1p(ta.asarray(x))), x - x * x / 2, "log1p", 4)


@pytest.mark.parametrize("name", BY_THE_STANDARD)
def test_special_cases_are_those_of_the_c_standard(name: str) -> None:
    x = np.array(SPECIAL)
    found = value(getattr(ta, name)(ta.asarray(x)))
    with np.errstate(all="ignore"):
        wanted = getattr(np, UNARY[name])(x)
    beside_nan = np.isnan(wanted.real) | np.isnan(wanted.imag)
    # exp(-inf + inf i) and a flat tangent: zeros whose sign the standard leaves open.
    zeros_of_either_sign = ~np.isfinite(x.real) | ~np.isfinite(x.imag) if name in ("exp", "tan", "tanh") else np.zeros(len(x), bool)
    for ours, theirs in ((found.real, wanted.real), (found.imag, wanted.imag)):
        same = np.isclose(np.abs(ours), np.abs(theirs), rtol=ULPS * np.finfo(float).eps, atol=0, equal_nan=True)
        signs = (np.signbit(ours) == np.signbit(theirs)) | np.isnan(theirs) | beside_nan | zeros_of_either_sign & (theirs == 0)
        assert (same & signs).all(), [(x[n], found[n], wanted[n]) for n in np.flatnonzero(~(same & signs))]


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_lengths_near_the_ends_of_the_type_do_not_overflow(dtype: str) -> None:
    facts = np.finfo(dtype)
    x = np.array([complex(facts.max, facts.max) * 0.7, complex(facts.max * 0.5, 0), complex(facts.tiny, -facts.tiny)], dtype)
    for name in ("sqrt", "log", "asin", "acosh", "atanh", "sign"):
        found = value(getattr(ta, name)(ta.asarray(x)))
        assert np.isfinite(found).all(), name
    roots = value(ta.sqrt(ta.asarray(x))).astype(np.clongdouble)
    assert np.allclose(roots * roots, x.astype(np.clongdouble), rtol=ULPS * facts.eps, atol=0)
    check(value(ta.divide(ta.asarray(x / 4), ta.asarray(x / 4))), np.ones(3, dtype), "divide")
    assert np.isfinite(value(ta.abs(ta.asarray(x[1:])))).all()


def test_numbers_types_and_promotion() -> None:
    x = ta.asarray([1 + 2j, 3])
    assert x.dtype == ta.complex64 and ta.asarray([1j], dtype=ta.complex128).dtype == ta.complex128
    assert (x * 2.5).dtype == ta.complex64 and (ta.ones((2,)) * 1j).dtype == ta.complex64
    assert (ta.ones((2,), dtype=ta.float64) * 1j).dtype == ta.complex128 and (ta.ones((2,), dtype=ta.int32) + 1j).dtype == ta.complex64
    assert ta.result_type(ta.complex64, ta.float64) == ta.complex128 and ta.result_type(ta.float16, ta.complex64) == ta.complex64
    assert ta.abs(x).dtype == ta.float32 and ta.real(x).dtype == ta.float32 and ta.isnan(x).dtype == ta.bool
    assert ta.isdtype(ta.complex64, "complex floating") and ta.isdtype(x.dtype, "numeric") and not ta.isdtype(x.dtype, "real floating")
    assert ta.can_cast(ta.float32, ta.complex64) and not ta.can_cast(ta.float64, ta.complex64) and not ta.can_cast(x, ta.float64)
    assert ta.finfo(ta.complex64).bits == 32 and ta.finfo(ta.complex128).dtype == ta.float64
    assert x.nbytes == 16 and complex(x[0]) == 1 + 2j and x.tolist() == [1 + 2j, 3] and np.asarray(x).dtype == np.complex64
    assert str(x).startswith("[1.+2.j")
    assert (value(ta.astype(ta.asarray([2, 3]), ta.complex64)) == [2, 3]).all()
    assert (value(ta.astype(x, ta.bool)) == [True, True]).all()
    assert ta.linspace(0, 1j, 3).dtype == ta.complex64 and np.allclose(value(ta.linspace(1, 3j, 5)), np.linspace(1, 3j, 5))
    assert (value(ta.full((2,), 1 - 1j)) == 1 - 1j).all() and (value(ta.eye(2, dtype=ta.complex64)) == np.eye(2)).all()


def test_what_has_no_meaning_for_complex_numbers_says_so() -> None:
    x = ta.asarray([[1 + 2j, 3]])
    for name in ("floor", "maximum", "less", "logaddexp", "exp2", "signbit"):
        with pytest.raises(TypeMismatchError, match=f"{name} takes real numbers, not complex64"):
            getattr(ta, name)(*((x, x) if name in ("maximum", "less", "logaddexp") else (x,)))
    for call in (lambda: ta.max(x), lambda: ta.argmin(x), lambda: ta.sort(x), lambda: ta.var(x), lambda: ta.softmax(x),
                 lambda: ta.astype(x, ta.float32), lambda: float(x[0, 0]), lambda: ta.put(ta.ones((2,)), 0, 1j),
                 lambda: ta.put(ta.ones((2,)), 0, ta.asarray(1j)), lambda: ta.clip(ta.ones((2,)), 1j)):
        with pytest.raises(TypeMismatchError, match=r"complex|real"):
            call()
    with pytest.raises(ShapeError, match="only a real one has a slope"):
        ta.grad(ta.sum(x), x)


def test_elements_move_as_real_ones_do() -> None:
    data = drawn(2, (3, 4, 5))
    x, at = ta.asarray(data), np.array([2, 0, 0])
    moved = {
        "reshape": (ta.reshape(x, (5, 12)), data.reshape(5, 12)), "permute": (ta.permute_dims(x, (2, 0, 1)), data.transpose(2, 0, 1)),
        "flip": (ta.flip(x, axis=1), np.flip(data, 1)), "roll": (ta.roll(x, 2, axis=2), np.roll(data, 2, 2)),
        "concat": (ta.concat([x, x], axis=1), np.concatenate([data, data], 1)), "stack": (ta.stack([x, x]), np.stack([data, data])),
        "pad": (ta.pad(x, 1, value=1j), np.pad(data, 1, constant_values=1j)), "tril": (ta.tril(x), np.tril(data)),
        "take": (ta.take(x, ta.asarray(at), axis=0), data[at]), "index": (x[:, ta.asarray(at), 1:3], data[:, at, 1:3]),
        "slice": (x[::-1, None, 1, ::2], data[::-1, None, 1, ::2]), "tile": (ta.tile(x, (1, 2, 1)), np.tile(data, (1, 2, 1))),
        "where": (ta.where(ta.real(x) > 0, x, 0), np.where(data.real > 0, data, 0)), "mT": (x.mT, data.swapaxes(1, 2)),
        "put": (ta.put(x, (slice(None), 1), 2j), _written(data, (slice(None), 1), 2j)), "broadcast": (x + x[:1], data + data[:1]),
        "add at": (ta.put(x, (ta.asarray(np.array([0, 2])),), 1j, accumulate=True), _written(data, (np.array([0, 2]),), 1j, True)),
        "mixed": (ta.concat([ta.real(x), x]), np.concatenate([data.real, data])),
    }
    for name, (ours, theirs) in moved.items():
        assert (value(ours) == theirs).all(), name
    y = ta.asarray(data, copy=True)
    y[1, ::2] = 1 + 1j
    y[ta.real(y) < 0] *= 2
    wanted = _written(data, (1, slice(None, None, 2)), 1 + 1j)
    wanted[wanted.real < 0] *= 2
    assert (y.numpy() == wanted).all() and (x[x != 0].numpy() == data.reshape(-1)).all()
    assert (ta.unique_values(ta.asarray([1j, 0, 1j])).numpy() == [0, 1j]).all()


def _written(data: np.ndarray[Any, Any], key: Any, new: complex, adds: bool = False) -> np.ndarray[Any, Any]:
    made = data.copy()
    made[key] = made[key] + new if adds else new
    return made


@pytest.mark.parametrize("shape, axis", [((7, 5), 0), ((7, 5), None), ((2, 6, 3), (0, 2)), ((0, 3), 0), ((4,), ())])
def test_sums_and_products(shape: tuple[int, ...], axis: Any) -> None:
    data = drawn(3, shape)
    x = ta.asarray(data)
    count = max(data.size, 1)
    check(value(ta.sum(x, axis=axis)), data.sum(axis=axis), "sum", ULPS * count * 1e4)
    check(value(ta.prod(x, axis=axis, keepdims=True)), data.prod(axis=axis, keepdims=True), "prod", ULPS * count)
    if data.size:
        check(value(ta.mean(x, axis=axis)), data.mean(axis=axis), "mean", ULPS * count * 1e4)
    if len(shape) == 2 and data.size:
        check(value(ta.cumulative_prod(x, axis=1)), data.cumprod(1), "cumulative_prod", ULPS * 8)
        check(value(ta.cumulative_sum(x, axis=0)), data.cumsum(0), "cumulative_sum", 1e4)
        assert value(ta.count_nonzero(x)) == data.size and bool(value(ta.all(x))) and not bool(value(ta.any(x * 0)))


def test_matrix_products() -> None:
    a, b, v = drawn(4, (2, 3, 4)), drawn(5, (4, 5)), drawn(6, 4)
    x, y, w = ta.asarray(a), ta.asarray(b), ta.asarray(v)
    bound = 4 * 2 * np.finfo(float).eps
    for ours, theirs, size in (
            (x @ y, a @ b, np.abs(a) @ np.abs(b)), (x @ w, a @ v, np.abs(a) @ np.abs(v)), (w @ y, v @ b, np.abs(v) @ np.abs(b)),
            (ta.vecdot(x, w), a.conj() @ v, np.abs(a) @ np.abs(v)),
            (ta.tensordot(x, y, axes=1), np.tensordot(a, b, 1), np.abs(a) @ np.abs(b)),
            (ta.einsum("bij,jk->ikb", x, y), np.einsum("bij,jk->ikb", a, b), np.einsum("bij,jk->ikb", np.abs(a), np.abs(b))),
            (x @ ta.asarray(b.real), a @ b.real, np.abs(a) @ np.abs(b))):
        assert (np.abs(value(ours) - theirs) <= 2 * bound * size).all()
    check(value(ta.outer(w, w)), np.outer(v, v), "outer", 4)


def test_linear_algebra() -> None:
    a, b = drawn(7, (2, 3, 3)) + 4 * np.eye(3), drawn(8, (2, 3, 2))
    x, y, hermitian = ta.asarray(a), ta.asarray(b), a @ a.conj().swapaxes(1, 2)
    near = {"rtol": 1e-12, "atol": 1e-12}
    assert np.allclose(value(ta.linalg.solve(x, y)), np.linalg.solve(a, b), **near)
    assert np.allclose(value(ta.linalg.inv(x)), np.linalg.inv(a), **near) and np.allclose(value(ta.linalg.det(x)), np.linalg.det(a), **near)
    low = value(ta.linalg.cholesky(ta.asarray(hermitian)))
    assert np.allclose(low @ low.conj().swapaxes(1, 2), hermitian, **near)
    found = ta.linalg.eigh(ta.asarray(hermitian))
    assert found.eigenvalues.dtype == ta.float64 and np.allclose(value(found.eigenvalues), np.linalg.eigvalsh(hermitian), **near)
    u, s, vh = (value(part) for part in ta.linalg.svd(x, full_matrices=False))
    assert s.dtype == np.float64 and np.allclose((u * s[:, None]) @ vh, a, **near)
    q, r = (value(part) for part in ta.linalg.qr(x))
    assert np.allclose(q @ r, a, **near) and np.allclose(value(ta.linalg.pinv(y)), np.linalg.pinv(b), **near)
    assert np.allclose(value(ta.linalg.pinv(y, rtol=ta.asarray([1e-9, 1e-9], dtype=ta.float64))), np.linalg.pinv(b), **near)
    sign, size = ta.linalg.slogdet(x)
    assert size.dtype == ta.float64 and np.allclose(value(sign) * np.exp(value(size)), np.linalg.det(a), **near)
    assert ta.linalg.vector_norm(x).dtype == ta.float64 and np.isclose(value(ta.linalg.vector_norm(x)), np.linalg.norm(a.reshape(-1)))
    assert np.allclose(value(ta.linalg.matrix_norm(x, ord=1)), np.linalg.norm(a, 1, (1, 2)))
    assert (value(ta.linalg.matrix_rank(x)) == 3).all()
    assert np.allclose(value(ta.linalg.matrix_power(x, 3)), np.linalg.matrix_power(a, 3), **near)


def test_memory_is_shared_with_numpy_and_torch() -> None:
    data = torch.tensor([1 + 2j, 3 - 1j])
    x = ta.asarray(data)
    assert torch.from_dlpack(x).data_ptr() == data.data_ptr() and x.numpy().dtype == np.complex64
    assert (ta.asarray(data.conj()).numpy() == data.conj().resolve_conj().numpy()).all()
    assert ta.asarray(np.asarray(x), copy=False).dtype == ta.complex64
    turned = ta.asarray(torch.arange(6).to(torch.complex64).reshape(2, 3).T)
    assert (ta.exp(turned * 0).numpy() == 1).all() and ((turned + 1j).numpy() == np.arange(6).reshape(2, 3).T + 1j).all()


def test_compiled_functions_sessions_and_variables_take_complex_arrays() -> None:
    """As compiled kernels on the device at hand, in place where an argument is donated."""
    data = drawn(9, (4, 3), "complex64")

    @ta.compile(donate=0)
    def step(state: Any, x: Any) -> Any:
        return state * 0.5 + x @ ta.conj(x).mT @ state, ta.sum(ta.abs(x))

    wanted = data * np.float32(0.5) + data @ data.conj().T @ data
    for _ in range(2):
        made, size = step(ta.asarray(data, copy=True), ta.asarray(data))
        assert made.dtype == ta.complex64 and size.dtype == ta.float32
        assert np.allclose(made.numpy(), wanted, rtol=1e-4, atol=1e-3)
    place, held = ta.placeholder((4, 3), ta.complex64), ta.variable(ta.asarray(data))
    session = ta.Session()
    total = session.run([held.assign(held + place), ta.abs(place)], {place: data})
    assert (total[0].numpy() == data + data).all() and (held.value.numpy() == data + data).all()
    assert np.allclose(total[1].numpy(), np.abs(data))
