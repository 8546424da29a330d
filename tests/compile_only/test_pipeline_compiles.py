"""Pipelines through NVRTC for sm_90a: warpgroup instructions, no spills, and no product that the assembler takes one by one."""
from __future__ import annotations

from dataclasses import replace

import pytest

from tests.compile_only.assembler import assembled, without_spills
from tests.compile_only.machine_code import products_in
from tests.unit.printers.pipeline_kernels import PRODUCTS, TiledProduct
from tilefuse.base.errors import InternalError, UnsupportedDeviceError
from tilefuse.ir.dtype import BF16, F8E4M3, F16, F32, I8
from tilefuse.kernel.pipeline_rules import FREE_INTEGER_COLUMNS
from tilefuse.printers.cuda import print_cuda, print_cuda_together
from tilefuse.target.capabilities import capabilities_of
from tilefuse.target.device import H200

KIND = {"f16": "HGMMA", "bf16": "HGMMA", "f32": "HGMMA", "i8": "IGMMA", "u8": "IGMMA", "f8e4m3": "QGMMA", "f8e5m2": "QGMMA"}


def _compiled(product: TiledProduct) -> tuple[bytes, str]:
    return assembled(print_cuda(product.kernel(), H200), "sm_90a")


@pytest.mark.parametrize("name", PRODUCTS)
def test_products_are_warpgroup_instructions_without_spills(name: str) -> None:
    """Accumulators stay in registers. The assembler reports when it must wait for each product: when their registers are touched."""
    product = PRODUCTS[name]
    code, report = _compiled(product)
    assert without_spills(report), report[-600:]
    assert "serializ" not in report.lower() and "warning" not in report.lower(), report
    steps = -(-product.tile_k * product.dtype.itemsize // 32) * (product.warpgroup_rows // 64)
    counts = products_in(code, "product")
    assert set(counts) == {KIND[product.dtype.name]} and counts.total() % steps == 0


@pytest.mark.parametrize("dtype", [F16, BF16, F32, F8E4M3, I8], ids=str)
@pytest.mark.parametrize("columns", [8, 24, 32, 80, 176, 256])
def test_every_number_of_columns_compiles(dtype, columns: int) -> None:  # type: ignore[no-untyped-def]
    """Instructions of 8 to 256 columns."""
    if dtype.is_integer and columns > FREE_INTEGER_COLUMNS and columns % 16:
        pytest.skip("no such instruction of integers")
    swizzle = 32
    product = TiledProduct(dtype, n=columns, block_n=columns, tile_k=32 // dtype.itemsize, k=96, swizzle=swizzle, slots=4)
    code, report = _compiled(product)
    assert without_spills(report) and products_in(code, "product").total() >= 1


def test_registers_move_to_consumers() -> None:
    """With roles of unlike size the kernel is bounded to one block a multiprocessor, without which setmaxnreg has no effect."""
    source = print_cuda(PRODUCTS["bias"].kernel(), H200)
    assert "__launch_bounds__(384, 1)" in source and "tf_lower_registers<40>" in source and "tf_raise_registers<232>" in source
    with pytest.raises(InternalError, match="a block of 384 threads starts with 64512"):
        print_cuda(replace(PRODUCTS["bias"], registers=(48, 240)).kernel(), H200)
    with pytest.raises(InternalError, match="176 registers per producer, .*; a block of 384 threads starts with 168"):
        print_cuda(replace(PRODUCTS["bias"], registers=(176, 160)).kernel(), H200)


def test_other_devices_are_refused_with_their_name() -> None:
    """Compute capability 8.0 has no roles, and 10.0 no warpgroup products."""
    for capability, arch in (((8, 0), "sm_80"), ((10, 0), "sm_100a")):
        device = replace(H200, arch=arch, capabilities=capabilities_of(capability))
        with pytest.raises(UnsupportedDeviceError, match=f"warpgroup products, which {arch} does not have"):
            print_cuda(PRODUCTS["f16"].kernel(), device)


def test_consumers_meet_without_producers() -> None:
    """A block barrier inside the pipeline is a hardware barrier of the consumers; the whole block meets once, before the roles part."""
    source = print_cuda(PRODUCTS["bias"].kernel(), H200)
    body = source[source.index("if (threadIdx.x >= 256)"):]
    assert "tf_consumer_barrier<256>();" in body and "__syncthreads" not in body
    producers, consumers = body.split("} else {", 1)
    assert "tf_wgmma" not in producers and "tf_bulk_wait(tf_ab_empty" in producers and "tf_bulk_wait(tf_ab_empty" not in consumers


def test_kernels_share_instructions() -> None:
    """Two kernels in one source contain one definition of their instruction."""
    kernels = [replace(PRODUCTS["f16"].kernel(), name=name) for name in ("one", "two")]
    source = print_cuda_together(kernels, H200)
    assert source.count("void tf_wgmma_n128_f16_f16(") == 1
    assembled(source, "sm_90a")
