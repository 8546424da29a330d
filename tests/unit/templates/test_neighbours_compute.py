"""Choices of tuning for a device compute the graph: every neighbour of small patterns, in checking mode on the host."""
from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest

from tests.unit.templates.host_build import SHORT_CHECKED_FLAGS, build_together, call, compiler
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.interpret import interpret
from tilefuse.ir.text import parse_graph
from tilefuse.kernel.ir import Kernel
from tilefuse.target.device import H200
from tilefuse.templates.compose import compose
from tilefuse.templates.neighbours import neighbours, program_with
from tilefuse.templates.pattern import schedule_pattern

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")

GRAPHS = {
    "short rows": """graph @g(%x: f32[70, 96]) -> (f32[70, 96]) {
      %s: f32[70] = reduce.sum [i] over [k < 96] { %x[i, k] }
      %y: f32[70, 96] = map [i, j] { sub(%x[i, j], %s[i]) }
      return %y
    }""",
    "long rows": """graph @g(%x: f32[5, 4096]) -> (f32[5, 4096]) {
      %s: f32[5] = reduce.max [i] over [k < 4096] { %x[i, k] }
      %y: f32[5, 4096] = map [i, j] { sub(%x[i, j], %s[i]) }
      return %y
    }""",
    "row sums": """graph @g(%x: f32[6, 9000]) -> (f32[6]) {
      %s: f32[6] = reduce.sum [i] over [k < 9000] { %x[i, k] }
      return %s
    }""",
    "column sums": """graph @g(%x: f32[3000, 72]) -> (f32[72]) {
      %s: f32[72] = reduce.sum [j] over [k < 3000] { %x[k, j] }
      return %s
    }""",
    "map": """graph @g(%x: f32[37, 65], %w: f32[65]) -> (f32[37, 65]) {
      %y: f32[37, 65] = map [i, j] { mul(%x[i, j], %w[j]) }
      return %y
    }""",
    "packed": """graph @g(%a: f32[3001], %b: f32[640], %x: f32[64, 260], %z: f32[30, 47]) -> (f32[3001], f32[640], f32[64], f32[47]) {
      %ua: f32[3001] = map [i] { mul(%a[i], 0.5:f32) }
      %ub: f32[640] = map [i] { mul(%b[i], 0.5:f32) }
      %rx: f32[64] = reduce.sum [i] over [k < 260] { %x[i, k] }
      %cz: f32[47] = reduce.sum [j] over [k < 30] { %z[k, j] }
      return %ua, %ub, %rx, %cz
    }""",
    "packed updates": """graph @g(%a: f32[3001], %b: f32[640]) -> (f32[3001], f32[640]) {
      %ua: f32[3001] = map [i] { mul(%a[i], 0.5:f32) }
      %ub: f32[640] = map [i] { mul(%b[i], 0.5:f32) }
      return %ua, %ub
    }""",
}
MOST = 6


def programs_of(name: str) -> tuple[list[TileProgram], TileProgram]:
    graph = parse_graph(GRAPHS[name])
    base = schedule_pattern(graph, [n.name for n in graph.nodes], {}, H200, packing=name.startswith("packed"))
    assert isinstance(base, TileProgram)
    choices = neighbours(base, H200)
    found = (program_with(base, c, H200) for c in choices[::max(1, len(choices) // MOST)])
    return [p for p in found if isinstance(p, TileProgram)], base


@pytest.mark.parametrize("name", list(GRAPHS))
def test_every_neighbour_computes_the_pattern(name: str, tmp_path: Path, seed: int = 5) -> None:
    programs, base = programs_of(name)
    kernels = [(compose(p, H200), True) for p in programs]
    library = build_together(kernels, tmp_path, SHORT_CHECKED_FLAGS)
    draw = np.random.default_rng(seed)
    given = {i.name: draw.integers(-4, 5, i.type.shape).astype(np.float32) for i in base.graph.inputs}
    # Small integers: sums are exact in any order.
    wanted = interpret(base.graph, given)
    wanted = dict(zip(base.graph.results, wanted, strict=True)) if not isinstance(wanted, dict) else wanted
    for number, (kernel, _) in enumerate(kernels):
        check(kernel, getattr(library, f"{kernel.name}_{number}"), given, wanted, programs[number].notation)


def check(kernel: Kernel, function: ctypes._FuncPointer, given: dict[str, np.ndarray], wanted: dict[str, np.ndarray], what: str) -> None:
    arrays = {b.name: given[b.origin].ravel() for b in kernel.parameters if b.origin in given}
    found, status, report = call(function, kernel, arrays)
    assert status == 0, f"{what}: {report}"
    for b in kernel.parameters:
        if b.origin in wanted:
            want = wanted[b.origin]
            assert np.array_equal(found[b.name][:want.size].reshape(want.shape), want), what
