"""Pipelined products whose inner axis is divided into parts: kernels on the checking host executor, texts, candidates, price."""
from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tests.mutation.test_pipeline_faults import changed
from tests.unit.templates.host_build import CHECKED_FLAGS, build_together, call, compiler
from tests.unit.templates.staged.pipelined.product_graphs import batched_heads, dequantised, gated, padded, pair, plain
from tests.unit.templates.staged.pipelined.row_graphs import residual_norm
from tests.unit.templates.staged.pipelined.test_pipelined import ROUNDOFF, Case, drawn
from tests.unit.templates.stitched_cases import in_double
from tilefuse.base.candidate import Rejected
from tilefuse.base.errors import UserError
from tilefuse.domain.roofline import price_work
from tilefuse.domain.tile import Level
from tilefuse.ir.affine import number
from tilefuse.ir.dtype import BF16, F32
from tilefuse.ir.graph import Graph
from tilefuse.ir.interpret import interpret
from tilefuse.kernel.ir import Barrier, ClusterStore, Kernel, LastBlock, Let, Stmt, VectorStore
from tilefuse.kernel.visit import statements
from tilefuse.target.device import H200
from tilefuse.templates.notation import parse_template
from tilefuse.templates.staged.pipelined.compose import compose_product
from tilefuse.templates.staged.pipelined.record import Pipelined
from tilefuse.templates.staged.pipelined.template import PipelinedTemplate, plan_of, product_by_hand, schedule_product

needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")

SPLIT_CASES = {
    "a workspace": Case(lambda: gated(70, 136, 264), Pipelined(64, 64, 64, 2, 1, 2, 9, split=3)),
    "a cluster": Case(lambda: plain(70, 136, 264), Pipelined(64, 64, 64, 2, 1, 2, 12, cluster=2, split=2)),
    "a gated pair, eight columns a block": Case(lambda: pair(136, 72, 488, kept=True),
                                                Pipelined(64, 64, 64, 2, 1, 1, 48, cluster=8, split=8)),
    "a residual by copies, two warpgroups": Case(lambda: gated(140, 264, 200),
                                                 Pipelined(128, 128, 64, 2, 2, 2, 12, cluster=2, split=2)),
    "clusters, tiles in turns": Case(lambda: gated(136, 200, 456), Pipelined(128, 64, 64, 2, 2, 1, 4, cluster=2, split=4)),
    "tf32, a batch": Case(lambda: pair(66, 72, 140, F32, lead=(2,), precision="tf32"), Pipelined(64, 64, 32, 2, 1, 1, 6, split=3)),
    "by threads, odd sizes": Case(lambda: plain(67, 33, 455, BF16), Pipelined(64, 64, 64, 2, 1, 1, 4, cluster=2, split=4)),
    "heads of a batch": Case(lambda: batched_heads(2, 128, 2, 64, 136), Pipelined(64, 128, 64, 2, 1, 1, 8, cluster=2, split=2)),
    "a window": Case(lambda: padded(129, 130, 135, (True, False)), Pipelined(128, 64, 64, 3, 2, 1, 6, split=2)),
    "three blocks, one of which finishes": Case(lambda: gated(70, 72, 264), Pipelined(64, 64, 64, 2, 1, 1, 12, cluster=3, split=3)),
    "six blocks, two of which finish": Case(lambda: gated(70, 72, 760), Pipelined(64, 64, 64, 2, 1, 2, 6, cluster=6, split=12)),
    "few rows in a cluster, one block of which finishes": Case(lambda: gated(5, 136, 264),
                                                               Pipelined(64, 8, 64, 2, 1, 1, 9, cluster=3, swapped=True, split=3)),
    "few rows through both": Case(lambda: pair(30, 200, 456), Pipelined(128, 32, 64, 2, 2, 1, 4, cluster=2, swapped=True, split=4)),
    "weights of int8": Case(lambda: dequantised(70, 72, 456), Pipelined(64, 64, 64, 2, 1, 1, 8, cluster=2, split=4)),
    "rows that are reduced": Case(lambda: residual_norm(70, 72, 264), Pipelined(64, 128, 64, 2, 1, 1, 4, split=2)),
    "chosen": Case(lambda: gated(70, 72, 1544, BF16)),
}


def scaled(graph: Graph) -> dict[str, np.ndarray]:
    """Inputs of which sums stay near one, so that activations behind them are not flat."""
    inner = graph.inputs[0].type.shape[-1]
    return {n: v if v.dtype.kind == "i" else (v * (inner ** -0.5 if n == "w" else 1)).astype(v.dtype) for n, v in drawn(graph).items()}


def _arrays(kernel: Kernel, graph: Graph) -> dict[str, np.ndarray]:
    values = scaled(graph)
    return {b.name: values[b.origin].ravel() for b in kernel.parameters if b.role == "in"}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """All kernels with every access checked, in one source."""
    return build_together([(compose_product(c.program(), H200), True) for c in SPLIT_CASES.values()], tmp_path_factory.mktemp("split"),
                          CHECKED_FLAGS)


@needs_compiler
@pytest.mark.parametrize("name", SPLIT_CASES)
def test_kernel_adds_its_parts(name: str, library: ctypes.CDLL) -> None:
    """Every element of every result against f64, with every access checked; counters end at zero."""
    program = SPLIT_CASES[name].program()
    graph, kernel = program.graph, compose_product(program, H200)
    memory, status, report = call(getattr(library, f"{kernel.name}_{list(SPLIT_CASES).index(name)}"), kernel, _arrays(kernel, graph))
    assert status == 0, report
    wanted = interpret(in_double(graph), {n: v.astype(np.float64) if v.dtype.kind == "f" or "f" in str(graph.type_of(n).dtype) else v
                                          for n, v in scaled(graph).items()})
    name_by_origin = {b.origin: b.name for b in kernel.parameters}
    for result, value in zip(graph.results, wanted, strict=True):
        got, value = memory[name_by_origin[result]].astype(np.float64), np.asarray(value).ravel()
        assert np.abs(got - value).max() <= 8 * ROUNDOFF[graph.type_of(result).dtype.name] * max(np.abs(value).max(), 1.0), result


@pytest.mark.parametrize("name", SPLIT_CASES)
def test_a_template_gives_its_program_back(name: str) -> None:
    """The program's own notation, parsed: clusters and the grid are levels of the inner axis."""
    program = SPLIT_CASES[name].program()
    again = product_by_hand(program, parse_template(program.notation), H200)
    assert (again.choice, again.notation) == (program.choice, program.notation)
    assert isinstance(again.choice, Pipelined) and again.choice.split > 1


def test_a_template_divides_the_inner_axis() -> None:
    """Twelve parts, four a cluster, as a user writes them; without them the inner axis is whole again."""
    program = Case(lambda: plain(64, 64, 4096), Pipelined(64, 64, 64, 4, 1, 1, 1)).program()
    written = "matmul [GRID-CTA_64,GRID-CTA_64,GRID_2-CLUSTER_4-LOOP_64]RG; slots=4; cta_num=8;"
    divided = product_by_hand(program, parse_template(written), H200)
    assert divided.choice == Pipelined(64, 64, 64, 4, 1, 1, 8, cluster=4, split=8)
    whole = product_by_hand(divided, parse_template("matmul [GRID-CTA_64,GRID-CTA_64,LOOP_64]RG; cta_num=1;"), H200)
    assert isinstance(whole.choice, Pipelined) and (whole.choice.split, whole.choice.cluster) == (1, 1)


@pytest.mark.parametrize(("written", "told"), [
    ("matmul [GRID-CTA_64,GRID-CTA_64,GRID_9-LOOP_64];", "9 parts of an inner axis of 512, in steps of 64: some would be empty"),
    ("matmul [GRID-CTA_64,GRID-CTA_64,CLUSTER_20-LOOP_64];", "clusters of 20 blocks"),
    ("matmul [GRID-CTA_64,GRID-CTA_64,GRID_2-LOOP_64]; warpgroups=2; pingpong=true;", "warpgroups that take turns do not meet"),
])
def test_templates_that_cannot_be_met(written: str, told: str) -> None:
    """The error names the number."""
    program = Case(lambda: plain(512, 512, 512), Pipelined(64, 64, 64, 4, 1, 1, 64)).program()
    with pytest.raises(UserError) as raised:
        product_by_hand(program, parse_template(written + " cta_num=6;"), H200)
    assert told in str(raised.value)


def test_rows_that_are_reduced_need_whole_sums() -> None:
    """Blocks of a cluster finish some columns of a tile each."""
    rejected = schedule_product(residual_norm(70, 72, 264), {}, H200, Pipelined(64, 128, 64, 2, 1, 1, 4, cluster=2, split=2))
    assert isinstance(rejected, Rejected) and "whole sums in one block" in rejected.detail


# -- choices ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(256, 256, 65536), (512, 512, 16384), (128, 768, 3072)])
def test_few_tiles_are_divided(size: tuple[int, int, int]) -> None:
    """About half of the multiprocessors or more have a part of some tile, and the price is less than half of that of whole tiles."""
    plan = plan_of(Case(lambda: plain(*size, BF16)).program())
    assert plan.choice.split > 1 and plan.choice.blocks > H200.num_multiprocessors // 3
    whole = plan_of(Case(lambda: plain(*size, BF16), replace(plan.choice, split=1, cluster=1)).program())
    assert 2 * price_work(plan.work, H200).us < price_work(whole.work, H200).us


def test_parts_meet_behind_the_traffic() -> None:
    """Sums of parts of which each block has one are sent when all operands have come; those of blocks with several beside them."""
    once, turns = (plan_of(Case(lambda: plain(128, 128, 4096, BF16), Pipelined(64, 64, 64, 4, 1, 1, blocks, cluster=2, split=4)).program())
                   for blocks in (16, 8))
    assert len(once.work.behind) == 3 and len(once.work.blocks[0].tile) == 1
    assert not turns.work.behind and turns.work.blocks[0].tile[1:] == once.work.behind


def test_many_tiles_are_whole() -> None:
    """Every multiprocessor has a tile of 4096 x 4096 results."""
    choice = Case(lambda: plain(4096, 4096, 4096, BF16)).program().choice
    assert isinstance(choice, Pipelined) and choice.split == 1


def test_tuning_tries_other_numbers_of_parts() -> None:
    """In clusters, through a workspace, through both."""
    template, program = PipelinedTemplate(), Case(lambda: plain(256, 256, 65536, BF16)).program()
    ways = {(c.cluster_parts > 1, c.memory_parts > 1) for c in template.neighbours(program, H200)}
    assert ways == {(False, False), (False, True), (True, False), (True, True)}


def test_explanations_show_parts() -> None:
    """Where sums meet, and the shared memory that it takes."""
    template, program = PipelinedTemplate(), SPLIT_CASES["clusters, tiles in turns"].program()
    tiles = {t.level: dict(t.extents) for t in template.tiles(program, program.launch)}
    assert tiles["cluster"]["inner"] == 2 * tiles["block"]["inner"] and tiles["cluster"]["column"] == tiles["block"]["column"]
    received = template.plan_of(program).received
    assert received is not None
    assert ("matmul", received.offset_bytes, received.num_bytes) in {(p.value, p.offset_bytes, p.num_bytes)
                                                                     for p in template.staging(program).places}
    assert {e.level for e in program.levels if e.producer == "matmul"} == {Level.GLOBAL}
    of_cluster = SPLIT_CASES["a residual by copies, two warpgroups"].program()
    assert {e.level for e in of_cluster.levels if e.producer == "matmul"} == {Level.CLUSTER}


# -- planted faults --------------------------------------------------------------------------------------------------------

FAULTY = Case(lambda: plain(70, 72, 456), Pipelined(64, 64, 64, 2, 1, 2, 4, cluster=2, split=4))
Change = Callable[[Stmt], tuple[Stmt, ...] | None]


def _last_of(kind: type, kernel: Kernel) -> Stmt:
    return [s for s in statements(kernel.body) if isinstance(s, kind)][-1]


def _of(kind: type, make: Callable[[Stmt], tuple[Stmt, ...]]) -> Callable[[Kernel], Change]:
    return lambda kernel: lambda s: make(s) if isinstance(s, kind) else None


def _at_first(s: Stmt) -> tuple[Stmt, ...]:
    assert isinstance(s, Let)
    return (replace(s, value=number(0)),) if s.name == "copy" else (s,)


def _arrivals(s: Stmt, count: int) -> tuple[Stmt, ...]:
    assert isinstance(s, LastBlock)
    return (replace(s, count=count),)


def _to_workspace(make: Callable[[VectorStore], tuple[Stmt, ...]]) -> Callable[[Kernel], Change]:
    return lambda kernel: lambda s: make(s) if isinstance(s, VectorStore) and s.buffer == "matmul_parts" else None


FAULTS: dict[str, tuple[Callable[[Kernel], Change], str]] = {
    "no wait for the cluster's sums": (_of(Barrier, lambda s: () if isinstance(s, Barrier) and s.signal is not None else (s,)), "race"),
    "fewer bytes": (_of(Barrier, lambda s: (replace(s, num_bytes=s.num_bytes - 16),) if isinstance(s, Barrier) and s.signal is not None
                        else (s,)), "bytes of an exchange are not those that are sent"),
    "sums that are not sent": (lambda k: lambda s: () if s is _last_of(ClusterStore, k) else None,
                               "bytes of an exchange are not those that are sent"),
    "one copy for all tiles": (_of(Let, _at_first), "exchange in a phase that is not the barrier's next"),
    "a part that is not stored": (_to_workspace(lambda s: ()), "unwritten"),
    "a part of another tile": (_to_workspace(lambda s: (replace(s, index=number(0)),)), "race"),
    "the last arrives too early": (_of(LastBlock, lambda s: _arrivals(s, 1)), "unwritten"),
    "nobody is last": (_of(LastBlock, lambda s: _arrivals(s, 3)), "never written"),
}


@needs_compiler
@pytest.mark.slow
def test_findings_name_the_fault(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Faults of order and of counts are found also where the host's result happens to be right."""
    kernel = compose_product(FAULTY.program(), H200)
    kernels = [kernel, *(replace(kernel, body=changed(kernel.body, change(kernel))) for change, _ in FAULTS.values())]
    built = build_together([(k, True) for k in kernels], tmp_path_factory.mktemp("faults"), CHECKED_FLAGS)
    arrays = _arrays(kernel, FAULTY.program().graph)
    for n, (name, message) in enumerate([("none", ""), *((name, message) for name, (_, message) in FAULTS.items())]):
        _, status, report = call(getattr(built, f"{kernel.name}_{n}"), kernels[n], arrays)
        assert (status > 0) == bool(message) and message in report, (name, report)
