"""Matrix descriptors that are printed address the elements that kernel IR means, by a model of how instructions read shared memory.

The model follows the canonical layouts of the PTX ISA (wgmma, shared memory matrix layout): eight rows of a group, the leading and the
stride byte offset, the swizzle of absolute addresses. It shares no code with the printers.
"""
from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

from tests.unit.printers.pipeline_kernels import PRODUCTS
from tilefuse.ir.affine import evaluate
from tilefuse.kernel.ir import Kernel
from tilefuse.kernel.pipeline import WarpgroupProduct, swizzled_byte
from tilefuse.kernel.visit import statements
from tilefuse.printers.cuda import print_cuda
from tilefuse.target.device import H200

POINT = {"slot": np.array([1]), "thread": np.array([128])}
DESCRIPTOR = r"tf_{side} = tf_operand<(\d+)>\(\w+[^,]*, (\d+), (\d+)\);"
CALL = re.compile(r"tf_wgmma_\w+<(\d), (\d)>\(\w+(?: \+ (\d+))?, "
                  r"(?:tf_left(?: \+ (\d+))?|tf_left_words\([^)]*\)\.of), tf_right(?: \+ (\d+))?,")


def model(swizzle: int, leading: int, stride: int, turned: bool, itemsize: int) -> Callable[[int, int], int]:
    """Byte that an instruction reads for element (row, k), from the descriptor's start and before the swizzle."""
    chunk = 16 // itemsize
    if swizzle and turned:
        width = swizzle // itemsize
        return lambda row, k: row % width * itemsize + row // width * leading + k % 8 * swizzle + k // 8 * stride
    if swizzle:
        return lambda row, k: row % 8 * swizzle + row // 8 * stride + k * itemsize
    if turned:
        return lambda row, k: row % chunk * itemsize + row // chunk * stride + k % 8 * 16 + k // 8 * leading
    return lambda row, k: row % 8 * 16 + row // 8 * stride + k // chunk * leading + k % chunk * itemsize


def swizzle_address(address: int, swizzle: int) -> int:
    """Bits 4 .. of an absolute address are combined with bits 7 .. : 3, 2 or 1 of them."""
    mask = {128: 0x70, 64: 0x30, 32: 0x10, 0: 0}[swizzle]
    return address ^ (address >> 3 & mask)


def product_of(kernel: Kernel) -> WarpgroupProduct:
    """The kernel's one product."""
    product, = (s for s in statements(kernel.body) if isinstance(s, WarpgroupProduct))
    return product


@pytest.mark.parametrize("name", PRODUCTS)
def test_instructions_read_the_elements_that_kernel_ir_means(name: str) -> None:
    """Every element of both operands, in slot 1 and the second warpgroup: panels, turned operands, steps along k, tiles of 64 rows."""
    kernel = PRODUCTS[name].kernel()
    s, text = product_of(kernel), print_cuda(kernel, H200)
    text = text[text.index('extern "C"'):]
    itemsize = PRODUCTS[name].dtype.itemsize
    step = 32 // itemsize
    calls = [CALL.search(line) for line in text.splitlines() if "tf_wgmma" in line]
    tiles = s.rows // 64
    assert all(calls) and len(calls) == s.inner // step * tiles
    sides = [("right", s.right, s.right_index, s.right_panel, not s.right_turned, s.columns)]
    if not s.left_registers:
        sides.append(("left", s.left, s.left_index, s.left_panel, s.left_turned, 64))
    for side, buffer, index, panel, turned, rows in sides:
        b = kernel.addressed[buffer]
        descriptor = re.search(DESCRIPTOR.format(side=side), text)
        assert descriptor
        swizzle, leading, stride = map(int, descriptor.groups())
        read = model(swizzle, leading, stride, turned, itemsize)
        width = max(b.swizzle, 16) // itemsize
        start = b.offset_bytes + int(evaluate(index, POINT)[0]) * itemsize
        for number, call in enumerate(calls):
            assert call and int(call[1 if side == "left" else 2]) == turned
            first_row, first_k = (number % tiles * 64 if side == "left" else 0), number // tiles * step
            moved = start + 16 * int(call[4 if side == "left" else 5] or 0)
            for row in range(rows):
                for k in range(step):
                    r, at_k = first_row + row, first_k + k
                    along, across = (r, at_k) if turned else (at_k, r)
                    offset = int(evaluate(index, POINT)[0]) + along // width * panel + across * width + along % width
                    meant = b.offset_bytes + swizzled_byte(offset * itemsize, b.swizzle)
                    assert swizzle_address(moved + read(row, k), swizzle) == meant, (side, r, at_k)
