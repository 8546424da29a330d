"""ONNX operators with data-dependent subscripts: gathers and scatters. Known subscripts become slices where they can."""

from __future__ import annotations

import numpy as np

from tilefuse.frontends.onnx.call import Call, Value, onnx_op
from tilefuse.ir.dtype import BOOL, I64

SCATTER_MONOIDS = {"none": "set", "add": "sum", "mul": "prod", "max": "max", "min": "min"}


@onnx_op("Gather")
def gather(n: Call) -> str:
    have = n.shape(0)
    at = n.axis(n.attr("axis", 0), len(have))
    known = n.operand(1).array
    if known is None:
        return n.b.take(n[0], n[1], at, wrap=True, checked=True)
    return gather_known(n, n[0], known, at)


def gather_known(n: Call, x: str, indices: np.ndarray, at: int) -> str:
    """Elements at known positions of one axis: a slice where the positions are equally spaced, else a gather.

    Raises: UserError when a position is out of range.
    """
    extent = n.b.shape_of(x)[at]
    if indices.size and not -extent <= indices.min() <= indices.max() < extent:
        raise n.wrong(f"index {indices.min() if indices.min() < -extent else indices.max()} is outside dimension {at} of extent {extent}")
    places = np.where(indices < 0, indices + extent, indices).astype(np.int64)
    if places.ndim == 0:
        return n.b.select(x, at, int(places))
    if places.ndim == 1 and places.size:
        steps = np.unique(np.diff(places)) if places.size > 1 else np.array([1])
        if steps.size == 1 and steps[0] != 0:
            step, first, last = int(steps[0]), int(places[0]), int(places[-1])
            stop = last + (1 if step > 0 else -1)
            return n.b.slice(x, [first], [stop if stop >= 0 else -extent - 1], [step], [at])
    return n.b.take(x, n.importer.materialise(Value(array=places), f"{n.label}_indices"), at)


@onnx_op("GatherElements")
def gather_elements(n: Call) -> str:
    return n.b.gather_elements(n[0], n[1], n.axis(n.attr("axis", 0), len(n.shape(0))), wrap=True, checked=True)


@onnx_op("GatherND")
def gather_nd(n: Call) -> str:
    return n.b.gather_nd(n[0], n[1], n.attr("batch_dims", 0), wrap=True, checked=True)


@onnx_op("ScatterElements", "Scatter")
def scatter_elements(n: Call) -> str:
    at = n.axis(n.attr("axis", 0), len(n.shape(0)))
    return n.b.scatter(n[0], n[1], n[2], at, SCATTER_MONOIDS[n.attr("reduction", "none")], wrap=True, checked=True)


@onnx_op("ScatterND")
def scatter_nd(n: Call) -> str:
    return n.b.scatter_nd(n[0], n[1], n[2], SCATTER_MONOIDS[n.attr("reduction", "none")], wrap=True, checked=True)


@onnx_op("OneHot")
def one_hot(n: Call) -> str:
    """Negative indices count from the end; indices out of range give a row of off values."""
    depth = n.ints(1, "the depth")[0]
    rank = len(n.shape(0)) + 1
    at = n.axis(n.attr("axis", -1), rank)
    here = n.b.one_hot(n.b.cast(n[0], I64), depth, at, dtype=BOOL, on=True, off=False, wrap=True)
    off, on = n.b.select(n[2], 0, 0), n.b.select(n[2], 0, 1)
    return n.b.where(here, on, off)


@onnx_op("Compress")
def compress(n: Call) -> str:
    """The condition decides the result's shape, so it must be known."""
    places = np.flatnonzero(n.known(1, "the condition"))
    at = n.attr("axis")
    if at is None:
        return gather_known(n, n.b.reshape(n[0], (-1,)), places, 0)
    return gather_known(n, n[0], places, n.axis(at, len(n.shape(0))))


@onnx_op("ArrayFeatureExtractor", domain="ai.onnx.ml")
def array_feature_extractor(n: Call) -> str:
    rank = len(n.shape(0))
    x = n[0] if rank > 1 else n.b.reshape(n[0], (1, -1))
    return n.b.take(x, n.b.reshape(n[1], (-1,)), max(rank, 2) - 1, checked=True)


@onnx_op("TensorScatter")
def tensor_scatter(n: Call) -> str:
    """Writes `update` into the cache from `write_indices` on along the axis, around the end where the mode is circular."""
    have, new = n.shape(0), n.shape(1)
    rank = len(have)
    at = n.axis(n.attr("axis", -2), rank)
    steps = n.b.iota((new[at],), 0)
    if n.has(2):
        start = n.b.reshape(n.b.cast(n[2], I64), (-1, 1))
        places = n.b.elementwise("add", start, steps)
    else:
        places = n.b.reshape(steps, (1, -1))
    if n.attr("mode", "linear") == "circular":
        places = n.b.elementwise("mod", places, have[at])
    shape = [1] * rank
    shape[0], shape[at] = n.b.shape_of(places)[0], new[at]
    grid = n.b.broadcast_to(n.b.reshape(places, shape), new)
    return n.b.scatter(n[0], grid, n[1], at, checked=True)
