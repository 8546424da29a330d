"""Substitution fusion: segments between partition operators, step by step."""
from __future__ import annotations

from tests.unit.plan.generators.test_connect import random_graph
from tests.unit.plan.graphs import layers
from tests.unit.plan.proposals import candidates_of, found_by, names
from tilefuse.ir.text import parse_graph
from tilefuse.plan.generators.substitution import STEPS, after_products, left_by_products, segments, substitution
from tilefuse.plan.price.products import Products

MIXED = """graph @mixed(%x: f32[64, 64], const %w: f32[64, 64]) -> (f32[64, 64], f32[64], f32[]) {
  %a: f32[64, 64] = map [i, j] { exp(%x[i, j]) }
  %p: f32[64, 64] = library.matmul (%a, %w)
  %b: f32[64, 64] = map [i, j] { exp(%p[i, j]) }
  %r: f32[64] = reduce.sum [i] over [k < 64] { %b[i, k] }
  %c: f32[64, 64] = map [i, j] { mul(%b[i, j], %r[i]) }
  %s: f32[64] = reduce.sum [j] over [k < 64] { %c[k, j] }
  %d: f32[64, 64] = map [i, j] { mul(%c[i, j], %s[j]) }
  %t: f32[] = reduce.sum [] over [i < 64, j < 64] { %d[i, j] }
  return %d, %s, %t
}"""


def offered(text: str, **options: object) -> set[frozenset[str]]:
    """Every set that was offered, with a schedule or without."""
    made = candidates_of(parse_graph(text), **options)  # type: ignore[arg-type]
    substitution(made)
    return {names(made, m) for m in (*made.by_members, *made.rejected)}


def test_segments_grow_shorter_with_every_step() -> None:
    sets = offered(MIXED)
    assert frozenset("brcsdt") in sets, "only the product parts"
    assert frozenset("brc") in sets and frozenset("dt") in sets, "column sums part, row sums and the full sum do not"
    assert frozenset("rc") not in sets and all("p" not in s for s in sets)


def test_products_that_a_kernel_may_hold_join_the_partition_in_the_second_step() -> None:
    sets = offered(MIXED, products=Products(lambda node: node.detail == "matmul"))
    assert frozenset("apbrcsdt") in sets and frozenset("brcsdt") in sets


def test_layers_are_cut_at_their_products() -> None:
    made = candidates_of(layers(3))
    substitution(made)
    assert found_by(made, "substitution") == {frozenset({"t0", "a0"}), frozenset({"x1", "t1", "a1"}), frozenset({"x2", "t2", "a2"})}


def test_branches_at_equal_depth_are_one_segment_and_connected_parts_of_it() -> None:
    sets = offered("""graph @g(%x: f32[64, 64], %y: f32[64, 64]) -> (f32[64, 64], f32[64, 64]) {
      %a: f32[64, 64] = map [i, j] { exp(%x[i, j]) }
      %b: f32[64, 64] = map [i, j] { exp(%a[i, j]) }
      %c: f32[64, 64] = map [i, j] { exp(%y[i, j]) }
      %d: f32[64, 64] = map [i, j] { exp(%c[i, j]) }
      return %b, %d
    }""")
    assert sets == {frozenset("abcd"), frozenset("ab"), frozenset("cd")}


def test_a_step_covers_every_unit_that_does_not_part_once() -> None:
    for seed in range(20):
        made = candidates_of(random_graph(seed))
        parting = {n for n in made.units.units if not made.fusible(n)}
        listed = [n for s in segments(made, parting) for n in s]
        assert sorted(listed) == sorted(set(made.units.units) - parting), f"seed {seed}"


def test_steps_have_distinct_names() -> None:
    assert len({s.name for s in STEPS}) == len(STEPS)


def test_what_follows_products_is_offered_with_each_of_them_and_with_all() -> None:
    text = """graph @gates(%x: f32[8, 16], %h: f32[8, 16], %v: f32[16, 32], %w: f32[16, 32]) -> (f32[8, 16]) {
      %p: f32[8, 32] = library.matmul (%x, %v)
      %q: f32[8, 32] = library.matmul (%h, %w)
      %a: f32[8, 32] = map [i, j] { tanh(add(%p[i, j], %q[i, j])) }
      %b: f32[8, 16] = map [i, j] { mul(%a[i, j], %a[i, j + 16]) }
      return %b
    }"""
    made = candidates_of(parse_graph(text), products=Products(lambda node: node.detail == "matmul"))
    after_products(made)
    assert {names(made, m) for m in (*made.by_members, *made.rejected)} == {frozenset("pab"), frozenset("qab"), frozenset("pqab")}


def test_a_kernel_keeps_what_a_product_leaves_of_it() -> None:
    """Of {a, r, c} the product takes a: {r, c} is a candidate too, which no other generator offers."""
    text = """graph @norm(%x: f32[64, 16], %w: f32[16, 32]) -> (f32[64, 32], f32[64, 32]) {
      %p: f32[64, 32] = library.matmul (%x, %w)
      %a: f32[64, 32] = map [i, j] { tanh(%p[i, j]) }
      %r: f32[64] = reduce.sum [i] over [k < 32] { %a[i, k] }
      %c: f32[64, 32] = map [i, j] { mul(%a[i, j], %r[i]) }
      return %a, %c
    }"""
    candidates = candidates_of(parse_graph(text), products=Products(lambda node: node.detail == "matmul"))
    units = {v: candidates.units.unit_of[v] for v in "parc"}
    candidates.offer((units["p"], units["a"]), "connect")
    left_by_products(candidates, [(units["a"], units["r"], units["c"])])
    assert {names(candidates, m) for m in (*candidates.by_members, *candidates.rejected)} == {frozenset("pa"), frozenset("rc")}
