"""Plans written by hand: a printed plan is followed, an edited one too, and what is not legal is said with its remedy."""
from __future__ import annotations

import pytest

from tests.unit.plan.graphs import layers, softmax
from tilefuse.base.candidate import Rejected
from tilefuse.base.errors import CompilerError, UserError
from tilefuse.base.options import Options
from tilefuse.ir.graph import Graph
from tilefuse.ir.text import parse_graph
from tilefuse.plan.pattern import Plan, verify_plan
from tilefuse.plan.planner import plan_graph
from tilefuse.plan.text.edit import plan_of_outline, setting_of, with_template
from tilefuse.plan.text.text import parse_plan, print_plan
from tilefuse.target.catalog import host_device
from tilefuse.target.device import H200
from tilefuse.templates.notation import parse_template
from tilefuse.templates.pattern import schedule_pattern

DIAMOND = parse_graph("""graph @g(%x: f32[64, 32]) -> (f32[64, 32]) {
  %a: f32[64, 32] = map [i, j] { exp(%x[i, j]) }
  %b: f32[64, 32] = map [i, j] { log(%a[i, j]) }
  %c: f32[64, 32] = map [i, j] { add(%a[i, j], %b[i, j]) }
  return %c
}""")
UNSTITCHED = Options().with_overrides(stitch=False)
HEAD = "plan @g for h200 objective 1.0us unfused 2.0us {\n"


def followed(graph: Graph, text: str) -> Plan:
    return plan_of_outline(parse_plan(text), setting_of(graph, {}, {}, {}, H200, Options()))


@pytest.mark.parametrize("graph", [softmax(), layers(3), DIAMOND], ids=lambda g: g.name)
def test_a_printed_plan_gives_the_same_kernels_again(graph: Graph) -> None:
    ours = plan_graph(graph, {}, H200, Options())
    again = followed(graph, print_plan(ours))
    assert [k.pattern for k in again.kernels] == [k.pattern for k in ours.kernels]
    assert [k.program.launch for k in again.kernels] == [k.program.launch for k in ours.kernels]
    assert again.objective_us == pytest.approx(ours.objective_us) and verify_plan(again) == []
    assert {k.generator for k in again.kernels} == {"text"}


def test_an_edited_plan_is_followed_and_steps_are_put_in_order() -> None:
    text = HEAD + """
      kernel k1 = {%b, %c} -> {%c} by me cost 1.0us from x as k1
      edge %b -> %c in k1 register
      kernel k0 = {%a} -> {%a} by me cost 1.0us from x as k0
    }"""
    made = followed(DIAMOND, text)
    assert [k.pattern.nodes for k in made.kernels] == [("a",), ("b", "c")] and verify_plan(made) == []


def kernel(name: str, nodes: str, written: str) -> str:
    return f"kernel {name} = {{{nodes}}} -> {{{written}}} by me cost 1.0us from x as s\n"


@pytest.mark.parametrize(("lines", "message", "hint"), [
    (kernel("k0", "%a, %c", "%a, %c") + "edge %a -> %c in k0 register\n" + kernel("k1", "%b", "%b"), "wait for each other", "outside"),
    (kernel("k0", "%a, %b, %c", "%c") + "edge %a -> %b in k0 register\n", "edge %a -> %c of kernel k0 has no level",
     "add the line: edge %a -> %c in k0 register"),
    (kernel("k0", "%a", "%a") + kernel("k1", "%b, %c", "%c") + "edge %b -> %c in k1 cluster\n", "cannot live at level cluster", "register"),
    (kernel("k0", "%a", "%a") + kernel("k1", "%b, %c", "%c") + "edge %b -> %c in k1 register\nedge %a -> %c in k1 register\n",
     "no edge %a -> %c inside", "take the line out"),
    (kernel("k0", "%a", "%a") + kernel("k1", "%c", "%c"), "no kernel writes %b, which k1 reads", "add it to a kernel"),
    (kernel("k0", "%a, %b", "%a") + kernel("k1", "%c", "%c"), "no kernel writes %b", "write it from k0"),
    (kernel("k0", "%a", "%a") + kernel("k1", "%b", "%b"), "no kernel writes %c, which the caller reads", "add it"),
    (kernel("k0", "%a", "%a") + kernel("k1", "%a, %b, %c", "%a, %c"), "%a is written by k0 and by k1", "take it out"),
    (kernel("k0", "%a", "%a") + kernel("k0", "%b, %c", "%c"), "two kernels are called k0", ""),
    (kernel("k0", "%a", "%a, %b") + kernel("k1", "%c", "%c"), "k0 writes %b, which it does not compute", "nodes"),
    (kernel("k0", "", ""), "k0 holds no nodes", ""),
    (kernel("k0", "%a, %bb, %c", "%c"), "kernel k0 names %bb, which the graph does not have", "did you mean b"),
    (kernel("k0", "%x, %a, %b, %c", "%c"), "kernel k0 holds %x, which is an input", "take it out"),
    (kernel("k0", "%a, %a, %b, %c", "%c"), "kernel k0 names %a twice", "once"),
    (kernel("k0", "%a, %b, %c", "%a, %c") + kernel("k1", "%a", ""), "k1 computes %a, and neither writes nor reads it", "take it out"),
    ("library matmul {%a} -> {0: %b}\n" + kernel("k0", "%a", "%a"), "%b is no call of the library", "as they were printed"),
    ("view %a of %x offset 0 strides [1, 64]\n", "%a is not that view of %x", "leave their lines"),
    ("layout %a [1, 64]\n", "%a does not have strides [1, 64]", "leave layout lines"),
])
def test_a_plan_that_is_not_legal_says_why(lines: str, message: str, hint: str) -> None:
    with pytest.raises(UserError) as caught:
        followed(DIAMOND, HEAD + lines + "}")
    assert message in str(caught.value) and hint in str(caught.value)


def test_a_kernel_that_other_kernels_spare_a_value_is_told_so() -> None:
    """Two maps and a sum, of which another kernel writes the first: nothing in the second kernel needs it."""
    graph = parse_graph("""graph @g(%x: f32[64, 32], %z: f32[8]) -> (f32[64, 32], f32[8], f32[32]) {
      %a: f32[64, 32] = map [i, j] { exp(%x[i, j]) }
      %b: f32[8] = map [i] { log(%z[i]) }
      %s: f32[32] = reduce.sum [i] over [k < 64] { %x[k, i] }
      return %a, %b, %s
    }""")
    with pytest.raises(UserError, match="kernel k1 computes %a, and neither writes nor reads it"):
        followed(graph, HEAD + kernel("k0", "%a", "%a") + kernel("k1", "%a, %b, %s", "%b, %s") + "}")
    found = schedule_pattern(Graph("g", graph.inputs, graph.nodes, ("a", "s")), ["a", "b", "s"], {}, H200, packing=True)
    assert isinstance(found, Rejected) and "nothing outside reads %b" in found.detail


def test_the_order_of_a_kernels_nodes_is_not_read() -> None:
    edges = "edge %a -> %b in k0 register\nedge %b -> %c in k0 register\nedge %a -> %c in k0 register\n"
    (made,) = followed(DIAMOND, HEAD + kernel("k0", "%c, %b, %a", "%c") + edges + "}").kernels
    assert made.pattern.nodes == ("a", "b", "c")


def test_a_plan_is_for_one_device() -> None:
    with pytest.raises(UserError, match="the plan is for a100, not for h200"):
        followed(DIAMOND, HEAD.replace("h200", "a100") + kernel("k0", "%a", "%a") + "}")


def test_what_cannot_be_one_kernel_says_the_schedulers_reason() -> None:
    """A map and the column sum of what it gives are walked in different ways."""
    graph = parse_graph("""graph @g(%x: f32[4096, 4096], %z: f32[64, 32]) -> (f32[4096], f32[4096, 4096]) {
      %s: f32[4096] = reduce.sum [i] over [k < 4096] { %x[i, k] }
      %c: f32[4096] = reduce.sum [j] over [k < 4096] { mul(%x[k, j], %s[k]) }
      %y: f32[4096, 4096] = map [i, j] { mul(%x[i, j], mul(%s[i], %c[j])) }
      return %s, %y
    }""")
    with pytest.raises(UserError, match="kernel k0 cannot be one kernel: ") as caught:
        followed(graph, HEAD + kernel("k0", "%s, %c, %y", "%s, %y") + "}")
    assert "take some of its nodes out" in str(caught.value)


def test_library_calls_stay_what_they_are() -> None:
    graph = layers(1)
    host = host_device()
    with pytest.raises(UserError, match="kernel k0"):
        plan_of_outline(parse_plan(HEAD.replace("h200", "host") + kernel("k0", "%t0, %a0, %p0, %x1", "%x1") + "}"),
                        setting_of(graph, {}, {}, {}, host, Options()))
    for line, message in (("library matmul {%a0, %w0} -> {0: %p7}", "library call matmul names %p7"),
                          ("library conv {%a0, %w0} -> {0: %p0}", "%p0 is a call of matmul, not of conv"),
                          (kernel("k0", "%p0", "%p0") + "library matmul {%a0, %w0} -> {0: %p0}", "%p0 is computed by kernel k0 and by")):
        with pytest.raises(UserError, match=message):
            followed(graph, HEAD + line + "\n}")


TWO_KERNELS = HEAD + """
  kernel k0 = {%a} -> {%a} by me cost 1.0us from x as k0
  kernel k1 = {%b, %c} -> {%c} by me cost 1.0us from x as k1
  edge %b -> %c in k1 register
}"""


def test_a_template_changes_one_kernel_of_a_plan() -> None:
    ours = followed(DIAMOND, TWO_KERNELS)
    made = with_template(ours, parse_template("c [GRID,GRID-CTA_256];"), setting_of(DIAMOND, {}, {}, {}, H200, Options()), Options())
    (changed,) = [k for k in made.kernels if k.program.name.endswith("_by_hand")]
    assert changed.pattern.nodes == ("b", "c") and changed.program.launch.num_threads == 256
    assert dict(changed.binding)["c"] == "c" and made.kernels[0] == ours.kernels[0] and verify_plan(made) == []


@pytest.mark.parametrize(("text", "message"), [
    ("zz [GRID];", "no kernel computes %zz"), ("a [GRID,GRID-CTA_256]; c [GRID,GRID-CTA_256];", "is computed by kernel"),
    ("pack { 2 x { a [GRID]; } };", "is no packed kernel"), ("pack { 2 x { vector=4; } };", "no schedule")])
def test_a_template_is_for_one_kernel(text: str, message: str) -> None:
    setting = setting_of(DIAMOND, {}, {}, {}, H200, Options())
    with pytest.raises(CompilerError, match=message):
        with_template(followed(DIAMOND, TWO_KERNELS), parse_template(text), setting, Options())
