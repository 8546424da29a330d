"""Plans of random graphs: what is printed gives the same kernels again, and answers do not contradict each other."""
from __future__ import annotations

from itertools import combinations
from random import Random

import pytest

from tests.laws.random_graphs import random_graph
from tests.laws.random_products import random_products
from tilefuse.base.options import Options
from tilefuse.driver.compile import generate
from tilefuse.ir.graph import Graph
from tilefuse.plan.pattern import Plan
from tilefuse.plan.text.edit import plan_of_outline, setting_of_plan
from tilefuse.plan.text.text import parse_plan, print_plan
from tilefuse.plan.text.why import pattern_of, why
from tilefuse.target.catalog import host_device
from tilefuse.target.device import H200, DeviceSpec

OPTIONS = Options(plan_cache=False)
DEVICES = (H200, host_device())
# Graphs with packed kernels that one block could compute in stages, values computed again by several kernels and in several parts of one,
# views, library calls, cuts that save time, and a few more.
SEEDS = (3, 5, 9, 19, 26, 37, 79, 102, 210, 251)
MAX_PAIRS = 40


def drawn(seed: int) -> Graph:
    random = Random(seed)
    return random_products(random) if seed % 3 == 0 else random_graph(random, num_nodes=random.choice([4, 8, 14]), exact=bool(seed % 2))


def planned(seed: int, device: DeviceSpec) -> Plan:
    return generate(drawn(seed), constants={}, device=device, options=OPTIONS).plan


@pytest.mark.parametrize("device", DEVICES, ids=lambda d: d.name)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_printed_plan_gives_the_kernels_it_was_printed_of(seed: int, device: DeviceSpec) -> None:
    plan = planned(seed, device)
    again = plan_of_outline(parse_plan(print_plan(plan)), setting_of_plan(plan, device, OPTIONS))

    def told(p: Plan) -> dict[tuple[str, ...], object]:
        return {k.pattern.nodes: (k.pattern.written, k.program.template, k.program.launch, k.levels, k.cost) for k in p.kernels}

    assert told(again) == told(plan), f"seed {seed}"
    for kernel in plan.kernels:
        assert pattern_of(plan, kernel.pattern.nodes, [kernel]) == kernel.pattern, f"seed {seed}, {kernel.name}"


@pytest.mark.parametrize("device", DEVICES, ids=lambda d: d.name)
@pytest.mark.parametrize("seed", SEEDS)
def test_answers_do_not_contradict_themselves(seed: int, device: DeviceSpec) -> None:
    plan = planned(seed, device)
    setting = setting_of_plan(plan, device, OPTIONS)
    pairs = list(combinations(plan.graph.type_by_name, 2))
    for a, b in Random(seed).sample(pairs, min(MAX_PAIRS, len(pairs))):
        found, turned = why(plan, setting, a, b), why(plan, setting, b, a)
        what = f"seed {seed}: {found.text()}"
        assert found.together == any(a in k.pattern.nodes and b in k.pattern.nodes for k in plan.kernels), what
        assert (found.together, found.decided_by, found.chosen_us, found.other_us) == (
            turned.together, turned.decided_by, turned.chosen_us, turned.other_us), f"{what}\n{turned.text()}"
        assert found.detail and " -" not in found.detail, what
        if found.chosen_us is not None and found.other_us is not None:
            # A path between the two, which the other choice holds as well, keeps its own reason.
            holds_more = found.decided_by == "not-convex" and "the other choice holds these too" in found.text()
            assert holds_more or found.decided_by == ("search" if found.other_us < found.chosen_us else "cost"), what
