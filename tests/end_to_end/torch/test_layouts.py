"""Memory layouts across a training step: what the forward part saves lies as suits the convolutions, and the backward part is told."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tilefuse.driver.torch_backend import backend, compiled_parts
from tilefuse.runtime.spec import CopyStep

pytestmark = pytest.mark.usefixtures("fresh")


def channels_last(gm: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
    return backend(gm, inputs, options={"strict": True, "channels_last": "always"})


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, stride=2), nn.ReLU()
    )


def gradients(run: Callable[..., Any], model: nn.Module, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = run(x)
    return (y, *torch.autograd.grad(y.square().sum(), (x, *model.parameters())))


def test_saved_activations_are_channels_last_in_both_parts() -> None:
    model = network()
    other = copy.deepcopy(model)
    x = torch.randn(2, 3, 16, 16, requires_grad=True)
    made = gradients(torch.compile(model, backend=channels_last), model, x)
    for a, e in zip(made, gradients(other, other, x), strict=True):
        torch.testing.assert_close(a, e, rtol=1e-3, atol=1e-3)
        assert a.stride() == e.stride()
    for a, e in zip(model.buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(a, e)
    (forward,), (back,) = compiled_parts("forward"), compiled_parts("backward")
    saved = {v.name: v.strides for v in forward.program.spec.values if len(v.shape) == 4 and v.name in forward.program.spec.results}
    assert any(s[1] == 1 for s in saved.values()), saved
    taken = [v.strides for v in back.program.spec.values if v.role == "input" and len(v.shape) == 4 and v.shape[1] == 8]
    assert any(s[1] == 1 for s in taken), taken
    # The gradient of the loss comes row-major; nothing else is copied on its way in.
    assert back.program.counts.argument_copies == 0


def test_running_statistics_are_updated_in_place() -> None:
    model = nn.Sequential(*(nn.BatchNorm2d(4) for _ in range(3))).train()
    other = copy.deepcopy(model)
    x = torch.randn(3, 4, 5, 5)
    compiled = torch.compile(model, backend=channels_last)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), other(x), rtol=1e-4, atol=1e-4)
    for a, e in zip(model.buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(a, e)
    (part,) = compiled_parts("inference") + compiled_parts("forward")
    assert not any(isinstance(s, CopyStep) for s in part.program.spec.steps)
