"""Bare products: every type and transpose, large and small, few rows, batched, of odd sizes, and written out as sums.

Sizes are rows x columns x inner, as in the names. Each is held against the best of torch (cuBLAS) and jax.jit (XLA): that is what the
project asks. torch.compile calls the same library or searches templates for half a minute, so it is left out unless it is asked for.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from benchmarks.case import Case
from benchmarks.products import jax_products
from benchmarks.products.shapes import normal, sized, text
from benchmarks.row_sample import RowSample

# Asked of each product against the best peer, and of one whose rows are no multiples of 16 bytes, which cuBLAS runs at a fifth of its
# rate (H200: 136 of 690 TFLOP/s).
MIN_SPEEDUP = 0.93
MIN_ODD_SPEEDUP = 4.0
UNALIGNED = (4095, 4097, 4099)
# Share of the copy bandwidth asked of products that do little beside reading cold weights, and how many rows those have.
MIN_OF_LIMIT = 0.92
READING_ROWS = 16

LAYOUTS = ("nt", "nn", "tn", "tt")
TYPES = ("bf16", "f16", "tf32", "f32")
CUBES = (8192, 4096, 2048, 1024)
# A type's layout of all cubes, and the cube of the other layouts.
CUBE_LAYOUTS = {"bf16": ("nt", 4096), "f16": ("nn", 4096), "tf32": ("nn", 4096), "f32": ("nn", 2048)}
LONG = (((16384, 3072, 768), TYPES), ((16384, 768, 3072), TYPES), ((4096, 50304, 768), TYPES[:3]), ((256, 256, 65536), TYPES[:3]))
ROW_COUNTS = (1, 16, 64, 8, 128, 512)
WEIGHTS = ((4096, 4096), (14336, 4096), (4096, 14336))


def product(left_transposed: bool, right_transposed: bool) -> Callable[[Tensor, Tensor], Tensor]:
    """A function that multiplies two matrices, or batches of them, each transposed first where that is said."""

    def multiply(a: Tensor, b: Tensor) -> Tensor:
        return (a.transpose(-1, -2) if left_transposed else a) @ (b.transpose(-1, -2) if right_transposed else b)

    return multiply


def cases(tiny: bool) -> list[Case]:
    """Every bare product."""
    return [*_cubes(tiny), *_long(tiny), *_few_rows(tiny), *_batched(tiny), *_odd(tiny), *_written(tiny)]


def _case(kind: str, family: str, dtype: str, layout: str, extents: tuple[int, ...], rank: int, *, tiny: bool,
          batch: tuple[int, int] = (0, 0), min_of_limit: float = 0.0, min_speedup: float = MIN_SPEEDUP) -> Case:
    """A product of two operands. batch: the operands' batches; 0: none, so that all products of a batch share the operand."""
    m, n, k = sized(extents, tiny)
    left_batch, right_batch = sized(batch, tiny)
    left_transposed, right_transposed = layout[0] == "t", layout[1] == "t"
    left = (*((left_batch,) if left_batch else ()), *((k, m) if left_transposed else (m, k)))
    right = (*((right_batch,) if right_batch else ()), *((n, k) if right_transposed else (k, n)))
    count = max(left_batch, right_batch)
    size = text((m, n, k)) if not count else f"{left_batch or 1}.{right_batch or 1}x{text((m, n, k))}"
    sample = RowSample((len(left) - (1 if left_transposed else 2), None), (1 if count else 0,))
    return Case(f"{kind}/{dtype}/{layout}/{size}", family, dtype, product(left_transposed, right_transposed),
                normal(dtype, left, right, scales=(1.0, k**-0.5)), jax=jax_products.product(dtype, left_transposed, right_transposed),
                rank=rank, min_of_limit=min_of_limit, flops=2 * max(count, 1) * m * n * k, min_speedup=min_speedup, sample=sample)


def _cubes(tiny: bool) -> Iterator[Case]:
    for dtype in TYPES:
        usual, of_others = CUBE_LAYOUTS[dtype]
        for side in CUBES:
            for layout in LAYOUTS:
                # torch's linear layers multiply by a transposed matrix, its convolutions of tokens and attention by a plain one.
                is_chosen = layout == usual or side == of_others or (dtype == "bf16" and layout == "nn")
                if is_chosen:
                    rank = 0 if layout == usual and (dtype != "f32" or side < 8192) else 1
                    yield _case("product", f"bare {dtype}", dtype, layout, (side, side, side), rank, tiny=tiny)


def _long(tiny: bool) -> Iterator[Case]:
    for extents, dtypes in LONG:
        for dtype in dtypes:
            yield _case("product", f"bare {dtype}", dtype, "nt", extents, 0 if dtype in ("bf16", "f16") else 1, tiny=tiny)
    # The gradient of a weight: both operands have the long inner axis first.
    yield _case("product", "bare bf16", "bf16", "tn", (256, 256, 65536), 1, tiny=tiny)
    yield _case("product", "bare f16", "f16", "tn", (768, 3072, 16384), 1, tiny=tiny)


def _few_rows(tiny: bool) -> Iterator[Case]:
    def of(dtype: str, layout: str, rows: int, weight: tuple[int, int], rank: int) -> Case:
        asked = MIN_OF_LIMIT if rows <= READING_ROWS else 0.0
        return _case("few-rows", "few rows", dtype, layout, (rows, *weight), rank, tiny=tiny, min_of_limit=asked)

    for number, rows in enumerate(ROW_COUNTS):
        for weight in WEIGHTS:
            yield of("bf16", "nt", rows, weight, 0 if number < 2 else 1)
    for dtype, layout, rows in (("f16", "nt", 1), ("f16", "nt", 16), ("f32", "nt", 1), ("tf32", "nt", 16), ("bf16", "nn", 1),
                                ("bf16", "nn", 16), ("f16", "nn", 64)):
        yield of(dtype, layout, rows, WEIGHTS[0], 2)


def _batched(tiny: bool) -> Iterator[Case]:
    """Batches of both operands, then one operand for the whole batch: 0 says which."""
    for dtype, layout, extents, batch, rank in (
            ("bf16", "nt", (1024, 1024, 64), (64, 64), 0), ("bf16", "nn", (1024, 64, 1024), (64, 64), 0),
            ("bf16", "nn", (2048, 2048, 2048), (8, 8), 0), ("f16", "nn", (256, 256, 256), (256, 256), 1),
            ("f16", "nt", (128, 128, 64), (1024, 1024), 1), ("tf32", "nn", (1024, 1024, 1024), (16, 16), 1),
            ("f32", "nt", (300, 300, 16), (1500, 1500), 2), ("bf16", "tn", (512, 512, 2048), (24, 24), 1),
            ("bf16", "nn", (512, 1024, 1024), (32, 0), 0), ("f16", "nn", (512, 2048, 512), (0, 32), 1)):
        yield _case("batched", "batched", dtype, layout, extents, rank, tiny=tiny, batch=batch)


def _odd(tiny: bool) -> Iterator[Case]:
    for dtype, layout, extents, rank in (
            ("bf16", "nn", UNALIGNED, 0), ("f16", "nn", UNALIGNED, 0), ("tf32", "nn", UNALIGNED, 1), ("f32", "nn", (2047, 2049, 2051), 1),
            ("bf16", "nt", (4093, 1021, 517), 0), ("f16", "nn", (4093, 1021, 517), 1), ("bf16", "nt", (8191, 4095, 1023), 1),
            ("f16", "nt", (1000, 1000, 1000), 1), ("bf16", "tn", (2047, 2049, 2048), 2), ("f32", "nt", (333, 777, 555), 2)):
        asked = MIN_ODD_SPEEDUP if extents == UNALIGNED and dtype == "bf16" else MIN_SPEEDUP
        yield _case("odd", "odd sizes", dtype, layout, extents, rank, tiny=tiny, min_speedup=asked)


# -- written in other ways -----------------------------------------------------------------------------------------------------

def _einsum(equation: str) -> Callable[[Tensor, Tensor], Tensor]:
    def multiply(a: Tensor, b: Tensor) -> Tensor:
        return torch.einsum(equation, a, b)

    return multiply


def sum_of_products(a: Tensor, b: Tensor) -> Tensor:
    """a b' by hand: every product of two elements, summed over the inner axis."""
    return (a[:, None, :] * b[None, :, :]).sum(-1)


def _written(tiny: bool) -> Iterator[Case]:
    """Products that no call of a product says. Peers multiply as fast as they can: eager runs the library's call."""
    for equation, dtype, left, right, flops, rank in (
            ("mk,nk->mn", "bf16", (4096, 1024), (4096, 1024), (4096, 4096, 1024), 1),
            ("bqhd,bkhd->bhqk", "bf16", (4, 1024, 16, 64), (4, 1024, 16, 64), (4, 16, 1024, 1024, 64), 0),
            ("bij,jk->bik", "f16", (16, 512, 1024), (1024, 1024), (16, 512, 1024, 1024), 1),
            ("bik,bkj->ij", "f16", (16, 512, 1024), (16, 1024, 512), (16, 512, 512, 1024), 2)):
        shapes = (sized(left, tiny), sized(right, tiny))
        name = equation.replace(",", "-").replace("->", "-")
        yield Case(f"einsum-{name}/{dtype}/{text(shapes[0])}", "written out", dtype, _einsum(equation),
                   normal(dtype, *shapes, scales=(1.0, right[-1]**-0.5)), jax=jax_products.einsum(dtype, equation), rank=rank,
                   min_of_limit=0.0, flops=2 * _volume(sized(flops, tiny)), min_speedup=MIN_SPEEDUP, sample=RowSample())
    for dtype, extents, rank in (("f32", (512, 512, 512), 2), ("bf16", (1024, 1024, 512), 1)):
        m, n, k = sized(extents, tiny)
        yield Case(f"sum-of-products/{dtype}/{text((m, n, k))}", "written out", dtype, sum_of_products,
                   normal(dtype, (m, k), (n, k), scales=(1.0, k**-0.5)), eager=product(False, True),
                   jax=jax_products.product(dtype, False, True), rank=rank, min_of_limit=0.0, flops=2 * m * n * k,
                   min_speedup=MIN_SPEEDUP, sample=RowSample((0, None), (0,)))


def _volume(extents: tuple[int, ...]) -> int:
    volume = 1
    for extent in extents:
        volume *= extent
    return volume
