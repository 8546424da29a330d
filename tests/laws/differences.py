"""Gradients by central differences through the reference interpreter, in f64: what autodiff is compared with."""
from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tilefuse.ir.graph import Graph
from tilefuse.ir.interpret import interpret
from tilefuse.ir.verify import check
from tilefuse.passes.autodiff.autodiff import gradient_graph

STEP = 1e-6


def by_differences(graph: Graph, of: int, name: str, inputs: Mapping[str, np.ndarray], step: float = STEP) -> np.ndarray:
    """The gradient of the scalar result number `of`, element by element."""
    found = np.zeros(inputs[name].shape)
    for at in np.ndindex(*found.shape):
        ends = []
        for sign in (1, -1):
            moved = inputs[name].copy()
            moved[at] += sign * step
            ends.append(float(interpret(graph, {**inputs, name: moved})[of]))
        found[at] = (ends[0] - ends[1]) / (2 * step)
    return found


def agree_with_differences(
    graph: Graph, wrt: Sequence[str], inputs: Mapping[str, np.ndarray], tolerance: float = 2e-6, step: float = STEP
) -> Graph:
    """Checks the gradients of a graph's first result, a scalar; gives the gradient graph, which verifies."""
    made = gradient_graph(graph, graph.results[0], list(wrt))
    check(made, "gradient_graph")
    for name, found in zip(wrt, interpret(made, inputs), strict=True):
        expected = by_differences(graph, 0, name, inputs, step)
        scale = max(float(np.max(np.abs(expected), initial=0.0)), 1.0)
        np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * scale, err_msg=f"gradient of %{name}")
    return made
