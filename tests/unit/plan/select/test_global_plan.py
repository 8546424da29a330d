"""Planning by integer program: never worse than greedy connecting, better where greed is short-sighted, same plan every time."""
from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.unit.plan.generators.test_connect import random_graph
from tests.unit.plan.graphs import layers, softmax
from tests.unit.plan.proposals import candidates_of
from tests.unit.plan.stand_in import schedule_by_rows
from tilefuse.base.candidate import Reason, Rejected
from tilefuse.base.errors import InfeasibleError, OptionError
from tilefuse.base.options import Options
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.building.build import read_at
from tilefuse.ir.graph import Graph
from tilefuse.ir.layouts import Layouts
from tilefuse.ir.text import parse_graph
from tilefuse.plan.pattern import Plan, verify_plan
from tilefuse.plan.planner import plan_graph
from tilefuse.plan.price.products import Products
from tilefuse.plan.text.edit import plan_of_outline, setting_of
from tilefuse.plan.text.text import parse_plan, print_plan
from tilefuse.target.device import H200, DeviceSpec


def planned(graph: Graph, scheduler: object = schedule_by_rows, **options: object) -> Plan:
    chosen = Options().with_overrides(**{"planner": "ilp"} | options)
    plan = plan_graph(graph, {}, H200, chosen, scheduler=scheduler)  # type: ignore[arg-type]
    assert verify_plan(plan) == []
    return plan


def test_softmax_is_one_kernel() -> None:
    plan = planned(softmax())
    assert [k.pattern.nodes for k in plan.kernels] == [("m", "e", "s", "y")]
    assert plan.search is not None and plan.search.proven and plan.search.objective_us == pytest.approx(plan.search.bound_us)


# b and c both read x beside the value between them, so that greed joins these two first.
SHORT_SIGHTED = """graph @short(%x: f32[512, 512], %z: f32[512, 512], %w: f32[512, 512]) -> (f32[512, 512]) {
  %a: f32[512, 512] = map [i, j] { add(%z[i, j], %w[i, j]) }
  %b: f32[512, 512] = map [i, j] { add(%a[i, j], %x[i, j]) }
  %c: f32[512, 512] = map [i, j] { add(%b[i, j], %x[i, j]) }
  %d: f32[512, 512] = map [i, j] { exp(%c[i, j]) }
  return %d
}"""


def only(*allowed: set[str]) -> object:
    """A scheduler that knows these patterns, and every node alone."""
    def schedule(graph: Graph, nodes: Sequence[str], layouts: Layouts, device: DeviceSpec) -> TileProgram | Rejected:
        if len(nodes) > 1 and set(nodes) not in allowed:
            return Rejected(Reason.REGISTERS, "not in this test")
        return schedule_by_rows(graph, nodes, layouts, device)

    return schedule


def test_two_good_kernels_are_better_than_the_best_one() -> None:
    """Greed takes {b, c}, which saves most, and is left with a and d alone; {a, b} and {c, d} save more together."""
    graph = parse_graph(SHORT_SIGHTED)
    scheduler = only({"b", "c"}, {"a", "b"}, {"c", "d"})
    greedy = plan_graph(graph, {}, H200, Options(planner="greedy"), scheduler=scheduler)  # type: ignore[arg-type]
    plan = planned(graph, scheduler)
    both = {tuple(k.pattern.nodes) for k in plan.kernels}
    assert both == {("a", "b"), ("c", "d")}
    assert ("b", "c") in [k.pattern.nodes for k in greedy.kernels] and plan.objective_us < greedy.objective_us


@pytest.mark.parametrize("seed", range(40))
def test_never_worse_than_greedy_connecting(seed: int) -> None:
    graph = random_graph(seed)
    greedy = plan_graph(graph, {}, H200, Options(planner="greedy"), scheduler=schedule_by_rows)
    plan = planned(graph)
    assert plan.objective_us <= greedy.objective_us * (1 + 1e-9), f"seed {seed}"
    assert plan.search is not None and plan.search.greedy_us >= plan.objective_us * (1 - 1e-9), f"seed {seed}"


def test_planning_is_deterministic() -> None:
    for seed in (5, 11):
        first, second = planned(random_graph(seed)), planned(random_graph(seed))
        assert [(k.pattern, k.generator) for k in first.kernels] == [(k.pattern, k.generator) for k in second.kernels]
        assert first.search == second.search


def test_without_time_the_plan_of_greedy_connecting_is_used() -> None:
    graph = random_graph(5)
    greedy = plan_graph(graph, {}, H200, Options(planner="greedy"), scheduler=schedule_by_rows)
    plan = planned(graph, plan_seconds=0)
    assert plan.objective_us <= greedy.objective_us * (1 + 1e-9)
    assert plan.search is not None and not plan.search.proven


def test_other_work_of_the_machine_takes_no_time_from_planning(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that an hour passes on between any two looks, as where other programs hold the processor."""
    quiet = planned(random_graph(5))
    hours = itertools.count(0.0, 3600.0)
    monkeypatch.setattr(time, "perf_counter", lambda: next(hours))
    busy = planned(random_graph(5))
    assert busy.search is not None and busy.search.proven
    assert [k.pattern for k in busy.kernels] == [k.pattern for k in quiet.kernels]


def test_a_structure_is_scheduled_once() -> None:
    """Forty layers: what is scheduled grows neither with the layers nor with the number of candidates."""
    counts = []
    for count in (10, 40):
        calls: list[tuple[str, ...]] = []

        def schedule(graph: Graph, nodes: Sequence[str], layouts: Layouts, device: DeviceSpec) -> TileProgram | Rejected:
            calls.append(tuple(nodes))  # noqa: B023
            return schedule_by_rows(graph, nodes, layouts, device)

        plan = planned(layers(count), schedule)
        assert plan.search is not None and sum(n for _, n in plan.search.candidates) >= count
        counts.append(len(calls))
    assert counts[0] == counts[1]


def test_every_generator_is_counted() -> None:
    """Large tensors, so that exploration has seeds; two layers, so that substitution has segments."""
    plan = planned(layers(2, rows=1 << 16))
    assert plan.search is not None
    assert {"connect", "exploratory", "substitution"} >= {name for name, _ in plan.search.candidates}
    assert dict(plan.search.candidates)["connect"] >= 2


def test_the_real_scheduler_packs_what_is_independent() -> None:
    lines = ["graph @steps(" + ", ".join(f"%w{n}: f32[{8 + n}, 16], %g{n}: f32[{8 + n}, 16]" for n in range(12)) + ") -> ("
             + ", ".join(f"f32[{8 + n}, 16]" for n in range(12)) + ") {"]
    lines += [f"  %u{n}: f32[{8 + n}, 16] = map [i, j] {{ sub(%w{n}[i, j], mul(%g{n}[i, j], 0.1:f32)) }}" for n in range(12)]
    graph = parse_graph("\n".join([*lines, "  return " + ", ".join(f"%u{n}" for n in range(12)), "}"]))
    plan = plan_graph(graph, {}, H200, Options(planner="ilp"))
    assert verify_plan(plan) == [] and len(plan.kernels) == 1 and plan.kernels[0].program.template == "packed"


def two_branches(length: int = 4) -> Graph:
    """Branches of large products that are added at the end: run one after the other they need little memory, in step they need much."""
    lines = ["graph @branches(%x: f32[1024, 1024], const %w: f32[1024, 1024]) -> (f32[1024, 1024]) {"]
    for branch in "ab":
        lines.append(f"  %{branch}0: f32[1024, 1024] = map [i, j] {{ exp(%x[i, j]) }}")
        for n in range(length):
            lines.append(f"  %{branch}p{n}: f32[1024, 1024] = library.matmul (%{branch}{n}, %w)")
            lines.append(f"  %{branch}{n + 1}: f32[1024, 1024] = map [i, j] {{ tanh(%{branch}p{n}[i, j]) }}")
    lines.append(f"  %y: f32[1024, 1024] = map [i, j] {{ add(%a{length}[i, j], %b{length}[i, j]) }}")
    return parse_graph("\n".join([*lines, "  return %y", "}"]))


def test_a_ceiling_on_memory_is_kept() -> None:
    """Each value has 4 MiB. Joining a0 and b0 saves a read of x and keeps b0 alive through the whole first branch."""
    free = planned(two_branches())
    assert free.search is not None
    assert any(len(k.pattern.nodes) > 1 for k in free.kernels)
    tight = planned(two_branches(), peak_memory_mb=12)
    assert tight.search is not None and tight.search.peak_bytes <= 12 << 20
    assert tight.objective_us >= free.objective_us


def test_a_ceiling_that_nothing_keeps_is_told_with_numbers() -> None:
    with pytest.raises(InfeasibleError, match=r"no plan of @branches .* within 1048576 bytes \(peak_memory_mb=1\).*most of it for %"):
        planned(two_branches(), peak_memory_mb=1)


@pytest.mark.parametrize(("options", "named"), [({"planner": "greedy"}, "planner=greedy"), ({"fuse": False}, "fuse=false")])
def test_a_ceiling_that_nobody_would_keep_is_refused(options: dict[str, object], named: str) -> None:
    with pytest.raises(OptionError, match=f"peak_memory_mb=12 is a ceiling that plans of {named} do not keep"):
        planned(two_branches(), peak_memory_mb=12, **options)


def test_ten_thousand_nodes_are_planned_in_time() -> None:
    """Repeated layers, one library call each: 10,000 nodes, less than ten seconds on two cores."""
    graph = layers(2500)
    began = time.process_time()  # this machine may be shared with other tests
    plan = planned(graph)
    assert len(graph.nodes) == 10_000 and plan.search is not None and plan.search.proven
    assert time.process_time() - began < 10


def test_results_keep_their_order_of_execution() -> None:
    graph = random_graph(7)
    plan = planned(replace(graph, results=tuple(n.name for n in graph.nodes)))
    assert verify_plan(plan) == []


def test_no_kernel_waits_for_itself() -> None:
    """%a0 and %x1 with the product between them outside."""
    made = candidates_of(layers(2))
    refused = made.offer((1, 4), "test")
    assert isinstance(refused, Rejected) and refused.reason is Reason.NOT_CONVEX


@pytest.mark.parametrize(("fusible", "kernels"), [(True, [("t0", "a0", "p0", "x1")]), (False, [("t0", "a0"), ("x1",)])])
def test_a_product_that_a_kernel_may_hold_joins_one(fusible: bool, kernels: list[tuple[str, ...]]) -> None:
    """The stand-in prices a product in a kernel like a map, so that one kernel is faster than the call between two."""
    def schedule(graph: Graph, nodes: Sequence[str], layouts: Layouts, device: DeviceSpec) -> TileProgram | Rejected:
        as_maps = replace(graph, nodes=tuple(replace(n, kind="map", axes=("i", "j"), operands=(), attributes=(),
                                                     body=read_at(n.operands[0], ("i", "j"))) if n.category == "library" else n
                                             for n in graph.nodes))
        return schedule_by_rows(as_maps, nodes, layouts, device)

    products = Products(lambda node: fusible, lambda node: 5.0)
    plan = plan_graph(layers(1), {}, H200, Options(planner="ilp"), scheduler=schedule, products=products)
    assert [k.pattern.nodes for k in plan.kernels] == kernels and len(plan.library_calls) == (0 if fusible else 1)
    assert verify_plan(plan) == []


@pytest.mark.parametrize(("rows", "options", "held"), [
    (8, {}, True), (8, {"planner": "greedy"}, True), (8, {"stitch": False}, False), (8, {"fuse": False}, False), (512, {}, False)])
def test_a_small_product_alone_is_a_kernel_where_that_is_plainly_faster(rows: int, options: dict[str, object], held: bool) -> None:
    """Between two calls of the library, so that there is nothing to fuse it with; its plan as text gives the same plan."""
    graph = parse_graph(f"""graph @alone(%x: f16[{rows}, 512], %w: f16[512, 512], %c: f16[512]) -> (f16[{rows}, 512]) {{
      %a: f16[{rows}, 512] = library.softmax (%x)
      %p: f16[{rows}, 512] = library.matmul (%a, %w, %c) {{has_bias=true, transpose_a=false, transpose_b=false}}
      %b: f16[{rows}, 512] = library.softmax (%p)
      return %b
    }}""")
    chosen = Options().with_overrides(**options)
    plan = plan_graph(graph, {}, H200, chosen)
    assert [(k.pattern.nodes, k.generator) for k in plan.kernels] == ([(("p",), "product")] if held else [])
    assert len(plan.library_calls) == (2 if held else 3) and verify_plan(plan) == []
    setting = setting_of(graph, {}, plan.layouts, {}, H200, chosen)
    again = plan_of_outline(parse_plan(print_plan(plan)), setting)
    assert [k.pattern for k in again.kernels] == [k.pattern for k in plan.kernels]
