"""Operators that users register, as functions of arrays: types, gradients, fusion, errors at the user's line."""
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import tilefuse
import tilefuse.array as ta
from tilefuse.base.errors import ShapeError, TypeMismatchError, UserError
from tilefuse.ir.custom import unregister_function
from tilefuse.runtime.nvrtc import compile_cuda

HERE = Path(__file__).name


def squash(name: str = "squash", **given: object) -> Callable[..., ta.Array]:
    """x / (1 + b |x|), a soft sign with a slope."""
    arguments = {"signature": "(x: float, b: float) -> float", "cuda": "x / (1 + b * fabs(x))",
                 "adjoint": ("g / (1 + b * abs(x)) ** 2", "-g * y * y * sign(x)")} | given
    return ta.register_operator(name, **arguments)  # type: ignore[arg-type]


def test_values_broadcast_and_types() -> None:
    op = squash()
    x = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)
    b = np.array([0.5, 1, 2, 4], np.float32)
    assert np.allclose(op(ta.asarray(x), ta.asarray(b)).numpy(), x / (1 + b * np.abs(x)), rtol=1e-6)
    assert np.allclose(op(ta.asarray(x), 2.0).numpy(), x / (1 + 2 * np.abs(x)), rtol=1e-6)
    for dtype in (ta.float16, ta.bfloat16, ta.float32, ta.float64):
        assert op(ta.ones(3, dtype=dtype), 1).dtype == dtype
    assert op(ta.asarray([1, 2]), 1).dtype == ta.float32


def test_gradients_are_those_of_the_same_thing_in_array_operations() -> None:
    op = squash()
    x = ta.asarray(np.array([-2.0, -0.3, 0.7, 3.0]))
    b = ta.asarray(np.array([0.5, 1.0, 2.0, 3.0]))
    mine = ta.grad(ta.sum(ta.exp(op(x, b))), (x, b))
    plain = ta.grad(ta.sum(ta.exp(x / (1 + b * ta.abs(x)))), (x, b))
    for a, c in zip(mine, plain, strict=True):
        assert np.allclose(a.numpy(), c.numpy(), rtol=1e-13)
    second = ta.grad(ta.sum(ta.grad(ta.sum(op(x, b)), x)), x)
    step = 1e-6
    up, down = (ta.grad(ta.sum(op(ta.asarray(x.numpy() + d), b)), x_) for d, x_ in ((0, x), (0, x)))
    assert up is not down
    moved = [ta.asarray(x.numpy() + d) for d in (step, -step)]
    high, low = (ta.grad(ta.sum(op(m, b)), m).numpy() for m in moved)
    assert np.allclose(second.numpy(), (high - low) / (2 * step), atol=1e-7)


def test_it_fuses_with_its_neighbours_and_prints_in_the_graph() -> None:
    op = squash()
    x = ta.placeholder((64, 128), name="x")
    made = tilefuse.apply_passes(ta.softmax(op(x * 2, 1.5)) + 1, ["fusion", "codegen"], device="h200")
    assert len(set(made["kernel"].values())) == 1
    assert "squash(" in "".join(str(n.body) for g in made["subgraph"].values() for n in g.nodes) or "squash" in made["plan"]


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_the_device_takes_every_type(dtype: str) -> None:
    op = squash()
    x = ta.placeholder((64,), dtype, "x")
    code, = set(tilefuse.apply_passes(op(x, 1.5), ["fusion", "codegen"], device="h200")["kernel"].values())
    assert compile_cuda(code).payload


def test_integers_booleans_and_other_results() -> None:
    parity = ta.register_operator("parity_of", "(a: int) -> bool", "(a & 1) != 0")
    assert parity(ta.asarray([1, 2, 3])).numpy().tolist() == [True, False, True]
    rank = ta.register_operator("rank_of", "(x: float) -> i32", "x > 1 ? 2 : x > 0 ? 1 : 0")
    found = rank(ta.asarray([-1.0, 0.5, 3.0]))
    assert found.dtype == ta.int32 and found.numpy().tolist() == [0, 1, 2]
    cube = ta.register_operator("cube_of", "(x: f32) -> f32", "T y2 = x * x; return y2 * x;")
    assert cube(ta.asarray([2.0, -3.0])).numpy().tolist() == [8.0, -27.0]
    with pytest.raises(TypeMismatchError, match="cube_of takes float32, not float64"):
        cube(ta.ones(2, dtype=ta.float64))


def test_errors_name_the_users_line() -> None:
    op = squash(adjoint=None)
    with pytest.raises(UserError, match="which has no adjoint") as caught:
        x = ta.ones(3)
        ta.grad(ta.sum(op(x, 1.0)), x)
    assert HERE in str(caught.value) and "adjoint=" in str(caught.value)
    with pytest.raises(ShapeError) as caught_shape:
        op(ta.ones(3), ta.ones(4))
    assert HERE in str(caught_shape.value)
    for given in ((), (ta.ones(2),), (1.0, 2.0), (ta.ones(2), "x")):
        with pytest.raises(TypeMismatchError, match="squash"):
            op(*given)
    with pytest.raises(UserError, match="exists already") as caught_name:
        squash("tanh")
    assert HERE in str(caught_name.value)


def test_a_compiled_program_finds_it_by_content() -> None:
    first = squash()(ta.ones(3), 1.0).numpy()
    unregister_function("squash")
    second = squash(cuda="x * b + 3")(ta.ones(4), 1.0).numpy()
    assert first.tolist() == [0.5] * 3 and second.tolist() == [4.0] * 4
