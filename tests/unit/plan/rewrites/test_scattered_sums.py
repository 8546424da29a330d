"""Scatters into few places: a reduction for each place has their results, and takes their place where atomics crowd."""
from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.unit.passes.device.rewriting import rewritten
from tilefuse.ir.graph import Graph
from tilefuse.ir.interpret import interpret
from tilefuse.ir.scalar import NUMPY_DTYPES
from tilefuse.ir.text import parse_graph
from tilefuse.ir.verify import verify
from tilefuse.plan.rewrites.scattered_sums import ReduceScatters, _places
from tilefuse.target.device import H200

FILL = "%t: {dtype}[{shape}] = map [i, j] {{ {value}:{dtype} }}"


def added(rows: int, table: int, columns: int = 12, monoid: str = "sum", dtype: str = "f32", checked: bool = True, base: str = "") -> Graph:
    """Rows of `columns` added to those of a table that data give. base: the text of a fill; else the table is an input."""
    at = f"in_range(%w[i], {table}:i64)" if checked else "%w[i]"
    shape = f"{table}, {columns}"
    first = FILL.format(dtype=dtype, shape=shape, value=base) if base else ""
    inputs = f"%g: {dtype}[{rows}, {columns}], %w: i64[{rows}]" + ("" if base else f", %t: {dtype}[{shape}]")
    return parse_graph(f"""graph @added({inputs}) -> ({dtype}[{shape}]) {{
      {first}
      %y: {dtype}[{shape}] = scatter.{monoid} over [i < {rows}, j < {columns}] into %t at [{at}, index(j)] {{ %g[i, j] }}
      return %y
    }}""")


def given(graph: Graph, low: int = 0, seed: int = 1) -> dict[str, np.ndarray]:
    """Whole numbers, so that the order of sums does not matter; places from `low` on, as many beyond the table."""
    draw = np.random.default_rng(seed)
    extent = graph.nodes[-1].type.shape[0]
    return {i.name: draw.integers(low, extent - low, i.type.shape) if i.name == "w" else
            draw.integers(-3, 4, i.type.shape).astype(NUMPY_DTYPES[i.type.dtype.name]) for i in graph.inputs}


GRAPHS = {
    "into a table": added(700, 5),
    "into zeros": added(700, 5, base="0.0"),
    "into fives": added(700, 5, base="5.0"),
    "one place": added(90, 1),
    "many places": added(300, 77, 3),
    "columns of one": added(300, 6, 1),
    "maxima": added(300, 9, monoid="max"),
    "minima of integers": added(300, 9, monoid="min", dtype="i32"),
    "products": added(40, 9, monoid="prod", dtype="f64"),
    "counts": added(300, 9, dtype="i64"),
    "two subscripts": parse_graph("""graph @g(%t: f32[3, 7, 4], %g: f32[50, 7, 6], %u: i64[50], %v: i32[50, 6]) -> (f32[3, 7, 4]) {
      %y: f32[3, 7, 4] = scatter.sum over [i < 50, j < 7, k < 6] into %t at [%u[i], index(j), i64(%v[i, k])] { %g[i, j, k] }
      return %y
    }"""),
    "an axis twice": parse_graph("""graph @g(%t: f32[4, 4], %g: f32[4, 6]) -> (f32[4, 4]) {
      %y: f32[4, 4] = scatter.sum over [i < 4, j < 6] into %t at [index(i), index(i)] { %g[i, j] }
      return %y
    }"""),
    "a part of the table": parse_graph("""graph @g(%t: f32[9, 5], %g: f32[60, 3], %w: i64[60]) -> (f32[9, 5]) {
      %y: f32[9, 5] = scatter.sum over [i < 60, j < 3] into %t at [%w[i], index(j)] { %g[i, j] }
      return %y
    }"""),
    "computed updates": parse_graph("""graph @g(%t: f32[4, 5], %g: f32[60, 5], %w: i64[60]) -> (f32[4, 5]) {
      %y: f32[4, 5] = scatter.sum over [i < 60, j < 5] into %t at [%w[i], index(j)] {
        guard(0 <= i + -1*j < 40 ? mul(%g[i, j], 2.0:f32) : 1.0:f32)
      }
      return %y
    }"""),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_both_forms_have_the_results_of_the_scatter(name: str) -> None:
    graph = GRAPHS[name]
    places = _places(graph, graph.node_by_name["y"])
    assert places is not None
    forms = list(places.forms(graph))
    assert len(forms) == (1 if name in ("many places", "a part of the table") else 2)
    arrays = given(graph, low=0)
    if name == "two subscripts":
        arrays |= {"u": np.arange(50) % 3, "v": (np.arange(300).reshape(50, 6) % 4).astype(np.int32)}
    for form in forms:
        assert not verify(form) and not any(n.category == "scatter" for n in form.nodes)
        np.testing.assert_array_equal(interpret(form, arrays)[0], interpret(graph, arrays)[0])


def test_updates_beyond_the_table_change_nothing() -> None:
    """Also those whose places are equal to one of the table in 32 bits."""
    graph = added(60, 5, checked=False)
    arrays = given(graph, low=-3)
    arrays["w"][:4] = [1 << 32, -(1 << 32) + 2, (1 << 63) - 1, -1]
    places = _places(graph, graph.node_by_name["y"])
    assert places is not None
    for form in places.forms(graph):
        np.testing.assert_array_equal(interpret(form, arrays)[0], interpret(graph, arrays)[0])


def test_what_is_not_chosen_has_no_part_in_the_result() -> None:
    """NaN and infinities stay in their places."""
    graph = added(64, 4, columns=3)
    arrays = given(graph)
    arrays["w"][:] = np.arange(64) % 4
    arrays["g"][1::4, 0], arrays["g"][2::4, 1] = np.nan, np.inf
    places = _places(graph, graph.node_by_name["y"])
    assert places is not None
    for form in places.forms(graph):
        result, exact = interpret(form, arrays)[0], interpret(graph, arrays)[0]
        np.testing.assert_array_equal(result, exact)
        assert np.isnan(result[1, 0]) and np.isinf(result[2, 1]) and np.isfinite(result).sum() == 10


@pytest.mark.parametrize(("graph", "is_reduced"), [
    (added(512 * 512, 32), True), (added(1 << 20, 16, 1, dtype="i64", base="0"), True), (added(65536, 8, 64, "max"), True),
    (added(8192, 2, 768, base="0.0"), True), (added(128, 2, 768, base="0.0"), False), (added(65536, 100000, 32), False),
    (added(8192, 30522, 768, base="0.0"), False), (added(512 * 512, 32, monoid="set"), False), (added(1, 1, 1), False)],
    ids=["relative positions", "counts", "maxima", "types of tokens", "of few tokens", "rows of a table", "words", "no sums", "one"])
def test_the_cheaper_form_is_taken(graph: Graph, is_reduced: bool) -> None:
    changed = rewritten(ReduceScatters(), graph, H200)
    assert any(n.category == "scatter" for n in changed.nodes) != is_reduced
    assert is_reduced or changed is graph
    if is_reduced:
        assert not any(n.category == "map" and not n.reads() for n in changed.nodes), "the fill is read by nothing"


def test_a_device_whose_atomics_do_not_crowd_keeps_them() -> None:
    device = replace(H200, line_adds_per_s=0.0, line_requests_per_s=0.0)
    graph = added(512 * 512, 32)
    assert rewritten(ReduceScatters(), graph, device) is graph


def test_subscripts_that_look_up_elements_stay() -> None:
    graph = parse_graph("""graph @g(%t: f32[4, 5], %g: f32[60000, 5], %w: i64[9], %v: i64[60000]) -> (f32[4, 5]) {
      %y: f32[4, 5] = scatter.sum over [i < 60000, j < 5] into %t at [lookup(%w, %v[i]), index(j)] { %g[i, j] }
      return %y
    }""")
    assert rewritten(ReduceScatters(), graph, H200) is graph


@pytest.mark.parametrize("graph", [added(10, 0, checked=False), added(4, (1 << 31) + 5, 1, checked=False)], ids=["no place", "2^31 rows"])
def test_tables_of_no_place_or_of_too_many_stay(graph: Graph) -> None:
    assert _places(graph, graph.node_by_name["y"]) is None
    assert rewritten(ReduceScatters(), graph, H200) is graph
