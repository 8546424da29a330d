"""Plans from seeds are legal and right whatever the seed proposes: any choice of kernels over random graphs, and graphs of random sizes."""
from __future__ import annotations

from random import Random

import numpy as np
import pytest

from tests.laws.random_graphs import random_graph, random_inputs
from tests.laws.test_executors import tensor
from tests.unit.plan.test_seeded import norms
from tilefuse.base.options import Options
from tilefuse.driver.compile import Generated, generate, prepare
from tilefuse.ir.graph import Graph
from tilefuse.ir.interpret import interpret
from tilefuse.ir.text import print_graph
from tilefuse.plan.pattern import verify_plan
from tilefuse.plan.rewrites.views import find_views
from tilefuse.plan.seeded import Seed, SeedKernel, seed_of, structure_of
from tilefuse.runtime.program import Program
from tilefuse.target.catalog import host_device
from tilefuse.target.device import H200, DeviceSpec


def random_seed(graph: Graph, random: Random, device: DeviceSpec) -> Seed:
    """A seed whose kernels hold any nodes, whether or not they can share one, with any maps recomputed."""
    ready = prepare(graph, constants={}, device=device, options=Options())
    nodes = ready.graph.nodes
    kernel_of = [random.randrange(max(1, len(nodes) // 2) + 1) for _ in nodes]
    kernels = [tuple(n for n, k in enumerate(kernel_of) if k == kernel) for kernel in sorted(set(kernel_of)) if kernel]
    light = tuple(n for n, node in enumerate(nodes) if node.kind == "map" and random.random() < 0.3)
    views = find_views(ready.graph, {**ready.layouts, **ready.given}, ready.fixed)
    share = random.choice((0.0, 0.0, 0.5))
    proposed = tuple(SeedKernel("connect", k, share, False, tuple(k[:end] for end in range(2, len(k)))) for k in kernels)
    return Seed(structure_of(ready.graph, views), (), proposed, kernels[:1], light)


def made(graph: Graph, seed: Seed, device: DeviceSpec) -> Generated:
    return generate(graph, constants={}, device=device, options=Options(), seed=seed)


def agree(graph: Graph, program: Generated, seed: int, tolerance: float = 0.0) -> None:
    """What the program gives on the host is what the interpreter gives."""
    inputs = random_inputs(graph, seed)
    found = Program(program.spec, program.constants, "host", Options())(*(tensor(inputs[i.name]) for i in graph.inputs))
    for a, b in zip(found, interpret(graph, inputs), strict=True):
        np.testing.assert_allclose(a.double().numpy(), b.astype(np.float64), rtol=tolerance, atol=tolerance,
                                   err_msg=f"seed {seed}\n{print_graph(graph)}")


def test_any_choice_of_kernels_gives_a_legal_plan() -> None:
    """Choices that cannot be are given up in part or as a whole, the others stand: both occur among the draws."""
    stood = given_up = 0
    for number in range(40):
        graph = random_graph(Random(number), num_nodes=10)
        plan = made(graph, random_seed(graph, Random(number), H200), H200).plan
        assert verify_plan(plan) == [], f"seed {number}\n{print_graph(graph)}"
        if plan.start is not None:
            stood += bool(plan.start.kept)
            given_up += bool(plan.start.given_up)
    assert stood >= 10 and given_up >= 3, (stood, given_up)


@pytest.mark.parametrize("number", [3, 12, 25, 31])
def test_programs_of_any_choice_are_right(number: int) -> None:
    graph = random_graph(Random(number), num_nodes=10)
    agree(graph, made(graph, random_seed(graph, Random(number), host_device()), host_device()), number)


@pytest.mark.parametrize("number", range(2))
def test_plans_carried_to_other_sizes_are_right(number: int) -> None:
    """Odd sizes, where vectors, tails and tiles differ from those of the seed."""
    random = Random(number)
    (rows, width), (other_rows, other_width) = ((random.randint(1, 70), random.randint(1, 70)) for _ in "ab")
    graph = norms(rows, width)
    there = generate(norms(other_rows, other_width), constants={}, device=host_device(), options=Options())
    seed = seed_of(there.plan)
    assert seed is not None
    program = made(graph, seed, host_device())
    assert program.plan.start is not None
    # Sums of at most 70 small integers, one root, six roundings.
    agree(graph, program, number, tolerance=70 * 6 * 2.0**-24 * 36)
