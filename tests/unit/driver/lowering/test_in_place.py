"""Updates: in place where that is safe, by a copy where it is not, and right in both cases."""
from __future__ import annotations

import pytest
import torch

from tilefuse.base.options import Options
from tilefuse.driver.compile import compile_graph, generate
from tilefuse.ir.text import parse_graph
from tilefuse.passes.separate_updates import separate_updates
from tilefuse.runtime.spec import CopyStep, KernelStep
from tilefuse.target.device import H200

STEP = """graph @step(%p: f32[64], %g: f32[64]) -> () {
  %n: f32[64] = map [i] { sub(%p[i], mul(0.5:f32, %g[i])) }
  update %p = %n
  return
}"""
SHIFTED = """graph @shifted(%p: f32[64]) -> () {
  %n: f32[64] = map [i] { %p[-1*i + 63] }
  update %p = %n
  return
}"""
READ_LATER = """graph @later(%p: f32[64], %w: f32[64, 64]) -> (f32[64]) {
  %n: f32[64] = map [i] { mul(%p[i], 2.0:f32) }
  %s: f32[64] = reduce.sum [i] over [k < 64] { mul(%w[i, k], %n[k]) }
  %r: f32[64] = map [i] { add(%s[i], %p[-1*i + 63]) }
  update %p = %n
  return %r
}"""
SWAP = """graph @swap(%a: f32[64], %b: f32[64]) -> (f32[64]) {
  update %a = %b
  update %b = %a
  return %a
}"""


def run(text: str, *tensors: torch.Tensor) -> list[torch.Tensor]:
    program = compile_graph(parse_graph(text), constants={}, device="host", options=Options())
    found: list[torch.Tensor] = program(*tensors)
    return found


def test_an_elementwise_update_is_one_kernel_without_copy() -> None:
    p, g = torch.arange(64.0), torch.ones(64)
    before = p.data_ptr()
    run(STEP, p, g)
    assert p.data_ptr() == before and torch.equal(p, torch.arange(64.0) - 0.5)
    spec = generate(parse_graph(STEP), constants={}, device=H200, options=Options()).spec
    assert [type(s) for s in spec.steps] == [KernelStep]
    assert sorted(p.role for p in spec.kernels[0].parameters) == ["in", "inout"]
    assert "__restrict__ p" not in spec.kernels[0].source


@pytest.mark.parametrize("text", [SHIFTED, READ_LATER])
def test_an_update_that_others_would_see_is_copied_at_the_end(text: str) -> None:
    spec = generate(parse_graph(text), constants={}, device=H200, options=Options()).spec
    assert isinstance(spec.steps[-1], CopyStep)


def test_a_reversal_in_place_is_right() -> None:
    p = torch.arange(64.0)
    run(SHIFTED, p)
    assert torch.equal(p, torch.arange(63.0, -1, -1))


def test_old_contents_are_read_before_they_go() -> None:
    p, w = torch.arange(64.0), torch.randn(64, 64, generator=torch.Generator().manual_seed(2))
    old = p.clone()
    found, = run(READ_LATER, p, w)
    assert torch.equal(p, old * 2)
    assert torch.allclose(found, w @ (old * 2) + old.flip(0), rtol=1e-4, atol=1e-3)


def test_swapped_inputs_and_a_result_that_is_an_old_value() -> None:
    a, b = torch.zeros(64), torch.ones(64)
    found, = run(SWAP, a, b)
    assert torch.equal(a, torch.ones(64)) and torch.equal(b, torch.zeros(64)) and torch.equal(found, torch.zeros(64))
    assert found.data_ptr() not in (a.data_ptr(), b.data_ptr())


def test_a_graph_without_such_conflicts_is_left_alone() -> None:
    graph = parse_graph(STEP)
    assert separate_updates(graph) is graph


SCATTERS = """graph @scatters(%x: f32[8, 4], %i: i64[8], %b: f32[16, 4]) -> (f32[16, 4], f32[16, 4]) {
  %z: f32[16, 4] = map [r, c] { 0.0:f32 }
  %once: f32[16, 4] = scatter.sum over [i < 8, j < 4] into %z at [%i[i], index(j)] { %x[i, j] }
  %twice: f32[16, 4] = scatter.sum over [i < 8, j < 4] into %once at [%i[i], index(j)] { %x[i, j] }
  %given: f32[16, 4] = scatter.sum over [i < 8, j < 4] into %b at [%i[i], index(j)] { %x[i, j] }
  return %twice, %given
}"""


def test_a_scatter_takes_over_what_nobody_else_needs() -> None:
    x, i, base = torch.arange(32.0).view(8, 4), torch.tensor([3, 3, 0, 15, 3, 7, 7, 1]), torch.ones(16, 4)
    twice, given = run(SCATTERS, x, i, base)
    wanted = torch.zeros(16, 4).index_add(0, i, x)
    assert torch.equal(twice, 2 * wanted) and torch.equal(given, wanted + 1) and torch.equal(base, torch.ones(16, 4))
    spec = generate(parse_graph(SCATTERS), constants={}, device=H200, options=Options()).spec
    assert [s.source for s in spec.steps if isinstance(s, CopyStep)] == ["b"]


def test_a_base_that_others_read_is_copied_for_the_scatter() -> None:
    text = SCATTERS.replace("return %twice, %given", "return %twice, %once")
    x, i = torch.arange(32.0).view(8, 4), torch.tensor([3, 3, 0, 15, 3, 7, 7, 1])
    twice, once = run(text, x, i, torch.zeros(16, 4))
    assert torch.equal(twice, 2 * once)
