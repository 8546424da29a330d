"""Scales of blocks of the inner axis: recognised by structure, kernels on the checking host executor against f64, refusals."""
from __future__ import annotations

import ctypes

import numpy as np
import pytest

from tests.unit.templates.host_build import CHECKED_FLAGS, build_together, call, compiler
from tests.unit.templates.staged.pipelined.block_scale_graphs import blocks, gated_blocks
from tests.unit.templates.staged.pipelined.test_pipelined import Case
from tests.unit.templates.stitched_cases import in_double
from tilefuse.base.candidate import Rejected
from tilefuse.domain.contraction import any_contraction_of
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.graph import Graph
from tilefuse.ir.interpret import interpret
from tilefuse.ir.scalar import NUMPY_DTYPES
from tilefuse.ir.text import parse_graph
from tilefuse.target.device import H200
from tilefuse.templates.notation import parse_template
from tilefuse.templates.staged.pipelined.compose import compose_product
from tilefuse.templates.staged.pipelined.exact.block_scales import scaled_contraction
from tilefuse.templates.staged.pipelined.record import Pipelined
from tilefuse.templates.staged.pipelined.template import plan_of, product_by_hand, schedule_product

needs_compiler = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
# Relative roundings of results; sums of up to 600 products in f32, of magnitudes about one, and of their scales.
ROUNDOFF = {"bf16": 2.0**-8, "f32": 2.0**-22}

SCALED_CASES = {
    "blocks of 128 x 128": Case(lambda: blocks(70, 136, 384)),
    "two warpgroups": Case(lambda: blocks(200, 264, 384), Pipelined(128, 128, 128, 3, 2, 1, 3)),
    "tiles in turn": Case(lambda: blocks(200, 264, 384), Pipelined(64, 128, 128, 3, 2, 1, 2, pingpong=True)),
    "two blocks of columns a tile": Case(lambda: blocks(70, 264, 256, result="f32", side=64), Pipelined(64, 128, 128, 2, 1, 1, 3)),
    "two rows of instructions": Case(lambda: blocks(140, 136, 256), Pipelined(128, 64, 128, 2, 1, 1, 3)),
    "tiles that begin within blocks": Case(lambda: blocks(70, 200, 256, side=96), Pipelined(64, 64, 128, 2, 1, 1, 3)),
    "a last block in part": Case(lambda: blocks(70, 72, 272, result="f32")),
    "few rows": Case(lambda: blocks(5, 136, 512), Pipelined(64, 8, 128, 2, 1, 1, 3, swapped=True)),
    "parts of the inner axis in a cluster": Case(lambda: blocks(70, 136, 512), Pipelined(64, 64, 128, 2, 1, 1, 12, cluster=2, split=2)),
    "parts of the inner axis in a workspace": Case(lambda: blocks(70, 136, 528, result="f32"), Pipelined(64, 64, 128, 2, 1, 2, 9, split=3)),
    "two types": Case(lambda: blocks(70, 72, 256, ("f8e4m3", "f8e5m2"))),
    "scales of columns": Case(lambda: blocks(70, 72, 256, side=1)),
    "odd groups of columns": Case(lambda: blocks(70, 136, 256, side=24)),
    "blocks of 256": Case(lambda: blocks(70, 72, 640, block=256)),
    "divided by scales": Case(lambda: blocks(70, 72, 256, divides=True)),
    "odd rows in memory": Case(lambda: blocks(67, 33, 200)),
    "a gated pair": Case(lambda: gated_blocks(70, 136, 256)),
}


def drawn(graph: Graph) -> dict[str, np.ndarray]:
    """Seeded inputs; scales in 0.5 .. 1.5."""
    random = np.random.default_rng(7)
    return {v.name: (random.uniform(0.5, 1.5, v.type.shape) if v.type.dtype.bits == 32 else random.standard_normal(v.type.shape)).astype(
        NUMPY_DTYPES[v.type.dtype.name]) for v in graph.inputs}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """All kernels with every access checked, in one source."""
    return build_together([(compose_product(c.program(), H200), True) for c in SCALED_CASES.values()], tmp_path_factory.mktemp("scaled"),
                          CHECKED_FLAGS)


@needs_compiler
@pytest.mark.parametrize("name", SCALED_CASES)
def test_kernel_scales_its_blocks(name: str, library: ctypes.CDLL) -> None:
    """Every element of every result against f64, with every access checked; the kernel reads the stored elements."""
    program = SCALED_CASES[name].program()
    assert plan_of(program).form.has_block_scales
    graph, kernel = program.graph, compose_product(program, H200)
    values = drawn(graph)
    entry = getattr(library, f"{kernel.name}_{list(SCALED_CASES).index(name)}")
    memory, status, report = call(entry, kernel, {b.name: values[b.origin].ravel() for b in kernel.parameters if b.role == "in"})
    assert status == 0, report
    wide = in_double(graph)
    wanted, = interpret(wide, {n: v.astype(NUMPY_DTYPES[wide.type_of(n).dtype.name]) for n, v in values.items()})
    result, = (b.name for b in kernel.parameters if b.role == "out")
    got, value = memory[result].astype(np.float64), np.asarray(wanted).ravel()
    assert np.abs(got - value).max() <= 4 * ROUNDOFF[graph.type_of(graph.results[0]).dtype.name] * max(np.abs(value).max(), 1.0)


@pytest.mark.parametrize("name", SCALED_CASES)
def test_a_template_gives_its_program_back(name: str) -> None:
    """The program's own notation, parsed."""
    program = SCALED_CASES[name].program()
    again = product_by_hand(program, parse_template(program.notation), H200)
    assert (again.choice, again.notation) == (program.choice, program.notation)


def _text(a: str, b: str = "f32(%w[j, k])", inner: int = 256) -> Graph:
    return parse_graph(f"""graph @other(%x: f8e4m3[64, {inner}], %s: f32[64, 4], %w: f8e4m3[72, {inner}]) -> (f32[64, 72]) {{
      %a: f32[64, {inner}] = map [i, k] {{ {a} }}
      %b: f32[72, {inner}] = map [j, k] {{ mul({b}, 2.0:f32) }}
      %p: f32[64, 72] = library.matmul (%a, %b) {{transpose_a = false, transpose_b = true}}
      return %p
    }}""")


@pytest.mark.parametrize("a", ["mul(f32(%x[i, k]), %s[i, (k // 64)])", "mul(f32(%x[i, k]), %s[i, (k % 4)])",
                               "add(f32(%x[i, k]), %s[i, (k // 128)])", "mul(f32(%x[i, k]), f32(%x[i, k]))"])
def test_scales_within_a_slot_are_none(a: str) -> None:
    """Blocks that end within a slot, elements of different scales, sums, squares: operands are computed instead."""
    program = schedule_product(_text(a), {}, H200)
    assert isinstance(program, Rejected) or not plan_of(program).form.has_block_scales


def test_slots_hold_one_block() -> None:
    """A slot of two panels would hold two blocks."""
    refused = schedule_product(blocks(70, 72, 512), {}, H200, Pipelined(64, 64, 256, 2, 1, 1, 2))
    assert isinstance(refused, Rejected) and "256 inner elements in a slot" in str(refused)


def test_programs_read_the_stored_elements() -> None:
    """The tiles that tensor copies bring are of 8 bits."""
    program = schedule_product(blocks(4096, 4096, 4096), {}, H200)
    assert isinstance(program, TileProgram)
    assert [t.operand.value for t in plan_of(program).operands] == ["x", "w"]


def test_no_map_is_written_out_without_a_stored_operand() -> None:
    """Operands behind 60 maps that each read the one before twice: written out they would have 2^60 reads."""
    maps = "\n".join(f"%m{n}: f32[64, 128] = map [i, j] {{ add(%m{n - 1}[i, j], tanh(%m{n - 1}[i, j])) }}" for n in range(1, 61))
    graph = parse_graph(f"""graph @g(%x: f32[64, 128], %w: f32[128, 64]) -> (f32[64, 64]) {{
      %m0: f32[64, 128] = map [i, j] {{ tanh(%x[i, j]) }}
      {maps}
      %p: f32[64, 64] = library.matmul(%m60, %w)
      return %p
    }}""")
    contraction = any_contraction_of(graph.node_by_name["p"], graph)
    assert contraction is not None
    assert scaled_contraction(graph, contraction, (64, 64)) is None
