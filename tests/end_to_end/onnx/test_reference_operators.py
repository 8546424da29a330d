"""Operators that take the place of those of ONNX's reference implementation agree with onnxruntime, and are not slow."""
from __future__ import annotations

import time
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

import tilefuse
from tilefuse.frontends.onnx.reference import reference

DRAW = np.random.default_rng(0)


def f32(*shape: int) -> np.ndarray:
    return DRAW.standard_normal(shape).astype(np.float32)


def regions(count: int, size: float) -> np.ndarray:
    """Some outside the image, one without area, one far larger than the image."""
    found = DRAW.uniform(-0.3 * size, 1.3 * size, (count, 4)).astype(np.float32)
    found = np.concatenate([np.minimum(found[:, :2], found[:, 2:]), np.maximum(found[:, :2], found[:, 2:])], 1)
    found[1] = found[1, [0, 1, 0, 1]]
    found[2] = [0, 0, 40 * size, 40 * size]
    return found


def one_node(op: str, feeds: dict[str, np.ndarray], opset: int = 18, **attributes: Any) -> onnx.ModelProto:
    """A model of one operator on these inputs."""
    inputs = [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in feeds.items()]
    node = helper.make_node(op, list(feeds), ["y"], **attributes)
    graph = helper.make_graph([node], "g", inputs, [helper.make_empty_tensor_value_info("y")])
    return onnx.shape_inference.infer_shapes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9))


def onnxruntime_result(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> np.ndarray:
    return np.asarray(onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, feeds)[0])


def check(op: str, arrays: tuple[np.ndarray, ...], opset: int = 18, **attributes: Any) -> None:
    feeds = {f"x{n}": a for n, a in enumerate(arrays)}
    model = one_node(op, feeds, opset, **attributes)
    found, wanted = reference(model).run(None, feeds)[0], onnxruntime_result(model, feeds)
    assert found.dtype == wanted.dtype and found.shape == wanted.shape
    # Sums of at most a few hundred products of numbers of size 1.
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=2e-5)


ROI_CASES = [
    (18, {"sampling_ratio": 2, "coordinate_transformation_mode": "half_pixel"}),
    (18, {"sampling_ratio": 3, "coordinate_transformation_mode": "output_half_pixel"}),
    (18, {"sampling_ratio": 2, "mode": "max"}),
    (15, {"sampling_ratio": 1}),
    (18, {"sampling_ratio": 0}),
]


@pytest.mark.parametrize("opset,attributes", ROI_CASES)
def test_features_of_regions(opset: int, attributes: dict[str, Any]) -> None:
    """By the reference implementation, and compiled where the number of samples is no question of data."""
    feeds = {"x": f32(2, 3, 9, 11), "rois": regions(7, 20.0), "image": np.array([0, 1, 1, 0, 1, 0, 0])}
    model = one_node("RoiAlign", feeds, opset, output_height=3, output_width=2, spatial_scale=0.5, **attributes)
    wanted = onnxruntime_result(model, feeds)
    ours = tilefuse.compile(model, device="host")
    for found in (reference(model).run(None, feeds)[0], ours(*feeds.values())[0]):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=2e-5)
    assert {f["operator"] for f in ours.explain(json=True)["fallbacks"]} == ({"RoiAlign"} if attributes["sampling_ratio"] == 0 else set())


def test_subscripts_from_data() -> None:
    places = DRAW.integers(-5, 5, (4, 3))
    check("GatherND", (f32(5, 6, 7), DRAW.integers(-5, 5, (2, 3, 2))))
    check("GatherND", (f32(4, 6, 7), DRAW.integers(-6, 6, (4, 3, 1))), batch_dims=1)
    check("GatherElements", (f32(40, 4), DRAW.integers(-40, 40, (9, 4))), axis=0)
    check("GatherElements", (f32(4, 5, 6), DRAW.integers(-5, 5, (2, 3, 6))), axis=1)
    check("ScatterND", (f32(5, 6), np.array([[0], [-1], [3]]), f32(3, 6)))
    check("ScatterElements", (f32(5, 3), DRAW.permuted(np.tile(np.arange(-5, 0), (3, 1)), axis=1).T[:4], f32(4, 3)), axis=0)
    for how in ("add", "mul", "max", "min"):
        check("ScatterElements", (f32(5, 5), places, f32(4, 3)), axis=1, reduction=how)
        check("ScatterND", (f32(5, 6), DRAW.integers(0, 5, (7, 2)), f32(7)), reduction=how)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_flattening_nothing(axis: int) -> None:
    check("Flatten", (np.zeros((0, 3), np.float32),), axis=axis)
    check("Flatten", (f32(4, 3),), axis=axis - 2)


def test_windows() -> None:
    """Attributes that PyTorch has, and some that it has not."""
    x = f32(2, 4, 9, 8)
    for given in ({}, {"strides": [2, 1], "pads": [1, 1, 1, 1]}, {"pads": [0, 1, 1, 0]}, {"ceil_mode": 1, "strides": [2, 2]}):
        check("MaxPool", (x,), kernel_shape=[3, 2], **given)
        check("AveragePool", (x,), kernel_shape=[3, 2], **given)
        check("AveragePool", (x,), kernel_shape=[3, 2], count_include_pad=1, **given)
    check("MaxPool", (x,), kernel_shape=[3, 2], dilations=[2, 1])
    for given in ({}, {"strides": [2, 2], "pads": [1, 0, 1, 0], "output_padding": [1, 0]}, {"group": 2}, {"dilations": [1, 2]}):
        check("ConvTranspose", (x, f32(4, 3, 3, 2), f32(3 * given.get("group", 1))), **given)  # type: ignore[call-overload]
    for mode in ("bilinear", "nearest", "bicubic"):
        for padding in ("zeros", "border", "reflection"):
            check("GridSample", (x, DRAW.uniform(-1.2, 1.2, (2, 5, 3, 2)).astype(np.float32)), 16, mode=mode, padding_mode=padding)


SLOW = {
    "RoiAlign": ((f32(1, 64, 24, 28), regions(100, 20.0), np.zeros(100, np.int64)),
                 {"output_height": 7, "output_width": 7, "sampling_ratio": 2}),
    "ScatterElements": ((f32(1000, 300), DRAW.integers(0, 1000, (1000, 300)), f32(1000, 300)), {"axis": 0}),
    "GatherND": ((f32(100_000, 4), DRAW.integers(0, 1000, (100_000, 1))), {}),
    "ConvTranspose": ((f32(8, 64, 14, 14), f32(64, 64, 2, 2)), {"strides": [2, 2]}),
    "AveragePool": ((f32(8, 64, 14, 14),), {"kernel_shape": [2, 2], "strides": [2, 2]}),
    "NonMaxSuppression": ((regions(1500, 100.0)[None], np.abs(f32(1, 1, 1500)), np.array([1500]), np.array([0.7], np.float32)), {}),
}


@pytest.mark.parametrize("op", SLOW)
def test_no_operator_of_a_detector_takes_seconds(op: str) -> None:
    """The package's own take 0.2 to 2 s on these."""
    arrays, attributes = SLOW[op]
    feeds = {f"x{n}": a for n, a in enumerate(arrays)}
    evaluator = reference(one_node(op, feeds, **attributes))

    def once() -> float:
        begun = time.thread_time()  # the machine may be shared with other tests
        evaluator.run(None, feeds)
        return time.thread_time() - begun

    assert min(once() for _ in range(5)) < 0.15
