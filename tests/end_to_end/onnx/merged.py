"""Many small graphs as one, so that the host executor compiles them in one go: a C++ compiler start costs more than most of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilefuse.driver.compile import compile_graph
from tilefuse.frontends.imported import Imported
from tilefuse.ir.graph import Graph
from tilefuse.ir.rewrite import rename_values
from tilefuse.onnx_backend import as_array, as_tensor


@dataclass(frozen=True)
class Part:
    """One graph inside a merged one: its data, and which of the merged results are its own."""

    arguments: Mapping[str, np.ndarray]
    first_result: int
    num_results: int


def merged(graphs: Sequence[Imported], arguments: Sequence[Mapping[str, np.ndarray]]) -> tuple[Graph, dict[str, np.ndarray], list[Part]]:
    """The graphs side by side under names of their own, the data of all constants, and the parts."""
    inputs, nodes, results, constants, parts = [], [], [], {}, []
    for n, (imported, given) in enumerate(zip(graphs, arguments, strict=True)):
        graph = imported.graph
        names = {value: f"p{n}_{value}" for value in graph.type_by_name}
        graph = rename_values(graph, names)
        parts.append(Part({names[k]: v for k, v in given.items()}, len(results), len(graph.results)))
        constants |= {names[k]: np.asarray(v) for k, v in imported.constants.items()}
        inputs += graph.inputs
        nodes += graph.nodes
        results += graph.results
    whole = replace(graphs[0].graph, name="merged", inputs=tuple(inputs), nodes=tuple(nodes), results=tuple(results), updates=())
    return whole, constants, parts


def run_on_host(graphs: Sequence[Imported], arguments: Sequence[Mapping[str, np.ndarray]]) -> list[list[np.ndarray]]:
    """Results of every graph on its arguments (by input name), from one compiled program."""
    whole, constants, parts = merged(graphs, arguments)
    program = compile_graph(whole, constants=constants, device="host")
    data = {name: array for part in parts for name, array in part.arguments.items()}
    outcome = program(*(as_tensor(data[i.name]) for i in whole.inputs if not i.constant))
    arrays = [as_array(t) for t in outcome]
    return [arrays[p.first_result : p.first_result + p.num_results] for p in parts]
