"""Law: a plan keeps its ceiling on intermediate values, or no choice of the planner's candidates keeps it; the ceiling that a refusal
names is kept."""
from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.unit.plan.generators.test_connect import random_graph
from tests.unit.plan.stand_in import schedule_by_rows
from tilefuse.base.errors import InfeasibleError
from tilefuse.base.options import Options
from tilefuse.ir.building.build import GraphBuilder, read_at
from tilefuse.ir.dtype import F32
from tilefuse.ir.graph import Graph
from tilefuse.ir.scalar import call
from tilefuse.plan.generators.candidates import Candidates
from tilefuse.plan.pattern import LibraryCall, Plan, verify_plan
from tilefuse.plan.planner import plan_graph
from tilefuse.plan.select import global_plan
from tilefuse.plan.select.cycles import Contraction
from tilefuse.plan.select.memory import peak, stored_values
from tilefuse.target.device import H200

ROWS, LENGTH = 1024, 256  # one MiB a value
SEEDS = range(120)


def recomputing_graph(seed: int) -> Graph:
    """Vectors spread over rows, which every reader computes for itself, between maps and row sums; some of them are results too."""
    draw = random.Random(seed)
    b = GraphBuilder("recomputing")
    full, rows = [b.input("x", F32, (ROWS, LENGTH))], [b.input("v", F32, (ROWS,))]
    for _ in range(draw.randint(3, 8)):
        kind = draw.random()
        if kind < 0.35:
            full.append(b.map("spread", F32, (ROWS, LENGTH), ("i", "j"), call("neg", read_at(draw.choice(rows), ("i",)))))
        elif kind < 0.6:
            rows.append(b.add_reduction("s", "sum", F32, (ROWS,), ("i",), [("k", LENGTH)], read_at(draw.choice(full), ("i", "k"))))
        else:
            full.append(b.map("m", F32, (ROWS, LENGTH), ("i", "j"),
                              call("exp", call("add", *(read_at(draw.choice(full), ("i", "j")) for _ in "ab")))))
    graph = b.finish([])
    return replace(graph, results=tuple(n.name for n in graph.nodes if not graph.users_by_name[n.name] or draw.random() < 0.15))


def graph_of(seed: int) -> Graph:
    return recomputing_graph(seed) if seed % 2 else random_graph(seed, most_nodes=9, shape=(ROWS, LENGTH))


def planned(graph: Graph, ceiling_mb: int) -> Plan:
    plan = plan_graph(graph, {}, H200, Options().with_overrides(planner="ilp", peak_memory_mb=ceiling_mb), scheduler=schedule_by_rows)
    assert verify_plan(plan) == []
    return plan


def live_bytes(plan: Plan) -> int:
    """Most bytes of intermediate values that live at one step of the plan, counted from its steps alone."""
    written: dict[str, int] = {}
    freed: dict[str, int] = {}
    view_of = {v.value: v.base for v in plan.views}
    for step, item in enumerate(plan.steps):
        if isinstance(item, LibraryCall):
            writes, reads = [v for _, v in item.results], list(item.operands)
        else:
            writes = list(item.pattern.written)
            reads = [v for n in item.pattern.nodes for v in plan.graph.node_by_name[n].reads() if v not in item.pattern.nodes]
        written.update(dict.fromkeys(writes, step))
        freed.update(dict.fromkeys((view_of.get(v, v) for v in reads), step))
    kept = {view_of.get(v, v) for v in plan.graph.escaping}
    lives = [(written[v], freed[v], plan.graph.type_of(v).num_bytes) for v in written if v in freed and v not in kept]
    return max((sum(size for begin, end, size in lives if begin <= at <= end) for at in range(len(plan.steps))), default=0)


def choices(members: list[tuple[int, ...]], taken: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    """Every set of disjoint candidates, by number."""
    yield taken
    inside = {m for c in taken for m in members[c]}
    for n in range(taken[-1] + 1 if taken else 0, len(members)):
        if inside.isdisjoint(members[n]):
            yield from choices(members, (*taken, n))


def least_bytes(candidates: Candidates) -> int:
    """The lowest peak of any choice of the candidates that has an order of execution."""
    units = candidates.units
    members = sorted(candidates.by_members)
    edges = [(a, b) for a, followers in units.contracted.successors.items() for b in followers]
    contraction = Contraction(len(units.units), edges, members)
    stored = stored_values(units)
    return min(peak(units, stored, [members[c] for c in taken]).num_bytes for taken in choices(members) if not contraction.cycles(taken))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_ceiling_is_kept_or_cannot_be(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Candidates] = []
    refuse = global_plan._Decision._too_little

    def noting(self: global_plan._Decision, candidates: Candidates, *rest: object) -> InfeasibleError:
        asked.append(candidates)
        return refuse(self, candidates, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(global_plan._Decision, "_too_little", noting)
    graph = graph_of(seed)
    for ceiling_mb in (1, 2, 3, 4):
        try:
            plan = planned(graph, ceiling_mb)
        except InfeasibleError as refusal:
            assert least_bytes(asked[-1]) > ceiling_mb << 20, f"seed {seed}, {ceiling_mb} MiB"
            enough = re.fullmatch(r"peak_memory_mb=(\d+) is enough, 0 is no ceiling", refusal.hint or "")
            assert enough, refusal.hint
            assert ceiling_mb < int(enough[1]) and live_bytes(planned(graph, int(enough[1]))) <= int(enough[1]) << 20
        else:
            assert live_bytes(plan) <= ceiling_mb << 20, f"seed {seed}, {ceiling_mb} MiB"
