"""Compiled functions of arrays on a device: donated memory, replays, sessions, registered operators."""
from __future__ import annotations

import numpy as np
import pytest
import torch

import tilefuse.array as ta
from tilefuse.base.errors import UserError

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


def step(state: dict[str, ta.Array], x: ta.Array) -> tuple[dict[str, ta.Array], ta.Array]:
    return {"w": state["w"] - 0.5 * x, "m": state["m"] * 0.5 + x}, ta.sum(state["w"])


def start(seed: int) -> dict[str, ta.Array]:
    draw = np.random.default_rng(seed)
    return {k: ta.asarray(torch.from_numpy(draw.standard_normal((64, 48), dtype=np.float32)).cuda()) for k in ("w", "m")}


@pytest.mark.parametrize("cuda_graph", [False, True])
def test_steps_update_donated_memory(cuda_graph: bool) -> None:
    compiled = ta.compile(step, donate=0, cuda_graph=cuda_graph)
    state = start(0)
    w, m = state["w"].numpy().copy(), state["m"].numpy().copy()
    places = [v.buffer().data_ptr() for v in state.values()]
    first = state
    for number in range(6):
        x = ta.asarray(torch.full((64, 48), float(number + 1)).cuda())
        state, total = compiled(state, x)
        # Sums of 3072 terms of size below 20 in another order: Higham 2002, section 4.2.
        assert abs(float(total) - float(w.sum(dtype=np.float64))) <= 3072 * 20 * 3072 * 2**-24
        w, m = w - np.float32(0.5 * (number + 1)), m * np.float32(0.5) + np.float32(number + 1)
        assert np.allclose(state["w"].numpy(), w, atol=1e-5) and np.allclose(state["m"].numpy(), m, atol=1e-5)
    assert [v.buffer().data_ptr() for v in state.values()] == places
    with pytest.raises(UserError, match="donated"):
        first["w"].numpy()
    # Other tensors after a replay: they are looked at again.
    other, total = compiled(start(3), ta.asarray(torch.ones(64, 48).cuda()))
    assert abs(float(total) - float(start(3)["w"].numpy().sum(dtype=np.float64))) <= 3072 * 20 * 3072 * 2**-24
    state, _ = compiled(state, ta.asarray(torch.ones(64, 48).cuda()))
    assert np.allclose(state["w"].numpy(), w - np.float32(0.5), atol=1e-5)
    assert np.allclose(other["w"].numpy(), start(3)["w"].numpy() - 0.5, atol=1e-6)


def test_random_numbers_of_a_replayed_function_differ() -> None:
    fn = ta.compile(lambda x: x + ta.random.uniform((1024,)), cuda_graph=True)
    x = ta.asarray(torch.zeros(1024).cuda())
    found = [fn(x).numpy().copy() for _ in range(3)]
    assert not np.array_equal(found[0], found[1]) and not np.array_equal(found[1], found[2])


def test_a_session_trains() -> None:
    x, t = ta.placeholder((32, 3), name="x"), ta.placeholder((32,), name="t")
    w = ta.variable(np.zeros(3, np.float32))
    assert w.device.startswith("cuda")
    loss = ta.mean((x @ w - t) ** 2)
    session, update = ta.Session(), w.assign(w - 0.2 * ta.grad(loss, w))
    given = np.random.default_rng(0).standard_normal((32, 3)).astype(np.float32)
    for _ in range(80):
        session.run(update, {x: given, t: given @ np.array([1, -2, 3], np.float32)})
    assert np.abs(w.value.numpy() - [1, -2, 3]).max() < 0.05


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_registered_operators_agree_with_array_operations(dtype: str) -> None:
    swish = ta.register_operator("swish_on_device", "(x: float, b: float) -> float", "x / (1 + exp(-b * x))")
    x = ta.random.normal((1000,), dtype=dtype, seed=1)
    one, other = swish(x, 1.5), x / (1 + ta.exp(-1.5 * x))
    bits = {"float16": 10, "bfloat16": 7, "float32": 23, "float64": 52}[dtype]
    # Array operations round to their type between; the operator rounds once.
    assert np.allclose(one.numpy().astype(np.float64), other.numpy().astype(np.float64), rtol=8 * 2.0**-bits, atol=2.0**-bits)


def test_the_first_nan_is_named() -> None:
    x = ta.asarray(torch.tensor([1.0, -1.0]).cuda())
    with ta.trace_nan(), pytest.raises(UserError, match="log"):
        ta.evaluate(ta.exp(ta.log(x)))
