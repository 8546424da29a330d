"""The explanation of graph, order, memory and tiles, against the plan and the program it was made from."""
from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import pytest
import torch

import tilefuse
from tests.unit.pages.models import encoder, resnet
from tilefuse.runtime.calls.arena import Extent, live_peak_bytes
from tilefuse.runtime.calls.call_plan import plan_calls
from tilefuse.runtime.spec import KernelStep, LibraryStep

MODELS = (pytest.param(resnet, id="resnet50"), pytest.param(encoder, id="encoder"))


@pytest.mark.parametrize("model", MODELS)
def test_the_graph_is_that_of_the_plan(model: Callable[[], Any]) -> None:
    made = model()
    told = made.explain(json=True)["graph"]
    graph = made.plan.graph
    assert [(n["name"], n["kind"], n["type"], n["bytes"], tuple(n["reads"])) for n in told["nodes"]] == \
        [(n.name, n.kind, str(n.type), n.type.num_bytes, n.reads()) for n in graph.nodes]
    assert [(i["name"], i["constant"]) for i in told["inputs"]] == [(i.name, i.constant) for i in graph.inputs]
    assert told["results"] == list(graph.results)


@pytest.mark.parametrize("model", MODELS)
def test_the_steps_are_those_of_the_program_in_order(model: Callable[[], Any]) -> None:
    made = model()
    told = made.explain(json=True)
    assert len(told["steps"]) == len(made.spec.steps)
    for (name, number), step in zip(told["steps"], made.spec.steps, strict=True):
        match step:
            case KernelStep():
                assert name == "kernels" and told["kernels"][number]["name"] == made.spec.kernels[step.kernel].name
            case LibraryStep():
                assert name == "library" and told["library"][number]["operands"] == list(step.operands)


@pytest.mark.parametrize("model", MODELS)
def test_kernels_read_what_their_nodes_do_not_compute(model: Callable[[], Any]) -> None:
    made = model()
    for told, kernel in zip(made.explain(json=True)["kernels"], made.plan.kernels, strict=True):
        inside = set(kernel.pattern.nodes)
        assert set(told["reads"]) == {v for n in inside for v in made.plan.graph.node_by_name[n].reads()} - inside


@pytest.mark.parametrize("model", MODELS)
def test_live_ranges_add_up_to_the_programs_own_peak(model: Callable[[], Any]) -> None:
    """The program counts what kernels alone touch as one arena for the whole call, so it may hold that much longer."""
    made = model()
    alive = [m for m in made.explain(json=True)["memory"] if m["role"] in ("intermediate", "result")]
    peak = live_peak_bytes([Extent(m["value"], m["bytes"], m["first"], m["last"]) for m in alive])
    assert not [p for k in made.spec.kernels for p in k.parameters if p.role == "workspace"]
    memory = plan_calls(made.spec).memory
    assert memory.peak_bytes - memory.arena_bytes <= peak <= memory.peak_bytes


@pytest.mark.parametrize("model", MODELS)
def test_tiles_cover_their_domain_level_by_level(model: Callable[[], Any]) -> None:
    """As many tiles of each level as the level above has workers hold at least its tile; none is larger than it."""
    for kernel in model().explain(json=True)["kernels"]:
        tiles = kernel["tiles"]
        sizes = [prod(n for _, n in level["tile"]) for level in tiles]
        names = [level["level"] for level in tiles]
        assert names == [n for n in ("grid", "cluster", "block", "warp", "thread") if n in names]
        for inner, outer in zip(sizes[names.index("block") + 1:], sizes[names.index("block"):], strict=False):
            assert inner <= outer, kernel["name"]
        in_turns = "GRID_" in kernel["notation"]  # persistent blocks, each with several tiles one after another
        if kernel["template"] in ("pointwise", "rows") and "cluster" not in names and not in_turns:
            assert tiles[1]["num"] * sizes[1] >= sizes[0], kernel["name"]


def test_nodes_tell_the_users_operators_and_modules() -> None:
    nodes = encoder().explain(json=True)["graph"]["nodes"]
    assert {n["path"] for n in nodes} >= {"layers.0.linear1", "layers.1.self_attn", "layers.1.norm2"}
    assert any(n["operator"] == "aten.gelu" for n in nodes)
    operators = {n["operator"] for n in resnet().explain(json=True)["graph"]["nodes"]}
    assert {"Conv", "BatchNormalization", "Relu", "MaxPool", "Softmax"} <= operators


def test_modules_are_known_where_a_trace_was_found_again(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The text of a kept graph has no places; they are kept beside it. Without that, the second process lost every module."""
    from tilefuse.driver.torch_backend import compiled_parts, reset

    monkeypatch.setenv("TILEFUSE_CACHE_DIR", str(tmp_path))
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.LayerNorm(8)).eval()
    paths: list[list[str]] = []
    for _ in range(2):
        torch.compiler.reset()
        reset()
        with torch.no_grad():
            torch.compile(model, backend="tilefuse")(torch.zeros(4, 8))
        graph = compiled_parts()[0].imported.graph
        paths.append([n.span.path if n.span is not None else "" for n in graph.nodes])
    assert paths[0] == paths[1] and any(paths[0])


def test_scopes_of_onnx_names_are_modules() -> None:
    from tilefuse.frontends.onnx.importer import scope_path

    assert scope_path("/encoder/layers.0/MatMul") == "encoder.layers.0"
    assert scope_path("gpu_0_conv1") == "" and scope_path("") == ""


def test_stitched_kernels_tell_their_places_in_shared_memory() -> None:
    """Values that live at the same time do not overlap, and none lies outside what the kernel asks for."""
    from tests.unit.pages.models import attention

    kernels = [k for k in attention().explain(json=True)["kernels"] if k["shared"]]
    assert kernels
    for kernel in kernels:
        for n, a in enumerate(kernel["shared"]):
            assert a["offset"] >= 0 and a["offset"] + a["bytes"] <= kernel["launch"]["shared_bytes"]
            assert 0 <= a["first"] <= a["last"] < max(len(kernel["stages"]), 1)
            for b in kernel["shared"][n + 1:]:
                meet = a["first"] <= b["last"] and b["first"] <= a["last"]
                apart = a["offset"] + a["bytes"] <= b["offset"] or b["offset"] + b["bytes"] <= a["offset"]
                assert apart or not meet or a["value"] != b["value"], (kernel["name"], a, b)


def test_explaining_does_not_need_a_device() -> None:
    assert tilefuse.compile("examples/softmax.txt", target="h200").explain(json=True)["machine"]["name"] == "h200"
