"""Small detectors as exporters write them: boxes from features, data-dependent selection, and what reads the selected boxes."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class ModelWriter:
    """A graph written node by node; a call gives the name of a node's first output."""

    def __init__(self, seed: int = 0) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, np.ndarray] = {}
        self.draw = np.random.default_rng(seed)

    def __call__(self, op: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        names = [f"{op.lower()}{len(self.nodes)}" + (f"_{n}" if n else "") for n in range(outputs)]
        self.nodes.append(helper.make_node(op, list(inputs), names, **attributes))
        return names[0] if outputs == 1 else names

    def constant(self, value: Any, dtype: Any = np.int64) -> str:
        """An initializer."""
        name = f"c{len(self.weights)}"
        self.weights[name] = np.asarray(value, dtype)
        return name

    def drawn(self, *shape: int) -> str:
        """An initializer of small random numbers."""
        return self.constant(self.draw.standard_normal(shape) / np.sqrt(np.prod(shape[1:]) or 1), np.float32)

    def model(self, inputs: Mapping[str, Sequence[int]], results: Sequence[str], types: Mapping[str, int] | None = None,
              opset: int = 18) -> onnx.ModelProto:
        """The model; inputs are f32 unless `types` says otherwise."""
        made = [helper.make_tensor_value_info(n, (types or {}).get(n, TensorProto.FLOAT), list(s)) for n, s in inputs.items()]
        graph = helper.make_graph(self.nodes, "detector", made, [helper.make_empty_tensor_value_info(r) for r in results],
                                  [numpy_helper.from_array(a, n) for n, a in self.weights.items()])
        return onnx.shape_inference.infer_shapes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9))


def features(w: ModelWriter, image: str, channels: Sequence[int]) -> str:
    """Convolutions with halved extents."""
    last, found = 3, image
    for count in channels:
        found = w("Relu", w("Conv", found, w.drawn(count, last, 3, 3), pads=[1, 1, 1, 1], strides=[2, 2]))
        last = count
    return found


def boxes_of(w: ModelWriter, deltas: str) -> str:
    """Corners from centres and extents: [.., 4] -> [.., 4]."""
    centre, extent = (w("Slice", deltas, w.constant([a]), w.constant([b]), w.constant([-1])) for a, b in ((0, 2), (2, 4)))
    half = w("Mul", w("Exp", extent), w.constant(0.5, np.float32))
    return w("Concat", w("Sub", centre, half), w("Add", centre, half), axis=-1)


def ssd() -> onnx.ModelProto:
    """One level of boxes, scores by softmax, non-maximum suppression, the selected boxes gathered with their scores."""
    w = ModelWriter(1)
    grid = features(w, "image", (8, 16))
    deltas = w("Reshape", w("Transpose", w("Conv", grid, w.drawn(8, 16, 1, 1)), perm=[0, 2, 3, 1]), w.constant([1, -1, 4]))
    logits = w("Reshape", w("Transpose", w("Conv", grid, w.drawn(6, 16, 1, 1)), perm=[0, 2, 3, 1]), w.constant([1, -1, 3]))
    boxes, scores = boxes_of(w, deltas), w("Transpose", w("Softmax", logits, axis=-1), perm=[0, 2, 1])
    chosen = w("NonMaxSuppression", boxes, scores, w.constant([20]), w.constant([0.5], np.float32), w.constant([0.3], np.float32))
    number = w("Squeeze", w("Slice", chosen, w.constant([2]), w.constant([3]), w.constant([1])), w.constant([1]))
    picked = w("Gather", w("Squeeze", boxes, w.constant([0])), number, axis=0)
    score = w("GatherND", scores, chosen)
    label = w("Slice", chosen, w.constant([1]), w.constant([2]), w.constant([1]))
    area = w("ReduceProd", w("Sub", w("Slice", picked, w.constant([2]), w.constant([4]), w.constant([1])),
                             w("Slice", picked, w.constant([0]), w.constant([2]), w.constant([1]))), w.constant([1]), keepdims=0)
    return w.model({"image": (1, 3, 32, 32)}, [picked, score, label, w("Mul", area, score)])


def retina() -> onnx.ModelProto:
    """Scores above a threshold by NonZero, the k best of them where k is computed, decoded boxes clipped to the image."""
    w = ModelWriter(2)
    grid = features(w, "image", (8,))
    logits = w("Reshape", w("Transpose", w("Conv", grid, w.drawn(2, 8, 1, 1)), perm=[0, 2, 3, 1]), w.constant([-1]))
    deltas = w("Reshape", w("Transpose", w("Conv", grid, w.drawn(4, 8, 1, 1)), perm=[0, 2, 3, 1]), w.constant([-1, 4]))
    scores = w("Sigmoid", logits)
    above = w("Squeeze", w("NonZero", w("Greater", scores, w.constant(0.5, np.float32))), w.constant([0]))
    kept = w("Gather", scores, above)
    count = w("Min", w("Shape", kept), w.constant([16]))
    best, order = w("TopK", kept, count, outputs=2)
    place = w("Gather", above, order)
    anchor, label = w("Div", place, w.constant(2)), w("Mod", place, w.constant(2))
    boxes = w("Clip", boxes_of(w, w("Gather", deltas, anchor, axis=0)), w.constant(-2.0, np.float32), w.constant(2.0, np.float32))
    return w.model({"image": (1, 3, 32, 32)}, [boxes, best, label])


def rcnn() -> onnx.ModelProto:
    """Proposals by suppression, features of each by RoiAlign, a second head, and a mask of the boxes that pass."""
    w = ModelWriter(3)
    grid = features(w, "image", (8,))
    deltas = w("Reshape", w("Transpose", w("Conv", grid, w.drawn(4, 8, 1, 1)), perm=[0, 2, 3, 1]), w.constant([1, -1, 4]))
    scores = w("Reshape", w("Sigmoid", w("Conv", grid, w.drawn(1, 8, 1, 1))), w.constant([1, 1, -1]))
    boxes = w("Mul", w("Add", boxes_of(w, deltas), w.constant(4.0, np.float32)), w.constant(3.0, np.float32))
    chosen = w("NonMaxSuppression", boxes, scores, w.constant([8]), w.constant([0.6], np.float32), w.constant([0.2], np.float32))
    number = w("Gather", chosen, w.constant(2), axis=1)
    regions = w("Gather", w("Squeeze", boxes, w.constant([0])), number, axis=0)
    images = w("Gather", chosen, w.constant(0), axis=1)
    pooled = w("RoiAlign", grid, regions, images, output_height=4, output_width=4, sampling_ratio=2, spatial_scale=0.5)
    hidden = w("Relu", w("Gemm", w("Flatten", pooled), w.drawn(128, 32)))
    classes = w("Softmax", w("Gemm", hidden, w.drawn(32, 3)), axis=-1)
    score = w("ReduceMax", classes, w.constant([1]), keepdims=0)
    passing = w("Greater", score, w.constant(0.34, np.float32))
    return w.model({"image": (1, 3, 32, 32)}, [w("Compress", regions, passing, axis=0), w("Compress", score, passing, axis=0), classes])


def yolo() -> onnx.ModelProto:
    """Centres on a grid, objectness, classes; the best class of each cell, suppression with classes shifted apart."""
    w = ModelWriter(4)
    grid = features(w, "image", (8, 16))
    raw = w("Reshape", w("Conv", grid, w.drawn(7, 16, 1, 1)), w.constant([1, 7, -1]))
    rows = w("Transpose", raw, perm=[0, 2, 1])
    places, sizes, rest = w("Split", rows, w.constant([2, 2, 3]), axis=2, outputs=3)
    ys, xs = np.meshgrid(np.arange(8), np.arange(8), indexing="ij")
    cells = w.constant(np.stack([xs, ys], -1).reshape(1, 64, 2), np.float32)
    deltas = w("Concat", w("Add", w("Sigmoid", places), cells), sizes, axis=2)
    boxes = boxes_of(w, deltas)
    object_score, class_score = w("Split", w("Sigmoid", rest), w.constant([1, 2]), axis=2, outputs=2)
    score = w("Mul", object_score, class_score)
    best = w("ReduceMax", score, w.constant([2]), keepdims=0)
    label = w("ArgMax", score, axis=2, keepdims=0)
    shift = w("Unsqueeze", w("Mul", w("Cast", label, to=TensorProto.FLOAT), w.constant(100.0, np.float32)), w.constant([2]))
    chosen = w("NonMaxSuppression", w("Add", boxes, shift), w("Unsqueeze", best, w.constant([1])), w.constant([10]),
               w.constant([0.45], np.float32), w.constant([0.2], np.float32))
    number = w("Gather", chosen, w.constant([2]), axis=1)
    flat = w("Reshape", number, w.constant([-1]))
    picked = [w("Gather", w("Squeeze", v, w.constant([0])), flat, axis=0) for v in (boxes, best, label)]
    return w.model({"image": (1, 3, 32, 32)}, [w("Concat", picked[0], w("Unsqueeze", picked[1], w.constant([1])), axis=1), picked[2]])


def unique_words() -> onnx.ModelProto:
    """Distinct ids, their rows of a table, and the mean of each row."""
    w = ModelWriter(5)
    distinct, _, back, counts = w("Unique", "ids", outputs=4, sorted=1)
    rows = w("Gather", w.drawn(20, 16), distinct, axis=0)
    mean = w("ReduceMean", w("Tanh", rows), w.constant([1]), keepdims=0)
    return w.model({"ids": (12,)}, [w("Gather", mean, back), counts], {"ids": TensorProto.INT64})


def counted_loop() -> onnx.ModelProto:
    """A loop whose count is computed from data, with a captured value, between two maps."""
    w = ModelWriter(6)
    y = w("Tanh", "x")
    count = w("Cast", w("ReduceSum", w("Cast", w("Greater", "x", w.constant(0.0, np.float32)), to=TensorProto.INT64), keepdims=0),
              to=TensorProto.INT64)
    value = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("Add", ["have", y], ["sum"]), helper.make_node("Mul", ["sum", "half"], ["next"]),
         helper.make_node("Identity", ["go"], ["go_on"]), helper.make_node("ReduceMax", ["next"], ["shown"], keepdims=0)],
        "body", [value("step", TensorProto.INT64, []), value("go", TensorProto.BOOL, []), value("have", TensorProto.FLOAT, [4, 8])],
        [value("go_on", TensorProto.BOOL, []), value("next", TensorProto.FLOAT, [4, 8]), value("shown", TensorProto.FLOAT, [])],
        [numpy_helper.from_array(np.float32(0.5), "half")])
    last, shown = w("Loop", count, w.constant(True, np.bool_), y, outputs=2, body=body)
    return w.model({"x": (4, 8)}, [w("Exp", last), shown])


def branches() -> onnx.ModelProto:
    """An If whose branches differ in shape, on a computed condition."""
    w = ModelWriter(7)
    y = w("Exp", "x")
    condition = w("Greater", w("ReduceSum", "x", keepdims=0), w.constant(0.0, np.float32))
    value = helper.make_tensor_value_info("r", TensorProto.FLOAT, None)
    then = helper.make_graph([helper.make_node("Concat", [y, y], ["r"], axis=0)], "then", [], [value])
    other = helper.make_graph([helper.make_node("Neg", [y], ["r"])], "other", [], [value])
    chosen = w("If", condition, then_branch=then, else_branch=other)
    return w.model({"x": (4, 8)}, [w("Sqrt", w("Abs", chosen))])


def computed_shape() -> onnx.ModelProto:
    """A reshape to extents that the model takes as data, and a range as long as a computed count."""
    w = ModelWriter(8)
    turned = w("Reshape", w("Tanh", "x"), "shape")
    count = w("Cast", w("ReduceMax", "x", keepdims=0), to=TensorProto.INT64)
    steps = w("Range", w.constant(0), count, w.constant(1))
    return w.model({"x": (4, 8), "shape": (2,)}, [w("Mul", turned, turned), w("Mul", steps, steps)], {"shape": TensorProto.INT64})
