"""Streamed products compile for each architecture without spills: weights by copies of 16 bytes that begin before anything else."""
from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.compile_only.assembler import assembled, disassembled, without_spills
from tests.unit.templates.staged.pipelined.product_graphs import plain
from tests.unit.templates.staged.streamed.stream_graphs import gated_pair, normed, of_bytes, of_halves
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.dtype import BF16, F16, F32
from tilefuse.ir.graph import Graph
from tilefuse.printers.cuda import print_cuda
from tilefuse.target.catalog import A100
from tilefuse.target.device import H200
from tilefuse.templates.staged.streamed.compose import compose_stream
from tilefuse.templates.staged.streamed.program import schedule_stream
from tilefuse.templates.staged.streamed.template import plan_of

DEVICES = {"sm_80": A100, "sm_90a": H200}
CASES: dict[str, Callable[[], Graph]] = {
    "norm, product, residual": lambda: normed(1, 4096, 4096), "sixteen rows": lambda: plain(16, 4096, 4096, BF16),
    "sixty-four rows": lambda: plain(64, 1024, 1024, F16), "columns contiguous": lambda: plain(8, 4096, 4096, F16, (False, False)),
    "f32": lambda: plain(4, 4096, 4096, F32), "gated pair": lambda: gated_pair(1, 11008, 4096),
    "weights of 8 bits": lambda: of_bytes(16, 11008, 4096), "weights of 4 bits": lambda: of_halves(1, 4096, 4096, 128),
    "odd rows in memory": lambda: plain(3, 1021, 517, BF16)}


@pytest.mark.parametrize("arch", sorted(DEVICES))
@pytest.mark.parametrize("name", sorted(CASES))
def test_streamed_kernel_compiles_without_spills(name: str, arch: str) -> None:
    """No register of the chosen kernel goes to local memory."""
    device = DEVICES[arch]
    program = schedule_stream(CASES[name](), {}, device)
    assert isinstance(program, TileProgram), program
    _, report = assembled(print_cuda(compose_stream(program, device), device), arch)
    assert without_spills(report), report[-600:]


def test_weights_are_in_flight_before_rows_are_reduced(tmp_path: Path) -> None:
    """Copies of 16 bytes of every slot but one precede the first exchange of lanes, and rows are read as vectors beside them."""
    program = schedule_stream(normed(1, 4096, 4096), {}, H200)
    assert isinstance(program, TileProgram)
    code, _ = assembled(print_cuda(compose_stream(program, H200), H200), "sm_90a")
    text = disassembled(code, tmp_path / "kernel.cubin")
    ahead = text[:text.index("SHFL")]
    plan = plan_of(program)
    assert len(re.findall(r"LDGSTS\.E\.BYPASS\.128", ahead)) == (plan.choice.slots - 1) * plan.lanes.accesses
    assert "LDG.E.128" in ahead and "LDG.E.U16" not in ahead and "HMMA.16816.F32.BF16" in text
