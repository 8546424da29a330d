"""Pipelined products with reductions over rows: kernels on the checking host executor, forms, tiles as text."""
from __future__ import annotations

import ctypes
import re
from collections.abc import Callable

import pytest

from tests.unit.templates.host_build import CHECKED_FLAGS, build_together, call, compiler
from tests.unit.templates.staged.pipelined.product_graphs import plain, product
from tests.unit.templates.staged.pipelined.row_cases import IN_CLUSTERS, ROW_CASES, RowCase
from tests.unit.templates.staged.pipelined.row_graphs import residual_norm, soft
from tests.unit.templates.stitched_graphs import normal
from tilefuse.base.candidate import Rejected
from tilefuse.domain.tile import Level, TileProgram
from tilefuse.ir.building.tensor import TensorBuilder
from tilefuse.ir.dtype import F16
from tilefuse.ir.graph import Graph
from tilefuse.printers.cuda import print_cuda
from tilefuse.target.device import H200
from tilefuse.templates.notation import parse_template
from tilefuse.templates.staged.pipelined.choose import candidates
from tilefuse.templates.staged.pipelined.compose import compose_product
from tilefuse.templates.staged.pipelined.form import ProductForm, product_form
from tilefuse.templates.staged.pipelined.record import Pipelined
from tilefuse.templates.staged.pipelined.template import PipelinedTemplate, plan_of, product_by_hand, schedule_product

needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """All kernels with every access checked, in one source."""
    return build_together([(compose_product(c.program(), H200), True) for c in ROW_CASES.values()], tmp_path_factory.mktemp("rows"),
                          CHECKED_FLAGS)


@needs_compiler
@pytest.mark.parametrize("name", ROW_CASES)
def test_kernel_computes_rows(name: str, library: ctypes.CDLL) -> None:
    """Every element of every result, with every access of the kernel checked."""
    case, place = ROW_CASES[name], list(ROW_CASES).index(name)
    graph, kernel = case.program().graph, compose_product(case.program(), H200)
    inputs = case.inputs(graph)
    arrays = {b.name: inputs[b.origin].ravel() for b in kernel.parameters if b.role == "in"}
    memory, status, report = call(getattr(library, f"{kernel.name}_{place}"), kernel, arrays)
    assert status == 0, report
    name_by_origin = {b.origin: b.name for b in kernel.parameters}
    case.check(graph, inputs, [memory[name_by_origin[r]] for r in graph.results])


@pytest.mark.parametrize("name", ROW_CASES)
def test_a_template_gives_its_program_back(name: str) -> None:
    """The program's own notation, parsed; clusters are a level of the columns."""
    program = ROW_CASES[name].program()
    again = product_by_hand(program, parse_template(program.notation), H200)
    assert (again.choice, again.notation) == (program.choice, program.notation)
    assert isinstance(again.choice, Pipelined) and ("CLUSTER_" in again.notation) == (again.choice.cluster > 1)


def test_scattered_clusters_meet_in_global_memory() -> None:
    """Blocks of any multiprocessors, all at once: no instruction of hardware's clusters, and nothing of the exchange in shared memory."""
    program = ROW_CASES["layer norm in turn in scattered clusters"].program()
    kernel = compose_product(program, H200)
    text = print_cuda(kernel, H200)
    assert "tf_scattered_meet<128>(met + " in text and not re.search(r"tf_cluster_(rank|meet|barrier|send|receive)\(", text)
    assert kernel.launch.scattered and not kernel.launch.early and plan_of(program).num_signals == plan_of(program).first_signal
    assert {b.role for b in kernel.buffers if b.space == "global"} == {"in", "out", "workspace", "counter"}


def test_scattered_clusters_use_every_multiprocessor() -> None:
    """Hardware's clusters of six blocks leave thirty of 132 idle."""
    form = product_form(residual_norm(16384, 768, 3072), {})
    assert isinstance(form, ProductForm)
    blocks = {c.scattered: c.blocks for c in candidates(form, H200) if c.pingpong and (c.rows, c.columns) == (128, 128)}
    assert blocks == {False: 102, True: 132}


def _passes(graph: Graph) -> list[tuple[tuple[str, ...], str]]:
    form = product_form(graph, {})
    assert isinstance(form, ProductForm), form
    return [(p.reductions, p.target) for s in form.reduced.stages for p in s.passes]


def test_elements_that_later_passes_need_replace_the_sums() -> None:
    """Softmax keeps the rounded product, then the exponentials; a norm keeps the sum with the residual, which is a result as well."""
    assert _passes(soft(64, 64, 64)) == [(("softmax_max",), "matmul"), (("softmax_sum",), "softmax_exp")]
    assert _passes(residual_norm(64, 64, 64)) == [(("layer_norm_sum", "layer_norm_m2"), "add_1"), (("layer_norm_m2",), "add_1")]


def test_blocks_of_a_cluster_hold_whole_rows() -> None:
    """4096 columns are sixteen tiles of 256; each block has its part of every row, and one exchange is counted for each stage."""
    plan = plan_of(RowCase(lambda: soft(1024, 4096, 512), Pipelined(128, 256, 64, 3, 2, 1, 112, cluster=16)).program())
    assert plan.choice.cluster * plan.choice.columns >= 4096 and plan.choice.blocks % plan.choice.cluster == 0
    ending = plan.work.blocks[0].tile[-1]
    assert len(plan.exchanges) == 2 and ending.wait_cycles >= 2 * H200.fitted.pipelined.exchange_cycles


def test_explanations_show_clusters() -> None:
    """The cluster's tile, the parts of rows in shared memory, and the level of what is reduced."""
    template, program = PipelinedTemplate(), ROW_CASES["softmax in clusters"].program()
    tiles = {t.level: dict(t.extents) for t in template.tiles(program, program.launch)}
    assert tiles["cluster"]["column"] == 2 * tiles["block"]["column"]
    assert {p.value for p in template.staging(program).places} >= {"softmax_max", "softmax_sum"}
    levels = {(e.producer, e.user): e.level for e in program.levels}
    assert levels["matmul", "softmax_max"] is Level.REGISTER and levels["softmax_max", "softmax_exp"] is Level.CLUSTER


def test_neighbours_hold_whole_rows() -> None:
    """Tuning tries other tiles, each with as many blocks a cluster as its columns need."""
    template, program = PipelinedTemplate(), RowCase(lambda: soft(1024, 512, 512)).program()
    fits = [p for c in template.neighbours(program, H200) for p in [template.program_with(program, c, H200)] if isinstance(p, TileProgram)]
    choices = [p.choice for p in fits]
    assert len({c.cluster for c in choices if isinstance(c, Pipelined)}) > 2
    assert all(isinstance(c, Pipelined) and c.columns * c.cluster // 2 < 512 <= c.cluster * c.columns for c in choices)


@pytest.mark.parametrize(("choice", "told"), [
    (Pipelined(64, 64, 64, 2, 1, 1, 4, cluster=2), "clusters of 2 tiles of 64 columns for rows of 200"),
    (Pipelined(64, 64, 64, 2, 1, 1, 32, cluster=32), "clusters of 32 blocks"),
    (Pipelined(64, 128, 64, 2, 1, 1, 3, cluster=2), "3 blocks are no whole clusters of 2"),
    (Pipelined(64, 128, 64, 2, 1, 1, 134, cluster=2, scattered=True), "134 blocks that wait for each other, and h200 runs 132 at once"),
    (Pipelined(64, 128, 64, 2, 1, 1, 4, cluster=2, multicast=True, scattered=True), "scattered clusters of 2 blocks, which exchange parts"),
    (Pipelined(64, 256, 64, 2, 1, 1, 4, scattered=True), "scattered clusters of 1 blocks"),
])
def test_tiles_that_hold_no_whole_rows(choice: Pipelined, told: str) -> None:
    """The reason names the numbers."""
    rejected = schedule_product(soft(140, 200, 72), {}, H200, choice)
    assert isinstance(rejected, Rejected) and told in rejected.detail


def test_clusters_need_rows_to_share() -> None:
    """A product without reductions has no clusters."""
    rejected = schedule_product(plain(140, 200, 72), {}, H200, IN_CLUSTERS)
    assert isinstance(rejected, Rejected) and "that nothing reduces" in rejected.detail


def _down_columns() -> Graph:
    b = TensorBuilder("down")
    return normal(b, [b.reduce(product(b, (), 64, 64, 64, F16), "sum", (0,))])


def _beside() -> Graph:
    b = TensorBuilder("beside")
    return normal(b, [product(b, (), 64, 64, 64, F16), b.reduce(b.input("z", F16, (64, 64)), "max", (1,))])


def _turned() -> Graph:
    b = TensorBuilder("turned")
    y = product(b, (), 64, 64, 64, F16)
    return normal(b, [b.elementwise("mul", y, b.reshape(b.reduce(y, "max", (1,)), (1, 64)))])


@pytest.mark.parametrize(("graph", "told"), [
    (_down_columns, "other elements than those of whole rows"), (_beside, "does not depend on the product"), (_turned, "another element"),
    (lambda: soft(64, 16 * 256 + 1, 64), "rows of 4097 columns, and the blocks of a cluster hold 4096 at most"),
], ids=["sums down columns", "of another value", "of another row", "too wide"])
def test_patterns_that_are_none(graph: Callable[[], Graph], told: str) -> None:
    """The reason names what stands in the way."""
    rejected = schedule_product(graph(), {}, H200)
    assert isinstance(rejected, Rejected) and told in rejected.detail
