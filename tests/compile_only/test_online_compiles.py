"""Kernels that walk an axis between products compile without spills, products as matrix instructions, operands fetched ahead. No GPU."""
from __future__ import annotations

import pytest

from tests.compile_only.assembler import assembled, without_spills
from tests.unit.templates.online_graphs import masked, merged_heads, with_logarithm
from tests.unit.templates.stitched_cases import StitchedCase
from tests.unit.templates.stitched_graphs import attention
from tilefuse.ir.dtype import BF16, F16, F64
from tilefuse.printers.cuda import print_cuda
from tilefuse.target.catalog import A100
from tilefuse.target.device import H200
from tilefuse.templates.staged.online.record import Online

DEVICES = {"sm_80": A100, "sm_90a": H200}
CASES = {c.name: c for c in (
    StitchedCase("attention of f16", attention(64, 4096, 64, F16), Online(128, 64, 128, 2)),
    StitchedCase("attention of f16, three blocks", attention(64, 4096, 64, F16), Online(128, 32, 128, 2, 3)),
    StitchedCase("causal attention of bf16", attention(64, 4096, 64, BF16, causal=True), Online(64, 64, 128, 2)),
    StitchedCase("wide attention of f16", attention(16, 2048, 128, F16), Online(64, 64, 128, 2)),
    StitchedCase("odd attention of f16", attention(3, 1003, 40, F16), Online(64, 64, 128, 2)),
    StitchedCase("attention of f32", attention(64, 4096, 64)),
    StitchedCase("attention of f64", attention(4, 1024, 32, F64), Online(32, 32, 128)),
    StitchedCase("masked bf16", masked(512, 1000, 64, 64, BF16), Online(64, 32, 128, 2)),
    StitchedCase("merged heads", merged_heads(512, 1000, 64, 64, F16), Online(64, 64, 128, 2)),
    StitchedCase("logarithms", with_logarithm(3, 2000, 2000, 16, 16)),
)}


@pytest.mark.parametrize("arch", sorted(DEVICES))
@pytest.mark.parametrize("name", sorted(CASES))
def test_walk_compiles_without_spills(name: str, arch: str) -> None:
    case, device = CASES[name], DEVICES[arch]
    kernel = StitchedCase(name, case.graph, case.choice, device=device).kernel()
    source = print_cuda(kernel, device)
    _, report = assembled(source, arch)
    assert without_spills(report, stack=True), report[-600:]
    assert kernel.launch.shared_bytes <= device.shared_bytes_per_block
    assert "warning" not in report, report
    narrow = case.graph.inputs[0].type.dtype.bits == 16
    assert not narrow or "tf_held_product<" in source and "mma.sync.aligned.m16n8k16" in source
    assert not (isinstance(case.choice, Online) and case.choice.stages == 2) or "cp.async" in source
