"""Random graphs side by side: what is packed gives the bits that each graph gives alone, also in checking mode."""
from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from tests.laws.random_graphs import random_graph, random_inputs
from tests.laws.test_executors import tensor
from tests.unit.templates.packed_graphs import renamed
from tilefuse.base.options import Options
from tilefuse.driver.compile import compile_graph
from tilefuse.ir.graph import Graph
from tilefuse.ir.interpret import interpret
from tilefuse.ir.text import print_graph


def together(graphs: list[Graph]) -> Graph:
    """The graphs as one, value names with their number behind."""
    inputs, nodes, results = [], [], []
    for n, graph in enumerate(graphs):
        names = {v: f"{v}_of_{n}" for v in graph.type_by_name}
        inputs += [replace(i, name=names[i.name]) for i in graph.inputs]
        nodes += [renamed(node, names) for node in graph.nodes]
        results += [names[r] for r in graph.results]
    return Graph("together", tuple(inputs), tuple(nodes), tuple(results))


@pytest.mark.parametrize("seed", range(10))
def test_graphs_side_by_side_give_what_each_gives(seed: int) -> None:
    """Twice the same graph is in it, so that some parts have one body."""
    draw = Random(seed)
    graphs = [random_graph(draw) for _ in range(3)]
    graphs.append(graphs[0])
    whole = together(graphs)
    inputs = random_inputs(whole, seed)
    program = compile_graph(whole, constants={}, device="host", options=Options().with_overrides(check=seed % 2 == 0))
    found = program(*(tensor(inputs[i.name]) for i in whole.inputs))
    for a, b in zip(found, interpret(whole, inputs), strict=True):
        np.testing.assert_array_equal(a.double().numpy(), b.astype(np.float64), err_msg=f"seed {seed}\n{print_graph(whole)}")


def test_some_of_these_graphs_are_packed() -> None:
    """Else the law above would say nothing of packing."""
    draw = Random(0)
    graphs = [random_graph(draw) for _ in range(3)]
    program = compile_graph(together([*graphs, graphs[0]]), constants={}, device="host", options=Options())
    assert any(k.one_structure for k in program.kernels)
