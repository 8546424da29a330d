"""Exploratory fusion: grows from large tensors, never tries a set twice, explores what looks alike once."""
from __future__ import annotations

from itertools import combinations

from tests.unit.plan.graphs import layers
from tests.unit.plan.proposals import candidates_of, found_by, names
from tilefuse.ir.text import parse_graph
from tilefuse.plan.generators import exploratory
from tilefuse.plan.generators.exploratory import colours, explore, seeds
from tilefuse.target.device import H200


def chain(count: int, rows: int = 2048) -> str:
    lines = [f"graph @chain(%v0: f32[{rows}, 1024]) -> (f32[{rows}, 1024]) {{"]
    lines += [f"  %v{n + 1}: f32[{rows}, 1024] = map [i, j] {{ exp(%v{n}[i, j]) }}" for n in range(count)]
    return "\n".join([*lines, f"  return %v{count}", "}"])


def test_all_runs_of_a_short_chain_are_found() -> None:
    made = candidates_of(parse_graph(chain(4)))
    exploratory.exploratory(made, H200)
    runs = {frozenset(f"v{n}" for n in range(a, b)) for a, b in combinations(range(1, 6), 2) if b - a > 1}
    assert found_by(made, "exploratory") == runs


def test_small_tensors_are_no_seeds() -> None:
    assert seeds(candidates_of(parse_graph(chain(3, rows=4))), H200) == []
    assert len(seeds(candidates_of(parse_graph(chain(3))), H200)) == 3


def test_units_with_many_operands_are_no_seeds() -> None:
    inputs = ", ".join(f"%x{n}: f32[2048, 1024]" for n in range(12))
    body = "%x0[i, j]"
    for n in range(1, 12):
        body = f"add({body}, %x{n}[i, j])"
    graph = parse_graph(f"graph @wide({inputs}) -> (f32[2048, 1024]) {{\n  %y: f32[2048, 1024] = map [i, j] {{ {body} }}\n  return %y\n}}")
    assert seeds(candidates_of(graph), H200) == []


def test_the_number_of_sets_is_bounded() -> None:
    made = candidates_of(parse_graph(chain(40)))
    ways, tried = explore(made, 20, 10)
    assert tried == 10 and len(ways) <= 10 and len(made.by_members) + len(made.rejected) <= 10


def test_no_candidate_closes_a_cycle() -> None:
    made = candidates_of(layers(3, rows=1 << 16))
    exploratory.exploratory(made, H200)
    assert made.by_members
    for members in made.by_members:
        assert not {"p0", "p1", "p2"} & names(made, members)


def test_equal_layers_look_alike_and_get_the_same_candidates() -> None:
    made = candidates_of(layers(9, rows=1 << 16))
    of = colours(made)
    number = {unit.core[0]: n for n, unit in made.units.units.items()}
    assert of[number["a4"]] == of[number["a5"]] != of[number["x4"]]
    exploratory.exploratory(made, H200)
    shapes = [{"".join(sorted(n.rstrip("0123456789") + str(int(n[1:]) - layer) for n in s)) for s in found_by(made, "exploratory")
               if f"a{layer}" in s} for layer in (4, 5)]
    assert shapes[0] == shapes[1] != set()


def test_nothing_is_explored_when_the_time_is_over() -> None:
    made = candidates_of(parse_graph(chain(4)), until=0.0)
    exploratory.exploratory(made, H200)
    assert not made.by_members
