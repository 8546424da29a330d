"""ONNX attention: masks, soft caps and groups of heads against the standard's reference, and as one kernel on an H200."""
from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import tilefuse

BATCH, HEADS = 2, 4
# (mask: "", "bool", "float", "rows"; heads of keys; attributes)
CASES: dict[str, tuple[str, int, dict[str, Any]]] = {
    "boolean mask": ("bool", HEADS, {}), "boolean mask, causal, groups": ("bool", 2, {"is_causal": 1}),
    "added mask, causal": ("float", HEADS, {"is_causal": 1}), "soft cap": ("", HEADS, {"softcap": 2.0}),
    "soft cap, one head of keys": ("", 1, {"softcap": 2.0, "scale": 0.7}), "mask of rows and columns": ("rows", HEADS, {}),
}


def model(mask: str, kv_heads: int, attributes: dict[str, Any], length: int, width: int, dtype: int) -> onnx.ModelProto:
    """One node."""
    inputs = [helper.make_tensor_value_info(n, dtype, (BATCH, HEADS if n == "q" else kv_heads, length, width)) for n in "qkv"]
    if mask:
        shape = (length, length) if mask == "rows" else (BATCH, 1, length, length)
        inputs.append(helper.make_tensor_value_info("m", dtype if mask == "float" else TensorProto.BOOL, shape))
    node = helper.make_node("Attention", [i.name for i in inputs], ["y"], **attributes)
    graph = helper.make_graph([node], "attention", inputs, [helper.make_tensor_value_info("y", dtype, None)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)])


@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_the_reference(name: str) -> None:
    """Zeros in rows that a mask hides whole, as the standard has them."""
    mask, kv_heads, attributes = CASES[name]
    made = model(mask, kv_heads, attributes, 9, 8, TensorProto.FLOAT)
    random = np.random.default_rng(0)
    values = {n: random.standard_normal((BATCH, HEADS if n == "q" else kv_heads, 9, 8)).astype(np.float32) for n in "qkv"}
    if mask:
        kept = random.random((9, 9) if mask == "rows" else (BATCH, 1, 9, 9)) < 0.6
        kept[..., 3, :] = False
        values["m"] = np.where(kept, 0.5, -np.inf).astype(np.float32) if mask == "float" else kept
    wanted = ReferenceEvaluator(made).run(None, values)[0]
    got = tilefuse.compile(made, device="host")(*values.values())
    np.testing.assert_allclose(got[0] if isinstance(got, list | tuple) else got, wanted, rtol=1e-5, atol=1e-6)
    assert not mask or (np.asarray(wanted)[:, :, 3] == 0).all()


@pytest.mark.parametrize("name", CASES)
def test_one_kernel_holds_it(name: str) -> None:
    """No scores in memory, no copies of keys and values: a pipelined walk, or the online kernel where it is predicted faster."""
    mask, kv_heads, attributes = CASES[name]
    program = tilefuse.compile(model(mask, kv_heads, attributes, 512, 64, TensorProto.FLOAT16), target="h200")
    text = str(program.explain())
    assert ": 1 kernels" in text.splitlines()[0] and "0 library calls" in text.splitlines()[0] and "k1 " not in text
