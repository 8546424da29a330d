"""Array programs with numpy's values: the same list for the host executor and the GPU."""
from __future__ import annotations

from typing import Any

import numpy as np

import tilefuse.array as ta
from tilefuse.arrays.array import Array

DRAW = np.random.default_rng(11)
Cases = dict[str, tuple[Array, np.ndarray[Any, Any]]]


def drawn(*shape: int, dtype: str = "float32") -> np.ndarray[Any, Any]:
    """Random numbers of a fixed seed."""
    return DRAW.standard_normal(shape).astype(dtype) if dtype.startswith("float") else DRAW.integers(-9, 9, shape).astype(dtype)


def many_functions(rows: int, columns: int) -> Cases:
    """Results of every kind of function over matrices of this shape (even numbers, at least 4), beside numpy's."""
    a, b, c = drawn(rows, columns), drawn(columns), drawn(columns, 4, dtype="float64")
    n, flags = drawn(rows, columns, dtype="int32"), drawn(rows, columns) > 0
    x, y, z, k, f = (ta.asarray(v) for v in (a, b, c, n, flags))
    whole = ta.astype(k, "float32")  # sums of whole numbers are exact
    return {
        "chain": (ta.tanh(x * 2 + y) / 3, np.tanh(a * 2 + b) / 3),
        "mean": (ta.mean(x, axis=1), a.mean(1)),
        "variance": (ta.var(x, axis=0, correction=1), a.var(0, ddof=1)),
        "softmax": (ta.softmax(x), np.exp(a) / np.exp(a).sum(1, keepdims=True)),
        "product": (ta.astype(x, "float64") @ z, a.astype("float64") @ c),
        "inverse": (ta.linalg.inv(ta.matrix_transpose(z) @ z), np.linalg.inv(c.T @ c)),
        "singular": (ta.linalg.svdvals(z), np.linalg.svd(c, compute_uv=False)),
        "transpose": (x.T + 1, a.T + 1),
        "pad": (ta.pad(x, 1, value=7.0), np.pad(a, 1, constant_values=7.0)),
        "join": (ta.concat([x, x[:2] * 2], axis=0), np.concatenate([a, a[:2] * 2])),
        "gather": (x[:, ta.asarray([3, -1])], a[:, [3, -1]]),
        "where": (ta.where(f, x, 0.0), np.where(flags, a, 0)),
        "sort": (ta.sort(x, axis=0), np.sort(a, axis=0)),
        "integers": (k // 3 + (k % 4) * (k << 1), n // 3 + (n % 4) * (n << 1)),
        "running": (ta.cumulative_sum(k, axis=1), np.cumsum(n, axis=1)),
        "argmax": (ta.argmax(x, axis=1), a.argmax(1)),
        "any": (ta.any(f, axis=0), flags.any(0)),
        "einsum": (ta.einsum("ij,kj->ik", whole, whole), n.astype("float32") @ n.T.astype("float32")),
        "sum of products": (ta.sum(whole[:, None, :] * whole[None], axis=-1), n.astype("float32") @ n.T.astype("float32")),
        "put": (ta.put(x, (slice(None, None, 2), 3), -1.0), _with(a, (slice(None, None, 2), 3), -1.0)),
    }


def _with(data: np.ndarray[Any, Any], key: Any, value: float) -> np.ndarray[Any, Any]:
    copy = data.copy()
    copy[key] = value
    return copy


def check_values(cases: Cases) -> None:
    """Shape, type (numpy widens running sums on its own) and values. Raises: AssertionError."""
    for name, (got, wanted) in cases.items():
        assert got.shape == wanted.shape and (got.numpy().dtype == wanted.dtype or name == "running"), name
        np.testing.assert_allclose(got.numpy(), wanted, rtol=5e-5, atol=1e-5, err_msg=name)


def check_writes(device: str) -> None:
    """Writes at slices, index arrays and masks, at once and in a compiled function, and what masks read, beside numpy.

    Raises: AssertionError.
    """
    base, fresh, at = drawn(9, 14), drawn(14), np.array([5, -1, 2])

    def write(x: Any, v: Any, at: Any) -> Any:
        x[1::2, 3:] = v[3:]
        x[0] += 2.0
        x[at, 1] = v[:3]
        x[::-3, ::4] *= 0.5
        x[x > 1.5] = -1.0
        return x * 2

    for dtype in ("float32", "float64"):
        wanted = base.astype(dtype)
        double = write(wanted, fresh.astype(dtype), at)
        for fn in (write, ta.compile(write), ta.compile(write, donate=0)):
            x, v, places = (ta.asarray(d, device=device, copy=True) for d in (base.astype(dtype), fresh.astype(dtype), at))
            made = fn(x, v, places)
            assert x.device == made.device == device
            np.testing.assert_array_equal(x.numpy(), wanted)
            np.testing.assert_array_equal(made.numpy(), double)
    for dtype in ("int8", "uint16", "uint64", "bool", "float16", "bfloat16", "float8_e5m2"):
        small = ta.zeros((5,), dtype=dtype, device=device)
        small[1], small[[2, 4]] = True, True
        assert small.tolist() == [0, 1, 1, 0, 1] and small[small == ta.asarray(1, dtype=dtype, device=device)].tolist() == [1, 1, 1], dtype
    x = ta.asarray(base, device=device)
    np.testing.assert_array_equal(x[x > 0].numpy(), base[base > 0])
    np.testing.assert_array_equal(x[fresh[:9] > 0, 2:].numpy(), base[fresh[:9] > 0, 2:])
    found = ta.unique_counts(ta.round(x))
    values, counts = np.unique(np.round(base), return_counts=True)
    np.testing.assert_array_equal(found.values.numpy(), values)
    np.testing.assert_array_equal(found.counts.numpy(), counts)
    assert found.values.device == device
