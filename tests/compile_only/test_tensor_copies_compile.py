"""Tensor copies and stores of one to five dimensions compile for Hopper to the copy engine's instructions."""
from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.compile_only.assembler import assembled, disassembled, without_spills
from tests.compile_only.machine_code import copies_in, products_in
from tests.unit.kernel.test_tensor_map import CASES
from tests.unit.printers.copied_products import COPIED
from tests.unit.templates.tensor_samples import exchange
from tilefuse.kernel.tensor_map import TensorCopy
from tilefuse.printers.cuda import print_cuda
from tilefuse.target.device import H200

DIMENSIONS = ["1-D f32", "2-D f16", "3-D bf16", "4-D i8", "5-D f32"]


@pytest.mark.parametrize("name", DIMENSIONS)
def test_copies_and_stores_are_the_copy_engines(name: str) -> None:
    """One load and one store a kernel."""
    code, report = assembled(print_cuda(CASES[name].kernel(), H200), "sm_90a")
    assert without_spills(report), report
    assert copies_in(code, "box_copy") == {"UTMALDG": 1, "UTMASTG": 1}


@pytest.mark.parametrize("name", DIMENSIONS)
def test_instructions_have_the_tensors_dimensions(name: str, tmp_path: Path) -> None:
    """The store is waited for before the block ends."""
    code, _ = assembled(print_cuda(CASES[name].kernel(), H200), "sm_90a")
    text = disassembled(code, tmp_path / "kernel.cubin")
    assert re.findall(r"UTMALDG\.(\d)D", text) == re.findall(r"UTMASTG\.(\d)D", text) == [name[0]]
    assert "UTMACMDFLUSH" in text and "DEPBAR" in text and "UTMACCTL.PF" in text


@pytest.mark.parametrize("cache", ["", "first", "last"])
def test_boxes_for_several_blocks_are_multicast(cache: str) -> None:
    kernel = exchange()
    body = tuple(replace(s, cache=cache) if isinstance(s, TensorCopy) else s for s in kernel.body)
    code, report = assembled(print_cuda(replace(kernel, body=body), H200), "sm_90a")
    assert without_spills(report), report
    assert copies_in(code, "tensor_exchange") == {"UTMALDG.MULTICAST": 1, "UTMASTG": 1}


@pytest.mark.parametrize("name", COPIED)
def test_products_of_copied_tiles_compile(name: str) -> None:
    """Producers copy boxes, consumers multiply, nothing spills, and no product waits for the one before it."""
    product = COPIED[name]
    code, report = assembled(print_cuda(product.kernel(), H200), "sm_90a")
    assert without_spills(report) and "serializ" not in report.lower(), report[-600:]
    copies = copies_in(code, "product")
    assert products_in(code, "product").total() >= 1 and copies["UTMALDG"] >= (1 if product.cluster > 1 else 2)
    assert (copies["UTMALDG.MULTICAST"] > 0) == (product.cluster > 1)
