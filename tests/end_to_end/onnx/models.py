"""Small ONNX models made for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import helper, numpy_helper

FLOAT = onnx.TensorProto.FLOAT


def model_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Sequence[int | str]],
    outputs: Sequence[str],
    weights: Mapping[str, np.ndarray] | None = None,
    opset: int = 21,
    element: int = FLOAT,
    domains: Mapping[str, int] | None = None,
    functions: Sequence[onnx.FunctionProto] = (),
) -> onnx.ModelProto:
    """A model whose inputs are tensors of one element type; a text in a shape is a dynamic extent."""
    graph = helper.make_graph(
        list(nodes),
        "sample",
        [helper.make_tensor_value_info(n, element, list(s)) for n, s in inputs.items()],
        [helper.make_empty_tensor_value_info(o) for o in outputs],
        [numpy_helper.from_array(a, n) for n, a in (weights or {}).items()],
    )
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, v) for d, v in (domains or {}).items())]
    made = helper.make_model(graph, opset_imports=imports, functions=list(functions), ir_version=10)
    return onnx.shape_inference.infer_shapes(made)


def drawn_weights(model: onnx.ModelProto, seed: int) -> onnx.ModelProto:
    """`model` with drawn numbers for every ConstantOfShape: variances positive, filters of unit gain, scales near one."""
    draw = np.random.default_rng(seed)
    shapes = {
        t.name: tuple(int(e) for e in numpy_helper.to_array(t)) for t in model.graph.initializer if t.data_type == onnx.TensorProto.INT64
    }
    roles = {name: (node.op_type, place) for node in model.graph.node for place, name in enumerate(node.input)}
    aliases = {node.output[0]: node.input[0] for node in model.graph.node if node.op_type in ("Unsqueeze", "Reshape")}
    for outer, inner in aliases.items():
        if outer in roles:
            roles[inner] = roles[outer]
    made = onnx.ModelProto()
    made.CopyFrom(model)
    del made.graph.node[:]
    for node in model.graph.node:
        if node.op_type != "ConstantOfShape":
            made.graph.node.append(node)
            continue
        shape, (op, place) = shapes[node.input[0]], roles.get(node.output[0], ("", 0))
        made.graph.initializer.append(numpy_helper.from_array(_drawn(draw, shape, op, place), node.output[0]))
    return made


def _drawn(draw: np.random.Generator, shape: tuple[int, ...], op: str, place: int) -> np.ndarray:
    if op in ("BatchNormalization", "Mul") and place in (1, 4) and len(shape) <= 1:
        return draw.uniform(0.5, 1.5, shape).astype(np.float32)
    if op in ("Conv", "Gemm") and place == 1:
        terms = int(np.prod(shape[1:])) if op == "Conv" else max(shape)
        return (draw.standard_normal(shape) * (2.0 / terms) ** 0.5).astype(np.float32)
    return (0.1 * draw.standard_normal(shape)).astype(np.float32)
