"""Laws of the work that templates return: boundary bytes, repeated reads, sums over the parts of packed kernels, growth with the size."""
from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.golden.workloads import WORKLOADS, tile_program
from tests.unit.templates.packed_graphs import side_by_side, total, update
from tests.unit.templates.pattern_graphs import Pattern, column_sum, layer_norm, row_sum, softmax, transpose
from tests.unit.templates.stitched_graphs import attention, clamped_layers, product_softmax
from tilefuse.domain.roofline import price_work
from tilefuse.domain.tile import TileProgram
from tilefuse.domain.work import COUNTS, Work, summed
from tilefuse.ir.dtype import F16
from tilefuse.ir.graph import Graph
from tilefuse.target.catalog import host_device
from tilefuse.target.device import H200
from tilefuse.templates import schedule_pattern
from tilefuse.templates.packed.packed import Packed
from tilefuse.templates.registry import kernel_template


def work_of(program: TileProgram) -> Work:
    """The work that the program's template returns."""
    return kernel_template(program.choice).work(program, H200)


def scheduled(graph: Graph, packing: bool = False) -> TileProgram:
    """The program of a whole graph. Fails where there is none."""
    found = schedule_pattern(graph, [n.name for n in graph.nodes], {}, H200, packing=packing)
    assert isinstance(found, TileProgram), found
    return found


@pytest.mark.parametrize("name", WORKLOADS)
def test_work_has_the_kernels_boundary_and_grid(name: str) -> None:
    """Boundary values count once in global memory; L2 carries them at least once, but for what flat parts of unlike sizes share out."""
    program = tile_program(name, H200)
    assert isinstance(program, TileProgram)
    work = work_of(program)
    assert (work.read_bytes, work.global_bytes) == (program.bytes_read, program.bytes_moved)
    assert (work.grid, work.launches) == (program.launch, 1)
    assert work.l2_bytes >= 0.95 * program.bytes_moved


PARTS = (row_sum(64, 2048), update(3000), column_sum(512, 256), transpose(3, 60000), total(5000), softmax(128, 512))


def test_work_of_a_packed_kernel_is_the_sum_of_its_parts() -> None:
    """Parts of different bodies: every byte, operation and ending of each, whatever order the groups have."""
    program = scheduled(side_by_side(PARTS).graph, packing=True)
    assert isinstance(program.choice, Packed)
    parts = [work_of(g.program) for g in program.choice.groups]
    assert all(len(g.parts) == 1 for g in program.choice.groups) and len(parts) == len(PARTS)
    whole, together = work_of(program), summed(parts)
    assert all(getattr(whole, name) == getattr(together, name) for name in COUNTS)
    assert whole.operations == together.operations and whole.endings == together.endings
    assert whole.shared_bytes > 0 and whole.l2_bytes > 0 and whole.operations_on("threads") == program.flops


def test_parts_of_unlike_sizes_count_their_own_elements() -> None:
    """A part of a few elements has a block of its own, and not a block's work."""
    for device in (H200, host_device()):
        graph = side_by_side([update(1 << 20), *(update(n) for n in range(3, 43))]).graph
        program = schedule_pattern(graph, [n.name for n in graph.nodes], {}, device, packing=True)
        assert isinstance(program, TileProgram) and isinstance(program.choice, Packed)
        assert any(g.any_size and len(g.parts) > 1 for g in program.choice.groups)
        work = kernel_template(program.choice).work(program, device)
        assert work.operations_on("threads") == pytest.approx(program.flops, rel=1e-3)
        assert work.l2_bytes == pytest.approx(program.bytes_moved, rel=0.01)


@pytest.mark.parametrize("pattern", PARTS, ids=lambda p: p.graph.name)
def test_the_same_part_twice_is_twice_its_work(pattern: Pattern) -> None:
    program = scheduled(side_by_side([pattern, pattern, pattern]).graph, packing=True)
    assert isinstance(program.choice, Packed)
    one = work_of(program.choice.groups[0].program)
    assert all(getattr(work_of(program), name) == 3 * getattr(one, name) for name in COUNTS)


@pytest.mark.parametrize("build", [
    lambda n: softmax(64 * n, 1024).graph, lambda n: layer_norm(64 * n, 768, "f16").graph, lambda n: column_sum(256 * n, 512).graph,
    lambda n: transpose(256 * n, 256).graph, lambda n: update(4096 * n).graph, lambda n: clamped_layers(1024 * n, (16, 16, 16), F16),
    lambda n: product_softmax(256 * n, 64, 128), lambda n: attention(4 * n, 512, 64, F16),
], ids=["softmax", "layer-norm", "column-sum", "transpose", "update", "layers", "product-softmax", "attention"])
def test_a_larger_kernel_has_more_work_and_takes_no_less_time(build: Callable[[int], Graph]) -> None:
    """A grid that does not fill the device is bound by its loads in flight, which may cost up to a hundredth more than a full one."""
    works = [work_of(scheduled(build(n))) for n in (1, 4, 16, 64, 256)]
    assert all(small.global_bytes < large.global_bytes and small.l2_bytes < large.l2_bytes
               for small, large in zip(works, works[1:], strict=False))
    times = [price_work(w, H200).us for w in works]
    assert all(longer >= 0.99 * shorter for shorter, longer in zip(times, times[1:], strict=False)) and 2 * times[0] < times[-1]
