"""Stitched kernels compile for each architecture without spills, products of 16-bit operands as matrix instructions. No GPU is needed."""
from __future__ import annotations

import pytest

from tests.compile_only.assembler import assembled, without_spills
from tests.unit.templates.stitched_cases import StitchedCase, tiles
from tests.unit.templates.stitched_graphs import (
    attention,
    clamped_layers,
    lstm_cell,
    lstm_step,
    many_reductions,
    normed_chain,
    turned_product,
)
from tilefuse.ir.dtype import BF16, F16, F64
from tilefuse.printers.cuda import print_cuda
from tilefuse.target.catalog import A100, RTX_5090
from tilefuse.target.device import H200
from tilefuse.templates.compose import compose

DEVICES = {"sm_80": A100, "sm_90a": H200, "sm_120a": RTX_5090}
CASES = {c.name: c for c in (
    StitchedCase("attention", attention(64, 300, 16), tiles(1, 25, 16, threads=256)),
    StitchedCase("attention of f16", attention(8, 128, 64, F16), tiles(1, 32, 64, threads=128)),
    StitchedCase("layers", clamped_layers(4096, (64, 64, 64), F16), tiles(64, 64, threads=128)),
    StitchedCase("layers of bf16", clamped_layers(256, (64, 64, 64), BF16, turned=False), tiles(64, 64, threads=128)),
    StitchedCase("layers walked", clamped_layers(4096, (64, 64), F16), tiles(64, 64, threads=128, groups=16)),
    StitchedCase("chain", normed_chain(32, 256)),
    StitchedCase("gates", lstm_cell(32, 256)),
    StitchedCase("reductions", many_reductions(6, 5, 16), tiles(4, 16)),
    StitchedCase("f64", turned_product(60, 50, 70, (False, True), F64)),
    StitchedCase("columns cut anywhere", turned_product(20, 16, 13, (True, False), F16), tiles(16, 8)),
)}
MATRIX_UNIT = {"layers", "attention of f16", "layers of bf16", "layers walked", "columns cut anywhere"}


STEPS = {"f32": (lstm_step(32, 256, 256), None), "f16": (lstm_step(64, 256, 64, F16), tiles(16, 16, threads=64))}


# The tiles of the step in f16 need more shared memory than a block has for sm_120a.
@pytest.mark.parametrize(("name", "arch"), [(n, a) for n in sorted(STEPS) for a in sorted(DEVICES) if (n, a) != ("f16", "sm_120a")])
def test_a_step_that_begins_early_compiles_without_spills(name: str, arch: str) -> None:
    """Its instructions wait for the kernel ahead where there are such, and let the next one come."""
    (graph, choice), device = STEPS[name], DEVICES[arch]
    kernel = compose(StitchedCase(name, graph, choice, device=device).program(), device, frozenset("xwu"))
    source = print_cuda(kernel, device)
    _, report = assembled(source, arch)
    assert without_spills(report), report[-600:]
    text = source[source.index('extern "C" __global__'):]
    assert text.count("tf_wait_for_earlier_kernel();") == (1 if device.starts_early else 0)
    assert text.index("tf_async_copy") < text.find("tf_wait_for_earlier_kernel") or not device.starts_early


@pytest.mark.parametrize("arch", sorted(DEVICES))
@pytest.mark.parametrize("name", sorted(CASES))
def test_stitched_kernel_compiles_without_spills(name: str, arch: str) -> None:
    case, device = CASES[name], DEVICES[arch]
    kernel = StitchedCase(name, case.graph, case.choice, device=device).kernel()
    source = print_cuda(kernel, device)
    _, report = assembled(source, arch)
    assert without_spills(report), report[-600:]
    assert kernel.launch.shared_bytes <= device.shared_bytes_per_block
    kernel_text = source[source.index('extern "C" __global__'):]
    assert (name in MATRIX_UNIT) == ("tf_matrix_product<" in kernel_text)
    assert ("mma.sync.aligned.m16n8k16" in source and "ldmatrix.sync.aligned" in source) == (name in MATRIX_UNIT)
