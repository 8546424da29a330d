"""Random graphs: the interpreter and the compiled program on the host agree, bit for bit where the graph is exact."""
from __future__ import annotations

from random import Random

import numpy as np
import pytest
import torch

from tests.laws.random_graphs import random_graph, random_inputs
from tilefuse.base.options import Options
from tilefuse.driver.compile import compile_graph
from tilefuse.driver.lowering import in_place_reuse, lower
from tilefuse.ir.graph import Graph
from tilefuse.ir.interpret import interpret
from tilefuse.ir.text import print_graph

BFLOAT16 = "bfloat16"


def tensor(array: np.ndarray) -> torch.Tensor:
    """The array as a tensor of its own; numpy has no bf16 that torch would take."""
    if array.dtype.name == BFLOAT16:
        return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(array.copy())


def run_both(graph: Graph, seed: int, options: Options | None = None) -> list[tuple[np.ndarray, np.ndarray]]:
    """Pairs of results, compiled and interpreted, in f64 (exact for every dtype but large i64, which do not occur)."""
    inputs = random_inputs(graph, seed)
    program = compile_graph(graph, constants={}, device="host", options=options)
    found = program(*(tensor(inputs[i.name]) for i in graph.inputs))
    return [(a.double().numpy(), b.astype(np.float64)) for a, b in zip(found, interpret(graph, inputs), strict=True)]


@pytest.mark.parametrize("seed", range(24))
def test_exact_graphs_agree_bit_for_bit(seed: int) -> None:
    graph = random_graph(Random(seed))
    for found, expected in run_both(graph, seed):
        np.testing.assert_array_equal(found, expected, err_msg=f"seed {seed}\n{print_graph(graph)}")


@pytest.mark.parametrize("seed", range(1000, 1012))
def test_smooth_graphs_agree_within_rounding(seed: int) -> None:
    """Every node is clamped to +-6 and has at most a few dozen roundings of f32 behind it, each amplified at most 6 * 6 times."""
    graph = random_graph(Random(seed), exact=False)
    bound = 36 * 64 * float(np.finfo(np.float32).eps)
    for found, expected in run_both(graph, seed):
        np.testing.assert_allclose(found, expected, rtol=bound, atol=6 * bound, err_msg=f"seed {seed}\n{print_graph(graph)}")


@pytest.mark.parametrize("seed", [5014, 5043])
def test_values_written_over_every_value_that_may_be_agree(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel a node; not only where the peak falls, but wherever a value dies and its reader may write there: four and six times."""
    monkeypatch.setattr(in_place_reuse, "LEAST_BYTES", -1 << 60)
    graph, found = random_graph(Random(seed), num_nodes=10), []
    real = in_place_reuse.reused_storage
    monkeypatch.setattr(lower, "reused_storage", lambda *given, **named: found.append(real(*given, **named)) or found[-1])
    options = Options(fuse=False, check=True, plan_cache=False)
    for result, expected in run_both(graph, seed, options):
        np.testing.assert_array_equal(result, expected, err_msg=f"seed {seed}\n{print_graph(graph)}")
    assert len(found[0]) >= 4
