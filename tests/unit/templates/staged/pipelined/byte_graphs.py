"""Products of 8-bit floats and integers as graphs: with scales of a tensor, of rows and columns, biases, and results of several types."""
from __future__ import annotations

from tests.unit.templates.stitched_graphs import normal
from tilefuse.ir.building.tensor import TensorBuilder
from tilefuse.ir.dtype import BF16, F8E4M3, F32, I8, I32, DType
from tilefuse.ir.graph import Graph
from tilefuse.ir.scalar import Expr, call, cast


def product(b: TensorBuilder, rows: int, columns: int, inner: int, types: tuple[DType, DType], lead: tuple[int, ...] = (),
            precision: str = "default") -> str:
    """The sums of x times w in the type of accumulators; both operands have the inner axis last."""
    x, w = b.input("x", types[0], (*lead, rows, inner)), b.input("w", types[1], (*lead, columns, inner))
    return b.matmul(x, w, transpose_b=True, precision=precision, dtype=I32 if types[0].is_integer else F32)


def sums(rows: int, columns: int, inner: int, types: tuple[DType, DType] = (I8, I8), lead: tuple[int, ...] = (),
         precision: str = "default") -> Graph:
    """The product alone."""
    b = TensorBuilder("sums")
    return normal(b, [product(b, rows, columns, inner, types, lead, precision)])


def scaled(rows: int, columns: int, inner: int, types: tuple[DType, DType] = (F8E4M3, F8E4M3), result: DType = BF16,
           per_row: bool = False, biased: bool = False, precision: str = "default") -> Graph:
    """Sums times two scales, of the whole operands or of rows and columns, and a bias."""
    b = TensorBuilder("scaled")
    total = product(b, rows, columns, inner, types, (), precision)
    scales = (b.input("scale_x", F32, (rows, 1) if per_row else (1, 1)), b.input("scale_w", F32, (1, columns) if per_row else (1, 1)))
    bias = (b.input("bias", BF16, (columns,)),) if biased else ()

    def body(x: Expr, s: Expr, t: Expr, *added: Expr) -> Expr:
        y = call("mul", cast(x, F32) if types[0].is_integer else x, call("mul", s, t))
        return call("add", y, added[0]) if added else y

    return normal(b, [b.expression(body, total, *scales, *bias, dtype=result, name="y")])
