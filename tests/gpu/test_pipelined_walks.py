"""Pipelined walks between products on a device: every case of the host's tests, and sizes that fill the device."""
from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.unit.templates.staged.walked.bounded_cases import BOUNDED_CASES, summarised
from tests.unit.templates.staged.walked.dropped_cases import DROPPED
from tests.unit.templates.staged.walked.paged_cases import PAGED_CASES
from tests.unit.templates.staged.walked.part_cases import PART_CASES
from tests.unit.templates.staged.walked.walk_cases import CASES, drawn
from tests.unit.templates.stitched_cases import in_double
from tests.unit.templates.stitched_graphs import attention
from tilefuse.base.options import Options
from tilefuse.domain.tile import TileProgram
from tilefuse.driver.compile import present_device
from tilefuse.driver.measure.lone_kernel import lone_program
from tilefuse.ir.dtype import BF16, F16, DType
from tilefuse.ir.interpret import interpret
from tilefuse.runtime.calls.library import TORCH_DTYPES
from tilefuse.templates.staged.walked.record import PipelinedWalk
from tilefuse.templates.staged.walked.template import schedule_walk


def has_warpgroup_products() -> bool:
    """Whether the device at hand multiplies by warpgroups."""
    return torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)


pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not has_warpgroup_products(), reason="needs a CUDA device of compute capability 9.0")]


def on_device(program: TileProgram, values: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """The results, equal from call to call."""
    device, place = present_device()
    lone = lone_program(program, device, place, Options.from_environment())
    results = [tuple(r.clone() for r in lone(*(values[n] for n in lone.spec.inputs))) for _ in range(3)]
    for again in results[1:]:
        assert all(torch.equal(torch.nan_to_num(a), torch.nan_to_num(b)) for a, b in zip(results[0], again, strict=True))
    return results[0]


KINDS = {"few rows": PART_CASES, "pages": PAGED_CASES, "dropped": DROPPED}
ALL_CASES = CASES | {f"{kind}: {name}": case for kind, cases in KINDS.items() for name, case in cases.items()}


@pytest.mark.parametrize("name", ALL_CASES)
def test_kernel_computes_the_walk(name: str) -> None:
    """Every element of every result, against f64."""
    case = ALL_CASES[name]
    program = case.program()
    graph = program.graph
    inputs = drawn(case, graph)
    values = {v.name: torch.from_numpy(inputs[v.name].astype(np.float64)).to("cuda", TORCH_DTYPES[v.type.dtype.name]) for v in graph.inputs}
    wide = {n: (v.double() if v.is_floating_point() else v).cpu().numpy() for n, v in values.items()}
    for got, value in zip(on_device(program, values), interpret(in_double(graph), wide), strict=True):
        found, expected = got.double().cpu().numpy().ravel(), np.asarray(value).ravel()
        assert (np.isnan(found) == np.isnan(expected)).all()
        infinite = np.isinf(expected)
        assert (found[infinite] == expected[infinite]).all()
        found, expected = found[~infinite], expected[~infinite]
        assert np.nanmax(np.abs(found - expected), initial=0.0) <= case.tolerance * max(np.nanmax(np.abs(expected), initial=0.0), 1.0)


@pytest.mark.parametrize("name", BOUNDED_CASES)
def test_walks_that_memory_bounds(name: str) -> None:
    """Walks that read summaries of data, beside the definition without bounds in f64."""
    case = BOUNDED_CASES[name]
    program, arrays = case.program(), summarised(case)
    values = {v.name: torch.from_numpy(np.asarray(arrays[v.name])).to("cuda", TORCH_DTYPES[v.type.dtype.name]) for v in program.graph.inputs
              if v.type.dtype != BF16}
    values |= {v.name: torch.from_numpy(arrays[v.name].astype(np.float32)).to("cuda", torch.bfloat16) for v in program.graph.inputs
               if v.type.dtype == BF16}
    (got,) = on_device(program, values)
    definition = case.graphs[0]
    wide = {v.name: (x.double() if (x := values[v.name]).is_floating_point() else x).cpu().numpy() for v in definition.inputs}
    found, expected = got.double().cpu().numpy().ravel(), np.asarray(interpret(in_double(definition), wide)[0]).ravel()
    assert (np.isnan(found) == np.isnan(expected)).all()
    bound = 2.0 ** (-5 if case.variant.dtype == BF16 else -8)
    assert np.nanmax(np.abs(found - expected), initial=0.0) <= bound * max(np.nanmax(np.abs(expected), initial=0.0), 1.0)


@pytest.mark.parametrize(("batch", "length", "width", "dtype", "causal", "choice"), [
    (64, 4096, 64, F16, False, None), (64, 4096, 64, BF16, True, None), (768, 197, 64, F16, False, None), (768, 128, 64, BF16, False, None),
    (16, 2000, 128, BF16, True, None), (5, 777, 80, F16, False, None), (7, 1000, 256, F16, False, None),
    (64, 1024, 64, BF16, True, PipelinedWalk(96, 3, 2, 4, 16, 132)), (64, 1024, 64, F16, False, PipelinedWalk(64, 1, 1, 2, 1, 1024)),
])
def test_more_tiles_than_blocks(batch: int, length: int, width: int, dtype: DType, causal: bool, choice: PipelinedWalk | None) -> None:
    """Blocks take several tiles, whose slots and phases count on; some lead places against f64."""
    device, _ = present_device()
    program = schedule_walk(attention(batch, length, width, dtype, causal=causal), {}, device, choice)
    assert isinstance(program, TileProgram), program
    torch.manual_seed(1)
    q, k, v = (torch.randn(batch, length, width, device="cuda").to(TORCH_DTYPES[dtype.name]) for _ in range(3))
    got, = on_device(program, {"q": q, "k": k, "v": v})
    for place in (0, batch - 1):
        scores = q[place].double() @ k[place].double().T * 0.25
        if causal:
            scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), float("-inf"))
        expected = torch.softmax(scores, -1) @ v[place].double()
        error = (got[place].double() - expected).abs().max() / expected.abs().max().clamp(min=1.0)
        assert error < (2.0**-9 if dtype == F16 else 2.0**-6)
