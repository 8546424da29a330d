"""Rows of tables in stitched kernels: vectors where neighbours are asked for, several items of a thread at a time, and their waits."""
from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.unit.templates.host_build import compiler, run
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.text import parse_graph
from tilefuse.kernel.ir import Kernel, VectorLoad
from tilefuse.kernel.visit import statements
from tilefuse.target.device import H200
from tilefuse.target.fitted.stages import StitchFigures
from tilefuse.templates.compose import compose
from tilefuse.templates.pattern import schedule_pattern
from tilefuse.templates.registry import kernel_template
from tilefuse.templates.staged.stitched.items import items_together

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")


def program_of(rows: int, width: int, start: int = 0) -> TileProgram:
    """Products of rows of a table, which numbers choose, with rows of a matrix. start: the first column of the table that is taken."""
    number = "in_range(select(lt(%i[j], 0:i64), add(%i[j], 50:i64), %i[j]), 50:i64)"
    table, matrix, result = f"f32[50, {width + start}]", f"f32[16, {width}]", f"f32[16, {rows}]"
    graph = parse_graph(f"""graph @g(%t: {table}, %i: i64[{rows}], %x: {matrix}) -> ({result}) {{
      %r: f32[{rows}, {width}] = gather [j, k] {{ lookup(%t, {number}, index(k{f" + {start}" if start else ""})) }}
      %p: {result} = library.matmul (%x, %r) {{precision = "default", transpose_a = false, transpose_b = true}}
      %y: {result} = map [i, j] {{ exp(%p[i, j]) }}
      return %y
    }}""")
    program = schedule_pattern(graph, [n.name for n in graph.nodes], {}, H200)
    assert isinstance(program, TileProgram) and program.template == "stitched", program
    return program


def reads_vectors(kernel: Kernel) -> bool:
    """Whether rows of the table come as vectors."""
    table = next(b.name for b in kernel.parameters if b.origin == "t")
    return any(isinstance(s, VectorLoad) and s.buffer == table and s.dynamic for s in statements(kernel.body))


@pytest.mark.parametrize(("rows", "width", "start", "is_vector"), [(64, 40, 0, True), (24, 72, 4, True), (20, 40, 1, False),
                                                                   (16, 39, 0, False)])
def test_rows_are_vectors_where_they_are_aligned(rows: int, width: int, start: int, is_vector: bool, tmp_path: Path) -> None:
    """Results are those of f64 in the checking mode, with numbers that count from the end."""
    kernel = compose(program_of(rows, width, start), H200)
    assert reads_vectors(kernel) == is_vector
    random = np.random.default_rng(rows)
    values = {"t": random.standard_normal((50, width + start)), "x": random.standard_normal((16, width)) * 0.1,
              "i": random.integers(-50, 50, rows)}
    inputs = {b.name: values[b.origin].astype(np.int64 if b.origin == "i" else np.float32).ravel() for b in kernel.parameters
              if b.role == "in"}
    memory, status, report = run(kernel, inputs, tmp_path, check=True)
    assert status == 0, report
    result = memory[next(b.name for b in kernel.parameters if b.origin == "y")]
    exact = np.exp(values["x"] @ values["t"][values["i"], start:].T)
    np.testing.assert_allclose(result.reshape(16, rows), exact, rtol=2e-5)


def test_few_items_are_written_out_and_many_are_divided() -> None:
    figures = StitchFigures()
    assert [items_together(n, figures) for n in (1, 4, 5, 11, 12, 25, 64)] == [1, 1, 5, 1, 6, 5, 8]


def test_lookups_wait_for_a_number_and_for_the_row() -> None:
    """In the price: twice as long as a copy of the same rows."""
    program = program_of(64, 200)
    work = kernel_template(program.choice).work(program, H200)
    longest = max(s.wait_cycles for blocks in work.blocks for s in (*blocks.tile, *blocks.once))
    assert longest >= 2 * H200.fitted.stitch.global_cycles
