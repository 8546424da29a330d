"""Facts of steps: each kernel's own, also where it reads what another one wrote."""
from __future__ import annotations

import json
from dataclasses import replace

import tilefuse
from tilefuse.base.options import Options
from tilefuse.driver.compile import generate
from tilefuse.inspection.facts import step_facts
from tilefuse.ir.text import parse_graph
from tilefuse.target.device import H200

# Two kernels whatever a plan does: all of %s must be known before %y.
GRAPH = """graph @two(%x: f32[512, 2048]) -> (f32[2048]) {
  %s: f32[512] = reduce.sum [i] over [k < 2048] { %x[i, k] }
  %y: f32[2048] = reduce.sum [j] over [k < 512] { mul(%s[k], %x[k, j]) }
  return %y
}"""


def test_a_kernel_that_reads_anothers_value_has_its_own_facts() -> None:
    program = tilefuse.compile(parse_graph(GRAPH), device="host")
    data = program.explain(json=True)
    found = [fact for fact in step_facts(program.spec, data) if fact["kind"] == "kernel"]
    assert len(found) > 1
    assert [fact["nodes"] for fact in found] == [kernel["nodes"] for kernel in data["kernels"]]
    assert [fact["predicted_us"] for fact in found] == [kernel["predicted_us"] for kernel in data["kernels"]]


def test_kernels_of_one_code_that_write_over_what_they_read_have_their_own_facts() -> None:
    """Both address the memory of the product, not what they write: each had the first one's nodes and no predicted time."""
    n = 640
    wide, thin = f"f32[{n}, {n}]", f"f32[{n}, 64]"
    graph = parse_graph(
        f"graph @twice(%x: {thin}, %w: f32[64, {n}], %u: {thin}) -> ({thin}) {{ %t: {wide} = library.matmul (%x, %w) "
        f"%m: {wide} = map [i, j] {{ tanh(%t[i, j]) }} %p: {thin} = library.matmul (%m, %u) %q: {wide} = library.matmul (%p, %w) "
        f"%r: {wide} = map [i, j] {{ tanh(%q[i, j]) }} %y: {thin} = library.matmul (%r, %u) return %y }}")
    spec = generate(graph, constants={}, device=replace(H200, kind="host"), options=Options(stitch=False, plan_cache=False)).spec
    data = json.loads(spec.explanation)
    found = [fact for fact in step_facts(spec, data) if fact["kind"] == "kernel"]
    assert len(spec.kernels) == 1 and spec.kernels[0].name.endswith("_in_place")
    assert [fact["nodes"] for fact in found] == [["m"], ["r"]]
    assert [fact["predicted_us"] for fact in found] == [kernel["predicted_us"] for kernel in data["kernels"]]


UPDATED = """graph @steps(%w: f32[512, 2048], %g: f32[512, 2048]) -> (f32[512]) {
  %n: f32[512, 2048] = map [i, j] { add(%w[i, j], mul(-0.5:f32, %g[i, j])) }
  %s: f32[512] = reduce.sum [i] over [k < 2048] { exp(%g[i, k]) }
  update %w = %n
  return %s
}"""


def test_a_kernel_that_updates_its_input_has_its_own_facts() -> None:
    program = tilefuse.compile(parse_graph(UPDATED), device="host", fuse=False)
    data = program.explain(json=True)
    found = [fact for fact in step_facts(program.spec, data) if fact["kind"] == "kernel"]
    assert sorted(node for fact in found for node in fact["nodes"]) == ["n", "s"]
    assert [fact["predicted_us"] for fact in found] == [kernel["predicted_us"] for kernel in data["kernels"]]
