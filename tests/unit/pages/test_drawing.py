"""Boxes and edges of real explanations, counted against the graph that was planned."""
from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.pages.models import encoder, resnet
from tilefuse.ir.graph import Graph
from tilefuse.pages.drawing import drawing_of
from tilefuse.plan.pattern import Plan

MODELS = (pytest.param(resnet, id="resnet50"), pytest.param(encoder, id="encoder"))


def reads_of_the_plan(plan: Plan) -> Counter[tuple[str, str]]:
    """(reader, value) of every read: nodes of kernels, in each kernel that computes them, and results of library calls."""
    graph: Graph = plan.graph
    found: Counter[tuple[str, str]] = Counter()
    for kernel in plan.kernels:
        for name in kernel.pattern.nodes:
            found.update((f"{kernel.name}/{name}", value) for value in graph.node_by_name[name].reads())
    for number, call in enumerate(plan.library_calls):
        found.update((f"call {number}", value) for value in dict.fromkeys(call.operands))
    found.update(("result", value) for value in graph.results)
    return found


@pytest.mark.parametrize("model", MODELS)
def test_every_read_of_the_plan_is_one_edge(model: Callable[[], Any]) -> None:
    made = model()
    explanation = made.explain(json=True)
    drawing = drawing_of(explanation)

    def reader(box: str) -> str:
        step, _, node = box.partition("/")
        match step[0]:
            case "k":
                return f"{explanation['kernels'][int(step[1:])]['step']}/{node}"
            case "l":
                return f"call {step[1:]}"
        return "result"

    drawn = Counter((reader(e["target"]), e["value"]) for e in drawing["edges"])
    assert drawn == reads_of_the_plan(made.plan)


@pytest.mark.parametrize("model", MODELS)
def test_edges_have_the_level_of_the_plan_and_begin_where_the_value_is_written(model: Callable[[], Any]) -> None:
    made = model()
    explanation = made.explain(json=True)
    drawing = drawing_of(explanation)
    boxes = {b["id"]: b for b in drawing["boxes"]}
    levels = {(k.name, e.producer, e.user): e.level.value for k in made.plan.kernels for e in k.levels}
    bases = {v.value: v.base for v in made.plan.views}
    types = {name: (str(t), t.num_bytes) for name, t in made.plan.graph.type_by_name.items()}
    inside = 0
    for edge in drawing["edges"]:
        source, target = edge["source"].partition("/"), edge["target"].partition("/")
        assert edge["source"] in boxes and edge["target"] in boxes
        assert (edge["type"], edge["bytes"]) == types[edge["value"]]
        if source[0] == target[0] and source[0][0] == "k":
            inside += 1
            assert edge["level"] == levels[explanation["kernels"][int(source[0][1:])]["step"], edge["value"], target[2]]
            continue
        assert edge["level"] == "global"
        owner = edge["value"]
        while owner in bases:
            owner = bases[owner]
        match source[0][0]:
            case "k":
                written = [source[2]]
            case "l":
                written = [v for _, v in explanation["library"][int(source[0][1:])]["results"]]
            case _:
                written = [boxes[edge["source"]]["value"]]
        assert owner in written, edge
    assert inside == sum(len(k.levels) for k in made.plan.kernels)


@pytest.mark.parametrize("model", MODELS)
def test_every_step_and_node_has_one_box_in_an_existing_parent(model: Callable[[], Any]) -> None:
    explanation = model().explain(json=True)
    boxes = drawing_of(explanation)["boxes"]
    names = [b["id"] for b in boxes]
    assert len(set(names)) == len(names)
    assert all(b["parent"] in {"", *names} for b in boxes)
    kinds = Counter(b["kind"] for b in boxes)
    assert kinds["kernel"] == len(explanation["kernels"]) and kinds["library"] == len(explanation["library"])
    assert kinds["node"] == sum(len(k["nodes"]) for k in explanation["kernels"])
    assert [name for name, _ in explanation["steps"]].count("kernels") == len(explanation["kernels"])


def test_layers_of_the_encoder_are_its_modules_and_equal_ones_say_so() -> None:
    """The last layer ends in another layout than those before it, and the first one may begin in another."""
    groups = {b["label"]: b for b in drawing_of(encoder(4).explain(json=True))["boxes"] if b["kind"] == "group"}
    assert groups["layers.2"]["same_as"] in ("layers.0", "layers.1") and groups["layers.0"]["same_as"] == ""
    assert groups["layers.0.self_attn"]["parent"] == groups["layers.0"]["id"]


def test_layers_of_resnet_are_found_without_modules() -> None:
    groups = [b for b in drawing_of(resnet().explain(json=True))["boxes"] if b["kind"] == "group"]
    assert len(groups) >= 8 and any(g["same_as"] for g in groups)


def test_weights_that_one_step_reads_are_folded_into_it_and_the_image_is_not() -> None:
    boxes = drawing_of(resnet().explain(json=True))["boxes"]
    assert all(b["folded"] for b in boxes if b["kind"] == "weight")
    assert [b["folded"] for b in boxes if b["kind"] == "input"] == [False]
