"""Renaming and canonical names of whole graphs."""
from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from tests.laws.random_graphs import random_graph, random_inputs
from tilefuse.ir.interpret import interpret
from tilefuse.ir.rewrite import canonical, rename_values
from tilefuse.ir.text import parse_graph, print_graph
from tilefuse.ir.verify import verify

TEXT = """graph @g(%x: f32[3, 5]) -> (f32[3]) {
  %a: f32[3] = reduce.sum [i] over [k < 5] { %x[i, k] }
  %b: f32[3] = map [i] { mul(%a[i], 2.0:f32) }
  %c: f32[3] = map [i] { add(%a[i], %b[i]) }
  return %c
}
"""


def test_renaming_reaches_every_use() -> None:
    renamed = rename_values(parse_graph(TEXT), {"x": "input", "a": "row"})
    assert print_graph(renamed) == TEXT.replace("%x", "%input").replace("%a", "%row")


def test_renaming_nothing_gives_the_same_object() -> None:
    graph = parse_graph(TEXT)
    assert rename_values(graph, {"other": "name"}) is graph


@pytest.mark.parametrize("seed", range(10))
def test_canonical_graphs_forget_names_and_keep_meaning(seed: int) -> None:
    graph = random_graph(Random(seed))
    plain, names = canonical(graph)
    assert verify(plain) == []
    other = rename_values(graph, {name: f"other_{name}" for name in graph.type_by_name})
    assert canonical(replace(other, name="h"))[0] == plain
    inputs = random_inputs(graph, seed)
    found = interpret(plain, {names[name]: array for name, array in inputs.items()})
    for a, b in zip(interpret(graph, inputs), found, strict=True):
        assert (a == b).all(), f"seed {seed}"
