"""Plans that keep what is made of parameters apart: which values, in launches of their own, and the same results."""
from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tilefuse.base.options import Options
from tilefuse.driver.compile import generate
from tilefuse.driver.lowering.lower import lower
from tilefuse.driver.lowering.static_weights import kept_values
from tilefuse.ir.text import parse_graph
from tilefuse.plan.pattern import verify_plan
from tilefuse.runtime.kept_weights import KeptWeights, split_weights
from tilefuse.runtime.program import Program
from tilefuse.target.device import H200

ON_HOST = replace(H200, kind="host")
# A weight that is doubled for a product beside an input that is shifted, a weight that is summed, and one that a kernel reads as it is.
GRAPH = """graph @g(%x: f32[64, 32], %w: f32[32, 48], %s: f32[48, 16], %b: f32[48]) -> (f32[64, 48]) {
  %w2: f32[32, 48] = map [i, j] { mul(%w[i, j], 2.0:f32) }
  %x1: f32[64, 32] = map [i, j] { add(%x[i, j], 1.0:f32) }
  %y: f32[64, 48] = library.matmul (%x1, %w2)
  %t: f32[48] = reduce.sum [i] over [j < 16] { %s[i, j] }
  %n: f32[48] = map [i] { neg(%b[i]) }
  %z: f32[64, 48] = map [i, j] { add(mul(%y[i, j], %t[j]), %n[j]) }
  return %z
}"""
STATIC = ("w", "s", "b")


def test_what_is_kept() -> None:
    graph = parse_graph(GRAPH)
    assert set(kept_values(graph, STATIC, {}, {})) == {"w2", "t"}
    assert kept_values(graph, ("w",), {}, {}) == ("w2",)
    assert kept_values(graph, (), {}, {}) == ()
    # Of a parameter that the program updates nothing is kept, nor what is a result.
    assert kept_values(replace(graph, updates=(("w", "w2"),)), ("w",), {}, {}) == ()
    assert kept_values(replace(graph, results=("z", "w2")), ("w",), {}, {}) == ()


def test_an_operator_of_torchs_own_is_called_each_time() -> None:
    graph = parse_graph("graph @g(%x: f32[8, 8], %w: f32[8, 8]) -> (f32[8, 8]) { %r: f32[8, 8] = library.aten.rand_like.default (%w) "
                        "%d: f32[8, 8] = map [i, j] { neg(%r[i, j]) } %y: f32[8, 8] = library.matmul (%x, %d) return %y }")
    assert kept_values(graph, ("w",), {}, {}) == ()


@pytest.mark.parametrize("planner", ["greedy", "ilp"])
def test_weights_have_launches_of_their_own(planner: str) -> None:
    options = Options(planner=planner, stitch=False)
    made = {static: generate(parse_graph(GRAPH), constants={}, device=H200, options=options, static=static) for static in ((), STATIC)}
    assert split_weights(made[()].spec, STATIC) is None, "the plan of the whole packs an input's kernel with the weights'"
    apart = made[STATIC]
    assert verify_plan(apart.plan) == []
    split = split_weights(apart.spec, STATIC)
    assert split is not None and set(split.kept) == {"w2", "t"} and set(split.read) == {"w", "s"}
    assert len({k.name for k in apart.spec.kernels}) == len(apart.spec.kernels)
    program = Program(lower(apart.plan, ON_HOST, options), {}, "host", options)
    split = split_weights(program.spec, STATIC)
    assert split is not None
    run = KeptWeights(program, split, lambda rest: rest.call_boxed)
    generator = torch.Generator().manual_seed(5)
    x, w, s, b = (torch.randn(shape, generator=generator) for shape in ((64, 32), (32, 48), (48, 16), (48,)))
    for n in range(4):
        if n == 2:
            w.mul_(0.5)
        torch.testing.assert_close(run([x, w, s, b])[0], (x + 1) @ (2 * w) * s.sum(1) - b, rtol=1e-4, atol=1e-4)
    assert run.num_prepared == 2
