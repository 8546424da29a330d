"""Tensor maps: which tensors can have one, and copies of boxes on the host as numpy computes them."""
from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.unit.templates.host_build import CHECKED_FLAGS, FLAGS, build, build_together, call, compiler
from tests.unit.templates.tensor_samples import BoxCopy, ring
from tilefuse.base.errors import InternalError
from tilefuse.ir.affine import axis, number
from tilefuse.ir.dtype import BF16, F16, F32, F64, I8, DType
from tilefuse.kernel.asynchronous import AwaitEarlier
from tilefuse.kernel.early import untimely
from tilefuse.kernel.ir import Group, Kernel, Member, Size
from tilefuse.kernel.tensor_map import TensorCopy, TensorMap, TensorStore, why_no_map
from tilefuse.kernel.visit import read_buffers, written_buffers
from tilefuse.printers.cuda import print_cuda
from tilefuse.printers.host import print_host
from tilefuse.target.device import H200

CASES = {
    "1-D f32": BoxCopy(F32, (100,), (32,), (4,)),
    "1-D i8 from before the start": BoxCopy(I8, (1000,), (256,), (-48,)),
    "2-D f16": BoxCopy(F16, (13, 20), (4, 16), (0, 0)),
    "2-D f16 over every edge": BoxCopy(F16, (13, 20), (4, 16), (-2, -8)),
    "2-D f64 past the end": BoxCopy(F64, (7, 5), (3, 4), (2, 2)),
    "2-D entirely outside": BoxCopy(F32, (5, 8), (4, 8), (-9, 4)),
    "3-D bf16": BoxCopy(BF16, (3, 9, 24), (2, 4, 8), (-1, 1, -8)),
    "4-D i8": BoxCopy(I8, (2, 3, 5, 40), (1, 2, 4, 16), (1, -1, -2, 16)),
    "5-D f32": BoxCopy(F32, (3, 2, 3, 5, 6), (2, 1, 2, 2, 4), (0, -1, 1, -1, 4)),
}

ILLEGAL: list[tuple[DType, tuple[int, ...], tuple[int, ...], tuple[int, ...], int, int, str]] = [
    (F32, (8,) * 6, (16,) * 5 + (1,), (1,) * 5 + (4,), 0, 0, "6 dimensions, not 1 to 5"),
    (F32, (), (), (), 0, 0, "0 dimensions"),
    (F32, (8, 8), (8,), (4, 4), 0, 0, "2 extents and 1 strides"),
    (F32, (8, 8), (8, 1), (4,), 0, 0, "2 extents and a box of 1"),
    (F32, (0, 8), (8, 1), (4, 4), 0, 0, "an extent of 0"),
    (F32, (1 << 33, 8), (8, 1), (4, 4), 0, 0, "an extent of 8589934592"),
    (F32, (8, 8), (8, 2), (4, 4), 0, 0, "an innermost stride of 2 elements"),
    (F32, (8, 7), (7, 1), (4, 4), 0, 0, "a stride of 28 bytes, not a positive multiple of 16"),
    (F16, (8, 8), (0, 1), (4, 8), 0, 0, "a stride of 0 bytes"),
    (F32, (8, 8), (1 << 38, 1), (4, 4), 0, 0, "a stride of 1099511627776 bytes"),
    (F32, (8, 8), (8, 1), (4, 4), 0, 2, "begins at byte 8, not at a multiple of 16"),
    (F32, (8, 8), (8, 1), (257, 4), 0, 0, "a box extent of 257, not 1 to 256"),
    (F32, (8, 8), (8, 1), (4, 0), 0, 0, "a box extent of 0"),
    (F16, (8, 8), (8, 1), (4, 4), 0, 0, "rows of a box of 8 bytes, not a multiple of 16"),
    (F32, (8, 64), (64, 1), (8, 64), 128, 0, "rows of a box of 256 bytes under a swizzle of 128"),
    (F32, (8, 64), (64, 1), (8, 16), 96, 0, "a swizzle of 96 bytes"),
]


@pytest.mark.parametrize(("dtype", "extents", "strides", "box", "swizzle", "first", "reason"), ILLEGAL, ids=[row[-1] for row in ILLEGAL])
def test_an_illegal_map_names_the_limit_and_the_values(dtype: DType, extents: tuple[int, ...], strides: tuple[int, ...],
                                                       box: tuple[int, ...], swizzle: int, first: int, reason: str) -> None:
    assert reason in why_no_map(dtype, extents, strides, box, swizzle, first)
    with pytest.raises(InternalError, match="tensor map weights of buffer w has"):
        TensorMap("weights", "w", dtype, extents, strides, box, swizzle, first)


def test_legal_maps_are_at_the_limits() -> None:
    """The largest box, a swizzled row, strides that follow from a size."""
    assert why_no_map(F32, (1 << 31, 8), (8, 1), (256, 8)) == ""
    assert "an extent of" in why_no_map(F32, (1 + (1 << 31), 8), (8, 1), (256, 8))
    assert why_no_map(BF16, (100, 64), (64, 1), (64, 64), 128) == ""
    assert why_no_map(F16, (axis("m"), 64), (axis("ld"), 1), (8, 64)) == ""
    assert "an innermost stride of ld" in why_no_map(F16, (axis("m"), 64), (64, axis("ld")), (8, 64))
    m = TensorMap("w", "w", BF16, (axis("m"), 64), (64, 1), (64, 64), 128)
    assert m.is_sized and m.rank == 2 and m.box_bytes == 8192


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize("check", [False, True], ids=["plain", "checked"])
def test_boxes_move_as_in_numpy(check: bool, tmp_path: Path) -> None:
    """One to five dimensions, elements of 1 to 8 bytes, boxes over every edge, before the start and entirely outside; gaps stay."""
    library = build_together([(case.kernel(), check) for case in CASES.values()], tmp_path, CHECKED_FLAGS if check else FLAGS)
    for n, (name, case) in enumerate(CASES.items()):
        arrays = case.inputs(np.random.default_rng(n))
        memory, status, report = call(getattr(library, f"box_copy_{n}"), case.kernel(), arrays)
        assert status == 0, f"{name}: {report}"
        assert np.array_equal(memory["y"], case.expected(arrays)), name


def findings(kernels: Sequence[Kernel], folder: Path) -> list[str]:
    """The checking mode's reports on kernels over zeros, built together."""
    library = build_together([(k, True) for k in kernels], folder, CHECKED_FLAGS)
    reports: list[str] = []
    for n, kernel in enumerate(kernels):
        arrays = {b.name: np.zeros(b.num_elements) for b in kernel.parameters}
        _, status, report = call(getattr(library, f"{kernel.name}_{n}"), kernel, arrays)
        assert status > 0, n
        reports.append(report)
    return reports


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
def test_the_checker_names_what_is_wrong(tmp_path: Path) -> None:
    """A tensor beyond its buffer, a box beyond shared memory, a read before the wait, a source written too early, an unfenced store."""
    kernel = CASES["2-D f16"].kernel()
    x_map, y_map = kernel.maps
    longer = replace(kernel, maps=(replace(x_map, extents=(14, 20)), y_map))
    copy, wait, *rest = kernel.body
    assert isinstance(copy, TensorCopy)
    outside = replace(kernel, body=(replace(copy, index=number(8)), wait, *rest))
    too_early = replace(kernel, body=(copy, *rest))
    unfenced = replace(kernel, body=tuple(s for s in kernel.body if type(s).__name__ != "ProxyFence"))
    unwaited = replace(kernel, body=kernel.body[:-1])
    rewritten = replace(kernel, body=(*kernel.body[:-1], kernel.body[2], kernel.body[-1]))
    reports = findings([longer, outside, too_early, unfenced, unwaited, rewritten], tmp_path)
    assert "tensor map reaches outside its buffer: x[331]" in reports[0]
    assert "out of bounds: tile[71]" in reports[1] and "not aligned: tile[8]" in reports[1]
    assert "read before the asynchronous copy has arrived: tile" in reports[2]
    assert "tensor store of what a thread stored without a fence: tile" in reports[3]
    assert "tensor store still reads shared memory at the end of its block" in reports[4]
    assert "write of memory that a tensor store still reads: tile" in reports[5]


def test_statements_touch_the_maps_buffers() -> None:
    kernel = ring()
    assert read_buffers(kernel) == {"x", "queue", "results"} and written_buffers(kernel) == {"y", "queue", "results"}


def test_a_tensor_copy_may_run_early_and_a_store_may_not() -> None:
    """The copy engine reads past L1; results may still be read by the kernel ahead."""
    kernel = ring()
    copy = kernel.body[0]
    assert untimely(replace(kernel, body=(copy, AwaitEarlier(), *kernel.body[1:])), {"x"}) == []
    assert len(untimely(replace(kernel, body=(copy, AwaitEarlier(), *kernel.body[1:])), set())) == 1
    store = TensorStore("y_map", (number(0), number(0)), "results", number(0))
    assert untimely(replace(kernel, body=(store, AwaitEarlier(), *kernel.body)), {"x", "y"}) == [
        "TensorStore touches y before the kernel ahead has ended"]


def test_maps_that_do_not_fit_their_statement_are_refused() -> None:
    kernel = CASES["2-D f16"].kernel()
    copy = kernel.body[0]
    assert isinstance(copy, TensorCopy)

    def printed(changed: TensorCopy, text: str) -> None:
        for print_kernel in (lambda k: print_cuda(k, H200), print_host):
            with pytest.raises(InternalError, match=text):
                print_kernel(replace(kernel, body=(changed, *kernel.body[1:])))

    printed(replace(copy, map="z_map"), "no tensor map z_map; it has x_map, y_map")
    printed(replace(copy, coordinates=(number(0),)), "1 coordinates for tensor map x_map of 2 dimensions")
    printed(replace(copy, coordinates=(copy.coordinates[0], copy.coordinates[1] + 1)),
            r"begins at element .* not provably at a multiple of 16 bytes")
    printed(replace(copy, buffer="y"), "between global memory x of f16 and global memory y of f16")
    with pytest.raises(InternalError, match=r"to ranks \(0, 1\) of clusters of 1"):
        print_cuda(replace(kernel, body=(replace(copy, multicast=3), *kernel.body[1:])), H200)


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize("rows", [13, 9, 1])
def test_a_sized_map_follows_the_call(rows: int, tmp_path: Path) -> None:
    """Extents over the call's sizes: rows beyond them are neither read nor written, whatever the buffers hold."""
    case = CASES["2-D f16"]
    kernel = case.kernel()
    sized = tuple(replace(m, extents=(axis("rows"), 20)) for m in kernel.maps)
    kernel = replace(kernel, maps=sized, sizes=(Size("rows", 13, "rows"),))
    arrays = case.inputs(np.random.default_rng(rows))
    x, y = arrays["x"].copy(), arrays["y"].copy()
    pointers = (ctypes.c_void_p * 3)(x.ctypes.data, y.ctypes.data, ctypes.addressof(size := ctypes.c_longlong(rows)))
    assert getattr(build(print_host(kernel), tmp_path), kernel.name)(pointers, None, ctypes.c_long(0)) == 0 and size.value == rows
    wanted = arrays["y"].reshape(13, 24).copy()
    wanted[:rows, :20] = arrays["x"].reshape(13, 24)[:rows, :20]
    assert np.array_equal(y.reshape(13, 24), wanted)


def test_packed_kernels_have_no_maps() -> None:
    """Their members would need maps of their own."""
    kernel = CASES["2-D f16"].kernel()
    group = Group(0, (), (Member((), kernel.launch.num_blocks),), kernel.body)
    with pytest.raises(InternalError, match="packed kernel box_copy has tensor maps x_map, y_map"):
        print_cuda(replace(kernel, body=(group,)), H200)


def test_cuda_text_of_every_form() -> None:
    """Team, multicast, cache policy and 64-bit indices."""
    kernel = CASES["2-D f16"].kernel()
    copy = kernel.body[0]
    assert isinstance(copy, TensorCopy)

    def text(changed: TensorCopy, **more: object) -> str:
        return print_cuda(replace(kernel, body=(changed, *kernel.body[1:]), **more), H200)  # type: ignore[arg-type]

    plain = text(replace(copy, coordinates=(number(3), 8 * axis("block"))))
    assert "const __grid_constant__ tf_tensor_map x_map,\n    const __grid_constant__ tf_tensor_map y_map)" in plain
    assert "tf_tensor_copy(tile, x_map, tf_arrivals + 0, true, 128, {3, 8 * block});" in plain
    assert "tf_tensor_copy<32>(tile" in text(replace(copy, team=32))
    assert "tf_tensor_copy<1024, 0, 2>(tile" in text(replace(copy, cache="first"))
    assert "{(int)3, (int)(16 * block)}" in text(replace(copy, coordinates=(number(3), 16 * axis("block"))), index_bits=64)
