"""A sum and squared deviations along rows whose threads have uneven shares: offsets, outliers, values that are not finite."""
from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.unit.templates.composed_cases import Case, rows
from tests.unit.templates.host_build import call, compiler
from tests.unit.templates.pattern_graphs import ROUNDOFF, Pattern
from tests.unit.templates.test_compose import buffer_of, build_group
from tilefuse.ir.text import parse_graph
from tilefuse.target.device import H200

ROWS, LENGTH = 7, 1200
GRAPH = parse_graph(f"""graph @moments(%x: f32[{ROWS}, {LENGTH}]) -> (f32[{ROWS}], f32[{ROWS}]) {{
  %s: f32[{ROWS}] = reduce.sum [i] over [k < {LENGTH}] {{ %x[i, k] }}
  %q: f32[{ROWS}] = reduce.m2 [i] over [k < {LENGTH}] {{ %x[i, k] }}
  return %s, %q
}}""")


def difficult(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Rows: plain, far from zero, with an outlier that is a thread's first element, constant, and one each that is not finite."""
    x = rng.standard_normal(shape)
    x[1] += 1e4
    x[2, :8] = 1e4
    x[3] = 7.25
    x[4, 0] = np.inf
    x[5, -1] = -np.inf
    x[6, 17] = np.nan
    return x


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
@pytest.mark.parametrize(("threads", "chunks", "cluster"), [(64, 3, 2), (32, 3, 4), (96, 1, 4)])
def test_sums_and_squares_of_difficult_rows(threads: int, chunks: int, cluster: int, tmp_path: Path, seed: int = 5) -> None:
    case = Case("moments", Pattern(GRAPH, difficult), {}, H200, rows(4, threads, chunks, cluster=cluster, lanes=2))
    kernel, library, number = build_group([case], tmp_path)["moments"]
    x = case.pattern.inputs(np.random.default_rng(seed))["x"]
    memory, status, report = call(getattr(library, f"{kernel.name}_{number}"), kernel, {buffer_of(kernel, "x").name: x.ravel().copy()})
    assert status == 0, report
    assert any("_origin" in str(s) for s in kernel.body), "the kernel has shares of uneven length"
    total, squares = memory[buffer_of(kernel, "s").name], memory[buffer_of(kernel, "q").name]
    assert total[4] == np.inf and total[5] == -np.inf and np.isnan(total[6]) and np.isnan(squares[4:7]).all()
    exact = x.astype(np.float64)[:4]
    m2 = ((exact - exact.mean(1, keepdims=True)) ** 2).sum(1)
    unit = ROUNDOFF["f32"] * (LENGTH + 8)
    assert (np.abs(total[:4] - exact.sum(1)) <= unit * np.abs(exact).sum(1)).all(), f"seed {seed}"
    # About what the shifted sums and Chan's formula promise; without the shift the second row would miss it a thousandfold.
    assert (np.abs(squares[:4] - m2) <= unit * np.sqrt(m2 * (exact * exact).sum(1)) * 0.02 + unit * m2).all(), f"seed {seed}"
