"""Evaluating operators whose operands are all known while importing: shape arithmetic, folded weights.

The onnx package's reference evaluator gives every operator its meaning; the few that occur by the hundred in real models
are done here directly, because setting the evaluator up costs more than they do.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

# Operators that draw random numbers or hold graphs: never folded here.
NOT_FOLDED = frozenset(
    {
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
        "Bernoulli",
        "Multinomial",
        "If",
        "Loop",
        "Scan",
        "SequenceMap",
        "Optional",
        "OptionalGetElement",
        "OptionalHasElement",
        "ImageDecoder",
    }
)
# Reference implementations of these loop in Python; above this many elements the graph computes them instead.
SLOW = frozenset(
    {
        "Conv",
        "ConvTranspose",
        "ConvInteger",
        "QLinearConv",
        "DeformConv",
        "MaxPool",
        "AveragePool",
        "LpPool",
        "Resize",
        "GridSample",
        "LSTM",
        "GRU",
        "RNN",
        "RoiAlign",
        "NonMaxSuppression",
        "Einsum",
    }
)
SLOW_LIMIT_ELEMENTS = 4096


def fold(node: onnx.NodeProto, operands: Sequence[np.ndarray | None], version: int, opsets: Mapping[str, int]) -> list[np.ndarray] | None:
    """Results of `node` on known operands, or None where it is not to be folded or the reference evaluator cannot.

    `version` is the operator's version, `opsets` the model's opset of every domain.
    """
    if node.op_type in NOT_FOLDED or any(a is not None and a.dtype == object for a in operands):
        return None
    if node.op_type in SLOW and sum(a.size for a in operands if a is not None) > SLOW_LIMIT_ELEMENTS:
        return None
    if node.domain in ("", "ai.onnx"):
        direct = DIRECT.get(node.op_type)
        if direct is not None:
            done = direct(node, operands, version)
            if done is not None:
                return [done]
    feeds = {name: array for name, array in zip(node.input, operands) if name}
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            results = ReferenceEvaluator(node, opsets=dict(opsets)).run(None, feeds)
    except (NotImplementedError, RuntimeError, TypeError, ValueError, IndexError, KeyError, AttributeError, ArithmeticError):
        return None  # the lowering then reports precisely what is wrong with the operands
    if not all(isinstance(r, (np.ndarray, np.generic)) for r in results):
        return None
    return [np.asarray(r) for r in results]


def _attribute(node: onnx.NodeProto, name: str, default: Any = None) -> Any:
    return next((onnx.helper.get_attribute_value(a) for a in node.attribute if a.name == name), default)


def _constant_of_shape(node: onnx.NodeProto, operands: Sequence[np.ndarray | None], version: int) -> np.ndarray | None:
    """A view of one element: the weights of the package's light models are made this way and need no memory until bound."""
    value = _attribute(node, "value")
    fill = np.zeros(1, np.float32) if value is None else onnx.numpy_helper.to_array(value)
    assert operands[0] is not None
    return np.broadcast_to(fill.reshape(()), tuple(int(e) for e in operands[0]))


def _identity(node: onnx.NodeProto, operands: Sequence[np.ndarray | None], version: int) -> np.ndarray | None:
    return operands[0]


def _unsqueeze(node: onnx.NodeProto, operands: Sequence[np.ndarray | None], version: int) -> np.ndarray | None:
    axes = _attribute(node, "axes") if version < 13 else None if operands[1] is None else operands[1].reshape(-1).tolist()
    if axes is None or operands[0] is None:
        return None
    return np.expand_dims(operands[0], tuple(int(a) for a in axes))


def _transpose(node: onnx.NodeProto, operands: Sequence[np.ndarray | None], version: int) -> np.ndarray | None:
    return None if operands[0] is None else np.transpose(operands[0], _attribute(node, "perm"))


def _gather(node: onnx.NodeProto, operands: Sequence[np.ndarray | None], version: int) -> np.ndarray | None:
    data, indices = operands
    axis = _attribute(node, "axis", 0)
    if data is None or indices is None or (indices.size and not -data.shape[axis] <= indices.min() <= indices.max() < data.shape[axis]):
        return None
    return np.take(data, indices, axis)


def _concat(node: onnx.NodeProto, operands: Sequence[np.ndarray | None], version: int) -> np.ndarray | None:
    parts = [a for a in operands if a is not None]
    return np.concatenate(parts, _attribute(node, "axis", 1)) if len({a.dtype for a in parts}) == 1 and parts[0].ndim else None


DIRECT: dict[str, Callable[[onnx.NodeProto, Sequence[np.ndarray | None], int], np.ndarray | None]] = {
    "ConstantOfShape": _constant_of_shape,
    "Identity": _identity,
    "Unsqueeze": _unsqueeze,
    "Transpose": _transpose,
    "Gather": _gather,
    "Concat": _concat,
}
