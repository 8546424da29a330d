"""Products whose tiles the copy engine brings, on a device: as programs, so that their tensor maps are encoded as for any other kernel."""
from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.gpu.test_pipelines import NEEDS_WGMMA, RUNS, TOLERANCE
from tests.unit.printers.copied_products import COPIED, CopiedProduct
from tilefuse.kernel.launch_contract import map_parameters, pointer_parameters
from tilefuse.kernel.visit import value_identifiers
from tilefuse.kernel.widths import with_index_bits
from tilefuse.printers.cuda import print_cuda
from tilefuse.runtime.calls.library import TORCH_DTYPES
from tilefuse.runtime.program import Program
from tilefuse.runtime.spec import KernelCode, KernelStep, ProgramSpec, Value
from tilefuse.runtime.stores.cache import KernelCache
from tilefuse.target.device import H200

pytestmark = [pytest.mark.gpu, NEEDS_WGMMA]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> KernelCache:
    """One cache for the module, so that each kernel is compiled once."""
    return KernelCache(tmp_path_factory.mktemp("kernels"))


def program_of(product: CopiedProduct, cache: KernelCache) -> Program:
    """a, b -> c by one launch; flat operands."""
    kernel = with_index_bits(product.kernel())
    code = KernelCode(kernel.name, kernel.name, print_cuda(kernel, H200), "cuda", "sm_90a", kernel.launch, pointer_parameters(kernel),
                      names=value_identifiers(kernel), maps=map_parameters(kernel))
    roles = {"a": "input", "b": "input", "c": "result"}
    values = tuple(Value(b.name, b.dtype.name, (b.num_elements,), (1,), roles[b.name]) for b in kernel.parameters)
    return Program(ProgramSpec("product", "h200", ("a", "b"), ("c",), values, (code,), (KernelStep(0, ("a", "b", "c")),)), {}, "cuda",
                   cache=cache)


def compare(product: CopiedProduct, cache: KernelCache) -> None:
    """Calls with operands elsewhere each time give the product, and equal bits where the operands are equal."""
    program = program_of(product, cache)
    kind = TORCH_DTYPES[product.dtype.name]
    for seed in (1, 2):
        arrays = product.inputs(np.random.default_rng(seed))
        wanted = product.expected(arrays)
        results = []
        for _ in range(RUNS):
            operands = [torch.from_numpy(np.ascontiguousarray(arrays[n]).view(np.uint8)).cuda().view(kind) for n in "ab"]
            results.append((program(*operands)[0], operands))
        first = results[0][0]
        error = np.abs(first.cpu().numpy().reshape(wanted.shape) - wanted).max() / np.abs(wanted).max()
        assert error <= TOLERANCE[product.dtype.name], error
        assert all(torch.equal(first, other) for other, _ in results)


@pytest.mark.parametrize("name", COPIED)
def test_products_of_one_block(name: str, cache: KernelCache) -> None:
    """Every swizzle, layout, type and number of slots, sums that end inside a box, multicast in clusters."""
    compare(COPIED[name], cache)


@pytest.mark.parametrize("name", COPIED)
def test_products_of_persistent_blocks(name: str, cache: KernelCache) -> None:
    """Blocks take several tiles in turn: slots and phases count on, blocks of a cluster stay in step."""
    product = COPIED[name]
    k = 5 * product.tile_k + product.k % product.tile_k
    compare(replace(product, m=8 * product.block_m, n=4 * product.block_n, k=k, blocks=8), cache)
