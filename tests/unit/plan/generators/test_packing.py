"""Kernel packing: independent kernels in one launch, however many, and halves where the whole is refused."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import pytest

from tests.unit.plan.proposals import candidates_of, found_by, names
from tilefuse import templates
from tilefuse.base.candidate import Reason, Rejected
from tilefuse.base.options import Options
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.graph import Graph
from tilefuse.ir.layouts import Layouts
from tilefuse.ir.text import parse_graph
from tilefuse.plan.generators.candidates import Candidate, Candidates
from tilefuse.plan.generators.packing import Group, depths, packing, siblings
from tilefuse.plan.planner import plan_graph
from tilefuse.plan.price.products import matrix_products
from tilefuse.target.device import H200, DeviceSpec
from tilefuse.templates.rows.modes import Held, RowQueue, Rows

PACKER = partial(templates.schedule_pattern, packing=True)


# The norm of a sum, kept, and two products of it.
NORM_AND_TWO = """graph @two(%x: f16[8, 512], %s: f16[8, 512], %w: f16[512, 512], %u: f16[512, 1024]) ->
    (f16[8, 512], f16[8, 512], f16[8, 1024]) {
  %m: f32[8] = reduce.sum [i] over [k < 512] { f32(%x[i, k]) }
  %n: f16[8, 512] = map [i, j] { f16(add(f32(%s[i, j]), sub(f32(%x[i, j]), mul(%m[i], 0.001953125:f32)))) }
  %p: f16[8, 512] = library.matmul (%n, %w) {transpose_a=false, transpose_b=false}
  %a: f16[8, 512] = map [i, j] { f16(maximum(f32(%p[i, j]), 0.0:f32)) }
  %q: f16[8, 1024] = library.matmul (%n, %u) {transpose_a=false, transpose_b=false}
  %b: f16[8, 1024] = map [i, j] { f16(maximum(f32(%q[i, j]), 0.0:f32)) }
  return %n, %a, %b
}"""


def steps(count: int) -> Graph:
    """One optimiser step a tensor: `count` tensors of different sizes."""
    lines = ["graph @steps(" + ", ".join(f"%w{n}: f32[{8 + n}, 16], %g{n}: f32[{8 + n}, 16]" for n in range(count)) + ") -> ("
             + ", ".join(f"f32[{8 + n}, 16]" for n in range(count)) + ") {"]
    lines += [f"  %u{n}: f32[{8 + n}, 16] = map [i, j] {{ sub(%w{n}[i, j], %g{n}[i, j]) }}" for n in range(count)]
    return parse_graph("\n".join([*lines, "  return " + ", ".join(f"%u{n}" for n in range(count)), "}"]))


def alone(candidates: Candidates) -> list[Group]:
    return [Group((n,), candidates.alone.get(n)) for n in candidates.units.units]


def test_hundreds_of_tensors_are_one_kernel() -> None:
    made = candidates_of(steps(200), templates.schedule_pattern, PACKER)
    packing(made, alone(made))
    whole = [c for c in made.by_members.values() if len(c.members) == 200]
    assert len(whole) == 1 and whole[0].priced.program.template == "packed" and whole[0].score_us > 0


def test_what_is_refused_is_halved() -> None:
    """A packer that takes four parts at most: the eight tensors come as two fours."""
    def packer(graph: Graph, nodes: Sequence[str], layouts: Layouts, device: DeviceSpec) -> TileProgram | Rejected:
        if len(nodes) > 4:
            return Rejected(Reason.TOO_MANY_OPERANDS, "four")
        return PACKER(graph, nodes, layouts, device)

    made = candidates_of(steps(8), templates.schedule_pattern, packer)
    packing(made, alone(made))
    assert {frozenset(f"u{n}" for n in range(4)), frozenset(f"u{n}" for n in range(4, 8))} <= found_by(made, "packing")
    assert any(why.detail == "four" for _, why in made.rejected.values())


def test_kernels_that_depend_on_each_other_are_never_packed() -> None:
    graph = parse_graph("""graph @g(%x: f32[64, 64], const %w: f32[64, 64]) -> (f32[64, 64], f32[64, 64]) {
      %a: f32[64, 64] = map [i, j] { exp(%x[i, j]) }
      %p: f32[64, 64] = library.matmul (%a, %w)
      %b: f32[64, 64] = map [i, j] { exp(%p[i, j]) }
      %c: f32[64, 64] = map [i, j] { tanh(%x[i, j]) }
      return %b, %c
    }""")
    made = candidates_of(graph, templates.schedule_pattern, PACKER)
    plan = alone(made)
    assert depths(made, plan) == ([0, 1, 2, 0], [2, 1, 0, 0])
    packing(made, plan)
    assert found_by(made, "packing") == {frozenset("bc"), frozenset("ac")}


def test_a_kernel_that_cannot_be_packed_is_left_out_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def scheduler(graph: Graph, nodes: Sequence[str], layouts: Layouts, device: DeviceSpec) -> TileProgram | Rejected:
        made = templates.schedule_pattern(graph, nodes, layouts, device)
        clustered = Rows((), (), vector=4, threads=32, rows=1, chunks=1, lanes=1, mode=Held(), cluster=2)
        return replace(made, choice=clustered) if isinstance(made, TileProgram) and nodes == ("u1",) else made

    monkeypatch.setattr("tilefuse.plan.price.price.as_part", lambda program, device: program)
    made = candidates_of(steps(3), scheduler, PACKER)
    packing(made, alone(made))
    assert found_by(made, "packing") == {frozenset({"u0", "u2"})}
    assert [(names(made, m), g, why.detail) for m, g, why in made.refused] == [
        (frozenset({"u1"}), "packing", "%u1 needs clusters of 2 blocks")]


def test_rows_of_persistent_blocks_are_packed_by_other_blocks() -> None:
    """Rows times a vector that all of them share set out early in blocks of their own; as parts their blocks end with their rows."""
    lines = [f"  %y{n}: f32[512] = reduce.sum [i] over [k < 1024] {{ mul(%A{n}[i, k], %x{n}[k]) }}" for n in range(2)]
    given = ", ".join(f"%A{n}: f32[512, 1024], %x{n}: f32[1024]" for n in range(2))
    text = "\n".join([f"graph @two({given}) -> (f32[512], f32[512]) {{", *lines, "  return %y0, %y1", "}"])
    made = candidates_of(parse_graph(text), templates.schedule_pattern, PACKER)
    groups = alone(made)
    assert all(g.priced is not None and isinstance(g.priced.program.choice.mode, RowQueue) for g in groups)
    packing(made, groups)
    assert found_by(made, "packing") == {frozenset({"y0", "y1"})}


def test_products_of_one_value_are_offered_with_what_follows_them() -> None:
    """Also where greed has put the first of them into another kernel; the plan has both in one launch."""
    graph = parse_graph(NORM_AND_TWO)
    made = candidates_of(graph, templates.schedule_pattern, PACKER, products=matrix_products(graph, H200))
    number = {n: m for m, unit in made.units.units.items() for n in unit.core}
    for some in ("pa", "qb", "mnpa"):
        made.offer([number[n] for n in some], "connect")
    siblings(made)
    assert found_by(made, "packing") == {frozenset("paqb")}
    plan = plan_graph(graph, {}, H200, Options())
    assert [set(k.pattern.nodes) for k in plan.kernels] == [{"m", "n"}, set("paqb")] and plan.kernels[1].program.template == "packed"


def test_products_that_wait_for_each_other_are_not_offered() -> None:
    """Both read %x; the second also the first one's result."""
    graph = parse_graph("""graph @wait(%x: f16[8, 512], %w: f16[512, 512]) -> (f16[8, 512]) {
      %p: f16[8, 512] = library.matmul (%x, %w) {transpose_a=false, transpose_b=false}
      %a: f16[8, 512] = map [i, j] { f16(tanh(f32(%p[i, j]))) }
      %q: f16[8, 512] = library.matmul (%a, %w) {transpose_a=false, transpose_b=false}
      return %q
    }""")
    made = candidates_of(graph, templates.schedule_pattern, PACKER, products=matrix_products(graph, H200))
    # Nor where the maps between them are in the first one's kernel, as in the steps of a recurrence.
    number = {n: m for m, unit in made.units.units.items() for n in unit.core}
    assert isinstance(made.offer([number[n] for n in "pa"], "connect"), Candidate)
    siblings(made)
    assert found_by(made, "packing") == set()


def test_products_of_one_value_are_offered_without_one_that_comes_later() -> None:
    """Two products of %x, and a third of it and of what they give, as in a backward pass: the two may share a kernel all the same."""
    graph = parse_graph("""graph @later(%x: f16[64, 64], %w: f16[64, 64], %u: f16[64, 64]) -> (f16[64, 64]) {
      %p: f16[64, 64] = library.matmul (%x, %w) {transpose_a=false, transpose_b=false}
      %q: f16[64, 64] = library.matmul (%x, %u) {transpose_a=false, transpose_b=false}
      %a: f16[64, 64] = map [i, j] { f16(mul(tanh(f32(%p[i, j])), f32(%q[i, j]))) }
      %r: f16[64, 64] = library.matmul (%x, %a) {transpose_a=false, transpose_b=false}
      return %r
    }""")
    made = candidates_of(graph, templates.schedule_pattern, PACKER, products=matrix_products(graph, H200))
    siblings(made)
    assert found_by(made, "packing") == {frozenset("pq")}


def test_a_product_whose_kernel_saves_nothing_is_offered_alone() -> None:
    """A candidate that is slower than its parts has no say in what stands beside the product."""
    graph = parse_graph(NORM_AND_TWO)
    made = candidates_of(graph, templates.schedule_pattern, PACKER, products=matrix_products(graph, H200))
    number = {n: m for m, unit in made.units.units.items() for n in unit.core}
    found = made.offer([number[n] for n in "pa"], "connect")
    assert isinstance(found, Candidate)
    made.by_members[found.members] = replace(found, score_us=-1.0)
    siblings(made)
    assert found_by(made, "packing") == {frozenset("pq")}
