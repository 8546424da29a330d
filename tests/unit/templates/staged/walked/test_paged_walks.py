"""Pipelined walks over keys and values in pages: their kernels against f64, numbers out of range, forms, and what a price counts."""
from __future__ import annotations

import ctypes
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.unit.templates.host_build import CHECKED_FLAGS, Library, build_together, compiler, library_of
from tests.unit.templates.staged.walked.paged_cases import PAGED_CASES
from tests.unit.templates.staged.walked.variants import Variant
from tests.unit.templates.staged.walked.walk_cases import Case, drawn
from tests.unit.templates.staged.walked.walk_runs import assert_agrees_with_f64
from tests.unit.templates.stitched_cases import in_double
from tests.unit.templates.stitched_graphs import normal
from tilefuse.base.candidate import Rejected
from tilefuse.ir.building.tensor import TensorBuilder
from tilefuse.ir.dtype import F16, I32
from tilefuse.ir.graph import Graph
from tilefuse.ir.interpret import interpret
from tilefuse.ir.scalar import NUMPY_DTYPES
from tilefuse.ir.text import parse_graph
from tilefuse.target.device import H200
from tilefuse.templates.levels import boundary_work
from tilefuse.templates.notation import parse_template
from tilefuse.templates.staged.walked.choose import candidates
from tilefuse.templates.staged.walked.compose import compose_walk
from tilefuse.templates.staged.walked.form import WalkForm, walk_form
from tilefuse.templates.staged.walked.paged.pages import PAGE
from tilefuse.templates.staged.walked.record import PipelinedWalk
from tilefuse.templates.staged.walked.split.groups import heads_that_share
from tilefuse.templates.staged.walked.template import pipelined_walk_of, walk_by_hand

needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The checked kernels of all cases, compiled together."""
    kernels = [(compose_walk(case.program(), H200), True) for case in PAGED_CASES.values()]
    return build_together(kernels, tmp_path_factory.mktemp("pages"), CHECKED_FLAGS)


@needs_compiler
@pytest.mark.parametrize("name", PAGED_CASES)
def test_kernel_computes_the_walk(name: str, library: ctypes.CDLL) -> None:
    """Every element of every result, with every access of the kernel checked, against f64."""
    assert_agrees_with_f64(PAGED_CASES[name], lambda kernel: getattr(library, f"{kernel}_{list(PAGED_CASES).index(name)}"))


@pytest.mark.parametrize("name", PAGED_CASES)
def test_a_template_gives_its_program_back(name: str) -> None:
    """The program's own notation, parsed."""
    program = PAGED_CASES[name].program()
    again = walk_by_hand(program, parse_template(program.notation), H200)
    assert (again.choice, again.notation) == (program.choice, program.notation)


# -- numbers of pages ----------------------------------------------------------------------------------------------------------

# Status of a kernel on the host. Source: printers/support/host_memory.h, tf_index_fault.
OUT_OF_RANGE = -1
FILLED = Case(Variant(("lengths",), page=16, batch=3, rows=1, keys=96).graph, PipelinedWalk(32, 1, 2, 2, 1, 6), 2.0**-8)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Library:
    """The checked kernel of a cache that is filled in part."""
    return library_of({"filled": compose_walk(FILLED.program(), H200)}, tmp_path_factory.mktemp("filled"))


def call_filled(filled: Library, ends: tuple[int, ...], table: np.ndarray) -> tuple[np.ndarray, np.ndarray, int, str]:
    """The result and that in f64, the status and the report. ends: of the batches."""
    program = FILLED.program()
    graph, kernel = program.graph, filled.kernels["filled"]
    values = {v.name: drawn(FILLED, graph)[v.name].astype(NUMPY_DTYPES[v.type.dtype.name]) for v in graph.inputs}
    values |= {"ends": np.array(ends, np.int32).reshape(3, 1, 1, 1), "table": table.astype(np.int32)}
    memory, status, report = filled.run("filled", {b.name: values[b.origin].ravel() for b in kernel.parameters if b.role == "in"})
    (out,) = (b.name for b in kernel.parameters if b.role == "out")
    wide = {n: v.astype(np.float64) if v.dtype.kind not in "bi" else v for n, v in values.items()}
    wide["table"] = np.clip(table, -19, 18).astype(np.int32)
    return memory[out].astype(np.float64), np.asarray(interpret(in_double(graph), wide)[0]).ravel(), status, report


@needs_compiler
@pytest.mark.parametrize("ends", [(0, 1, 96), (33, 32, 31), (1, 2, 17), (200, -4, 64)])
def test_lengths(ends: tuple[int, ...], filled: Library) -> None:
    """No key, one, all; rows without keys are NaN, as softmax has them."""
    table = np.arange(18).reshape(3, 6)[:, ::-1]
    got, expected, status, report = call_filled(filled, ends, table)
    assert status == 0, report
    assert np.array_equal(np.isnan(got), np.isnan(expected))
    assert np.isnan(expected).reshape(3, -1).all(1).tolist() == [e <= 0 for e in ends]
    assert np.nanmax(np.abs(got - expected)) <= 2.0**-8


@needs_compiler
def test_numbers_behind_the_turns_are_not_read(filled: Library) -> None:
    """Turns of 32 keys: the table may hold anything from the third page on, where a batch has 20 keys."""
    table = np.arange(18).reshape(3, 6)
    table[:, 2:] = 1 << 30
    got, expected, status, report = call_filled(filled, (20, 32, 1), table)
    assert status == 0, report
    assert np.abs(got - expected).max() <= 2.0**-8


@needs_compiler
@pytest.mark.parametrize("number", [19, -20, 1 << 30])
def test_numbers_out_of_range_are_errors(number: int, filled: Library) -> None:
    """The status of a kernel that met an index out of range, as of other gathers; numbers from the end are legal."""
    table = np.arange(18).reshape(3, 6)
    table[1, 1] = number
    _, _, status, _ = call_filled(filled, (96, 96, 96), table)
    assert status == OUT_OF_RANGE
    table[1, 1] = -19
    got, expected, status, report = call_filled(filled, (96, 96, 96), table)
    assert status == 0 and np.abs(got - expected).max() <= 2.0**-8, report


# -- forms ---------------------------------------------------------------------------------------------------------------------


def form_of(graph: Graph) -> WalkForm:
    """The form of a graph."""
    form = walk_form(graph, {})
    assert isinstance(form, WalkForm), form
    return form


def test_copies_bring_rows_of_one_page() -> None:
    """Boxes of the greatest common divisor of pages and turns, in a map of all pages."""
    for page, columns, rows in ((16, 64, 16), (64, 32, 32), (24, 32, 8)):
        graph = Variant(page=page, keys=192, inner=64, width=64).graph
        plan = pipelined_walk_of(Case(graph, PipelinedWalk(columns, 1, 1, 2, 1, 2), 0.0).program())
        for of, tile in ((plan.form.keys, plan.keys), (plan.form.values, plan.values)):
            m = plan.map_of(of, tile)
            assert m.axes[0] == PAGE and m.box[-2:] == (rows, 64) and m.extents[-2:] == (page, 64)


def test_turns_have_whole_pages_where_some_can() -> None:
    """Columns are multiples or divisors of a page, but where no turn can hold one."""
    assert {c.columns for c in candidates(form_of(Variant(page=24, keys=192).graph()), {}, H200)} == {48, 96, 144, 192}
    assert len({c.columns for c in candidates(form_of(Variant(page=272, keys=544).graph()), {}, H200)}) > 3


def test_heads_share_pages() -> None:
    """Heads of a group read the same pages; a table of its own for each head is none that they share."""
    assert heads_that_share(form_of(Variant(page=16, keys=96, heads=8, group=4, rows=1).graph()), 64) == 4
    assert heads_that_share(form_of(own_tables()), 64) == 1


def own_tables() -> Graph:
    """Pages of single heads, a table for each of the query's heads."""
    b = TensorBuilder("tables")
    q, table = b.input("q", F16, (2, 4, 1, 64)), b.input("table", I32, (2, 4, 6))
    k, v = (b.reshape(b.take(b.input(n, F16, (30, 16, 64)), table, 0, wrap=True, checked=True), (2, 4, 96, 64)) for n in "kv")
    return normal(b, [b.matmul(b.softmax(b.matmul(q, k, transpose_b=True), -1), v)])


@needs_compiler
def test_a_table_for_each_head(tmp_path: Path) -> None:
    """Numbers of pages depend on the head."""
    case = Case(own_tables, PipelinedWalk(32, 1, 1, 2, 1, 8), 2.0**-7, lambda random, name, shape: (
        random.integers(-30, 30, shape) if name == "table" else random.standard_normal(shape)))
    made = build_together([(compose_walk(case.program(), H200), True)], tmp_path, CHECKED_FLAGS)
    assert_agrees_with_f64(case, lambda kernel: getattr(made, f"{kernel}_0"))


@pytest.mark.parametrize(("variant", "told"), [
    (Variant(page=12, keys=96), "pages of 12 rows of %k, and tensor copies bring groups of 8"),
    (Variant(page=16, keys=90), "pages of 16 rows of %k"),
    (Variant(page=1, keys=96), "no pages"),
])
def test_pages_that_tensor_copies_do_not_bring(variant: Variant, told: str) -> None:
    """The reason names the size."""
    form = walk_form(variant.graph(), {})
    assert isinstance(form, Rejected) and told in form.detail


def test_rows_beyond_a_page_are_no_pages() -> None:
    """A lookup moves a subscript beyond the end to the last row, and a copy would bring zeros."""
    def graph(first: int) -> Graph:
        line = "{precision = \"default\", transpose_a = false, transpose_b = true}"
        return parse_graph(f"""graph @g(%q: f16[2, 1, 64], %p: f16[9, 16, 64], %t: i64[2, 4], %v: f16[2, 64, 64]) -> (f16[2, 1, 64]) {{
          %k: f16[2, 64, 64] = gather [i, j, k] {{ lookup(%p, in_range(%t[i, (j // 16)], 9:i64), index((j % 16) + {first}), index(k)) }}
          %s: f16[2, 1, 64] = library.matmul (%q, %k) {line}
          %m: f32[2, 1] = reduce.max [i, j] over [k < 64] {{ f32(%s[i, j, k]) }}
          %e: f32[2, 1, 64] = map [i, j, k] {{ exp(sub(f32(%s[i, j, k]), %m[i, j])) }}
          %z: f32[2, 1] = reduce.sum [i, j] over [k < 64] {{ %e[i, j, k] }}
          %w: f16[2, 1, 64] = map [i, j, k] {{ f16(div(%e[i, j, k], %z[i, j])) }}
          %y: f16[2, 1, 64] = library.matmul (%w, %v) {line.replace("true", "false")}
          return %y
        }}""")

    assert isinstance(walk_form(graph(0), {}), WalkForm)
    beyond = walk_form(graph(1), {})
    assert isinstance(beyond, Rejected) and "beyond its end" in beyond.detail


# -- price ---------------------------------------------------------------------------------------------------------------------


def test_the_price_counts_pages_that_are_looked_up() -> None:
    """Memory with pages of other batches costs nothing; a cache that is smaller than the lookups is read once."""
    def graph(num_pages: int) -> Graph:
        b = TensorBuilder("pages")
        pages, table = b.input("pages", F16, (num_pages, 16, 2, 64)), b.input("table", I32, (3, 6))
        return normal(b, [b.take(pages, table, 0, checked=True)])

    page_bytes, table_bytes = 16 * 2 * 64 * 2, 3 * 6 * 4
    assert boundary_work(graph(1000)).read_bytes == 18 * page_bytes + table_bytes
    assert boundary_work(graph(7)).read_bytes == 7 * page_bytes + table_bytes


def test_keys_and_values_of_a_large_cache_cost_what_is_read() -> None:
    """A thousand more pages in memory leave the work as it is."""
    variant = Variant(page=16, batch=8, heads=8, group=4, rows=1, keys=1024, inner=64, width=64)
    tiles = PipelinedWalk(64, 1, 1, 4, 1, 132, parts=8, heads=4)
    works = [pipelined_walk_of(Case(replace(variant, spare=n).graph, tiles, 0.0).program()).work for n in (1, 1001)]
    assert works[0] == works[1]
