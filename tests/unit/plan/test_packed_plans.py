"""Plans with packed kernels: what is packed, when a kernel waits for others, and that no cycle and no high peak comes of it."""
from __future__ import annotations

import random
import time
from collections import Counter
from typing import Any

import pytest

from benchmarks.planning_graphs import independent_maps
from tests.unit.plan.graphs import layers
from tilefuse.base.options import Options
from tilefuse.domain.parts import structure_of
from tilefuse.ir.affine import axis
from tilefuse.ir.building.build import GraphBuilder
from tilefuse.ir.dtype import F32
from tilefuse.ir.graph import Graph, Input, Node, Type
from tilefuse.ir.scalar import Read, call, const
from tilefuse.ir.text import parse_graph
from tilefuse.plan import planner
from tilefuse.plan.assemble import Chosen
from tilefuse.plan.pattern import Pattern, Plan, PlannedKernel, verify_plan
from tilefuse.plan.planner import plan_graph
from tilefuse.plan.select.pack_kernels import live_peak_bytes, pack_kernels
from tilefuse.target.device import H200
from tilefuse.templates import parts as packed_parts
from tilefuse.templates.packed.packed import MAX_OPERANDS, Packed


def read_at(value: str, *axes: str) -> Read:
    """value[axes]."""
    return Read(value, tuple(map(axis, axes)))


def planned(graph: Graph, **options: object) -> Plan:
    """A legal plan that is not worse than unfused."""
    plan = plan_graph(graph, {}, H200, Options().with_overrides(**options))
    assert verify_plan(plan) == []
    assert plan.objective_us <= plan.unfused_us * (1 + 1e-9)
    return plan


def accumulate(sizes: list[int]) -> Graph:
    """p + g for every size: gradient accumulation."""
    inputs, nodes = [], []
    for n, size in enumerate(sizes):
        t = Type(F32, (size,))
        inputs += [Input(f"p{n}", t), Input(f"g{n}", t)]
        nodes.append(Node(f"s{n}", t, "map", ("i",), body=call("add", read_at(f"p{n}", "i"), read_at(f"g{n}", "i"))))
    return Graph("accumulate", tuple(inputs), tuple(nodes), tuple(n.name for n in nodes))


def test_tensors_of_all_sizes_are_one_kernel() -> None:
    plan = planned(accumulate([17, 4096, 1 << 22, 1, 300] * 20))
    assert [k.generator for k in plan.kernels] == ["pack"]
    assert isinstance(plan.kernels[0].program.choice, Packed)
    assert plan.unfused_kernels == 100


def test_without_fusing_nothing_is_packed() -> None:
    assert len(planned(accumulate([5, 6, 7]), fuse=False).kernels) == 3


def test_more_tensors_than_a_launch_takes_are_several_kernels() -> None:
    """Three operands each."""
    plan = planned(accumulate([n % 7 + 1 for n in range(1500)]))
    assert len(plan.kernels) == -(-3 * 1500 // MAX_OPERANDS)


def test_a_kernel_waits_for_one_that_comes_later() -> None:
    """The sum of a could run at once; it runs with the sum behind the library call."""
    wide, narrow = Type(F32, (64, 32)), Type(F32, (64,))
    nodes = (Node("p", wide, "library.softmax", operands=("a",)),
             Node("s", narrow, "reduce.sum", ("i",), (("k", 32),), body=read_at("a", "i", "k")),
             Node("t", narrow, "reduce.sum", ("i",), (("k", 32),), body=read_at("p", "i", "k")))
    plan = planned(Graph("g", (Input("a", wide),), nodes, ("s", "t")))
    assert [set(k.pattern.written) for k in plan.kernels] == [{"s", "t"}]
    assert not isinstance(plan.steps[0], PlannedKernel)


@pytest.mark.parametrize("seed", range(12))
def test_random_graphs_keep_their_order(seed: int) -> None:
    """Library calls cut a random graph into many small kernels; whatever is packed, everything is written before it is read."""
    draw = random.Random(seed)
    builder = GraphBuilder("g")
    t = Type(F32, (16, 16))
    values = [builder.input(f"x{n}", F32, t.shape) for n in range(3)]
    for n in range(60):
        a, b = draw.choice(values[-12:]), draw.choice(values)
        if draw.random() < 0.4:
            values.append(builder.add(Node(f"l{n}", t, "library.softmax", operands=(a,))))
        elif draw.random() < 0.2:
            values.append(builder.add(Node(f"r{n}", t, "map", ("i", "j"), body=call("exp", read_at(a, "j", "i")))))
        else:
            body = call("add", call("tanh", read_at(a, "i", "j")), read_at(b, "i", "j"))
            values.append(builder.add(Node(f"m{n}", t, "map", ("i", "j"), body=body)))
    read = {v for n in builder.nodes for v in n.reads()}
    graph = Graph("g", tuple(builder.inputs), tuple(builder.nodes), tuple(n.name for n in builder.nodes if n.name not in read))
    plan, again = planned(graph), planned(graph)
    assert plan.steps == again.steps, f"equal graphs give equal plans, seed {seed}"


def test_what_waits_must_not_hold_much_memory() -> None:
    """Each step sums a large intermediate that dies with its sum; were the sums packed, all of them would live to the end."""
    rows, columns = 64, 1 << 16
    builder = GraphBuilder("g")
    large, small = Type(F32, (rows, columns)), Type(F32, (columns,))
    x = builder.input("x", F32, large.shape)
    sums = []
    for n in range(8):
        x = builder.add(Node(f"y{n}", large, "library.softmax", operands=(x,)))
        sums.append(builder.add(Node(f"s{n}", small, "reduce.sum", ("j",), (("k", rows),), body=read_at(x, "k", "j"))))
    plan = planned(Graph("g", tuple(builder.inputs), tuple(builder.nodes), tuple(sums)))
    assert len(plan.kernels) == 8


def test_sums_of_a_backward_part_wait_for_as_many_as_a_hundredth_of_its_memory_holds() -> None:
    """Other programs may hold 16 MiB more for one launch less: a call's peak is seldom that of the process."""
    builder = GraphBuilder("g")
    large, small, kept = Type(F32, (64, 1024)), Type(F32, (1024,)), Type(F32, (64, 1024, 256))
    x, old = builder.input("x", F32, large.shape), builder.input("old", F32, kept.shape)
    sums = []
    for n in range(16):
        x = builder.add(Node(f"y{n}", large, "library.softmax", operands=(x,)))
        sums.append(builder.add(Node(f"s{n}", small, "reduce.sum", ("j",), (("k", 64),), body=read_at(x, "k", "j"))))
    last = builder.add(Node("last", Type(F32, (64, 1024)), "reduce.sum", ("i", "j"), (("k", 256),), body=read_at(old, "i", "j", "k")))
    graph = Graph("g", tuple(builder.inputs), tuple(builder.nodes), (*sums, last))

    def num_sums(given_up: tuple[str, ...]) -> int:
        made = plan_graph(graph, {}, H200, Options(), given_up=given_up)
        return sum(any(v in sums for v in k.pattern.written) for k in made.kernels)

    assert num_sums(()) == 1 < num_sums(("x", "old")) < num_sums(("x",))


def test_live_peak_counts_what_is_between_its_writer_and_its_last_reader() -> None:
    graph = parse_graph("""graph @g(%x: f32[8]) -> (f32[8]) {
      %a: f32[8] = map [i] { tanh(%x[i]) }
      %b: f32[8] = map [i] { tanh(%a[i]) }
      %c: f32[8] = map [i] { tanh(%b[i]) }
      %d: f32[8] = map [i] { tanh(%c[i]) }
      return %d
    }""")
    chosen = [Chosen("single", Pattern((v,), (v,)), None) for v in "abcd"]
    assert live_peak_bytes(graph, {}, chosen) == 64


def test_ten_thousand_nodes_are_packed_in_seconds() -> None:
    """Layers of small maps behind library calls, the maps of all layers independent of each other."""
    builder = GraphBuilder("g")
    t = Type(F32, (8, 8))
    x = builder.input("x", F32, t.shape)
    results = []
    for n in range(2500):
        x = builder.add(Node(f"p{n}", t, "library.softmax", operands=(x,)))
        for k in range(3):
            body = call("mul", call("tanh", read_at(x, "i", "j")), const(float(k + 1), F32))
            results.append(builder.add(Node(f"m{n}_{k}", t, "map", ("i", "j"), body=body)))
    graph = Graph("g", tuple(builder.inputs), tuple(builder.nodes), (x, *results))
    started = time.process_time()  # the machine may be shared with other tests
    plan = planned(graph)
    assert time.process_time() - started < 30
    assert len(plan.kernels) < 100


def independent(count: int) -> Graph:
    return parse_graph(independent_maps(count))


def test_what_greedy_connecting_found_is_packed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the integer program finds nothing better, its plan is the same one, and packing it again took as long again."""
    packed = []

    def counting(*given: Any) -> Any:
        packed.append(len(given[2]))
        return pack_kernels(*given)

    monkeypatch.setattr(planner, "pack_kernels", counting)
    plan = plan_graph(layers(1), {}, H200, Options())
    assert plan.search is not None and plan.search.planner == "both" and len(packed) == 1


def test_a_part_is_looked_at_once_whatever_sets_it_is_tried_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its structure is found once for all packed kernels that are priced, and once more for the one that is taken."""
    seen: Counter[str] = Counter()

    def counting(part: Graph, layouts: Any) -> Any:
        seen[part.nodes[0].name] += 1
        return structure_of(part, layouts)

    monkeypatch.setattr(packed_parts, "structure_of", counting)
    plan = plan_graph(independent(46), {}, H200, Options())
    assert [k.program.template for k in plan.kernels] == ["packed"]
    assert len(seen) == 46 and max(seen.values()) <= 2
