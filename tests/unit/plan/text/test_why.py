"""Why two values share a kernel or not: cost, constraint, and what the other choice would cost."""
from __future__ import annotations

import pytest

from tests.unit.plan.graphs import layers, softmax
from tilefuse.base.errors import NameLookupError
from tilefuse.base.options import Options
from tilefuse.ir.graph import Graph
from tilefuse.ir.text import parse_graph
from tilefuse.plan.pattern import Pattern
from tilefuse.plan.planner import plan_graph
from tilefuse.plan.text.edit import plan_of_patterns, setting_of_plan
from tilefuse.plan.text.why import Answer, why
from tilefuse.target.catalog import host_device
from tilefuse.target.device import H200, DeviceSpec


def asked(graph: Graph, first: str, second: str, device: DeviceSpec = H200, **options: object) -> Answer:
    chosen = Options().with_overrides(**{"stitch": False} | options)
    plan = plan_graph(graph, {}, device, chosen)
    return why(plan, setting_of_plan(plan, device, chosen), first, second)


def test_one_kernel_is_compared_with_two() -> None:
    found = asked(softmax(), "m", "y")
    assert found.together and found.decided_by == "cost" and found.others == (("m", "e", "s"), ("y",))
    assert found.chosen_us is not None and found.other_us is not None and found.other_us > found.chosen_us
    text = found.text()
    assert "one kernel (k0)" in text and "the other choice" in text and "{%m, %e, %s} | {%y}" in text and "bytes more" in text


def test_apart_products_are_the_librarys() -> None:
    """Rows of 4096 scores fit no kernel's tiles, so cut apart the products are calls, and the softmax between them is a kernel."""
    length = 4096
    graph = parse_graph(f"""graph @attention(%q: f16[8, {length}, 64], %k: f16[8, {length}, 64], %v: f16[8, {length}, 64])
        -> (f16[8, {length}, 64]) {{
      %p: f16[8, {length}, {length}] = library.matmul (%q, %k) {{transpose_a=false, transpose_b=true}}
      %m: f32[8, {length}] = reduce.max [b, i] over [k < {length}] {{ f32(%p[b, i, k]) }}
      %e: f32[8, {length}, {length}] = map [b, i, j] {{ exp(sub(f32(%p[b, i, j]), %m[b, i])) }}
      %s: f32[8, {length}] = reduce.sum [b, i] over [k < {length}] {{ %e[b, i, k] }}
      %y: f16[8, {length}, {length}] = map [b, i, j] {{ f16(div(%e[b, i, j], %s[b, i])) }}
      %z: f16[8, {length}, 64] = library.matmul (%y, %v) {{transpose_a=false, transpose_b=false}}
      return %z
    }}""")
    found = asked(graph, "y", "z", stitch=True)
    assert found.together and found.decided_by == "cost" and found.others == (("p",), ("m", "e", "s", "y"), ("z",))
    assert found.chosen_us is not None and found.other_us is not None and found.other_us > 2 * found.chosen_us
    assert "one kernel and two library calls would move 1073741824 bytes more and launch 2 times more" in found.detail


def test_two_kernels_are_compared_with_one() -> None:
    """Without fusing every node is alone, and the union is what would have been cheaper."""
    found = asked(softmax(), "e", "m", fuse=False)
    assert not found.together and found.decided_by == "search" and found.others == (("m", "e"),)
    assert found.chosen_us is not None and found.other_us is not None and found.other_us < found.chosen_us


def test_a_path_through_a_library_call_is_named() -> None:
    found = asked(layers(2), "a0", "x1", host_device())
    assert not found.together and found.decided_by == "not-convex" and "matmul" in found.detail and found.other_us is None
    assert "no other choice: no kernel computes matmul on host, which lies between them" in found.text()


def test_a_path_through_a_kernel_has_the_price_of_a_kernel_that_holds_it_too() -> None:
    """Each node alone: m and y share nothing without e and s, which the other choice holds as well."""
    found = asked(softmax(), "m", "y", fuse=False)
    assert not found.together and found.decided_by == "not-convex" and found.others == (("m", "e", "s", "y"),)
    assert len(found.kernels) == 4 and found.other_us is not None and found.chosen_us is not None and found.other_us < found.chosen_us
    assert "the other choice holds these too" in found.text()


@pytest.mark.parametrize("names", [("x", "m"), ("m", "m"), ("m", "y"), ("e", "s")])
@pytest.mark.parametrize("fuse", [True, False])
def test_every_answer_has_the_other_choice_or_says_why_there_is_none(names: tuple[str, str], fuse: bool) -> None:
    text = asked(softmax(), *names, fuse=fuse).text()
    assert ("the other choice" in text.splitlines()[-1]) is not ("no other choice: " in text.splitlines()[-1])


@pytest.mark.parametrize(("value", "decided_by"), [("f32[256, 256] = map [i, j] { exp(%y[i, j]) }", ("cost", "search")),
                                                   ("f32[256] = reduce.sum [j] over [k < 256] { %y[k, j] }", ("reduction-mismatch",))])
def test_what_is_packed_beside_a_value_does_not_decide(value: str, decided_by: tuple[str, ...]) -> None:
    """c is packed with g, which waits for a product of y; c itself does not."""
    graph = parse_graph(f"""graph @g(%x: f32[256, 256], %w: f32[256, 4096]) -> (f32[256, 4096], f32[256], {value.partition(" = ")[0]}) {{
      %s: f32[256] = reduce.sum [i] over [k < 256] {{ %x[i, k] }}
      %y: f32[256, 256] = map [i, j] {{ div(%x[i, j], %s[i]) }}
      %p: f32[256, 4096] = library.matmul (%y, %w)
      %g: f32[256, 4096] = map [i, j] {{ tanh(%p[i, j]) }}
      %c: {value}
      return %g, %s, %c
    }}""")
    options = Options().with_overrides(stitch=False)
    setting = setting_of_plan(plan_graph(graph, {}, H200, options), H200, options)
    plan = plan_of_patterns([("k0", Pattern(("s", "y"), ("s", "y"))), ("k1", Pattern(("g", "c"), ("g", "c")))], setting)
    found = why(plan, setting, "y", "c")
    assert not found.together and found.decided_by in decided_by, found.text()
    assert found.chosen_us is not None and (found.others == (("s", "y", "c"), ("g",)) if "cost" in decided_by else not found.others)
    assert why(plan, setting, "y", "g").decided_by == "not-convex"


def test_the_schedulers_reason_is_given() -> None:
    graph = parse_graph("""graph @g(%x: f32[4096, 4096]) -> (f32[4096], f32[4096]) {
      %s: f32[4096] = reduce.sum [i] over [k < 4096] { %x[i, k] }
      %c: f32[4096] = reduce.sum [j] over [k < 4096] { mul(%x[k, j], %s[k]) }
      return %s, %c
    }""")
    found = asked(graph, "s", "c")
    assert not found.together and found.decided_by not in ("cost", "search") and found.detail


@pytest.mark.parametrize(("first", "second", "decided_by"), [("x0", "a0", "input"), ("p0", "a0", "library-call")])
def test_what_is_in_no_kernel_says_so(first: str, second: str, decided_by: str) -> None:
    assert asked(layers(2), first, second, host_device()).decided_by == decided_by


def test_a_value_with_itself_cannot_be_cut() -> None:
    assert "cannot be cut" in asked(softmax(), "y", "y").detail


def test_an_unknown_value_offers_the_nearest() -> None:
    with pytest.raises(NameLookupError, match="did you mean t0"):
        asked(layers(2), "tt0", "a0")


@pytest.mark.parametrize(("rows", "inner", "decided_by", "priced"), [
    (64, 256, "cost", (True, True)), (512, 64, "shared-memory", (True, False)), (512, 2048, "shared-memory", (True, False))])
def test_a_call_that_a_kernel_could_hold_is_compared_with_it(rows: int, inner: int, decided_by: str, priced: tuple[bool, bool]) -> None:
    """The sum of everything waits for all of the product, and no stage holds one over a long axis."""
    graph = parse_graph(f"""graph @g(%x: f16[{rows}, {inner}], %w: f16[{inner}, 256]) -> (f32[]) {{
      %p: f16[{rows}, 256] = library.matmul (%x, %w) {{transpose_a=false, transpose_b=false}}
      %s: f32[] = reduce.sum [] over [i < {rows}, j < 256] {{ f32(%p[i, j]) }}
      return %s
    }}""")
    found = asked(graph, "p", "s")
    assert not found.together and found.decided_by == decided_by and found.detail
    assert (found.chosen_us is not None, found.other_us is not None) == priced
    if priced[1]:
        assert found.kernels == ("call matmul", "k0") and found.others == (("p", "s"),) and "the other choice" in found.text()
