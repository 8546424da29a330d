"""Rows of 16-bit elements that stay in registers do not spill: each use widens the bits again, in both types."""
from __future__ import annotations

import pytest

from tests.unit.codegen.pattern_graphs import softmax
from tilefuse.base.options import Options
from tilefuse.driver.compile import generate
from tilefuse.runtime.nvrtc import compile_cuda, parse_resources
from tilefuse.target.device import H200


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("length", [16384, 32768])
def test_rows_of_sixteen_bits_do_not_spill(length: int, dtype: str) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    graph = softmax(2048, length, dtype).graph
    made = generate(graph, constants={}, device=H200, options=Options())
    for kernel in made.spec.kernels:
        found = parse_resources(compile_cuda(kernel).log)
        assert found is not None and found.spill_bytes == 0, (kernel.name, found)
