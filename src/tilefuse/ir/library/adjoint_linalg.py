"""Adjoints of solutions, inverses, determinants and decompositions of matrices: entries of the table in `ir/library/adjoint.py`.

Rules use products and the same calls of the framework, so that second derivatives need no rules of their own. Free choices of a
decomposition (signs, equal eigenvalues or singular values) have no gradient: vectors of equal values have infinite gradients, as in torch.
Source: Giles 2008, "An extended collection of matrix derivative results for forward and reverse mode algorithmic differentiation"; Golub
and Pereyra 1973 for the pseudo-inverse.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tilefuse.base.errors import UserError
from tilefuse.ir.affine import axis
from tilefuse.ir.building.build import axis_names
from tilefuse.ir.building.tensor import TensorBuilder
from tilefuse.ir.building.tensor_complex import AdjointBuilder
from tilefuse.ir.dtype import PART_OF
from tilefuse.ir.graph import Attribute, Node, Type
from tilefuse.ir.library.adjoint import OF_COMPLEX, LibraryAdjoint, Request, adjoint_of, complex_operands, sized
from tilefuse.ir.library.adjoint_norms import LIBRARY_ADJOINTS
from tilefuse.ir.scalar import Bound, Expr, Guard, call, const

__all__ = ["LIBRARY_ADJOINTS"]  # whole only with the rules of this file and of the norms

SOLVE, INVERSE = "aten.linalg_solve.default", "aten.linalg_inv.default"


def _result(b: TensorBuilder, request: Request, number: int, shape: Sequence[int], real: bool = False) -> str:
    """A result of the call itself, recorded again where the graph has none of it. real: of complex matrices, too."""
    node = request.node
    if number in request.results:
        return request.results[number]
    dtype = b.dtype_of(node.operands[0])
    kind = Type(PART_OF.get(dtype, dtype) if real else dtype, tuple(shape))
    return b.library(node.name, node.detail, kind, node.operands, dict(node.attributes) | {"result": number})


def _named(request: Request, name: str) -> Attribute:
    """A keyword of the framework's call; None where it has none."""
    pairs = request.node.attribute("kwargs", ())
    assert isinstance(pairs, tuple)
    return next((p[1] for p in pairs if isinstance(p, tuple) and p[0] == name), None)


def _solve(b: TensorBuilder, a: str, x: str) -> str:
    """The solution y of a @ y = x. Shapes: a: [..., N, N], x: [..., N, K], the same leading dimensions."""
    return b.library("solve", SOLVE, b.type_of(x), (a, x), {"args": (("%", 0), ("%", 1)), "kwargs": ()})


def _inverse(b: TensorBuilder, a: str) -> str:
    return b.library("inverse", INVERSE, b.type_of(a), (a,), {"args": (("%", 0),), "kwargs": (), "result": 0})


def _turned(b: TensorBuilder, x: str) -> str:
    """The transpose; of complex matrices the conjugate of it."""
    return b.transpose(_conjugate(b, x), -1, -2)


def _conjugate(b: TensorBuilder, x: str) -> str:
    return b.elementwise("conj", x) if b.dtype_of(x).is_complex else x


def _only_values(b: TensorBuilder, request: Request, values: int, operator: str) -> None:
    """Raises: UserError where complex vectors have a gradient: they are determined up to a phase."""
    if b.dtype_of(request.node.operands[0]).is_complex and set(request.gradients) != {values}:
        raise UserError(f"no gradient is defined for {operator} of complex matrices", where=request.node.span,
                        hint="they are determined up to a phase; the values have one")


def of_complex(operator: str, real_results: Sequence[int] = ()) -> Callable[[LibraryAdjoint], LibraryAdjoint]:
    """The rule on complex matrices where the call sees such. A gradient by z is the one by its real part plus i times the one by its
    imaginary part, so a rule for real matrices holds with conjugates of transposes and of factors.

    real_results: numbers of the results that are real, too.
    """
    OF_COMPLEX.add(operator)

    def over(rule: LibraryAdjoint) -> LibraryAdjoint:
        def complex_rule(b: TensorBuilder, request: Request) -> Sequence[str | None]:
            node = request.node
            wide = [node.operands[n] for n in complex_operands(node.attribute("args", ()))]
            if not wide:
                return rule(b, request)
            for values_by_number in (request.results, request.gradients):
                wide += [value for n, value in values_by_number.items() if n not in real_results]
            with AdjointBuilder.within(b, wide) as complex_builder:
                return rule(complex_builder, request)

        return complex_rule

    return over


def _negative(b: TensorBuilder, x: str) -> str:
    return b.elementwise("neg", x)


def _total(b: TensorBuilder, parts: Sequence[str]) -> str:
    total = parts[0]
    for p in parts[1:]:
        total = b.elementwise("add", total, p)
    return total


def _symmetric(b: TensorBuilder, x: str) -> str:
    """Half of x and its transpose."""
    return b.expression(lambda u, v: call("mul", call("add", u, v), const(0.5, b.dtype_of(x))), x, _turned(b, x), dtype=b.dtype_of(x),
                        name="symmetric")


def _on_diagonal(b: TensorBuilder, values: str) -> str:
    """Shapes: [..., N] -> [..., N, N], 0 off the diagonal."""
    shape = (*b.shape_of(values), b.shape_of(values)[-1])
    axes = axis_names(len(shape))
    on = (Bound(axis(axes[-1]) - axis(axes[-2]), 0, 1),)
    inside = b.read(values, shape[:-1], axes[:-1])
    return b.make_map("on_diagonal", b.dtype_of(values), shape, axes, Guard(on, inside, const(0, b.dtype_of(values))))


def _scaled(b: TensorBuilder, x: str, factor: str) -> str:
    """Matrices times one number each."""
    factor = b.cast(factor, b.dtype_of(x))
    return b.elementwise("mul", x, b.expand_dims(factor, [b.rank_of(factor), b.rank_of(factor) + 1]))


def _over_differences(b: TensorBuilder, x: str, values: str) -> str:
    """x[i, j] / (values[j] - values[i]), 0 on the diagonal."""
    shape, dtype = b.shape_of(x), b.dtype_of(x)
    axes = axis_names(len(shape))
    on = (Bound(axis(axes[-1]) - axis(axes[-2]), 0, 1),)
    first, second = (b.read(values, b.shape_of(values), (*axes[:-2], a)) for a in (axes[-2], axes[-1]))
    quotient: Expr = call("div", b.read(x, shape, axes), call("sub", second, first))
    return b.make_map("over_differences", dtype, shape, axes, Guard(on, const(0, dtype), quotient))


# Solutions


@adjoint_of(SOLVE)
@of_complex(SOLVE)
def _solution(b: TensorBuilder, request: Request) -> Sequence[str | None]:
    """With A X = B: the gradient of B solves A^T Y = g, that of A is -Y X^T."""
    node, g, x = request.node, request.gradients[0], request.node.name
    a, right = node.operands
    if b.rank_of(a) < 2 or b.rank_of(right) < b.rank_of(a) and b.rank_of(right) != 1:
        raise UserError("no gradient is defined for solve with vectors in several systems", where=node.span,
                        hint="give right-hand sides as matrices of one column")
    if b.rank_of(right) == 1:
        g, x = (b.expand_dims(v, [b.rank_of(v)]) for v in (g, x))
    batch = b.shape_of(g)[:-2]
    y = _solve(b, b.broadcast_to(_turned(b, a), (*batch, *b.shape_of(a)[-2:])), g)
    of_a = sized(b, _negative(b, b.matmul(y, x, transpose_b=True)), b.shape_of(a)) if request.wanted[0] else None
    of_right = sized(b, y, b.shape_of(right)) if b.rank_of(right) != 1 else b.squeeze(y, [b.rank_of(y) - 1])
    return of_a, of_right if request.wanted[1] else None


@adjoint_of(INVERSE)
@of_complex(INVERSE)
def _inverted(b: TensorBuilder, request: Request) -> Sequence[str | None]:
    """-Y^T g Y^T."""
    y, g = request.node.name, request.gradients[0]
    return (_negative(b, b.matmul(b.matmul(y, g, transpose_a=True), y, transpose_b=True)),)


@adjoint_of("aten.linalg_pinv.atol_rtol_float")
@of_complex("aten.linalg_pinv.atol_rtol_float")
def _pseudo_inverted(b: TensorBuilder, request: Request) -> Sequence[str | None]:
    """-P^T g P^T + (1 - A P) g^T P P^T + P^T P g^T (1 - P A), where the rank stays."""
    a, p, g = request.node.operands[0], request.node.name, request.gradients[0]
    turned = _turned(b, g)
    first = _negative(b, b.matmul(b.matmul(p, g, transpose_a=True), p, transpose_b=True))
    right = b.matmul(b.matmul(turned, p), p, transpose_b=True)
    left = b.matmul(b.matmul(p, p, transpose_a=True), turned)
    outside = b.elementwise("sub", right, b.matmul(b.matmul(a, p), right))
    beside = b.elementwise("sub", left, b.matmul(b.matmul(left, p), a))
    return (_total(b, (first, outside, beside)),)


# Determinants


@adjoint_of("aten.linalg_det.default")
@of_complex("aten.linalg_det.default")
def _determinant(b: TensorBuilder, request: Request) -> Sequence[str | None]:
    """g det(A) A^-T; an error of the framework where A is singular."""
    a, g = request.node.operands[0], request.gradients[0]
    return (_scaled(b, _turned(b, _inverse(b, a)), b.elementwise("mul", g, _conjugate(b, request.node.name))),)


@adjoint_of("aten.linalg_slogdet.default")
@of_complex("aten.linalg_slogdet.default", real_results=(1,))
def _logarithm_of_determinant(b: TensorBuilder, request: Request) -> Sequence[str | None]:
    """g A^-T; the sign is constant wherever it has a derivative."""
    _only_values(b, request, 1, "the sign of a determinant")
    if 1 not in request.gradients:
        return (None,)
    return (_scaled(b, _turned(b, _inverse(b, request.node.operands[0])), request.gradients[1]),)


# Decompositions


@adjoint_of("aten.linalg_cholesky.default")
@of_complex("aten.linalg_cholesky.default")
def _cholesky(b: TensorBuilder, request: Request) -> Sequence[str | None]:
    """The symmetric part of L^-T P L^-1, P the lower triangle of L^T g with half of its diagonal."""
    factor, g = request.node.name, request.gradients[0]
    if _named(request, "upper"):
        factor, g = _turned(b, factor), _turned(b, g)
    lower = b.tril(b.matmul(factor, b.tril(g), transpose_a=True))
    shape, dtype = b.shape_of(lower), b.dtype_of(lower)
    axes = axis_names(len(shape))
    element = b.read(lower, shape, axes)
    on = (Bound(axis(axes[-1]) - axis(axes[-2]), 0, 1),)
    half = b.make_map("half_diagonal", dtype, shape, axes, Guard(on, call("mul", element, const(0.5, dtype)), element))
    turned = _turned(b, factor)
    half_solved = _solve(b, turned, half)
    return (_symmetric(b, _turned(b, _solve(b, turned, _turned(b, half_solved)))),)


@adjoint_of("aten.linalg_eigh.default")
@of_complex("aten.linalg_eigh.default", real_results=(0,))
def _symmetric_values(b: TensorBuilder, request: Request) -> Sequence[str | None]:
    """V (diag(g of the values) + V^T (g of the vectors) / (w_j - w_i)) V^T, its symmetric part."""
    shape = b.shape_of(request.node.operands[0])
    _only_values(b, request, 0, "eigenvectors")
    values, vectors = _result(b, request, 0, shape[:-1], real=True), _result(b, request, 1, shape)
    inner: list[str] = []
    if 0 in request.gradients:
        inner.append(b.cast(_on_diagonal(b, request.gradients[0]), b.dtype_of(vectors)))
    if 1 in request.gradients:
        inner.append(_over_differences(b, b.matmul(vectors, request.gradients[1], transpose_a=True), values))
    return (_symmetric(b, b.matmul(b.matmul(vectors, _total(b, inner)), vectors, transpose_b=True)),)


@adjoint_of("aten.linalg_qr.default")
def _orthogonal_and_triangular(b: TensorBuilder, request: Request) -> Sequence[str | None]:
    """(gQ + Q M) R^-T with M the matrix whose lower triangle is that of R gR^T - gQ^T Q, mirrored at the diagonal."""
    node = request.node
    *batch, rows, columns = b.shape_of(node.operands[0])
    if rows < columns or _named(request, "mode") == "complete" and rows != columns:
        raise UserError(f"no gradient is defined for the qr decomposition of {rows} x {columns} matrices"
                        + (" in complete mode" if rows >= columns else ""), where=node.span,
                        hint="matrices of at least as many rows as columns, mode=\"reduced\"")
    q, r = _result(b, request, 0, (*batch, rows, columns)), _result(b, request, 1, (*batch, columns, columns))
    parts: list[str] = []
    if 1 in request.gradients:
        parts.append(b.matmul(r, b.triu(request.gradients[1]), transpose_b=True))
    if 0 in request.gradients:
        parts.append(_negative(b, b.matmul(request.gradients[0], q, transpose_a=True)))
    lower = b.tril(_total(b, parts))
    below = b.tril(lower, -1)
    mirrored = b.matmul(q, b.elementwise("add", lower, _turned(b, below)))
    whole = b.elementwise("add", request.gradients[0], mirrored) if 0 in request.gradients else mirrored
    return (_turned(b, _solve(b, r, _turned(b, whole))),)


def _reduced(node: Node) -> Node:
    """The call without full matrices."""
    attributes = dict(node.attributes) | {"kwargs": (("full_matrices", False),)}
    return replace(node, attributes=tuple(sorted(attributes.items())))


@adjoint_of("aten.linalg_svd.default")
@of_complex("aten.linalg_svd.default", real_results=(1,))
def _singular_values(b: TensorBuilder, request: Request) -> Sequence[str | None]:
    """U (diag(gS) + F * (U^T gU - gU^T U) S + S F * (V^T gV - gV^T V)) V^T and the components outside of both spaces, F 1 / (s_j^2 -
    s_i^2).

    With full matrices only the singular values have a gradient, or vectors of square matrices.
    """
    node = request.node
    _only_values(b, request, 1, "singular vectors")
    *batch, rows, columns = b.shape_of(node.operands[0])
    count = min(rows, columns)
    whole = _named(request, "full_matrices") is not False and rows != columns
    if whole and (0 in request.gradients or 2 in request.gradients):
        raise UserError(f"no gradient is defined for all singular vectors of {rows} x {columns} matrices", where=node.span,
                        hint="full_matrices=False")
    if whole:
        # The vectors of a reduced decomposition of its own: those have second derivatives.
        request = replace(request, node=_reduced(node), results={})
    u, vh = _result(b, request, 0, (*batch, rows, count)), _result(b, request, 2, (*batch, count, columns))
    s = _result(b, request, 1, (*batch, count), real=True)
    down, across = b.expand_dims(s, [b.rank_of(s)]), b.expand_dims(s, [b.rank_of(s) - 1])
    squares = b.elementwise("mul", s, s)
    inner: list[str] = [b.cast(_on_diagonal(b, request.gradients[1]), b.dtype_of(u))] if 1 in request.gradients else []
    outside: list[str] = []
    if 0 in request.gradients:
        g = request.gradients[0]
        product = b.matmul(u, g, transpose_a=True)
        turning = _over_differences(b, b.elementwise("sub", product, _turned(b, product)), squares)
        inner.append(b.elementwise("mul", turning, across))
        if rows > count:
            outside.append(b.matmul(b.elementwise("div", b.elementwise("sub", g, b.matmul(u, product)), across), vh))
    if 2 in request.gradients:
        g = request.gradients[2]
        product = b.matmul(vh, g, transpose_b=True)
        turning = _over_differences(b, b.elementwise("sub", product, _turned(b, product)), squares)
        inner.append(b.elementwise("mul", turning, down))
        if columns > count:
            outside.append(b.matmul(u, b.elementwise("div", b.elementwise("sub", g, b.matmul(product, vh, transpose_a=True)), down)))
    return (_total(b, (b.matmul(b.matmul(u, _total(b, inner)), vh), *outside)),)
