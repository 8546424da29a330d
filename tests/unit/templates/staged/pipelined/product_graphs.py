"""Patterns with one product, and with several of one left operand, as graphs. Sizes are small; most divide no tile."""
from __future__ import annotations

from dataclasses import replace
from math import prod

from tests.unit.templates.stitched_graphs import normal
from tilefuse.ir.affine import axis
from tilefuse.ir.building.tensor import TensorBuilder
from tilefuse.ir.dtype import BF16, F16, F32, DType
from tilefuse.ir.graph import Graph, Node, Type
from tilefuse.ir.scalar import Call, Read
from tilefuse.ir.text import parse_graph


def product(b: TensorBuilder, lead: tuple[int, ...], rows: int, columns: int, inner: int, dtype: DType,
            turned: tuple[bool, bool] = (False, True), shared: bool = False, precision: str = "default") -> str:
    """x times w; turned: x has the inner axis first, w has it last. shared: one w for all lead places."""
    x = b.input("x", dtype, (*lead, inner, rows) if turned[0] else (*lead, rows, inner))
    w = b.input("w", dtype, (*(() if shared else lead), *((columns, inner) if turned[1] else (inner, columns))))
    return b.matmul(x, w, transpose_a=turned[0], transpose_b=turned[1], precision=precision)


def plain(rows: int, columns: int, inner: int, dtype: DType = F16, turned: tuple[bool, bool] = (False, True),
          lead: tuple[int, ...] = (), shared: bool = False) -> Graph:
    """The product alone."""
    b = TensorBuilder("plain")
    return normal(b, [product(b, lead, rows, columns, inner, dtype, turned, shared)])


def gated(rows: int, columns: int, inner: int, dtype: DType = F16) -> Graph:
    """Bias, activation, residual: two results, one of which is the product's own activation."""
    b = TensorBuilder("gated")
    h = b.elementwise("add", product(b, (), rows, columns, inner, dtype), b.input("bias", dtype, (columns,)))
    activated = b.elementwise("tanh", h)
    return normal(b, [activated, b.elementwise("add", activated, b.input("residual", dtype, (rows, columns)))])


def pair(rows: int, columns: int, inner: int, dtype: DType = F16, turned: tuple[bool, bool] = (True, True), lead: tuple[int, ...] = (),
         biased: bool = False, kept: bool = False, precision: str = "default") -> Graph:
    """silu(x gate) * (x up); turned: gate, up have the inner axis last. kept: the second product and its bias are a result as well."""
    b = TensorBuilder("pair")
    x = b.input("x", dtype, (*lead, rows, inner))

    def linear(name: str, turned: bool) -> str:
        w = b.input(name, dtype, (*lead, *((columns, inner) if turned else (inner, columns))))
        made = b.matmul(x, w, transpose_b=turned, precision=precision)
        return b.elementwise("add", made, b.input(f"{name}_bias", dtype, (columns,))) if biased else made

    gate, up = linear("gate", turned[0]), linear("up", turned[1])
    y = b.elementwise("mul", b.elementwise("mul", gate, b.elementwise("sigmoid", gate)), up)
    return normal(b, [y, up] if kept else [y])


def halves(rows: int, columns: int, inner: int, turned: bool = True, parts: int = 2, dtype: DType = F16) -> Graph:
    """One product whose columns are `parts` slices: the tanh of the first times the others."""
    b = TensorBuilder("halves")
    x = b.input("x", dtype, (rows, inner))
    w = b.input("w", dtype, (parts * columns, inner) if turned else (inner, parts * columns))
    p = b.elementwise("add", b.matmul(x, w, transpose_b=turned), b.input("bias", dtype, (parts * columns,)))
    slices = b.split(p, [columns] * parts, 1)
    y = b.elementwise("tanh", slices[0])
    for other in slices[1:]:
        y = b.elementwise("mul", y, other)
    return normal(b, [y])


def queries_keys_values(rows: int, heads_: int, width: int, inner: int, joined: bool, dtype: DType = BF16) -> Graph:
    """Three results with heads before rows; joined: of one weight, else of three."""
    b = TensorBuilder("projections")
    x, columns = b.input("x", dtype, (rows, inner)), heads_ * width
    if joined:
        p = b.matmul(x, b.input("w", dtype, (3 * columns, inner)), transpose_b=True)
        parts = b.split(p, [columns] * 3, 1)
    else:
        parts = [b.matmul(x, b.input(f"w{n}", dtype, (columns, inner)), transpose_b=True) for n in range(3)]
    return normal(b, [b.elementwise("mul", b.permute(b.reshape(p, (rows, heads_, width)), (1, 0, 2)), b.full((1, 1, 1), 0.5, dtype))
                      for p in parts])


def activated(rows: int, columns: int, inner: int, dtype: DType = F16) -> Graph:
    """Two activations of a product with a bias."""
    b = TensorBuilder("activated")
    h = b.elementwise("add", product(b, (), rows, columns, inner, dtype), b.input("bias", dtype, (columns,)))
    return normal(b, [b.elementwise("tanh", h), b.elementwise("mul", h, h)])


def heads(rows: int, heads_: int, width: int, inner: int, dtype: DType = F16) -> Graph:
    """Columns become heads, heads come before rows."""
    b = TensorBuilder("heads")
    y = b.reshape(product(b, (), rows, heads_ * width, inner, dtype), (rows, heads_, width))
    return normal(b, [b.elementwise("mul", b.permute(y, (1, 0, 2)), b.full((1, 1, 1), 0.5, dtype))])


def batched_heads(batch: int, rows: int, heads_: int, width: int, inner: int, dtype: DType = F16) -> Graph:
    """A batch's rows are the product's, columns become heads, and heads come before the rows of a batch."""
    b = TensorBuilder("heads")
    y = b.reshape(product(b, (), batch * rows, heads_ * width, inner, dtype), (batch, rows, heads_, width))
    return normal(b, [b.elementwise("mul", b.permute(y, (0, 2, 1, 3)), b.full((1, 1, 1, 1), 0.5, dtype))])


def of_tokens(lead: tuple[int, ...], columns: int, inner: int, dtype: DType = F16) -> Graph:
    """A batch's tokens are the product's rows; the activation and a residual have the batch's dimensions again."""
    b = TensorBuilder("of_tokens")
    y = b.reshape(product(b, (), prod(lead), columns, inner, dtype), (*lead, columns))
    return normal(b, [b.elementwise("add", b.elementwise("tanh", y), b.input("residual", dtype, (*lead, columns)))])


def padded(rows: int, columns: int, inner: int, turned: tuple[bool, bool] = (False, True), dtype: str = "f16") -> Graph:
    """A product whose operands are padded to whole 16 bytes, as `pad-products` leaves it, and a window of its result, with a bias."""
    m, n, k = (-(-size // 8) * 8 for size in (rows, columns, inner))
    x, w = (k, m) if turned[0] else (m, k), (n, k) if turned[1] else (k, n)
    return parse_graph(f"""graph @padded(%x: {dtype}[{x[0]}, {x[1]}], %w: {dtype}[{w[0]}, {w[1]}], %bias: {dtype}[{columns}])
        -> ({dtype}[{rows}, {columns}], {dtype}[{rows}, {columns}]) {{
      %p: {dtype}[{m}, {n}] = library.matmul (%x, %w) {{transpose_a = {str(turned[0]).lower()}, transpose_b = {str(turned[1]).lower()}}}
      %window: {dtype}[{rows}, {columns}] = map [i, j] {{ %p[i, j] }}
      %biased: {dtype}[{rows}, {columns}] = map [i, j] {{ {dtype}(add(f32(%p[i, j]), f32(%bias[j]))) }}
      return %window, %biased
    }}""")


def _computed(inputs: str, nodes: str, rows: int, columns: int, inner: int) -> Graph:
    """%a [rows, inner] times %b [columns, inner] of f16, which `nodes` compute."""
    return parse_graph(f"""graph @computed({inputs}) -> (f16[{rows}, {columns}]) {{
      {nodes}
      %p: f16[{rows}, {columns}] = library.matmul (%a, %b) {{transpose_a = false, transpose_b = true}}
      %y: f16[{rows}, {columns}] = map [i, j] {{ f16(maximum(f32(%p[i, j]), 0.5:f32)) }}
      return %y
    }}""")


def dequantised(rows: int, columns: int, inner: int) -> Graph:
    """int8 weights with a scale for each column of the product."""
    return _computed(f"%a: f16[{rows}, {inner}], %q: i8[{columns}, {inner}], %s: f16[{columns}]",
                     f"%b: f16[{columns}, {inner}] = map [j, k] {{ f16(mul(f32(%q[j, k]), f32(%s[j]))) }}", rows, columns, inner)


def looked_up(rows: int, columns: int, inner: int, words: int = 40) -> Graph:
    """Rows of a table as left operand, by index; indices out of range are those at the end."""
    return _computed(f"%id: i64[{rows}], %table: f16[{words}, {inner}], %b: f16[{columns}, {inner}]",
                     f"%a: f16[{rows}, {inner}] = gather [i, k] {{ lookup(%table, %id[i], index(k)) }}", rows, columns, inner)


def joined(rows: int, columns: int, parts: tuple[int, int]) -> Graph:
    """Two tensors side by side as left operand, of which the first is squared."""
    first, second = parts
    inner = first + second
    return _computed(f"%u: f16[{rows}, {first}], %v: f16[{rows}, {second}], %b: f16[{columns}, {inner}]",
                     f"%a: f16[{rows}, {inner}] = map [i, k] {{ guard(0 <= k < {first} ? f16(mul(f32(%u[i, k]), f32(%u[i, k]))) : "
                     f"%v[i, k + -{first}]) }}", rows, columns, inner)


def widened(rows: int, columns: int, inner: int) -> Graph:
    """Both operands converted from f32, the left one turned and through an inner map, the right one padded by three rows of zeros."""
    return _computed(f"%u: f32[{inner}, {rows}], %v: f32[{columns - 3}, {inner}]",
                     f"%t: f32[{inner}, {rows}] = map [k, i] {{ tanh(%u[k, i]) }}\n"
                     f"%a: f16[{rows}, {inner}] = map [i, k] {{ f16(add(%t[k, i], %t[k, 0])) }}\n"
                     f"%b: f16[{columns}, {inner}] = map [j, k] {{ guard(0 <= j < {columns - 3} ? f16(%v[j, k]) : 0.0:f16) }}",
                     rows, columns, inner)


def stacked(rows: int, columns: int, inner: int) -> Graph:
    """Each row of the left operand is a tensor; the last of them is computed from three vectors, as the last step of a recurrence."""
    last = rows - 1
    element = "%last[0, k]"
    for n in reversed(range(last)):
        element = f"guard({n} <= i < {n + 1} ? %r{n}[0, k] : {element})"
    inputs = ", ".join(f"%r{n}: f16[1, {inner}]" for n in range(last))
    return _computed(f"{inputs}, %u: f16[1, {3 * inner}], %b: f16[{columns}, {inner}]",
                     f"%gate: f32[1, {inner}] = map [i, k] {{ sigmoid(f32(%u[0, k])) }}\n"
                     f"%state: f32[1, {inner}] = map [i, k] {{ tanh(add(mul(%gate[0, k], f32(%u[0, k + {inner}])), "
                     f"f32(%u[0, k + {2 * inner}]))) }}\n"
                     f"%last: f16[1, {inner}] = map [i, k] {{ f16(mul(%gate[0, k], %state[0, k])) }}\n"
                     f"%a: f16[{rows}, {inner}] = map [i, k] {{ {element} }}", rows, columns, inner)


def turned_copies(rows: int, columns: int, inner: int, whole: int, dtype: str = "f16") -> Graph:
    """Both operands lie with the inner axis first; the left one is copied to `rows` from `whole` of them, and zeros."""
    return parse_graph(f"""graph @turned_copies(%u: {dtype}[{inner}, {whole}], %v: {dtype}[{inner}, {columns}])
        -> ({dtype}[{rows}, {columns}]) {{
      %a: {dtype}[{rows}, {inner}] = map [i, k] {{ guard(0 <= i < {whole} ? %u[k, i] : 0.0:{dtype}) }}
      %b: {dtype}[{columns}, {inner}] = map [j, k] {{ {dtype}(mul(f32(%v[k, j]), 0.5:f32)) }}
      %p: {dtype}[{rows}, {columns}] = library.matmul (%a, %b) {{transpose_a = false, transpose_b = true}}
      %y: {dtype}[{rows}, {columns}] = map [i, j] {{ {dtype}(maximum(f32(%p[i, j]), 0.5:f32)) }}
      return %y
    }}""")


def split_heads(rows: int, heads_: int, width: int, columns: int) -> Graph:
    """The inner axis lies in two pieces of memory: heads of a tensor [heads, rows, width] side by side."""
    inner = heads_ * width
    return _computed(f"%u: f16[{heads_}, {rows}, {width}], %b: f16[{columns}, {inner}]",
                     f"%a: f16[{rows}, {inner}] = map [i, k] {{ %u[(k // {width}), i, (k % {width})] }}", rows, columns, inner)


def of_bytes(rows: int, columns: int, inner: int, dtype: str = "bf16", turned: bool = True) -> Graph:
    """Weights of 8 bits, a scale for each column behind the product."""
    shape, at = ((columns, inner), "j, k") if turned else ((inner, columns), "k, j")
    return parse_graph(f"""graph @of_bytes(%x: {dtype}[{rows}, {inner}], %w: i8[{shape[0]}, {shape[1]}], %scale: {dtype}[{columns}])
        -> ({dtype}[{rows}, {columns}]) {{
      %wide: {dtype}[{shape[0]}, {shape[1]}] = map [{at}] {{ {dtype}(%w[{at}]) }}
      %y: {dtype}[{rows}, {columns}] = library.matmul (%x, %wide) {{transpose_a = false, transpose_b = {str(turned).lower()}}}
      %scaled: {dtype}[{rows}, {columns}] = map [i, j] {{ {dtype}(mul(f32(%y[i, j]), f32(%scale[j]))) }}
      return %scaled
    }}""")


def of_bytes_and_floats(rows: int, columns: int, inner: int) -> Graph:
    """Weights of 8 bits, and a left operand that is converted from f32."""
    return parse_graph(f"""graph @of_bytes_and_floats(%x: f32[{rows}, {inner}], %w: i8[{columns}, {inner}]) -> (bf16[{rows}, {columns}]) {{
      %short: bf16[{rows}, {inner}] = map [i, k] {{ bf16(%x[i, k]) }}
      %wide: bf16[{columns}, {inner}] = map [j, k] {{ bf16(%w[j, k]) }}
      %y: bf16[{rows}, {columns}] = library.matmul (%short, %wide) {{transpose_a = false, transpose_b = true}}
      return %y
    }}""")


def of_halves(rows: int, columns: int, inner: int, group: int, dtype: str = "f16") -> Graph:
    """Weights of 4 bits, two in a byte, with a scale and an offset for each group of the inner axis."""
    groups = -(-inner // group)
    return parse_graph(f"""graph @of_halves(%x: {dtype}[{rows}, {inner}], %w: u8[{columns}, {inner // 2}],
                                            %scale: {dtype}[{columns}, {groups}]) -> ({dtype}[{rows}, {columns}]) {{
      %low: i32[{columns}, {inner // 2}] = map [j, k] {{ bit_and(i32(%w[j, k]), 15:i32) }}
      %high: i32[{columns}, {inner // 2}] = map [j, k] {{ shift_right(i32(%w[j, k]), 4:i32) }}
      %both: i32[{columns}, {inner}] = map [j, k] {{ guard(0 <= (k % 2) < 1 ? %low[j, (k // 2)] : %high[j, (k // 2)]) }}
      %wide: {dtype}[{columns}, {inner}] = map [j, k] {{ {dtype}(mul(sub(f32(%both[j, k]), 8.0:f32), f32(%scale[j, (k // {group})]))) }}
      %y: {dtype}[{rows}, {columns}] = library.matmul (%x, %wide) {{transpose_a = false, transpose_b = true}}
      return %y
    }}""")


def gelu_gradient(rows: int, columns: int, inner: int, dtype: DType = BF16, lead: tuple[int, ...] = ()) -> Graph:
    """The product times the derivative of GELU at h, operator by operator, as torch's decomposition writes it."""
    b = TensorBuilder("gelu_gradient")
    g = b.cast(product(b, lead, rows, columns, inner, dtype, (False, False)), F32)
    h = b.cast(b.input("h", dtype, (*lead, rows, columns)), F32)

    def times(a: str, number: float) -> str:
        return b.elementwise("mul", a, b.full((1,), number, F32))

    below = times(b.elementwise("add", b.elementwise("erf", times(h, 0.5**0.5)), b.full((1,), 1.0, F32)), 0.5)
    density = times(b.elementwise("exp", times(b.elementwise("mul", h, h), -0.5)), 0.3989423)
    slope = b.elementwise("add", below, b.elementwise("mul", h, density))
    return normal(b, [b.cast(b.elementwise("mul", g, slope), dtype)])


def column_summed(whole: Graph, groups_last: bool = False) -> Graph:
    """The pattern with sums of every 16 rows of its last result, whose last two axes are rows and columns; groups_last: [column, group]."""
    last = whole.results[-1]
    *lead, rows, columns = whole.type_of(last).shape
    leads = tuple(f"l{n}" for n in range(len(lead)))
    body = Call(F32.name, (Read(last, (*(axis(a) for a in leads), axis("g") * 16 + axis("t"), axis("c"))),))
    axes, shape = (("c", "g"), (columns, rows // 16)) if groups_last else (("g", "c"), (rows // 16, columns))
    node = Node("parts", Type(F32, (*lead, *shape)), "reduce.sum", (*leads, *axes), (("t", 16),), body=body)
    return replace(whole, nodes=(*whole.nodes, node), results=(*whole.results, "parts"))
