"""Packed kernels by hand: parts are found by their values and changed together, threads are shared; what is wrong is said."""
from __future__ import annotations

import pytest
import torch

import tilefuse
from tilefuse.base.errors import CompilerError, NameLookupError, UserError
from tilefuse.domain.tile import TileProgram
from tilefuse.ir.text import parse_graph
from tilefuse.target.device import H200
from tilefuse.templates.by_hand import program_by_hand
from tilefuse.templates.compose import compose
from tilefuse.templates.flat.record import Pointwise
from tilefuse.templates.notation import parse_template
from tilefuse.templates.packed.packed import Packed
from tilefuse.templates.pattern import schedule_pattern
from tilefuse.templates.rows.modes import Rows

# Two updates of unlike size, which one flat body serves, two equal sums of rows and one sum of columns.
PARTS = """graph @parts(%a: f32[3000], %b: f32[640], %x: f32[64, 256], %y: f32[64, 256], %z: f32[200, 64])
    -> (f32[3000], f32[640], f32[64], f32[64], f32[64]) {
  %ua: f32[3000] = map [i] { mul(%a[i], 0.5:f32) }
  %ub: f32[640] = map [i] { mul(%b[i], 0.5:f32) }
  %rx: f32[64] = reduce.sum [i] over [k < 256] { %x[i, k] }
  %ry: f32[64] = reduce.sum [i] over [k < 256] { %y[i, k] }
  %cz: f32[64] = reduce.sum [j] over [i < 200] { %z[i, j] }
  return %ua, %ub, %rx, %ry, %cz
}"""


def packed() -> TileProgram:
    graph = parse_graph(PARTS)
    made = schedule_pattern(graph, [n.name for n in graph.nodes], {}, H200, packing=True)
    assert isinstance(made, TileProgram) and made.template == "packed"
    return made


def by_hand(text: str) -> Packed:
    """The groups of the kernel that a template determines, which composes and prints as it was asked."""
    program = program_by_hand(packed(), parse_template(text), H200)
    kernel = compose(program, H200)
    assert isinstance(program.choice, Packed) and kernel.launch.num_blocks == sum(g.num_blocks for g in program.choice.groups)
    again = program_by_hand(packed(), parse_template(program.notation), H200)
    assert again == program, "what is printed determines the same kernel"
    return program.choice


def test_parts_are_found_by_the_values_of_any_member() -> None:
    schedule = "ry [GRID-CTA_2,CTA_64];"
    for text in ("pack { 2 x { rx [GRID-CTA_2,CTA_64]; vector=4; } };", f"pack {{ 2 x {{ {schedule} }} }};", schedule):
        rows = next(g for g in by_hand(text).groups if isinstance(g.program.choice, Rows))
        assert (rows.program.choice.threads, rows.program.choice.rows) == (64, 2)  # type: ignore[union-attr]
        assert [p.num_blocks for p in rows.parts] == [32, 32]


def test_members_of_unlike_size_walk_alike() -> None:
    flat = next(g for g in by_hand("ub [GRID-CTA_128]; vector=2; steps=2;").groups if g.any_size)
    assert isinstance(flat.program.choice, Pointwise) and (flat.program.choice.vector, flat.program.choice.steps) == (2, 2)
    assert [p.num_blocks for p in flat.parts] == [6, 2]


def test_schedules_without_pack_are_told_apart_by_their_values() -> None:
    """Figure 5 (a) of FusionStitching lists them; members of one part say the same."""
    made = by_hand("rx [GRID-CTA_2,CTA_64]; ua [GRID-CTA_128]; ry [GRID-CTA_2,CTA_64];")
    rows = next(g for g in made.groups if isinstance(g.program.choice, Rows))
    flat = next(g for g in made.groups if g.any_size)
    assert (rows.program.choice.threads, rows.program.choice.rows) == (64, 2) and made.threads == 128  # type: ignore[union-attr]
    assert isinstance(flat.program.choice, Pointwise) and flat.program.choice.threads == 128
    assert by_hand("ua [CTA]; cta_size=128;").threads == 128, "one block takes the longest member"


def test_other_parts_follow_the_number_of_threads() -> None:
    before = packed().choice
    assert isinstance(before, Packed) and before.threads != 512
    made = by_hand("ua [GRID-CTA_512];")
    assert made.threads == 512 and {g.program.launch.num_threads for g in made.groups} == {512}


@pytest.mark.parametrize(("text", "kind", "message", "hint"), [
    ("pack { 3 x { rx [GRID-CTA_2,CTA_64]; } };", UserError, "has 2 members, and the template 3", "2 x"),
    ("pack { 2 x { rx [GRID-CTA_2,CTA_64]; } 2 x { ry [GRID-CTA_4,CTA_32]; } };", UserError, "two templates of one part", ""),
    ("pack { 2 x { rx [GRID-CTA_2,CTA_64]; } 2 x { ua [GRID-CTA_512]; } };", UserError, "128 and 512 threads", ""),
    ("pack { 2 x { rw [GRID-CTA_2,CTA_64]; } };", NameLookupError, "no part computes %rw", "rx"),
    ("rx [GRID-CTA_2,CTA_64]; ry [GRID-CTA_4,CTA_32];", UserError, "%ry and %rx are computed alike", "share its template"),
    ("pack { 2 x { vector=4; } };", UserError, "has no schedule", "found by the values"),
    ("pack { 2 x { rx [GRID,CLUSTER_2-CTA_64]; } };", UserError, "cannot be like this", ""),
    ("pack { 2 x { rx [GRID-CTA_2,CTA_64]; depth=3; } };", CompilerError, "depth", ""),
])
def test_what_is_wrong_with_parts_is_said(text: str, kind: type[CompilerError], message: str, hint: str) -> None:
    with pytest.raises(kind, match=message) as caught:
        by_hand(text)
    assert hint in f"{caught.value} {caught.value.hint}"


def test_a_packed_kernel_by_hand_runs_on_the_host() -> None:
    graph = parse_graph(PARTS)
    inputs = [torch.rand(i.type.shape, generator=torch.Generator().manual_seed(3)) for i in graph.inputs]
    ours = tilefuse.compile(graph, device="host")
    (kernel,) = ours.explain(json=True)["kernels"]
    assert kernel["template"] == "packed"
    made = tilefuse.compile(graph, device="host", template="pack { 2 x { ub [GRID-CTA_1]; vector=2; } };", check=True)
    (changed,) = made.explain(json=True)["kernels"]
    assert changed["notation"] != kernel["notation"] and "vector=2;" in changed["notation"] and changed["generator"] == "text"
    for found, wanted in zip(made(*inputs), ours(*inputs), strict=True):
        torch.testing.assert_close(found, wanted)
