"""Long products of few results: split along their inner axis, as the interpreter computes them, in pieces that kernels can hold."""
from __future__ import annotations

import numpy as np
import pytest

from tests.unit.passes.device.rewriting import rewritten
from tilefuse.ir.graph import Graph
from tilefuse.ir.interpret import interpret
from tilefuse.ir.text import parse_graph, print_graph
from tilefuse.ir.verify import verify
from tilefuse.passes.device.long_products import SplitLongProducts
from tilefuse.target.catalog import host_device
from tilefuse.target.device import H200


def product(rows: int, inner: int, columns: int, dtype: str = "f32", turned: tuple[bool, bool] = (True, False),
            precision: str = "default") -> Graph:
    """left times right, either of them turned."""
    a = (inner, rows) if turned[0] else (rows, inner)
    b = (columns, inner) if turned[1] else (inner, columns)
    told = f'precision = "{precision}", transpose_a = {str(turned[0]).lower()}, transpose_b = {str(turned[1]).lower()}'
    return parse_graph(f"""graph @g(%a: {dtype}[{a[0]}, {a[1]}], %b: {dtype}[{b[0]}, {b[1]}]) -> ({dtype}[{rows}, {columns}]) {{
      %w: {dtype}[{rows}, {columns}] = library.matmul (%a, %b) {{{told}}}
      return %w
    }}""")


@pytest.mark.parametrize("turned", [(False, False), (True, False), (False, True), (True, True)])
def test_pieces_add_up_to_the_product(turned: tuple[bool, bool]) -> None:
    """Whole numbers, so that the order of additions does not matter."""
    graph = product(3, 4096, 5, turned=turned)
    split = rewritten(SplitLongProducts(), graph, H200)
    assert [n.kind for n in split.nodes] == ["map", "map", "library.matmul", "reduce.sum"] and not verify(split)
    draw = np.random.default_rng(5)
    given = {i.name: draw.integers(-3, 4, i.type.shape).astype(np.float32) for i in graph.inputs}
    np.testing.assert_array_equal(np.asarray(*interpret(split, given)), np.asarray(*interpret(graph, given)))
    assert split.results == graph.results and rewritten(SplitLongProducts(), split, H200) is split


def test_an_operand_that_lays_pieces_side_by_side_is_cut_along_its_seams() -> None:
    """Per-example gradients laid end to end: the pieces are the examples, read where they lie."""
    graph = parse_graph("""graph @g(%x: f32[128, 8, 64], %y: f32[8192, 16]) -> (f32[8, 16]) {
      %t: f32[8, 8192] = map [i, j] { %x[(j // 64), i, (j % 64)] }
      %w: f32[8, 16] = library.matmul (%t, %y) {precision = "default", transpose_a = false, transpose_b = false}
      return %w
    }""")
    split = rewritten(SplitLongProducts(), graph, H200)
    text = print_graph(split)
    assert "%t_pieces: f32[128, 8, 64] = map [c, i, k] { %x[c, i, k] }" in text and "%t:" not in text and not verify(split)
    draw = np.random.default_rng(6)
    given = {i.name: draw.integers(-3, 4, i.type.shape).astype(np.float32) for i in graph.inputs}
    np.testing.assert_array_equal(np.asarray(*interpret(split, given)), np.asarray(*interpret(graph, given)))


@pytest.mark.parametrize("graph", [
    product(32, 2048, 32), product(2048, 8192, 2048), product(32, 65536, 32, "f16"), product(32, 65536, 32, precision="tf32"),
    product(512, 4099, 8)], ids=["short", "many results", "matrix unit", "tf32", "no divisor"])
def test_what_stays_whole(graph: Graph) -> None:
    """Short ones, those with results for a whole device, those that a matrix unit adds up, and those without a piece of any use."""
    assert rewritten(SplitLongProducts(), graph, H200) is graph


def test_a_host_computes_products_whole() -> None:
    graph = product(32, 65536, 32)
    assert rewritten(SplitLongProducts(), graph, host_device()) is graph
