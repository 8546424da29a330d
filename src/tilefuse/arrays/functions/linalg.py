"""`tilefuse.array.linalg`: the standard's extension for linear algebra. Norms, traces and products are kernels; decompositions and
solutions are the framework's (library nodes; their gradients: `ir/library/adjoint_linalg.py`)."""

from __future__ import annotations

from typing import Any, NamedTuple

from tilefuse.arrays.arguments import of_arrays, real_number, whole_number
from tilefuse.arrays.array import Array, apply, apply_all
from tilefuse.arrays.functions.creation import eye, zeros
from tilefuse.arrays.functions.elementwise import abs, astype, conj, where
from tilefuse.arrays.functions.manipulation import axes_tuple, broadcast_shapes, broadcast_to, diagonal, matrix_transpose, squeeze, stack
from tilefuse.arrays.functions.products import matmul, outer, tensordot, vecdot
from tilefuse.arrays.functions.statistics import count_nonzero, max, min, sum
from tilefuse.arrays.nodes import user_span
from tilefuse.arrays.types import NAME_OF, promote
from tilefuse.base.errors import ShapeError, TypeMismatchError
from tilefuse.ir.building.tensor import TensorBuilder
from tilefuse.ir.building.tensor_elementwise import normal_axes
from tilefuse.ir.building.tensor_reduce import kept_shape
from tilefuse.ir.dtype import C64, C128, F32, F64, I64, PART_OF, compute_dtype
from tilefuse.ir.graph import Attribute, Type
from tilefuse.ir.scalar import Expr, call, const

__all__ = [
    "cholesky", "cross", "det", "diagonal", "eigh", "eigvalsh", "inv", "matmul", "matrix_norm", "matrix_power", "matrix_transpose",
    "matrix_rank", "outer", "pinv", "qr", "slogdet", "solve", "svd", "svdvals", "tensordot", "trace", "vecdot", "vector_norm",
]

Shapes = tuple[tuple[int, ...], ...]


class EighResult(NamedTuple):
    """Result of `eigh`."""

    eigenvalues: Array
    eigenvectors: Array


class QRResult(NamedTuple):
    """Result of `qr`."""

    Q: Array
    R: Array


class SlogdetResult(NamedTuple):
    """Result of `slogdet`."""

    sign: Array
    logabsdet: Array


class SVDResult(NamedTuple):
    """Result of `svd`."""

    U: Array
    S: Array
    Vh: Array


# Kernels


@of_arrays
def cross(x1: Array, x2: Array, /, *, axis: int = -1) -> Array:
    """The vector product along a dimension of extent 3."""
    shape, axis = broadcast_shapes(x1.shape, x2.shape), whole_number(axis, "axis")
    if not -len(shape) <= axis < len(shape) or shape[axis] != 3 or x1.shape[axis] != 3 or x2.shape[axis] != 3:
        raise ShapeError(f"cross of shapes {x1.shape} and {x2.shape} along axis {axis}: both have 3 elements there", where=user_span())
    lead = (slice(None),) * (axis % len(shape))
    a, b = ([broadcast_to(x, shape)[(*lead, n)] for n in range(3)] for x in (x1, x2))
    return stack([a[(n + 1) % 3] * b[(n + 2) % 3] - a[(n + 2) % 3] * b[(n + 1) % 3] for n in range(3)], axis=axis)


@of_arrays
def trace(x: Array, /, *, offset: int = 0, dtype: Any = None) -> Array:
    """The sum of the diagonal of the last two dimensions with column - row = `offset`. Shapes: [*B, M, N] -> [*B]"""
    return sum(diagonal(x, offset=offset), axis=-1, dtype=dtype)


@of_arrays
def vector_norm(x: Array, /, *, axis: Any = None, keepdims: bool = False, ord: float = 2) -> Array:
    """The norm of order `ord` over dimensions (all where None): any number, also 0 and the infinities."""
    over = None if axis is None else axes_tuple(axis)
    x = abs(x) if x.dtype.is_complex else _floats("vector_norm", x)
    return apply(lower_norm, (x,), (over, bool(keepdims), real_number(ord, "ord")))


def lower_norm(b: TensorBuilder, x: str, axes: tuple[int, ...] | None, keepdims: bool, order: float) -> str:
    """Powers, their sum and its root. A scalar is a vector of one element."""
    shape = b.shape_of(x)
    if not shape or axes == ():
        norm = b.norm(b.expand_dims(x, len(shape)), order, len(shape))
        return norm
    over = normal_axes(axes, len(shape))
    if 0 in [shape[d] for d in over]:
        return b.full(kept_shape(shape, over, keepdims), 0, b.dtype_of(x))
    if not 1 < order < float("inf"):
        return b.norm(x, order, over, keepdims)
    result_dtype, work = b.dtype_of(x), compute_dtype(b.dtype_of(x))
    size = b.elementwise("abs", b.cast(x, work))
    powers = b.elementwise("mul", size, size) if order == 2 else b.elementwise("pow", size, order)

    def root(total: Expr) -> Expr:
        # The root is infinitely steep at 0, which times the flat powers would be NaN: the gradient of the norm of zeros is 0.
        empty = call("eq", total, const(0, work))
        inside = call("select", empty, const(1, work), total)
        return call("select", empty, const(0, work), call("sqrt", inside) if order == 2 else call("pow", inside, const(1 / order, work)))

    return b.cast(b.expression(root, b.reduce(powers, "sum", over, keepdims), dtype=work, name="norm"), result_dtype)


@of_arrays
def matrix_norm(x: Array, /, *, keepdims: bool = False, ord: float | str | None = "fro") -> Array:
    """Norm of matrices in the last two dimensions; `ord`: "fro", "nuc", 1, -1, 2, -2 or the infinities.

    Shapes: [*B, M, N] -> [*B]
    Raises: ShapeError for another order or for vectors.
    """
    x = _floats("matrix_norm", x)
    if x.ndim < 2:
        raise ShapeError(f"matrix_norm of an array of shape {x.shape}", where=user_span(), hint="vector_norm is for vectors")
    if 0 in x.shape[-2:] and ord in ("nuc", 1, 2, float("inf")):
        return zeros((*x.shape[:-2], 1, 1) if keepdims else x.shape[:-2], dtype=PART_OF.get(x.dtype, x.dtype), device=x.device)
    if ord == "fro":
        return vector_norm(x, axis=(-2, -1), keepdims=keepdims)
    if ord in ("nuc", 2, -2):
        values = svdvals(x)
        norms = sum(values, axis=-1) if ord == "nuc" else max(values, axis=-1) if ord == 2 else min(values, axis=-1)
        return norms[..., None, None] if keepdims else norms
    if ord not in (1, -1, float("inf"), float("-inf")):
        raise ShapeError(f"matrix_norm has no order {ord!r}", where=user_span(), hint="fro, nuc, 1, -1, 2, -2, inf, -inf")
    first, second = (-2, -1) if ord in (1, -1) else (-1, -2)
    sums = sum(abs(x), axis=first, keepdims=True)
    norms = (max if float(ord) > 0 else min)(sums, axis=second, keepdims=True)
    return norms if keepdims else squeeze(norms, axis=(-2, -1))


@of_arrays
def matrix_power(x: Array, n: int, /) -> Array:
    """The n-th power of square matrices by repeated squaring; a negative one of the inverse."""
    _square("matrix_power", x)
    n = whole_number(n, "n")
    base, exponent = (inv(x), -n) if n < 0 else (x, n)
    power: Array | None = None
    while exponent:
        power = (base if power is None else power @ base) if exponent & 1 else power
        exponent >>= 1
        base = base @ base if exponent else base
    if power is None:
        return broadcast_to(eye(x.shape[-1], dtype=x.dtype, device=x.device), x.shape)
    return power


# The framework's


@of_arrays
def cholesky(x: Array, /, *, upper: bool = False) -> Array:
    """The triangular factor of positive definite matrices: L with x = L L^H, or with `upper` U with x = U^H U.

    Shapes: [*B, N, N] -> the same
    """
    return _called("linalg_cholesky", _square("cholesky", x), (x.shape,), upper=bool(upper))[0]


@of_arrays
def det(x: Array, /) -> Array:
    """Determinants."""
    return _called("linalg_det", _square("det", x), (x.shape[:-2],))[0]


@of_arrays
def inv(x: Array, /) -> Array:
    """Inverses."""
    return _called("linalg_inv", _square("inv", x), (x.shape,))[0]


@of_arrays
def slogdet(x: Array, /) -> SlogdetResult:
    """Signs and logarithms of the determinants."""
    return SlogdetResult(*_called("linalg_slogdet", _square("slogdet", x), (x.shape[:-2], x.shape[:-2]), real=(1,)))


@of_arrays
def eigh(x: Array, /) -> EighResult:
    """Eigenvalues in rising order and eigenvectors of symmetric (or Hermitian) matrices."""
    return EighResult(*_called("linalg_eigh", _square("eigh", x), (x.shape[:-1], x.shape), real=(0,)))


@of_arrays
def eigvalsh(x: Array, /) -> Array:
    """Eigenvalues of symmetric matrices in rising order."""
    return eigh(x).eigenvalues


@of_arrays
def qr(x: Array, /, *, mode: str = "reduced") -> QRResult:
    """Orthogonal and triangular factors. mode: "reduced" or "complete"."""
    *batch, m, n = _matrix("qr", x).shape
    if mode not in ("reduced", "complete"):
        raise ShapeError(f"qr has no mode {mode!r}", where=user_span(), hint="reduced or complete")
    k = m if mode == "complete" or m < n else n
    return QRResult(*_called("linalg_qr", x, ((*batch, m, k), (*batch, k, n)), mode=mode))


@of_arrays
def svd(x: Array, /, *, full_matrices: bool = True) -> SVDResult:
    """Singular value decomposition x = U * S @ Vh.

    full_matrices: square U and Vh; else with min(M, N) columns and rows.
    Shapes: [*B, M, N] -> U [*B, M, M], S [*B, min(M, N)], Vh [*B, N, N]
    """
    *batch, m, n = _matrix("svd", x).shape
    k = m if m < n else n
    shapes = ((*batch, m, m if full_matrices else k), (*batch, k), (*batch, n if full_matrices else k, n))
    return SVDResult(*_called("linalg_svd", x, shapes, real=(1,), full_matrices=bool(full_matrices)))


@of_arrays
def svdvals(x: Array, /) -> Array:
    """Singular values in falling order."""
    return svd(x, full_matrices=False).S


@of_arrays
def matrix_rank(x: Array, /, *, rtol: float | Array | None = None) -> Array:
    """Number of singular values above rtol times the largest (where None: the larger extent times eps)."""
    *batch, m, n = _matrix("matrix_rank", x).shape
    if not m or not n:
        return zeros(batch, dtype=I64, device=x.device)
    values = svdvals(x)
    share = rtol[..., None] if isinstance(rtol, Array) and rtol.ndim else _tolerance(x, rtol)
    return count_nonzero(_above(values, share), axis=-1)


def _above(values: Array, share: float | Array) -> Array:
    """Which singular values are above a share of the largest."""
    return values > max(values, axis=-1, keepdims=True) * share


def _tolerance(x: Array, rtol: Any) -> Any:
    m, n = x.shape[-2:]
    return float((m if m > n else n) * (2.0**-52 if x.dtype in (F64, C128) else 2.0**-23)) if rtol is None else rtol


@of_arrays
def pinv(x: Array, /, *, rtol: float | Array | None = None) -> Array:
    """Pseudo-inverses: singular values below rtol times the largest count as 0 (where None: the larger extent times eps; an array has one
    for each matrix)."""
    *batch, m, n = _matrix("pinv", x).shape
    if isinstance(rtol, Array) and rtol.ndim:
        u, values, v = svd(x, full_matrices=False)
        is_large = _above(values, rtol[..., None]) if m and n else values > 0
        inverse = where(is_large, 1 / where(is_large, values, 1.0), 0.0)
        return matrix_transpose(conj(v)) @ (inverse[..., None] * matrix_transpose(conj(u)))
    return _called("linalg_pinv", x, ((*batch, n, m),), overload="atol_rtol_float", rtol=real_number(_tolerance(x, rtol), "rtol"))[0]


@of_arrays
def solve(x1: Array, x2: Array, /) -> Array:
    """The solution of x1 @ x = x2, where x2 is one vector or matrices."""
    common = promote(x1.dtype, x2.dtype)
    a, b = astype(_square("solve", x1), common), astype(_floats("solve", x2), common)
    vector = b.ndim == 1
    b = b[:, None] if vector else b
    if b.ndim < 2 or b.shape[-2] != a.shape[-1]:
        raise ShapeError(f"solve with shapes {x1.shape} and {x2.shape}: as many rows as there are unknowns", where=user_span())
    batch = broadcast_shapes(a.shape[:-2], b.shape[:-2])
    solution = apply(lower_solve, (broadcast_to(a, (*batch, *a.shape[-2:])), broadcast_to(b, (*batch, *b.shape[-2:]))))
    return solution[..., 0] if vector else solution


def lower_solve(b: TensorBuilder, x1: str, x2: str) -> str:
    """A call of the framework."""
    attributes: dict[str, Attribute] = {"args": (("%", 0), ("%", 1)), "kwargs": ()}
    return b.library("solve", "aten.linalg_solve.default", b.types[x2], (x1, x2), attributes)


def _called(operator: str, x: Array, shapes: Shapes, overload: str = "default", real: tuple[int, ...] = (),
            **named: Attribute) -> tuple[Array, ...]:
    return apply_all(lower_called, (x,), (f"aten.{operator}.{overload}", shapes, real, tuple(sorted(named.items()))))


def lower_called(b: TensorBuilder, x: str, operator: str, shapes: Shapes, real: tuple[int, ...],
                 named: tuple[tuple[str, Attribute], ...]) -> tuple[str, ...]:
    """A call of the framework with results of these shapes. real: numbers of the results that are real of complex matrices, too."""
    attributes: dict[str, Attribute] = {"args": (("%", 0),), "kwargs": named}
    name = operator.split(".")[1].removeprefix("linalg_")
    dtype = b.dtype_of(x)
    types = [Type(PART_OF.get(dtype, dtype) if n in real else dtype, s) for n, s in enumerate(shapes)]
    return tuple([b.library(name, operator, of, (x,), attributes | {"result": n}) for n, of in enumerate(types)])


def _floats(name: str, x: Array) -> Array:
    if not (x.dtype.is_float or x.dtype.is_complex):
        raise TypeMismatchError(f"{name} takes floats, not {NAME_OF[x.dtype]}", where=user_span(), hint="convert with astype")
    return x


def _matrix(name: str, x: Array) -> Array:
    if x.dtype not in (F32, F64, C64, C128):
        raise TypeMismatchError(f"{name} takes float32, float64, complex64 and complex128, not {NAME_OF[x.dtype]}", where=user_span(),
                                hint="convert with astype")
    if x.ndim < 2:
        raise ShapeError(f"{name} of an array of shape {x.shape}: matrices are wanted", where=user_span())
    return x


def _square(name: str, x: Array) -> Array:
    if _matrix(name, x).shape[-1] != x.shape[-2]:
        raise ShapeError(f"{name} of an array of shape {x.shape}: square matrices are wanted", where=user_span())
    return x


