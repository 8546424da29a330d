"""Products of 8-bit floats with scales of blocks, as they are written plainly: operands in f32 times their scales."""
from __future__ import annotations

from tilefuse.ir.graph import Graph
from tilefuse.ir.text import parse_graph


def blocks(rows: int, columns: int, inner: int, types: tuple[str, str] = ("f8e4m3", "f8e4m3"), result: str = "bf16", side: int = 128,
           block: int = 128, divides: bool = False) -> Graph:
    """Scales of 1 x `block` of the rows, and of `side` x `block` of the weights; divides: operands are divided by those of the rows."""
    groups = -(-inner // block)
    a = f"{'div' if divides else 'mul'}(f32(%x[i, k]), %s[i, (k // {block})])"
    return parse_graph(f"""graph @blocks(%x: {types[0]}[{rows}, {inner}], %s: f32[{rows}, {groups}], %w: {types[1]}[{columns}, {inner}],
        %t: f32[{-(-columns // side)}, {groups}], %bias: f32[{columns}]) -> ({result}[{rows}, {columns}]) {{
      %a: f32[{rows}, {inner}] = map [i, k] {{ {a} }}
      %b: f32[{columns}, {inner}] = map [j, k] {{ mul(f32(%w[j, k]), %t[(j // {side}), (k // {block})]) }}
      %p: f32[{rows}, {columns}] = library.matmul (%a, %b) {{transpose_a = false, transpose_b = true}}
      %y: {result}[{rows}, {columns}] = map [i, j] {{ {result}(add(%p[i, j], %bias[j])) }}
      return %y
    }}""")


def gated_blocks(rows: int, columns: int, inner: int) -> Graph:
    """silu(x gate) * (x up), both weights with scales of blocks."""
    groups, sides = -(-inner // 128), -(-columns // 128)
    weights = "".join(f", %{n}: f8e4m3[{columns}, {inner}], %{n}_scale: f32[{sides}, {groups}]" for n in ("gate", "up"))
    wide = "\n".join(f"%{n}_wide: f32[{columns}, {inner}] = map [j, k] {{ mul(f32(%{n}[j, k]), %{n}_scale[(j // 128), (k // 128)]) }}\n"
                     f"%{n}_sum: f32[{rows}, {columns}] = library.matmul (%a, %{n}_wide) {{transpose_a = false, transpose_b = true}}"
                     for n in ("gate", "up"))
    return parse_graph(f"""graph @gated_blocks(%x: f8e4m3[{rows}, {inner}], %s: f32[{rows}, {groups}]{weights})
        -> (bf16[{rows}, {columns}]) {{
      %a: f32[{rows}, {inner}] = map [i, k] {{ mul(f32(%x[i, k]), %s[i, (k // 128)]) }}
      {wide}
      %y: bf16[{rows}, {columns}] = map [i, j] {{ bf16(mul(mul(%gate_sum[i, j], sigmoid(%gate_sum[i, j])), %up_sum[i, j])) }}
      return %y
    }}""")
