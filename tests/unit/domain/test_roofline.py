"""One function prices the work of kernels, library calls and copies: parts hide each other, launches and serial waits add up."""
from __future__ import annotations

from dataclasses import fields, replace

import pytest

from tilefuse.domain.roofline import (
    blocks_us,
    busy_us_by_unit,
    clock_hz,
    early_start_us,
    least_blocks_us,
    operations_per_s,
    price_candidate,
    price_stages,
    price_work,
    resident_us,
    transfer_us,
)
from tilefuse.domain.work import BlockWork, LeastBlocks, LoadChain, Operations, StageWork, Waves, Work
from tilefuse.ir.dtype import F16, F32, DType
from tilefuse.ir.graph import Graph
from tilefuse.ir.layouts import Layouts
from tilefuse.ir.text import parse_graph
from tilefuse.plan.price.predictions import Predictions
from tilefuse.plan.price.products import library_product_us, library_work
from tilefuse.target.catalog import device_by_name, host_device
from tilefuse.target.device import H200
from tilefuse.target.launch import Launch

WHOLE = Work(grid=Launch(4096, 256), read_bytes=1 << 27, global_bytes=1 << 28)


def test_a_copy_takes_the_curves_time_and_its_launches() -> None:
    copy = Work(launches=0, global_bytes=1 << 20)
    assert price_work(copy, H200).us == transfer_us(1 << 20, H200)
    assert price_work(replace(copy, launches=3), H200).us == pytest.approx(transfer_us(1 << 20, H200) + 3 * H200.graph_launch_us)
    assert Predictions(H200).copy_us(0, 2) == 2 * H200.graph_launch_us


def test_the_slowest_part_decides_and_hides_the_others() -> None:
    parts = price_work(WHOLE, H200)
    hidden = price_work(replace(WHOLE, stage_us=parts.global_us / 2, operations=(Operations(1),)), H200)
    assert hidden.us == parts.us and hidden.decided_by == "bandwidth"
    longer = price_work(replace(WHOLE, stage_us=2 * parts.global_us), H200)
    assert longer.us == pytest.approx(2 * parts.global_us + H200.graph_launch_us) and longer.decided_by == "flops"


def test_nothing_hides_a_serial_wait() -> None:
    assert price_work(replace(WHOLE, serial_us=7.0), H200).us == pytest.approx(price_work(WHOLE, H200).us + 7.0)


def test_few_blocks_reach_only_their_share_of_each_rate() -> None:
    one = replace(WHOLE, grid=Launch(1, 256), operations=(Operations(10**9),))
    alone, all_of_it = price_work(one, H200), price_work(replace(one, grid=None), H200)
    assert alone.global_us > 50 * all_of_it.global_us
    assert alone.arithmetic_us == pytest.approx(H200.num_multiprocessors * all_of_it.arithmetic_us)


def test_rings_of_slots_have_more_in_flight_than_the_threads_of_their_blocks() -> None:
    """Eight blocks whose copies fill the shared memory come nearer to the memory's rate, and no further than their multiprocessors do."""
    few = replace(WHOLE, grid=Launch(8, 256))
    by_threads, by_ring = price_work(few, H200), price_work(replace(few, flight_bytes=160 << 10), H200)
    assert by_ring.global_us < by_threads.global_us / 2
    whole_us, share = price_work(replace(WHOLE, grid=None), H200).global_us, 8 * H200.fitted.flight.multiprocessor_shares / 132
    assert price_work(replace(few, flight_bytes=1 << 30), H200).global_us == pytest.approx(whole_us / share, rel=0.05)


@pytest.mark.parametrize("field", ["global_bytes", "l2_bytes", "shared_bytes", "scattered_adds", "partial_sectors", "operations",
                                   "serial_bytes"])
def test_more_work_never_takes_less_time(field: str) -> None:
    assert field in {f.name for f in fields(Work)}
    counts = [1 << n for n in range(28, 40)]
    times = [price_work(replace(WHOLE, **{field: (Operations(n),) if field == "operations" else n}), H200).us for n in counts]
    assert times == sorted(times) and times[0] < times[-1]


@pytest.mark.parametrize("device", ["h200", "a100", "host"])
def test_units_are_rates_of_the_device(device: str) -> None:
    spec = host_device() if device == "host" else device_by_name(device)
    assert operations_per_s("threads", spec) == spec.flops_per_s
    assert operations_per_s("f64", spec) == spec.flops_per_s / 2
    assert operations_per_s("f16", spec) == dict(spec.matrix_flops_per_s).get("f16", spec.flops_per_s)


@pytest.mark.parametrize("sizes, dtype", [((4096, 4096, 4096), F16), ((8, 512, 512), F32), ((300, 16, 300), F32), ((4096, 8, 4096), F16)])
def test_a_library_product_is_priced_by_its_work(sizes: tuple[int, int, int], dtype: DType) -> None:
    rows, inner, columns = sizes
    graph = parse_graph(f"""graph @g(%x: {dtype}[{rows}, {inner}], %w: {dtype}[{inner}, {columns}]) -> ({dtype}[{rows}, {columns}]) {{
  %y: {dtype}[{rows}, {columns}] = library.matmul (%x, %w)
  return %y
}}
""")
    node = graph.nodes[-1]
    work = library_work(node, graph, H200)
    assert work.operations_on(dtype.name) == 2 * rows * inner * columns
    (operations,) = work.operations
    moved_us, tiling = transfer_us(work.global_bytes, H200), H200.fitted.calls.threads if dtype is F32 else H200.fitted.calls.halves
    busy_us = operations.count / (operations_per_s(dtype.name, H200) * operations.efficiency) * 1e6
    assert tiling.latency_us <= work.serial_us
    assert library_product_us(node, graph, H200) >= H200.graph_launch_us + work.serial_us + max(moved_us, busy_us)


def product_of(rows: int, inner: int, columns: int, dtype: str = "f16", told: str = "") -> Graph:
    """%y = %a %b"""
    return parse_graph(f"""graph @g(%a: {dtype}[{rows}, {inner}], %b: {dtype}[{inner}, {columns}]) -> ({dtype}[{rows}, {columns}]) {{
      %y: {dtype}[{rows}, {columns}] = library.matmul (%a, %b) {{{told}}}
      return %y
    }}""")


def called_us(graph: Graph, layouts: Layouts | None = None) -> float:
    """The library's time for the last node."""
    return library_product_us(graph.nodes[-1], graph, H200, layouts or {})


def test_unaligned_rows_cost_what_was_measured() -> None:
    """cuBLAS on one H200: 4096 x 4096 x 1001 in f16 takes 325 us beside 45 padded; the estimate lies within a tenth."""
    assert called_us(product_of(4096, 4096, 1001)) == pytest.approx(325, rel=0.1)
    assert called_us(product_of(4096, 4096, 1008)) == pytest.approx(45, rel=0.3)
    assert called_us(product_of(12288, 196, 196)) == pytest.approx(13.4, rel=0.35)


def test_strides_and_windows_decide_the_alignment_of_a_call() -> None:
    """Whole extents in rows of an odd stride, and a window at an odd place, are unaligned; f32 on threads is loaded element by element."""
    whole = product_of(2048, 1024, 1024)
    assert called_us(whole, {"a": (1025, 1)}) > 2 * called_us(whole) and called_us(whole, {"a": (1032, 1)}) == called_us(whole)
    window = parse_graph("""graph @g(%x: f16[2048, 1032], %b: f16[1024, 1024]) -> (f16[2048, 1024]) {
      %a: f16[2048, 1024] = map [i, j] { %x[i, j + 1] }
      %y: f16[2048, 1024] = library.matmul (%a, %b) {}
      return %y
    }""")
    assert called_us(window) == called_us(whole, {"a": (1025, 1)})
    biased = parse_graph("""graph @g(%a: f16[2048, 1024], %b: f16[1024, 1024], %c: f16[1024]) -> (f16[2048, 1024]) {
      %y: f16[2048, 1024] = library.matmul (%a, %b, %c) {}
      return %y
    }""")
    assert called_us(biased, {"b": (1025, 1)}) == called_us(whole, {"b": (1025, 1)}) > called_us(biased) == called_us(whole)
    threads = product_of(2048, 1024, 1024, "f32")
    assert called_us(threads, {"a": (1025, 1)}) == called_us(threads)


CHAIN = LoadChain(flight_bytes=64, resident_blocks=4, iterations=8, wait_us=1.0)
CHAINED = Work(grid=Launch(4 * H200.num_multiprocessors, 256), global_bytes=1 << 20, loads=CHAIN)


def test_waits_of_a_blocks_iterations_add_up() -> None:
    """Little traffic: each of a block's iterations waits for its first load, and blocks that run together wait at the same time."""
    parts = price_work(CHAINED, H200)
    assert 8.0 < parts.chain_us < 8.5 and parts.us == pytest.approx(parts.launch_us + parts.chain_us, rel=0.01)
    longer = price_work(replace(CHAINED, loads=replace(CHAIN, iterations=16)), H200)
    assert longer.chain_us == pytest.approx(parts.chain_us + 8.0, rel=0.02)


def test_parts_that_hide_each_other_almost_completely_add_a_little() -> None:
    """Equal traffic and chain take longer than each, and by less than the norm's power allows."""
    parts = price_work(replace(CHAINED, global_bytes=1 << 25), H200)
    longest = max(parts.moved_us, parts.chain_us)
    assert longest < parts.overlapped_us <= longest * 2 ** (1 / parts.overlap_power)


def test_a_kernel_behind_another_starts_while_that_one_ends() -> None:
    """The start passes in part, once for all launches of the step; never more than three quarters of a short kernel."""
    overlap_us = H200.fitted.flight.start_overlap_us
    long, short = replace(WHOLE, global_bytes=1 << 30, launches=2), Work()
    assert price_work(long, H200).us - price_work(replace(long, follows_another=True), H200).us == pytest.approx(overlap_us)
    assert price_work(replace(short, follows_another=True), H200).us == pytest.approx(price_work(short, H200).us / 4)


def test_more_loads_in_flight_reach_more_of_the_bandwidth() -> None:
    times = [price_work(replace(CHAINED, global_bytes=1 << 28, loads=replace(CHAIN, flight_bytes=n)), H200).share for n in (4, 16, 64, 256)]
    assert times == sorted(times) and times[0] < 0.5 < times[-1] <= 1.0


def test_resident_values_come_from_l2() -> None:
    """Of a small kernel the latency of L2 instead of that of memory; a device whose L2 was not timed knows one curve only."""
    work = Work(read_bytes=1 << 15, global_bytes=1 << 16, grid=Launch(4096, 256))
    assert price_work(replace(work, resident=True), H200).global_us == resident_us(1 << 16, H200) < price_work(work, H200).global_us
    unknown = replace(H200, resident_curve=())
    assert price_work(replace(work, resident=True), unknown).global_us == price_work(work, unknown).global_us


def test_an_early_start_gains_for_small_traffic_and_loses_for_large() -> None:
    """8192 x 768 by 768 gained 0.46 us, 16384 x 3072 by 768 lost 1.8."""
    small, large = (early_start_us(n << 20, H200) for n in (25, 124))
    assert large < 0.0 < small < early_start_us(0, H200) == H200.fitted.pipelined.early_gain_us


STITCH = H200.fitted.stitch.overlap
# Start and end of stages whose blocks hide no waits of each other.
LEAST_US = STITCH.least_us
TILE = (StageWork(((("l2", 900.0),), (("threads", 100.0),)), 700.0), StageWork(((("tensor", 400.0), ("threads", 200.0)),), 150.0))
BLOCKS = BlockWork(blocks=H200.num_multiprocessors, threads=256, resident=4, turns=1, tile=TILE, once=(), overlap=STITCH)


def cycles_us(cycles: float) -> float:
    """Time of cycles of one multiprocessor. Units: microseconds."""
    return cycles / clock_hz(H200) * 1e6


def test_paths_of_a_stage_overlap_and_units_of_a_path_do_not() -> None:
    """A copy takes its bytes' cycles while threads issue it; a product and its epilogue take the sum."""
    assert [s.busy_cycles for s in TILE] == [900.0, 600.0]
    assert BLOCKS.cycles_by_unit() == {"l2": 132 * 900.0, "threads": 132 * 300.0, "tensor": 132 * 400.0}
    busy_us = busy_us_by_unit(replace(WHOLE, blocks=(BLOCKS, BLOCKS)), H200)
    assert busy_us["tensor"] == pytest.approx(cycles_us(800.0))


def test_a_block_alone_takes_its_cycles_its_waits_and_what_it_cannot_overlap() -> None:
    cycles = 1500.0 + 850.0 + STITCH.alone_share * 1500.0
    assert blocks_us(BLOCKS, H200) == pytest.approx(LEAST_US + STITCH.counted_share * cycles_us(cycles))


def test_blocks_of_a_multiprocessor_share_its_units_and_wait_together() -> None:
    """Four blocks keep the units busy four times, and their waits pass once; a fifth one makes a second wave."""
    one, four, five = (blocks_us(replace(BLOCKS, blocks=n * H200.num_multiprocessors), H200) for n in (1, 4, 5))
    assert four - one == pytest.approx(STITCH.counted_share * cycles_us(3 * 1500.0))
    assert five - LEAST_US == pytest.approx(2 * (four - LEAST_US))


def test_a_chain_passes_beside_the_paths_and_is_no_units_work() -> None:
    """It counts where it is longer than the paths, once for all blocks of a multiprocessor."""
    chained = replace(TILE[0], chain_cycles=2000.0)
    assert (chained.busy_cycles, chained.cycles(), chained.cycles(3), chained.alone_cycles) == (900.0, 2000.0, 2700.0, 2700.0)
    assert replace(TILE[0], chain_cycles=800.0).alone_cycles == TILE[0].alone_cycles == 1600.0
    blocks = replace(BLOCKS, tile=(chained, TILE[1]))
    assert blocks.cycles_by_unit() == BLOCKS.cycles_by_unit()
    one, two, three = (blocks_us(replace(blocks, blocks=n * H200.num_multiprocessors), H200) for n in (1, 2, 3))
    assert one - blocks_us(BLOCKS, H200) == pytest.approx(STITCH.counted_share * cycles_us(1100.0))
    assert two - one == pytest.approx(STITCH.counted_share * cycles_us(600.0))
    assert three - two == pytest.approx(STITCH.counted_share * cycles_us(600.0 + 700.0))


def test_turns_repeat_the_tile_and_nothing_else() -> None:
    once = (StageWork(((("l2", 300.0),),), 700.0),)
    one, three = (blocks_us(replace(BLOCKS, turns=n, once=once), H200) for n in (1, 3))
    assert three - one == pytest.approx(2 * (blocks_us(BLOCKS, H200) - LEAST_US))
    assert one - blocks_us(BLOCKS, H200) == pytest.approx(STITCH.counted_share * cycles_us(1000.0))


def test_blocks_that_copy_ahead_hide_each_others_waits() -> None:
    """Of two blocks each hides a half of the other's waits; a last wave counts by the blocks that it has."""
    walk = H200.fitted.online.overlap
    waits = replace(BLOCKS, tile=(StageWork((), 1000.0),), overlap=walk)
    one, two = (blocks_us(replace(waits, blocks=n * H200.num_multiprocessors), H200) - walk.least_us for n in (1, 2))
    assert one == pytest.approx(2 * two) == pytest.approx(walk.counted_share * cycles_us(1000.0))
    whole, more = (blocks_us(replace(waits, resident=1, blocks=n), H200) - walk.least_us for n in (132, 198))
    assert more == pytest.approx(1.75 * whole)


@pytest.mark.parametrize("stage_bytes", [0, 1 << 20, 1 << 28])
@pytest.mark.parametrize("blocks", [1, 132, 5000])
def test_the_price_of_stages_is_that_of_their_whole_work(blocks: int, stage_bytes: int) -> None:
    """Bit for bit, whether traffic or stages decide."""
    boundary = Work(read_bytes=stage_bytes // 2, global_bytes=stage_bytes)
    parts = replace(BLOCKS, blocks=blocks)
    whole = price_candidate(replace(boundary, grid=Launch(blocks, 256), blocks=(parts,)), H200)
    assert price_stages(price_work(boundary, H200), parts, H200) == (whole.us, whole.arithmetic_us)


def test_parts_of_a_kernel_run_side_by_side() -> None:
    """Two alike parts that fill the device take more than one of them and less than both; a small one beside a long one takes nothing."""
    one = price_work(Work(blocks=(BLOCKS,)), H200).arithmetic_us
    both = price_work(Work(blocks=(BLOCKS, BLOCKS)), H200).arithmetic_us
    assert one == blocks_us(BLOCKS, H200) and both == pytest.approx(2 * H200.fitted.waits.side_by_side * one)
    small = replace(BLOCKS, blocks=1, tile=TILE[:1])
    assert price_work(Work(blocks=(BLOCKS, small)), H200).arithmetic_us == one


@pytest.mark.parametrize("turns", [1, 3])
@pytest.mark.parametrize("blocks", [1, 132, 133, 700, 5000])
def test_the_bound_of_blocks_holds_for_fewer_resident_ones_and_for_turns(blocks: int, turns: int) -> None:
    """The same tiles by blocks that take several of them, and with less room, never take less time than the bound says."""
    busy, waits = sum(s.busy_cycles for s in TILE), sum(s.wait_cycles for s in TILE)
    least = least_blocks_us(LeastBlocks(blocks * turns, BLOCKS.threads, 8, busy, waits, 0.0, BLOCKS.overlap), H200)
    for resident in (1, 2, 5, 8):
        assert blocks_us(replace(BLOCKS, blocks=blocks, turns=turns, resident=resident), H200) >= least


def test_a_lengthened_work_takes_that_many_times_as_long() -> None:
    """Traffic, operations, waits and launches, whichever decides."""
    for work in (Work(3, global_bytes=1 << 24, serial_us=3.0), Work(operations=(Operations(1 << 34, "bf16", 0.5),))):
        assert price_work(replace(work, time_factor=2.5), H200).us == pytest.approx(2.5 * price_work(work, H200).us)


def test_a_last_wave_takes_its_round_trips_however_small() -> None:
    """Full waves move at the memory's pace, and one block more waits for all of its loads."""
    slots = 4 * H200.num_multiprocessors
    full, more, slow = (price_work(Work(global_bytes=1 << 28, waves=Waves(blocks, 4, 1 << 14, last_us, 0.0)), H200).global_us
                        for blocks, last_us in ((slots, 9.0), (slots + 1, 9.0), (slots + 1, 20.0)))
    assert full == pytest.approx((1 << 28) / H200.global_bytes_per_s * 1e6)
    assert more - full == pytest.approx(9.0, rel=0.02) and slow - more == pytest.approx(11.0)


def test_waits_of_small_walks_are_counted() -> None:
    """Stores wait for nothing, few multiprocessors reach a part of the bandwidth, operations and exchanges of threads come behind."""
    writes = Work(grid=Launch(2, 128), read_bytes=1 << 8, global_bytes=1 << 16)
    assert price_work(writes, H200).global_us < price_work(replace(writes, read_bytes=1 << 16), H200).global_us / 2
    few, many = (price_work(replace(writes, grid=Launch(n, 128)), H200).global_us for n in (2, 200))
    assert few > many
    late = replace(writes, item_operations=100.0, exchange=StageWork(wait_cycles=300.0))
    assert price_work(late, H200).us - price_work(writes, H200).us == pytest.approx(
        (300.0 + 100.0 * H200.fitted.waits.operation_cycles) / clock_hz(H200) * 1e6)
    assert price_work(late, host_device()).us == price_work(writes, host_device()).us, "threads of a processor's block are one loop"


def test_the_launch_of_a_kernel_that_begins_early_passes_meanwhile() -> None:
    """Its own time counts, and no kernel takes less than the interval of launches."""
    work = Work(global_bytes=1 << 26)
    late, early = price_work(work, H200).us, price_work(replace(work, starts_early=True), H200).us
    assert late - early == pytest.approx(H200.graph_launch_us)
    assert price_work(Work(starts_early=True), H200).us == H200.graph_launch_us
