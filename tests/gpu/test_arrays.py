"""Symbolic arrays on a CUDA device: values, types, sharing of memory, and the overhead of a known structure."""
from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
import torch

import tilefuse.array as ta
from tests.end_to_end.arrays.array_cases import check_values, check_writes, drawn, many_functions
from tilefuse.base.errors import UserError

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.mark.parametrize("shape", ((6, 10), (130, 2050)), ids=str)
def test_values(shape: tuple[int, int]) -> None:
    """Results of every kind of function in one program, against numpy."""
    cases = many_functions(*shape)
    ta.evaluate(*(made for made, _ in cases.values()))
    assert all(made.device == "cuda:0" for made, _ in cases.values())
    check_values(cases)


@pytest.mark.parametrize("dtype", ("float16", "bfloat16", "float64", "int8", "uint8", "int16", "uint16", "uint32", "uint64"))
def test_types(dtype: str) -> None:
    """Every type goes in, through a kernel, a sort and out again."""
    data = np.array([[0, 1, 5], [7, 2, 1]])
    x = ta.astype(ta.asarray(data), dtype)
    assert (x + x).numpy().astype("int64").tolist() == (data * 2).tolist()
    assert ta.sort(x, axis=1).numpy().astype("int64").tolist() == np.sort(data, axis=1).tolist()


def test_memory_is_shared_with_torch() -> None:
    """DLPack both ways without a copy, also of views; data moves between the devices on request."""
    tensor = torch.arange(12.0, device="cuda").reshape(3, 4)
    x = ta.asarray(tensor.t())
    assert x.device == "cuda:0" and torch.from_dlpack(x).data_ptr() == tensor.data_ptr()
    made = x[1:] * 2
    back = torch.from_dlpack(made)
    assert back.is_cuda and torch.equal(back, tensor.t()[1:] * 2)
    host = made.to_device("host")
    assert host.device == "host" and np.array_equal(host.numpy(), back.cpu().numpy()) and host.to_device("cuda").device == "cuda:0"
    with pytest.raises(UserError, match="lie on cuda:0 and host"):
        made + host
    assert torch.equal(torch.from_dlpack(made * ta.asarray(2.0, device="host")), back * 2)


def test_random_numbers_are_those_of_the_host() -> None:
    """Counter-based: the same bits everywhere (uniform numbers exactly)."""
    here, there = ta.random.uniform((1000, 7), seed=4), ta.random.uniform((1000, 7), seed=4, device="host")
    np.testing.assert_array_equal(here.numpy(), there.numpy())


def test_overhead_of_a_known_structure() -> None:
    """Ten operations are recorded, found and launched in well under a millisecond."""
    w: Any = ta.asarray(drawn(64, 64))
    best = 1.0
    for _ in range(50):
        began = time.perf_counter()
        w = ta.evaluate(w - (w * w * 0.25 + ta.tanh(w) / 8.0 - 1.0) * 0.01)
        best = min(best, time.perf_counter() - began)
    assert best < 5e-4, f"{best * 1e6:.0f} us"


def test_writes_and_masks() -> None:
    """`x[key] = value` by the framework where data is known, by kernels elsewhere; what masks read."""
    check_writes("cuda:0")
