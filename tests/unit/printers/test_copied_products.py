"""Tensor copies inside pipelines on the host: products compute what f64 does, and faults of the copies are found."""
from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.unit.printers.copied_products import COPIED
from tests.unit.printers.test_pipeline import TOLERANCE
from tests.unit.templates.host_build import CHECKED_FLAGS, FLAGS, build_together, call, compiler, run
from tilefuse.base.errors import InternalError
from tilefuse.ir.affine import number
from tilefuse.kernel.expression import IndexScope
from tilefuse.kernel.ir import Kernel, Stmt
from tilefuse.kernel.pipeline import Produce
from tilefuse.kernel.pipeline_rules import pipeline_faults
from tilefuse.kernel.tensor_map import TensorCopy
from tilefuse.kernel.visit import bodies, statements
from tilefuse.printers.host import print_host
from tilefuse.printers.tensor_copies import arriving_bytes, cuda_copy

needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")


def changed(body: tuple[Stmt, ...], **fields: object) -> tuple[Stmt, ...]:
    """Statements with other fields in every tensor copy."""
    result = []
    for s in body:
        if isinstance(s, TensorCopy):
            s = replace(s, **fields)  # type: ignore[arg-type]
        elif bodies(s):
            s = replace(s, body=changed(bodies(s)[0], **fields))  # type: ignore[call-arg]
        result.append(s)
    return tuple(result)


@needs_compiler
@pytest.mark.parametrize("check", [False, True], ids=["plain", "checked"])
def test_products_by_tensor_copies(check: bool, tmp_path: Path) -> None:
    """Every swizzle, layout, type and number of slots, sums that end inside a box, multicast in clusters."""
    library = build_together([(p.kernel(), check) for p in COPIED.values()], tmp_path, CHECKED_FLAGS if check else FLAGS)
    for n, (name, product) in enumerate(COPIED.items()):
        arrays = product.inputs(np.random.default_rng(n))
        memory, status, report = call(getattr(library, f"product_{n}"), product.kernel(), arrays)
        assert status == 0, f"{name}: {report}"
        wanted = product.expected(arrays)
        error = np.abs(memory["c"].reshape(wanted.shape) - wanted).max()
        assert error <= (0 if product.dtype.is_integer else TOLERANCE * np.abs(wanted).max()), name


def report_of(kernel: Kernel, arrays: dict[str, np.ndarray], folder: Path) -> str:
    """The checking mode's report on a faulty kernel."""
    _, status, report = run(kernel, arrays, folder, check=True)
    assert status > 0
    return report


@needs_compiler
def test_the_checker_finds_faulty_fillings(tmp_path: Path) -> None:
    """A copy to a slot that is not being filled, to a place without a swizzle's alignment, of a tensor beyond its buffer."""
    product = COPIED["f16"]
    kernel, arrays = product.kernel(), product.inputs(np.random.default_rng(0))
    other = changed(kernel.body, index=number(product.block_m * product.tile_k))
    assert "slot of a ring written outside its Produce and its Consume" in report_of(replace(kernel, body=other), arrays, tmp_path)
    shifted = changed(kernel.body, index=number(8))
    assert "box of a tensor in shared memory that is not aligned" in report_of(replace(kernel, body=shifted), arrays, tmp_path)
    longer = tuple(replace(m, extents=(m.extents[0] + 1, m.extents[1])) for m in kernel.maps)
    assert "tensor map reaches outside its buffer" in report_of(replace(kernel, maps=longer), arrays, tmp_path)


def test_copies_without_a_barrier_stand_in_a_filling_of_one_thread() -> None:
    kernel = COPIED["f16"].kernel()
    assert pipeline_faults(kernel) == []
    pipeline = kernel.pipeline
    assert pipeline is not None
    copy = next(s for s in statements(pipeline.body) if isinstance(s, TensorCopy))
    outside = replace(kernel, body=(copy, pipeline))
    assert pipeline_faults(outside) == ["TensorCopy of map a_map stands in no Produce, and names no barrier"]

    def widened(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        return tuple(replace(s, threads=32) if isinstance(s, Produce) else replace(s, body=widened(bodies(s)[0])) if bodies(s) else s
                     for s in body)  # type: ignore[call-arg]

    faults = pipeline_faults(replace(kernel, body=widened(kernel.body)))
    assert "TensorCopy of map b_map stands in a Produce of 32 threads, of which each would start it" in faults
    own = replace(kernel, body=changed(kernel.body, barrier=number(0)), num_barriers=1)
    assert any("TensorCopy inside a Produce" in f for f in pipeline_faults(own))


def test_a_multicast_copy_fills_a_ring_of_the_cluster() -> None:
    kernel = COPIED["cluster"].kernel()
    pipeline = kernel.pipeline
    assert pipeline is not None and pipeline_faults(kernel) == []
    own = replace(pipeline, rings=tuple(replace(r, cluster=False) for r in pipeline.rings))
    assert pipeline_faults(replace(kernel, body=(*kernel.body[:-1], own))) == [
        "ring ab: a multicast copy fills slots of other blocks, and the ring is not one of the cluster"]


def test_swizzles_of_map_and_buffer_agree() -> None:
    kernel = COPIED["f16"].kernel()
    plain = tuple(replace(b, swizzle=0) if b.name == "as" else b for b in kernel.buffers)
    with pytest.raises(InternalError, match="tensor map a_map swizzles 64 bytes, buffer as 0"):
        print_host(replace(kernel, buffers=plain))


def test_the_bytes_of_a_filling_count_every_block() -> None:
    """A box for two blocks comes from both of them; the producer announces all bytes to the slot's barrier."""
    kernel = COPIED["cluster"].kernel()
    a, b = (s for s in statements(kernel.body) if isinstance(s, TensorCopy))
    assert arriving_bytes(kernel, a) == 2 * 64 * 64 * 2 and arriving_bytes(kernel, b) == 128 * 64 * 2
    placed = replace(a, coordinates=(number(1), number(8)), cache="last")
    text = cuda_copy(kernel, placed, "as", IndexScope(kernel), "tf_ab_full + tf_ab_slot")
    assert text == "tf_slot_copy<3, 1>(as, a_map, tf_ab_full + tf_ab_slot, 16384, {1, 8});"
    with pytest.raises(InternalError, match="outside a pipeline names no barrier"):
        cuda_copy(kernel, a, "as", IndexScope(kernel))
