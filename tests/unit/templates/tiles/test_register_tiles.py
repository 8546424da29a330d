"""Register tiles: which patterns they take, what they share, and what their kernels compute, in checking mode on the host."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from tests.unit.templates.host_build import compiler, library_of
from tilefuse.base.candidate import Rejected
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.graph import Graph
from tilefuse.ir.interpret import interpret
from tilefuse.ir.layouts import channels_last_strides
from tilefuse.ir.text import parse_graph
from tilefuse.kernel.ir import Kernel, VectorStore
from tilefuse.kernel.visit import statements
from tilefuse.target.catalog import host_device
from tilefuse.target.device import H200
from tilefuse.templates.compose import compose
from tilefuse.templates.notation import parse_template
from tilefuse.templates.pattern import schedule_graph
from tilefuse.templates.registry import kernel_template
from tilefuse.templates.tiles.record import RegisterTile
from tilefuse.templates.tiles.template import RegisterTileTemplate
from tilefuse.templates.tiles.unrolled import sides_of, unrolled_tile

# A sum and a difference of each pair, three of four places by formulas of their own.
BUTTERFLY = """graph @g(%x: f32[37, 4]) -> (f32[4, 37]) {
  %s: f32[4, 37] = map [p, i] { select(eq(index(p), 0:i64), add(%x[i, 0], %x[i, 2]), select(eq(index(p), 1:i64), sub(%x[i, 0], %x[i, 2]),
    select(eq(index(p), 2:i64), add(%x[i, 1], %x[i, 3]), sub(%x[i, 1], %x[i, 3])))) }
  return %s
}"""
# Two results a tile along both axes, of which the last tiles lack some; an operand and a vector that elements read at their own places.
UPSAMPLED = """graph @g(%x: f32[5, 3], %r: f32[9, 5], %b: f32[5]) -> (f32[9, 5], f32[9, 5]) {
  %u: f32[9, 3] = map [h, j] { select(eq(index((h % 2)), 0:i64), %x[(h // 2), j], mul(%x[(h // 2), j], 0.5:f32)) }
  %y: f32[9, 5] = map [h, w] { add(select(eq(index((w % 2)), 0:i64), %u[h, (w // 2)], neg(%u[h, (w // 2)])), add(%r[h, w], %b[w])) }
  %z: f32[9, 5] = map [h, w] { maximum(%y[h, w], 0.0:f32) }
  return %y, %z
}"""
# Windows of four over a padded signal: guards of the pattern stay, and hold inside of a tile.
PADDED = """graph @g(%x: f32[3, 10]) -> (f32[4, 3, 6]) {
  %y: f32[4, 3, 6] = map [p, n, t] { select(eq(index(p), 0:i64), guard(0 <= 2*t + -1 < 10 ? %x[n, 2*t + -1] : 0.0:f32),
    select(eq(index(p), 1:i64), guard(0 <= 2*t < 10 ? %x[n, 2*t] : 0.0:f32), select(eq(index(p), 2:i64),
    guard(0 <= 2*t + 1 < 10 ? add(%x[n, 2*t + 1], 1.0:f32) : 3.0:f32), f32(index(p))))) }
  return %y
}"""
GRAPHS = {"butterfly": BUTTERFLY, "upsampled": UPSAMPLED, "padded": PADDED}


def scheduled(graph: Graph, host: bool = False, layouts: Mapping[str, tuple[int, ...]] | None = None) -> TileProgram:
    program = schedule_graph(graph, layouts or {}, host_device() if host else H200)
    assert isinstance(program, TileProgram), program
    return program


def drawn(graph: Graph) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(5)
    return {i.name: generator.standard_normal(i.type.shape).astype(np.float32) for i in graph.inputs}


@pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
def test_kernels_compute_what_the_graph_says(tmp_path_factory: pytest.TempPathFactory) -> None:
    """In checking mode: no access out of bounds, and every result written."""
    programs = {name: scheduled(parse_graph(text), host=True) for name, text in GRAPHS.items()}
    assert all(isinstance(p.choice, RegisterTile) for p in programs.values())
    kernels: dict[str, Kernel] = {name: compose(p, host_device()) for name, p in programs.items()}
    library = library_of(kernels, tmp_path_factory.mktemp("tiles"))
    for name, program in programs.items():
        inputs = drawn(program.graph)
        results, code, report = library.run(name, inputs)
        assert code == 0, report
        for value, expected in zip(program.graph.results, interpret(program.graph, inputs), strict=True):
            assert np.array_equal(results[value].reshape(expected.shape), expected), (name, value)


def test_sides_are_the_places_with_formulas() -> None:
    by_name = {name: sides_of(scheduled(parse_graph(text)).domain) for name, text in GRAPHS.items()}
    assert {n: tuple(s for _, s in sides) for n, sides in by_name.items()} == {"butterfly": (4,), "upsampled": (2, 2), "padded": (4,)}


def test_equal_parts_are_computed_once() -> None:
    """A butterfly's two sums and two differences are four operations a tile, and read each element once."""
    program = scheduled(parse_graph(BUTTERFLY))
    tile = unrolled_tile(program.domain, sides_of(program.domain))
    assert len(tile.stores) == 4 and program.flops == 4 * 37 and program.bytes_read == 37 * 4 * 4
    assert len(tile.domain.instances) == 4


def test_two_formulas_are_a_flat_walk() -> None:
    """As the parts of complex numbers: one select costs less than a tile."""
    program = scheduled(parse_graph("""graph @g(%x: f32[9, 2]) -> (f32[9, 2]) {
      %y: f32[9, 2] = map [i, p] { select(eq(index(p), 0:i64), %x[i, 1], neg(%x[i, 0])) }
      return %y
    }"""))
    assert program.template == "pointwise"


def test_a_place_without_a_formula_of_its_own_is_a_flat_walk() -> None:
    """The first of eight elements is another formula, the others share one."""
    program = scheduled(parse_graph("""graph @g(%x: f32[9, 8]) -> (f32[9, 8]) {
      %y: f32[9, 8] = map [i, p] { select(eq(index(p), 0:i64), 1.0:f32, %x[i, p]) }
      return %y
    }"""))
    assert program.template == "pointwise"


@pytest.mark.parametrize(("width", "lasts", "vector"), [(8, False, 4), (6, False, 2), (7, False, 1), (8, True, 1)])
def test_elements_side_by_side_are_one_store(width: int, lasts: bool, vector: int) -> None:
    """Four results along rows whose length they divide are one access; channels last they lie apart."""
    shape = (2, 3, 4, width)
    graph = parse_graph(f"""graph @g(%x: f32[2, 3, 4, {-(-width // 4)}]) -> (f32[2, 3, 4, {width}]) {{
      %y: f32[2, 3, 4, {width}] = map [n, k, h, w] {{ select(eq(index((w % 4)), 0:i64), %x[n, k, h, (w // 4)],
        select(eq(index((w % 4)), 1:i64), neg(%x[n, k, h, (w // 4)]),
        select(eq(index((w % 4)), 2:i64), exp(%x[n, k, h, (w // 4)]), 1.0:f32))) }}
      return %y
    }}""")
    program = scheduled(graph, layouts={"y": channels_last_strides(shape)} if lasts else {})
    kernel = compose(program, H200)
    stores = [s for s in statements(kernel.body) if isinstance(s, VectorStore)]
    assert max([s.width for s in stores], default=1) == vector


def test_notation_gives_the_choice_back() -> None:
    program = scheduled(parse_graph(BUTTERFLY))
    template = kernel_template(program.choice)
    assert isinstance(template, RegisterTileTemplate)
    again = template.program_by_hand(program, parse_template(program.notation), H200)
    assert again.choice == program.choice
    by_hand = template.program_by_hand(program, parse_template("s [GRID,GRID-CTA_64];"), H200)
    assert by_hand.choice == replace(template.choice_of(program), threads=64) and by_hand.launch.num_threads == 64
    too_many = template.program_with(program, replace(template.choice_of(program), threads=2048), H200)
    assert isinstance(too_many, Rejected) and "2048 threads a block" in too_many.detail
    assert {c.threads for c in template.neighbours(program, H200)} == {64, 256, 512}
