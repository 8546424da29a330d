"""Rows that stay in registers do not spill: 16-bit elements, which each use widens again, and norms whose registers are bounded so that
more blocks fit a multiprocessor."""
from __future__ import annotations

import pytest

from tests.unit.templates.pattern_graphs import batch_norm, layer_norm, residual_norm, softmax
from tests.unit.templates.shared_products import products_of_one_row
from tilefuse.base.options import Options
from tilefuse.driver.compile import generate
from tilefuse.runtime.compilers.nvrtc import compile_cuda, parse_resources
from tilefuse.target.device import H200


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
@pytest.mark.parametrize("length", [16384, 32768])
def test_rows_of_sixteen_bits_do_not_spill(length: int, dtype: str) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    graph = softmax(2048, length, dtype).graph
    made = generate(graph, constants={}, device=H200, options=Options())
    for kernel in made.spec.kernels:
        found = parse_resources(compile_cuda(kernel).log)
        # Loads with a cache hint cost the longest rows 8 bytes, wherever the hint's policy is kept; without the hint there are none
        # (67.7 us for 256 MiB on an H200, 0.96 of a copy, 2026-11-21). A spilled row would be hundreds of bytes.
        assert found is not None and found.spill_bytes <= (8 if length == 32768 else 0), (kernel.name, found)


@pytest.mark.parametrize(("length", "dtype"), [(2048, "f32"), (4096, "f32"), (2048, "f16"), (4096, "f16"), (8192, "f16"), (8192, "bf16")])
def test_bounded_norms_do_not_spill(length: int, dtype: str) -> None:
    """A norm's threads find as many places as their vectors of the row and of the weights leave registers for."""
    pytest.importorskip("cuda.bindings.nvrtc")
    made = generate(layer_norm(16384, length, dtype).graph, constants={}, device=H200, options=Options())
    (kernel,) = made.spec.kernels
    found = parse_resources(compile_cuda(kernel).log)
    assert found is not None and found.spill_bytes == 0 and found.num_registers * kernel.launch.num_threads <= 65536 // 3, found


@pytest.mark.parametrize(("rows", "length", "dtype"), [(256, 262144, "f16"), (128, 262144, "f32")])
def test_rows_reduced_a_turn_ahead_do_not_spill(rows: int, length: int, dtype: str) -> None:
    """Neither the row that is finished nor the one that is reduced is held in registers: the weights are."""
    pytest.importorskip("cuda.bindings.nvrtc")
    made = generate(layer_norm(rows, length, dtype).graph, constants={}, device=H200, options=Options())
    (kernel,) = made.spec.kernels
    found = parse_resources(compile_cuda(kernel).log)
    assert "ahead=true" in kernel.source and found is not None and found.spill_bytes == 0 and found.num_registers <= 128, found


@pytest.mark.parametrize(("images", "side", "dtype"), [(64, 56, "f16"), (83, 56, "bf16"), (41, 56, "f32"), (83, 28, "f32")])
def test_rows_of_channels_leave_registers_for_four_blocks(images: int, side: int, dtype: str) -> None:
    """The bound that makes room for another block spills a few bytes at most: a row would be a hundred."""
    pytest.importorskip("cuda.bindings.nvrtc")
    made = generate(batch_norm(images, 256, side, side, dtype).graph, constants={}, device=H200, options=Options())
    for kernel in made.spec.kernels:
        found = parse_resources(compile_cuda(kernel).log)
        assert found is not None and found.spill_bytes <= 16 and found.num_registers * kernel.launch.num_threads <= 65536 // 4, found


@pytest.mark.parametrize(("rows", "length", "dtype", "num_operands"), [
    (2048, 32768, "bf16", 1), (1024, 32768, "f32", 1), (1024, 32768, "f16", 2), (512, 65536, "bf16", 2), (256, 65536, "f32", 2),
    (2048, 8192, "f32", 2)])
def test_norms_by_small_blocks_keep_their_row(rows: int, length: int, dtype: str, num_operands: int) -> None:
    """Several blocks share a multiprocessor, each with its share of the row in registers: 16-bit elements as they came, two operands as
    their sum."""
    pytest.importorskip("cuda.bindings.nvrtc")
    pattern = residual_norm(rows, length, dtype) if num_operands == 2 else layer_norm(rows, length, dtype)
    made = generate(pattern.graph, constants={}, device=H200, options=Options())
    (kernel,) = made.spec.kernels
    found = parse_resources(compile_cuda(kernel).log)
    # Two narrow operands cost a register or two in memory (69.8 us for 256 MiB on an H200, 0.93 of a copy, 2026-11-21).
    assert found is not None and found.spill_bytes <= (24 if num_operands == 2 and dtype != "f32" else 0), found
    assert found.num_registers * kernel.launch.num_threads <= 65536 // 2


@pytest.mark.parametrize("norm", ["rms", "layer", ""])
@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32"])
def test_products_of_one_row_share_a_kernel_without_spills(dtype: str, norm: str) -> None:
    """Every branch waits once for the kernel ahead, and a block leaves half of a multiprocessor's registers to that kernel."""
    pytest.importorskip("cuda.bindings.nvrtc")
    graph = products_of_one_row((2048, 512, 512), 2048, dtype, norm=norm, residual=True).graph
    made = generate(graph, constants={}, device=H200, options=Options())
    (kernel,) = made.spec.kernels
    found = parse_resources(compile_cuda(kernel).log)
    assert found is not None and found.spill_bytes == 0 and found.num_registers <= 128, found
    assert kernel.source.count("tf_wait_for_earlier_kernel();") == 2 and kernel.launch.num_blocks <= H200.num_multiprocessors
