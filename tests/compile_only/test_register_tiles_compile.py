"""Transforms of tiles through NVRTC: their tiles stay in registers."""
from __future__ import annotations

import pytest

from tests.unit.passes.device.test_transformed_convolutions import convolution
from tilefuse.base.options import Options
from tilefuse.driver.compile import generate
from tilefuse.ir.dtype import F32
from tilefuse.ir.layouts import channels_last_strides
from tilefuse.runtime.compilers.nvrtc import compile_cuda, parse_resources
from tilefuse.target.device import H200


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("side", [56, 13])
def test_transforms_do_not_spill(side: int, channels_last: bool) -> None:
    """Ten blocks of 128 threads fit a multiprocessor at 48 registers, eight at 64."""
    pytest.importorskip("cuda.bindings.nvrtc")
    graph = convolution(F32, (side, side), batch=8, channels=32, features=48, exact=True)
    layouts = {"x": channels_last_strides((8, 32, side, side))} if channels_last else {}
    options = Options(winograd="always", float32_products="split", plan_cache=False)
    made = generate(graph, constants={}, device=H200, options=options, input_layouts=layouts)
    tiles = [k.name for k in made.plan.kernels if k.program.template == "register tile"]
    assert len(tiles) >= 2
    for kernel in made.spec.kernels:
        found = parse_resources(compile_cuda(kernel).log)
        assert found is not None and found.spill_bytes == 0, (kernel.name, found)
        if kernel.name in tiles:
            assert found.num_registers <= 64, (kernel.name, found)
