"""Laws of scripts: however calls are fused, the results are those of one call after another."""
from __future__ import annotations

import numpy as np
import pytest

import tilefuse.blas
from tests.laws.random_scripts import RandomScript, random_script
from tilefuse.ir.interpret import interpret
from tilefuse.scripts.language.elementary import CallGraph
from tilefuse.scripts.language.lower import ArgumentShape, call_graph, resolve
from tilefuse.scripts.language.meaning import graph_of_calls
from tilefuse.scripts.language.routine_library import read_library
from tilefuse.scripts.language.syntax import parse_script


def lowered(script: RandomScript) -> CallGraph:
    """The call graph for the script's own arguments."""
    shapes = {n: ArgumentShape(v.shape) for n, v in script.arguments.items()}
    return call_graph(resolve(parse_script(script.text), read_library()), shapes)


def one_after_another(script: RandomScript) -> list[np.ndarray]:
    """The results of the calls alone, in order, each by its meaning."""
    graph = lowered(script)
    values = dict(script.arguments)
    for number, call in enumerate(graph.calls):
        alone = graph_of_calls(graph, (number,)).graph
        found = interpret(alone, {i.name: values[i.name] for i in alone.inputs})
        values |= dict(zip(alone.results, found, strict=True))
        assert set(call.results) >= set(alone.results)
    return [values[name] for name in graph.outputs]


@pytest.mark.parametrize("seed", range(60))
def test_one_graph_of_all_calls_means_the_same(seed: int) -> None:
    """The whole script as one graph, by the interpreter. Exact: all values are integers."""
    script = random_script(seed)
    whole = graph_of_calls(lowered(script)).graph
    found = interpret(whole, {i.name: script.arguments[i.name] for i in whole.inputs})
    for name, got, wanted in zip(whole.results, found, one_after_another(script), strict=True):
        np.testing.assert_array_equal(got, wanted, err_msg=f"seed {seed}, {name} of\n{script.text}")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 108))
def test_compiled_scripts_compute_the_same(seed: int) -> None:
    """The kernels that are chosen, on the host executor. Exact: all values are integers."""
    script = random_script(seed)
    compiled = tilefuse.blas.compile(script.text, device="host")
    found = compiled(*(script.arguments[n] for n in compiled.inputs))
    for got, wanted in zip(found if isinstance(found, tuple) else (found,), one_after_another(script), strict=True):
        np.testing.assert_array_equal(got, wanted, err_msg=f"seed {seed}:\n{script.text}")
