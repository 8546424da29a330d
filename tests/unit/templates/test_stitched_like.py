"""Patterns that differ in where they begin to read take each other's tiles: one search for all steps of a recurrence."""
from __future__ import annotations

import pytest

from tilefuse.domain.parts import structure_but_starts
from tilefuse.ir.graph import Graph
from tilefuse.ir.text import parse_graph
from tilefuse.target.device import H200
from tilefuse.templates.staged.stitched import template as stitched
from tilefuse.templates.staged.stitched.choose import choose_stitch
from tilefuse.templates.staged.stitched.record import Tiles
from tilefuse.templates.staged.stitched.template import schedule_like, schedule_stitched


def step(start: str, shape: str = "32, 12, 16", name: str = "x") -> Graph:
    """Rows of a tensor beside the last state, times a matrix."""
    return parse_graph(
        f"graph @g(%{name}: f32[{shape}], %h: f32[32, 16], %w: f32[32, 16]) -> (f32[32, 16]) {{ "
        f"%c: f32[32, 32] = map [i, j] {{ guard(0 <= j < 16 ? %{name}[{start}] : %h[i, j + -16]) }} "
        "%p: f32[32, 16] = library.matmul (%c, %w) %r: f32[32, 16] = map [i, j] { tanh(%p[i, j]) } return %r }")


def test_tiles_are_searched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the program is the one that a search finds."""
    searched = []

    def counted(graph, device, wanted=None, ceiling=None):  # type: ignore[no-untyped-def]
        searched.append(wanted)
        return choose_stitch(graph, device, wanted, ceiling)

    monkeypatch.setattr(stitched, "choose_stitch", counted)
    known: Tiles = {}
    for n in range(12):
        found = schedule_like(known, step(f"i, {n}, j", name=f"x{n}"), {}, H200)
        assert found == schedule_stitched(step(f"i, {n}, j", name=f"x{n}"), {}, H200)
    # Every second search is that of the comparison.
    assert searched[::2].count(None) == 1 and len(known) == 1


@pytest.mark.parametrize(("first", "second", "shape", "equal"), [
    ("i, 0, j", "i, 5, j", "32, 12, 16", True),
    ("i, 0, j", "i, 1, j", "32, 12, 17", False),
    ("12*i + 1, 0, j", "12*i + 7, 0, j", "384, 1, 16", False),
])
def test_what_counts_of_where_an_operand_of_a_product_begins(first: str, second: str, shape: str, equal: bool) -> None:
    """Its place in a vector; and how far a tile of it may reach."""
    forms = [structure_but_starts(step(s, shape), {}) for s in (first, second)]
    assert (forms[0] == forms[1]) is equal


@pytest.mark.parametrize(("first", "second", "equal"), [
    ("12*i + 1, j", "12*i + 7, j", True),
    ("12*i, j + 4", "12*i, j + 8", True),
    ("12*i, j + 4", "12*i, j + 6", False),
    ("12*i + 1, j", "11*i + 1, j", False),
])
def test_what_counts_of_where_a_map_begins(first: str, second: str, equal: bool) -> None:
    """Its place in a vector alone, where elements are read one by one."""
    def added(start: str) -> Graph:
        return parse_graph("graph @g(%y: f32[96, 32], %x: f32[8, 16], %w: f32[16, 16]) -> (f32[8, 16]) { %p: f32[8, 16] = "
                           f"library.matmul (%x, %w) %r: f32[8, 16] = map [i, j] {{ add(%p[i, j], %y[{start}]) }} return %r }}")

    assert (structure_but_starts(added(first), {}) == structure_but_starts(added(second), {})) is equal


def test_distances_between_reads_count() -> None:
    """Two reads of one element and two of different ones are no equal patterns."""
    def pair(a: int, b: int) -> Graph:
        return parse_graph(f"graph @g(%x: f32[8, 16], %w: f32[16, 16]) -> (f32[16, 16]) {{ "
                           f"%c: f32[16, 16] = map [i, j] {{ add(%x[{a}, j], %x[{b}, i]) }} %p: f32[16, 16] = library.matmul (%c, %w) "
                           "return %p }")

    assert structure_but_starts(pair(0, 1), {}) == structure_but_starts(pair(4, 5), {})
    assert structure_but_starts(pair(0, 1), {}) != structure_but_starts(pair(4, 4), {})
