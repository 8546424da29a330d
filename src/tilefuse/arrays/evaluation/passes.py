"""Passes over the graph of arrays: its leaves are remembered, so that the result can be called without arguments."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilefuse.arrays.array import Array
from tilefuse.arrays.graph import graph_of
from tilefuse.base.errors import UserError
from tilefuse.driver import graph_passes
from tilefuse.driver.graph_passes import AttributedGraph, graph_for
from tilefuse.ir.graph import Graph


def apply_passes(given: Any, passes: Sequence[str] | str, *, constants: Mapping[str, object] | None = None, device: Any = None,
                 **options: Any) -> AttributedGraph:
    """The graph after passes, as `driver.graph_passes.apply_passes`, also of one or several arrays.

    Raises: UserError for anything but a graph or an array; errors of the passes.
    """
    if isinstance(given, Graph | AttributedGraph):
        return graph_passes.apply_passes(given, passes, constants=constants, device=device, **options)
    arrays = [given] if isinstance(given, Array) else list(given) if isinstance(given, list | tuple) else []
    if not arrays or not all(isinstance(a, Array) for a in arrays):
        raise UserError(f"apply_passes takes a graph or arrays, not a {type(given).__name__}",
                        hint="tilefuse.ir.text.parse_graph reads a graph; arrays are made by tilefuse.array")
    graph, leaves = graph_of(arrays)
    return graph_passes.apply_passes(graph_for(graph, constants, arrays[0].device if device is None else device, options, leaves), passes)
