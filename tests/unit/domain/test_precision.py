"""Internal values keep f32: which ones, what the pattern becomes, and that results stay within the roundings left out."""
from __future__ import annotations

from random import Random

import numpy as np
import pytest

from tests.laws.random_graphs import random_graph, random_inputs
from tilefuse.base.options import Options
from tilefuse.domain.precision import keep_precision
from tilefuse.ir.interpret import interpret
from tilefuse.ir.text import parse_graph, print_graph
from tilefuse.ir.verify import check
from tilefuse.plan.planner import plan_graph
from tilefuse.target.device import H200

CHAIN = """graph @g(%x: f16[8], %z: f16[8]) -> ({results}) {{
  %t: f16[8] = map [i] {{ f16(mul(f32(%x[i]), f32(%z[i]))) }}
  %u: f16[8] = map [i] {{ select(lt(f32(%x[i]), 0.0:f32), 0.1:f16, %t[i]) }}
  %v: f16[8] = map [i] {{ %u[-1*i + 7] }}
  %y: f16[8] = map [i] {{ f16(add(f32(%v[i]), 1.0:f32)) }}
  return {returned}
}}"""


def test_roundings_between_internal_values_fall_away() -> None:
    """Through a choice and a view; constants keep the value they had in f16."""
    before = parse_graph(CHAIN.format(results="f16[8]", returned="%y"))
    after = keep_precision(before)
    check(after, "test")
    assert print_graph(after) == """graph @g(%x: f16[8], %z: f16[8]) -> (f16[8]) {
  %t: f32[8] = map [i] { mul(f32(%x[i]), f32(%z[i])) }
  %u: f32[8] = map [i] { select(lt(f32(%x[i]), 0.0:f32), 0.099975586:f32, %t[i]) }
  %v: f32[8] = map [i] { %u[-1*i + 7] }
  %y: f16[8] = map [i] { f16(add(%v[i], 1.0:f32)) }
  return %y
}
"""
    assert keep_precision(after) is after


def test_what_is_written_stays_narrow_and_is_read_rounded() -> None:
    before = parse_graph(CHAIN.format(results="f16[8], f16[8]", returned="%u, %y"))
    assert keep_precision(before) is before


@pytest.mark.parametrize("user", ["i32(%t[i])", "f64(%t[i])", "%t[i]", "f8e4m3(f32(%t[i]))"])
def test_a_user_without_the_opposite_conversion_gains_nothing(user: str) -> None:
    dtype = user.partition("(")[0] if "(" in user else "f16"
    graph = parse_graph(f"""graph @g(%x: f16[8]) -> ({dtype}[8]) {{
  %t: f16[8] = map [i] {{ f16(exp(f32(%x[i]))) }}
  %y: {dtype}[8] = map [i] {{ {user} }}
  return %y
}}""")
    after = keep_precision(graph)
    assert (after is graph) == ("f32(%t" not in user)


def test_a_conversion_on_its_own_is_meant() -> None:
    """x.half().float() over two nodes: the user asked for the rounding."""
    graph = parse_graph("""graph @g(%x: f32[8]) -> (f32[8]) {
  %t: f16[8] = map [i] { f16(%x[i]) }
  %y: f32[8] = map [i] { mul(f32(%t[i]), 2.0:f32) }
  return %y
}""")
    assert keep_precision(graph) is graph


def test_mixed_users_see_the_value_they_would_have_seen() -> None:
    graph = parse_graph("""graph @g(%x: f16[8]) -> (i32[8], f16[8]) {
  %t: f16[8] = map [i] { f16(exp(f32(%x[i]))) }
  %n: i32[8] = map [i] { i32(%t[i]) }
  %y: f16[8] = map [i] { f16(add(f32(%t[i]), 1.0:f32)) }
  return %n, %y
}""")
    assert "i32(f16(%t[i]))" in print_graph(keep_precision(graph))


@pytest.mark.parametrize("seed", range(40))
def test_random_patterns_still_verify_and_mean_nearly_the_same(seed: int) -> None:
    graph = random_graph(Random(seed), num_nodes=8, exact=False)
    after = keep_precision(graph)
    check(after, f"seed {seed}")
    inputs = random_inputs(graph, seed)
    assert [r.dtype for r in interpret(after, inputs)] == [r.dtype for r in interpret(graph, inputs)]


def test_a_chain_differs_by_its_roundings() -> None:
    """Against f64: no further off than eager rounding is allowed to be, half a unit in the last place (2^-11) a step."""
    before = parse_graph(CHAIN.format(results="f16[8]", returned="%y"))
    draw = np.random.default_rng(3)
    inputs = {"x": draw.standard_normal(8).astype(np.float16), "z": draw.standard_normal(8).astype(np.float16)}
    x, z = (inputs[k].astype(np.float64) for k in "xz")
    exact = np.where(x < 0, float(np.float16(0.1)), x * z)[::-1] + 1
    for graph, roundings in ((before, 2), (keep_precision(before), 1)):
        (got,) = interpret(graph, inputs)
        size = np.abs(exact - 1) + np.abs(exact)
        assert (np.abs(got.astype(np.float64) - exact) <= roundings * 2.0**-11 * size).all()


@pytest.mark.parametrize("eager", [False, True])
def test_the_option_reaches_the_kernel(eager: bool) -> None:
    graph = parse_graph(CHAIN.format(results="f16[8]", returned="%y"))
    plan = plan_graph(graph, {}, H200, Options(eager_rounding=eager))
    (kernel,) = plan.kernels
    assert ("%t: f16" in print_graph(kernel.program.graph)) == eager


@pytest.mark.parametrize(("results", "kept"), [("%y", True), ("%y, %p", False)])
def test_products_stay_in_the_type_of_their_sums_where_a_kernel_holds_these(results: str, kept: bool) -> None:
    """Only where asked; a product that is written is read rounded, and one that another product reads is rounded for it."""
    types = ", ".join("f16[8, 8]" for _ in results.split(","))
    graph = parse_graph(f"""graph @g(%x: f16[8, 8], %w: f16[8, 8]) -> ({types}) {{
  %p: f16[8, 8] = library.matmul (%x, %w)
  %t: f16[8, 8] = map [i, j] {{ f16(tanh(f32(%p[i, j]))) }}
  %y: f16[8, 8] = map [i, j] {{ f16(mul(f32(%t[i, j]), f32(%p[i, j]))) }}
  return {results}
}}""")
    assert {n.name: n.type.dtype.name for n in keep_precision(graph).nodes} == {"p": "f16", "t": "f32", "y": "f16"}
    after = keep_precision(graph, products=True)
    assert {n.name: n.type.dtype.name for n in after.nodes} == {"p": "f32" if kept else "f16", "t": "f32", "y": "f16"}
    between = parse_graph("""graph @g(%x: f16[8, 8], %w: f16[8, 8]) -> (f16[8, 8]) {
  %p: f16[8, 8] = library.matmul (%x, %w)
  %y: f16[8, 8] = library.matmul (%p, %w)
  return %y
}""")
    assert keep_precision(between, products=True) is between
