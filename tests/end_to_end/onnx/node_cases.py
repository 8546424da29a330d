"""The onnx package's node tests, which of them count for coverage, and which results no implementation can be held to."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Sequence
from functools import cache

import numpy as np
import onnx
from onnx.backend.test.case.test_case import TestCase
from onnx.backend.test.loader import load_model_tests

from tilefuse.frontends.onnx.model import DTYPE_OF_ELEMENT

# These cases compare chains of f16 operations, each rounded on its own; the expected values are themselves the result of one
# such chain, with an error of a few units of 2**-11 about the exact value.
F16_CHAINS = {name: {"rtol": 4 * 2.0**-11} for name in ("test_attention_4d_causal_fp16", "test_attention_4d_causal_fp16_expanded")}


@cache
def node_cases() -> tuple[TestCase, ...]:
    """All node tests of the package, in its order. Making their data prints and warns; that is its own affair."""
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return tuple(load_model_tests(kind="node"))


def takes_and_gives_plain_tensors(case: TestCase) -> bool:
    """Whether every input and output is a tensor of a type that tilefuse has."""
    ends = [*case.model.graph.input, *case.model.graph.output]
    return all(v.type.WhichOneof("value") == "tensor_type" and v.type.tensor_type.elem_type in DTYPE_OF_ELEMENT for v in ends)


def operators_of(case: TestCase) -> tuple[str, ...]:
    """The operators of a case, sorted."""
    return tuple(sorted({node.op_type for node in case.model.graph.node}))


def arrays_of(values: Sequence[object]) -> list[np.ndarray]:
    """A case's inputs or outputs as arrays; some are kept as TensorProto."""
    return [onnx.numpy_helper.to_array(v) if isinstance(v, onnx.TensorProto) else np.asarray(v) for v in values]
