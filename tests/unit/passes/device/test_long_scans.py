"""Scans along rows that no kernel holds: pieces compute what the whole scan does, and every node has a kernel."""
from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.unit.passes.device.rewriting import rewritten
from tilefuse.base.candidate import Rejected
from tilefuse.ir.graph import Graph
from tilefuse.ir.interpret import interpret
from tilefuse.ir.scalar import NUMPY_DTYPES
from tilefuse.ir.text import parse_graph
from tilefuse.ir.verify import verify
from tilefuse.passes.device.long_scans import SplitLongScans, split_scan
from tilefuse.target.catalog import host_device
from tilefuse.target.device import H200
from tilefuse.templates import schedule_pattern


def scan(monoid: str, dtype: str, rows: int, length: int, columns: int = 1) -> Graph:
    """A scan along the middle axis of three."""
    shape = f"{dtype}[{rows}, {length}, {columns}]"
    return parse_graph(f"""graph @g(%x: {shape}) -> ({shape}) {{
      %y: {shape} = scan.{monoid} [i, j, k] along j {{ %x[i, j, k] }}
      return %y
    }}""")


@pytest.mark.parametrize(("monoid", "dtype"), [("sum", "i64"), ("max", "f32"), ("min", "i32"), ("prod", "f64"), ("logaddexp", "f64")])
@pytest.mark.parametrize("length", [7, 12, 13])
def test_pieces_compute_the_scan(monoid: str, dtype: str, length: int) -> None:
    graph = scan(monoid, dtype, 3, length, 2)
    parts = split_scan(graph.nodes[0], 4, set(graph.type_by_name))
    split = replace(graph, nodes=parts)
    assert not verify(split)
    x = np.random.default_rng(length).integers(-3, 4, (3, length, 2)).astype(NUMPY_DTYPES[dtype])
    if monoid == "max":
        x[1, 5, 0] = np.nan
    wanted, got = (interpret(g, {"x": x})[0] for g in (graph, split))
    if monoid == "logaddexp":  # at most one rounding of each function a step, of 2 * length steps
        np.testing.assert_allclose(got, wanted, rtol=8 * length * 2.0**-53, atol=8 * length * 2.0**-53)
    else:
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize(("length", "dtype"), [
    ((1 << 20) + 3, "f32"), ((1 << 24) + 1, "f64"), ((1 << 31) + 5, "i32"), ((1 << 36) + 9, "i32")])
def test_every_node_has_a_kernel(length: int, dtype: str) -> None:
    graph = scan("sum", dtype, 1, length)
    assert isinstance(schedule_pattern(graph, ("y",), {}, H200), Rejected)
    split = rewritten(SplitLongScans(), graph, H200)
    assert not verify(split) and split.results == graph.results
    for node in split.nodes:
        assert not isinstance(schedule_pattern(split, (node.name,), {}, H200), Rejected), node.name


def test_scans_that_have_a_kernel_stay() -> None:
    short = scan("sum", "f32", 8, 4096)
    assert rewritten(SplitLongScans(), short, H200) is short
    long = scan("sum", "f32", 1, 1 << 24)
    assert rewritten(SplitLongScans(), long, host_device()) is long
