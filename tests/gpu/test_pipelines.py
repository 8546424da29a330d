"""Pipelines on a device: every sample product, with more tiles than blocks and slots, again and again."""
from __future__ import annotations

import ctypes
from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.unit.printers.pipeline_kernels import PRODUCTS, TiledProduct
from tilefuse.kernel.ir import Kernel
from tilefuse.kernel.widths import with_index_bits
from tilefuse.printers.cuda import print_cuda
from tilefuse.target.device import H200

NEEDS_WGMMA = pytest.mark.skipif(not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0),
                                 reason="needs a device of compute capability 9.0")
pytestmark = [pytest.mark.gpu, NEEDS_WGMMA]

# Rounding of sums of f32, relative to the largest result; products of 8-bit floats are summed with 14 bits at least (measured widely).
TOLERANCE = {"f16": 1e-5, "bf16": 1e-5, "f32": 1e-5, "f8e4m3": 2e-3, "f8e5m2": 2e-3, "i8": 0.0, "u8": 0.0}
RUNS = 5


def launched(kernel: Kernel, arrays: dict[str, np.ndarray], runs: int) -> list[np.ndarray]:
    """The buffer `c` after each of several runs of a kernel that was written by hand."""
    from tilefuse.runtime.compilers.nvrtc import compile_text
    from tilefuse.runtime.cuda_api import check, load_function, prepare_launch

    kernel = with_index_bits(kernel)
    built = compile_text(print_cuda(kernel, H200), kernel.name, "sm_90a", kernel.name)
    memory = {b.name: torch.full((b.num_elements * b.dtype.itemsize,), 0xEE, dtype=torch.uint8, device="cuda") for b in kernel.parameters}
    for name, values in arrays.items():
        memory[name].copy_(torch.from_numpy(np.ascontiguousarray(values).view(np.uint8)))
    index = torch.cuda.current_device()
    function = load_function(built.payload, kernel.name, kernel.launch, index)
    pointers = [ctypes.c_void_p(t.data_ptr()) for t in memory.values()]
    parameters = (ctypes.c_void_p * len(pointers))(*[ctypes.addressof(p) for p in pointers])
    launch, _kept = prepare_launch(function, kernel.launch, torch.cuda.current_stream().cuda_stream, ctypes.addressof(parameters))
    results = []
    for _ in range(runs):
        memory["c"].fill_(0xEE)
        check(launch(), "cuLaunchKernelEx")
        torch.cuda.synchronize()
        results.append(memory["c"].cpu().numpy().copy())
    return results


def _compare(product: TiledProduct) -> None:
    arrays = product.inputs(np.random.default_rng(5))
    wanted = product.expected(arrays)
    dtype = np.int32 if product.dtype.is_integer else np.float32
    first, *others = (r.view(dtype).reshape(wanted.shape) for r in launched(product.kernel(), arrays, RUNS))
    error = np.abs(first - wanted).max() / np.abs(wanted).max()
    assert error <= TOLERANCE[product.dtype.name], error
    assert all(np.array_equal(first, other) for other in others)


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_of_one_block(name: str) -> None:
    """Every layout, type, swizzle and number of slots."""
    _compare(PRODUCTS[name])


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_of_persistent_blocks(name: str) -> None:
    """Blocks take several tiles in turn: slots and phases count on, and the last block has fewer tiles."""
    product = PRODUCTS[name]
    _compare(replace(product, m=7 * product.block_m, n=3 * product.block_n, k=5 * product.tile_k + product.k % product.tile_k, blocks=8))
