"""Pipelines: their text, their order, what the manager checks and reports."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest

from tilefuse.base.errors import InternalError, OptionError, PipelineError, VerifyError
from tilefuse.base.options import Options
from tilefuse.base.trace import Trace, tracing
from tilefuse.ir.building.tensor import TensorBuilder
from tilefuse.ir.dtype import F16, F32
from tilefuse.ir.graph import Graph
from tilefuse.ir.text import parse_graph
from tilefuse.passes import DEFAULT_PIPELINE, PASSES, Pass, PassContext, Pipeline, Property, register_pass
from tilefuse.passes.manager import Properties

TEXT = """graph @g(%x: f32[3, 5]) -> (f32[3]) {
  %a: f32[3] = reduce.sum [i] over [k < 5] { %x[i, k] }
  %b: f32[3] = reduce.sum [i] over [k < 5] { %x[i, k] }
  %c: f32[3] = map [i] { mul(%a[i], %b[i]) }
  return %c
}
"""


@dataclass(frozen=True)
class NeedsMerged(Pass):
    """A pass of the tests: requires that no two nodes are equal. Exact: bit for bit."""

    name: ClassVar[str] = "needs-merged"
    requires: ClassVar[Properties] = frozenset({Property.NO_EQUAL_NODES})

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        return graph


@dataclass(frozen=True)
class BreakReads(Pass):
    """A pass of the tests that leaves a read out of range. Exact: no."""

    name: ClassVar[str] = "break-reads"

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        wrong = parse_graph(TEXT.replace("map [i] { mul(%a[i], %b[i]) }", "map [i] { %a[i + 1] }"), check=False)
        return replace(graph, nodes=wrong.nodes)


@dataclass(frozen=True)
class ClaimMerged(Pass):
    """A pass of the tests that establishes nothing of what it says. Exact: bit for bit."""

    name: ClassVar[str] = "claim-merged"
    establishes: ClassVar[Properties] = frozenset({Property.NO_EQUAL_NODES})

    def run(self, graph: Graph, ctx: PassContext) -> Graph:
        return graph


def test_pipelines_print_what_they_parse() -> None:
    text = "decompose,fold-constants{limit=64},simplify-scalar{exact_only=true},remove-dead-nodes"
    assert str(Pipeline.parse(f" {text.replace(',', ' , ')} ,")) == text
    assert str(Pipeline.parse("fold-constants{limit=65536}")) == "fold-constants"
    assert Pipeline.parse("").passes == ()


@pytest.mark.parametrize(
    "text, hint",
    [
        ("decompos", "decompose"),
        ("fold-constants{limits=3}", "limit"),
        ("fold-constants{limit=many}", "not a int"),
        ("simplify-scalar{exact_only=1}", "not a bool"),
        ("fold-constants{limit=3", "braces"),
        ("fold-constants{limit=3}x", "closing"),
    ],
)
def test_wrong_pipelines_name_what_is_legal(text: str, hint: str) -> None:
    with pytest.raises(OptionError, match=hint):
        Pipeline.parse(text)


def test_order_is_checked_before_anything_runs() -> None:
    ran: list[str] = []
    wrong = Pipeline((PASSES["simplify-index"](), NeedsMerged()))
    with pytest.raises(PipelineError, match="no-equal-nodes.*\n.*merge-equal-nodes"):
        wrong.run(parse_graph(TEXT), PassContext(on_pass=lambda r: ran.append(r.name)))
    assert ran == []
    right = Pipeline((PASSES["merge-equal-nodes"](), NeedsMerged()))
    assert len(right.run(parse_graph(TEXT)).nodes) == 2


def test_what_a_pass_does_not_preserve_is_lost() -> None:
    with pytest.raises(PipelineError):
        Pipeline((PASSES["merge-equal-nodes"](), PASSES["simplify-index"](), NeedsMerged())).check()
    assert Property.NO_DEAD_NODES in Pipeline.parse(DEFAULT_PIPELINE).check()
    assert Property.PRIMITIVE_OPS_ONLY in Pipeline.parse(DEFAULT_PIPELINE).check()


def test_a_pass_that_breaks_the_graph_is_named_with_rule_and_texts() -> None:
    with pytest.raises(VerifyError, match="break-reads.*reads-in-range") as caught:
        Pipeline((BreakReads(),)).run(parse_graph(TEXT))
    assert any("before:" in n for n in caught.value.__notes__) and any("after:" in n for n in caught.value.__notes__)
    Pipeline((BreakReads(),)).run(parse_graph(TEXT), PassContext(verify=0))


def test_claimed_properties_are_checked_at_level_two() -> None:
    Pipeline((ClaimMerged(),)).run(parse_graph(TEXT), PassContext(verify=1))
    with pytest.raises(VerifyError, match="claim-merged.*no-equal-nodes"):
        Pipeline((ClaimMerged(),)).run(parse_graph(TEXT), PassContext(verify=2))


def test_names_of_passes_are_their_classes_in_words() -> None:
    with pytest.raises(InternalError, match="needs-merged"):
        register_pass(type("Other", (NeedsMerged,), {}))
    with pytest.raises(InternalError):
        register_pass(PASSES["decompose"])


def test_records_and_trace_tell_what_happened() -> None:
    records = []
    trace = Trace(Options())
    with tracing(trace):
        Pipeline.parse("merge-equal-nodes,simplify-index").run(parse_graph(TEXT), PassContext(on_pass=records.append))
    assert [(r.name, len(r.after.nodes), r.after is r.before) for r in records] == [
        ("merge-equal-nodes", 2, False),
        ("simplify-index", 2, True),
    ]
    assert records[0].rule_counts == {"merged": 1}
    assert {e["name"] for e in trace.events} == {"pass merge-equal-nodes", "pass simplify-index"}


def test_a_pipeline_can_stop_after_a_pass() -> None:
    records = []
    Pipeline.parse(DEFAULT_PIPELINE).run(parse_graph(TEXT), PassContext(on_pass=records.append, stop_after="inline-views"))
    assert [r.name for r in records] == ["decompose", "remove-dead-nodes", "inline-views"]


@pytest.mark.alone
def test_a_long_chain_passes_in_near_linear_time() -> None:
    """Twice the nodes take at most three times as long; ten thousand nodes take seconds."""

    def seconds(num_nodes: int) -> float:
        b = TensorBuilder("chain")
        x = b.input("x", F16, (8, 8))
        for n in range(num_nodes):
            x = b.elementwise("add" if n % 2 else "mul", x, 1.5 + n % 7)
        graph = b.finish([x])
        began = time.process_time()
        after = Pipeline.parse(DEFAULT_PIPELINE).run(graph)
        assert len(after.nodes) == num_nodes
        return time.process_time() - began

    small = min(seconds(1000), seconds(1000))
    assert seconds(4000) < 12 * small + 0.5


def test_a_chain_of_views_does_not_grow() -> None:
    """Incompatible reshapes stop being folded once a subscript would need too many divisions."""
    b = TensorBuilder("views")
    x = b.input("x", F32, (6, 35))
    for n in range(40):
        x = b.permute(b.reshape(x, (14, 15) if n % 2 else (10, 21)), (1, 0))
    y = b.elementwise("exp", x)
    after = Pipeline.parse(DEFAULT_PIPELINE).run(b.finish([y]), PassContext(verify=2))
    assert len(max((str(n.body) for n in after.nodes), key=len)) < 20000
