"""Products of one row: the vector that a block prepares once for all its rows, or reads as it is, on a device."""
from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.unit.templates.composed_cases import BY_HAND, Case
from tilefuse.base.options import Options
from tilefuse.driver.compile import present_device
from tilefuse.driver.measure.lone_kernel import lone_program
from tilefuse.ir.interpret import interpret
from tilefuse.runtime.calls.library import TORCH_DTYPES
from tilefuse.target.device import H200

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

PREPARED = {name: Case(name, pattern, {}, H200, wanted) for name, pattern, wanted in BY_HAND if name.startswith("shared-")}


@pytest.mark.parametrize("name", PREPARED)
def test_rows_read_what_their_block_prepared(name: str) -> None:
    """Results are equal from call to call, and within the bounds of rounding."""
    case = PREPARED[name]
    program = case.program()
    device, place = present_device()
    lone = lone_program(program, device, place, Options.from_environment())
    arrays = case.pattern.inputs(np.random.default_rng(5))
    given = []
    for value in lone.spec.inputs:
        kind = TORCH_DTYPES[program.graph.type_of(value).dtype.name]
        given.append(torch.from_numpy(np.asarray(arrays[value], dtype=np.float64)).to(kind).cuda())
    results = [lone(*given) for _ in range(3)]
    first, *others = [(r[0] if isinstance(r, (tuple, list)) else r).double().cpu().numpy() for r in results]
    assert all(np.array_equal(first, other) for other in others)
    in_double = {v: t.double().cpu().numpy() for v, t in zip(lone.spec.inputs, given, strict=True)}
    assert case.pattern.bounds is not None
    (bound,), (wanted,) = case.pattern.bounds(in_double), interpret(program.graph, arrays)
    assert (np.abs(first - np.asarray(wanted, dtype=np.float64)) <= 2 * bound).all()
