"""Programs of compiled objects: what belongs to which object, and what runs in torch instead."""
from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn

import tilefuse
from tilefuse.base.errors import NameLookupError, TypeMismatchError, UserError
from tilefuse.driver import torch_backend


class Block(nn.Module):
    """Two layers with a break between them."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(2)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.layers[0](x).relu()
        torch._dynamo.graph_break()  # the break
        return torch.softmax(self.layers[1](h), -1)


class Whole(nn.Module):
    """One graph."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.linear(x)) * 2


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch_backend.reset()
    yield
    torch_backend.reset()


def line_of(text: str) -> int:
    """The number of the line of this file that ends with a comment."""
    with open(__file__, encoding="utf-8") as file:
        return next(n for n, line in enumerate(file, 1) if line.rstrip().endswith(f"# {text}"))


def names(compiled: Any) -> list[str]:
    return [p.name for p in tilefuse.programs(compiled)]


def test_a_model_has_its_parts_with_the_place_of_the_break() -> None:
    model = torch.compile(Block(), backend="tilefuse")
    model(torch.randn(4, 8)).sum().backward()
    parts = tilefuse.programs(model)
    assert [(p.name, p.direction, p.state) for p in parts] == [
        ("graph0_forward", "forward", "compiled"), ("graph0_backward", "backward", "compiled"),
        ("graph1_forward", "forward", "compiled"), ("graph1_backward", "backward", "compiled")]
    assert parts[0].function == "Block.forward" and parts[2].function == f"forward, after the break at line {line_of('the break')}"
    told = tilefuse.explain(model, json=True)
    found, = [i for i in told["in_torch"] if i["kind"] == "graph break"]
    assert found["place"] == f"{__file__}:{line_of('the break')}" and "graph_break" in found["what"]
    text = tilefuse.explain(model)
    assert f"test_subject.py:{line_of('the break')}" in text and "1 graph break" in text and "graph1_backward" in text


def test_two_models_in_one_process_are_not_mixed_up() -> None:
    first, second = (torch.compile(made, backend="tilefuse") for made in (Whole(8), Whole(16)))
    third = torch.compile(Block(), backend="tilefuse")
    first(torch.randn(4, 8).requires_grad_()), second(torch.randn(4, 16).requires_grad_()), third(torch.randn(4, 8))
    assert [len(names(m)) for m in (first, second, third)] == [1, 1, 2]
    assert len({*names(first), *names(second), *names(third)}) == 4


def test_models_of_one_class_share_what_the_guards_let_them_share() -> None:
    """Torch runs what it compiled for the first object at calls of the second one, and compiles for the third."""
    first, second, third = (torch.compile(Whole(width), backend="tilefuse") for width in (8, 8, 16))
    x = torch.randn(4, 8)
    first(x), second(x), third(torch.randn(4, 16))
    assert [(p.name, p.state) for p in tilefuse.programs(second)] == [("graph0_forward", "shared")]
    assert tilefuse.programs(second)[0].calls == 2
    assert "compiled for another object" in tilefuse.explain(second)
    assert names(third) == ["graph1_forward"]


def test_functions_methods_and_models_compiled_in_place() -> None:
    class Owner:
        @torch.compile(backend="tilefuse")
        def method(self, x: torch.Tensor) -> torch.Tensor:
            return x.exp() + 1

    @torch.compile(backend="tilefuse")
    def function(x: torch.Tensor) -> torch.Tensor:
        return x * 2 + 1

    model = Whole()
    model.compile(backend="tilefuse")
    outer = nn.Sequential(nn.ReLU(), model)
    single = torch.compile(nn.GELU(), backend="tilefuse")
    x = torch.randn(4, 8)
    owner = Owner()
    owner.method(x), function(x), outer(x), single(x)
    assert [names(c) for c in (owner.method, function, model, outer, single)] == [
        ["graph0_inference"], ["graph1_inference"], ["graph2_forward"], ["graph2_forward"], ["graph3_inference"]]
    assert tilefuse.programs(function)[0].place.startswith(__file__)


def test_recompiles_tell_their_reason() -> None:
    @torch.compile(backend="tilefuse", dynamic=False, options={"sizes_at_once": 9})
    def function(x: torch.Tensor, twice: bool) -> torch.Tensor:
        return x * 2 + 1 if twice else x - 1

    x = torch.randn(4, 8)
    function(x, True), function(x, False), function(torch.randn(5, 8), True)
    told = tilefuse.explain(function, json=True)
    assert len(told["programs"]) == 3 and len(told["recompiled"]) == 2
    assert "twice" in told["recompiled"][0]["reason"] and "size mismatch" in told["recompiled"][1]["reason"]


def test_operators_that_run_in_torch_have_their_line() -> None:
    @torch.compile(backend="tilefuse")
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.matrix_exp(x + 1) * 2  # the operator

    function(torch.randn(4, 4))
    found = [i for i in tilefuse.explain(function, json=True)["in_torch"] if i["kind"] == "operator"]
    assert found and any(i["place"] == f"{__file__}:{line_of('the operator')}" for i in found)


def test_a_size_that_runs_in_torch_says_why() -> None:
    @torch.compile(backend="tilefuse", options={"in_background": False})
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x * 2, -1)

    for size in (4, 5, 6):
        function(torch.randn(size, 8))
    found = [i for i in tilefuse.explain(function, json=True)["in_torch"] if i["kind"] == "size"]
    assert found and "compiled at call 2" in found[0]["reason"]


def test_clear_errors_before_the_first_call_and_after_a_reset() -> None:
    model = torch.compile(Whole(), backend="tilefuse")
    with pytest.raises(UserError, match=r"Whole has no program; none of its calls was compiled(.|\n)*call it, then ask"):
        tilefuse.programs(model)
    model(torch.randn(4, 8))
    assert names(model)
    torch.compiler.reset()
    with pytest.raises(UserError, match=r"was forgotten by torch \(torch\.compiler\.reset"):
        tilefuse.explain(model)


@pytest.mark.parametrize("thing", [3, nn.Linear(2, 2), math.sin, torch.compile(nn.Linear(2, 2), backend="eager")], ids=str)
def test_objects_that_tilefuse_did_not_compile(thing: Any) -> None:
    for ask in (tilefuse.programs, tilefuse.explain, tilefuse.source, tilefuse.view):
        with pytest.raises(TypeMismatchError, match="tilefuse did not compile this"):
            ask(thing)


def test_programs_arrays_scripts_and_models_in_parts(tmp_path: Any) -> None:
    import tilefuse.array as ta
    from tilefuse import blas

    model = tilefuse.compile(Whole(), (torch.randn(4, 8),))
    model.save(tmp_path / "model.tilefuse")
    saved = tilefuse.load(tmp_path / "model.tilefuse")
    norm = ta.compile(lambda x: ta.sum(x * x, axis=1))
    norm(np.ones((3, 4), np.float32)), norm(np.ones((5, 4), np.float32))
    script = blas.compile("vector x, y; scalar t; input t, x, y; z = saxpy(t, x, y); return z;")
    script(2.0, np.ones(8, np.float32), np.ones(8, np.float32))
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [4, 4]) for n in "xy")
    nodes = [helper.make_node("Exp", ["x"], ["e"], name="first/exp"), helper.make_node("Add", ["e", "x"], ["y"], name="last/add")]
    graph = tilefuse.compile(helper.make_model(helper.make_graph(nodes, "small", [x], [y]), opset_imports=[helper.make_opsetid("", 17)],
                                               ir_version=8))
    nodes = [helper.make_node("Exp", ["x"], ["e"], name="first/exp"), helper.make_node("NonZero", ["e"], ["n"], name="middle/found"),
             helper.make_node("Cast", ["n"], ["y"], to=TensorProto.FLOAT, name="last/cast")]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    onnx_parts = tilefuse.compile(helper.make_model(helper.make_graph(nodes, "parts", [x], [y]),
                                                    opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    onnx_parts(np.ones((4, 4), np.float32))
    data = tilefuse.explain(onnx_parts, json=True)
    assert [i["what"] for i in data["in_torch"]] == ["NonZero"]
    assert [n["place"] for p in data["parts"] for n in p["graph"]["nodes"]] == ["first/exp", "last/cast"]
    lazy = ta.exp(ta.asarray(np.ones((4, 8), np.float32))) + 1
    for made, count in ((model, 1), (saved, 1), (norm, 2), (graph, 1), (script, 1), (onnx_parts, 2), (lazy, 1)):
        parts = tilefuse.programs(made)
        assert len(parts) == count and all(p.kernels and p.source() in tilefuse.source(made) for p in parts)
        assert tilefuse.explain(made).count("==") >= count
    assert [p.sizes for p in tilefuse.programs(norm)] == ["x 3x4", "x 5x4"]


def test_a_training_step_is_told_as_what_it_trains(tmp_path: Any) -> None:
    import tilefuse.array as ta
    import tilefuse.nn as layers
    from tilefuse import optim

    model = layers.Sequential(layers.Linear(8, 16), layers.ReLU(), layers.Linear(16, 4))
    step = layers.TrainingStep(model, layers.cross_entropy, optim.SGD(1e-2))
    with pytest.raises(UserError, match="Sequential has no program"):
        tilefuse.explain(step)
    batch = ta.asarray(np.ones((4, 8), np.float32)), ta.asarray(np.arange(4))
    step(*batch)
    (part,) = tilefuse.programs(step)
    assert part.program is step.compiled.programs[0] and part.source() == tilefuse.source(step)
    text = tilefuse.explain(step)
    assert text.startswith("Sequential (training step) on host: 1 program, ") and "at full bandwidth" in text
    assert "at test_subject.py:" in text.partition("costliest places")[2]
    before = [p.numpy().copy() for p in model.parameters().values()]
    measured = tilefuse.profile(step, *batch, repeats=2)
    assert measured.data["parts"][0]["runs"] == 1 and measured.data["kind"] == "training step"
    assert not all(map(np.array_equal, before, (p.numpy() for p in model.parameters().values()))), "the step did not train"
    assert tilefuse.view(step, tmp_path / "step.html", arguments=batch).stat().st_size


def test_sources_by_name() -> None:
    model = torch.compile(Whole(), backend="tilefuse")
    model(torch.randn(4, 8))
    part, = tilefuse.programs(model)
    kernel = part.kernels[0].name
    assert tilefuse.source(model, kernel) == tilefuse.source(model, f"{part.name}/{kernel}") == part.source(kernel)
    with pytest.raises(NameLookupError, match="did you mean"):
        tilefuse.source(model, kernel + "x")


def test_one_page_has_all_parts(tmp_path: Any) -> None:
    pytest.importorskip("netron")
    model = torch.compile(Block(), backend="tilefuse")
    x = torch.randn(4, 8)
    model(x)
    page = tilefuse.view(model, tmp_path / "plan.html", arguments=(x,)).read_text(encoding="utf-8")
    assert f"graph break at {__file__}:{line_of('the break')}" in page
    assert "graph0_forward (Block.forward)" in page and "graph1_forward" in page and '"times":[{' in page


def test_programs_found_again_have_the_names_and_lines_of_the_model_at_hand(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """Equal graphs share plans, sources and machine code on disk; where they stand in the user's program is not shared."""
    from tilefuse.driver.reuse import known_programs

    monkeypatch.setattr(known_programs, "enabled", True)
    monkeypatch.setenv("TILEFUSE_CACHE_DIR", str(tmp_path))

    class First(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.LayerNorm(8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.body(x).exp()  # the first

    class Second(First):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.body(x).exp()  # the second

    for kind, name in ((First, "the first"), (Second, "the second")):
        torch_backend.reset()
        model = torch.compile(kind(), backend="tilefuse", options={"strict": True})
        with torch.no_grad():
            model(torch.randn(4, 8))
        part, = tilefuse.programs(model)
        data = part.data()
        assert {n["place"] for n in data["graph"]["nodes"]} == {f"{__file__}:{line_of(name)}"}
        assert {n["path"] for n in data["graph"]["nodes"]} == {"body.0", ""}
        assert ["body.0.weight", "body_0_weight"] in data["inputs"] and data["results"][0][0] == "result"
        part.program.save(tmp_path / "saved")
        assert tilefuse.programs(tilefuse.load(tmp_path / "saved"))[0].data()["graph"] == data["graph"]
    program = tilefuse.compile(First().eval(), (torch.randn(4, 8),))
    assert {n["place"] for n in tilefuse.programs(program)[0].data()["graph"]["nodes"]} == {f"{__file__}:{line_of('the first')}"}


def test_a_training_step_names_gradients_and_saved_values() -> None:
    model = torch.compile(Whole(), backend="tilefuse")
    model(torch.randn(4, 8)).sum().backward()
    forward, backward = (p.data() for p in tilefuse.programs(model))
    assert [told for told, _ in forward["inputs"]] == ["linear.weight", "linear.bias", "x"]
    assert {told for told, _ in backward["inputs"]} > {"gradient of result 0", "x"}
    assert {"gradient of linear.weight", "gradient of linear.bias"} == {told for told, _ in backward["results"]}
    assert {n["path"] for n in backward["graph"]["nodes"]} <= {"linear", ""} and all(n["place"] for n in backward["graph"]["nodes"])


def test_a_torch_whose_records_have_changed_is_no_reason_for_a_compile_to_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    from tilefuse.driver.torch import records as torch_records

    def changed() -> None:
        raise AttributeError("no such attribute")

    monkeypatch.setattr(torch_records, "_surroundings", changed)
    model = torch.compile(Whole(), backend="tilefuse", options={"strict": True})
    x = torch.randn(4, 8)
    torch.testing.assert_close(model(x), model._orig_mod(x))
    with pytest.raises(UserError, match="has no program"):
        tilefuse.programs(model)
