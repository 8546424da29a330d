"""Tensor copies and stores of one to five dimensions compile for Hopper to the copy engine's instructions."""
from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.compile_only.assembler import assembled, disassembled, without_spills
from tests.unit.kernel.test_tensor_map import CASES
from tests.unit.templates.tensor_samples import exchange
from tilefuse.kernel.tensor_map import TensorCopy
from tilefuse.printers.cuda import print_cuda
from tilefuse.target.device import H200


@pytest.mark.parametrize("name", ["1-D f32", "2-D f16", "3-D bf16", "4-D i8", "5-D f32"])
def test_copies_and_stores_are_the_copy_engines(name: str, tmp_path: Path) -> None:
    """One load and one store of the tensor's dimensions; the store is waited for before the block ends."""
    kernel = CASES[name].kernel()
    code, report = assembled(print_cuda(kernel, H200), "sm_90a")
    assert without_spills(report), report
    text = disassembled(code, tmp_path / "kernel.cubin")
    assert re.findall(r"UTMALDG\.(\d)D", text) == re.findall(r"UTMASTG\.(\d)D", text) == [name[0]]
    assert "UTMACMDFLUSH" in text and "DEPBAR" in text and "UTMACCTL.PF" in text


@pytest.mark.parametrize("cache", ["", "first", "last"])
def test_boxes_for_several_blocks_are_multicast(cache: str, tmp_path: Path) -> None:
    kernel = exchange()
    body = tuple(replace(s, cache=cache) if isinstance(s, TensorCopy) else s for s in kernel.body)
    code, report = assembled(print_cuda(replace(kernel, body=body), H200), "sm_90a")
    assert without_spills(report), report
    assert "UTMALDG.2D.MULTICAST" in disassembled(code, tmp_path / "kernel.cubin")
