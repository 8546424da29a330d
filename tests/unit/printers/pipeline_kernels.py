"""Tiled products written by hand as pipelines: every operand layout, type and number of slots that warpgroup products have.

Producers copy element by element, so that any size and layout can be tried without tensor maps.
"""
from __future__ import annotations

from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np

from tilefuse.ir.affine import Affine, axis, number
from tilefuse.ir.dtype import BF16, F8E4M3, F8E5M2, F16, F32, I8, I32, U8, DType
from tilefuse.ir.scalar import Bound, Guard, call, const
from tilefuse.kernel.ir import (
    Assign,
    Barrier,
    Buffer,
    Comment,
    Declare,
    For,
    If,
    Kernel,
    KExpr,
    Let,
    Load,
    Reg,
    Stmt,
    Store,
)
from tilefuse.kernel.pipeline import (
    Consume,
    EachWarpgroup,
    Pipeline,
    Produce,
    ReleaseSlots,
    Ring,
    WarpgroupProduct,
    WarpgroupWait,
    panel_width,
)
from tilefuse.kernel.tensor_map import ProxyFence
from tilefuse.target.launch import Launch

NUMPY = {"f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "i8": np.int8, "u8": np.uint8,
         "f8e4m3": ml_dtypes.float8_e4m3fn, "f8e5m2": ml_dtypes.float8_e5m2}
THREAD = axis("thread")


@dataclass(frozen=True)
class TiledProduct:
    """c[m, n] = a[m, k] b[k, n]: blocks of `block_m` x `block_n`, a main loop over k in tiles of `tile_k`.

    a_turned: `a` lies as [k, m]; b_turned: `b` lies as [n, k]. warpgroups share block_m. producers: threads that copy. held_slots: as of
    Consume, with as many products in flight. left_registers: consumers load their left operand into registers. registers: of producers and
    consumers. bias: consumers exchange a row first. blocks: persistent blocks that take the tiles in turn; 0: a block for each tile.
    staged: consumers write the left operand to a buffer of their own, which products read. in_turn: each warpgroup has tiles of its own,
    of `block_m` rows.
    """

    dtype: DType = F16
    m: int = 128
    n: int = 128
    k: int = 96
    block_m: int = 128
    block_n: int = 128
    tile_k: int = 32
    slots: int = 2
    swizzle: int = 64
    a_turned: bool = False
    b_turned: bool = True
    warpgroups: int = 2
    producers: int = 128
    held_slots: int = 0
    left_registers: bool = False
    registers: tuple[int, int] = (0, 0)
    bias: bool = False
    blocks: int = 0
    staged: bool = False
    in_turn: bool = False

    @property
    def sums(self) -> DType:
        """Type of the results."""
        return I32 if self.dtype.is_integer else F32

    @property
    def warpgroup_rows(self) -> int:
        """Rows of a tile that one warpgroup computes."""
        return self.block_m if self.in_turn else self.block_m // self.warpgroups

    @property
    def tiles(self) -> int:
        """Iterations of the main loop."""
        return -(-self.k // self.tile_k)

    def kernel(self) -> Kernel:
        """The kernel; parameters a, b, c."""
        a = self._buffer("as", 0, self.block_m)
        b = self._buffer("bs", _end(a), self.block_n)
        shared = [a, b]
        if self.staged:
            shared.append(replace(a, name="own", num_elements=a.num_elements // self.slots, offset_bytes=_end(b)))
        if self.bias:
            shared.append(Buffer("row", F32, self.block_n, "shared", offset_bytes=_end(shared[-1])))
        consumers = 128 * self.warpgroups
        columns = self.n // self.block_n
        tiles = self.m // self.block_m * columns
        blocks = self.blocks or tiles
        roles: tuple[Stmt, ...] = (For("tile", axis("block"), number(tiles), blocks, (
            Let("bm", axis("tile") // columns, self.m // self.block_m), Let("bn", axis("tile") % columns, columns), *self._both_roles())),)
        if self.in_turn:
            roles = self._turns(tiles, blocks)
        body = (Comment("%c: main loop over k"),
                Pipeline((Ring("ab", self.slots, ("as", "bs")),), roles, consumers, *self.registers))
        buffers = (Buffer("a", self.dtype, self.m * self.k, "global", "in", "a"),
                   Buffer("b", self.dtype, self.k * self.n, "global", "in", "b"),
                   Buffer("c", self.sums, self.m * self.n, "global", "out", "c"))
        return Kernel("product", (*buffers, *shared),
                      Launch(blocks, consumers + 128, shared_bytes=_end(shared[-1])), body)

    def _turns(self, tiles: int, blocks: int) -> tuple[Stmt, ...]:
        """Tiles of warpgroups that take turns: the main loop in the turn, the sums' way to memory behind it."""
        columns, own = self.n // self.block_n, axis("tile") + axis("group") * blocks
        body = (Let("bm", own // columns, self.m // self.block_m), Let("bn", own % columns, columns), *self._both_roles())
        end = next(n for n, s in enumerate(body) if isinstance(s, For) and s.var == "kt") + 1
        turn = EachWarpgroup("group", body[:end], body[end:], (Bound(own, 0, tiles),))
        return (For("tile", axis("block"), number(tiles), blocks * self.warpgroups, (turn,)),)

    def _both_roles(self) -> tuple[Stmt, ...]:
        rows = self.warpgroup_rows
        elements = rows * self.block_n // 128
        width_a, width_b = (panel_width(self.swizzle, self.dtype.itemsize),) * 2
        group = number(0) if self.in_turn else THREAD // 128
        left = axis("slot") * (self.block_m * self.tile_k)
        left += group * (rows // width_a * width_a * self.tile_k) if self.a_turned else group * (rows * width_a)
        product = WarpgroupProduct(
            "sum", "as", left, width_a * (self.tile_k if self.a_turned else self.block_m), self.a_turned,
            "bs", axis("slot") * (self.block_n * self.tile_k), width_b * (self.block_n if self.b_turned else self.tile_k), self.b_turned,
            rows, self.block_n, self.tile_k, arithmetic="tf32" if self.dtype == F32 else "", term=axis("kt"))
        use: tuple[Stmt, ...] = (product, WarpgroupWait(self.held_slots))
        if self.left_registers:
            product = replace(product, left="held_left", left_registers=True)
            use = (*self._load_left(rows, left), product, WarpgroupWait(0))
        if self.staged:
            own = replace(product, left="own", left_index=left - axis("slot") * (self.block_m * self.tile_k))
            use = (*self._stage(), own, WarpgroupWait(0), Barrier())
        loop = For("kt", number(0), number(self.tiles), 1, (
            Produce("ab", "slot", (*self._fill("a", self.block_m, axis("bm") * self.block_m, self.m, self.a_turned),
                                   *self._fill("b", self.block_n, axis("bn") * self.block_n, self.n, not self.b_turned)), self.producers),
            Consume("ab", "slot", use, self.held_slots),
        ))
        declared: tuple[Stmt, ...] = (Declare("sum", self.sums, elements),)
        if self.left_registers:
            declared += (Declare("held_left", self.dtype, rows * self.tile_k // 128),)
        last = (WarpgroupWait(0), ReleaseSlots("ab")) if self.held_slots else ()
        return (*declared, *self._bias(), loop, *last, *self._store(rows))

    def _buffer(self, name: str, offset: int, rows: int) -> Buffer:
        return Buffer(name, self.dtype, rows * self.tile_k * self.slots, "shared", "", name[0], offset, swizzle=self.swizzle)

    def _fill(self, name: str, rows: int, first_row: Affine, all_rows: int, across: bool) -> tuple[Stmt, ...]:
        """Copies a tile of `rows` x tile_k into panels. across: rows are contiguous in memory."""
        width = panel_width(self.swizzle, self.dtype.itemsize)
        lines = self.tile_k if across else rows
        e = axis(f"{name}e") * self.producers + THREAD
        within, line, panel = e % width, e // width % lines, e // (width * lines)
        row, k = (panel * width + within, line) if across else (line, panel * width + within)
        at_k = axis("kt") * self.tile_k + k
        source = at_k * all_rows + first_row + row if across else (first_row + row) * self.k + at_k
        value: KExpr = Load(name, self.dtype, source)
        if self.k % self.tile_k:
            value = Guard((Bound(at_k, 0, self.k),), value, const(0, self.dtype))
        store = Store(f"{name}s", axis("slot") * (rows * self.tile_k) + e, value)
        return (For(f"{name}e", number(0), number(rows * self.tile_k // self.producers), 1, (store,)),)

    def _load_left(self, rows: int, left: Affine) -> tuple[Stmt, ...]:
        """A warpgroup's rows of the left tile, in the layout of sums."""
        width = panel_width(self.swizzle, self.dtype.itemsize)
        tile, q = axis("lt"), axis("lq")
        lane = THREAD % 32
        k = 8 * tile + 2 * (lane % 4) + q % 2
        row = 16 * (THREAD % 128 // 32) + lane // 4 + 8 * (q // 2)
        at = left + k // width * (width * self.block_m) + row * width + k % width
        own = Reg("held_left", self.dtype, 4 * tile + q)
        assert rows == 64
        return (For("lt", number(0), number(self.tile_k // 8), 1, (
            For("lq", number(0), number(4), 1, (Assign(own, Load("as", self.dtype, at)),), unroll=True),), unroll=True),)

    def _stage(self) -> tuple[Stmt, ...]:
        """Copies the left tile of a slot to the consumers' own buffer."""
        elements, threads = self.block_m * self.tile_k, 128 * self.warpgroups
        at = axis("se") * threads + THREAD
        copy = Store("own", at, Load("as", self.dtype, axis("slot") * elements + at))
        return (For("se", number(0), number(elements // threads), 1, (copy,)), ProxyFence(), Barrier())

    def _bias(self) -> tuple[Stmt, ...]:
        """A row that consumers share before the main loop: a barrier among consumers only."""
        if not self.bias:
            return ()
        before = (Barrier(),) if self.blocks else ()  # the row of the tile before has been read
        return (*before, If((Bound(THREAD, 0, self.block_n),), (Store("row", THREAD, const(2, F32)),)), Barrier())

    def _store(self, rows: int) -> tuple[Stmt, ...]:
        lane = THREAD % 32
        a, b, q = axis("ra"), axis("cb"), axis("q")
        row = axis("bm") * self.block_m + THREAD // 128 * rows + 64 * a + 16 * (THREAD % 128 // 32) + lane // 4 + 8 * (q // 2)
        column = 8 * b + 2 * (lane % 4) + q % 2
        value = Reg("sum", self.sums, self.block_n // 2 * a + 4 * b + q)
        if self.bias:
            value = call("add", value, Load("row", F32, column))
        body: tuple[Stmt, ...] = (Store("c", row * self.n + axis("bn") * self.block_n + column, value),)
        for name, extent in (("q", 4), ("cb", self.block_n // 8), ("ra", rows // 64)):
            body = (For(name, number(0), number(extent), 1, body, unroll=True),)
        return body

    def inputs(self, random: np.random.Generator) -> dict[str, np.ndarray]:
        """Seeded operands as they lie in memory."""
        shapes = {"a": (self.k, self.m) if self.a_turned else (self.m, self.k),
                  "b": (self.n, self.k) if self.b_turned else (self.k, self.n)}
        element = NUMPY[self.dtype.name]
        if self.dtype.is_integer:
            low = -128 if self.dtype.kind == "int" else 0
            return {name: random.integers(low, low + 256, shape).astype(element).reshape(-1) for name, shape in shapes.items()}
        return {name: random.standard_normal(shape).astype(element).reshape(-1) for name, shape in shapes.items()}

    def expected(self, arrays: dict[str, np.ndarray]) -> np.ndarray:
        """The product in f64 of the operands as the unit reads them, [m, n]."""
        a, b = (self._as_read(arrays[name]) for name in ("a", "b"))
        left = a.reshape(self.k, self.m).T if self.a_turned else a.reshape(self.m, self.k)
        right = b.reshape(self.n, self.k).T if self.b_turned else b.reshape(self.k, self.n)
        return left @ right + (2.0 if self.bias else 0.0)

    def _as_read(self, values: np.ndarray) -> np.ndarray:
        if self.dtype == F32:
            values = (values.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
        return values.astype(np.float64)


def _end(b: Buffer) -> int:
    return b.offset_bytes + b.num_elements * b.dtype.itemsize


PRODUCTS: dict[str, TiledProduct] = {
    "f16": TiledProduct(),
    "f16 odd k": TiledProduct(k=83, slots=3, held_slots=1),
    "f16 wide": TiledProduct(n=256, block_n=256, slots=4, swizzle=128, tile_k=64, k=130),
    "f16 two row tiles": TiledProduct(warpgroups=1, slots=3, swizzle=128, tile_k=64, k=130, held_slots=1),
    "f16 persistent": TiledProduct(m=256, n=96, block_n=32, blocks=2, slots=3, held_slots=1, k=80),
    "f16 turned": TiledProduct(a_turned=True, b_turned=False, swizzle=128, tile_k=32, held_slots=1, slots=2),
    "bf16 half turned": TiledProduct(BF16, b_turned=False, n=192, block_n=96, swizzle=32, tile_k=16, k=51, producers=32, slots=4,
                                     held_slots=2),
    "bf16 no swizzle": TiledProduct(BF16, swizzle=0, a_turned=True, tile_k=32),
    "tf32": TiledProduct(F32, tile_k=32, swizzle=128, k=67, slots=3, held_slots=1),
    "tf32 no swizzle": TiledProduct(F32, tile_k=16, swizzle=0, n=64, block_n=64),
    "f8e4m3": TiledProduct(F8E4M3, tile_k=64, k=99, swizzle=64),
    "f8e5m2": TiledProduct(F8E5M2, tile_k=128, k=160, swizzle=128, n=24, block_n=24, held_slots=1, slots=3),
    "i8": TiledProduct(I8, tile_k=128, k=131, swizzle=128),
    "u8": TiledProduct(U8, tile_k=32, k=96, swizzle=32, n=48, block_n=48, producers=64),
    "staged": TiledProduct(BF16, staged=True, a_turned=True, swizzle=128, tile_k=64, k=70),
    "left in registers": TiledProduct(F16, left_registers=True, k=70, slots=3, b_turned=False),
    "bias": TiledProduct(BF16, bias=True, registers=(40, 232)),
    "in turn": TiledProduct(m=192, n=64, block_m=64, block_n=64, k=83, slots=3, held_slots=1, blocks=1, in_turn=True),
}
