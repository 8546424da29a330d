"""Pipelined products: forms that are one, their tiles as text, and their kernels on the checking host executor."""
from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tests.mutation.test_pipeline_faults import changed
from tests.unit.templates.host_build import Library, compiler, library_of, run
from tests.unit.templates.staged.pipelined.product_graphs import (
    activated,
    batched_heads,
    dequantised,
    gated,
    halves,
    heads,
    joined,
    looked_up,
    of_tokens,
    padded,
    pair,
    plain,
    queries_keys_values,
    split_heads,
    turned_copies,
    widened,
)
from tests.unit.templates.stitched_cases import in_double
from tests.unit.templates.stitched_graphs import normal
from tilefuse.base.candidate import Reason, Rejected
from tilefuse.base.errors import NameLookupError, OptionError, UserError
from tilefuse.domain.roofline import price_work
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.building.tensor import TensorBuilder
from tilefuse.ir.dtype import BF16, F16, F32, F64, I64, DType
from tilefuse.ir.graph import Graph
from tilefuse.ir.interpret import interpret
from tilefuse.ir.layouts import Layouts
from tilefuse.ir.scalar import NUMPY_DTYPES
from tilefuse.kernel.ir import VectorStore
from tilefuse.kernel.pipeline import Pipeline, Produce, WarpgroupProduct
from tilefuse.kernel.tensor_map import TensorCopy, TensorStore
from tilefuse.kernel.visit import statements
from tilefuse.printers.cuda import print_cuda
from tilefuse.target.device import H200
from tilefuse.templates.notation import parse_template
from tilefuse.templates.request import Request
from tilefuse.templates.staged.pipelined.compose import compose_product
from tilefuse.templates.staged.pipelined.record import Pipelined
from tilefuse.templates.staged.pipelined.template import PipelinedTemplate, plan_of, product_by_hand, schedule_product

needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
# Roundings on the way through the longest pattern, relative to the largest element.
ROUNDOFF = {"f16": 2.0**-11, "bf16": 2.0**-8, "f32": 2.0**-11}


@dataclass(frozen=True)
class Case:
    """A pattern, strides of its values where they are not dense, and tiles made by hand (None: chosen).

    by_threads: number of operands that producing threads load or compute; tensor copies bring the others
    """

    graph: Callable[[], Graph]
    wanted: Pipelined | None = None
    layouts: Layouts = field(default_factory=dict)
    by_threads: int = 0

    def program(self) -> TileProgram:
        """The tile program."""
        made = schedule_product(self.graph(), self.layouts, H200, self.wanted)
        assert isinstance(made, TileProgram), made
        return made


CASES = {
    "bias, activation, residual": Case(lambda: gated(200, 136, 72)),
    "two warpgroups, two slots": Case(lambda: gated(200, 136, 200), Pipelined(128, 128, 64, 2, 2, 1, 3)),
    "two rows of instructions, bands": Case(lambda: plain(520, 200, 72), Pipelined(256, 64, 64, 3, 2, 3, 5)),
    "two panels a slot": Case(lambda: plain(70, 72, 136, BF16), Pipelined(64, 64, 128, 2, 1, 2, 2)),
    "odd rows in memory": Case(lambda: plain(67, 33, 71), by_threads=2),
    "odd columns": Case(lambda: plain(67, 33, 72)),
    "inner axis first on the left": Case(lambda: plain(136, 72, 136, BF16, (True, False))),
    "columns contiguous": Case(lambda: plain(130, 136, 136, F16, (False, False))),
    "left turned, by threads": Case(lambda: plain(67, 72, 136, F16, (True, True)), by_threads=1),
    "batch": Case(lambda: plain(66, 72, 40, F16, lead=(2, 3))),
    "one right operand for the batch": Case(lambda: plain(66, 72, 40, F16, lead=(2, 3), shared=True)),
    "heads before rows": Case(lambda: heads(70, 3, 24, 64)),
    "heads of a batch before rows": Case(lambda: batched_heads(2, 128, 3, 64, 72)),
    "heads of a batch whose rows share tiles": Case(lambda: batched_heads(3, 40, 2, 64, 72), Pipelined(64, 128, 64, 2, 1, 1, 2)),
    "tokens of images": Case(lambda: of_tokens((3, 35), 136, 72)),
    "tokens of images in turn": Case(lambda: of_tokens((3, 67), 136, 72, BF16), Pipelined(64, 64, 64, 3, 2, 1, 3, pingpong=True)),
    "tokens of two batch axes": Case(lambda: of_tokens((2, 3, 19), 72, 72), Pipelined(64, 128, 64, 2, 1, 1, 2)),
    "tokens of images far apart": Case(lambda: of_tokens((3, 35), 136, 72), layouts={"residual": (40 * 136, 136, 1)}),
    "one element": Case(lambda: plain(1, 1, 1)),
    "one row": Case(lambda: plain(1, 264, 520)),
    "rows far apart": Case(lambda: plain(66, 72, 40), layouts={"x": (48, 1), "w": (40, 1)}),
    "a window of odd columns": Case(lambda: padded(70, 67, 72)),
    "a window of fewer tiles": Case(lambda: padded(129, 130, 71, (True, False)), Pipelined(128, 64, 64, 3, 2, 2, 4)),
    "a window of even columns": Case(lambda: padded(70, 66, 72, (False, False))),
    "a panel beyond the columns": Case(lambda: plain(128, 64, 128, F16, (False, False), lead=(3,)), Pipelined(128, 128, 64, 2, 1, 1, 2)),
    "a warpgroup beyond the rows": Case(lambda: plain(130, 136, 72), Pipelined(256, 64, 64, 2, 2, 1, 2)),
    "a gated pair": Case(lambda: pair(72, 136, 136)),
    "a gated pair of weights turned differently": Case(lambda: pair(136, 72, 136, BF16, (True, False)), Pipelined(128, 64, 64, 2, 2, 1, 3)),
    "a gated pair with biases, one product a result": Case(lambda: pair(70, 67, 72, biased=True, kept=True)),
    "a batch of gated pairs in tf32": Case(lambda: pair(66, 72, 40, F32, lead=(2,), precision="tf32")),
    "gated pairs in turn": Case(lambda: pair(200, 72, 72, kept=True), Pipelined(64, 64, 64, 3, 2, 1, 3, True)),
    "a gated pair, columns contiguous": Case(lambda: pair(200, 136, 72, BF16, (False, False)), Pipelined(128, 64, 64, 2, 2, 1, 2)),
    "a gated pair of 256 columns, columns contiguous": Case(lambda: pair(136, 264, 72, F16, (False, False), kept=True),
                                                            Pipelined(64, 128, 64, 2, 1, 1, 2)),
    "a gated pair of 128 rows a warpgroup": Case(lambda: pair(264, 72, 136, kept=True), Pipelined(128, 64, 64, 3, 1, 1, 2)),
    "a gated pair, two panels a slot": Case(lambda: pair(72, 72, 136), Pipelined(64, 64, 128, 2, 1, 1, 2)),
    "three products in turn": Case(lambda: queries_keys_values(136, 2, 64, 72, joined=False), Pipelined(128, 64, 64, 3, 2, 1, 2, True)),
    "one stage for each of three results": Case(lambda: queries_keys_values(130, 2, 64, 136, joined=True),
                                                Pipelined(64, 128, 64, 3, 2, 1, 2, True)),
    "halves of one product": Case(lambda: halves(70, 72, 136)),
    "halves of one product, columns contiguous": Case(lambda: halves(70, 72, 72, turned=False)),
    "thirds of one product at odd places": Case(lambda: halves(67, 33, 40, turned=False, parts=3), by_threads=3),
    "queries, keys and values of one weight": Case(lambda: queries_keys_values(66, 3, 24, 72, joined=True)),
    "tiles in turn": Case(lambda: gated(200, 136, 200), Pipelined(64, 64, 64, 3, 2, 1, 3, pingpong=True)),
    "an odd tile in turn": Case(lambda: plain(264, 72, 136, BF16, (True, False)), Pipelined(128, 128, 64, 2, 2, 3, 1, pingpong=True)),
    "one tile, two turns": Case(lambda: plain(66, 72, 520), Pipelined(128, 128, 64, 4, 2, 1, 1, pingpong=True)),
    "heads in turn, by threads": Case(lambda: heads(67, 2, 64, 71), Pipelined(64, 64, 64, 4, 2, 2, 1, pingpong=True), by_threads=2),
    "a gated pair in turn": Case(lambda: pair(72, 200, 136), Pipelined(64, 64, 64, 3, 2, 1, 1, pingpong=True)),
    "two results from kept sums": Case(lambda: activated(136, 200, 72), Pipelined(128, 128, 64, 2, 2, 1, 1)),
    "two results from kept sums in turn": Case(lambda: activated(200, 264, 72, BF16), Pipelined(64, 256, 64, 2, 2, 1, 3, pingpong=True)),
    "weights of int8 in turn": Case(lambda: dequantised(136, 72, 136), Pipelined(64, 64, 64, 3, 2, 1, 2, pingpong=True), by_threads=1),
    "rows of a table in turn, one step": Case(lambda: looked_up(456, 136, 64), Pipelined(64, 64, 64, 3, 2, 1, 2, pingpong=True),
                                              by_threads=1),
    "weights of int8 with scales": Case(lambda: dequantised(70, 72, 136), by_threads=1),
    "weights of int8 with scales, odd sizes": Case(lambda: dequantised(70, 71, 135), Pipelined(128, 64, 128, 2, 2, 1, 2), by_threads=2),
    "rows of a table": Case(lambda: looked_up(70, 136, 72), by_threads=1),
    "two tensors side by side": Case(lambda: joined(70, 72, (40, 32)), by_threads=1),
    "two tensors side by side at an odd place": Case(lambda: joined(70, 72, (41, 31)), by_threads=1),
    "converted operands": Case(lambda: widened(67, 72, 72), Pipelined(64, 128, 64, 3, 1, 1, 2), by_threads=2),
    "copies of odd rows": Case(lambda: turned_copies(72, 72, 136, 67), Pipelined(128, 64, 64, 3, 2, 1, 2), by_threads=2),
    "copies of operands in f32": Case(lambda: turned_copies(72, 136, 104, 67, "f32"), Pipelined(64, 64, 64, 3, 1, 1, 2), by_threads=2),
    "heads side by side": Case(lambda: split_heads(70, 3, 24, 72), by_threads=1),
    "rows at odd places": Case(lambda: plain(66, 72, 40), layouts={"x": (41, 1)}, by_threads=1),
}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    """The kernels of all cases with every access checked."""
    return library_of({name: compose_product(c.program(), H200) for name, c in CASES.items()}, tmp_path_factory.mktemp("products"))


@needs_compiler
@pytest.mark.parametrize("name", CASES)
def test_kernel_computes_the_product(name: str, library: Library) -> None:
    """Every element of every result, with every access of the kernel checked; sums in f32 against f64."""
    check_results(CASES[name], partial(library.run, name))


@pytest.mark.parametrize("name", CASES)
def test_operands_come_by_tensor_copies_where_a_map_describes_them(name: str) -> None:
    """Rows that begin at multiples of 16 bytes are copied; others are loaded by producing threads, which also compute operands."""
    kernel = compose_product(CASES[name].program(), H200)
    found = list(statements(kernel.body))
    assert any(isinstance(s, Pipeline) for s in found)
    produced = {s.threads: s for s in found if isinstance(s, Produce)}
    by_threads = {s.buffer for s in statements(produced[128].body) if isinstance(s, VectorStore)} if 128 in produced else set()
    copied = {s.buffer for s in found if isinstance(s, TensorCopy)}
    assert len(by_threads) == CASES[name].by_threads and bool(copied) == (1 in produced) and not by_threads & copied


def test_warpgroups_in_turn_pass_over_the_slots_of_every_ring() -> None:
    """Also of the ring that is used inside the other: the host's executor takes slots by their numbers, a device counts them."""
    both = [c for c in CASES.values() if isinstance(c.wanted, Pipelined) and c.wanted.pingpong and c.by_threads == 1]
    assert both
    for case in both:
        text = print_cuda(compose_product(case.program(), H200), H200).partition('extern "C"')[2]
        counts = {ring: set(re.findall(rf"tf_skip_slots<\d+, (\d+)>\(tf_{ring}_slot", text)) for ring in ("copied", "loaded")}
        assert counts["copied"] == counts["loaded"] and len(counts["copied"]) == 1


STAGED = {"bias, activation, residual": 2, "two warpgroups, two slots": 2, "two rows of instructions, bands": 1, "odd columns": 0,
          "heads before rows": 0, "heads of a batch before rows": 1, "heads of a batch whose rows share tiles": 0,
          "tokens of images": 1, "tokens of images in turn": 1, "tokens of two batch axes": 1, "tokens of images far apart": 1,
          "batch": 1, "one row": 0, "a panel beyond the columns": 1, "a warpgroup beyond the rows": 1}


@pytest.mark.parametrize("name", ["copies of odd rows", "copies of operands in f32", "converted operands"])
def test_loads_of_neighbouring_chunks_are_in_flight_together(name: str) -> None:
    """No load of an operand stands behind the first store of the same turn: also under guards of single elements, and of elements that
    are no neighbours in memory."""
    text = print_cuda(compose_product(CASES[name].program(), H200), H200)
    sections = text.partition('extern "C"')[2].partition("raise_registers")[0].split("chunks of a slot\n")[1:]
    assert len(sections) == CASES[name].by_threads
    for section in sections:
        loads, stores = ([m.start() for m in re.finditer(pattern, section)] for pattern in (r"\b[uv](\[| \+)", "tf_swizzled_store"))
        assert len(stores) > 1 and loads and max(loads) < min(stores)


@pytest.mark.parametrize("name", STAGED)
def test_results_leave_by_tensor_stores_where_a_map_describes_them(name: str) -> None:
    """Results of one row, of odd rows in memory and of permuted dimensions are stored by the threads that hold the sums."""
    kernel = compose_product(CASES[name].program(), H200)
    stored = {s.map for s in statements(kernel.body) if isinstance(s, TensorStore)}
    assert len(stored) == STAGED[name]


def test_tokens_of_images_cost_as_much_as_rows() -> None:
    """Images of 197 tokens lie as one matrix: a tile holds tokens of several images."""
    tokens, rows = (schedule_product(of_tokens(lead, 3072, 768), {}, H200) for lead in ((64, 197), (64 * 197,)))
    assert isinstance(tokens, TileProgram) and isinstance(rows, TileProgram)
    assert price_work(plan_of(tokens).work, H200).us == price_work(plan_of(rows).work, H200).us


@needs_compiler
def test_a_store_left_out_shows(tmp_path: Path) -> None:
    """Waits count stores: where one is left out, a stage is written while its store still reads it."""
    case = Case(lambda: plain(128, 128, 64), Pipelined(128, 128, 64, 2, 1, 1, 1))
    kernel = compose_product(case.program(), H200)
    second = [s for s in statements(kernel.body) if isinstance(s, TensorStore)][1]
    faulty = replace(kernel, body=changed(kernel.body, lambda s: () if s is second else None))
    values = drawn(case.graph())
    _, status, report = run(faulty, {b.name: values[b.origin].ravel() for b in kernel.parameters if b.role == "in"}, tmp_path, check=True)
    assert status > 0 and "write of memory that a tensor store still reads" in report


def check_results(case: Case, run_checked: Callable[[dict[str, np.ndarray]], tuple[dict[str, np.ndarray], int, str]]) -> None:
    """Runs the kernel of a case in checking mode (`Library.run`) and compares every element of every result with f64."""
    program = case.program()
    graph, kernel = program.graph, compose_product(program, H200)
    values = drawn(graph)
    memory, status, report = run_checked({b.name: _in_memory(values[b.origin], b.num_elements, case.layouts.get(b.origin))
                                          for b in kernel.parameters if b.role == "in"})
    assert status == 0, report
    wanted = interpret(in_double(graph), {n: v.astype(np.float64) if graph.type_of(n).dtype.is_float else v for n, v in values.items()})
    name_by_origin = {b.origin: b.name for b in kernel.parameters}
    for result, value in zip(graph.results, wanted, strict=True):
        got = memory[name_by_origin[result]].astype(np.float64)
        error = np.abs(got - np.asarray(value).ravel()).max()
        assert error <= 4 * ROUNDOFF[graph.type_of(result).dtype.name] * max(np.abs(value).max(), 1.0)


def drawn(graph: Graph) -> dict[str, np.ndarray]:
    """Seeded inputs in the inputs' types; integers from -100 to 99."""
    random = np.random.default_rng(7)
    return {v.name: (random.integers(-100, 100, v.type.shape) if v.type.dtype.is_integer else random.standard_normal(v.type.shape)).astype(
        NUMPY_DTYPES[v.type.dtype.name]) for v in graph.inputs}


def _in_memory(value: np.ndarray, num_elements: int, strides: tuple[int, ...] | None) -> np.ndarray:
    if strides is None:
        return value.ravel()
    memory = np.full(num_elements, np.nan).astype(value.dtype)
    np.lib.stride_tricks.as_strided(memory, value.shape, tuple(s * memory.itemsize for s in strides))[...] = value
    return memory


# -- texts -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_a_template_gives_its_program_back(name: str) -> None:
    """The program's own notation, parsed."""
    program = CASES[name].program()
    again = product_by_hand(program, parse_template(program.notation), H200)
    assert (again.choice, again.notation) == (program.choice, program.notation)


def test_a_template_changes_tiles() -> None:
    """Rows, columns, slots and blocks that a user writes."""
    program = Case(lambda: plain(512, 512, 256)).program()
    written = "matmul [GRID-CTA_128,GRID-CTA_128,LOOP_64]RG; slots=3; warpgroups=2; band=2; cta_num=7;"
    assert product_by_hand(program, parse_template(written), H200).choice == Pipelined(128, 128, 64, 3, 2, 2, 7)


TILE = "matmul [GRID-CTA_64,GRID-CTA_64,LOOP_64];"


@pytest.mark.parametrize(("written", "error", "told"), [
    ("matmul [GRID-CTA_100,GRID-CTA_128,LOOP_64];", UserError, "100 rows are no multiple of 64"),
    ("matmul [GRID-CTA_64,GRID-CTA_100,LOOP_64];", UserError, "100 columns are no multiple of 64"),
    (f"{TILE} slots=1;", UserError, "1 slots"),
    (f"{TILE} slots=40;", UserError, "bytes of slots"),
    (f"{TILE} warpgroups=1; cta_size=384;", UserError, "384 threads a block"),
    ("other [GRID];", NameLookupError, "%other"),
    (f"{TILE} stages=2;", OptionError, "stages"),
    (f"{TILE} band=3;", UserError, "whole bands of 3"),
])
def test_templates_that_cannot_be_met(written: str, error: type[Exception], told: str) -> None:
    """The error names the number."""
    program = Case(lambda: plain(512, 512, 256)).program()
    with pytest.raises(error) as raised:
        product_by_hand(program, parse_template(written), H200)
    assert told in str(raised.value)


# -- forms -----------------------------------------------------------------------------------------------------------------


def test_neighbours_are_other_programs_of_the_same_pattern() -> None:
    """Tuning tries other tiles; at least one of each field changes something."""
    template, program = PipelinedTemplate(), Case(lambda: plain(1024, 1024, 512)).program()
    tried = template.neighbours(program, H200)
    assert program.choice not in tried and len(set(tried)) == len(tried)
    made = [template.program_with(program, c, H200) for c in tried]
    fits = [p for p in made if isinstance(p, TileProgram)]
    assert len(fits) > 4 and {p.choice.template for p in fits} == {"pipelined"}


def test_large_tiles_are_chosen_for_large_products() -> None:
    """Operands of small tiles come through L2 more often than the tensor cores can wait for; every multiprocessor has a block."""
    choice = Case(lambda: plain(8192, 8192, 8192)).program().choice
    assert isinstance(choice, Pipelined) and choice.blocks == 132
    assert choice.rows * choice.columns * (choice.warpgroups if choice.pingpong else 1) >= 128 * 192


def test_small_products_have_small_tiles() -> None:
    """128 x 4096 results in tiles of 128 x 256 would leave most multiprocessors without one."""
    choice = Case(lambda: plain(128, 4096, 4096)).program().choice
    assert isinstance(choice, Pipelined) and choice.rows * choice.columns <= 64 * 128 and choice.blocks >= 64


def test_work_counts_operands_of_every_tile() -> None:
    """Each of 8 x 4 tiles reads its rows and columns of the operands; neighbouring blocks share reads of the columns. The one
    slot ahead of the products is filled anew in each of eight steps, which takes a latency and keeps no unit busy."""
    plan = plan_of(Case(lambda: plain(1024, 1024, 512), Pipelined(128, 256, 64, 3, 2, 8, 32)).program())
    fitted = H200.fitted.pipelined
    num_bytes = 32 * (128 + fitted.shared_reads * 256) * 512 * 2
    assert plan.work.blocks[0].cycles_by_unit()["l2"] == pytest.approx(num_bytes / fitted.port_bytes_per_cycle)
    assert plan.work.blocks[0].tile[0].chain_cycles == pytest.approx(8 * fitted.copy_cycles)


def test_pairs_have_as_many_sums_as_one_wide_tile() -> None:
    """Two products of 128 columns each: as many accumulators as one of 256, and the left operand comes once for both."""
    plan = plan_of(Case(lambda: pair(8192, 4096, 4096)).program())
    assert plan.choice.columns <= 192 and plan.all_sums == 2 * plan.sums <= 192 and plan.choice.num_threads == 384
    pair_plan, single = (plan_of(Case(graph, Pipelined(128, columns, 64, 3, 2, 8, 64)).program())
                         for graph, columns in ((lambda: pair(1024, 1024, 512), 128), (lambda: plain(1024, 2048, 512), 256)))
    assert pair_plan.work.blocks[0].tile[0] == single.work.blocks[0].tile[0]


@pytest.mark.parametrize(("name", "together"), [
    ("a gated pair, columns contiguous", 2), ("a gated pair of 256 columns, columns contiguous", 2),
    ("a gated pair of 128 rows a warpgroup", 2), ("three products in turn", 3), ("a gated pair, two panels a slot", 1),
    ("a gated pair of weights turned differently", 1), ("thirds of one product at odd places", 1), ("bias, activation, residual", 1)])
def test_right_tiles_side_by_side_are_one_tile_of_an_instruction(name: str, together: int) -> None:
    """One instruction multiplies all products whose tiles lie in a slot as those of more columns do."""
    program = CASES[name].program()
    plan, kernel = plan_of(program), compose_product(program, H200)
    products = [s for s in statements(kernel.body) if isinstance(s, WarpgroupProduct)]
    assert plan.together == together and len(products) == len(plan.rights) // together
    assert all(p.columns == together * plan.choice.columns for p in products)


def test_products_together_read_less_shared_memory() -> None:
    """Two panels a slot are two instructions, which read the left tile once each: more energy at the same tile."""
    one, two = (plan_of(Case(lambda: pair(8192, 4096, 4096), Pipelined(128, 64, depth, 64 * 4 // depth, 2, 8, 64)).program())
                for depth in (64, 128))
    assert (one.together, two.together) == (2, 1) and one.work.energy_pj < two.work.energy_pj


def test_many_results_have_one_stage_each_where_the_second_takes_a_slot() -> None:
    """Three results of 64 x 128 tiles by two warpgroups: 48 KiB of stages leave room for three slots of 56 KiB, and 96 KiB for two."""
    plans = [plan_of(Case(lambda: queries_keys_values(4096, 16, 128, 2048, joined=False), Pipelined(64, 128, 64, slots, 2, 16, 132, True))
                     .program()) for slots in (2, 3)]
    assert [p.stages for p in plans] == [2, 1] and [len(p.staged) for p in plans] == [3, 3]
    assert plan_of(Case(lambda: queries_keys_values(4096, 16, 128, 2048, joined=False)).program()).choice.slots >= 3


@pytest.mark.parametrize(("graph", "firsts"), [(lambda: halves(64, 64, 64), (0, 64)), (lambda: halves(64, 24, 64, parts=3), (0, 24, 48)),
                                               (lambda: pair(64, 64, 64), (0, 0))])
def test_reads_a_constant_apart_are_products_of_slices(graph: Callable[[], Graph], firsts: tuple[int, ...]) -> None:
    """Each slice of a node's columns is a product with its own part of the right operand."""
    form = plan_of(Case(graph).program()).form
    assert tuple(p.first for p in form.products) == firsts and {p.right.lines for p in form.products} == {form.columns}
    assert [p.right.first for p in form.products] == [p.first * form.inner for p in form.products]


def test_loads_by_producers_cost_their_latency() -> None:
    """The same product with rows that no tensor map describes: beside small tiles, whose products are shorter than a wait."""
    choice = Pipelined(64, 64, 64, 6, 1, 1, 64)
    copied, loaded = (plan_of(Case(lambda: plain(512, 512, 512), choice, layouts).program()).work.blocks[0].tile[0].cycles()
                      for layouts in ({}, {"x": (513, 1)}))
    assert copied < 7 * H200.fitted.pipelined.load_cycles <= loaded


def _chain() -> Graph:
    b = TensorBuilder("two")
    x, w = b.input("x", F16, (64, 64)), b.input("w", F16, (64, 64))
    return normal(b, [b.matmul(b.matmul(x, w), w)])


def _two_lefts() -> Graph:
    b = TensorBuilder("lefts")
    x, v, w = (b.input(name, F16, (64, 64)) for name in "xvw")
    return normal(b, [b.elementwise("add", b.matmul(x, w), b.matmul(v, w))])


def _turned_left() -> Graph:
    b = TensorBuilder("turned")
    x, w = b.input("x", F16, (64, 64)), b.input("w", F16, (64, 64))
    return normal(b, [b.elementwise("add", b.matmul(x, w), b.matmul(x, w, transpose_a=True))])


def _half_and_whole() -> Graph:
    b = TensorBuilder("half")
    p = b.matmul(b.input("x", F16, (64, 64)), b.input("w", F16, (64, 128)))
    return normal(b, [p, b.elementwise("mul", *b.split(p, [64, 64], 1))])


def _looked_up() -> Graph:
    b = TensorBuilder("looked")
    p = b.matmul(b.input("x", F16, (64, 64)), b.input("w", F16, (64, 64)))
    return normal(b, [p, b.take(p, b.input("rows", I64, (64,)), 0)])


def _shifted() -> Graph:
    b = TensorBuilder("shifted")
    y = b.matmul(b.input("x", F16, (64, 64)), b.input("w", F16, (64, 64)))
    return normal(b, [b.elementwise("add", y, b.permute(y, (1, 0)))])


def _padded_kept() -> Graph:
    graph = padded(70, 67, 72)
    return replace(graph, results=("window", "p"))


@pytest.mark.parametrize(("graph", "told"), [
    (_chain, "operand of another in the same"), (_two_lefts, "different left operands"), (_turned_left, "different left operands"),
    (_half_and_whole, "another part"), (_looked_up, "elements that data give"),
    (_shifted, "another element"), (_padded_kept, "another part"),
    (lambda: plain(64, 64, 64, F64), "no warpgroup instruction"), (lambda: plain(0, 64, 64), "0 products"),
], ids=["a chain", "two left operands", "a left operand turned", "halves and the whole", "data", "another element", "another part", "f64",
        "empty"])
def test_patterns_that_are_none(graph: Callable[[], Graph], told: str) -> None:
    """The reason names what stands in the way."""
    made = schedule_product(graph(), {}, H200)
    assert isinstance(made, Rejected) and told in made.detail


def test_other_devices_have_none() -> None:
    """Warpgroup products exist on compute capability 9.0 alone."""
    device = replace(H200, capabilities=replace(H200.capabilities, warpgroup_products=False))
    made = schedule_product(plain(64, 64, 64), {}, device)
    assert isinstance(made, Rejected) and made.reason is Reason.OTHER_TEMPLATE


# -- precision ---------------------------------------------------------------------------------------------------------------


def _linear_gelu(dtype: DType) -> Graph:
    b = TensorBuilder("linear_gelu")
    x, w, bias = b.input("x", dtype, (130, 136)), b.input("w", dtype, (72, 136)), b.input("bias", dtype, (72,))
    h = b.elementwise("add", b.matmul(x, w, transpose_b=True), bias)
    scaled = b.elementwise("mul", h, b.full((1, 1), 0.5, dtype))
    erf = b.elementwise("erf", b.elementwise("mul", h, b.full((1, 1), 0.5**0.5, dtype)))
    return normal(b, [b.elementwise("mul", scaled, b.elementwise("add", erf, b.full((1, 1), 1.0, dtype)))])


@needs_compiler
@pytest.mark.parametrize("dtype", [F16, BF16])
@pytest.mark.parametrize("eager", [False, True])
def test_maps_read_sums_that_are_not_rounded(dtype: DType, eager: bool, tmp_path: Path) -> None:
    """One rounding on the way from the sums to the result, so that the error is half a unit of it and what the sums lose; with
    `eager_rounding` every value is rounded."""
    made = PipelinedTemplate().propose(Request(_linear_gelu(dtype), {}, H200, eager_rounding=eager))
    assert isinstance(made, TileProgram)
    assert (made.graph.nodes[0].type.dtype == F32) is not eager
    assert product_by_hand(made, parse_template(made.notation), H200).graph == made.graph
    kernel, values = compose_product(made, H200), drawn(made.graph)
    given = {b.name: values[b.origin].ravel() for b in kernel.parameters if b.role == "in"}
    memory, status, report = run(kernel, given, tmp_path, check=True)
    assert status == 0, report
    wanted, = interpret(in_double(_linear_gelu(dtype)), {n: v.astype(np.float64) for n, v in values.items()})
    name, = (b.name for b in kernel.parameters if b.role == "out")
    error = np.abs(memory[name].astype(np.float64) - np.asarray(wanted).ravel())
    unit = ROUNDOFF[dtype.name] * np.abs(np.asarray(wanted).ravel())
    beyond = error > 1.01 * unit + 1e-4
    assert bool(beyond.any()) is eager


def test_maps_slow_the_products_beside_them() -> None:
    """Maps behind a product of 4096 inner elements a quarter as much as behind one of 1024; they take energy and cycles."""
    tile = Pipelined(64, 256, 64, 3, 2, 16, 132, True)

    def tensor_cycles(graph: Graph) -> float:
        (blocks,) = plan_of(Case(lambda: graph, wanted=tile).program()).work.blocks
        return blocks.cycles_by_unit()["tensor"]

    short, long = (tensor_cycles(plain(8192, 4096, inner)) / tensor_cycles(gated(8192, 4096, inner)) for inner in (1024, 4096))
    assert short < 0.95 and 1 - short == pytest.approx(4 * (1 - long), rel=0.15)
