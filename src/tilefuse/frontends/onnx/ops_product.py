"""ONNX matrix products: MatMul, Gemm, Einsum, and integer products as reductions of a product."""

from __future__ import annotations

from collections.abc import Sequence

from tilefuse.frontends.onnx.call import Call, onnx_op
from tilefuse.ir.affine import axis, number
from tilefuse.ir.building.build import GraphBuilder, axis_names
from tilefuse.ir.building.tensor_elementwise import broadcast_shapes, converted
from tilefuse.ir.dtype import DType
from tilefuse.ir.scalar import Expr, Read, call


@onnx_op("MatMul")
def matmul(n: Call) -> str:
    return product(n, n[0], n[1])


def product(n: Call, a: str, b: str) -> str:
    """a @ b: a library call for floats, a reduction for integers."""
    have = n.b.dtype_of(a)
    return n.b.matmul(a, b) if have.is_float else integer_product(n, a, b, have)


def integer_product(n: Call, a: str, b: str, work: DType) -> str:
    """a @ b as a sum of products in `work` (i32, i64, u32 or u64); vectors as numpy treats them."""
    left, right = n.b.rank_of(a) == 1, n.b.rank_of(b) == 1
    a = n.b.expand_dims(a, 0) if left else a
    b = n.b.expand_dims(b, 1) if right else b
    sa, sb = n.b.shape_of(a), n.b.shape_of(b)
    if sa[-1] != sb[-2]:
        raise n.wrong(f"inner extents differ, {sa[-1]} and {sb[-2]}")
    lead = broadcast_shapes(sa[:-2], sb[:-2])
    shape = (*lead, sa[-2], sb[-1])
    axes = axis_names(len(shape))
    read_a = _element(n, a, axes, len(lead), axes[-2], "k", work)
    read_b = _element(n, b, axes, len(lead), "k", axes[-1], work)
    axes_k = [(("k" if "k" not in axes else "kk"), sa[-1])]
    if axes_k[0][0] != "k":
        read_a = _element(n, a, axes, len(lead), axes[-2], "kk", work)
        read_b = _element(n, b, axes, len(lead), "kk", axes[-1], work)
    total = GraphBuilder.add_reduction(n.b, "matmul", "sum", work, shape, axes, axes_k, call("mul", read_a, read_b))
    return n.b.squeeze(total, [*([-2] if left else []), *([-1] if right else [])]) if left or right else total


def _element(n: Call, x: str, axes: Sequence[str], rank: int, row: str, column: str, work: DType) -> Expr:
    have = n.b.shape_of(x)
    lead = [number(0) if e == 1 else axis(axes[rank - (len(have) - 2) + d]) for d, e in enumerate(have[:-2])]
    return converted(Read(x, (*lead, *(number(0) if e == 1 else axis(a) for a, e in zip((row, column), have[-2:])))), n.b.dtype_of(x), work)


@onnx_op("Gemm")
def gemm(n: Call) -> str:
    """alpha * op(A) @ op(B) + beta * C."""
    alpha, beta = n.attr("alpha", 1.0), n.attr("beta", 1.0)
    a, b, have = n[0], n[1], n.dtype(0)
    if have.is_float:
        out = n.b.matmul(a, b, bool(n.attr("transA", 0)), bool(n.attr("transB", 0)))
    else:
        a = n.b.permute(a, (1, 0)) if n.attr("transA", 0) else a
        b = n.b.permute(b, (1, 0)) if n.attr("transB", 0) else b
        out = integer_product(n, a, b, have)
        if alpha != int(alpha) or beta != int(beta):
            raise n.unsupported(f"integer operands with alpha {alpha} and beta {beta}")
        alpha, beta = int(alpha), int(beta)
    if alpha != 1:
        out = n.b.elementwise("mul", out, alpha)
    if not n.has(2):
        return out
    c = n[2] if beta == 1 else n.b.elementwise("mul", n[2], beta)
    return n.b.elementwise("add", out, c)


@onnx_op("Einsum")
def einsum(n: Call) -> str:
    """Operands are multiplied one after another; each letter that is needed no more is summed as soon as it can be."""
    terms, output = parse_equation(n)
    values = [diagonals(n, n[i], terms[i]) for i in range(len(terms))]
    value, letters = values[0]
    for i, (other, other_letters) in enumerate(values[1:], 1):
        later = set(output).union(*(t for _, t in values[i + 1 :]))
        value, letters = pair_product(n, value, letters, other, other_letters, later)
    summed = [d for d, c in enumerate(letters) if c not in output]
    if summed:
        value, letters = n.b.reduce(value, "sum", summed), [c for c in letters if c in output]
    return n.b.permute(value, [letters.index(c) for c in output])


def parse_equation(n: Call) -> tuple[list[list[str]], list[str]]:
    """Letters of every operand and of the result; an ellipsis becomes the names ".0", ".1", ... counted from the last dimension."""
    text = n.needed_attr("equation").replace(" ", "")
    left, arrow, right = text.partition("->")
    parts = left.split(",")
    if len(parts) != len(n.inputs):
        raise n.wrong(f"equation {text!r} has {len(parts)} terms for {len(n.inputs)} operands")
    widest = 0
    terms = []
    for i, part in enumerate(parts):
        plain = part.replace("...", "")
        rest = len(n.shape(i)) - len(plain)
        if rest < 0 or (rest and "..." not in part):
            raise n.wrong(f"term {part!r} of {text!r} does not fit a tensor of {len(n.shape(i))} dimensions")
        widest = max(widest, rest)
        terms.append(_letters(part, rest))
    if arrow:
        result_letters = _letters(right, widest)
        if len(set(result_letters)) != len(result_letters) or not set(result_letters) <= {c for t in terms for c in t}:
            raise n.wrong(f"the result of {text!r} repeats a letter, or names one that no operand has")
        return terms, result_letters
    counts = [c for t in terms for c in t if not c.startswith(".")]
    return terms, [*_letters("...", widest), *sorted(c for c in set(counts) if counts.count(c) == 1)]


def _letters(part: str, rest: int) -> list[str]:
    before, dots, after = part.partition("...")
    return [*before, *(f".{d}" for d in reversed(range(rest)) if dots), *after]


def diagonals(n: Call, x: str, letters: list[str]) -> tuple[str, list[str]]:
    """`x` with repeated letters reduced to their diagonal."""
    letters = list(letters)
    for c in dict.fromkeys(letters):
        while letters.count(c) > 1:
            a = letters.index(c)
            b = letters.index(c, a + 1)
            x = n.b.diagonal(x, 0, a, b)
            letters = [e for d, e in enumerate(letters) if d not in (a, b)] + [c]
    return x, letters


def pair_product(n: Call, a: str, in_a: list[str], b: str, in_b: list[str], later: set[str]) -> tuple[str, list[str]]:
    """a * b summed over the letters not in `later`: a batched matrix product where a letter of both is summed, else a map."""
    extent = {**dict(zip(in_b, n.b.shape_of(b))), **{c: e for c, e in zip(in_a, n.b.shape_of(a)) if e != 1 or c not in in_b}}
    for value, mine, theirs in ((a, in_a, in_b), (b, in_b, in_a)):
        alone = [d for d, c in enumerate(mine) if c not in theirs and c not in later]
        if alone:
            value, letters_kept = n.b.reduce(value, "sum", alone), [c for d, c in enumerate(mine) if d not in alone]
            a, in_a, b, in_b = (value, letters_kept, b, in_b) if mine is in_a else (a, in_a, value, letters_kept)
    shared = [c for c in in_a if c in in_b and c not in later]
    batch = [c for c in in_a if c in in_b and c in later]
    rows, columns = [c for c in in_a if c not in in_b], [c for c in in_b if c not in in_a]

    def arranged(value: str, have: list[str], order: Sequence[Sequence[str]], merged: bool) -> str:
        flat = [c for part in order for c in part]
        value = n.b.permute(value, [have.index(c) for c in flat])
        value = (
            n.b.broadcast_to(value, [extent[c] for c in flat])
            if any(n.b.shape_of(value)[d] != extent[c] for d, c in enumerate(flat))
            else value
        )
        if not merged:
            return value
        return n.b.reshape(value, [*(extent[c] for c in order[0]), *(_volume(part, extent) for part in order[1:])])

    result = [*batch, *rows, *columns]
    if not shared:
        left = (
            n.b.expand_dims(arranged(a, in_a, (batch, rows), False), list(range(len(batch) + len(rows), len(result))))
            if columns
            else arranged(a, in_a, (batch, rows), False)
        )
        right = arranged(b, in_b, (batch, columns), False)
        right = n.b.expand_dims(right, list(range(len(batch), len(batch) + len(rows)))) if rows else right
        return n.b.elementwise("mul", left, right), result
    multiplied = product(n, arranged(a, in_a, (batch, rows, shared), True), arranged(b, in_b, (batch, shared, columns), True))
    return n.b.reshape(multiplied, [extent[c] for c in result]), result


def _volume(letters: Sequence[str], extent: dict[str, int]) -> int:
    total = 1
    for c in letters:
        total *= extent[c]
    return total
