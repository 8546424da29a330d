"""Attention as a library call: rows that a mask hides whole are zeros, as by the operator's definition and by its gradient."""
from __future__ import annotations

import numpy as np
import pytest
import torch

from tilefuse.ir.building.tensor import TensorBuilder
from tilefuse.ir.dtype import BOOL, F64, DType
from tilefuse.ir.graph import Graph
from tilefuse.ir.interpret import interpret
from tilefuse.ir.library.attention_call import attention_call
from tilefuse.runtime.calls.library import added_mask, call_library

SHAPE = (2, 3, 5, 8)
ATTRIBUTES = {"scale": 0.25, "causal": False, "has_mask": True, "dropout": 0.0}


def _graph(dtype: DType, mask: DType) -> Graph:
    b = TensorBuilder("masked")
    q, k, v = (b.input(name, dtype, SHAPE) for name in "qkv")
    return b.finish([b.attention(q, k, v, b.input("m", mask, (2, 1, 5, 5)), 0.25)])


def _inputs(boolean: bool) -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(3)
    q, k, v = (random.standard_normal(SHAPE) for _ in range(3))
    mask = random.random((2, 1, 5, 5)) > 0.4
    mask[0, 0, 2], mask[1, 0, 4] = False, False
    return q, k, v, mask if boolean else np.where(mask, random.standard_normal(mask.shape), -np.inf)


@pytest.mark.parametrize("boolean", [True, False])
def test_call_and_definition_agree_on_hidden_rows(boolean: bool) -> None:
    """Zeros in the rows of both; the other rows are those of each other."""
    inputs = _inputs(boolean)
    graph = _graph(F64, BOOL if boolean else F64)
    [wanted] = interpret(graph, dict(zip("qkvm", inputs, strict=True)))
    [got] = call_library("attention", [torch.from_numpy(x) for x in inputs], ATTRIBUTES)
    assert got is not None and not np.asarray(wanted)[0, :, 2].any() and not np.asarray(wanted)[1, :, 4].any()
    np.testing.assert_allclose(got.numpy(), wanted, atol=1e-12)
    call = attention_call(graph.nodes[-1], graph)
    assert call is not None and call.hidden_are_zeros


def test_boolean_masks_are_added_as_infinities() -> None:
    """No finite number stands for a hidden place: torch chooses the kernels, and one of them would let a hidden row see everything."""
    mask = torch.tensor([[True, False], [False, False]])
    assert torch.equal(added_mask(mask, torch.float16), torch.tensor([[0.0, -torch.inf], [-torch.inf, -torch.inf]], dtype=torch.float16))
    added = torch.zeros(2, 2)
    assert added_mask(added, torch.float32) is added


def test_masks_of_narrow_types_are_those_of_the_scores() -> None:
    """The type of the queries, which torch asks of a mask that is added."""
    inputs = [torch.from_numpy(x).to(torch.bfloat16 if n < 3 else torch.bool) for n, x in enumerate(_inputs(True))]
    [got] = call_library("attention", inputs, ATTRIBUTES)
    assert got is not None and got.dtype == torch.bfloat16 and not got[0, :, 2].any() and not got.isnan().any()
