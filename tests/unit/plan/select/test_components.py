"""Parts of the integer program: the same answer as the whole, equal parts solved once, large programs in time."""
from __future__ import annotations

import random
import sys
import time

import networkx
import pytest

from tests.unit.plan.select.test_ilp import exhaustive, ordered, random_program
from tilefuse.plan.select.components import select, split
from tilefuse.plan.select.cycles import strongly_connected
from tilefuse.plan.select.ilp import Column, Row


@pytest.mark.parametrize("seed", range(150, 300))
def test_parts_together_equal_exhaustive_search(seed: int) -> None:
    num_nodes, edges, columns = random_program(seed)
    found = select(num_nodes, edges, columns, 60.0)
    assert found.proven and found.objective_us == pytest.approx(exhaustive(num_nodes, edges, columns), abs=1e-5), f"seed {seed}"
    assert ordered(num_nodes, edges, [columns[c].members for c in found.taken]), f"seed {seed}"


def test_candidates_that_may_close_a_cycle_stay_together() -> None:
    """No common node, but {0, 3} and {1, 2} would wait for each other; {4, 5} has to do with neither."""
    parts = split(6, [(0, 1), (2, 3), (3, 4), (4, 5)], [Column((0, 3), 1.0), Column((1, 2), 1.0), Column((4, 5), 1.0)])
    assert [(p.nodes, p.columns) for p in parts] == [((0, 1, 2, 3), (0, 1)), ((4, 5), (2,))]


def test_what_saves_nothing_joins_nothing() -> None:
    assert [p.columns for p in split(4, [], [Column((0, 1), 1.0), Column((1, 2), 0.0), Column((2, 3), 1.0)])] == [(0,), (2,)]


def layered(count: int) -> tuple[int, list[tuple[int, int]], list[Column]]:
    """Chains of ten nodes, one after the other; every run of two to five nodes is a candidate."""
    draw = random.Random(3)
    score = {(first, size): draw.uniform(1, 10) for first in range(10) for size in range(2, 6)}
    edges = [(n, n + 1) for n in range(count * 10 - 1)]
    columns = [Column(tuple(range(layer * 10 + first, layer * 10 + first + size)), score[first, size])
               for layer in range(count) for first in range(9) for size in range(2, 6) if first + size <= 10]
    return count * 10, edges, columns


def test_equal_parts_are_solved_once() -> None:
    once, often = select(*layered(1), 60.0), select(*layered(30), 60.0)
    assert often.rounds == once.rounds and often.objective_us == pytest.approx(30 * once.objective_us)


def test_ten_thousand_nodes_are_selected_in_seconds() -> None:
    began = time.process_time()  # the machine may be shared with other tests
    found = select(*layered(1000), 60.0)
    assert found.proven and time.process_time() - began < 10


def test_without_time_every_part_keeps_its_start() -> None:
    num_nodes, edges, columns = layered(3)
    start = tuple(n for n, c in enumerate(columns) if len(c.members) == 2 and c.members[0] % 10 == 0)
    found = select(num_nodes, edges, columns, 0.0, start)
    assert found.taken == start and not found.proven


def test_a_separator_sees_the_whole_choice() -> None:
    seen: list[tuple[int, ...]] = []

    def separator(taken: object) -> list[Row]:
        seen.append(tuple(taken))  # type: ignore[arg-type]
        return []

    select(*layered(2), 60.0, (), separator)
    assert seen and max(max(t, default=0) for t in seen) > len(layered(1)[2])


@pytest.mark.parametrize("seed", range(40))
def test_strongly_connected_parts_are_those_of_mutual_reach(seed: int) -> None:
    draw = random.Random(seed)
    count = draw.randint(1, 9)
    successors = {a: [b for b in range(count) if draw.random() < 0.25] for a in range(count)}

    def reach(node: int) -> set[int]:
        seen, todo = {node}, [node]
        while todo:
            todo += [b for b in successors[todo.pop()] if b not in seen and not seen.add(b)]  # type: ignore[func-returns-value]
        return seen

    wanted = {tuple(sorted(b for b in reach(a) if a in reach(b))) for a in range(count)}
    found = strongly_connected(successors)
    assert set(found) == wanted and len(found) == len(wanted), f"seed {seed}"


def test_parts_need_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its import was half of the time to a script's first program in a new process."""
    monkeypatch.setitem(sys.modules, "networkx", None)
    assert sorted(strongly_connected({0: [1], 1: [2], 2: [1, 3]})) == [(0,), (1, 2), (3,)]
    assert len(strongly_connected({n: [n + 1] for n in range(100)})) == 101


@pytest.mark.parametrize("seed", range(40))
def test_parts_come_in_the_order_of_a_search_in_depth(seed: int) -> None:
    """The order decides which cycles are cut first, so that it is one of a plan's decisions."""
    draw = random.Random(seed)
    count = draw.choice((3, 20, 200))
    successors = {a: [draw.randrange(count) for _ in range(draw.choice((0, 1, 1, 2)))] for a in draw.sample(range(count), count)}
    graph = networkx.DiGraph()
    graph.add_nodes_from(successors)
    graph.add_edges_from((a, b) for a, found in successors.items() for b in found)
    wanted = [tuple(sorted(part)) for part in networkx.strongly_connected_components(graph)]
    assert strongly_connected(successors) == wanted, f"seed {seed}"


def test_a_long_chain_needs_no_recursion() -> None:
    assert len(strongly_connected({n: [n + 1] for n in range(20_000)})) == 20_001
    assert strongly_connected({n: [(n + 1) % 20_000] for n in range(20_000)}) == [tuple(range(20_000))]
