"""Products of `tilefuse.array`: matrices, vectors, tensors, and sums of products by subscripts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from tilefuse.arrays.arguments import of_arrays, whole_number
from tilefuse.arrays.array import Array, apply, lower_product, product
from tilefuse.arrays.functions.manipulation import axes_tuple
from tilefuse.arrays.nodes import user_span
from tilefuse.arrays.types import promote
from tilefuse.base.errors import ShapeError, TypeMismatchError
from tilefuse.ir.building.tensor import TensorBuilder
from tilefuse.ir.building.tensor_elementwise import normal_axis


@of_arrays
def matmul(x1: Array, x2: Array, /) -> Array:
    """The matrix product of the last two dimensions; vectors count as one row (x1) or one column (x2).

    Shapes: x1: [*B, M, K], x2: [*B, K, N] -> [*B, M, N]
    """
    return product(x1, x2)


@of_arrays
def vecdot(x1: Array, x2: Array, /, *, axis: int = -1) -> Array:
    """Sums of products along one dimension, the others broadcast; of complex numbers with the conjugates of x1."""
    return apply(lower_vecdot, (x1, x2), (whole_number(axis, "axis"),))


def lower_vecdot(b: TensorBuilder, x1: str, x2: str, axis: int) -> str:
    """Raises: ShapeError where the extents differ."""
    ranks = b.rank_of(x1), b.rank_of(x2)
    if axis >= 0 or -axis > min(ranks):
        raise ShapeError(f"vecdot: axis {axis} counts from the end, and both {b.types[x1]} and {b.types[x2]} must have it")
    if b.shape_of(x1)[axis] != b.shape_of(x2)[axis]:
        raise ShapeError(f"vecdot: extents of axis {axis} differ in {b.types[x1]} and {b.types[x2]}")
    common = promote(b.dtype_of(x1), b.dtype_of(x2))
    conjugated = b.cast(x1, common)
    conjugated = b.elementwise("conj", conjugated) if common.is_complex else conjugated
    return b.reduce(b.elementwise("mul", conjugated, b.cast(x2, common)), "sum", axis)


@of_arrays
def tensordot(x1: Array, x2: Array, /, *, axes: int | tuple[Sequence[int], Sequence[int]] = 2) -> Array:
    """Sums of products over pairs of dimensions.

    axes: a number n, the last n of x1 with the first n of x2; or two lists of dimensions.
    """
    if isinstance(axes, int):
        chosen: Any = int(axes)
    else:
        listed = list(axes) if isinstance(axes, Iterable) else []
        if len(listed) != 2:
            raise TypeMismatchError(f"tensordot takes axes as an integer or two lists of axes, not {axes!r}", where=user_span())
        chosen = axes_tuple(listed[0]), axes_tuple(listed[1])
    return apply(lower_tensordot, (x1, x2), (chosen,))


def lower_tensordot(b: TensorBuilder, x1: str, x2: str, axes: Any) -> str:
    """One matrix product of permuted and flattened operands. Raises: ShapeError where extents differ."""
    left, right = b.shape_of(x1), b.shape_of(x2)
    if isinstance(axes, int):
        if axes > min(len(left), len(right)):
            raise ShapeError(f"tensordot: {axes} dimensions of {b.types[x1]} and {b.types[x2]}")
        first, second = list(range(len(left) - axes, len(left))), list(range(axes))
    else:
        first, second = [normal_axis(a, len(left)) for a in axes[0]], [normal_axis(a, len(right)) for a in axes[1]]
    if [left[d] for d in first] != [right[d] for d in second]:
        raise ShapeError(f"tensordot: dimensions {first} of {b.types[x1]} and {second} of {b.types[x2]} differ in extent")
    rows, columns = [d for d in range(len(left)) if d not in first], [d for d in range(len(right)) if d not in second]
    inner = 1
    for d in first:
        inner *= left[d]
    m, n = [left[d] for d in rows], [right[d] for d in columns]
    a = b.reshape(b.permute(x1, [*rows, *first]), [_product(m), inner])
    c = b.reshape(b.permute(x2, [*second, *columns]), [inner, _product(n)])
    return b.reshape(lower_product(b, a, c), [*m, *n])


def _product(extents: Sequence[int]) -> int:
    out = 1
    for e in extents:
        out *= e
    return out


@of_arrays
def outer(x1: Array, x2: Array, /) -> Array:
    """All products of elements of two vectors. Shapes: [M], [N] -> [M, N]"""
    if x1.ndim != 1 or x2.ndim != 1:
        raise ShapeError(f"outer takes two vectors, got shapes {x1.shape} and {x2.shape}", where=user_span())
    return x1[:, None] * x2[None, :]


@of_arrays
def einsum(subscripts: str, *operands: Array) -> Array:
    """Sums of products by subscripts, as "bij,bjk->bik": letters that the result lacks are summed. No ellipsis.

    Two operands become one (batched) matrix product, more a chain of them from the left.
    Raises: ShapeError for subscripts that do not fit the operands.
    """
    text = subscripts.replace(" ", "") if isinstance(subscripts, str) else "?"
    operand_letters, arrow, out = text.partition("->")
    terms = operand_letters.split(",")
    if len(terms) != len(operands) or not all(t.isalpha() or not t for t in (*terms, out)):
        raise ShapeError(f"einsum: {subscripts!r} does not fit {len(operands)} operands", where=user_span(), hint="write it as ij,jk->ik")
    letters = "".join(terms)
    if not arrow:
        out = "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
    if any(c not in letters for c in out) or len(set(out)) < len(out):
        raise ShapeError(f"einsum: the result {out!r} has a letter that no operand has, or one twice", where=user_span())
    product, term = operands[0], terms[0]
    for n, (other, its) in enumerate(zip(operands[1:], terms[1:], strict=True)):
        later = set("".join(terms[n + 2 :])) | set(out)
        kept_letters = "".join(dict.fromkeys(c for c in term + its if c in later))
        product, term = apply(lower_pair, (product, other), (term, its, kept_letters)), kept_letters
    return apply(lower_single, (product,), (term, out))


def lower_single(b: TensorBuilder, x: str, term: str, out: str) -> str:
    """Diagonals of letters that occur twice, sums of those that the result lacks, then its order."""
    x, term = _diagonals(b, x, term)
    summed = [d for d, c in enumerate(term) if c not in out]
    if summed:
        x = b.reduce(x, "sum", summed)
        term = "".join(c for c in term if c in out)
    return b.permute(x, [term.index(c) for c in out])


def _diagonals(b: TensorBuilder, x: str, term: str) -> tuple[str, str]:
    if len(term) != b.rank_of(x):
        raise ShapeError(f"einsum: subscripts {term!r} for {b.types[x]}")
    while len(set(term)) < len(term):
        c = next(c for c in term if term.count(c) > 1)
        first, second = (d for d, other in enumerate(term) if other == c and term[:d].count(c) < 2)
        if b.shape_of(x)[first] != b.shape_of(x)[second]:
            raise ShapeError(f"einsum: {c!r} has two extents, {b.types[x]}")
        x = b.diagonal(x, 0, first, second)
        term = "".join(o for d, o in enumerate(term) if d not in (first, second)) + c
    return x, term


def lower_pair(b: TensorBuilder, x1: str, x2: str, left: str, right: str, out: str) -> str:
    """One batched matrix product: letters of both and the result are the batch, of both alone the inner extent."""
    x1, left = _diagonals(b, x1, left)
    x2, right = _diagonals(b, x2, right)
    for term, x, other in ((left, "x1", right), (right, "x2", left)):
        summed = [d for d, c in enumerate(term) if c not in out and c not in other]
        letters = "".join(c for d, c in enumerate(term) if d not in summed)
        if x == "x1":
            x1, left = (b.reduce(x1, "sum", summed) if summed else x1), letters
        else:
            x2, right = (b.reduce(x2, "sum", summed) if summed else x2), letters
    size = dict(zip(left, b.shape_of(x1)))
    for c, s in zip(right, b.shape_of(x2)):
        if size.setdefault(c, s) != s:
            raise ShapeError(f"einsum: {c!r} is {size[c]} in one operand and {s} in another")
    batch = [c for c in left if c in right and c in out]
    inner = [c for c in left if c in right and c not in out]
    rows, columns = [c for c in left if c not in right], [c for c in right if c not in left]
    extents = {k: [size[c] for c in group] for k, group in (("b", batch), ("k", inner), ("m", rows), ("n", columns))}
    flat = {k: _product(v) for k, v in extents.items()}
    a = b.reshape(b.permute(x1, [left.index(c) for c in (*batch, *rows, *inner)]), [*extents["b"], flat["m"], flat["k"]])
    c2 = b.reshape(b.permute(x2, [right.index(c) for c in (*batch, *inner, *columns)]), [*extents["b"], flat["k"], flat["n"]])
    if not inner:
        common = promote(b.dtype_of(a), b.dtype_of(c2))
        product = b.elementwise("mul", b.cast(a, common), b.cast(c2, common))
    else:
        product = lower_product(b, a, c2)
    product = b.reshape(product, [*extents["b"], *extents["m"], *extents["n"]])
    have = [*batch, *rows, *columns]
    return b.permute(product, [have.index(c) for c in out])
