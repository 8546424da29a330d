"""Values that are written where one that dies lies: where the peak falls, in one thread an element, and never where somebody reads on."""
from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tilefuse.base.options import Options
from tilefuse.driver.lowering.in_place_reuse import reused_storage
from tilefuse.driver.lowering.lower import lower
from tilefuse.ir.text import parse_graph
from tilefuse.plan.pattern import Plan
from tilefuse.plan.planner import plan_graph
from tilefuse.runtime.calls.call_plan import plan_calls
from tilefuse.runtime.program import Program
from tilefuse.target.device import H200

# Kernels of the GPU's plan, printed for the host.
ON_HOST = replace(H200, kind="host")
N = 640  # matrices of 1.6 MiB
MATRIX, THIN, LARGE = f"f32[{N}, {N}]", f"f32[{N}, 64]", f"f32[{4 * N}, {N}]"
TYPES = {"%t": MATRIX, "%m": MATRIX, "%k": LARGE}


def plan_between(body: str, more: str = "", results: str = "%y") -> Plan:
    """Two products with `body` between: it makes the matrix %m from the matrix %t. `more`: what else reads them."""
    types = ", ".join(TYPES.get(r, THIN) for r in results.split(", "))
    return plan_graph(parse_graph(
        f"graph @g(%x: {THIN}, %w: f32[64, {N}], %u: {THIN}) -> ({types}) {{ %t: {MATRIX} = library.matmul (%x, %w) {body} "
        f"%y: {THIN} = library.matmul (%m, %u) {more} return {results} }}"), {}, H200, Options(stitch=False))


def reuse(plan: Plan) -> dict[str, str]:
    return reused_storage(plan, {}, lambda v: 4 * plan.graph.type_of(v).num_elements)


SAME = f"%m: {MATRIX} = map [i, j] {{ tanh(%t[i, j]) }}"
FOLDED = (f"%v: f32[2, {N // 2}, {N}] = map [b, i, j] {{ tanh(%t[{N // 2}*b + i, j]) }} "
          f"%m: {MATRIX} = map [i, j] {{ %v[(i // {N // 2}), (i % {N // 2}), j] }}")
CHAIN = (f"%a: {MATRIX} = map [i, j] {{ tanh(%t[i, j]) }} %p: {MATRIX} = library.matmul (%a, %a) "
         f"%m: {MATRIX} = map [i, j] {{ add(%p[i, j], %a[i, j]) }}")
TURNED = f"%m: {MATRIX} = map [i, j] {{ tanh(%t[j, i]) }}"
MIRRORED = f"%m: {MATRIX} = map [i, j] {{ add(%t[i, j], %t[i, {N - 1} + -1*j]) }}"
OUTSIDE = f"%r: {MATRIX} = library.aten.relu.default (%t) {{args = ((\"%\", 0))}} %m: {MATRIX} = map [i, j] {{ tanh(%r[i, j]) }}"


@pytest.mark.parametrize(("body", "more", "results", "expected"), [
    (SAME, "", "%y", {"m": "t"}),
    (FOLDED, "", "%y", {"v": "t"}),
    (SAME, "", "%y, %m", {"m": "t"}),
    # Only where most is held: both operands of the sum, and the sum.
    (CHAIN, "", "%y", {"m": "p"}),
    # Another thread reads what one writes.
    (TURNED, "", "%y", {}),
    (MIRRORED, "", "%y", {}),
    # Somebody reads the old value afterwards: the caller, or a later product.
    (SAME, "", "%y, %t", {}),
    (SAME, f"%z: {THIN} = library.matmul (%t, %u)", "%y, %z", {}),
    # An operator of torch's own may give its operand back.
    (OUTSIDE, "", "%y", {}),
])
def test_a_value_takes_the_memory_of_one_that_dies(body: str, more: str, results: str, expected: dict[str, str]) -> None:
    plan = plan_between(body, more, results)
    assert reuse(plan) == expected
    spec = lower(plan, ON_HOST, Options(check=True))
    generator = torch.Generator().manual_seed(3)
    x, w, u = (torch.randn(s, generator=generator) / 8 for s in ((N, 64), (64, N), (N, 64)))
    found = Program(spec, {}, "host", Options(check=True))(x, w, u)
    values = {"%t": x @ w}
    a = values["%t"].tanh()
    values["%m"] = {TURNED: values["%t"].mT.tanh(), CHAIN: a @ a + a, MIRRORED: values["%t"] + values["%t"].flip(1),
                    OUTSIDE: values["%t"].relu().tanh()}.get(body, a)
    values |= {"%y": values["%m"] @ u, "%z": values["%t"] @ u}
    for name, result in zip(results.split(", "), found, strict=True):
        torch.testing.assert_close(result, values[name], rtol=1e-4, atol=1e-4)


def test_the_peak_falls_by_what_is_reused() -> None:
    spec = lower(plan_between(SAME), ON_HOST, Options())
    assert plan_calls(spec).memory.peak_bytes < 4 * N * (N + 70)


def test_one_value_of_two_takes_the_memory() -> None:
    both = f"%a: {MATRIX} = map [i, j] {{ exp(%t[i, j]) }} {SAME}"
    found = reuse(plan_between(both, f"%z: {THIN} = library.matmul (%a, %u)", "%y, %z"))
    assert len(found) == 1 and found.items() <= {("a", "t"), ("m", "t")}


def test_nothing_is_reused_where_the_peak_stays() -> None:
    """Each such kernel is compiled beside the other: a smaller peak must pay for it."""
    more = f"%k: {LARGE} = map [i, j] {{ exp(%y[(i % {N}), (j % 64)]) }}"
    assert reuse(plan_between(SAME, more, "%y, %k")) == {}


@pytest.mark.parametrize(("given_up", "expected"), [((), {"m": "p"}), (("g",), {"a": "t"})])
def test_what_the_caller_gives_up_counts_until_it_is_used(given_up: tuple[str, ...], expected: dict[str, str]) -> None:
    """Then most is held where the first map runs, which reads it."""
    graph = parse_graph(
        f"graph @g(%x: {THIN}, %w: f32[64, {N}], %u: {THIN}, %g: f32[{2 * N}, {N}]) -> ({THIN}) {{ %t: {MATRIX} = library.matmul (%x, %w) "
        f"%a: {MATRIX} = map [i, j] {{ mul(tanh(%t[i, j]), %g[2*i, j]) }} %p: {MATRIX} = library.matmul (%a, %a) "
        f"%m: {MATRIX} = map [i, j] {{ add(%p[i, j], %a[i, j]) }} %y: {THIN} = library.matmul (%m, %u) return %y }}")
    plan = plan_graph(graph, {}, H200, Options(stitch=False))
    assert reused_storage(plan, {}, lambda v: 4 * plan.graph.type_of(v).num_elements, given_up=given_up) == expected


GRADIENT = (f"%g: {MATRIX} = map [i, j] {{ mul(exp(%s[i, j]), 0.5:f32) }} %y: {THIN} = library.matmul (%g, %u) "
            f"%z: {THIN} = library.matmul (%g, %u) {{transpose_a = true}}")


def plan_of_gradient(results: str = "%y, %z", body: str = GRADIENT) -> Plan:
    """The gradient of saved scores %s, multiplied twice."""
    types = ", ".join(TYPES.get(r, MATRIX if r in ("%g", "%q") else THIN) for r in results.split(", "))
    return plan_graph(parse_graph(f"graph @g(%s: {MATRIX}, %u: {THIN}) -> ({types}) {{ {body} return {results} }}"), {}, H200,
                      Options(stitch=False))


@pytest.mark.parametrize(("results", "body", "overwritable", "expected"), [
    ("%y, %z", GRADIENT, ("s",), {"g": "s"}),
    # The caller may read the scores again.
    ("%y, %z", GRADIENT, (), {}),
    # A result has memory of its own, also through a value between.
    ("%y, %g", GRADIENT, ("s",), {}),
    ("%y, %q", f"{GRADIENT} %q: {MATRIX} = map [i, j] {{ add(%g[i, j], %y[i, (j % 64)]) }}", ("s",), {"g": "s"}),
    # A later product reads the scores.
    ("%y, %z", f"{GRADIENT.split('%z')[0]} %z: {THIN} = library.matmul (%s, %u)", ("s",), {}),
])
def test_a_value_takes_the_memory_of_an_input_that_only_the_call_holds(results: str, body: str, overwritable: tuple[str, ...],
                                                                       expected: dict[str, str]) -> None:
    plan = plan_of_gradient(results, body)
    found = reused_storage(plan, {}, lambda v: 4 * plan.graph.type_of(v).num_elements, given_up=("s",), overwritable=overwritable)
    assert found == expected


def test_a_boxed_call_overwrites_the_input_and_any_other_call_keeps_it() -> None:
    plan = plan_of_gradient()
    spec = lower(plan, ON_HOST, Options(check=True), given_up=("s",), overwritable=("s",))
    assert spec.overwritten == ("s",) and plan_calls(spec).memory.peak_bytes < 4 * N * N
    program = Program(spec, {}, "host", Options(check=True))
    generator = torch.Generator().manual_seed(5)
    s, u = torch.randn((N, N), generator=generator), torch.randn((N, 64), generator=generator) / 8
    before, g = s.clone(), s.exp() / 2
    for boxed in (False, False, True):
        y, z = program.call_boxed([s, u]) if boxed else program(s, u)
        torch.testing.assert_close((y, z), (g @ u, g.mT @ u), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(s, g if boxed else before, rtol=1e-5, atol=1e-6)
    program.profile(before, u, repeats=1)
    assert torch.equal(before.exp() / 2, g), "a measurement keeps the inputs"


def test_an_overwritten_input_is_not_fetched_before_the_kernel_ahead_ends() -> None:
    """An input that the program writes is not settled: neither for its reader nor for the kernel after it."""
    from tilefuse.driver.lowering.lower import unwritten_inputs

    plan = plan_of_gradient()
    assert unwritten_inputs(plan, {}) == {"s", "u"} and unwritten_inputs(plan, {"g": "s"}) == {"u"}


FEED_FORWARD = """graph @layers(%x: f16[8192, 768], const %a: f16[3072, 768], const %b: f16[768, 3072], const %c: f16[768, 768]
              ) -> (f16[8192, 768]) {
  %s: f16[8192, 768] = library.matmul (%x, %c) {transpose_b = true}
  %h: f16[8192, 3072] = library.matmul (%s, %a) {transpose_b = true}
  %t: f16[8192, 3072] = map [i, j] { f16(tanh(f32(%h[i, j]))) }
  %p: f16[8192, 768] = library.matmul (%t, %b) {transpose_b = true}
  %y: f16[8192, 768] = map [i, j] { f16(add(f32(%p[i, j]), f32(%s[i, j]))) }
  %z: f16[8192, 768] = library.matmul (%y, %c) {transpose_b = true}
  return %z
}"""


def test_a_product_writes_over_its_residual() -> None:
    """Where the peak is: beside the wide activation there is one narrow value, not two."""
    graph = parse_graph(FEED_FORWARD)
    plan = plan_graph(graph, {}, H200, Options())
    assert reused_storage(plan, {}, lambda v: 2 * plan.graph.type_of(v).num_elements) == {"y": "s"}
    spec = lower(plan, H200, Options())
    assert [k.name for k in spec.kernels if k.name.endswith("_in_place")]
    wide, narrow = 2 * 8192 * 3072, 2 * 8192 * 768
    assert wide + narrow <= plan_calls(spec).memory.peak_bytes < wide + narrow + narrow // 2
