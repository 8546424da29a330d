"""Convolutions, attention and GRU cells against torch's: values and all gradients, at odd sizes and with every setting."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import tilefuse.array as ta
from tests.unit.nn.test_layers import close, same_as, tensor
from tilefuse import nn
from tilefuse.base.errors import CompilerError, ShapeError, TypeMismatchError, UserError

CONVOLUTIONS: dict[str, tuple[str, tuple[Any, ...], dict[str, Any], tuple[int, ...]]] = {
    "1d": ("Conv1d", (4, 6, 3), {}, (2, 4, 11)),
    "1d-strided": ("Conv1d", (4, 6, 5, 3, 2), {"dilation": 2, "groups": 2}, (3, 4, 23)),
    "1d-same": ("Conv1d", (3, 5, 4), {"padding": "same", "bias": False}, (2, 3, 9)),
    "1d-valid": ("Conv1d", (3, 3, 1), {"padding": "valid", "groups": 3}, (1, 3, 1)),
    "2d-same": ("Conv2d", (3, 4, (2, 5)), {"padding": "same", "dilation": (3, 1)}, (2, 3, 7, 9)),
    "transposed": ("ConvTranspose2d", (4, 6, 3), {}, (2, 4, 5, 7)),
    "transposed-strided": ("ConvTranspose2d", (4, 6, (3, 2), (2, 3), (1, 0), (1, 2)), {}, (2, 4, 5, 4)),
    "transposed-grouped": ("ConvTranspose2d", (6, 4, 3, 2, 1, 1, 2, False), {"dilation": 2}, (3, 6, 3, 5)),
    "transposed-dilated": ("ConvTranspose2d", (2, 2, (1, 3)), {"dilation": (2, 3), "output_padding": (1, 2), "groups": 2}, (1, 2, 1, 3)),
    "transposed-1d": ("ConvTranspose1d", (3, 4, 4, 3, 2, 1), {}, (2, 3, 7)),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_compute_and_differentiate_as_torch(name: str) -> None:
    kind, settings, named, shape = CONVOLUTIONS[name]
    same_as(getattr(nn, kind)(*settings, **named), getattr(torch.nn, kind)(*settings, **named), shape)


@pytest.mark.parametrize(("bias", "state", "shape"), [
    (True, True, (3, 5)), (False, True, (1, 5)), (True, False, (4, 5)), (True, True, (5,))])
def test_gru_cells_compute_and_differentiate_as_torch(bias: bool, state: bool, shape: tuple[int, ...]) -> None:
    layer, reference = nn.GRUCell(5, 7, bias, seed=3), torch.nn.GRUCell(5, 7, bias)
    reference.load_state_dict({k: torch.from_numpy(v) for k, v in layer.state_dict().items()})
    x, h, pull = tensor(shape, 1), tensor((*shape[:-1], 7), 2), tensor((*shape[:-1], 7), 4)
    given = [torch.from_numpy(v).requires_grad_() for v in ((x, h) if state else (x,))]
    wanted = reference(*given)
    expected = torch.autograd.grad((wanted * torch.from_numpy(pull)).sum(), [*given, *reference.parameters()])
    arrays = [ta.asarray(v) for v in ((x, h) if state else (x,))]
    result = layer(*arrays)
    gradients = ta.grad(ta.sum(result * ta.asarray(pull)), [*arrays, *layer.parameters().values()])
    ta.evaluate(result, *gradients)
    close(result, wanted, "the state")
    assert list(layer.parameters()) == [n for n, _ in reference.named_parameters()]
    for n, (found, one) in enumerate(zip(gradients, expected, strict=True)):
        close(found, one, f"gradient {n}")


def _masks(kind: str, length: int, keys: int, batch: int, heads: int) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(5)
    causal = np.arange(keys)[None, :] > np.arange(length)[:, None]
    padding = np.zeros((batch, keys), bool)
    padding[0, -2:] = True
    return {"none": {}, "padding": {"key_padding_mask": padding}, "bool": {"attn_mask": causal},
            "both": {"attn_mask": causal, "key_padding_mask": padding},
            "added": {"attn_mask": draw.standard_normal((length, keys)).astype(np.float32),
                      "key_padding_mask": np.where(padding, -1.5, 0.25).astype(np.float32)},
            "heads": {"attn_mask": draw.standard_normal((batch * heads, length, keys)).astype(np.float32)}}[kind]


@pytest.mark.parametrize(("mask", "batch_first", "bias", "widths", "average"), [
    ("none", False, True, (None, None), True), ("padding", True, True, (None, None), False), ("bool", True, False, (None, None), True),
    ("both", False, True, (5, 7), True), ("added", True, True, (None, 9), False), ("heads", False, False, (None, None), True)])
def test_attention_computes_and_differentiates_as_torch(mask: str, batch_first: bool, bias: bool, widths: tuple[int | None, int | None],
                                                         average: bool) -> None:
    width, heads, batch, length, keys = 12, 3, 2, 5, 7
    options = {"bias": bias, "kdim": widths[0], "vdim": widths[1], "batch_first": batch_first}
    layer = nn.MultiheadAttention(width, heads, **options, seed=2)
    reference = torch.nn.MultiheadAttention(width, heads, **options)
    state = {k: tensor(v.shape, n) / 2 for n, (k, v) in enumerate(layer.state_dict().items())}
    layer.load_state_dict(state)
    reference.load_state_dict({k: torch.from_numpy(v) for k, v in state.items()})
    assert list(layer.parameters()) == [n for n, _ in reference.named_parameters()]
    shapes = [(batch, length, width), (batch, keys, widths[0] or width), (batch, keys, widths[1] or width)]
    data = [tensor(s if batch_first else (s[1], s[0], s[2]), n + 40) for n, s in enumerate(shapes)]
    masks = _masks(mask, length, keys, batch, heads)
    given = [torch.from_numpy(x).requires_grad_() for x in data]
    wanted, weights = reference(*given, **{k: torch.from_numpy(v) for k, v in masks.items()}, average_attn_weights=average)
    pulls = [tensor(tuple(t.shape), n + 50) for n, t in enumerate((wanted, weights))]
    total = sum((t * torch.from_numpy(p)).sum() for t, p in zip((wanted, weights), pulls, strict=True))
    expected = torch.autograd.grad(total, [*given, *reference.parameters()])
    arrays = [ta.asarray(x) for x in data]
    result, told = layer(*arrays, **masks, average_attn_weights=average)
    value = ta.sum(result * ta.asarray(pulls[0])) + ta.sum(told * ta.asarray(pulls[1]))
    gradients = ta.grad(value, [*arrays, *layer.parameters().values()])
    ta.evaluate(result, told, *gradients)
    close(result, wanted, "the result")
    close(told, weights, "the weights")
    for name, found, one in zip(["query", "key", "value", *layer.parameters()], gradients, expected, strict=True):
        close(found, one, f"the gradient of {name}")


def test_attention_without_a_batch_is_causal_on_request_and_gives_no_weights_on_request() -> None:
    layer, reference = nn.MultiheadAttention(8, 2, seed=1), torch.nn.MultiheadAttention(8, 2)
    reference.load_state_dict({k: torch.from_numpy(v) for k, v in layer.state_dict().items()})
    x = tensor((6, 8), 3)
    result, none = layer(x, x, x, need_weights=False, is_causal=True)
    t = torch.from_numpy(x)
    wanted, _ = reference(t, t, t, attn_mask=torch.ones(6, 6, dtype=torch.bool).triu(1))
    assert none is None
    close(result, wanted, "the result")


def test_attention_drops_weights_in_training_alone() -> None:
    layer, x = nn.MultiheadAttention(8, 2, dropout=0.5, seed=1), ta.asarray(tensor((64, 1, 8), 3))
    _, told = nn.apply(layer, {}, x, x, x, seed=ta.asarray(3, dtype=ta.int64), average_attn_weights=False)[0]
    dropped = float((told.numpy() == 0).mean())
    assert abs(dropped - 0.5) < 6 * 0.5 / 64 / np.sqrt(2)  # six standard deviations of 2 x 64 x 64 draws
    _, told = layer.eval()(x, x, x)
    np.testing.assert_allclose(told.numpy().sum(-1), 1, rtol=1e-5)


@pytest.mark.parametrize(("error", "wrong"), [
    (ShapeError, lambda: nn.ConvTranspose2d(3, 2, 3, output_padding=1)(ta.ones((1, 3, 4, 4)))),
    (ShapeError, lambda: nn.ConvTranspose2d(3, 2, 3, padding=5)(ta.ones((1, 3, 4, 4)))),
    (ShapeError, lambda: nn.ConvTranspose2d(3, 2, 3)(ta.ones((1, 4, 4, 4)))),
    (ShapeError, lambda: nn.Conv1d(3, 2, 3)(ta.ones((1, 3, 8, 8)))),
    (ShapeError, lambda: nn.Conv1d(3, 2, 3)(ta.ones((1, 3, 2)))),
    (UserError, lambda: nn.Conv1d(3, 2, 3, stride=2, padding="same")),
    (UserError, lambda: nn.Conv1d(3, 2, 3, padding="full")),
    (UserError, lambda: nn.ConvTranspose2d(3, 2, 3, groups=2)),
    (UserError, lambda: nn.MultiheadAttention(10, 3)),
    (UserError, lambda: nn.MultiheadAttention(9, 3, dropout=2.0)),
    (ShapeError, lambda: nn.MultiheadAttention(4, 2)(ta.ones((3, 2, 4)), ta.ones((3, 1, 4)), ta.ones((3, 1, 4)))),
    (ShapeError, lambda: nn.MultiheadAttention(4, 2)(ta.ones((3, 2, 4)), ta.ones((3, 2, 5)), ta.ones((3, 2, 4)))),
    (ShapeError, lambda: nn.MultiheadAttention(4, 2)(*[ta.ones((3, 2, 4))] * 3, attn_mask=ta.zeros((3, 4)))),
    (TypeMismatchError, lambda: nn.MultiheadAttention(4, 2)(*[ta.ones((3, 2, 4))] * 3, attn_mask=ta.zeros((3, 3), dtype=ta.int32))),
    (ShapeError, lambda: nn.GRUCell(4, 2)(ta.ones((3, 5)))),
])
def test_what_does_not_fit_is_told(error: type[CompilerError], wrong: Callable[[], object]) -> None:
    with pytest.raises(error):
        wrong()
