"""Gradients of arrays on the host executor against torch.autograd, second ones too, and what `grad` says to wrong uses."""
from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import tilefuse.array as ta
from tilefuse import nn
from tilefuse.base.bounded import Bounded
from tilefuse.base.errors import ShapeError, TypeMismatchError, UserError

Pair = tuple[Callable[..., Any], Callable[..., Any], tuple[tuple[int, ...], ...]]


def attention(q: ta.Array, k: ta.Array, v: ta.Array) -> ta.Array:
    scores = q @ k.mT * (q.shape[-1] ** -0.5)
    return ta.softmax(scores, axis=-1) @ v


def batch_norm(x: ta.Array, weight: ta.Array, bias: ta.Array) -> ta.Array:
    """By hand from array operations: nothing of it is an operator of its own."""
    mean = ta.mean(x, axis=(0, 2, 3), keepdims=True)
    spread = ta.var(x, axis=(0, 2, 3), keepdims=True)
    shape = (1, -1, 1, 1)
    return (x - mean) / ta.sqrt(spread + 1e-5) * ta.reshape(weight, shape) + ta.reshape(bias, shape)


def gram(x: Any) -> Any:
    """Positive definite matrices made of any."""
    return x @ x.mT + (torch.eye(x.shape[-1]) if isinstance(x, torch.Tensor) else ta.eye(x.shape[-1]))


def svd_parts(u: Any, s: Any, vh: Any) -> Any:
    """Of a decomposition what its signs do not change."""
    return (u * u) @ (vh * vh * s[..., None])


CASES: dict[str, Pair] = {
    "solve": (lambda a, x: ta.linalg.solve(gram(a), x), lambda a, x: torch.linalg.solve(gram(a), x), ((3, 3), (2, 3, 2))),
    "inverse": (lambda x: ta.linalg.matrix_power(gram(x), -2), lambda x: torch.linalg.matrix_power(gram(x), -2), ((2, 3, 3),)),
    "determinants": (lambda x: ta.linalg.det(x) + ta.linalg.slogdet(x).logabsdet,
                     lambda x: torch.linalg.det(x) + torch.linalg.slogdet(x)[1], ((2, 3, 3),)),
    "cholesky": (lambda x: ta.linalg.cholesky(gram(x)) + ta.linalg.cholesky(gram(x) * 2, upper=True),
                 lambda x: torch.linalg.cholesky(gram(x)) + torch.linalg.cholesky(gram(x) * 2, upper=True), ((2, 3, 3),)),
    "eigenvalues": (lambda x: ta.linalg.eigh(gram(x)).eigenvectors ** 2 * ta.linalg.eigvalsh(gram(x)),
                    lambda x: torch.linalg.eigh(gram(x))[1] ** 2 * torch.linalg.eigvalsh(gram(x)), ((3, 3),)),
    "orthogonal": (lambda x: ta.linalg.qr(x).Q @ ta.linalg.qr(x).R ** 2, lambda x: torch.linalg.qr(x)[0] @ torch.linalg.qr(x)[1] ** 2,
                   ((2, 4, 3),)),
    "singular_values": (lambda x: svd_parts(*ta.linalg.svd(x, full_matrices=False)) + ta.sum(ta.linalg.svd(x).S),
                        lambda x: svd_parts(*torch.linalg.svd(x, full_matrices=False)) + torch.linalg.svdvals(x).sum(), ((3, 4),)),
    "pseudo_inverse": (ta.linalg.pinv, torch.linalg.pinv, ((4, 3),)),
    "gamma": (lambda x: ta.lgamma(x * x + 0.3) + ta.digamma(x - 3.1),
              lambda x: torch.lgamma(x * x + 0.3) + torch.digamma(x - 3.1), ((3, 4),)),
    "convolution": (lambda x, w, b: nn.convolution(x, w, b, stride=2, padding=1),
                    lambda x, w, b: F.conv2d(x, w, b, stride=2, padding=1), ((2, 3, 7, 6), (4, 3, 3, 3), (4,))),
    "max_pool": (lambda x: nn.max_pool(x, 3, stride=2, padding=1), lambda x: F.max_pool2d(x, 3, 2, 1), ((2, 3, 7, 8),)),
    "mean_pool": (lambda x: nn.mean_pool(x, 2), lambda x: F.avg_pool2d(x, 2), ((2, 3, 6, 8),)),
    "layer_norm": (lambda x, w, b: nn.layer_norm(x, 1, w, b), lambda x, w, b: F.layer_norm(x, (6,), w, b), ((4, 6), (6,), (6,))),
    "group_norm": (lambda x, w, b: nn.group_norm(x, 2, w, b), lambda x, w, b: F.group_norm(x, 2, w, b), ((2, 4, 3, 3), (4,), (4,))),
    "batch_norm": (batch_norm, lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True), ((3, 2, 4, 4), (2,), (2,))),
    "softmax": (lambda x: ta.softmax(x, axis=-1), lambda x: torch.softmax(x, -1), ((4, 7),)),
    "cross_entropy": (lambda x: nn.cross_entropy(x, ta.asarray(np.arange(5) % 4)),
                      lambda x: F.cross_entropy(x, torch.arange(5) % 4), ((5, 4),)),
    "attention": (attention, F.scaled_dot_product_attention, ((2, 3, 4), (2, 5, 4), (2, 5, 3))),
    "gelu": (nn.gelu, F.gelu, ((3, 4),)),
    "relu": (lambda x: nn.relu(x) * x, lambda x: F.relu(x) * x, ((5, 4),)),
    "linear": (nn.linear, F.linear, ((2, 3, 4), (5, 4), (5,))),
    "embedding": (lambda w: nn.embedding(w, ta.asarray(np.array([[1, 2], [2, 0]]))),
                  lambda w: F.embedding(torch.tensor([[1, 2], [2, 0]]), w), ((4, 3),)),
    "sort": (lambda x: ta.sort(x, axis=0), lambda x: torch.sort(x, 0)[0], ((6, 2),)),
    "cumulative": (lambda x: ta.cumulative_sum(x, axis=1), lambda x: torch.cumsum(x, 1), ((3, 5),)),
    "stack": (lambda x, y: ta.stack([x, y * 2, x[::-1]], axis=1), lambda x, y: torch.stack([x, y * 2, x.flip(0)], 1), ((3, 2), (3, 2))),
    "matmul": (lambda x, y: ta.tanh(x @ y), lambda x, y: torch.tanh(x @ y), ((2, 3, 4), (4, 2))),
    "sum of products": (lambda x, y: ta.sum(x[:, None, :] * y[None], axis=-1), lambda x, y: (x[:, None] * y[None]).sum(-1),
                        ((80, 64), (72, 64))),
    "clip": (lambda x: ta.clip(x, -0.5, 0.5) * x, lambda x: torch.clamp(x, -0.5, 0.5) * x, ((4, 4),)),
    "subscript": (lambda x: x[1:, ::2, None] * x[0, 1], lambda x: x[1:, ::2, None] * x[0, 1], ((3, 4),)),
}


def data(shapes: tuple[tuple[int, ...], ...]) -> list[np.ndarray]:
    generator = np.random.default_rng(4)
    return [generator.standard_normal(s) for s in shapes]


@pytest.mark.parametrize("name", CASES)
def test_as_torch(name: str) -> None:
    """First and second gradients in f64 of a weighted sum of the operator's result."""
    ours, theirs, shapes = CASES[name]
    given = data(shapes)
    tensors = [torch.tensor(g, requires_grad=True) for g in given]
    expected_value = theirs(*tensors)
    weight = np.random.default_rng(9).standard_normal(tuple(expected_value.shape))
    expected = torch.autograd.grad((torch.sin(expected_value) * torch.tensor(weight)).sum(), tensors, create_graph=True)
    second = torch.autograd.grad(sum((e * e).sum() for e in expected), tensors, allow_unused=True)

    arrays = [ta.asarray(g) for g in given]
    loss = ta.sum(ta.sin(ours(*arrays)) * ta.asarray(weight))
    found = ta.grad(loss, arrays)
    squares = found[0] * 0.0
    total = ta.sum(squares)
    for g in found:
        total = total + ta.sum(g * g)
    again = ta.grad(total, arrays)
    for have, want in zip((*found, *again), (*expected, *second), strict=True):
        want = torch.zeros(have.shape) if want is None else want
        np.testing.assert_allclose(have.numpy(), want.detach().numpy(), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("kind", [ta.float16, ta.bfloat16])
def test_narrow_types_sum_in_f32(kind: Any) -> None:
    """A bias over 4096 rows: its gradient is 4096 exactly, which a sum in 16 bits would not reach. Gradients have their values' types."""
    x, bias = ta.ones((4096, 3), dtype=kind), ta.zeros((3,), dtype=kind)
    found = ta.grad(ta.sum(ta.astype(x + bias, ta.float32)), bias)
    assert found.dtype == kind
    assert found.numpy().astype(np.float64).tolist() == [4096.0] * 3


def test_the_form_of_xs_is_kept() -> None:
    x, y = ta.asarray([1.0, 2.0]), ta.asarray([3.0, 4.0])
    found = ta.grad(ta.sum(x * x * y), {"a": [x, None], "b": (y,)})
    assert found["a"][0].numpy().tolist() == [6.0, 16.0] and found["a"][1] is None
    assert found["b"][0].numpy().tolist() == [1.0, 4.0]


def test_value_and_grad_and_seeds() -> None:
    x = ta.asarray([1.0, 2.0, 3.0])
    value, slope = ta.value_and_grad(lambda p, scale: ta.sum(p["w"] ** 2) * scale)({"w": x}, 2.0)
    assert float(value) == 28.0 and slope["w"].numpy().tolist() == [4.0, 8.0, 12.0]
    (value, extra), slope = ta.value_and_grad(lambda w: (ta.sum(w), w * 2), has_aux=True)(x)
    assert float(value) == 6.0 and extra.numpy().tolist() == [2.0, 4.0, 6.0] and slope.numpy().tolist() == [1.0, 1.0, 1.0]
    assert ta.grad(x * x, x, seed=ta.asarray([1.0, 0.0, -1.0])).numpy().tolist() == [2.0, 0.0, -6.0]


def test_several_arguments_and_other_libraries_arrays() -> None:
    """A tuple of positions gives a tuple of gradients; numpy and torch arguments become arrays, at any depth."""
    value, (first, second) = ta.value_and_grad(lambda a, b: ta.sum(a["w"] * b), argument=(0, -1))(
        {"w": np.array([1.0, 2.0], np.float32)}, torch.tensor([3.0, 4.0]))
    assert float(value) == 11.0 and first["w"].numpy().tolist() == [3.0, 4.0] and second.numpy().tolist() == [1.0, 2.0]
    with pytest.raises(UserError, match="of argument 2, 1 are given"):
        ta.value_and_grad(ta.sum, argument=(0, 2))(ta.ones((2,)))


def test_through_printed_and_past_unrelated_arrays() -> None:
    """An array whose value was looked at still passes gradients on; one that the result does not depend on has gradient zero."""
    x, other = ta.asarray([1.0, 2.0]), ta.asarray([[5.0]])
    squares = x * x
    assert "4" in repr(squares)
    inner, outer, none = ta.grad(ta.sum(squares * 3.0), (squares, x, other))
    assert inner.numpy().tolist() == [3.0, 3.0] and outer.numpy().tolist() == [6.0, 12.0] and none.numpy().tolist() == [[0.0]]


def test_points_without_a_derivative() -> None:
    """The first of several greatest elements takes all; equal operands share; a constant wins a tie (relu at 0)."""
    x = ta.asarray([2.0, 2.0, 1.0])
    assert ta.grad(ta.max(x), x).numpy().tolist() == [1.0, 0.0, 0.0]
    assert ta.grad(ta.sum(ta.maximum(x, ta.asarray([2.0, 0.0, 3.0]))), x).numpy().tolist() == [0.5, 1.0, 0.0]
    zero = ta.asarray([0.0, 1.0])
    assert ta.grad(ta.sum(nn.relu(zero)), zero).numpy().tolist() == [0.0, 1.0]
    assert ta.grad(ta.sum(ta.maximum(zero, 0.0)), zero).numpy().tolist() == [0.0, 1.0]


def test_integers_cut_the_way() -> None:
    """A result that depends on a value only through integers or comparisons does not depend on it."""
    x = ta.asarray([0.5, 2.0])
    assert ta.grad(ta.sum(ta.astype(ta.astype(x, ta.int32), ta.float32)), x).numpy().tolist() == [0.0, 0.0]
    assert ta.grad(ta.sum(ta.where(x > 1.0, x, 0.0)), x).numpy().tolist() == [0.0, 1.0]


def test_wrong_uses_name_the_line() -> None:
    x, whole = ta.asarray([1.0, 2.0]), ta.asarray([1, 2])
    with pytest.raises(ShapeError, match=r"shape \(2,\) needs a seed.*(\n.*)*test_gradients.py"):
        ta.grad(x * x, x)
    with pytest.raises(TypeMismatchError, match="int64 has no gradient"):
        ta.grad(ta.sum(x), whole)
    with pytest.raises(TypeMismatchError, match="grad takes arrays, not float"):
        ta.grad(ta.sum(x), [x, 1.0])
    with pytest.raises(ShapeError, match=r"seed of shape \(3,\)"):
        ta.grad(x * x, x, seed=ta.ones((3,)))
    with pytest.raises(UserError, match="argument 2"):
        ta.value_and_grad(lambda a: ta.sum(a), argument=2)(x)
    for wrong in (lambda a: ta.linalg.qr(a).R, lambda a: ta.linalg.svd(a).U):
        a = ta.asarray(np.ones((2, 3)))
        with pytest.raises(UserError, match=r"no gradient is defined for .* 2 x 3 matrices(\n.*)*test_gradients.py"):
            ta.grad(ta.sum(wrong(a)), a)


def test_equal_structures_are_differentiated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop that is not compiled builds the same graph at every step; a printed value in between makes another one."""
    from tilefuse.arrays.evaluation import gradients as array_gradients

    calls: list[int] = []
    made = array_gradients.gradient_graph
    monkeypatch.setattr(array_gradients, "gradient_graph", lambda *a: calls.append(1) or made(*a))
    monkeypatch.setattr(array_gradients, "_gradients", Bounded(4))
    w = ta.asarray([1.0, 2.0])
    for step in range(3):
        slope = ta.grad(ta.sum(w * w * w), w)
        assert slope.numpy().tolist() == [3.0 * v * v for v in w.numpy().tolist()], f"step {step}"
        w = ta.evaluate(w - 0.125 * slope)
    assert len(calls) == 1
    square = w * w
    square.numpy()
    assert ta.grad(ta.sum(square * w), w).numpy().tolist() == pytest.approx([3.0 * v * v for v in w.numpy().tolist()])
    assert len(calls) == 2


@pytest.mark.parametrize("page", ["docs/gradients.md", "docs/arrays.md"])
def test_the_programs_of_the_page_run(page: str) -> None:
    """The program about gradients computes what the text beside it says."""
    text = (Path(__file__).parents[3] / page).read_text(encoding="utf-8")
    programs = [p for p in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "ta.grad" in p and ">>>" not in p]
    names: dict[str, Any] = {"ta": ta}
    exec(compile(programs[0], page, "exec"), names)
    w = np.array([1.0, 2.0, 3.0])
    np.testing.assert_allclose(names["slope"].numpy(), 2 * np.tanh(w) * (1 - np.tanh(w) ** 2), rtol=1e-5)
