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
