"""Lowering: kernels that take parts of tensors as operands, run on the host executor."""
from __future__ import annotations

from dataclasses import replace

import torch

from tests.unit.plan.generators.test_units import recurrence
from tilefuse.base.options import Options
from tilefuse.driver.lowering.in_place import in_place_updates
from tilefuse.driver.lowering.lower import compiler_flags, lower
from tilefuse.ir.text import parse_graph
from tilefuse.plan.planner import plan_graph
from tilefuse.runtime.program import Program
from tilefuse.target.device import H200

# Kernels of the GPU's plan, printed for the host.
ON_HOST = replace(H200, kind="host")


def test_kernels_read_windows_of_inputs_and_of_each_others_results() -> None:
    """Four steps on parts of one input; checked for accesses out of bounds."""
    steps, rows, width = 4, 8, 16
    plan = plan_graph(recurrence(steps, width, rows), {}, H200, Options(max_kernel_nodes=6))
    assert len(plan.kernels) > 1 and plan.views and not plan.library_calls
    options = Options(check=True)
    spec = lower(plan, ON_HOST, options)
    assert {v.role for v in spec.values} >= {"view"}
    generator = torch.Generator().manual_seed(11)
    x, h, a, b = (torch.randn(s, generator=generator) / 4 for s in ((steps, rows, width), (rows, width), (width, width), (width, width)))
    found, = Program(spec, {}, "host", options)(x, h, a, b)
    for t in range(steps):
        h = torch.tanh(x[t] @ a + h @ b)
    torch.testing.assert_close(found, h)


def test_an_update_is_not_in_place_where_its_kernel_reads_a_window_of_the_old_contents() -> None:
    """The product reads rows that other blocks would have overwritten."""
    graph = parse_graph(
        "graph @g(%x: f32[2, 16, 16], %w: f32[16, 16]) -> () { %v: f32[16, 16] = map [i, j] { %x[1, i, j] } "
        "%p: f32[16, 16] = library.matmul (%v, %w) %n: f32[2, 16, 16] = map [k, i, j] { add(%x[k, i, j], %p[i, j]) } "
        "update %x = %n return }")
    plan = plan_graph(graph, {}, H200, Options())
    assert len(plan.kernels) == 1
    assert in_place_updates(plan) == {}


def test_the_checking_mode_is_compiled_with_few_optimisations() -> None:
    """A program of checked kernels is compiled in half the time; nothing else is compiled in another way for it."""
    assert compiler_flags(ON_HOST, Options(check=True)) == ("-O1",) and compiler_flags(ON_HOST, Options()) == ()
    assert compiler_flags(ON_HOST, Options(check=True, fast_math=True)) == ("-O1", *compiler_flags(ON_HOST, Options(fast_math=True)))
    assert compiler_flags(H200, Options(check=True)) == ()
