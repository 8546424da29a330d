"""Pipelines on the host: tiled products by rings and warpgroups compute what f64 does, and rules that a kernel breaks are named."""
from __future__ import annotations

import ctypes
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.unit.printers.pipeline_kernels import PRODUCTS, TiledProduct
from tests.unit.templates.host_build import CHECKED_FLAGS, build_together, call, compiler, run
from tilefuse.base.errors import InternalError
from tilefuse.ir.affine import axis, number
from tilefuse.ir.dtype import F16
from tilefuse.ir.scalar import const
from tilefuse.kernel.ir import Barrier, ClusterLoad, ClusterStore, For, Kernel, Reg, Stmt
from tilefuse.kernel.pipeline import Produce, WarpgroupProduct, WarpgroupWait, swizzled_byte
from tilefuse.kernel.pipeline_rules import pipeline_faults
from tilefuse.kernel.visit import meeting, register_names, statements, written_buffers
from tilefuse.kernel.widths import fits_32_bits
from tilefuse.printers.host import print_host

needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
# Sums of k products of f32 precision, relative to the largest result.
TOLERANCE = 2e-6


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """All products with every access checked, in one source."""
    return build_together([(p.kernel(), True) for p in PRODUCTS.values()], tmp_path_factory.mktemp("checked"), CHECKED_FLAGS)


@needs_compiler
@pytest.mark.parametrize("name", PRODUCTS)
@pytest.mark.parametrize("check", [False, True], ids=["plain", "checked"])
def test_tiled_product(name: str, check: bool, checked: ctypes.CDLL, tmp_path: Path) -> None:
    """Every layout, type and number of slots: the host's order of one tree gives the product, and the checking mode finds nothing."""
    product = PRODUCTS[name]
    kernel = product.kernel()
    arrays = product.inputs(np.random.default_rng(3))
    if check:
        memory, status, report = call(getattr(checked, f"{kernel.name}_{list(PRODUCTS).index(name)}"), kernel, arrays)
    else:
        memory, status, report = run(kernel, arrays, tmp_path)
    assert status == 0, report
    wanted = product.expected(arrays)
    got = memory["c"].reshape(wanted.shape)
    assert np.abs(got - wanted).max() <= (0 if product.dtype.is_integer else TOLERANCE * np.abs(wanted).max())


def test_roles_are_loops_over_their_threads() -> None:
    """One filling by 128 producers, its use by 256 consumers."""
    text = print_host(PRODUCTS["f16"].kernel())
    filling, use = text.index("tf_ab.fill()"), text.index("tf_ab.use()")
    assert filling < text.index("thread < 128;") < use < text.index("thread < 256;", use)


def test_queries_know_pipelines() -> None:
    """Statements, registers, written buffers and index widths inside a pipeline are visited."""
    kernel = PRODUCTS["left in registers"].kernel()
    assert {"sum", "held_left"} <= register_names(kernel.body)
    assert {"as", "bs", "c"} <= written_buffers(kernel)
    assert any(isinstance(s, WarpgroupProduct) for s in statements(kernel.body))
    assert fits_32_bits(kernel)
    assert not fits_32_bits(TiledProduct(m=1 << 20, n=1 << 14, k=32).kernel())
    pipeline = kernel.pipeline
    assert pipeline is not None and meeting(pipeline, 1) == 1


def test_swizzle_permutes_chunks_of_lines() -> None:
    """128 bytes: chunk c of row r lies at c ^ r % 8. 64: two rows share a line. Each is its own inverse."""
    assert [swizzled_byte(128 * 3 + 16 * c, 128) // 16 % 8 for c in range(8)] == [3, 2, 1, 0, 7, 6, 5, 4]
    assert [swizzled_byte(64 * r, 64) // 16 % 4 for r in range(8)] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [swizzled_byte(32 * r, 32) // 16 % 2 for r in range(8)] == [0, 0, 0, 0, 1, 1, 1, 1]
    for swizzle in (0, 32, 64, 128):
        assert [swizzled_byte(swizzled_byte(n, swizzle), swizzle) for n in range(2048)] == list(range(2048))


def _with_pipeline(kernel: Kernel, **fields: object) -> Kernel:
    pipeline = kernel.pipeline
    assert pipeline is not None
    return replace(kernel, body=(replace(pipeline, **fields),))  # type: ignore[arg-type]


def _with_product(kernel: Kernel, **fields: object) -> Kernel:
    def changed(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        return tuple(replace(s, **fields) if isinstance(s, WarpgroupProduct)  # type: ignore[arg-type]
                     else replace(s, body=changed(s.body)) if hasattr(s, "body") else s for s in body)
    return replace(kernel, body=changed(kernel.body))


def _with_buffer(kernel: Kernel, name: str, **fields: object) -> Kernel:
    return replace(kernel, buffers=tuple(replace(b, **fields) if b.name == name else b for b in kernel.buffers))  # type: ignore[arg-type]


F16_KERNEL = PRODUCTS["f16"].kernel()
PLAIN = F16_KERNEL.pipeline
assert PLAIN is not None
SENT = ClusterStore("bs", number(0), number(1), const(0, F16))
BROKEN: dict[str, tuple[Kernel, str]] = {
    "threads": (_with_pipeline(F16_KERNEL, consumer_threads=128), "128 threads produce"),
    "registers": (_with_pipeline(F16_KERNEL, producer_registers=40, consumer_registers=233), "multiples of 8"),
    "unknown ring": (_with_pipeline(F16_KERNEL, rings=()), "unknown ring ab"),
    "after": (replace(F16_KERNEL, body=(*F16_KERNEL.body, Barrier())), "must be the kernel's last statement"),
    "outside": (replace(F16_KERNEL, body=(WarpgroupWait(),)), "outside a Pipeline"),
    "divergent producers": (_with_pipeline(F16_KERNEL, body=(For("u", axis("thread"), number(256), 256, PLAIN.body),)),
                            "depends on thread, which differs"),
    "barrier among producers": (_with_pipeline(F16_KERNEL, body=(Produce("ab", "s", (Barrier(),), 128), *PLAIN.body)),
                                "Barrier inside a Produce"),
    "two sizes of producers": (_with_pipeline(F16_KERNEL, body=(Produce("ab", "s", (), 32), *PLAIN.body)), "statements of 32 and of 128"),
    "swizzled offset": (_with_buffer(F16_KERNEL, "bs", offset_bytes=512), "at a multiple of 1024"),
    "slot size": (_with_buffer(F16_KERNEL, "bs", num_elements=8192 - 128), "not 2 slots at multiples of 512"),
    "columns": (_with_product(F16_KERNEL, columns=132), "no instruction for 64 rows and 132 columns"),
    "inner": (_with_product(F16_KERNEL, inner=24), "24 inner elements"),
    "alignment": (_with_product(F16_KERNEL, right_index=axis("slot") * 4096 + 8), "is not the start"),
    "turned tf32": (_with_product(PRODUCTS["tf32"].kernel(), right_turned=False), "contiguous inner axes"),
    "arithmetic": (_with_product(F16_KERNEL, arithmetic="tf32"), "no product of f16 and f16"),
    "not shared": (_with_product(F16_KERNEL, right="b"), "must be shared buffers"),
    "cluster barrier": (_with_pipeline(F16_KERNEL, body=(*PLAIN.body, Barrier("cluster"))), "producers would not reach"),
    "remote load": (_with_pipeline(F16_KERNEL, body=(*PLAIN.body, ClusterLoad(Reg("x", F16), "bs", number(0), number(1)))),
                    "order signalled stores alone"),
    "remote store without a signal": (_with_pipeline(F16_KERNEL, body=(*PLAIN.body, SENT)), "no barrier there orders"),
    "remote store by producers": (_with_pipeline(F16_KERNEL, body=(Produce("ab", "s", (SENT,), 128), *PLAIN.body)),
                                  "ClusterStore inside a Produce"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_rules_are_named(name: str) -> None:
    """Both printers refuse the kernel with a line that says which rule it breaks."""
    kernel, message = BROKEN[name]
    with pytest.raises(InternalError, match=message):
        print_host(kernel)


def test_correct_kernels_break_no_rule() -> None:
    """All samples, and a kernel without pipeline."""
    assert not [fault for p in PRODUCTS.values() for fault in pipeline_faults(p.kernel())]
