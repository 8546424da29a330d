"""Passes over graph attributes: order, errors that name the pass to add, users' passes, and the three that make kernels."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import tilefuse
from tests.unit.plan.graphs import layers, softmax
from tilefuse.base import trace
from tilefuse.base.errors import NameLookupError, OptionError, UserError
from tilefuse.base.options import Options
from tilefuse.driver.graph_passes import AttributedGraph, apply_passes
from tilefuse.driver.kernel_passes import flattened, fused_graph
from tilefuse.driver.reuse import known_programs
from tilefuse.ir.dtype import F32
from tilefuse.ir.graph import Graph
from tilefuse.ir.interpret import interpret
from tilefuse.ir.scalar import call, const
from tilefuse.ir.text import parse_graph, print_graph
from tilefuse.ir.verify import verify
from tilefuse.passes import PASSES, Pipeline
from tilefuse.plan.pattern import Pattern

ALL = ["fusion", "codegen", "rtc"]


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    """Passes that a test registers are gone after it."""
    import tilefuse.driver.kernel_passes  # noqa: F401

    before = dict(PASSES)
    yield
    PASSES.clear()
    PASSES.update(before)


def half_input() -> torch.Tensor:
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(1)).half()


def test_each_pass_leaves_its_attribute() -> None:
    made = tilefuse.apply_passes(softmax(), ALL, device="host")
    node, = [n for n in made.graph.nodes if n.kind == "library.fused"]
    inside = made["subgraph"][node.name]
    assert isinstance(inside, Graph) and len(inside.nodes) > 1 and inside.results == (node.name,) and not verify(inside)
    assert made["kernel"][node.name].source.startswith("// k_")
    assert made["rtc"][node.name].payload[:4] == b"\x7fELF"
    x = half_input()
    assert torch.allclose(made(x)[0].float(), x.float().softmax(-1), rtol=2**-10, atol=2**-24)


def test_the_kernels_are_those_of_compile() -> None:
    graph = layers(4, rows=8)
    draw = np.random.default_rng(0)
    constants = {i.name: draw.standard_normal(i.type.shape, dtype=np.float32) / 8 for i in graph.inputs if i.constant}
    made = apply_passes(graph, ALL, constants=constants, device="host")
    from tilefuse.driver.compile import compile_graph

    program = compile_graph(graph, constants=constants, device="host", options=Options.from_environment())
    assert made["spec"] == program.spec
    x = torch.ones(8, 64)
    assert torch.equal(made(x)[0], program(x)[0])
    assert len(made["subgraph"]) == len([n for n in made.graph.nodes if n.kind == "library.fused"])


def test_sources_for_a_device_that_is_not_here() -> None:
    made = apply_passes(softmax(), ALL, device="h200")
    code, = set(made["kernel"].values())
    compiled, = made["rtc"].values()
    assert "__global__" in code.source and compiled.resources is not None and compiled.resources.num_registers > 0
    with pytest.raises(UserError, match="not this machine's"):
        made.program()


@pytest.mark.parametrize("passes, attribute, add", [
    (["codegen"], "subgraph", "fusion"), (["fusion", "rtc"], "kernel", "codegen"), (["rtc", "fusion", "codegen"], "kernel", "codegen"),
])
def test_a_missing_dependency_names_the_pass_to_add(passes: list[str], attribute: str, add: str) -> None:
    with pytest.raises(UserError, match=f"depends on the attribute '{attribute}'") as caught:
        apply_passes(softmax(), passes, device="host")
    assert f"add the pass {add} before" in str(caught.value)


def test_a_dependency_that_nothing_provides_is_told_so() -> None:
    @tilefuse.graph_pass("wants-colours", depends="colours")
    def wants(graph: AttributedGraph) -> AttributedGraph:
        return graph

    with pytest.raises(UserError, match="no registered pass provides it"):
        apply_passes(softmax(), ["fusion", "wants-colours"], device="host")


def test_an_attribute_that_is_not_there_names_its_pass() -> None:
    made = apply_passes(softmax(), ["fusion"], device="host")
    with pytest.raises(NameLookupError, match="add the pass codegen"):
        made["kernel"]
    with pytest.raises(NameLookupError, match="it has "):
        made["nothing"]
    assert "subgraph" in made and "kernel" not in made


def test_an_unknown_pass_is_an_option_error() -> None:
    with pytest.raises(OptionError, match="did you mean fusion"):
        apply_passes(softmax(), ["fusoin"], device="host")
    with pytest.raises(UserError, match="takes a graph or arrays, not a int"):
        tilefuse.apply_passes(3, ALL)


def test_calls_go_on_where_the_last_one_stopped() -> None:
    first = apply_passes(softmax(), ["fusion"], device="host", fast_math=True)
    made = apply_passes(apply_passes(first, "codegen"), ["rtc"])
    assert made.options.fast_math and made(half_input())
    with pytest.raises(UserError, match="from the first call"):
        apply_passes(first, ["codegen"], device="h200")


def test_rewriting_passes_go_in_the_same_list() -> None:
    graph = parse_graph("""graph @g(%x: f32[8]) -> (f32[8]) {
  %a: f32[8] = map [i] { mul(%x[i], 1.0:f32) }
  %y: f32[8] = map [i] { %a[i] }
  return %y
}""")
    made = apply_passes(graph, ["simplify-scalar,inline-views", "remove-dead-nodes"], device="host")
    assert "mul" not in print_graph(made.graph)


def test_a_users_pass_may_change_what_a_fused_node_computes() -> None:
    @tilefuse.graph_pass("double", depends=("subgraph",), provides=("doubled",))
    def double(graph: AttributedGraph) -> AttributedGraph:
        """Twice every result."""
        changed = {}
        for node, inside in graph["subgraph"].items():
            last = inside.node_by_name[node]
            twice = replace(last, body=call("mul", last.body, const(2, last.type.dtype)))
            changed[node] = replace(inside, nodes=tuple(twice if n.name == node else n for n in inside.nodes))
        return graph.with_attributes(subgraph=changed, doubled=True)

    graph = parse_graph("""graph @g(%x: f32[3, 5]) -> (f32[3, 5]) {
  %s: f32[3] = reduce.sum [i] over [k < 5] { %x[i, k] }
  %y: f32[3, 5] = map [i, j] { sub(%x[i, j], %s[i]) }
  return %y
}""")
    x = np.arange(15, dtype=np.float32).reshape(3, 5)
    made = apply_passes(graph, ["fusion", "double", "codegen", "rtc"], device="host")
    wanted = np.asarray(interpret(graph, {"x": x})[0])
    assert np.array_equal(made(torch.from_numpy(x))[0].numpy(), 2 * wanted)  # small integers: exact
    assert PASSES["double"].__doc__ == "Twice every result."


def test_a_users_pass_may_cut_a_fused_node() -> None:
    @tilefuse.graph_pass("unfuse", depends=("subgraph", "planned"))
    def unfuse(graph: AttributedGraph) -> AttributedGraph:
        flat, patterns = flattened(graph.graph, graph["subgraph"])
        single = {f"s{n}": Pattern((name,), (name,)) for n, name in enumerate(x for p in patterns.values() for x in p.nodes)}
        fused, subgraphs = fused_graph(flat, single)
        return graph.with_graph(fused).with_attributes(subgraph=subgraphs)

    made = apply_passes(softmax(), ["fusion", "unfuse", "codegen", "rtc"], device="host")
    assert len(made["kernel"]) == len(made["spec"].kernels) > 1
    x = half_input()
    assert torch.allclose(made(x)[0].float(), x.float().softmax(-1), rtol=2**-10, atol=2**-24)


def test_what_a_users_pass_does_wrong_is_said_with_its_name() -> None:
    @tilefuse.graph_pass("nothing")
    def nothing(graph: AttributedGraph) -> AttributedGraph:
        return None  # type: ignore[return-value]

    @tilefuse.graph_pass("empty", provides="gift")
    def empty(graph: AttributedGraph) -> AttributedGraph:
        return graph

    @tilefuse.graph_pass("broken")
    def broken(graph: AttributedGraph) -> AttributedGraph:
        return graph.with_graph(replace(graph.graph, results=("nowhere",)))

    @tilefuse.graph_pass("forgets", depends="subgraph")
    def forgets(graph: AttributedGraph) -> AttributedGraph:
        return graph.with_attributes(subgraph={})

    for passes, words in ((["nothing"], "pass nothing gave a NoneType"), (["empty"], "provides 'gift'"),
                          (["broken"], "pass broken left a graph"), (["fusion", "forgets", "codegen"], "has no subgraph")):
        with pytest.raises(UserError, match=words):
            apply_passes(softmax(), passes, device="host")
    with pytest.raises(UserError, match="is a pass 'fusion' already"):
        tilefuse.graph_pass("fusion")(nothing)
    tilefuse.graph_pass("nothing", replace=True)(empty)
    assert apply_passes(softmax(), ["nothing"], device="host").graph == softmax()


def test_a_graph_seen_before_is_not_planned_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_programs, "enabled", True)
    seen = []
    for _ in range(2):
        with trace.tracing(trace.Trace(Options())) as told:
            made = apply_passes(layers(2, rows=4), ["fusion", "codegen"], device="host", cache_dir=str(tmp_path))
            made = apply_passes(made, ["rtc"])
        seen.append((made["subgraph"], made["spec"], "plan" in told.seconds_by_name(), "compose" in told.seconds_by_name()))
    assert seen[0][:2] == seen[1][:2]
    assert seen[0][3] and not seen[1][3]
    # And `compile` finds what the passes kept.
    from tilefuse.driver.compile import compile_graph

    with trace.tracing(trace.Trace(Options())) as told:
        graph = layers(2, rows=4)
        constants = {i.name: torch.zeros(i.type.shape) for i in graph.inputs if i.constant}
        program = compile_graph(graph, constants=constants, device="host", options=Options(cache_dir=str(tmp_path)))
    assert "passes" not in told.seconds_by_name() and program.spec == seen[0][1]


def test_constants_of_the_graph_are_bound() -> None:
    graph = parse_graph("""graph @g(%x: f32[4], const %w: f32[4]) -> (f32[4]) {
  %y: f32[4] = map [i] { mul(%x[i], %w[i]) }
  return %y
}""")
    w = torch.tensor([1.0, 2.0, 3.0, 4.0])
    made = apply_passes(graph, ["decompose", *ALL], constants={"w": w}, device="host")
    assert torch.equal(made(torch.ones(4))[0], w)
    assert made.graph.type_of("y").dtype == F32


def test_parameters_of_a_users_function_are_options_of_its_pass() -> None:
    @tilefuse.graph_pass("add-zeros", provides="zeros")
    def add_zeros(graph: AttributedGraph, count: int = 1, negative: bool = False) -> AttributedGraph:
        """Zeros that nobody asked for."""
        return graph.with_attributes(zeros=[-0.0 if negative else 0.0] * count)

    assert apply_passes(softmax(), "add-zeros", device="host")["zeros"] == [0.0]
    assert str(apply_passes(softmax(), ["decompose,add-zeros{count=2,negative=true}"], device="host")["zeros"]) == "[-0.0, -0.0]"
    assert str(PASSES["add-zeros"]()) == "add-zeros" and str(Pipeline.parse("add-zeros{count=3}")) == "add-zeros{count=3}"
    for text, words in (("add-zeros{count=many}", "not a int"), ("add-zeros{colour=3}", "count")):
        with pytest.raises(OptionError, match=words):
            apply_passes(softmax(), text, device="host")


def test_what_cannot_be_an_option_or_a_name_is_said_when_the_pass_is_registered() -> None:
    def needs(graph: AttributedGraph, table: dict[str, int]) -> AttributedGraph:
        return graph

    with pytest.raises(UserError, match="updates-separate"):
        tilefuse.graph_pass("needs", preserves=("updates-seperate",))(needs)
    with pytest.raises(UserError, match="parameter table"):
        tilefuse.graph_pass("needs")(needs)
    with pytest.raises(UserError, match="cannot stand in a pipeline"):
        tilefuse.graph_pass("one,two")(needs)
    assert "needs" not in PASSES


def test_a_users_pass_stands_in_the_pipeline_of_a_compile() -> None:
    seen: list[str] = []

    @tilefuse.graph_pass("look", preserves="updates-separate")
    def look(graph: AttributedGraph) -> AttributedGraph:
        seen.append(f"{graph.device.kind} {len(graph.graph.nodes)}")
        return graph

    made = tilefuse.compile(softmax(), target="h200", passes="decompose,look", device_passes="separate-updates,look,plan-layouts")
    assert seen == ["cuda 4", "cuda 4"] and len(made.kernels) == 1
    with pytest.raises(OptionError, match="do not keep updated inputs apart"):
        tilefuse.compile(softmax(), target="h200", device_passes="look,plan-layouts")


def test_passes_that_make_kernels_stand_in_no_pipeline_of_a_compile() -> None:
    for given in ({"passes": "decompose,fusion"}, {"device_passes": "separate-updates,codegen"}):
        with pytest.raises(OptionError, match="made after all of these"):
            tilefuse.compile(softmax(), target="h200", **given)
