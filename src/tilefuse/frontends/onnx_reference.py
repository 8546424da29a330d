"""ONNX's reference implementation, as parts of a model run by it, with two operators of our own.

The onnx package's own Loop joins what its steps show along an axis that it has (1.23: scalars become columns, matrices one long matrix),
does not run without a condition, and fails after no step.
"""
from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from onnx.reference.ops import op_loop

from tilefuse.frontends.onnx_model import static_extent


class Loop(op_loop.Loop):  # the evaluator finds it by this name
    """Runs its body while the condition holds, at most as often as the trip count says."""

    op_domain = ""

    def _run(self, M: Any, cond: Any, *carried: Any, context: Any = None, body: Any = None, attributes: Any = None,
             bindings: Any = None) -> tuple[Any, ...]:
        """Carried values after the last step, then what every step showed along a new first axis."""
        graph = self.body
        known = dict(context or {})
        count, values = len(carried), list(carried)
        shown: list[list[Any]] = [[] for _ in graph.output_names[1 + count:]]
        going, step = cond is None or bool(np.asarray(cond).reshape(-1)[0]), 0
        limit = None if M is None else int(np.asarray(M).reshape(-1)[0])
        while going and (limit is None or step < limit):
            known.update(zip(graph.input_names, [np.asarray(step, np.int64), np.asarray(True), *values], strict=True))
            made = self._run_body(known, attributes=attributes, bindings=bindings)
            going = bool(np.asarray(made[0]).reshape(-1)[0])
            values = list(made[1:1 + count])
            for listed, value in zip(shown, made[1 + count:], strict=True):
                listed.append(value)
            step += 1
        declared = next(a.g for a in self.onnx_node.attribute if a.name == "body").output[1 + count:]
        return (*values, *(np.stack(s) if s else _none_shown(item) for s, item in zip(shown, declared, strict=True)))


def _none_shown(declared: onnx.ValueInfoProto) -> np.ndarray:
    """What no step showed: no elements of the declared type; extents that it leaves open are 0."""
    tensor = declared.type.tensor_type
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type) if tensor.elem_type else np.dtype(np.float32)
    return np.zeros((0, *(static_extent(d) or 0 for d in tensor.shape.dim)), dtype)


class NonMaxSuppression(OpRun):  # the evaluator finds it by this name
    """Boxes by falling score, each kept unless it overlaps one that is; the overlaps of a kept box with all others are found at once.

    The package's own looks at boxes one by one: 60 boxes of 3 classes take it 150 ms, and this 1 ms.
    """

    op_domain = ""

    def _run(self, boxes: Any, scores: Any, most: Any = None, overlap: Any = None, least: Any = None,
             center_point_box: int = 0) -> tuple[Any, ...]:
        """Rows (batch, class, box), by batch, class and falling score; of equal scores the first box."""
        count, limit = (0 if most is None else int(most.reshape(-1)[0])), (0.0 if overlap is None else overlap.reshape(-1)[0])
        found: list[tuple[int, int, int]] = []
        for batch, corners in enumerate(_corners(boxes, bool(center_point_box))):
            for label, row in enumerate(scores[batch]):
                order = np.argsort(-row, kind="stable")
                order = order if least is None else order[row[order] > least.reshape(-1)[0]]
                found += [(batch, label, int(n)) for n in _suppressed(corners, order, count, limit)]
        return (np.asarray(found, np.int64).reshape(-1, 3),)


def _corners(boxes: np.ndarray, by_centre: bool) -> np.ndarray:
    """Boxes as (smaller corner, larger corner), from two opposite corners or from centre and extent."""
    first, second = boxes[..., :2], boxes[..., 2:]
    if by_centre:
        first, second = first - second / 2, first + second / 2
    return np.concatenate([np.minimum(first, second), np.maximum(first, second)], -1)


def _suppressed(corners: np.ndarray, order: np.ndarray, count: int, limit: float) -> list[int]:
    """Boxes that stay, in order, at most `count`; a box without area overlaps none."""
    areas = np.prod(corners[:, 2:] - corners[:, :2], -1)
    kept: list[int] = []
    while len(order) and len(kept) < count:
        best, order = order[0], order[1:]
        kept.append(int(best))
        low, high = np.maximum(corners[best, :2], corners[order, :2]), np.minimum(corners[best, 2:], corners[order, 2:])
        common = np.prod(np.maximum(high - low, 0), -1)
        union = areas[best] + areas[order] - common
        overlaps = (areas[best] > 0) & (areas[order] > 0) & (common > 0) & (common / np.where(union > 0, union, 1) > limit)
        order = order[~overlaps]
    return kept


def reference(model: onnx.ModelProto) -> ReferenceEvaluator:
    """The object that runs the model. Raises: what the package raises for an operator that it does not know."""
    return ReferenceEvaluator(model, new_ops=[Loop, NonMaxSuppression])
