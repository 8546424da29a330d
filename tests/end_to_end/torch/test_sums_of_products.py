"""Sums of products that users write by hand or as einsum, with their gradients, against double precision; which become library calls."""

from __future__ import annotations

import pytest
import torch

import tilefuse
from tests.end_to_end.torch.strict import strict
from tests.end_to_end.torch.sum_cases import CASES, SumCase, check
from tilefuse.runtime.spec import LibraryStep

pytestmark = pytest.mark.usefixtures("fresh")
# Sizes at which the cases stay kernels, and at which most become calls of the library.
SMALL, LARGE = 6, 72


BY_CASE = pytest.mark.parametrize("case", CASES, ids=lambda c: c.name.replace(" ", "-"))


@BY_CASE
def test_large_sums_and_their_gradients(case: SumCase) -> None:
    check(case, LARGE, torch.float32, "cpu", torch.compile(case.function, backend=strict))


def test_small_sums_and_their_gradients() -> None:
    """All in one program: starting a compiler costs more than most of the cases."""
    def all_cases(*flat: torch.Tensor) -> torch.Tensor:
        rest = iter(flat)
        results = [case.function(*(next(rest) for _ in case.shapes)) for case in CASES]
        return torch.cat([r.flatten() for r in results])

    joined = SumCase("all", all_cases, tuple(shape for case in CASES for shape in case.shapes))
    check(joined, SMALL, torch.float32, "cpu", torch.compile(all_cases, backend=strict))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", CASES[:3], ids=lambda c: c.name.replace(" ", "-"))
def test_sums_of_16_bit_products(case: SumCase, dtype: torch.dtype) -> None:
    check(case, LARGE, dtype, "cpu", torch.compile(case.function, backend=strict))


def calls(case: SumCase, size: int) -> int:
    """Library calls of a case's program, which explains its choice."""
    inputs = [x.detach() for x in case.inputs(size, torch.float32, "cpu")]
    program = tilefuse.compile(case.function, inputs)
    num_calls = sum(isinstance(s, LibraryStep) for s in program.spec.steps)
    taken = "planned as a library product" if num_calls else "summed by a kernel"
    assert f" inner, {taken}" in program.explain() or f" batches, {taken}" in program.explain()
    return num_calls


def test_large_sums_become_calls_and_small_ones_stay_kernels() -> None:
    assert [calls(case, LARGE) for case in CASES[:5]] == [1] * 5
    assert [calls(case, SMALL) for case in CASES[:5]] == [0] * 5
