"""Operators with subscripts from data for ONNX's reference implementation, by NumPy's own subscripts.

The package's own visit elements one by one: a million elements scattered take it 1 s, and this 10 ms.
"""
from __future__ import annotations

from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun

COMBINE = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


class GatherND(OpRun):  # the evaluator finds it by this name
    """Slices at subscript tuples."""

    op_domain = ""

    def _run(self, data: Any, indices: Any, batch_dims: Any = None) -> tuple[Any, ...]:
        """Shapes: data: [*B, *X], indices: [*B, *I, k] -> [*B, *I, *X[k:]]"""
        batches, rank = batch_dims or 0, indices.ndim - 1
        around = [np.arange(extent).reshape([-1 if d == at else 1 for d in range(rank)]) for at, extent in enumerate(data.shape[:batches])]
        return (data[(*around, *np.moveaxis(indices, -1, 0))],)


class GatherElements(OpRun):  # the evaluator finds it by this name
    """Elements at positions along one axis; the package's own fails where that axis is shorter than the others' positions."""

    op_domain = ""

    def _run(self, data: Any, indices: Any, axis: Any = None) -> tuple[Any, ...]:
        """Shapes: data: [*X], indices: of its rank -> that of the indices"""
        return (data[_grid(indices, axis or 0)],)


class ScatterND(OpRun):  # the evaluator finds it by this name
    """A copy with slices at subscript tuples written or combined."""

    op_domain = ""

    def _run(self, data: Any, indices: Any, updates: Any, reduction: Any = None) -> tuple[Any, ...]:
        """Shapes: data: [*X], indices: [*I, k], updates: [*I, *X[k:]] -> [*X]"""
        return (_written(data, tuple(np.moveaxis(indices, -1, 0)), updates, reduction),)


class ScatterElements(OpRun):  # the evaluator finds it by this name
    """A copy with elements written or combined at positions along one axis."""

    op_domain = ""

    def _run(self, data: Any, indices: Any, updates: Any, axis: Any = None, reduction: Any = None) -> tuple[Any, ...]:
        """Shapes: data: [*X], indices, updates: of its rank -> [*X]"""
        return (_written(data, _grid(indices, axis or 0), updates, reduction),)


def _grid(indices: np.ndarray, axis: int) -> tuple[np.ndarray, ...]:
    """Subscripts of all axes, those of one axis from data."""
    subscripts = list(np.ogrid[tuple(map(slice, indices.shape))])
    subscripts[axis] = indices
    return tuple(subscripts)


def _written(data: np.ndarray, place: tuple[np.ndarray, ...], updates: np.ndarray, reduction: str | None) -> np.ndarray:
    written = np.copy(data)
    if reduction in COMBINE:
        COMBINE[reduction].at(written, place, updates)
    else:
        written[place] = updates
    return written


class Flatten(OpRun):  # the evaluator finds it by this name
    """Two dimensions; the package's own fails on a tensor without elements."""

    op_domain = ""

    def _run(self, x: Any, axis: Any = None) -> tuple[Any, ...]:
        """Shapes: x: [*A, *B] -> [prod(A), prod(B)]"""
        at = 1 if axis is None else axis
        return (x.reshape(int(np.prod(x.shape[:at])), int(np.prod(x.shape[at:]))),)
