"""Programs compared step by step where a kernel addresses another value's memory than its result's own."""
from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tilefuse.base.options import Options
from tilefuse.driver.compare.meaning import as_array
from tilefuse.driver.compare.steps import SteppedRun, compare_steps
from tilefuse.driver.compile import generate
from tilefuse.ir.text import parse_graph
from tilefuse.runtime.program import Program
from tilefuse.target.device import H200

# Kernels of the GPU's plan, printed for the host.
ON_HOST = replace(H200, kind="host")
N = 640  # matrices of 1.6 MiB: large enough to take the memory of one that dies
MATRIX, THIN = f"f32[{N}, {N}]", f"f32[{N}, 64]"
SAME = f"%m: {MATRIX} = map [i, j] {{ tanh(%t[i, j]) }}"
FOLDED = (f"%v: f32[2, {N // 2}, {N}] = map [b, i, j] {{ tanh(%t[{N // 2}*b + i, j]) }} "
          f"%m: {MATRIX} = map [i, j] {{ %v[(i // {N // 2}), (i % {N // 2}), j] }}")


def stepped(body: str, break_kernel: bool = False) -> tuple[SteppedRun, dict[str, str]]:
    """Two products with `body` between, run step by step; and which values lie over others. break_kernel: tanh is printed as sinh."""
    graph = parse_graph(f"graph @g(%x: {THIN}, %w: f32[64, {N}], %u: {THIN}) -> ({THIN}) {{ %t: {MATRIX} = library.matmul (%x, %w) "
                        f"{body} %y: {THIN} = library.matmul (%m, %u) return %y }}")
    options = Options(stitch=False, plan_cache=False)
    made = generate(graph, constants={}, device=ON_HOST, options=options)
    if break_kernel:
        kernels = tuple(replace(k, source=k.source.replace("= tf_tanh(", "= sinhf(")) for k in made.spec.kernels)
        made = replace(made, spec=replace(made.spec, kernels=kernels))
    generator = torch.Generator().manual_seed(3)
    tensors = [torch.randn(s, generator=generator) / 8 for s in ((N, 64), (64, N), (N, 64))]
    inputs = {i.name: as_array(t) for i, t in zip(graph.inputs, tensors, strict=True)}
    found = compare_steps(made, Program(made.spec, {}, "host", options), inputs, tensors)
    views = {v.value for v in made.plan.views}
    return found, {v.name: v.base for v in made.spec.values if v.base and v.name not in views}


@pytest.mark.parametrize(("body", "over"), [(SAME, {"m": "t"}), (FOLDED, {"v": "t"})])
def test_a_value_written_where_another_lay_is_compared(body: str, over: dict[str, str]) -> None:
    """The kernel's arguments name the memory of the value that dies: the comparison ended with a KeyError."""
    found, lies_over = stepped(body)
    assert lies_over == over
    assert [s.kind for s in found.steps] == ["library", "kernel", "library"]
    assert found.first is None
    kernel = found.steps[1]
    assert [v.name for v in kernel.own] == list(over) and kernel.own_error < 1e-5


def test_an_error_of_a_value_written_where_another_lay_is_found() -> None:
    found, lies_over = stepped(SAME, break_kernel=True)
    assert lies_over == {"m": "t"}
    assert found.first is not None and (found.first.number, found.first.kind) == (1, "kernel")
    assert [v.name for v in found.first.own if not v.agrees] == ["m"]


def test_parts_of_a_value_have_no_step() -> None:
    """Kernels write them where they lie in it: the steps behind keep their kernels, and both read the value."""
    graph = parse_graph("""graph @g(%x: f32[8, 64], %y: f32[8, 64], %w: f32[128, 16]) -> (f32[8, 16], f32[128]) {
      %a: f32[8, 64] = map [i, j] { exp(%x[i, j]) }
      %b: f32[8, 64] = map [i, j] { mul(%y[i, j], 2.0:f32) }
      %s: f32[8, 128] = library.side_by_side (%a, %b) {windows = ((0, (128, 1)), (64, (128, 1)))}
      %p: f32[8, 16] = library.matmul (%s, %w) {precision = "default", transpose_a = false, transpose_b = false}
      %c: f32[128] = reduce.sum [j] over [i < 8] { %s[i, j] }
      return %p, %c
    }""")
    options = Options(stitch=False, plan_cache=False)
    made = generate(graph, constants={}, device=ON_HOST, options=options)
    generator = torch.Generator().manual_seed(3)
    tensors = [torch.randn(*i.type.shape, generator=generator) for i in graph.inputs]
    inputs = {i.name: as_array(t) for i, t in zip(graph.inputs, tensors, strict=True)}
    found = compare_steps(made, Program(made.spec, {}, "host", options), inputs, tensors)
    assert found.first is None and {n for s in found.steps for n in s.nodes} == {"a", "b", "p", "c"}
    assert all(s.own_error < 1e-5 for s in found.steps)
