"""Greedy connecting: what is merged, what is not and why, and that no plan is worse than unfused."""
from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.unit.plan.graphs import layers, softmax
from tests.unit.plan.stand_in import schedule_by_rows
from tilefuse.base.candidate import Reason, Rejected
from tilefuse.base.errors import InternalError
from tilefuse.base.options import Options
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.building.build import GraphBuilder, read_at
from tilefuse.ir.dtype import F32
from tilefuse.ir.graph import Graph, Type
from tilefuse.ir.layouts import Layouts
from tilefuse.ir.scalar import Read, call
from tilefuse.ir.text import parse_graph
from tilefuse.plan.pattern import Plan, verify_plan
from tilefuse.plan.planner import plan_graph
from tilefuse.target.device import H200, DeviceSpec


def planned(graph: Graph, **options: object) -> Plan:
    plan = plan_graph(graph, {}, H200, Options(planner="greedy").with_overrides(**options), scheduler=schedule_by_rows)
    assert verify_plan(plan) == []
    return plan


def test_softmax_is_one_kernel() -> None:
    plan = planned(softmax())
    assert [k.pattern.nodes for k in plan.kernels] == [("m", "e", "s", "y")]
    assert plan.kernels[0].pattern.written == ("y",)
    assert {(e.producer, e.user) for e in plan.kernels[0].levels} == {("m", "e"), ("e", "s"), ("e", "y"), ("s", "y")}


def test_real_scheduler_makes_softmax_one_kernel() -> None:
    plan = plan_graph(softmax(), {}, H200, Options())
    assert len(plan.kernels) == 1 and plan.objective_us < plan.unfused_us


def test_without_fusing_every_node_is_a_kernel() -> None:
    plan = planned(softmax(), fuse=False)
    assert [k.pattern.nodes for k in plan.kernels] == [("m",), ("e",), ("s",), ("y",)]
    assert plan.objective_us == pytest.approx(plan.unfused_us)


def test_a_path_through_a_library_call_is_not_closed() -> None:
    """x1 = p + x0 and a1 = tanh(x1) + x1 share a kernel; nothing merges across the product between a0 and x1."""
    plan = planned(layers(2))
    assert [k.pattern.nodes for k in plan.kernels] == [("t0", "a0"), ("x1", "t1", "a1"), ("x2",)]
    assert plan.kernels[1].pattern.written == ("x1", "a1")
    assert any(r.rejected.reason is Reason.NOT_CONVEX for r in plan.rejected)


def test_repeated_layers_share_one_program() -> None:
    plan = planned(layers(12))
    assert len(plan.kernels) == 13 and len(plan.programs) == 3
    middle = plan.kernels[5]
    assert set(dict(middle.binding).values()) == {"p4", "x4", "x5", "a5"}
    assert len({p.name for p in plan.programs}) == 3


def test_a_rejected_merge_keeps_its_reason() -> None:
    graph = parse_graph("""graph @g(%x: f32[8, 4]) -> (f32[4]) {
      %a: f32[8, 4] = map [i, j] { exp(%x[i, j]) }
      %s: f32[4] = reduce.sum [j] over [k < 8] { %a[k, j] }
      return %s
    }""")
    plan = planned(graph)
    assert [k.pattern.nodes for k in plan.kernels] == [("a",), ("s",)]
    assert [(r.first, r.second, r.rejected.reason) for r in plan.rejected] == [("a", "s", Reason.DOMAIN_MISMATCH)]


def test_too_many_operands_are_a_reason() -> None:
    plan = planned(layers(2), max_kernel_operands=2)
    assert any(r.rejected.reason is Reason.TOO_MANY_OPERANDS for r in plan.rejected)


def test_the_node_limit_holds() -> None:
    b = GraphBuilder("chain")
    value = b.input("x", F32, (64, 64))
    for _ in range(100):
        value = b.map("t", F32, (64, 64), ("i", "j"), call("tanh", read_at(value, ("i", "j"))))
    plan = planned(b.finish([value]), max_kernel_nodes=16)
    assert max(len(k.pattern.nodes) for k in plan.kernels) <= 16
    assert len(plan.kernels) <= 10


def test_siblings_that_read_one_value_share_a_kernel() -> None:
    graph = parse_graph("""graph @g(%x: f32[64, 64]) -> (f32[64, 64], f32[64]) {
      %a: f32[64, 64] = map [i, j] { exp(%x[i, j]) }
      %s: f32[64] = reduce.sum [i] over [k < 64] { %x[i, k] }
      return %a, %s
    }""")
    assert [k.pattern.nodes for k in planned(graph).kernels] == [("a", "s")]


def test_a_cast_is_recomputed_in_every_kernel_that_reads_it() -> None:
    graph = parse_graph("""graph @g(%x: f16[64, 64], const %w: f32[64, 64]) -> (f32[64, 64], f32[64, 64]) {
      %c: f32[64, 64] = map [i, j] { f32(%x[i, j]) }
      %a: f32[64, 64] = map [i, j] { exp(%c[i, j]) }
      %p: f32[64, 64] = library.matmul (%a, %w)
      %b: f32[64, 64] = map [i, j] { mul(%p[i, j], %c[i, j]) }
      return %a, %b
    }""")
    plan = planned(graph)
    assert [(k.pattern.nodes, k.pattern.written) for k in plan.kernels] == [(("c", "a"), ("a",)), (("c", "b"), ("b",))]


def test_a_map_is_recomputed_where_that_saves_writing_it() -> None:
    """%a is read behind the product; computing it again from %x costs a read of equal length and saves the write."""
    graph = parse_graph("""graph @g(%x: f32[4096, 64], const %w: f32[64, 64]) -> (f32[4096, 64]) {
      %a: f32[4096, 64] = map [i, j] { tanh(%x[i, j]) }
      %d: f32[4096, 64] = map [i, j] { mul(%a[i, j], %a[i, j]) }
      %p: f32[4096, 64] = library.matmul (%d, %w)
      %b: f32[4096, 64] = map [i, j] { add(%p[i, j], %a[i, j]) }
      return %b
    }""")
    plan = planned(graph)
    assert [k.pattern for k in plan.kernels if "a" in k.pattern.written] == []
    assert sum("a" in k.pattern.nodes for k in plan.kernels) == 2


def test_a_light_node_that_cannot_be_absorbed_is_kept() -> None:
    def refuses_casts_inside(graph: Graph, nodes: Sequence[str], layouts: Layouts, device: DeviceSpec) -> TileProgram | Rejected:
        if "c" in nodes and len(nodes) > 1:
            return Rejected(Reason.REGISTERS, "no")
        return schedule_by_rows(graph, nodes, layouts, device)

    graph = parse_graph("""graph @g(%x: f16[64, 64]) -> (f32[64, 64]) {
      %c: f32[64, 64] = map [i, j] { f32(%x[i, j]) }
      %a: f32[64, 64] = map [i, j] { exp(%c[i, j]) }
      return %a
    }""")
    plan = plan_graph(graph, {}, H200, Options(), scheduler=refuses_casts_inside)
    assert verify_plan(plan) == [] and [k.pattern.nodes for k in plan.kernels] == [("c",), ("a",)]


def test_a_node_without_schedule_is_our_error() -> None:
    with pytest.raises(InternalError, match="no schedule for %m alone"):
        plan_graph(softmax(), {}, H200, Options(), scheduler=lambda *_: Rejected(Reason.REGISTERS, "none"))


def random_graph(seed: int, most_nodes: int = 25, shape: tuple[int, int] = (32, 16)) -> Graph:
    """Maps, row sums and products at random; every value that nothing reads is a result."""
    draw = random.Random(seed)
    b = GraphBuilder("random")
    num_rows, length = shape
    full = [b.input("x", F32, shape), b.input("y", F32, shape)]
    rows: list[str] = []

    def element(names: list[str]) -> Read:
        name = draw.choice(names)
        return read_at(name, ("i", "j")[: len(b.type_of(name).shape)])

    for _ in range(draw.randint(3, most_nodes)):
        kind = draw.random()
        if kind < 0.2:
            rows.append(b.add_reduction("s", "sum", F32, (num_rows,), ("i",), [("k", length)], read_at(draw.choice(full), ("i", "k"))))
        elif kind < 0.35 and rows:
            full.append(b.map("m", F32, shape, ("i", "j"), call("sub", element(full), element(rows))))
        elif kind < 0.5:
            full.append(b.library("p", "matmul", Type(F32, shape), [draw.choice(full), draw.choice(full)]))
        else:
            full.append(b.map("m", F32, shape, ("i", "j"), call("add", element(full), element(full))))
    graph = b.finish([])
    return replace(graph, results=tuple(n.name for n in graph.nodes if not graph.users_by_name[n.name]))


@pytest.mark.parametrize("seed", range(40))
def test_random_plans_are_legal_and_never_worse_than_unfused(seed: int) -> None:
    plan = planned(random_graph(seed))
    assert plan.objective_us <= plan.unfused_us * (1 + 1e-9), f"seed {seed}"
    assert {n for k in plan.kernels for n in k.pattern.nodes} | {v for c in plan.library_calls for _, v in c.results} \
        == {n.name for n in plan.graph.nodes}, f"seed {seed}"


def test_planning_is_deterministic() -> None:
    first, second = planned(random_graph(5)), planned(random_graph(5))
    assert [k.pattern for k in first.kernels] == [k.pattern for k in second.kernels]
    assert [p.name for p in first.programs] == [p.name for p in second.programs]


@pytest.mark.alone
def test_time_grows_about_linearly() -> None:
    """Five times the nodes take less than fifteen times as long (quadratic growth would take 25 times)."""
    def seconds(count: int) -> float:
        graph = layers(count)
        began = time.process_time()
        planned(graph)
        return time.process_time() - began

    seconds(5)
    assert min(seconds(500), seconds(500)) < 15 * max(min(seconds(100), seconds(100)), 0.02)


def test_a_chain_of_maps_is_recomputed_where_that_saves_writing_its_end() -> None:
    """A chain before a norm whose statistics and results are two kernels: 1330 us where the chain's end is written, 832 otherwise."""
    graph = parse_graph("""graph @norm(%x: f32[64, 1048576], %b: f32[64], %s: f32[64]) -> (f32[64, 1048576]) {
      %a: f32[64, 1048576] = map [i, j] { add(%x[i, j], %b[i]) }
      %m: f32[64, 1048576] = map [i, j] { mul(%a[i, j], %s[i]) }
      %g: f32[64, 1048576] = map [i, j] { sigmoid(%m[i, j]) }
      %t: f32[64] = reduce.sum [i] over [j < 1048576] { %g[i, j] }
      %y: f32[64, 1048576] = map [i, j] { sub(%g[i, j], %t[i]) }
      return %y
    }""")
    plan = plan_graph(graph, {}, H200, Options())
    assert [k.pattern.nodes for k in plan.kernels] == [("a", "m", "g", "t"), ("a", "m", "g", "y")]
    assert verify_plan(plan) == []
