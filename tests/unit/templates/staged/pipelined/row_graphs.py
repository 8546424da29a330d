"""Patterns with one product whose rows are reduced, as graphs."""
from __future__ import annotations

from dataclasses import replace

from tests.unit.templates.staged.pipelined.product_graphs import product
from tests.unit.templates.stitched_graphs import normal
from tilefuse.ir.affine import axis
from tilefuse.ir.building.tensor import TensorBuilder
from tilefuse.ir.dtype import F16, F32, I32, DType
from tilefuse.ir.graph import Graph, Node, Type
from tilefuse.ir.scalar import Bound, Call, Expr, Guard, Index, Read, const
from tilefuse.ir.text import parse_graph


def residual_norm(rows: int, columns: int, inner: int, dtype: DType = F16, lead: tuple[int, ...] = ()) -> Graph:
    """A linear layer plus a residual, which is kept, and its layer norm with scale and shift."""
    b = TensorBuilder("residual_norm")
    y = b.elementwise("add", product(b, lead, rows, columns, inner, dtype), b.input("bias", dtype, (columns,)))
    y = b.elementwise("add", y, b.input("residual", dtype, (*lead, rows, columns)))
    normed, _, _ = b.layer_norm(y, (-1,), b.input("scale", dtype, (columns,)), b.input("shift", dtype, (columns,)))
    return normal(b, [y, normed])


def activated_norm(rows: int, columns: int, inner: int, dtype: DType = F16) -> Graph:
    """RMS norm of the tanh of a product."""
    b = TensorBuilder("activated_norm")
    normed, _ = b.rms_norm(b.elementwise("tanh", product(b, (), rows, columns, inner, dtype)), (1,))
    return normal(b, [normed])


def gated_norm(rows: int, columns: int, inner: int, dtype: DType = F16) -> Graph:
    """RMS norm of the tanh of one product times another one."""
    b = TensorBuilder("gated_norm")
    x, v, w = b.input("x", dtype, (rows, inner)), b.input("v", dtype, (columns, inner)), b.input("w", dtype, (columns, inner))
    y = b.elementwise("mul", b.elementwise("tanh", b.matmul(x, v, transpose_b=True)), b.matmul(x, w, transpose_b=True))
    normed, _ = b.rms_norm(y, (1,))
    return normal(b, [normed])


def soft(rows: int, columns: int, inner: int, dtype: DType = F16, turned: tuple[bool, bool] = (False, True)) -> Graph:
    """Softmax of the rows of a product."""
    b = TensorBuilder("soft")
    return normal(b, [b.softmax(product(b, (), rows, columns, inner, dtype, turned, precision="tf32" if dtype == F32 else "default"), 1)])


def scores(rows: int, columns: int, inner: int, dtype: DType = F16, lead: tuple[int, ...] = ()) -> Graph:
    """Logarithm of the sum of exponentials of each row, and the place of its greatest element: nothing of the product is stored."""
    b = TensorBuilder("scores")
    y = product(b, lead, rows, columns, inner, dtype)
    return normal(b, [b.logsumexp(y, (-1,)), b.reduce(y, "argmax", (-1,))])


def weighted(rows: int, columns: int, inner: int, dtype: DType = F16) -> Graph:
    """Each row's sum times a weight of the row, the product minus that, and the least element: a map over rows reads the boundary."""
    b = TensorBuilder("weighted")
    y = product(b, (), rows, columns, inner, dtype)
    total = b.elementwise("mul", b.reduce(b.cast(y, F32), "sum", (1,)), b.input("weight", F32, (rows,)))
    moved = b.elementwise("sub", b.cast(y, F32), b.reshape(total, (rows, 1)))
    return normal(b, [total, b.cast(moved, dtype), b.reduce(y, "min", (1,))])


def spread(rows: int, columns: int, inner: int, dtype: DType = F16) -> Graph:
    """The variance of each row, and whether any element exceeds one."""
    b = TensorBuilder("spread")
    y = product(b, (), rows, columns, inner, dtype)
    return normal(b, [b.variance(y, (1,)), b.reduce(b.elementwise("gt", y, b.full((1, 1), 1.0, dtype)), "any", (1,))])


def in_sequences(sequences: int, length: int, columns: int, inner: int, dtype: DType = F16) -> Graph:
    """Rows of a product as sequences and places: softmax of each, with a factor for each sequence."""
    b = TensorBuilder("in_sequences")
    y = b.reshape(product(b, (), sequences * length, columns, inner, dtype), (sequences, length, columns))
    y = b.elementwise("mul", y, b.input("factor", dtype, (sequences, 1, 1)))
    return normal(b, [b.softmax(y, 2)])


def in_groups(rows: int, columns: int, inner: int, width: int, dtype: DType = F16, lead: tuple[int, ...] = ()) -> Graph:
    """For every group of `width` columns of a product: the greatest element of each row, the sum of exponentials relative to it, and the
    element at a place that data give. The last group may reach beyond the columns."""
    b = TensorBuilder("in_groups")
    whole = normal(b, [product(b, lead, rows, columns, inner, dtype), b.input("place", I32, (*lead, rows))])
    y, groups = whole.results[0], -(-columns // width)
    leads = tuple(f"l{n}" for n in range(len(lead)))
    at = (*(axis(a) for a in leads), axis("i"))
    column = axis("t") * width + axis("j")
    element = Call(F32.name, (Read(y, (*at, column)),))
    top = Read("tops", (axis("t"), *at))
    shift = Call("select", (Call("eq", (top, const(float("-inf"), F32))), const(0, F32), top))
    chosen = Call("select", (Call("eq", (Read("place", at), Call(I32.name, (Index(column),)))), element, const(0, F32)))

    def reduced(name: str, kind: str, body: Expr, identity: float) -> Node:
        guarded = Guard((Bound(column, 0, columns),), body, const(identity, F32)) if columns % width else body
        return Node(name, Type(F32, (groups, *lead, rows)), f"reduce.{kind}", ("t", *leads, "i"), (("j", width),), body=guarded)

    nodes = (reduced("tops", "max", element, float("-inf")), reduced("sums", "sum", Call("exp", (Call("sub", (element, shift)),)), 0.0),
             reduced("chosen", "sum", chosen, 0.0))
    return replace(whole, nodes=(*whole.nodes, *nodes), results=("tops", "sums", "chosen"))


def stored_groups(rows: int, columns: int, inner: int, width: int, dtype: DType = F16, stored: int = 0) -> Graph:
    """`in_groups` with the product as a result, as scores whose gradient is computed later. stored: columns of the product, of which the
    groups reduce the first `columns`; 0: all."""
    groups = in_groups(rows, columns, inner, width, dtype)
    y = next(n for n in groups.nodes if n.kind == "library.matmul").name
    if stored:
        whole = in_groups(rows, stored, inner, width, dtype)
        nodes = {n.name: n for n in groups.nodes}
        groups = replace(whole, nodes=tuple(nodes[n.name] if n.category == "reduce" else n for n in whole.nodes))
    return replace(groups, results=(y, *groups.results))


def norm_gradient(rows: int, columns: int, inner: int, dtype: DType = F16) -> Graph:
    """The gradient of a layer norm whose result went into a linear layer, added to another gradient; and sums of 16 rows for the gradients
    of scale, shift and of a bias before the norm. A reduction of the rows stands between the product and the last of them."""
    t, whole, share = dtype.name, f"[{rows}, {columns}]", 1.0 / columns
    sums = {"scales": "mul(%d[16*g + t, j], %n[16*g + t, j])", "shifts": "%d[16*g + t, j]", "biases": "f32(%r[16*g + t, j])"}
    part = f"f32[{rows // 16}, {columns}]"
    lines = "".join(f"%{name}: {part} = reduce.sum [g, j] over [t < 16] {{ {body} }}\n" for name, body in sums.items())
    types = ", ".join([f"{t}{whole}", *(part for _ in sums)])
    operands = (f"%x: {t}[{rows}, {inner}], %w: {t}[{inner}, {columns}], %h: {t}{whole}, %scale: {t}[{columns}], %mean: f32[{rows}], "
                f"%rate: f32[{rows}], %past: {t}{whole}")
    return parse_graph(f"""graph @norm_gradient({operands}) -> ({types}) {{
      %y: {t}{whole} = library.matmul (%x, %w)
      %d: f32{whole} = map [i, j] {{ f32(%y[i, j]) }}
      %n: f32{whole} = map [i, j] {{ mul(sub(f32(%h[i, j]), %mean[i]), %rate[i]) }}
      %q: f32{whole} = map [i, j] {{ mul(%d[i, j], f32(%scale[j])) }}
      %a: f32[{rows}] = reduce.sum [i] over [j < {columns}] {{ %q[i, j] }}
      %b: f32[{rows}] = reduce.sum [i] over [j < {columns}] {{ mul(%q[i, j], %n[i, j]) }}
      %c: f32{whole} = map [i, j] {{ sub(sub(%q[i, j], mul(%a[i], {share}:f32)), mul(%n[i, j], mul(%b[i], {share}:f32))) }}
      %r: {t}{whole} = map [i, j] {{ {t}(add(f32(%past[i, j]), mul(%rate[i], %c[i, j]))) }}
      {lines}
      return %r, {", ".join("%" + name for name in sums)}
    }}""")
