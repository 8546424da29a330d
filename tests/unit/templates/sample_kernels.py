"""Kernels written by hand in kernel IR, one for each way in which threads meet: what the printers are tested with.

Each comes with the numpy meaning of its buffers, so a test needs no composer.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tests.unit.templates.tensor_samples import BoxCopy, exchange, ring
from tilefuse.ir.affine import Affine, axis, floordiv, mod, number
from tilefuse.ir.dtype import BF16, BOOL, F16, F32, I32, I64, DType
from tilefuse.ir.scalar import Bound, Call, Const, Guard, Index, call, cast, const
from tilefuse.kernel.asynchronous import BulkCopy, BulkWait
from tilefuse.kernel.ir import (
    Assign,
    Atomic,
    Barrier,
    Buffer,
    ClusterLoad,
    ClusterStore,
    Comment,
    Declare,
    For,
    If,
    IfValue,
    Kernel,
    LastBlock,
    Let,
    Load,
    Reg,
    Shuffle,
    Stmt,
    Store,
    VectorLoad,
    VectorStore,
)
from tilefuse.target.launch import Launch

THREAD, BLOCK, RANK = axis("thread"), axis("block"), axis("rank")
Arrays = dict[str, np.ndarray]
# A tensor whose rows end in gaps, read beyond its last row and column.
BOXES = BoxCopy(F32, (13, 18), (4, 8), (1, 4))


@dataclass(frozen=True)
class Sample:
    """A kernel, seeded inputs, and the expected contents of what it writes (with an absolute tolerance; 0: equal bits)."""

    kernel: Kernel
    inputs: Callable[[np.random.Generator], Arrays]
    expected: Callable[[Arrays], Arrays]
    tolerance: float = 0.0


def add_narrow(dtype: DType = F16, n: int = 10007, threads: int = 64, width: int = 8, steps: int = 2) -> Kernel:
    """y = x + w in f32, stored narrow: 16-byte vectors, two in flight, a scalar tail by the last block."""
    tile = threads * width * steps
    whole = n - n % width
    blocks = -(-n // tile)
    u, v = axis("u"), axis("v")
    at = BLOCK * tile + u * (threads * width) + THREAD * width
    inside = (Bound(at, 0, whole),)

    def wide_sum(x: object, w: object) -> Call:
        return cast(call("add", cast(x, F32), cast(w, F32)), dtype)  # type: ignore[arg-type]

    tail = tuple(Store("y", number(whole + k), wide_sum(Load("x", dtype, number(whole + k)), Load("w", dtype, number(whole + k))))
                 for k in range(n % width))
    lane = u * width + v
    return Kernel(
        f"add_{dtype.name}",
        (Buffer("x", dtype, n, "global", "in", "x"), Buffer("w", dtype, n, "global", "in", "w"),
         Buffer("y", dtype, n, "global", "out", "y")),
        Launch(blocks, threads),
        (
            Comment("%x, %w: global memory -> registers"),
            Declare("xv", dtype, width * steps), Declare("wv", dtype, width * steps), Declare("yv", dtype, width * steps),
            For("u", number(0), number(steps), 1, (If(inside, (
                VectorLoad("xv", u * width, "x", at, width, "stream"),
                VectorLoad("wv", u * width, "w", at, width, "stream"),
            )),), unroll=True),
            Comment("%y: registers -> global memory"),
            For("u", number(0), number(steps), 1, (If(inside, (
                For("v", number(0), number(width), 1, (
                    Assign(Reg("yv", dtype, lane), wide_sum(Reg("xv", dtype, lane), Reg("wv", dtype, lane))),
                ), unroll=True, simd=True),
                VectorStore("y", at, "yv", u * width, width, "stream"),
            )),), unroll=True),
            If((Bound(BLOCK, blocks - 1, blocks), Bound(THREAD, 0, 1)), tail),
        ), ("nodes: %y",))


def block_all_reduce(name: str, fn: str, reg: Reg, shared: str, threads: int, identity: Const,
                     again: bool = False) -> tuple[Stmt, ...]:
    """The combination of `reg` over all threads, left in every thread: shuffles within warps, shared memory between them.

    again: `shared` will be written again before another meeting of the block.
    """
    other = Reg(name + "_other", reg.dtype)
    warps = threads // 32
    steps: list[Stmt] = [Declare(other.name, reg.dtype)]
    for amount in (16, 8, 4, 2, 1):
        steps += [Shuffle(other, reg, "xor", amount), Assign(reg, call(fn, reg, other))]  # type: ignore[arg-type]
    warp, lane = floordiv(THREAD, 32, {"thread": threads}), mod(THREAD, 32, {"thread": threads})
    return (
        *steps,
        If((Bound(lane, 0, 1),), (Store(shared, warp, reg),)),
        Barrier(),
        Assign(reg, identity),
        For(name + "_w", number(0), number(warps), 1, (
            Assign(reg, call(fn, reg, Load(shared, reg.dtype, axis(name + "_w")))),  # type: ignore[arg-type]
        ), unroll=True),
        *([Barrier()] if again else []),
    )


def row_softmax(rows: int = 5, columns: int = 1000, threads: int = 128) -> Kernel:
    """Softmax of each row, held in registers between its two reductions."""
    per = -(-columns // threads)
    u = axis("u")
    column = u * threads + THREAD
    inside = (Bound(column, 0, columns),)
    x, m, s = Reg("row", F32, u), Reg("m", F32), Reg("s", F32)
    low = const(float("-inf"), F32)
    return Kernel(
        "row_softmax",
        (Buffer("x", F32, rows * columns, "global", "in", "x"), Buffer("y", F32, rows * columns, "global", "out", "y"),
         Buffer("top", F32, rows, "global", "out", "top"), Buffer("part", F32, threads // 32, "shared")),
        Launch(rows, threads, 1, threads // 32 * 4),
        (
            Let("start", BLOCK * columns, 1 + (rows - 1) * columns),
            Declare("row", F32, per),
            For("u", number(0), number(per), 1, (
                Assign(x, Guard(inside, Load("x", F32, axis("start") + column, (), "stream"), low)),), unroll=True),
            Declare("m", F32, None, low),
            For("u", number(0), number(per), 1, (Assign(m, call("maximum", m, x)),), unroll=True),
            *block_all_reduce("max", "maximum", m, "part", threads, low, again=True),
            If((Bound(THREAD, 0, 1),), (Store("top", BLOCK, m),)),
            Declare("s", F32, None, const(0, F32)),
            For("u", number(0), number(per), 1, (
                Assign(x, call("exp", call("sub", x, m))), Assign(s, call("add", s, x))), unroll=True),
            *block_all_reduce("sum", "add", s, "part", threads, const(0, F32)),
            For("u", number(0), number(per), 1, (If(inside, (
                Store("y", axis("start") + column, call("div", x, s)),)),), unroll=True),
        ))


def cluster_sum(rows: int = 3, columns: int = 4096, threads: int = 64, cluster: int = 4) -> Kernel:
    """Row sums by a cluster: every block adds its part, reads the others' by distributed shared memory, rank 0 stores."""
    per_block = columns // cluster
    k, r = axis("k"), axis("r")
    at = axis("line") * columns + RANK * per_block + k * threads + THREAD
    acc, got = Reg("acc", F32), Reg("got", F32)
    return Kernel(
        "cluster_sum",
        (Buffer("x", F32, rows * columns, "global", "in", "x"), Buffer("y", F32, rows, "global", "out", "y"),
         Buffer("part", F32, threads // 32, "shared", offset_bytes=0), Buffer("total", F32, 1, "shared", offset_bytes=128)),
        Launch(rows * cluster, threads, cluster, 256),
        (
            Let("line", floordiv(BLOCK, cluster, {"block": rows * cluster}), rows),
            Declare("acc", F32, None, const(0, F32)),
            For("k", number(0), number(per_block // threads), 1, (Assign(acc, call("add", acc, Load("x", F32, at))),)),
            *block_all_reduce("sum", "add", acc, "part", threads, const(0, F32)),
            If((Bound(THREAD, 0, 1),), (Store("total", number(0), acc),)),
            Barrier("cluster"),
            If((Bound(RANK, 0, 1),), (If((Bound(THREAD, 0, 1),), (
                Declare("got", F32),
                Assign(acc, const(0, F32)),
                For("r", number(0), number(cluster), 1, (
                    ClusterLoad(got, "total", number(0), r), Assign(acc, call("add", acc, got))), unroll=True),
                Store("y", axis("line"), acc),
            )),)),
            Barrier("cluster"),
        ))


def cluster_exchange(rows: int = 2, threads: int = 32, cluster: int = 2) -> Kernel:
    """Each block of a pair writes its row into the other's shared memory; both then store what they received."""
    n = rows * cluster * threads
    return Kernel(
        "cluster_exchange",
        (Buffer("x", I32, n, "global", "in", "x"), Buffer("y", I32, n, "global", "out", "y"), Buffer("box", I32, threads, "shared")),
        Launch(rows * cluster, threads, cluster, threads * 4),
        (
            Barrier("cluster"),
            ClusterStore("box", THREAD, -1 * RANK + 1, Load("x", I32, BLOCK * threads + THREAD)),
            Barrier("cluster"),
            Store("y", BLOCK * threads + THREAD, Load("box", I32, THREAD)),
        ))


def last_block_sum(n: int = 50000, blocks: int = 70, threads: int = 64) -> Kernel:
    """The sum of all elements: every block leaves its part in global memory, the last to arrive adds the parts up."""
    k = axis("k")
    acc, last = Reg("acc", F32), Reg("last", BOOL)
    at = k * (blocks * threads) + BLOCK * threads + THREAD
    steps = -(-n // (blocks * threads))
    return Kernel(
        "last_block_sum",
        (Buffer("x", F32, n, "global", "in", "x"), Buffer("y", F32, 1, "global", "out", "y"),
         Buffer("parts", F32, blocks, "global", "workspace"), Buffer("arrived", I32, 1, "global", "counter"),
         Buffer("part", F32, threads // 32, "shared")),
        Launch(blocks, threads, 1, threads // 32 * 4),
        (
            Declare("acc", F32, None, const(0, F32)),
            Declare("last", BOOL),
            For("k", number(0), number(steps), 1, (If((Bound(at, 0, n),), (Assign(acc, call("add", acc, Load("x", F32, at))),)),)),
            *block_all_reduce("one", "add", acc, "part", threads, const(0, F32)),
            If((Bound(THREAD, 0, 1),), (Store("parts", BLOCK, acc),)),
            LastBlock(last, "arrived", number(0), blocks),
            IfValue(last, (
                Assign(acc, const(0, F32)),
                For("p", THREAD, number(blocks), threads, (Assign(acc, call("add", acc, Load("parts", F32, axis("p")))),)),
                *block_all_reduce("two", "add", acc, "part", threads, const(0, F32)),
                If((Bound(THREAD, 0, 1),), (Store("y", number(0), acc),)),
            ), uniform=True),
        ))


def transpose(rows: int = 40, columns: int = 70, tile: int = 32, threads: int = 128) -> Kernel:
    """y = x transposed, by tiles through padded shared memory; index arithmetic with divisions by 3 tiles a row."""
    across = -(-columns // tile)
    down = -(-rows // tile)
    k, pitch, lines = axis("k"), tile + 1, threads // tile
    tile_row, tile_column = floordiv(BLOCK, across, {"block": across * down}), mod(BLOCK, across, {"block": across * down})
    x, y = axis("x_"), axis("y_")
    row, column = tile_row * tile + y + k * lines, tile_column * tile + x
    row_out, column_out = tile_column * tile + y + k * lines, tile_row * tile + x
    return Kernel(
        "transpose",
        (Buffer("x", F32, rows * columns, "global", "in", "x"), Buffer("y", F32, rows * columns, "global", "out", "y"),
         Buffer("tile", F32, tile * pitch, "shared")),
        Launch(across * down, threads, 1, tile * pitch * 4),
        (
            Let("x_", THREAD % tile, tile), Let("y_", floordiv(THREAD, tile, {"thread": threads}), lines),
            For("k", number(0), number(tile // lines), 1, (If((Bound(row, 0, rows), Bound(column, 0, columns)), (
                Store("tile", (y + k * lines) * pitch + x, Load("x", F32, row * columns + column)),)),), unroll=True),
            Barrier(),
            For("k", number(0), number(tile // lines), 1, (If((Bound(row_out, 0, columns), Bound(column_out, 0, rows)), (
                Store("y", row_out * rows + column_out, Load("tile", F32, x * pitch + y + k * lines)),)),), unroll=True),
        ))


def warp_scan(rows: int = 6, columns: int = 96) -> Kernel:
    """Running row sums: a loop with shuffles inside, and a value carried from one step of the loop to the next."""
    k = axis("k")
    at = BLOCK * columns + k * 32 + THREAD
    mine, other, carry = Reg("mine", I64), Reg("other", I64), Reg("carry", I64)
    steps: list[Stmt] = []
    for amount in (1, 2, 4, 8, 16):
        steps += [Shuffle(other, mine, "up", amount),
                  If((Bound(THREAD, amount, 32),), (Assign(mine, call("add", mine, other)),))]  # type: ignore[arg-type]
    return Kernel(
        "warp_scan",
        (Buffer("x", I64, rows * columns, "global", "in", "x"), Buffer("y", I64, rows * columns, "global", "out", "y")),
        Launch(rows, 32),
        (
            Declare("mine", I64), Declare("other", I64), Declare("carry", I64, None, const(0, I64)),
            For("k", number(0), number(columns // 32), 1, (
                Assign(mine, Load("x", I64, at)),
                *steps,
                Assign(mine, call("add", mine, carry)),
                Store("y", at, mine),
                Shuffle(carry, mine, "lane", 31),
            )),
        ))


def bulk_reverse(blocks: int = 3, n: int = 256, threads: int = 64) -> Kernel:
    """Each block's part of x reversed: brought to shared memory by two asynchronous copies that complete on one barrier."""
    k = axis("k")
    at = k * threads + THREAD
    half = n // 2
    return Kernel(
        "bulk_reverse",
        (Buffer("x", F32, blocks * n, "global", "in", "x"), Buffer("y", F32, blocks * n, "global", "out", "y"),
         Buffer("stage", F32, n, "shared")),
        Launch(blocks, threads, 1, n * 4),
        (
            BulkCopy("stage", number(0), "x", BLOCK * n, half, number(0), arrive=False),
            BulkCopy("stage", number(half), "x", BLOCK * n + half, half, number(0)),
            BulkWait(number(0), number(0)),
            For("k", number(0), number(n // threads), 1, (
                Store("y", BLOCK * n + at, Load("stage", F32, -1 * at + (n - 1))),)),
        ), num_barriers=1)


def histogram(n: int = 3000, bins: int = 10, threads: int = 128) -> Kernel:
    """Counts and maxima by data-dependent subscripts, with atomic updates; and a gather of a table."""
    blocks = -(-n // threads)
    at = BLOCK * threads + THREAD
    which = Load("ids", I64, at)
    clamped: Call = call("minimum", call("maximum", which, const(0, I64)), const(bins - 1, I64))  # type: ignore[arg-type]
    return Kernel(
        "histogram",
        (Buffer("ids", I64, n, "global", "in", "ids"), Buffer("w", F32, n, "global", "in", "w"),
         Buffer("table", BF16, bins, "global", "in"),
         Buffer("count", F32, bins, "global", "inout"), Buffer("top", F32, bins, "global", "inout"),
         Buffer("small", BF16, bins, "global", "inout"), Buffer("y", F32, n, "global", "out")),
        Launch(blocks, threads),
        (If((Bound(at, 0, n),), (
            Atomic("sum", "count", number(0), const(1, F32), ((clamped, 1),)),
            Atomic("max", "top", number(0), Load("w", F32, at), ((clamped, 1),)),
            Atomic("sum", "small", number(0), const(1, BF16), ((clamped, 1),)),
            Store("y", at, call("add", cast(Load("table", BF16, number(0), ((clamped, 1),)), F32), cast(Index(at % 7), F32))),
        )),))


def one_thread_rows(rows: int = 9, columns: int = 257) -> Kernel:
    """A host schedule: one thread a block, lanes of 16 accumulators, then a plain sum."""
    k, v = axis("k"), axis("v")
    whole = columns // 16
    start: Affine = BLOCK * columns
    return Kernel(
        "one_thread_rows",
        (Buffer("x", F32, rows * columns, "global", "in", "x"), Buffer("y", F32, rows, "global", "out", "y")),
        Launch(rows, 1),
        (
            Declare("acc", F32, 16),
            For("v", number(0), number(16), 1, (Assign(Reg("acc", F32, v), const(0, F32)),), simd=True),
            For("k", number(0), number(whole), 1, (
                For("v", number(0), number(16), 1, (
                    Assign(Reg("acc", F32, v), call("add", Reg("acc", F32, v), Load("x", F32, start + k * 16 + v))),), simd=True),)),
            Declare("total", F32, None, const(0, F32)),
            For("v", number(0), number(16), 1, (Assign(Reg("total", F32), call("add", Reg("total", F32), Reg("acc", F32, v))),), simd=True),
            For("t", number(whole * 16), number(columns), 1, (
                Assign(Reg("total", F32), call("add", Reg("total", F32), Load("x", F32, start + axis("t")))),)),
            Store("y", BLOCK, Reg("total", F32)),
        ))


def _normal(*shapes: tuple[str, int, type]) -> Callable[[np.random.Generator], Arrays]:
    return lambda draw: {name: draw.standard_normal(n).astype(dtype) for name, n, dtype in shapes}


def _softmax(a: Arrays) -> Arrays:
    x = a["x"].reshape(5, 1000).astype(np.float64)
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return {"y": (e / e.sum(axis=1, keepdims=True)).ravel(), "top": x.max(axis=1)}


def _softmax_inputs(draw: np.random.Generator) -> Arrays:
    """Each row's maximum stands where another step, warp or lane of the reduction must find it."""
    x = draw.standard_normal((5, 1000)).astype(np.float32)
    for row, column in enumerate((999, 31, 1, 640, 127)):
        x[row, column] = 6.0 + row
    return {"x": x.ravel()}


def _digits(*shapes: tuple[str, int]) -> Callable[[np.random.Generator], Arrays]:
    """Whole numbers from 1 to 8: their sums are exact, and no element can be missed unseen."""
    return lambda draw: {name: draw.integers(1, 9, n).astype(np.float32) for name, n in shapes}


def _histogram_inputs(draw: np.random.Generator) -> Arrays:
    import ml_dtypes

    return {"ids": draw.integers(-2, 12, 3000), "w": draw.standard_normal(3000).astype(np.float32),
            "table": np.arange(10).astype(ml_dtypes.bfloat16), "count": np.zeros(10, np.float32),
            "top": np.full(10, -np.inf, np.float32), "small": np.zeros(10, ml_dtypes.bfloat16)}


def _histogram_result(a: Arrays) -> Arrays:
    import ml_dtypes

    ids = np.clip(a["ids"], 0, 9)
    count = np.bincount(ids, minlength=10).astype(np.float32)
    top = np.array([a["w"][ids == b].max() for b in range(10)], np.float32)
    # A bf16 counter stops at 256: 256 + 1 rounds to even.
    return {"count": count, "top": top, "small": np.minimum(count, 256).astype(ml_dtypes.bfloat16),
            "y": ids.astype(np.float32) + (np.arange(3000) % 7).astype(np.float32)}


def _add(a: Arrays) -> Arrays:
    return {"y": (a["x"].astype(np.float32) + a["w"].astype(np.float32)).astype(a["x"].dtype)}


def samples() -> dict[str, Sample]:
    """All samples by kernel name. Tolerance of the softmax: exp within 2 units, sums of 1000 terms, on values below 1."""
    import ml_dtypes

    integers = {"draw": lambda draw: {"x": draw.integers(-99, 99, 6 * 96)}}
    found = [
        Sample(add_narrow(), _normal(("x", 10007, np.float16), ("w", 10007, np.float16)), _add),
        Sample(add_narrow(BF16, 1003), _normal(("x", 1003, ml_dtypes.bfloat16), ("w", 1003, ml_dtypes.bfloat16)), _add),
        Sample(row_softmax(), _softmax_inputs, _softmax, 1e-6),
        Sample(cluster_sum(), _digits(("x", 3 * 4096)), lambda a: {"y": a["x"].reshape(3, -1).sum(1)}),
        Sample(cluster_exchange(), lambda draw: {"x": draw.integers(0, 1000, 128).astype(np.int32)},
               lambda a: {"y": a["x"].reshape(2, 2, 32)[:, ::-1].ravel()}),
        Sample(last_block_sum(), _digits(("x", 50000)), lambda a: {"y": a["x"].sum(keepdims=True)}),
        Sample(transpose(), _normal(("x", 2800, np.float32)), lambda a: {"y": a["x"].reshape(40, 70).T.ravel()}),
        Sample(warp_scan(), integers["draw"], lambda a: {"y": a["x"].reshape(6, 96).cumsum(1).ravel()}),
        Sample(bulk_reverse(), _normal(("x", 768, np.float32)), lambda a: {"y": a["x"].reshape(3, 256)[:, ::-1].ravel()}),
        Sample(histogram(), _histogram_inputs, _histogram_result),
        Sample(one_thread_rows(), _digits(("x", 9 * 257)), lambda a: {"y": a["x"].reshape(9, -1).sum(1)}),
        Sample(BOXES.kernel(), BOXES.inputs, lambda a: {"y": BOXES.expected(a)}),
        Sample(ring(), _digits(("x", 37 * 24)), lambda a: {"y": 2 * a["x"]}),
        Sample(exchange(), _digits(("x", 29 * 16)), lambda a: {"y": np.tile(2 * a["x"], 2)}),
    ]
    return {s.kernel.name: s for s in found}
