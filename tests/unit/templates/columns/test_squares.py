"""Squared deviations down the columns by distances from a first row: offsets, outliers in that row, and values that are not finite."""
from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.unit.templates.composed_cases import Case, columns
from tests.unit.templates.host_build import call, compiler
from tests.unit.templates.pattern_graphs import ROUNDOFF, Pattern
from tests.unit.templates.test_compose import buffer_of, build_group
from tilefuse.ir.text import parse_graph
from tilefuse.target.device import H200
from tilefuse.templates.columns.record import Columns

LENGTH, COLUMNS = 1200, 8
GRAPH = parse_graph(f"""graph @moments(%x: f32[{LENGTH}, {COLUMNS}]) -> (f32[{COLUMNS}], f32[{COLUMNS}]) {{
  %s: f32[{COLUMNS}] = reduce.sum [i] over [k < {LENGTH}] {{ %x[k, i] }}
  %q: f32[{COLUMNS}] = reduce.m2 [i] over [k < {LENGTH}] {{ %x[k, i] }}
  return %s, %q
}}""")


def difficult(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Columns: plain, far from zero, with an outlier that is every thread's first row, constant, and one each that is not finite."""
    x = rng.standard_normal(shape)
    x[:, 1] += 1e4
    x[:300, 2] = 1e4
    x[:, 3] = 7.25
    x[0, 4] = np.inf
    x[-1, 5] = -np.inf
    x[17, 6] = np.nan
    return x


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize("split", [1, 3])
def test_sums_and_squares_of_difficult_columns(split: int, tmp_path: Path, seed: int = 5) -> None:
    threads = 4
    wanted = columns(4, 2, threads, -(-LENGTH // (threads * split)), split, False, 4)
    case = Case("moments", Pattern(GRAPH, difficult), {}, H200, wanted)
    kernel, library, number = build_group([case], tmp_path)["moments"]
    x = case.pattern.inputs(np.random.default_rng(seed))["x"]
    memory, status, report = call(getattr(library, f"{kernel.name}_{number}"), kernel, {buffer_of(kernel, "x").name: x.ravel().copy()})
    assert status == 0, report
    total, squares = memory[buffer_of(kernel, "s").name], memory[buffer_of(kernel, "q").name]
    assert total[4] == np.inf and total[5] == -np.inf and np.isnan(total[6]) and np.isnan(squares[4:7]).all()
    exact = x.astype(np.float64)[:, [0, 1, 2, 3, 7]]
    m2 = ((exact - exact.mean(0)) ** 2).sum(0)
    unit = ROUNDOFF["f32"] * (LENGTH + 8)
    assert (np.abs(total[[0, 1, 2, 3, 7]] - exact.sum(0)) <= unit * np.abs(exact).sum(0)).all(), f"seed {seed}"
    assert (np.abs(squares[[0, 1, 2, 3, 7]] - m2) <= unit * np.sqrt(m2 * (exact * exact).sum(0))).all(), f"seed {seed}"


def test_statistics_fill_the_device_in_one_wave() -> None:
    """Blocks as many as are resident at once, and few enough parts a column for the block that reads them back."""
    graph = parse_graph("""graph @g(%x: f16[200704, 64]) -> (f32[64]) {
      %q: f32[64] = reduce.m2 [i] over [k < 200704] { f32(%x[k, i]) }
      return %q
    }""")
    choice = Case("wave", Pattern(graph, difficult), {}, H200).program().choice
    assert isinstance(choice, Columns)
    blocks = choice.split * 64 // (choice.vector * choice.threads_x)
    assert choice.resident >= 3 and 0.9 <= blocks / (choice.resident * H200.num_multiprocessors) <= 1
