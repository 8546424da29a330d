"""Passes of one's own inside `ta.compile`: they see the traced graph, change it, and leave attributes."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilefuse
import tilefuse.array as ta
import tilefuse.driver.kernel_passes  # registers fusion
from tilefuse.base.errors import OptionError, UserError
from tilefuse.driver.graph_passes import AttributedGraph
from tilefuse.ir.scalar import Call, transform
from tilefuse.passes import PASSES


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    """The passes of these tests, gone afterwards."""
    before = dict(PASSES)

    @tilefuse.graph_pass("sine-to-cosine")
    def sine_to_cosine(graph: AttributedGraph) -> AttributedGraph:
        def turned(e: Any) -> Any:
            return Call("cos", e.args) if isinstance(e, Call) and e.fn == "sin" else e

        nodes = tuple(n if n.body is None else replace(n, body=transform(n.body, turned)) for n in graph.graph.nodes)
        return graph.with_graph(replace(graph.graph, nodes=nodes))

    @tilefuse.graph_pass("count-nodes", provides=("num_nodes",))
    def count_nodes(graph: AttributedGraph) -> AttributedGraph:
        return graph.with_attributes(num_nodes=len(graph.graph.nodes))

    @tilefuse.graph_pass("looks-at-kernels", depends="kernel")
    def looks_at_kernels(graph: AttributedGraph) -> AttributedGraph:
        return graph

    @tilefuse.graph_pass("drop-result")
    def drop_result(graph: AttributedGraph) -> AttributedGraph:
        return graph.with_graph(replace(graph.graph, results=graph.graph.results[:-1]))

    yield
    PASSES.clear()
    PASSES.update(before)


def two(x: Any, y: Any) -> Any:
    return ta.sin(x) + y, ta.sin(y)


X, Y = np.linspace(0, 1, 5), np.linspace(2, 3, 5)


def test_passes_change_what_is_computed_and_leave_attributes() -> None:
    fn = ta.compile(two, passes=["sine-to-cosine", "count-nodes", "remove-dead-nodes"])
    for _ in range(2):
        a, b = fn(ta.asarray(X), ta.asarray(Y))
        np.testing.assert_allclose(a.numpy(), np.cos(X) + Y, rtol=1e-14)
        np.testing.assert_allclose(b.numpy(), np.cos(Y), rtol=1e-14)
    assert len(fn.programs) == 1 and [m["num_nodes"] for m in fn.attributes] == [len(fn.lower(ta.asarray(X), ta.asarray(Y)).nodes)]
    plain, _ = ta.compile(two)(ta.asarray(X), ta.asarray(Y))
    np.testing.assert_allclose(plain.numpy(), np.sin(X) + Y, rtol=1e-14)


def test_a_text_is_still_the_compilers_own_pipeline() -> None:
    fn = ta.compile(two, passes="decompose,inline-views,remove-dead-nodes")
    np.testing.assert_allclose(fn(ta.asarray(X), ta.asarray(Y))[1].numpy(), np.sin(Y), rtol=1e-14)
    assert fn.attributes == ({},)


@pytest.mark.parametrize(("passes", "error", "message"), [
    (["drop-result"], UserError, "other inputs or results"), (["no-such-pass"], OptionError, "unknown pass 'no-such-pass'"),
    (["fusion"], UserError, "makes kernels by itself"), (["count-nodes,fusion"], UserError, "makes kernels by itself"),
    (["looks-at-kernels"], UserError, "makes kernels by itself")])
def test_what_does_not_fit_is_told(passes: list[str], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ta.compile(two, passes=passes)(ta.asarray(X), ta.asarray(Y))
