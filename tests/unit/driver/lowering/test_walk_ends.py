"""Kernels that walk backwards: those that read again what the kernel ahead has just walked through, where the cache cannot hold it all."""
from __future__ import annotations

from dataclasses import replace

import pytest

from tilefuse.base.options import Options
from tilefuse.driver.compile import generate
from tilefuse.driver.lowering.walk_ends import backward_steps
from tilefuse.ir.graph import Graph
from tilefuse.ir.text import parse_graph
from tilefuse.plan.planner import plan_graph
from tilefuse.runtime.spec import KernelStep
from tilefuse.target.catalog import host_device
from tilefuse.target.device import H200

# Blocks that fetch rows ahead by bulk copies walk one way alone; without them each block has a row.
PLAIN = replace(H200, capabilities=replace(H200.capabilities, bulk_copies=False))


def products(size: int, times: int, dtype: str = "f32") -> Graph:
    """A (A ... (A x)), each divided by its norm: the next product waits for all of the last one."""
    vector = f"{dtype}[{size}]"
    lines = []
    for n in range(times):
        lines += [f"  %y{n}: {vector} = reduce.sum [i] over [k < {size}] {{ mul(%a[i, k], %x{n}[k]) }}",
                  f"  %s{n}: {dtype}[] = reduce.sum [] over [k < {size}] {{ mul(%y{n}[k], %y{n}[k]) }}",
                  f"  %x{n + 1}: {vector} = map [i] {{ mul(%y{n}[i], rsqrt(%s{n}[])) }}"]
    head = f"graph @power(%a: {dtype}[{size}, {size}], %x0: {vector}) -> ({vector}) {{"
    return parse_graph("\n".join([head, *lines, f"  return %x{times}", "}"]))


def walks(graph: Graph) -> list[bool]:
    """Whether each kernel that reads the matrix walks backwards."""
    plan = plan_graph(graph, {}, PLAIN, Options())
    turned = backward_steps(plan, PLAIN)
    return [n in turned for n, k in enumerate(plan.steps) if any(there == "a" for _, there in k.binding)]


@pytest.mark.parametrize(("size", "turns"), [(4096, True), (8192, True), (2048, False)])
def test_a_matrix_is_read_to_and_fro(size: int, turns: bool) -> None:
    """Where it is larger than what the cache keeps; a smaller one stays in the cache whichever way it is read."""
    assert walks(products(size, 4)) == [False, turns, False, turns]


def test_what_a_kernel_writes_is_read_from_its_end() -> None:
    """And a third kernel reads what that one wrote the first way again."""
    shape = "f32[4096, 8192]"
    lines = [f"  %y{n + 1}: {shape} = map [i, j] {{ exp(%y{n}[i, j]) }}" for n in range(3)]
    graph = parse_graph("\n".join([f"graph @g(%y0: {shape}) -> ({shape}, {shape}, {shape}) {{", *lines, "  return %y1, %y2, %y3", "}"]))
    kernels = [f"  kernel k{n} = {{%y{n + 1}}} -> {{%y{n + 1}}} by hand cost 1us from bandwidth as k{n}" for n in range(3)]
    text = "\n".join(["plan @g for h200 objective 1us unfused 1us {", *kernels, "}"])
    plan = generate(graph, constants={}, device=H200, options=Options(plan=text)).plan
    assert len(plan.steps) == 3 and backward_steps(plan, H200) == {1}


def test_the_text_of_a_kernel_says_from_which_end_it_walks() -> None:
    """One kernel's text for each way; on a device that is no GPU nothing turns round."""
    graph = products(4096, 2)
    spec = generate(graph, constants={}, device=PLAIN, options=Options()).spec
    by_step = [spec.kernels[s.kernel] for s in spec.steps if isinstance(s, KernelStep) and "a" in s.arguments]
    first, second = by_step
    assert "block = blockIdx.x;" in first.source and f"block = {second.launch.num_blocks - 1} - blockIdx.x;" in second.source
    assert second.name.endswith("_backwards") and not first.name.endswith("_backwards")
    assert not backward_steps(plan_graph(graph, {}, host_device(), Options()), host_device())
