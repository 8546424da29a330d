"""Facts of steps: each kernel's own, also where it reads what another one wrote."""
from __future__ import annotations

import tilefuse
from tilefuse.inspection.facts import step_facts
from tilefuse.ir.text import parse_graph

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
