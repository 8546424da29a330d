"""Models with data-dependent operators run in parts and agree with onnxruntime, whatever sizes their data decides."""
from __future__ import annotations

import io
import json
import random
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnx import helper

import tilefuse
from tests.end_to_end.onnx import detectors
from tilefuse.base.errors import ShapeError, UnsupportedError, UserError
from tilefuse.driver.onnx import split as onnx_split
from tilefuse.frontends.onnx.parts import key_of, part_model, split
from tilefuse.frontends.onnx.reference import reference
from tilefuse.tools import cli


def images(count: int, seed: int = 0) -> list[dict[str, np.ndarray]]:
    """Images of growing contrast, so that other numbers of boxes pass; the first comes twice."""
    draw = np.random.default_rng(seed)
    found = [{"image": (draw.standard_normal((1, 3, 32, 32)) * (1 + n)).astype(np.float32)} for n in range(count)]
    return [found[0], *found]


def rows(*counts: int) -> list[dict[str, np.ndarray]]:
    """Inputs of [4, 8] with so many elements above zero."""
    found = []
    for count in counts:
        x = -np.linspace(0.1, 1, 32, dtype=np.float32)
        x[:count] *= -3
        found.append({"x": x.reshape(4, 8)})
    return found


CASES: dict[str, tuple[Callable[[], onnx.ModelProto], list[dict[str, np.ndarray]], set[str]]] = {
    "ssd": (detectors.ssd, images(3), {"NonMaxSuppression"}),
    "retina": (detectors.retina, images(3), {"NonZero"}),
    "rcnn": (detectors.rcnn, images(3), {"NonMaxSuppression"}),
    "yolo": (detectors.yolo, images(3), {"NonMaxSuppression"}),
    "unique": (detectors.unique_words, [{"ids": np.array(i, np.int64)} for i in ([3] * 12, range(12), [1, 2] * 6, [1, 2] * 6)], {"Unique"}),
    "loop": (detectors.counted_loop, rows(3, 3, 5, 0), set()),
    "branches": (detectors.branches, rows(30, 1, 30), set()),
    "shapes": (detectors.computed_shape, [r | {"shape": np.array(s)} for r, s in zip(rows(3, 3, 9), ([2, 16], [2, 16], [-1, 4]))], set()),
}


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_model_in_parts_agrees_with_onnxruntime(name: str) -> None:
    write, feeds, outside = CASES[name]
    model = write()
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    program = tilefuse.compile(model, device="host")
    for feed in feeds:
        wanted = session.run(None, feed)
        found = program(*(feed[i.name] for i in model.graph.input))
        for a, b, out in zip(wanted, found, model.graph.output, strict=True):
            assert a.shape == b.shape and a.dtype == b.dtype, (out.name, a.shape, b.shape)
            # Chains of at most a few hundred roundings on values of size 10.
            np.testing.assert_allclose(b, a, rtol=2e-5, atol=2e-5, err_msg=out.name)
    told = program.explain(json=True)
    assert {f["operator"] for f in told["fallbacks"]} == outside
    assert told["kernels"], "what can be compiled is"
    for operator in outside:
        assert f"fallback {operator}: runs by the reference implementation" in program.explain()


# Least scores of boxes that pass, above those of an image of zeros.
SCORE_THRESHOLDS: dict[str, dict[str, float]] = {"ssd": {"c15": 0.34}, "retina": {}, "rcnn": {}, "yolo": {"c20": 0.26}}


@pytest.mark.parametrize("name", SCORE_THRESHOLDS)
@pytest.mark.parametrize("first", [0, 1])
def test_an_image_without_boxes(name: str, first: int) -> None:
    """No score passes, in the first call or in a later one: parts without elements are compiled too, or run by the reference."""
    model = CASES[name][0]()
    for tensor in model.graph.initializer:
        if tensor.name in SCORE_THRESHOLDS[name]:
            threshold = np.full(tensor.dims, SCORE_THRESHOLDS[name][tensor.name], np.float32)
            tensor.CopyFrom(onnx.numpy_helper.from_array(threshold, tensor.name))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    program = tilefuse.compile(model, device="host")
    image = CASES[name][1][0]["image"]
    counts = []
    for feed in [np.zeros_like(image), image, np.zeros_like(image)][first:]:
        wanted = session.run(None, {"image": feed})
        counts.append(len(wanted[0]))
        for a, b in zip(wanted, program(feed), strict=True):
            assert a.shape == b.shape and a.dtype == b.dtype
            np.testing.assert_allclose(b, a, rtol=2e-5, atol=2e-5)
    assert 0 in counts and any(counts), counts


def test_constant_nodes_belong_to_every_part_that_reads_them() -> None:
    """As a TorchScript export writes them: constants decide no program, and no import is tried again for one."""
    model = CASES["retina"][0]()
    nodes = [helper.make_node("Constant", [], [t.name], value=t) for t in model.graph.initializer]
    del model.graph.initializer[:]
    for node in reversed(nodes):
        model.graph.node.insert(0, node)
    program = tilefuse.compile(model, device="host")
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for feed in CASES["retina"][1]:
        for a, b in zip(session.run(None, feed), program(*feed.values()), strict=True):
            np.testing.assert_allclose(b, a, rtol=2e-5, atol=2e-5)
    assert not any("a program for every value" in note for note in program.notes())
    assert model.graph.node[0].op_type == "Constant", "the given model is left as it is"


def compiled(name: str) -> tuple[onnx.ModelProto, Any]:
    model = CASES[name][0]()
    return model, tilefuse.compile(model, device="host")


def test_a_size_that_comes_once_is_not_compiled_and_few_programs_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first size at once, another one when it returns, and no more programs than a bound."""
    _, program = compiled("loop")
    def count() -> int:
        return len(program.kernels)

    program(*rows(3)[0].values())
    first = count()
    program(*rows(5)[0].values())
    assert count() == first, "five steps came once"
    program(*rows(5)[0].values())
    assert count() > first
    monkeypatch.setattr(onnx_split, "MOST_PROGRAMS", 3)
    for steps in (5, 6, 7, 6, 7, 3):
        program(*rows(steps)[0].values())
    assert max(len(state.programs) for state in program._known.values()) == 3


@pytest.mark.parametrize("name", sorted(CASES))
def test_any_split_computes_the_same(name: str) -> None:
    """Law: whatever nodes are moved, every part has what it reads, and results stay. All parts run by the reference implementation."""
    write, feeds, _ = CASES[name]
    model, draw = write(), random.Random(name)
    wanted = reference(model).run(None, feeds[0])
    keys = [key_of(node) for node in model.graph.node]
    for _ in range(12):
        hosted, waiting = ({k for k in keys if draw.random() < 0.3} for _ in range(2))
        values = dict(feeds[0])
        parts = split(model, hosted, waiting)
        assert sorted(k for part in parts for k in part.keys) == sorted(keys)
        for part in parts:
            assert part.ours is hosted.isdisjoint(part.keys)
            found = reference(part_model(model, part, {})).run(None, {n: values[n] for n in part.takes})
            values.update(zip(part.gives, found, strict=True))
            for n in part.released:
                del values[n]
        for out, value in zip(model.graph.output, wanted, strict=True):
            np.testing.assert_array_equal(values[out.name], value)


def test_threads_call_one_model_with_other_sizes() -> None:
    """While one of them finds out that a node must be moved."""
    model, program = compiled("loop")
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    feeds = rows(1, 2, 3, 4) * 3
    with ThreadPoolExecutor(4) as pool:
        for feed, found in zip(feeds, pool.map(lambda feed: program(*feed.values()), feeds), strict=True):
            for a, b in zip(session.run(None, feed), found, strict=True):
                np.testing.assert_allclose(b, a, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", ["loop", "retina"])
def test_a_saved_model_runs_without_compiling(name: str, tmp_path: Path) -> None:
    """Sizes that were compiled by their programs, others by the reference implementation; a signature covers all of it."""
    model, program = compiled(name)
    feeds = CASES[name][1]
    program(*feeds[0].values())
    key, path = tmp_path / "key", tmp_path / "p.tilefuse"
    key.write_bytes(b"k" * 64)
    program.save(path, sign=key)
    loaded = tilefuse.load(path, require_signature=key)
    assert loaded.kernels == program.kernels
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for feed in feeds:
        for a, b in zip(session.run(None, feed), loaded(*feed.values()), strict=True):
            np.testing.assert_allclose(b, a, rtol=2e-5, atol=2e-5)
    assert loaded.kernels == program.kernels
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(UserError):
        tilefuse.load(path, require_signature=key)


def test_arguments_are_checked_as_those_of_a_program() -> None:
    _, program = compiled("ssd")
    image = CASES["ssd"][1][0]["image"]
    tensors = program(image=torch.from_numpy(image))
    assert all(isinstance(t, torch.Tensor) for t in tensors) and all(isinstance(a, np.ndarray) for a in program(image))
    with pytest.raises(ShapeError, match=r"argument image has shape \(1, 3, 16, 32\), expected \(1, 3, 32, 32\)"):
        program(image[:, :, :16])
    with pytest.raises(UserError, match="has no input 'imgae'[\\s\\S]*did you mean image"):
        program(imgae=image)
    with pytest.raises(UserError, match="dtype torch.float64, expected f32"):
        program(image.astype(np.float64))
    with pytest.raises(UserError, match="needs image as well"):
        program()


def test_what_it_has_not_is_told(tmp_path: Path) -> None:
    _, program = compiled("ssd")
    with pytest.raises(UnsupportedError, match="runs in parts, since NonMaxSuppression .* not one plan"):
        _ = program.plan
    with pytest.raises(UnsupportedError, match="no machine code to save"):
        tilefuse.compile(CASES["ssd"][0](), target="h200").save(tmp_path / "p")
    with pytest.raises(UnsupportedError, match="cannot be called"):
        tilefuse.compile(CASES["ssd"][0](), target="h200")(CASES["ssd"][1][0]["image"])


def test_an_operator_that_nobody_runs_refuses_the_model() -> None:
    """The reason is the import's: ours, not the reference implementation's."""
    made = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [4]) for n in "xy"]
    nodes = [helper.make_node("Exp", ["x"], ["e"]),
             helper.make_node("Gradient", ["x"], ["y"], domain="ai.onnx.preview.training", xs=["x"], y="e")]
    model = helper.make_model(helper.make_graph(nodes, "g", made[:1], made[1:]),
                              opset_imports=[helper.make_opsetid("", 20), helper.make_opsetid("ai.onnx.preview.training", 1)])
    with pytest.raises(UnsupportedError, match="Gradient .*it differentiates the graph around it"):
        tilefuse.compile(model, device="host")


def test_data_that_the_reference_refuses_is_told_with_the_operator() -> None:
    node = helper.make_node("ImageDecoder", ["x"], ["y"])
    model = helper.make_model(helper.make_graph([node], "g", [helper.make_tensor_value_info("x", onnx.TensorProto.UINT8, [40])],
                                                [helper.make_empty_tensor_value_info("y")]), opset_imports=[helper.make_opsetid("", 20)])
    with pytest.raises(UnsupportedError, match="cannot run ImageDecoder here"):
        tilefuse.compile(model, device="host")(np.zeros(40, np.uint8))


@pytest.mark.parametrize("by_centre", [0, 1])
@pytest.mark.parametrize("seed", range(12))
def test_suppression_is_that_of_onnxruntime(seed: int, by_centre: int) -> None:
    """Boxes with corners in any order, equal scores, boxes without area, thresholds left out."""
    draw = np.random.default_rng(seed)
    batches, classes, count = draw.integers(1, 3), draw.integers(1, 4), draw.integers(1, 30)
    boxes = draw.integers(0, 8, (batches, count, 4)).astype(np.float32)
    scores = (draw.integers(0, 6, (batches, classes, count)) / 6).astype(np.float32)
    given = {"boxes": boxes, "scores": scores, "most": np.array([draw.integers(0, 8)]), "overlap": np.array([0.4], np.float32),
             "least": np.array([0.2], np.float32)}
    names = list(given)[: 5 if seed % 3 else 4]
    values = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(given[n].dtype), given[n].shape) for n in names]
    node = helper.make_node("NonMaxSuppression", names, ["chosen"], center_point_box=by_centre)
    model = helper.make_model(helper.make_graph([node], "g", values, [helper.make_empty_tensor_value_info("chosen")]),
                              opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    feeds = {n: given[n] for n in names}
    wanted = onnxruntime.InferenceSession(onnx.shape_inference.infer_shapes(model).SerializeToString()).run(None, feeds)[0]
    np.testing.assert_array_equal(reference(model).run(None, feeds)[0], wanted)


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_what_a_loop_shows_is_stacked(steps: int) -> None:
    """Scalars, vectors and matrices of each step, with and without a condition."""
    value = helper.make_tensor_value_info
    kinds = {"scalar": [], "vector": [3], "matrix": [2, 3]}
    shapes = {n: value(n, onnx.TensorProto.FLOAT, s) for n, s in kinds.items()}
    nodes = [helper.make_node("Cast", ["step"], ["s"], to=onnx.TensorProto.FLOAT), helper.make_node("Identity", ["go"], ["again"])]
    nodes += [helper.make_node("Add", [f"x_{n}", "s"], [n]) for n in kinds]
    body = helper.make_graph(nodes, "body", [value("step", onnx.TensorProto.INT64, []), value("go", onnx.TensorProto.BOOL, [])],
                             [value("again", onnx.TensorProto.BOOL, []), *shapes.values()])
    loop = helper.make_node("Loop", ["count", ""], [f"all_{n}" for n in kinds], body=body)
    inputs = [value("count", onnx.TensorProto.INT64, []), *(value(f"x_{n}", onnx.TensorProto.FLOAT, s) for n, s in kinds.items())]
    results = [value(f"all_{n}", onnx.TensorProto.FLOAT, [None, *s]) for n, s in kinds.items()]
    model = helper.make_model(helper.make_graph([loop], "g", inputs, results), opset_imports=[helper.make_opsetid("", 18)])
    feeds = {"count": np.array(steps)} | {f"x_{n}": np.ones(s, np.float32) for n, s in kinds.items()}
    for found, shape in zip(reference(model).run(None, feeds), kinds.values(), strict=True):
        wanted = [np.ones(shape, np.float32) + n for n in range(steps)]
        np.testing.assert_array_equal(found, np.stack(wanted) if wanted else np.zeros((0, *shape), np.float32))


class Detector(torch.nn.Module):
    """Scores above a threshold by a mask, the best of them, and what a second head makes of their features."""

    def __init__(self) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, stride=2, padding=1), torch.nn.BatchNorm2d(8), torch.nn.SiLU())
        self.score, self.head = torch.nn.Conv2d(8, 1, 1), torch.nn.Linear(8, 5)

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, ...]:
        grid = self.body(image)
        scores = self.score(grid).sigmoid().flatten()
        rows = grid.permute(0, 2, 3, 1).reshape(-1, 8)
        mask = scores > scores.mean()
        kept, taken = scores[mask], rows[mask]
        best, order = kept.sort(descending=True)
        return best, self.head(taken[order]).softmax(-1), torch.nonzero(mask)


def test_a_detector_that_torch_exports_runs() -> None:
    model, file = Detector().eval(), io.BytesIO()
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model, (torch.zeros(1, 3, 16, 16),), file, dynamo=False, input_names=["image"], opset_version=17)
    program = tilefuse.compile(file.getvalue(), device="host")
    for seed in (1, 2, 1):
        image = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(seed))
        with torch.no_grad():
            wanted = model(image)
        for found, value in zip(program(image), wanted, strict=True):
            torch.testing.assert_close(found, value, rtol=1e-4, atol=1e-5)


def test_commands_take_a_model_in_parts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "ssd.onnx")
    onnx.save(detectors.ssd(), path)

    def output(arguments: list[str], status: int = 0) -> str:
        found = cli.main(arguments)
        told = capsys.readouterr()
        assert found == status, told.err
        return told.out + told.err

    facts = json.loads(output(["run", path, "--device", "host", "--json"]))
    assert len(facts["results"]) == 4
    assert "by the reference implementation" in output(["explain", path, "--target", "h200"])
    output(["compile", path, "--device", "host", "--save", str(tmp_path / "p")])
    assert len(tilefuse.load(tmp_path / "p")(CASES["ssd"][1][0]["image"])) == 4
    assert "plans of its own" in output(["explain", path, "--device", "host", "--plan-text"], 3)
    assert "one plan" in output(["tune", path, "--device", "host"], 3)
