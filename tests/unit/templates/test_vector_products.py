"""Products of a matrix and a vector as walks that read the matrix once: both sides, biases, lead places, norms and residuals."""
from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.unit.templates.host_build import run
from tests.unit.templates.stitched_cases import in_double
from tests.unit.templates.test_compose import buffer_of
from tilefuse.base.options import Options
from tilefuse.domain.tile import TileProgram
from tilefuse.driver.compile import generate
from tilefuse.ir.interpret import interpret
from tilefuse.ir.scalar import NUMPY_DTYPES
from tilefuse.ir.text import parse_graph
from tilefuse.plan.pattern import PlannedKernel
from tilefuse.target.device import H200
from tilefuse.templates.compose import compose
from tilefuse.templates.packed.packed import Packed
from tilefuse.templates.pattern import schedule_pattern
from tilefuse.templates.rows.modes import Rows

FLAGS = '{precision = "default", transpose_a = %s, transpose_b = %s}'


def product(left: str, right: str, result: str, dtype: str, turned: tuple[bool, bool] = (False, True), bias: str = "") -> str:
    """A graph of one product, with a residual behind it."""
    flags = FLAGS % tuple(str(t).lower() for t in turned)
    inputs = f"%x: {dtype}[{left}], %w: {dtype}[{right}], %r: {dtype}[{result}]" + (f", %b: {dtype}[{bias}]" if bias else "")
    axes = ", ".join("ijkl"[:result.count(",") + 1])
    total = f"add(%p[{axes}], %r[{axes}])" if dtype in ("f32", "f64") else f"{dtype}(add(f32(%p[{axes}]), f32(%r[{axes}])))"
    return f"""graph @vector({inputs}) -> ({dtype}[{result}]) {{
      %p: {dtype}[{result}] = library.matmul (%x, %w{", %b" if bias else ""}) {flags}
      %y: {dtype}[{result}] = map [{axes}] {{ {total} }}
      return %y
    }}"""


CASES = {
    "one row": product("1, 333", "70, 333", "1, 70", "f32"),
    "one row, f16, bias": product("1, 520", "41, 520", "1, 41", "f16", bias="41"),
    "one row, columns contiguous": product("1, 300", "300, 136", "1, 136", "f32", (False, False)),
    "one column": product("65, 200", "200, 1", "65, 1", "f64", (False, False)),
    "one column, turned, bias": product("130, 90", "1, 130", "90, 1", "f32", (True, True), bias="1"),
    "lead places": product("3, 1, 70", "3, 33, 70", "3, 1, 33", "bf16"),
    "one element": product("1, 1", "1, 1", "1, 1", "f32"),
    "a norm before": """graph @norm(%x: f32[1, 264], %w: f32[50, 264], %r: f32[1, 50]) -> (f32[1, 50]) {
      %s: f32[1] = reduce.sum [i] over [k < 264] { mul(%x[i, k], %x[i, k]) }
      %n: f32[1, 264] = map [i, k] { mul(%x[i, k], rsqrt(add(%s[i], 0.001:f32))) }
      %p: f32[1, 50] = library.matmul (%n, %w) """ + FLAGS % ("false", "true") + """
      %y: f32[1, 50] = map [i, j] { add(%p[i, j], %r[i, j]) }
      return %y
    }""",
}
ROUNDOFF = {"f64": 2.0**-50, "f32": 2.0**-20, "f16": 2.0**-9, "bf16": 2.0**-6}


@pytest.mark.parametrize("name", CASES)
def test_kernels_compute_the_product(name: str, tmp_path: Path) -> None:
    """Scheduled for an H200, run by the checking executor, against f64."""
    graph = parse_graph(CASES[name])
    program = schedule_pattern(graph, [n.name for n in graph.nodes], {}, H200)
    assert isinstance(program, TileProgram), program
    random = np.random.default_rng(7)
    wide = {i.name: random.standard_normal(i.type.shape) for i in graph.inputs}
    kernel = compose(program, H200)
    held = {b.name: b for b in kernel.parameters}
    narrow = {n: v.astype(np.float32).astype(NUMPY_DTYPES[graph.type_of(n).dtype.name]) for n, v in wide.items()}
    memory, status, report = run(kernel, {n: v.reshape(-1) for n, v in narrow.items() if n in held}, tmp_path, check=True)
    assert status == 0, report
    wanted, = interpret(in_double(graph), {n: v.astype(np.float64) for n, v in narrow.items()})
    result = graph.results[0]
    error = np.abs(memory[result].astype(np.float64).reshape(np.shape(wanted)) - wanted).max()
    assert error <= ROUNDOFF[graph.type_of(result).dtype.name] * max(np.abs(np.asarray(wanted)).max(), 1.0)


PAIR = """graph @pair(%%x: %(t)s[1, 264], %%v: %(t)s[50, 264], %%w: %(t)s[50, 264], %%u: %(t)s[70, 264])
    -> (%(t)s[1, 50], %(t)s[1, 50], %(t)s[1, 70]) {
  %%p: %(t)s[1, 50] = library.matmul (%%x, %%v) %(flags)s
  %%q: %(t)s[1, 50] = library.matmul (%%x, %%w) %(flags)s
  %%z: %(t)s[1, 70] = library.matmul (%%x, %%u) %(flags)s
  return %%p, %%q, %%z
}"""


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_products_with_vectors_are_packed(dtype: str, tmp_path: Path) -> None:
    """Parts whose kernels compute more nodes than they have (narrow sums are rounded behind) are right, and templates find them by name."""
    graph = parse_graph(PAIR % {"t": dtype, "flags": FLAGS % ("false", "true")})
    program = schedule_pattern(graph, [n.name for n in graph.nodes], {}, H200, packing=True)
    assert isinstance(program, TileProgram), program
    assert isinstance(program.choice, Packed)
    sums = {"f32": {"p", "q", "z"}}.get(dtype, {"p", "p_sum", "q", "q_sum", "z", "z_sum"})
    assert {n for g in program.choice.groups for part in g.parts for n in part.nodes} == sums
    assert {name for e in program.levels for name in (e.producer, e.user)} <= sums
    random = np.random.default_rng(11)
    narrow = {i.name: random.standard_normal(i.type.shape).astype(np.float32).astype(NUMPY_DTYPES[dtype]) for i in graph.inputs}
    kernel = compose(program, H200)
    buffers = {b.name: narrow[b.origin].reshape(-1) for b in kernel.parameters if b.role == "in"}
    memory, status, report = run(kernel, buffers, tmp_path, check=True)
    assert status == 0, report
    exact = interpret(in_double(graph), {n: v.astype(np.float64) for n, v in narrow.items()})
    for name, wanted in zip(graph.results, exact, strict=True):
        error = np.abs(memory[buffer_of(kernel, name).name].astype(np.float64).reshape(np.shape(wanted)) - wanted).max()
        assert error <= ROUNDOFF[dtype] * max(np.abs(np.asarray(wanted)).max(), 1.0), name


def planned(text: str) -> list[PlannedKernel | object]:
    """Steps of a plan for an H200."""
    plan = generate(parse_graph(text), constants={}, input_layouts={}, device=H200, options=Options()).plan
    return list(plan.steps)


def test_a_large_product_with_one_row_is_one_walk() -> None:
    """With its residual: measured 9.6 us for 4096 x 4096 in bf16, where the library takes 13.0."""
    step, = planned(product("1, 4096", "4096, 4096", "1, 4096", "bf16"))
    assert isinstance(step, PlannedKernel) and isinstance(step.program.choice, Rows)


def test_products_of_several_rows_are_no_walks() -> None:
    graph = parse_graph(product("2, 4096", "4096, 4096", "2, 4096", "bf16"))
    program = schedule_pattern(graph, [n.name for n in graph.nodes], {}, H200)
    assert not isinstance(program, TileProgram) or program.template not in ("rows", "columns", "pointwise")


def test_with_eager_rounding_the_library_computes_them() -> None:
    """A walk of products that are rounded one by one is less precise than the library's."""
    graph = parse_graph(product("1, 4096", "4096, 4096", "1, 4096", "bf16"))
    program = schedule_pattern(graph, [n.name for n in graph.nodes], {}, H200, eager_rounding=True)
    assert not isinstance(program, TileProgram) or program.template not in ("rows", "columns", "pointwise")
