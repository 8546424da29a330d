"""Parts that the device's text of a queue of rows must hold: things that no host executor can show."""
from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tests.unit.templates.composed_cases import Case, ahead, rows, tiles
from tests.unit.templates.pattern_graphs import (
    batch_norm,
    layer_norm,
    norm_backward,
    residual_norm,
    row_sums,
    running_sum,
    softmax,
    transpose,
)
from tilefuse.printers.cuda import print_cuda
from tilefuse.target.device import H200

HELD = {
    "softmax": (softmax(7, 256), rows(4, 32, 2, stages=2, groups=3)),
    "layer norm in clusters": (layer_norm(9, 1024, "f16"), rows(8, 32, 2, cluster=2, stages=2, groups=2)),
    "sums carried along": (norm_backward(9, 256, 2), rows(4, 64, 1, lanes=2, stages=2, groups=2, span=5)),
}


@pytest.mark.parametrize("name", sorted(HELD))
def test_copies_wait_for_the_loads_of_what_they_overwrite(name: str) -> None:
    """Between a turn's loads from the queue and the next copy into it stands a barrier that reads what was loaded."""
    pattern, wanted = HELD[name]
    text = print_cuda(Case(name, pattern, {}, H200, wanted).kernel(), H200)
    turn = text[text.index("for (int turn"):]
    loaded = set(re.findall(r"tf_vector_load<\d+>\((\w+)(?: \+ [^,]*)?, \w+_queue", turn))
    barrier, copy = turn.index("tf_block_barrier_after("), turn.index("tf_bulk_copy(")
    assert loaded and barrier < copy
    assert set(re.findall(r"tf_all_bits\((\w+)\)", turn)) == loaded
    assert "__syncthreads" not in turn[:copy]


@pytest.mark.parametrize(("threads", "team"), ((8, 32), (64, 64)))
def test_teams_of_a_block_do_not_wait_for_each_other(threads: int, team: int) -> None:
    """Threads of one row, or of the rows of a warp, have a queue and barriers of their own until the walk over the rows is done."""
    wanted = rows(4, threads, 1, rows=128 // threads, lanes=2, stages=2, groups=2, span=50)
    text = print_cuda(Case("teams", norm_backward(100, 4 * threads, 2), {}, H200, wanted).kernel(), H200)
    turns = text[text.index("for (int turn"):text.index("registers -> shared memory")]
    loaded = set(re.findall(r"tf_vector_load<\d+>\((\w+)(?: \+ [^,]*)?, \w+_queue", turns))
    assert set(re.findall(r"tf_all_bits\((\w+)\)", turns)) == loaded
    assert turns.index(f"tf_team_barrier_after<{team}>(") < turns.index(f"tf_bulk_copy<{team}>(")
    assert "__syncthreads" not in turns and "tf_block_barrier" not in turns
    assert f"tf_arrivals[{2 * 128 // team}];" in text


def test_clusters_meet_without_waiting_for_memory() -> None:
    """Loads of the row are on their way when the blocks of a cluster meet for the first time."""
    text = print_cuda(Case("cluster", softmax(5, 1024), {}, H200, rows(4, 64, 2, cluster=2, lanes=2)).kernel(), H200)
    kernel = text[text.index("__global__"):]
    assert kernel.index("tf_vector_load_stream<") < kernel.index("tf_cluster_meet();") < kernel.index("tf_cluster_send(")
    assert "tf_cluster_barrier" not in kernel


@pytest.mark.parametrize("cluster", [1, 2])
def test_rows_ahead_are_sent_a_turn_before_they_are_received(cluster: int) -> None:
    """A turn sends the next row's partial results before it asks for its own row's, and frees its stage when the row is written."""
    wanted = ahead(8, 64, 2 // cluster, 3, 2, cluster=cluster)
    text = print_cuda(Case("ahead", layer_norm(9, 1024, "f16"), {}, H200, wanted).kernel(), H200)
    text = text[text.index("__global__"):]
    first, turn = text[:text.index("for (int turn")], text[text.index("for (int turn"):]
    sent, received = ("tf_cluster_send(", "tf_cluster_receive(") if cluster > 1 else ("s_shared[", "_slot = s_shared[")
    assert sent in first and received not in first
    assert turn.index("tf_bulk_wait(") < turn.index(sent) < turn.index(received) < turn.index("tf_vector_store")
    assert turn.index("tf_vector_store") < turn.rindex("__syncthreads()") < turn.index("tf_bulk_copy(")
    # Turns t - 1 to t + 2 may be under way in a cluster at a time: a transaction barrier each, beside those of the three stages.
    assert f"tf_arrivals[{3 + (4 if cluster > 1 else 0)}];" in text


def test_weights_of_channels_are_asked_for_before_the_row() -> None:
    """No thread waits for memory between the reductions and the elements."""
    text = print_cuda(Case("norm", batch_norm(4, 3, 16, 16), {}, H200, rows(4, 64, 2, cluster=2)).kernel(), H200)
    kernel = text[text.index("__global__"):]
    assert kernel.index("g_at = g[") < kernel.index("tf_cluster_meet();")


@pytest.mark.parametrize("dtype", ["f16", "f32"])
def test_a_sum_of_two_operands_is_held_in_their_place(dtype: str) -> None:
    """The elements are made from it; the two operands are loaded once and read by the reductions' walk alone. Its 16-bit elements are
    widened again: in single precision they would take as many registers as both operands."""
    wanted = rows(16 // (2 if dtype == "f16" else 4), 64, 2)
    text = print_cuda(Case("residual", residual_norm(5, 1024 if dtype == "f16" else 512, dtype), {}, H200, wanted).kernel(), H200)
    text = text[text.index("__global__"):]
    elements = text[text.index("registers -> global memory"):]
    assert text.count("x_v + ") == 1 and "z_v[" in elements and "x_v" not in elements and "r_v[" not in elements
    assert ("tf_renew(z_v)" in text) == (dtype == "f16") and "tf_renew(x_v)" not in text
    one = print_cuda(Case("alone", layer_norm(5, 1024, "f16"), {}, H200, rows(8, 64, 2)).kernel(), H200)
    assert "tf_renew" not in one


READ_LAST = {
    "a block a row": (softmax(7, 1024), rows(4, 64, 4), "vector"),
    "a cluster a row": (softmax(7, 1024), rows(4, 64, 2, cluster=2), "vector"),
    "clusters in turn": (layer_norm(9, 512), rows(4, 32, 2, cluster=2, stages=2, groups=2), "bulk"),
    "clusters, a turn ahead": (layer_norm(9, 512), ahead(4, 64, 1, 3, 2, cluster=2), "bulk"),
    "clusters, narrow elements": (layer_norm(9, 1024, "f16"), rows(8, 32, 2, cluster=2, stages=2, groups=2), ""),
    "clusters, more weights than row": (layer_norm(9, 512), rows(4, 32, 2, cluster=2), ""),
    "clusters of large blocks": (softmax(5, 4096), rows(4, 512, 1, cluster=2), ""),
    "clusters in turn, no weights": (softmax(7, 512), rows(4, 32, 2, cluster=2, stages=2, groups=3), ""),
    "channels of images": (batch_norm(4, 3, 16, 16), rows(4, 64, 2, cluster=2), ""),
    "blocks in turn": (softmax(7, 256), rows(4, 32, 2, stages=2, groups=3), ""),
    "several sums carried along": (norm_backward(9, 256, 2), rows(4, 64, 1, lanes=2, stages=2, groups=2, span=5), "bulk"),
    "carried without a queue": (norm_backward(9, 256, 2), rows(4, 64, 1, lanes=2, groups=2, span=5), ""),
    "nothing written but results": (row_sums(7, 1024), rows(4, 64, 2, cluster=2), ""),
    "a scan by clusters": (running_sum(7, 1024), rows(4, 64, 2, cluster=2), ""),
    "a matrix that is turned": (transpose(64, 80, "f16"), tiles("r0", "r1", (16, 16), 64, (8, 8)), "vector"),
}


@pytest.mark.parametrize("name", sorted(READ_LAST))
@pytest.mark.parametrize("floods", [True, False])
def test_elements_that_are_read_leave_the_cache_after_those_that_are_written(name: str, floods: bool) -> None:
    """Where the kernel moves more than the second-level cache holds; and only of rows and tiles, not of weights that all rows share."""
    pattern, wanted, kind = READ_LAST[name]
    text = print_cuda(Case(name, pattern, {}, replace(H200, l2_bytes=1 << 10 if floods else 1 << 30), wanted).kernel(), H200)
    kernel = text[text.index("__global__"):]
    found = {k for k in ("vector", "bulk") if re.search(rf"tf_{k}_(load|copy)_last<?", kernel)}
    assert found == ({kind} - {""} if floods else set())
    if kind == "bulk" and floods:
        assert "tf_bulk_copy(" not in kernel and "tf_bulk_copy<" not in kernel


@pytest.mark.parametrize(("dtype", "cluster", "early"), [("f32", 1, True), ("f32", 2, True), ("f16", 2, False)])
def test_what_needs_no_reduction_is_written_before_it(dtype: str, cluster: int, early: bool) -> None:
    """The sum of residual and norm, by blocks that hold its f32 row: residual and layer norm over 32768 took 69.3 us and takes 67.6."""
    width = 4 if dtype == "f32" else 8
    wanted = rows(width, 64, 2, cluster=cluster)
    pattern = residual_norm(5, width * 128 * cluster, dtype)
    text = print_cuda(Case("residual", pattern, {}, replace(H200, l2_bytes=1 << 10), wanted).kernel(), H200)
    text = text[text.index("__global__"):]
    stores = [m.start() for m in re.finditer(r"tf_vector_store\w*<", text)]
    assert len(stores) == 2
    assert [at < text.index("tf_shuffle_xor") for at in stores] == [early, False]
