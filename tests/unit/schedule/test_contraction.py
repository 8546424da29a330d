"""Contractions against numpy, and thread and warp tiles: they cover the product's tile, whole, with legal lanes."""
from __future__ import annotations

from itertools import product
from math import prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilefuse.ir.affine import evaluate
from tilefuse.ir.dtype import BF16, F16, F32, I64
from tilefuse.ir.graph import Graph
from tilefuse.ir.tensor import TensorBuilder
from tilefuse.schedule.contraction import INNER, MMA_COLUMNS, MMA_INNER, MMA_ROWS, WARP, contraction_of, mma_fits, tile_fma, tile_mma


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
    t = tile_fma(rows, columns, inner, threads, inner_last_right)
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
    t = tile_mma(tall * MMA_ROWS, wide * MMA_COLUMNS, warps)
    assert t.unit == "mma" and tall % t.rows == 0 and wide % t.columns == 0
    # Sums of one thread: four a matrix instruction.
    assert 4 * prod((t.rows, t.columns)) <= 64


def test_the_matrix_unit_takes_whole_instructions_of_two_types() -> None:
    assert mma_fits(MMA_ROWS, MMA_COLUMNS, MMA_INNER, F16, F16) and mma_fits(32, 24, 48, BF16, BF16)
    assert not mma_fits(16, 8, 16, F16, BF16) and not mma_fits(16, 8, 16, F32, F32) and not mma_fits(16, 8, 16, I64, I64)
    assert not mma_fits(17, 8, 16, F16, F16) and not mma_fits(16, 12, 16, F16, F16) and not mma_fits(16, 8, 15, F16, F16)
