"""Random array programs: compiled kernels on the host executor compute what the interpreter does, every value that was made included."""
from __future__ import annotations

import numpy as np
import pytest

import tilefuse.array as ta
from tests.laws.random_arrays import Maker
from tests.unit.arrays.array_values import value
from tilefuse.arrays.graph import graph_of
from tilefuse.ir.text import print_graph


def differences(seed: int, steps: int, **options: object) -> list[str]:
    """Differences in the program of a seed; empty when nothing does."""
    maker = Maker(seed, ((4, 6), (3, 5, 8), (2, 33), (1, 7))[seed % 4])
    for _ in range(steps):
        maker.step()
    wanted = [value(x) for x in maker.results]
    text = print_graph(graph_of(maker.results)[0])
    ta.evaluate(*maker.results, **options)
    wrong = [n for n, (x, w) in enumerate(zip(maker.results, wanted, strict=True)) if not np.array_equal(x.numpy(), w)]
    return [f"seed {seed}, result {n} of\n{text}" for n in wrong]


@pytest.mark.parametrize("seed", range(10))
def test_compiled_programs_compute_what_the_interpreter_does(seed: int) -> None:
    """Whole numbers: bit for bit."""
    assert differences(seed, 10) == []
