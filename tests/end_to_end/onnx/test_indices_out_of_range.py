"""Indices out of range in ONNX models: the host executor raises where onnxruntime does; negative ones count from the end."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import tilefuse
from tilefuse.base.errors import IndexRangeError

X = np.arange(12, dtype=np.float32).reshape(3, 4)
UPDATES = np.ones((2, 4), dtype=np.float32)
node = helper.make_node

# The node, the indices' shape, legal and illegal indices.
CASES: dict[str, tuple[onnx.NodeProto, list[list[int]] | list[int], list[list[int]] | list[int], str]] = {
    "Gather": (node("Gather", ["x", "i"], ["y"], axis=1), [3, -4], [3, 4], "index 4 at i"),
    "GatherElements": (node("GatherElements", ["x", "i"], ["y"], axis=0), [[0, -3, 2, 1]], [[0, -4, 2, 1]], "index -4 at i"),
    "GatherND": (node("GatherND", ["x", "i"], ["y"]), [[0, 3], [-3, -4]], [[0, 3], [2, 4]], "index 4 at i"),
    "ScatterElements": (node("ScatterElements", ["x", "i", "u"], ["y"], reduction="add"), [[0, -3, 2, 1]] * 2, [[0, 3, 2, 1]] * 2,
                        "index 3 at i"),
    "ScatterND": (node("ScatterND", ["x", "i", "u"], ["y"]), [[0], [-3]], [[0], [3]], "index 3 at i"),
}


@pytest.mark.parametrize("name", CASES)
def test_the_host_raises(name: str) -> None:
    made, legal, wrong, words = CASES[name]
    shape = np.shape(legal)
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, X.shape), helper.make_tensor_value_info("i", TensorProto.INT64, shape)]
    given = [X, np.array(legal)]
    if "u" in made.input:
        inputs.append(helper.make_tensor_value_info("u", TensorProto.FLOAT, UPDATES.shape))
        given.append(UPDATES)
    graph = helper.make_graph([made], "indices", inputs, [helper.make_empty_tensor_value_info("y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    reference = ReferenceEvaluator(model)
    program = tilefuse.compile(model, device="host")
    (result,) = program(*given) if isinstance(program(*given), (list, tuple)) else (program(*given),)
    np.testing.assert_array_equal(np.asarray(result), reference.run(None, dict(zip(made.input, given)))[0])
    given[1] = np.array(wrong)
    with pytest.raises(IndexRangeError, match=words):
        program(*given)


@pytest.mark.parametrize("place", [-1, 16])
def test_maxima_have_places_in_the_image(place: int) -> None:
    made = node("MaxUnpool", ["x", "i"], ["y"], kernel_shape=[2, 2], strides=[2, 2])
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 2, 2]),
              helper.make_tensor_value_info("i", TensorProto.INT64, [1, 1, 2, 2])]
    graph = helper.make_graph([made], "places", inputs, [helper.make_empty_tensor_value_info("y")])
    program = tilefuse.compile(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), device="host")
    places = np.array([[[[0, 5], [10, 15]]]])
    program(np.ones((1, 1, 2, 2), np.float32), places)
    places[0, 0, 1, 1] = place
    with pytest.raises(IndexRangeError, match=f"index {place} at i"):
        program(np.ones((1, 1, 2, 2), np.float32), places)
