"""Products of f32 on the matrix unit compile for each architecture without spills, and to the instructions they are meant to be."""
from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.compile_only.assembler import assembled, disassembled, without_spills
from tests.unit.templates.stitched_cases import StitchedCase, tiles
from tests.unit.templates.stitched_graphs import attention, clamped_layers, product_softmax, turned_product
from tilefuse.ir.dtype import F16, F32
from tilefuse.printers.cuda import print_cuda
from tilefuse.target.catalog import A100
from tilefuse.target.device import H200
from tilefuse.templates.staged.online.record import Online

DEVICES = {"sm_80": A100, "sm_90a": H200}
CASES = {c.name: c for c in (
    StitchedCase("layers", clamped_layers(4096, (64, 64, 64), F32), tiles(64, 64, threads=128)),
    StitchedCase("odd layers", clamped_layers(4096, (61, 37, 9), F32), tiles(64, 9, threads=128)),
    StitchedCase("softmax", product_softmax(4096, 64, 128), tiles(64, 128, threads=128)),
    StitchedCase("attention", attention(64, 150, 16), tiles(1, 64, 16, threads=128)),
    StitchedCase("walk", attention(64, 300, 16), Online(64, 64, 128, 2)),
    StitchedCase("both turned", turned_product(512, 96, 128, (True, True), F32), tiles(64, 64, threads=128)),
    StitchedCase("layers of f16", clamped_layers(4096, (64, 64, 64), F16), tiles(64, 64, threads=128)),
)}


@pytest.mark.parametrize("arch", sorted(DEVICES))
@pytest.mark.parametrize("name", sorted(CASES))
def test_products_compile_without_spills_to_matrix_instructions(name: str, arch: str, tmp_path: Path) -> None:
    """The careful way, which is taken for numbers that are not finite, has its arrays in local memory; nothing else has."""
    case, device = CASES[name], DEVICES[arch]
    kernel = StitchedCase(name, case.graph, case.choice, device=device).kernel()
    source = print_cuda(kernel, device)
    assert ("mma.sync.aligned.m16n8k8.row.col.f32.tf32" in source) == ("f16" not in name)
    code, report = assembled(source, arch)
    assert without_spills(report, stack=True), report[-600:]
    instructions = disassembled(code, tmp_path / "kernel.cubin")
    assert re.search(r"HMMA\.16816\.F32\b" if "f16" in name else r"HMMA\.1688\.F32\.TF32", instructions)
