"""Layers and losses against torch's: values, and gradients of inputs and parameters through the graph, on the host executor."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import tilefuse.array as ta
from tilefuse import nn
from tilefuse.base.errors import CompilerError, ShapeError, TypeMismatchError, UserError

# Sums of some hundred f32 products of numbers near one. Source: Higham 2002, section 3.1, with the usual growth by the root of the length.
TOLERANCE = 2e-5


def tensor(shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Normally distributed f32 numbers."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def close(found: Any, wanted: Tensor, what: str) -> None:
    """Fails where arrays differ by more than rounding, relative to the largest element."""
    a, b = found.numpy().astype(np.float64), wanted.detach().numpy().astype(np.float64)
    assert a.shape == b.shape, what
    assert np.abs(a - b).max() <= TOLERANCE * max(np.abs(b).max(), 1.0), f"{what}: {np.abs(a - b).max()}"


def same_as(layer: nn.Module, reference: torch.nn.Module, shape: tuple[int, ...]) -> None:
    """Compares result, statistics and all gradients of a layer with those of torch's, from equal weights."""
    state = layer.state_dict()
    reference.load_state_dict({k: torch.from_numpy(state[k]) if k in state else v for k, v in reference.state_dict().items()})
    x, seed = tensor(shape, 1), 2
    given = torch.from_numpy(x).requires_grad_()
    wanted = reference(given)
    pull = tensor(tuple(wanted.shape), seed)
    wanted_gradients = torch.autograd.grad((wanted * torch.from_numpy(pull)).sum(), [given, *reference.parameters()])
    array = ta.asarray(x)
    result, statistics = nn.apply(layer, layer.parameters(), array)
    names, parameters = list(layer.parameters()), list(layer.parameters().values())
    gradients = ta.grad(ta.sum(result * ta.asarray(pull)), [array, *parameters])
    ta.evaluate(result, *gradients, *statistics.values())
    close(result, wanted, "the result")
    own = [name for name, _ in reference.named_parameters()]
    assert own == names
    for name, found, expected in zip(["x", *names], gradients, wanted_gradients, strict=True):
        close(found, expected, f"the gradient of {name}")
    for name, value in statistics.items():
        close(value, reference.state_dict()[name], name)


LAYERS: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(7, 5), lambda: torch.nn.Linear(7, 5), (3, 2, 7)),
    "convolution": (lambda: nn.Conv2d(4, 6, 3, 2, 1, groups=2), lambda: torch.nn.Conv2d(4, 6, 3, 2, 1, groups=2), (2, 4, 7, 9)),
    "max-pool": (lambda: nn.MaxPool2d(3, 2, 1), lambda: torch.nn.MaxPool2d(3, 2, 1), (2, 3, 8, 9)),
    "mean-pool": (lambda: nn.AvgPool2d(3, 2, 1), lambda: torch.nn.AvgPool2d(3, 2, 1), (2, 3, 8, 9)),
    "batch-norm": (lambda: nn.BatchNorm2d(5), lambda: torch.nn.BatchNorm2d(5), (3, 5, 4, 2)),
    "layer-norm": (lambda: nn.LayerNorm((4, 5)), lambda: torch.nn.LayerNorm((4, 5)), (3, 4, 5)),
    "group-norm": (lambda: nn.GroupNorm(2, 6), lambda: torch.nn.GroupNorm(2, 6), (3, 6, 5)),
    "relu-chain": (lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3), nn.Tanh()),
                   lambda: torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(8, 3),
                                               torch.nn.Tanh()), (4, 6)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_compute_and_differentiate_as_torch(name: str) -> None:
    make, reference, shape = LAYERS[name]
    same_as(make(), reference(), shape)


ACTIVATIONS: dict[str, tuple[Callable[[Any], Any], Callable[[Tensor], Tensor]]] = {
    "relu": (nn.relu, F.relu),
    "leaky-relu": (nn.leaky_relu, F.leaky_relu),
    "elu": (nn.elu, F.elu),
    "sigmoid": (nn.sigmoid, torch.sigmoid),
    "silu": (nn.silu, F.silu),
    "gelu": (nn.gelu, F.gelu),
    "gelu-tanh": (lambda x: nn.gelu(x, "tanh"), lambda x: F.gelu(x, approximate="tanh")),
    "softplus": (nn.softplus, F.softplus),
}


def test_activations_and_their_derivatives() -> None:
    """Also at zero and at large numbers, where careless formulas overflow."""
    x = np.concatenate([tensor((40,), 3), np.array([0.0, 60.0, -60.0, 1e4, -1e4], np.float32)])
    array, given = ta.asarray(x), torch.from_numpy(x).requires_grad_()
    found: dict[str, tuple[Any, Any]] = {}
    for name, (ours, _) in ACTIVATIONS.items():
        y = ours(array)
        found[name] = y, ta.grad(ta.sum(y), array)
    ta.evaluate(*(a for pair in found.values() for a in pair))
    for name, (_, theirs) in ACTIVATIONS.items():
        y = theirs(given)
        close(found[name][0], y, name)
        close(found[name][1], torch.autograd.grad(y.sum(), given)[0], f"the derivative of {name}")


def test_losses_and_their_gradients() -> None:
    logits, classes = tensor((6, 5), 4), np.array([0, 4, 2, 2, 1, 3])
    pixels, labels = tensor((2, 3, 4), 5), np.random.default_rng(6).integers(0, 3, (2, 4))
    wanted, shares = tensor((6, 5), 7), np.random.default_rng(8).uniform(size=(6, 5)).astype(np.float32)
    cases: list[tuple[np.ndarray, Callable[[Any], Any], Callable[[Tensor], Tensor]]] = [
        (logits, lambda x: nn.cross_entropy(x, ta.asarray(classes)), lambda x: F.cross_entropy(x, torch.from_numpy(classes))),
        (logits, lambda x: nn.cross_entropy(x, ta.asarray(classes), label_smoothing=0.1, reduction="sum"),
         lambda x: F.cross_entropy(x, torch.from_numpy(classes), label_smoothing=0.1, reduction="sum")),
        (pixels, lambda x: nn.cross_entropy(x, ta.asarray(labels)), lambda x: F.cross_entropy(x, torch.from_numpy(labels))),
        (logits, lambda x: nn.mse(x, ta.asarray(wanted)), lambda x: F.mse_loss(x, torch.from_numpy(wanted))),
        (logits, lambda x: nn.l1(x, ta.asarray(wanted)), lambda x: F.l1_loss(x, torch.from_numpy(wanted))),
        (logits, lambda x: nn.binary_cross_entropy_with_logits(x, ta.asarray(shares)),
         lambda x: F.binary_cross_entropy_with_logits(x, torch.from_numpy(shares))),
    ]
    made = []
    for x, ours, _ in cases:
        array = ta.asarray(x)
        loss = ours(array)
        made.append((loss, ta.grad(loss, array)))
    ta.evaluate(*(a for pair in made for a in pair))
    for number, ((x, _, theirs), (loss, gradient)) in enumerate(zip(cases, made, strict=True)):
        given = torch.from_numpy(x).requires_grad_()
        expected = theirs(given)
        close(loss, expected, f"loss {number}")
        close(gradient, torch.autograd.grad(expected, given)[0], f"the gradient of loss {number}")


def test_embedding_adds_gradients_of_equal_rows() -> None:
    layer = nn.Embedding(5, 3, seed=1)
    numbers, pull = np.array([[1, 4], [1, 1]]), tensor((2, 2, 3), 9)
    y = layer(ta.asarray(numbers))
    gradient = ta.grad(ta.sum(y * ta.asarray(pull)), layer.weight)
    ta.evaluate(y, gradient)
    weight = torch.from_numpy(layer.state_dict()["weight"]).requires_grad_()
    wanted = F.embedding(torch.from_numpy(numbers), weight)
    close(y, wanted, "rows")
    close(gradient, torch.autograd.grad((wanted * torch.from_numpy(pull)).sum(), weight)[0], "the gradient")


def test_batch_norm_in_evaluation_uses_running_statistics() -> None:
    layer, reference = nn.BatchNorm2d(3), torch.nn.BatchNorm2d(3)
    state = {"running_mean": tensor((3,), 1), "running_var": np.abs(tensor((3,), 2)) + 0.5}
    layer.load({k: ta.asarray(v) for k, v in state.items()})
    reference.load_state_dict(reference.state_dict() | {k: torch.from_numpy(v) for k, v in state.items()})
    x = tensor((2, 3, 4), 3)
    result, statistics = nn.apply(layer.eval(), {}, ta.asarray(x))
    close(result, reference.eval()(torch.from_numpy(x).unsqueeze(-1)).squeeze(-1), "the result")
    assert statistics["running_mean"] is layer.running_mean


def test_narrow_activations_keep_wide_parameters() -> None:
    """A network of f32 weights given bf16 computes in bf16, and its gradients are f32."""
    layer = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    y = layer(ta.astype(ta.asarray(tensor((2, 4), 1)), ta.bfloat16))
    assert y.dtype == ta.bfloat16
    assert all(g.dtype == ta.float32 for g in ta.grad(ta.sum(ta.astype(y, ta.float32)), list(layer.parameters().values())))


def test_dropout_follows_its_seed_and_scales_what_is_kept() -> None:
    layer, x = nn.Dropout(0.25), ta.ones((4000,))
    draws = [nn.apply(layer, {}, x, seed=ta.asarray(n, dtype=ta.int64))[0].numpy() for n in (1, 1, 2)]
    assert (draws[0] == draws[1]).all() and (draws[0] != draws[2]).any()
    assert set(np.unique(draws[0])) == {np.float32(0.0), np.float32(1 / 0.75)}
    assert abs(float((draws[0] > 0).mean()) - 0.75) < 0.04  # six standard deviations
    assert nn.apply(layer.eval(), {}, x)[0] is x


@pytest.mark.parametrize(("error", "wrong"), [
    (ShapeError, lambda: nn.Linear(3, 2)(ta.ones((4, 5)))),
    (ShapeError, lambda: nn.Conv2d(3, 2, 3)(ta.ones((1, 4, 8, 8)))),
    (ShapeError, lambda: nn.BatchNorm2d(3)(ta.ones((2, 4, 5, 5)))),
    (ShapeError, lambda: nn.cross_entropy(ta.ones((4, 5)), ta.zeros((3,), dtype=ta.int64))),
    (TypeMismatchError, lambda: nn.cross_entropy(ta.ones((4, 5)), ta.zeros((4,)))),
    (TypeMismatchError, lambda: nn.relu(ta.zeros((4,), dtype=ta.int64))),
    (ShapeError, lambda: nn.mse(ta.ones((4, 5)), ta.ones((5,)))),
    (UserError, lambda: nn.mse(ta.ones((4,)), ta.ones((4,)), reduction="average")),
    (UserError, lambda: nn.BatchNorm2d(3)(ta.ones((1, 3)))),
    (UserError, lambda: nn.Dropout(1.5)),
])
def test_wrong_shapes_and_types_are_told_where_they_meet(error: type[CompilerError], wrong: Callable[[], object]) -> None:
    with pytest.raises(error):
        wrong()


def test_a_shape_error_names_the_line_of_the_user() -> None:
    with pytest.raises(ShapeError) as told:
        nn.Linear(3, 2)(ta.ones((4, 5)))
    assert "test_layers.py" in str(told.value)
