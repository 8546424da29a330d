"""Tensor-core products as plain loops over one thread's own elements: the meaning of `MatrixProduct` and `WarpgroupProduct` on the host."""
from __future__ import annotations

from tilefuse.ir.affine import Affine, axis, number
from tilefuse.ir.dtype import F32, I32, DType
from tilefuse.ir.scalar import Bound, Call, const
from tilefuse.kernel.ir import Assign, Buffer, For, If, KExpr, Load, MatrixProduct, Reg, Stmt
from tilefuse.kernel.pipeline import WARPGROUP_ROWS, WarpgroupProduct, inner_of_piece, panel_width

# Loop variables of a matrix product that is printed as loops. No composer uses a name that starts with tf_.
PRODUCT_LOOPS = ("tf_a", "tf_b", "tf_q", "tf_k")


def holder() -> Affine:
    """The thread whose registers hold a left element: lane 4 * (row % 8) + (k % 8) / 2 of its warp."""
    lane, k = axis("thread") % 32, axis(PRODUCT_LOOPS[3])
    return axis("thread") // 32 * 32 + 4 * (lane // 4) + k % 8 // 2


def product_loops(s: MatrixProduct, dtype: DType) -> tuple[Stmt, ...]:
    """One thread's part of a warp's product. dtype: of the operands."""
    lane = axis("thread") % 32
    a, b, q, k = (axis(n) for n in PRODUCT_LOOPS)
    row = 16 * a + lane // 4 + 8 * (q // 2)
    column = 8 * b + 2 * (lane % 4) + q % 2
    left = s.left_index + (k * s.left_stride + row if s.left_turned else row * s.left_stride + k)
    right = s.right_index + (column * s.right_stride + k if s.right_turned else k * s.right_stride + column)
    own = Reg(s.accumulator, F32, 4 * s.tiles_n * a + 4 * b + q)
    held = _left_register(s, dtype, a, q, k)
    operands = held if s.left_registers else Load(s.left, dtype, left), Load(s.right, dtype, right)
    if s.arithmetic:
        total: KExpr = Call(f"{s.arithmetic}_fma", (*operands, own))
    else:
        total = Call("add", (own, Call("mul", tuple(Call("f32", (e,)) for e in operands))))
    body: tuple[Stmt, ...] = (Assign(own, total),)
    if s.columns:
        body = (If((Bound(column, 0, s.columns),), body),)
    return _nested(body, (s.tiles_m, s.tiles_n, 4, s.inner))


def warpgroup_loops(s: WarpgroupProduct, left_buffer: Buffer | None, right_buffer: Buffer) -> tuple[Stmt, ...]:
    """One thread's part of a warpgroup's product. left_buffer: None for an operand in registers."""
    thread = axis("thread")
    lane = thread % 32
    a, b, q, k = (axis(n) for n in PRODUCT_LOOPS)
    row = WARPGROUP_ROWS * a + 16 * (thread % 128 // 32) + lane // 4 + 8 * (q // 2)
    column = 8 * b + 2 * (lane % 4) + q % 2
    integer = right_buffer.dtype.is_integer
    sums = I32 if integer else F32
    own = Reg(s.accumulator, sums, s.columns // 2 * a + 4 * b + q)
    inner = inner_of_piece(k, panel_width(right_buffer.swizzle, right_buffer.dtype.itemsize)) if s.in_pieces else k
    right = s.right_index + _in_panels(right_buffer, s.right_panel, *((inner, column) if s.right_turned else (column, inner)))
    operands: list[KExpr] = [Load(s.right, right_buffer.dtype, right)]
    if left_buffer is None:
        operands.insert(0, _left_register(s, right_buffer.dtype, a, q, k))
    else:
        left = s.left_index + _in_panels(left_buffer, s.left_panel, *((row, k) if s.left_turned else (k, row)))
        operands.insert(0, Load(s.left, left_buffer.dtype, left))
    if s.arithmetic:
        total: KExpr = Call(f"{s.arithmetic}_low_fma", (*operands, own))
    else:
        total = Call("add", (own, Call("mul", tuple(Call(sums.name, (e,)) for e in operands))))
    extents = (s.rows // WARPGROUP_ROWS, s.columns // 8, 4, s.inner)
    loops = _nested((Assign(own, total),), extents)
    if s.term is None:
        return loops
    return (If((Bound(s.term, 0, 1),), _nested((Assign(own, const(0, sums)),), extents[:3])), *loops)


def operand_elements(s: WarpgroupProduct, buffer: Buffer, left: bool) -> int:
    """Elements from the first to the last one, inclusive, of an operand's tile in shared memory."""
    across = s.rows if left else s.columns
    panel, turned = (s.left_panel, s.left_turned) if left else (s.right_panel, not s.right_turned)
    contiguous, rows = (across, s.inner) if turned else (s.inner, across)
    width = panel_width(buffer.swizzle, buffer.dtype.itemsize)
    return (contiguous - 1) // width * panel + (rows - 1) * width + min(contiguous, width)


def _in_panels(buffer: Buffer, panel: int, along: Affine, across: Affine) -> Affine:
    """Offset of an element in panels: `along` the contiguous axis, `across` the panel's rows."""
    width = panel_width(buffer.swizzle, buffer.dtype.itemsize)
    return along // width * panel + across * width + along % width


def _left_register(s: MatrixProduct | WarpgroupProduct, dtype: DType, a: Affine, q: Affine, k: Affine) -> Reg:
    """Element of a left operand in registers, in the layout of sums."""
    return Reg(s.left, dtype, -(-s.inner // 8) * 4 * a + 4 * (k // 8) + 2 * (q // 2) + k % 2)


def _nested(body: tuple[Stmt, ...], extents: tuple[int, ...]) -> tuple[Stmt, ...]:
    """Loops over the first of `PRODUCT_LOOPS` around a body."""
    for name, extent in reversed(list(zip(PRODUCT_LOOPS, extents, strict=False))):
        body = (For(name, number(0), number(extent), 1, body),)
    return body
