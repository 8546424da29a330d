"""Gradients of attention on a device: every case of the host's tests, sizes that fill the device, and torch's calls by the option."""
from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import torch

from tests.gpu.test_pipelined_walks import has_warpgroup_products, on_device
from tests.unit.templates.staged.recomputed.back_graphs import Gradient
from tests.unit.templates.staged.recomputed.test_bounded_gradients import CASES as BOUNDED
from tests.unit.templates.staged.recomputed.test_bounded_gradients import parted, scheduled
from tests.unit.templates.staged.recomputed.test_walked_back import CASES
from tilefuse.domain.tile import TileProgram
from tilefuse.driver import torch_backend
from tilefuse.driver.compile import present_device
from tilefuse.ir.dtype import BF16, F16
from tilefuse.ir.interpret import interpret
from tilefuse.runtime.calls.library import TORCH_DTYPES
from tilefuse.templates.staged.recomputed.record import WalkedBack
from tilefuse.templates.staged.recomputed.template import schedule_back

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not has_warpgroup_products(), reason="needs a CUDA device of compute capability 9.0")]
A = torch.ops.aten


def check_results(of: Gradient, program: TileProgram, inputs: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> None:
    """The kernel's gradients of these inputs, every element against f64."""
    values = {v.name: torch.from_numpy(inputs[v.name].astype(np.float64)).to("cuda", TORCH_DTYPES[v.type.dtype.name])
              for v in program.graph.inputs}
    for got, name in zip(on_device(program, values), of.names, strict=True):
        error = np.abs(got.double().cpu().numpy().reshape(expected[name].shape) - expected[name]).max()
        assert error <= (2.0**-9 if of.dtype == F16 else 2.0**-6) * max(np.abs(expected[name]).max(), 1.0)


def check_gradient(of: Gradient, choice: WalkedBack | None) -> None:
    """Every element against f64, equal from call to call."""
    device, _ = present_device()
    program = schedule_back(of.graph(), {}, device, choice)
    assert isinstance(program, TileProgram), program
    inputs, expected = of.drawn(3)
    check_results(of, program, inputs, expected)


@pytest.mark.parametrize("name", CASES)
def test_kernel_computes_the_gradients(name: str) -> None:
    """The tiles of the host's tests."""
    check_gradient(*CASES[name])


@pytest.mark.parametrize("of", [
    Gradient(heads=64, rows=512, keys=512, inner=64), Gradient("queries", heads=64, rows=512, keys=512, inner=64),
    Gradient(scores=("causal",), heads=40, rows=700, keys=700, inner=128, dtype=BF16),
    Gradient("queries", ("causal",), heads=40, rows=700, keys=700, inner=128, dtype=BF16),
    Gradient(heads=200, rows=197, keys=197, inner=64), Gradient("queries", ("window", "causal"), heads=12, rows=1500, keys=1500, inner=80),
], ids=lambda of: f"{of.of} {of.heads} x {of.rows} x {of.inner} {' '.join(of.scores)}")
def test_more_tiles_than_blocks(of: Gradient) -> None:
    """Blocks take several tiles, whose slots and phases count on; the tile is the cheapest."""
    check_gradient(of, None)


@pytest.mark.parametrize("case", [*BOUNDED.values(), *((Gradient(of, ("documents", "causal"), heads=40, rows=1000, keys=1000, inner=inner,
                                                                dtype=BF16), None) for of in ("keys", "queries") for inner in (64, 128))],
                         ids=lambda case: f"{case[0].of} {case[0].rows} x {case[0].inner} {' '.join(case[0].scores)}")
def test_walks_that_memory_bounds(case: tuple[Gradient, WalkedBack | None]) -> None:
    """Masks of documents and masks in memory, whose summaries bound the walks of rows and of columns."""
    of, choice = case
    program, (inputs, expected), summaries = scheduled(of, choice), of.drawn(3), parted(of)[0]
    found = interpret(summaries, {v.name: inputs[v.name] for v in summaries.inputs})
    inputs |= dict(zip(summaries.results, map(np.asarray, found), strict=True))
    check_results(of, program, inputs, expected)


@pytest.mark.parametrize(("library", "causal", "width"), [("flash", True, 64), ("cudnn", False, 128), ("efficient", True, 64)])
def test_calls_of_torch_by_the_option(library: str, causal: bool, width: int) -> None:
    """The library's gradients of the same call, up to rounding."""
    torch.manual_seed(1)
    q, k, v, g = (torch.randn(2, 8, 1024, width, device="cuda", dtype=torch.bfloat16) for _ in range(4))

    def gradients(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if library == "flash":
            r = A._scaled_dot_product_flash_attention(q, k, v, 0.0, causal)
            return tuple(A._scaled_dot_product_flash_attention_backward(g, q, k, v, *r[:6], 0.0, causal, r[6], r[7]))
        if library == "cudnn":
            r = A._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, causal)
            return tuple(A._scaled_dot_product_cudnn_attention_backward(g, q, k, v, r[0], r[1], r[6], r[7], None, *r[2:6], 0.0, causal))
        r = A._scaled_dot_product_efficient_attention(q, k, v, None, True, 0.0, causal)
        return tuple(A._scaled_dot_product_efficient_attention_backward(g, q, k, v, None, *r, 0.0, [True, True, True, False], causal)[:3])

    options = {"attention_gradients": "kernels"}
    got = torch.compile(gradients, backend=torch_backend.backend, dynamic=False, fullgraph=True, options=options)(q, k, v, g)
    kernels = [k.name for part in torch_backend.compiled_parts() for k in part.program.spec.kernels]
    operators = {type(step).__name__ for part in torch_backend.compiled_parts() for step in part.program.spec.steps}
    assert len(kernels) >= 3 and "KernelStep" in operators, "torch's own call would be compared with itself"
    for one, two in zip(got, gradients(q, k, v, g), strict=True):
        assert float((one.double() - two.double()).abs().max()) <= 2.0**-5 * float(two.double().abs().max())
