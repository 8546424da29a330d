"""Gradients through the functions of `tilefuse.array` against central differences in f64, by the interpreter.

What the functions record is theirs to decide; here only that whatever they record has the right gradient, and adds atomically only
where subscripts are data.
"""
from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

import tilefuse.array as ta
from tests.laws.differences import by_differences
from tests.unit.arrays.array_values import value
from tilefuse.arrays.graph import named_graph
from tilefuse.ir.interpret import interpret
from tilefuse.ir.verify import check
from tilefuse.passes.autodiff.autodiff import gradient_graph

POINT = np.random.default_rng(0).uniform(0.3, 1.5, (3, 4, 2))
ATOMIC = ("take", "take_along_axis", "subscript by arrays", "put", "put at slices and arrays")

FUNCTIONS: dict[str, Callable[[ta.Array], ta.Array]] = {
    "var": lambda x: ta.var(x, axis=1),
    "std": lambda x: ta.std(x, axis=(0, 2), correction=1),
    "mean": lambda x: ta.mean(x, axis=2, keepdims=True),
    "roll": lambda x: ta.roll(x, 2, axis=1),
    "roll flat": lambda x: ta.roll(x, 3),
    "take": lambda x: ta.take(x, ta.asarray([2, 0, 2]), axis=0),
    "take_along_axis": lambda x: ta.take_along_axis(x, ta.zeros((3, 2, 2), dtype=ta.int64) + 1, axis=1),
    "cumulative_prod": lambda x: ta.cumulative_prod(x, axis=1),
    "cumulative_sum": lambda x: ta.cumulative_sum(x, axis=0, include_initial=True),
    "prod": lambda x: ta.prod(x, axis=(0, 1)),
    "max": lambda x: ta.max(x, axis=1),
    "min": ta.min,
    "repeat": lambda x: ta.repeat(x, 3, axis=1),
    "tile": lambda x: ta.tile(x, (2, 1, 2)),
    "pad": lambda x: ta.pad(x, ((1, 0), (0, 2), (1, 1))),
    "diff": lambda x: ta.diff(x, axis=1, n=2),
    "where": lambda x: ta.where(x > 0.8, x * x, ta.sqrt(x)),
    "clip": lambda x: ta.clip(x, 0.5, 1.0),
    "logaddexp": lambda x: ta.logaddexp(x, x * 2),
    "hypot": lambda x: ta.hypot(x, 1 + x),
    "flip": lambda x: ta.flip(x, axis=(0, 2)),
    "permute_dims": lambda x: ta.permute_dims(x, (2, 0, 1)),
    "moveaxis": lambda x: ta.moveaxis(x, 0, -1),
    "diagonal": ta.diagonal,
    "tril": lambda x: ta.tril(ta.permute_dims(x, (2, 0, 1))),
    "stack": lambda x: ta.stack([x, x * 2], axis=1),
    "concat": lambda x: ta.concat([x, x[:1] * 3], axis=0),
    "split": lambda x: ta.split(x, 2, axis=1)[1],
    "unstack": lambda x: ta.unstack(x, axis=1)[2],
    "subscript": lambda x: x[1:, ::-2, None, 0],
    "subscript by arrays": lambda x: x[ta.asarray([0, 2, 2])],
    "einsum": lambda x: ta.einsum("ijk,ljk->il", x, x),
    "tensordot": lambda x: ta.tensordot(x, x, axes=((1, 2), (1, 2))),
    "outer": lambda x: ta.outer(x[0, :, 0], x[1, :, 1]),
    "vecdot": lambda x: ta.vecdot(x, x * x),
    "matmul": lambda x: x @ x.mT,
    "softmax": lambda x: ta.softmax(x, axis=1),
    "logsumexp": lambda x: ta.logsumexp(x, axis=(0, 1)),
    "power": lambda x: x**2.5 + x**2 + 2.0**x,
    "abs": lambda x: abs(x - 0.9),
    "remainder": lambda x: (x * 3) % 0.7,
    "fma": lambda x: ta.fma(x, x, x),
    "atan2": lambda x: ta.atan2(x, 1 + x),
    "maximum": lambda x: ta.maximum(x, 1.5 - x),
    "broadcast_to": lambda x: ta.broadcast_to(x[:, :1], (3, 4, 2)),
    "reshape": lambda x: ta.reshape(x, (4, 6)),
    "quotient of a sum": lambda x: x / ta.sum(x, axis=1, keepdims=True),
    "round": lambda x: ta.round(x) * x,
    "put": lambda x: ta.put(x, (ta.asarray([0, 2]),), x[:2] * 3),
    "put at slices": lambda x: ta.put(x, (slice(None, None, -2), 1), x[1:, :2, 0].T * x[0, 3, 1]),
    "put at slices and arrays": lambda x: ta.put(x, (slice(1, None), None, ta.asarray([3, -4])), x[0, :2] ** 2),
    "put at a mask": lambda x: ta.put(x, x > 0.9, x[0, 0, 0] * 3),
    "put at a mask of rows": lambda x: ta.put(x * x, (slice(1, 3), x[0, :, 1] > 0.8), x[0, :1] * x[2, 2], accumulate=True),
    "special": lambda x: ta.log1p(x) + ta.expm1(x) + ta.erf(x) + ta.lgamma(x) + ta.rsqrt(x) + ta.reciprocal(x),
    "angles": lambda x: ta.sin(x) * ta.cos(x) + ta.tan(x / 2) + ta.asin(x / 2) + ta.acos(x / 2) + ta.atan(x),
    "hyperbolic": lambda x: ta.sinh(x) + ta.cosh(x) + ta.acosh(1 + x) + ta.asinh(x) + ta.atanh(x / 2),
    "counts": lambda x: ta.astype(ta.count_nonzero(x, axis=1), ta.float64) + ta.sum(x, axis=1),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_of_arrays(name: str) -> None:
    x = ta.asarray(POINT)
    y = FUNCTIONS[name](x)
    weight = ta.asarray(np.cos(np.arange(y.size) * 0.37).reshape(y.shape))
    made = named_graph([ta.sum(ta.sin(y) * weight), x], "gradient")
    of, wrt = made.graph.results
    inputs = {i.name: leaf.buffer.numpy() for i, leaf in zip(made.graph.inputs, made.leaves, strict=True)}
    gradients = gradient_graph(made.graph, of, [wrt])
    check(gradients, name)
    expected = by_differences(made.graph, 0, wrt, inputs)
    np.testing.assert_allclose(interpret(gradients, inputs)[0], expected, rtol=0, atol=1e-5 * max(1.0, float(np.abs(expected).max())))
    scatters = [n for n in gradients.nodes[len(made.graph.nodes) :] if n.category == "scatter"]
    assert not scatters or name in ATOMIC


ZEROS, TIED = np.zeros(3), np.array([1.0, 2.0, 2.0, -1.0])
# Where a rule written down without care gives NaN, or torch's answer is the one people expect.
EDGES: dict[str, tuple[Callable[..., ta.Array], Callable[..., torch.Tensor], tuple[np.ndarray, ...]]] = {
    "norm of zeros": (ta.linalg.vector_norm, torch.linalg.vector_norm, (ZEROS,)),
    "third norm of zeros": (lambda x: ta.linalg.vector_norm(x, ord=3), lambda x: torch.linalg.vector_norm(x, ord=3), (ZEROS,)),
    "norm of rows, one of zeros": (lambda x: ta.linalg.vector_norm(x, axis=1), lambda x: torch.linalg.vector_norm(x, dim=1),
                                   (np.array([[0.0, 0.0], [3.0, -4.0]]),)),
    "Frobenius norm": (ta.linalg.matrix_norm, torch.linalg.matrix_norm, (np.zeros((2, 2)),)),
    "deviation of equal elements": (ta.std, lambda x: torch.std(x, correction=0), (np.full(4, 3.0),)),
    "deviation of one element": (ta.std, lambda x: torch.std(x, correction=0), (np.array([5.0]),)),
    "angle of nothing": (ta.atan2, torch.atan2, (np.array([0.0, 1.0, -0.0]), np.array([0.0, 0.0, -2.0]))),
    "powers of zero": (ta.pow, torch.pow, (np.array([0.0, 0.0, 2.0]), np.array([0.0, 2.0, 0.0]))),
    "absolute value at zero": (ta.abs, torch.abs, (np.array([0.0, -0.0, -2.0]),)),
    "product with a zero": (ta.prod, torch.prod, (np.array([0.0, 2.0, 3.0]),)),
    "product with two": (ta.prod, torch.prod, (np.array([0.0, 2.0, 0.0]),)),
    "running product with a zero": (ta.cumulative_prod, lambda x: torch.cumprod(x, 0), (np.array([2.0, 0.0, 3.0]),)),
    "halves of a tie": (ta.maximum, torch.maximum, (TIED, np.array([1.0, 3.0, 2.0, -2.0]))),
    "a mask inside and outside": (lambda x: ta.where(x > 0, ta.log(ta.where(x > 0, x, 1.0)), 0.0),
                                  lambda x: torch.where(x > 0, torch.log(torch.where(x > 0, x, 1.0)), 0.0), (TIED,)),
    "softmax of a masked row": (lambda x: ta.softmax(ta.where(x > 0, x, -float("inf")), axis=0) * ta.asarray(TIED),
                                lambda x: torch.softmax(torch.where(x > 0, x, -float("inf")), 0) * torch.from_numpy(TIED), (TIED,)),
    "no elements": (ta.mean, lambda x: x.mean(), (np.zeros((0, 3)),)),
    "no dimensions": (lambda x: ta.sqrt(x) * ta.ones((2, 3)), lambda x: torch.sqrt(x) * torch.ones(2, 3), (np.array(4.0),)),
    "broadcasting": (lambda x, y: x * y, lambda x, y: x * y, (np.ones((3, 1)), np.arange(8.0).reshape(2, 1, 4))),
}


@pytest.mark.parametrize("name", EDGES)
def test_gradients_where_care_is_needed(name: str) -> None:
    """As torch has them, exactly or nearly: never NaN where torch has a number."""
    ours, theirs, points = EDGES[name]
    xs = [ta.asarray(p) for p in points]
    tensors = [torch.from_numpy(p).requires_grad_() for p in points]
    wanted = torch.autograd.grad(theirs(*tensors).sum(), tensors)
    for found, expected in zip(ta.grad(ta.sum(ours(*xs)), xs), wanted, strict=True):
        np.testing.assert_allclose(value(found), expected.numpy(), rtol=1e-12, atol=1e-14)


SMOOTH = np.array([0.3, 0.7, -0.4])
UNARY: dict[str, tuple[str, np.ndarray]] = {
    **{n: (n, SMOOTH) for n in ("acos", "asin", "asinh", "atan", "atanh", "cos", "cosh", "erf", "erfc", "erfinv", "exp", "exp2", "expm1",
                                "log1p", "reciprocal", "sigmoid", "sin", "sinh", "square", "tan", "tanh")},
    **{n: (n, np.abs(SMOOTH)) for n in ("log", "log2", "log10", "sqrt", "rsqrt")}, "acosh": ("acosh", SMOOTH + 2),
}


def test_second_gradients_of_elementwise_functions() -> None:
    """The gradient of the squared gradient, of all functions of one float."""
    for ours, (theirs, at) in UNARY.items():
        x, tensor = ta.asarray(at), torch.from_numpy(at).requires_grad_()
        slope = ta.grad(ta.sum(getattr(ta, ours)(x)), x)
        first, = torch.autograd.grad(getattr(torch, theirs)(tensor).sum(), tensor, create_graph=True)
        second, = torch.autograd.grad((first * first).sum(), tensor)
        np.testing.assert_allclose(value(ta.grad(ta.sum(slope * slope), x)), second.numpy(), rtol=1e-9, err_msg=ours)
