"""Kernels that stand ready before the one ahead of them has ended: where the text waits, where it is left out, how they are launched."""
from __future__ import annotations

import inspect
from collections.abc import Callable

import pytest
import torch

import tilefuse
from tests.unit.plan.generators.test_units import recurrence
from tilefuse.base.options import Options
from tilefuse.driver.compile import generate
from tilefuse.driver.lowering.lower import inputs_by_value, inputs_unwritten_by, lower, unwritten_inputs
from tilefuse.ir.graph import Graph
from tilefuse.ir.text import parse_graph, print_graph
from tilefuse.plan.planner import plan_graph
from tilefuse.runtime.cuda_api import LaunchAttribute, launch_config
from tilefuse.runtime.spec import KernelStep
from tilefuse.target.catalog import A100
from tilefuse.target.device import H200
from tilefuse.target.launch import Launch


def scaled(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x) * 2.0


@pytest.mark.parametrize(("target", "waits"), [("h200", True), ("a100", False)])
def test_a_kernel_waits_itself_where_the_device_can(target: str, waits: bool) -> None:
    program = tilefuse.compile(scaled, [torch.zeros(64, 64)], target=target)
    (kernel,) = program.spec.kernels
    assert kernel.launch.early is waits
    assert ("tf_wait_for_earlier_kernel();" in kernel.source) is waits


def added(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x + y


def peaked(x: torch.Tensor) -> torch.Tensor:
    return torch.argmax(x, -1)


@pytest.mark.parametrize(("function", "rows", "early", "lets"), [
    (scaled, 64, True, False), (scaled, 16384, False, False), (added, 64, True, False), (added, 16384, True, False),
    (added, 1 << 17, False, True), (peaked, 64, True, False), (peaked, 65536, False, False)])
def test_only_kernels_that_move_little_or_much_a_thread_start_early(
        function: Callable[..., torch.Tensor], rows: int, early: bool, lets: bool) -> None:
    """The cost of a launch is the same for all; that of waiting, and of letting the next one start, grows with the blocks and is hidden by
    what a thread loads."""
    inputs = [torch.zeros(rows, 1024, device="meta") for _ in inspect.signature(function).parameters]
    (kernel,) = tilefuse.compile(function, inputs, target="h200").spec.kernels
    assert kernel.launch.early is early and ("  tf_wait_for_earlier_kernel();" in kernel.source) is early
    # One that starts late lets the next one stand ready from its own start, where that is little beside what its blocks move.
    assert ("  tf_let_next_kernel_start();" in kernel.source) is lets


def test_a_large_kernel_lets_the_next_one_stand_ready_unless_told_not_to() -> None:
    made = generate(recurrence(4, 16, 8), constants={}, device=H200, options=Options(max_kernel_nodes=6, early_start="off"))
    assert not any("griddepcontrol" in k.source for k in made.spec.kernels)
    (alone,) = tilefuse.compile(scaled, [torch.zeros(16384, 1024, device="meta")], target="h200", early_start="off").spec.kernels
    assert "griddepcontrol" not in alone.source


def test_large_kernels_beside_library_calls_start_when_these_have_ended() -> None:
    """They would run with the split of shared memory and cache that the library's kernel has."""
    shape = "f32[16384, 1024]"
    graph = parse_graph(f"""graph @g(%x: {shape}, %y: {shape}, %w: f32[1024, 1024]) -> ({shape}) {{
  %s: {shape} = map [i, j] {{ add(%x[i, j], %y[i, j]) }}
  %m: {shape} = library.matmul (%s, %w) {{precision = "f32"}}
  return %m
}}""")
    (kernel,) = generate(graph, constants={}, device=H200, options=Options()).spec.kernels
    assert not kernel.launch.early


def copies(source: str) -> tuple[int, int]:
    """(those before the kernel waits for the one ahead, those after it)."""
    before, _, after = source[source.index('extern "C"'):].partition("tf_wait_for_earlier_kernel();")
    return before.count("tf_async_copy<16>("), after.count("tf_async_copy<16>(")


def test_the_first_kernel_waits_first_and_later_ones_fetch_inputs() -> None:
    """Kernels ahead of the program may still write its inputs; kernels of the program do not."""
    plan = plan_graph(recurrence(4, 16, 8), {}, H200, Options(max_kernel_nodes=6))
    spec = lower(plan, H200, Options())
    first, *later = (spec.kernels[s.kernel] for s in spec.steps if isinstance(s, KernelStep))
    assert later and copies(first.source)[0] == 0 and "_early" not in first.name
    assert all(min(copies(k.source)) >= 1 and k.name.endswith("_early") for k in later)
    assert len({k.name for k in spec.kernels}) == len(spec.kernels)


def gated(steps: int, width: int = 128, rows: int = 32) -> Graph:
    """Gates of a step are a product of the state, which is made of the gates before: its elements are results, as a loop's outputs are."""
    state, lines = f"f32[{rows}, {width}]", []
    for t in range(steps):
        lines += [f"  %g{t}: f32[{rows}, {2 * width}] = library.matmul (%h{t}, %w)",
                  f"  %h{t + 1}: {state} = map [i, j] {{ add(mul(sigmoid(%g{t}[i, j + {width}]), %h{t}[i, j]), tanh(%g{t}[i, j])) }}"]
    names = [f"h{t + 1}" for t in range(steps)]
    head = f"graph @steps(%h0: {state}, %w: f32[{width}, {2 * width}]) -> ({', '.join(state for _ in names)}) {{"
    return parse_graph("\n".join([head, *lines, "  return " + ", ".join("%" + n for n in names), "}"]))


def test_weights_are_fetched_early_where_the_state_is_computed_first() -> None:
    """And steps that fetch the same values early are one code, whatever else of theirs the program leaves alone: the first state, here."""
    kernels = ["{%g0} -> {%g0}", *(f"{{%h{t}, %g{t}}} -> {{%h{t}, %g{t}}}" for t in range(1, 5)), "{%h5} -> {%h5}"]
    lines = [f"  kernel k{n} = {k} by hand cost 1us from bandwidth as k{n}" for n, k in enumerate(kernels)]
    lines += [f"  edge %h{t} -> %g{t} in k{t} shared" for t in range(1, 5)]
    plan = "\n".join(["plan @steps for h200 objective 1us unfused 1us {", *lines, "}"])
    found = generate(gated(5), constants={}, device=H200, options=Options(plan=plan)).spec
    first, step, last = found.kernels
    assert [s.kernel for s in found.steps if isinstance(s, KernelStep)] == [0, 1, 1, 1, 1, 2]
    assert step.name.endswith("_early") and "_early" not in first.name + last.name
    assert copies(step.source)[0] >= 1


def test_weights_are_fetched_early_where_the_program_updates_them_later() -> None:
    """Who wrote them last is not the kernel ahead: that was the end of the run before, as in training."""
    head, _, end = print_graph(gated(5)).rpartition("  return ")
    updated = "  %n: f32[128, 256] = map [i, j] { mul(%w[i, j], %h5[0, 0]) }\n  update %w = %n\n"
    kernels = ["{%g0} -> {%g0}", *(f"{{%h{t}, %g{t}}} -> {{%h{t}, %g{t}}}" for t in range(1, 5)), "{%h5} -> {%h5}", "{%n} -> {%n}"]
    lines = [f"  kernel k{n} = {k} by hand cost 1us from bandwidth as k{n}" for n, k in enumerate(kernels)]
    lines += [f"  edge %h{t} -> %g{t} in k{t} shared" for t in range(1, 5)]
    text = "\n".join(["plan @steps for h200 objective 1us unfused 1us {", *lines, "}"])
    made = generate(parse_graph(f"{head}{updated}  return {end}"), constants={}, device=H200, options=Options(plan=text))
    step, update = made.spec.kernels[1], made.spec.kernels[-1]
    assert step.name.endswith("_early") and copies(step.source)[0] >= 1
    assert update.name.endswith("_in_place")
    kernels_of = {k.pattern.written[-1]: k for k in made.plan.kernels}
    in_place = {"n": "w"}
    inputs = inputs_by_value(made.plan)
    assert inputs_unwritten_by((kernels_of["g1"], kernels_of["g2"]), ("w", "g1"), inputs, in_place) == {"w"}
    assert not inputs_unwritten_by((kernels_of["n"], kernels_of["g2"]), ("w",), inputs, in_place)


@pytest.mark.parametrize(("option", "stands_ready", "fetches"), [("inputs", True, True), ("ready", True, False), ("off", False, False)])
def test_an_option_says_what_is_done_early(option: str, stands_ready: bool, fetches: bool) -> None:
    """The whole compile, and its explanation; what is computed is the same text but for that."""
    made = generate(recurrence(4, 16, 8), constants={}, device=H200, options=Options(max_kernel_nodes=6, early_start=option))
    assert any(k.name.endswith("_early") for k in made.spec.kernels) is fetches
    assert [("tf_wait_for_earlier_kernel();" in k.source, k.launch.early) for k in made.spec.kernels] == [
        (stands_ready, stands_ready)] * len(made.spec.kernels)
    assert {k["launch"]["early"] for k in made.explain(json=True)["kernels"]} == {stands_ready}
    assert ("early_start" in made.explain(json=True)["options"]) is (option != "inputs")
    assert all(copies(k.source)[0] == 0 for k in made.spec.kernels if not fetches and stands_ready)


def test_a_device_without_early_starts_has_one_kernel_for_all_steps() -> None:
    plan = plan_graph(recurrence(4, 16, 8), {}, A100, Options(max_kernel_nodes=6))
    spec = lower(plan, A100, Options())
    assert not any("_early" in k.name or "tf_wait_for_earlier_kernel();" in k.source for k in spec.kernels)


def test_inputs_that_a_program_writes_are_not_settled() -> None:
    graph = parse_graph(
        "graph @g(%x: f32[4, 16, 16], %w: f32[16, 16], %v: f32[16, 16]) -> (f32[16, 16]) { %p: f32[16, 16] = map [i, j] { %x[1, i, j] } "
        "%m: f32[16, 16] = library.matmul(%p, %w) %r: f32[16, 16] = map [i, j] { add(%m[i, j], %v[i, j]) } "
        "%n: f32[16, 16] = map [i, j] { mul(%w[i, j], 0.5:f32) } update %w = %n return %r }")
    plan = plan_graph(graph, {}, H200, Options())
    assert unwritten_inputs(plan, {}) == {"x", "v"} | {v.value for v in plan.views if v.base == "x"}
    assert unwritten_inputs(plan, {"m": "v"}) >= {"x"} and "v" not in unwritten_inputs(plan, {"m": "v"})


@pytest.mark.parametrize(("launch", "attributes"), [
    (Launch(8, 128), []), (Launch(8, 128, 4), [(4, 4)]), (Launch(8, 128, 1, 0, True), [(6, 1)]),
    (Launch(8, 128, 4, 0, True), [(4, 4), (6, 1)])])
def test_launch_attributes_are_those_of_the_launch(launch: Launch, attributes: list[tuple[int, int]]) -> None:
    """Attribute numbers of the driver: 4 cluster dimension, 6 programmatic stream serialization."""
    config, kept = launch_config(launch, 0)
    found = (LaunchAttribute * config.num_attributes).from_address(config.attributes) if config.num_attributes else []
    assert [(a.id, a.value[0]) for a in found] == attributes
    assert (kept is None) is (not attributes)
