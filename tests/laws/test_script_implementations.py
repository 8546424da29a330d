"""Law: every program that the search makes of a sequence is within the rounding bound of its value, at sizes that no tile divides."""
from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from benchmarks.blas import SEQUENCES, Linear
from tests.laws.script_bounds import Bounded, drawn, reference
from tilefuse import blas
from tilefuse.driver.compile import present_device
from tilefuse.driver.measure.measure import build_together
from tilefuse.runtime.program import Program

SIZES = (37, 66)


def check(sequence: Linear, dtype: str, extents: tuple[int, int], ranks: range, seed: int) -> None:
    """The programs of some ranks in the order of predicted times against float64."""
    case = Bounded(sequence, dtype, extents)
    device, place = present_device("host")
    function = blas.compile(case.script, name=sequence.name)
    search = function.search(function.graph_for(case.shapes), device)
    arguments = drawn(case, seed)
    wanted, bounds = reference(case, arguments)
    found = itertools.islice(search.combinations(6), ranks.start, ranks.stop, ranks.step)
    choices = [search.build(combination) for combination in found]
    build_together((k for c in choices for k in c.spec.kernels), search.options)
    for choice in choices:
        program = Program(choice.spec, choice.constants, place, search.options)
        results = program(*(torch.from_numpy(arguments[n].copy()) for n in choice.spec.inputs))
        for name, got, want, bound in zip(function.outputs, results, wanted, bounds, strict=True):
            assert (abs(got.numpy().astype(np.float64) - want) <= bound).all(), f"seed {seed}: {name} by {choice.how}"


@pytest.mark.parametrize("dtype", ["f32", "f64"])
@pytest.mark.parametrize("sequence", SEQUENCES, ids=lambda s: s.name)
def test_first_programs_are_within_the_bound(sequence: Linear, dtype: str) -> None:
    """The first, and two further ones."""
    check(sequence, dtype, SIZES, range(0, 36, 12), seed=11)


@pytest.mark.parametrize("extents", [(1, 1), (1, 70), (65, 1), (0, 5), (5, 0)])
@pytest.mark.parametrize("sequence", [s for s in SEQUENCES if s.name in ("gemver", "bicgk", "axpydot")], ids=lambda s: s.name)
def test_one_word_and_none(sequence: Linear, extents: tuple[int, int]) -> None:
    """Sums over nothing are zero, results without words are empty."""
    check(sequence, "f64", extents, range(0, 14, 7), seed=12)


@pytest.mark.slow
@pytest.mark.parametrize("sequence", SEQUENCES, ids=lambda s: s.name)
def test_programs_down_the_list_are_within_the_bound(sequence: Linear) -> None:
    """Forty of them."""
    check(sequence, "f32", SIZES, range(40), seed=13)
