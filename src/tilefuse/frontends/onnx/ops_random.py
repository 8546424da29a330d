"""ONNX random operators: counter-based numbers, from the node's `seed` or from the framework's generator at each run."""

from __future__ import annotations

import numpy as np

from tilefuse.frontends.onnx.call import Call, Value, onnx_op
from tilefuse.frontends.onnx.model import element_dtype
from tilefuse.ir.dtype import F32, DType


def seed_of(n: Call) -> str:
    """A seed value i64[1]: constant where the node gives one, else drawn at each run, another one for every node."""
    seed = n.attr("seed")
    if seed is not None:
        bits = int(np.float32(seed).view(np.int32)) if float(seed) != int(seed) else int(seed)
        return n.importer.materialise(Value(array=np.asarray([bits], np.int64)), f"{n.label}_seed")
    return n.b.random_seed(len(n.b.nodes))


def _dtype(n: Call) -> DType:
    if n.attr("dtype") is not None:
        return element_dtype(n.attr("dtype"), n.place)
    return n.dtype(0) if n.op.endswith("Like") or n.op == "Bernoulli" else F32


@onnx_op("RandomUniform", "RandomUniformLike")
def random_uniform(n: Call) -> str:
    shape = n.shape(0) if n.op.endswith("Like") else n.needed_attr("shape")
    return n.b.random_uniform(shape, seed_of(n), _dtype(n), n.attr("low", 0.0), n.attr("high", 1.0))


@onnx_op("RandomNormal", "RandomNormalLike")
def random_normal(n: Call) -> str:
    shape = n.shape(0) if n.op.endswith("Like") else n.needed_attr("shape")
    return n.b.random_normal(shape, seed_of(n), _dtype(n), n.attr("mean", 0.0), n.attr("scale", 1.0))


@onnx_op("Bernoulli")
def bernoulli(n: Call) -> str:
    return n.b.bernoulli(n.shape(0), n.b.cast(n[0], F32), seed_of(n), _dtype(n))
