"""ONNX's reference implementation, as parts of a model run by it, with operators of our own where its own are wrong or slow.

The onnx package's own Loop joins what its steps show along an axis that it has (1.23: scalars become columns, matrices one long matrix),
does not run without a condition, and fails after no step.
"""
from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator
from onnx.reference.ops import op_loop

from tilefuse.frontends.onnx.model import static_extent
from tilefuse.frontends.onnx.reference_boxes import NonMaxSuppression, RoiAlign
from tilefuse.frontends.onnx.reference_places import Flatten, GatherElements, GatherND, ScatterElements, ScatterND
from tilefuse.frontends.onnx.reference_windows import AveragePool, ConvTranspose, GridSample, MaxPool


class Loop(op_loop.Loop):  # the evaluator finds it by this name
    """Runs its body while the condition holds, at most as often as the trip count says."""

    op_domain = ""

    def _run(self, M: Any, cond: Any, *carried: Any, context: Any = None, body: Any = None, attributes: Any = None,
             bindings: Any = None) -> tuple[Any, ...]:
        """Carried values after the last step, then every step's outputs along a new first axis."""
        graph = self.body
        known = dict(context or {})
        count, values = len(carried), list(carried)
        scans: list[list[Any]] = [[] for _ in graph.output_names[1 + count:]]
        going, step = cond is None or bool(np.asarray(cond).reshape(-1)[0]), 0
        limit = None if M is None else int(np.asarray(M).reshape(-1)[0])
        while going and (limit is None or step < limit):
            known.update(zip(graph.input_names, [np.asarray(step, np.int64), np.asarray(True), *values], strict=True))
            outputs = self._run_body(known, attributes=attributes, bindings=bindings)
            going = bool(np.asarray(outputs[0]).reshape(-1)[0])
            values = list(outputs[1:1 + count])
            for listed, value in zip(scans, outputs[1 + count:], strict=True):
                listed.append(value)
            step += 1
        declared = next(a.g for a in self.onnx_node.attribute if a.name == "body").output[1 + count:]
        return (*values, *(np.stack(s) if s else _none_shown(item) for s, item in zip(scans, declared, strict=True)))


def _none_shown(declared: onnx.ValueInfoProto) -> np.ndarray:
    """Output of a loop without steps: no elements of the declared type; extents that it leaves open are 0."""
    tensor = declared.type.tensor_type
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type) if tensor.elem_type else np.dtype(np.float32)
    return np.zeros((0, *(static_extent(d) or 0 for d in tensor.shape.dim)), dtype)


# Operators that replace the package's own.
OWN = (Loop, NonMaxSuppression, RoiAlign, GatherElements, GatherND, ScatterND, ScatterElements, Flatten, MaxPool, AveragePool,
       ConvTranspose, GridSample)


def reference(model: onnx.ModelProto) -> ReferenceEvaluator:
    """The object that runs the model. Raises: the package's error for an operator that it does not know."""
    return ReferenceEvaluator(model, new_ops=list(OWN))
