"""Views: which nodes need no kernel, and with which offset and strides."""
from __future__ import annotations

import numpy as np
import pytest

from tilefuse.ir.text import parse_graph
from tilefuse.plan.rewrites.views import find_views

HEAD = "graph @g(%x: f32[6, 8], const %c: f32[6, 8], %w: f32[6, 6]) -> "


def views_of(nodes: str, results: str = "%r", types: str = "f32[6, 8]") -> dict[str, tuple[str, int, tuple[int, ...]]]:
    graph = parse_graph(f"{HEAD}({types}) {{ {nodes} return {results} }}")
    return {v.value: (v.base, v.offset, v.strides) for v in find_views(graph, {}, {}).values()}


@pytest.mark.parametrize(("node", "expected"), [
    ("%v: f32[8, 6] = map [i, j] { %x[j, i] }", (0, (1, 8))),
    ("%v: f32[3, 8] = map [i, j] { %x[2*i + 1, j] }", (8, (16, 1))),
    ("%v: f32[2, 3, 8] = map [i, j, k] { %x[3*i + j, k] }", (0, (24, 8, 1))),
    ("%v: f32[6, 5, 8] = map [i, k, j] { %x[i, j] }", (0, (8, 0, 1))),
    ("%v: f32[48] = map [i] { %x[(i // 8), (i % 8)] }", (0, (1,))),
    ("%v: f32[6, 8] = map [i, j] { %x[i, ((j + 3) % 8)] }", None),
    ("%v: f32[6, 8] = map [i, j] { %x[i, -1*j + 7] }", None),
    ("%v: f32[6, 8] = map [i, j] { neg(%x[i, j]) }", None),
])
def test_a_strided_read_for_a_library_call_is_a_view(node: str, expected: tuple[int, tuple[int, ...]] | None) -> None:
    found = views_of(f"{node} %r: f32[6, 8] = library.aten.foo.default (%v, %w)")
    assert found.get("v") == (None if expected is None else ("x", *expected))
    if expected is not None:
        data = np.arange(48.0).reshape(6, 8)
        shape = parse_graph(f"{HEAD}(f32[6, 8]) {{ {node} return %x }}").type_of("v").shape
        seen = np.lib.stride_tricks.as_strided(data.ravel()[expected[0]:], shape, [8 * s for s in expected[1]])
        assert seen.shape == shape


def test_chains_lead_to_the_value_that_has_memory() -> None:
    found = views_of("%a: f32[8, 6] = map [i, j] { %x[j, i] } %b: f32[4, 6] = map [i, j] { %a[i + 4, j] } "
                     "%r: f32[6, 8] = library.aten.foo.default (%b, %w)")
    assert found == {"a": ("x", 0, (1, 8)), "b": ("x", 4, (1, 8))}


def test_a_value_that_a_kernel_reads_is_no_view() -> None:
    found = views_of("%v: f32[8, 6] = map [i, j] { %x[j, i] } %p: f32[6, 8] = library.aten.foo.default (%v, %w) "
                     "%r: f32[6, 8] = map [i, j] { add(%p[i, j], %v[j, i]) }")
    assert found == {}


def test_results_may_be_views_of_inputs_but_not_of_weights_nor_overlap() -> None:
    assert views_of("%r: f32[8, 6] = map [i, j] { %x[j, i] }", types="f32[8, 6]") == {"r": ("x", 0, (1, 8))}
    assert views_of("%r: f32[8, 6] = map [i, j] { %c[j, i] }", types="f32[8, 6]") == {}
    assert views_of("%r: f32[6, 5, 8] = map [i, k, j] { %x[i, j] }", types="f32[6, 5, 8]") == {}


def test_a_result_in_another_layout_than_wanted_is_no_view() -> None:
    graph = parse_graph(f"{HEAD}(f32[8, 6]) {{ %r: f32[8, 6] = map [i, j] {{ %x[j, i] }} return %r }}")
    assert find_views(graph, {}, {"r": (6, 1)}) == {}
    assert set(find_views(graph, {}, {"r": (1, 8)})) == {"r"}


def test_a_reshape_of_a_value_that_is_stored_after_all_is_a_view_of_it() -> None:
    nodes = ("%e: f32[6, 4, 8] = map [i, k, j] { %x[i, j] } %v: f32[24, 8] = map [i, j] { %e[(i // 4), (i % 4), j] } "
             "%t: f32[8, 24] = map [i, j] { %v[j, i] } %r: f32[24, 24] = library.aten.foo.default (%v, %t)")
    found = views_of(nodes, "%e, %r", "f32[6, 4, 8], f32[24, 24]")
    assert found == {"v": ("e", 0, (8, 1)), "t": ("e", 0, (1, 8))}, "a result must not overlap itself, and so has memory"


def test_a_value_whose_own_memory_a_view_needs_is_no_view() -> None:
    """A result that turns the input, and the operand that reshapes it: no strides give the operand in the input's memory."""
    nodes = ("%v: f32[8, 6] = map [i, j] { %x[j, i] } %u: f32[4, 12] = map [i, j] { %v[2*i + (j // 6), (j % 6)] } "
             "%r: f32[4, 4] = library.aten.foo.default (%u, %w)")
    assert views_of(nodes, "%v, %r", "f32[8, 6], f32[4, 4]") == {"u": ("v", 0, (12, 1))}
