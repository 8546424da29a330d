"""Contractions against numpy, and thread and warp tiles: they cover the product's tile, whole, with legal lanes."""
from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilefuse.base.search.limits import SEARCH
from tilefuse.domain.contraction import INNER, contraction_of, f32_pad, matrix_arithmetic, mma_fits, tile_fma, tile_mma
from tilefuse.ir.affine import evaluate
from tilefuse.ir.building.tensor import TensorBuilder
from tilefuse.ir.dtype import BF16, F16, F32, F64, I64
from tilefuse.ir.graph import Graph
from tilefuse.target.capabilities import MMA_COLUMNS, MMA_INNER, MMA_ROWS, WARP
from tilefuse.target.device import H200


def product_graph(left: tuple[int, ...], right: tuple[int, ...], turned: tuple[bool, bool]) -> Graph:
    b = TensorBuilder("product")
    return b.finish([b.matmul(b.input("x", F32, left), b.input("w", F32, right), transpose_a=turned[0], transpose_b=turned[1])])


@pytest.mark.parametrize("lead", [((), ()), ((2,), (2,)), ((1,), (3,)), ((2, 1), (3,)), ((), (2,))], ids=str)
@pytest.mark.parametrize("turned", list(product((False, True), repeat=2)), ids=str)
def test_a_contraction_says_what_the_library_computes(lead: tuple[tuple[int, ...], tuple[int, ...]], turned: tuple[bool, bool]) -> None:
    """Summed over its subscripts it is numpy's product."""
    rows, inner, columns = 2, 3, 4
    left = (*lead[0], *((inner, rows) if turned[0] else (rows, inner)))
    right = (*lead[1], *((columns, inner) if turned[1] else (inner, columns)))
    graph = product_graph(left, right, turned)
    (node,) = graph.nodes
    found = contraction_of(node, graph)
    assert found is not None and found.inner == inner
    assert (found.inner_last_left, found.inner_last_right) == (not turned[0], turned[1])
    draw = np.random.default_rng(1)
    x, w = draw.integers(-4, 5, left), draw.integers(-4, 5, right)
    wanted = np.matmul(np.swapaxes(x, -1, -2) if turned[0] else x, np.swapaxes(w, -1, -2) if turned[1] else w)
    for at in product(*(range(e) for e in node.type.shape)):
        here = dict(zip(found.axes, at, strict=True))
        terms = [x[tuple(int(evaluate(e, here | {INNER: k})) for e in found.left_index)]
                 * w[tuple(int(evaluate(e, here | {INNER: k})) for e in found.right_index)] for k in range(inner)]
        assert sum(terms) == wanted[at]


def test_what_is_no_contraction() -> None:
    """Products of vectors and of nothing."""
    for left, right in (((3,), (3, 4)), ((2, 3), (3,)), ((0, 3), (3, 4)), ((2, 0), (0, 4))):
        graph = product_graph(left, right, (False, False))
        assert contraction_of(graph.nodes[-1], graph) is None


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 64), st.integers(1, 96), st.integers(1, 130), st.sampled_from((32, 64, 128, 256)), st.booleans())
def test_thread_tiles_cover_the_tile(rows: int, columns: int, inner: int, threads: int, inner_last_right: bool) -> None:
    t = tile_fma(H200.fitted.stitch.multiply, rows, columns, inner, threads, inner_last_right)
    assert t.unit == "fma" and rows % t.rows == 0 and columns % t.columns == 0
    assert inner % (t.step * t.split) == 0
    lanes = t.split * t.side
    assert lanes <= WARP and WARP % lanes == 0
    tiles = (rows // t.rows) * (columns // t.columns)
    assert (columns // t.columns) % t.side == 0
    if t.split > 1:
        # Lanes that meet by shuffles all have a tile, or none of their warp's group has.
        assert tiles % t.side == 0


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 12), st.integers(1, 24), st.sampled_from((1, 2, 4, 8)))
def test_warp_tiles_cover_the_tile(tall: int, wide: int, warps: int) -> None:
    for arithmetic in ("", "split", "tf32"):
        t = tile_mma(H200.fitted.stitch.multiply, tall * MMA_ROWS, wide * MMA_COLUMNS, warps, arithmetic)
        assert t.unit == "mma" and t.arithmetic == arithmetic and tall % t.rows == 0 and wide % t.columns == 0
        # Sums of one thread: four a matrix instruction.
        assert 4 * prod((t.rows, t.columns)) <= 64


@pytest.mark.parametrize("columns", [1, 7, 13, 300])
def test_a_warp_has_all_columns_where_instructions_reach_beyond_them(columns: int) -> None:
    t = tile_mma(H200.fitted.stitch.multiply, 64, columns, 4, "split")
    assert t.rows == 1 and 0 <= 8 * t.columns - columns < 8
    assert 4 * t.columns <= 4 * SEARCH.domain.warp_row_instructions


def test_the_matrix_unit_takes_whole_instructions_and_columns_of_f32_that_end_anywhere() -> None:
    assert mma_fits(MMA_ROWS, MMA_COLUMNS, MMA_INNER, "") and mma_fits(32, 24, 48, "")
    assert not mma_fits(17, 8, 16, "") and not mma_fits(16, 12, 16, "") and not mma_fits(16, 8, 15, "") and not mma_fits(16, 8, 16, None)
    assert mma_fits(16, 12, 15, "split") and mma_fits(16, 8000, 3, "tf32")
    assert not mma_fits(15, 8, 8, "split") and not mma_fits(16, 1001, 8, "split")


def test_arithmetic_follows_types_and_precision() -> None:
    graph = product_graph((4, 3), (3, 4), (False, False))
    found = contraction_of(graph.nodes[-1], graph)
    assert found is not None and found.precision == "default"
    assert [matrix_arithmetic(found, t, t) for t in (F16, BF16, F32, F64, I64)] == ["", "", "split", None, None]
    assert matrix_arithmetic(found, F16, BF16) is None and matrix_arithmetic(replace(found, precision="f32"), F32, F32) is None
    assert matrix_arithmetic(replace(found, precision="tf32"), F32, F32) == "tf32"


@pytest.mark.parametrize("inner_last", [False, True])
@pytest.mark.parametrize("extent", [1, 7, 16, 20, 64, 128, 300])
def test_padded_rows_of_f32_have_no_bank_conflicts(extent: int, inner_last: bool) -> None:
    """The words that the lanes read in one turn lie in different banks: half a warp reads pairs, a whole one single words."""
    pitch = extent + f32_pad(extent, inner_last)
    if inner_last:
        words = [pitch * (lane // 4) + 2 * (lane % 4) + n for lane in range(16) for n in range(2)]
    else:
        words = [pitch * 2 * (lane % 4) + lane // 4 for lane in range(32)]
    assert len({w % 32 for w in words}) == 32
