"""Rows beside a vector that their block prepares once: what is prepared, when it is chosen, and what stands ahead of the wait."""
from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.unit.templates.composed_cases import rows
from tests.unit.templates.host_build import compiler, run
from tests.unit.templates.pattern_graphs import Pattern, layer_norm, normed_product, row_sums, softmax, vector_product
from tests.unit.templates.shared_products import products_of_one_row
from tilefuse.base.options import Options
from tilefuse.domain.domain import find_domain
from tilefuse.domain.resolved import Domain
from tilefuse.domain.tile import TileProgram
from tilefuse.driver.compile import generate
from tilefuse.ir.graph import Graph
from tilefuse.ir.interpret import interpret
from tilefuse.kernel.asynchronous import BulkCopy, Prefetch
from tilefuse.kernel.early import PrefetchOnly, before_waiting, fetched_early, untimely
from tilefuse.kernel.visit import statements
from tilefuse.target.device import H200
from tilefuse.templates.compose import compose
from tilefuse.templates.pattern import schedule_graph, schedule_pattern
from tilefuse.templates.rows.modes import RowQueue, Rows
from tilefuse.templates.rows.shared.prepared import prepared_reads, prepared_values


def domain_of(graph: Graph) -> Domain:
    """The domain of a pattern."""
    domain = find_domain(graph, {})
    assert isinstance(domain, Domain), domain
    return domain


def queued(graph: Graph, threads: int = 32, slots: int = 2) -> TileProgram:
    """Rows of 512 elements in queues of teams, by three blocks of four rows each."""
    choice = rows(8, threads, 64 // threads, rows=4, on_chip=False, batch=64 // threads, stages=slots, groups=3)(domain_of(graph))
    program = schedule_graph(graph, {}, H200, choice)
    assert isinstance(program, TileProgram), program
    return program


def test_a_norm_of_what_all_rows_share_is_prepared() -> None:
    """Its sum, and the vector that rows read; nothing where each row has a norm of its own, or rows share what is stored."""
    domain = domain_of(normed_product(37, 512, "bf16").graph)
    prepared = prepared_values(domain)
    assert [i.node.name for i in prepared.reductions] == ["q"] and [i.node.name for i in prepared.vectors] == ["n"]
    assert prepared_reads(domain) == {"x", "s"}
    for pattern in (softmax(37, 512), layer_norm(37, 512), row_sums(37, 512)):
        assert not prepared_values(domain_of(pattern.graph)).vectors


def test_a_layer_norm_of_what_all_rows_share_is_prepared() -> None:
    """Its sum, and its squared deviations as the second pass over elements on chip; the kernel computes both ahead of its rows."""
    graph = products_of_one_row((4096,), 2048, "bf16", norm="layer").graph
    program = schedule_pattern(graph, [n.name for n in graph.nodes], {}, H200)
    assert isinstance(program, TileProgram) and isinstance(program.choice, Rows) and isinstance(program.choice.mode, RowQueue)
    prepared = prepared_values(program.domain)
    assert [i.node.name for i in prepared.reductions] == ["t", "q"] and [i.node.name for i in prepared.vectors] == ["n"]


@pytest.mark.parametrize(("num_rows", "length", "shared"), [(4096, 4096, True), (11008, 4096, True), (4096, 11008, True), (40, 64, False)])
def test_the_price_chooses_it_for_large_matrices(num_rows: int, length: int, shared: bool) -> None:
    """One kernel, whose blocks all run at once."""
    program = schedule_graph(normed_product(num_rows, length, "bf16").graph, {}, H200)
    assert isinstance(program, TileProgram), program
    assert isinstance(program.choice, Rows)
    assert isinstance(program.choice.mode, RowQueue) is shared
    if shared:
        assert program.launch.num_blocks <= H200.num_multiprocessors
        assert program.choice.mode.slots * program.choice.rows * length * 2 <= H200.shared_bytes_per_multiprocessor


BOTH = pytest.mark.parametrize("pattern", [normed_product(37, 512, "bf16"), vector_product(37, 512, "bf16")], ids=["prepared", "as it is"])


@BOTH
def test_settled_rows_set_out_before_the_wait(pattern: Pattern) -> None:
    """By bulk copies, which bypass L1; what else the kernel reads comes behind the wait."""
    program, settled = queued(pattern.graph), frozenset({"w"})
    kernel = compose(program, H200, settled)
    assert fetched_early(kernel) == settled and untimely(kernel, settled) == []
    assert any(isinstance(s, BulkCopy) for s in statements(before_waiting(kernel)))
    assert untimely(kernel, frozenset()) and untimely(kernel, PrefetchOnly(settled))
    assert before_waiting(compose(program, H200)) == () and before_waiting(compose(program, H200, frozenset({"x"}))) == ()


@BOTH
def test_rows_that_the_kernel_ahead_may_write_are_prefetched(pattern: Pattern) -> None:
    """Into L2 alone: the copies stand behind the wait."""
    program, settled = queued(pattern.graph), PrefetchOnly({"w"})
    kernel = compose(program, H200, settled)
    ahead = list(statements(before_waiting(kernel)))
    assert fetched_early(kernel) == settled and untimely(kernel, settled) == []
    assert any(isinstance(s, Prefetch) for s in ahead) and not any(isinstance(s, BulkCopy) for s in ahead)


def test_a_program_prefetches_the_rows_of_its_first_kernel() -> None:
    """And of no kernel where the option says that kernels stand ready alone."""
    graph = normed_product(4096, 4096, "bf16").graph
    for option, prefetches in (("inputs", True), ("ready", False), ("off", False)):
        (kernel,) = generate(graph, constants={}, device=H200, options=Options(early_start=option)).spec.kernels
        before = kernel.source[kernel.source.index('extern "C"'):].partition("tf_wait_for_earlier_kernel();")[0]
        assert ("tf_prefetch(w" in before) is prefetches and "tf_bulk_copy" not in before.partition("tf_bulk_init")[0]
        assert kernel.launch.early is (option != "off")


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize("settled", [frozenset({"w"}), PrefetchOnly({"w"})], ids=["copied", "prefetched"])
@pytest.mark.parametrize("pending_share", [0.0, 1.0])
@BOTH
def test_kernels_that_begin_early_compute_their_rows(pattern: Pattern, settled: frozenset[str], pending_share: float,
                                                     tmp_path: Path) -> None:
    """No finding of the checking mode, which tests each prefetched address too; the last turn has rows beyond the end."""
    device = replace(H200, fitted=replace(H200.fitted, traffic=replace(H200.fitted.traffic, pending_l2_share=pending_share)))
    kernel = compose(queued(pattern.graph), device, settled)
    values = pattern.inputs(np.random.default_rng(7))
    inputs = {b.name: values[b.origin].ravel() for b in kernel.parameters if b.role == "in"}
    memory, status, report = run(kernel, inputs, tmp_path, check=True)
    assert status == 0, report
    assert pattern.bounds is not None
    (bound,), (wanted,) = pattern.bounds(values), interpret(pattern.graph, values)
    out = next(b.name for b in kernel.parameters if b.role == "out")
    assert (np.abs(memory[out].astype(np.float64) - np.asarray(wanted, dtype=np.float64).ravel()) <= 2 * bound.ravel()).all()
