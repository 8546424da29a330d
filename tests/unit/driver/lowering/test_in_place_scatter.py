"""Scatters into an updated input: no copies where that is safe, copies where somebody would see the difference, right in both cases."""
from __future__ import annotations

import pytest
import torch

from tilefuse.base.options import Options
from tilefuse.driver.compile import compile_graph, generate
from tilefuse.ir.text import parse_graph
from tilefuse.passes.separate_fills import separate_fills
from tilefuse.runtime.spec import CopyStep
from tilefuse.target.device import H200

HEAD = "graph @g(%t: f32[50, 8], %n: i64[6], %o: i64[4], %g: f32[6, 8], %h: f32[4, 8])"
ADD = "  %a: f32[50, 8] = scatter.sum over [i < 6, j < 8] into %t at [%n[i], index(j)] { %g[i, j] }\n"
ADD_MORE = "  %b: f32[50, 8] = scatter.sum over [i < 4, j < 8] into %a at [%o[i], index(j)] { %h[i, j] }\n"
ONCE = f"{HEAD} -> () {{\n{ADD}  update %t = %a\n  return\n}}"
TWICE = f"{HEAD} -> () {{\n{ADD}{ADD_MORE}  update %t = %b\n  return\n}}"
GATHER = "  %r: f32[4, 8] = gather [i, j] { lookup(%t, %o[i], index(j)) }\n"
READ_BEFORE = f"{HEAD} -> (f32[4, 8]) {{\n{GATHER}{ADD}  update %t = %a\n  return %r\n}}"
RETURNED = f"{HEAD} -> (f32[50, 8]) {{\n{ADD}  update %t = %a\n  return %a\n}}"
ROWS = "  %s: f32[50] = reduce.sum [i] over [j < 8] { %a[i, j] }\n"
BETWEEN = f"{HEAD} -> (f32[50]) {{\n{ADD}{ADD_MORE}{ROWS}  update %t = %b\n  return %s\n}}"
FROM_ITSELF = (f"{HEAD} -> () {{\n  %a: f32[50, 8] = scatter.sum over [i < 49, j < 8] into %t at [index(i + 1), index(j)] {{ %t[i, j] }}\n"
               "  update %t = %a\n  return\n}")

ZEROS = "  %z: f32[50, 8] = map [i, j] { 0.0:f32 }\n"
BOTH = (f"{HEAD} -> (f32[50, 8], f32[50, 8]) {{\n{ZEROS}{ADD}{ADD_MORE}  return %a, %b\n}}"
        .replace("into %t", "into %z").replace("into %a", "into %z"))


def inputs() -> tuple[torch.Tensor, ...]:
    """Integers, so that sums are exact in any order; places repeat."""
    generator = torch.Generator().manual_seed(4)
    table = torch.randint(-9, 9, (50, 8), generator=generator).float()
    near, other = torch.tensor([3, 3, 49, 0, 7, 3]), torch.tensor([3, 1, 49, 1])
    first, second = (torch.randint(-9, 9, (rows, 8), generator=generator).float() for rows in (6, 4))
    return table, near, other, first, second


def copies(text: str) -> int:
    """Copies in the program for an H200."""
    return sum(isinstance(s, CopyStep) for s in generate(parse_graph(text), constants={}, device=H200, options=Options()).spec.steps)


@pytest.mark.parametrize("text", [ONCE, TWICE], ids=["once", "twice"])
def test_a_table_is_updated_where_it_lies(text: str) -> None:
    """No copy, and the table holds both sums."""
    assert copies(text) == 0
    table, near, other, first, second = inputs()
    wanted = table.clone().index_add_(0, near, first)
    if text is TWICE:
        wanted.index_add_(0, other, second)
    compile_graph(parse_graph(text), constants={}, device="host", options=Options())(table, near, other, first, second)
    assert torch.equal(table, wanted)


def test_a_fill_that_two_scatters_start_from_is_written_for_each() -> None:
    """Nothing is copied; a graph in which each has its own is the same object."""
    assert copies(BOTH) == 0
    graph = parse_graph(BOTH)
    own = separate_fills(graph)
    assert len(own.nodes) == len(graph.nodes) + 1 and separate_fills(own) is own
    table, near, other, first, second = inputs()
    found = compile_graph(graph, constants={}, device="host", options=Options())(table, near, other, first, second)
    for result, places, rows in zip(found, (near, other), (first, second), strict=True):
        assert torch.equal(result, torch.zeros(50, 8).index_add_(0, places, rows))


def test_reads_before_the_scatter_see_the_old_rows() -> None:
    """Whether the gather has a kernel before, or one together with the scatter, which then keeps its own storage."""
    table, near, other, first, second = inputs()
    old, wanted = table[other].clone(), table.clone().index_add_(0, near, first)
    found, = compile_graph(parse_graph(READ_BEFORE), constants={}, device="host", options=Options())(table, near, other, first, second)
    assert torch.equal(found, old) and torch.equal(table, wanted)


@pytest.mark.parametrize("text", [RETURNED, BETWEEN, FROM_ITSELF], ids=["returned", "between", "from-itself"])
def test_what_others_see_is_copied(text: str) -> None:
    """A result, a value between that is read, and a scatter of the table's own rows keep their storage."""
    assert copies(text) > 0
    table, near, other, first, second = inputs()
    old = table.clone()
    after = old.clone().index_add_(0, near, first)
    found = compile_graph(parse_graph(text), constants={}, device="host", options=Options())(table, near, other, first, second)
    if text is RETURNED:
        assert torch.equal(found[0], after) and torch.equal(table, after) and found[0].data_ptr() != table.data_ptr()
    elif text is BETWEEN:
        assert torch.equal(found[0], after.sum(1)) and torch.equal(table, after.index_add_(0, other, second))
    else:
        assert torch.equal(table, torch.cat([old[:1], old[1:] + old[:-1]]))
