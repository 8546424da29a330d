"""Backward parts that write gradients over values saved by their forward part: right gradients, smaller peaks, and a second backward."""
from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F

from tests.end_to_end.torch.strict import strict
from tilefuse.driver import torch_backend

ROWS, WIDTH, WORDS = 600, 24, 1000  # scores of 2.4 MB in f32


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch_backend.reset()
    yield
    torch_backend.reset()


def loss(x: torch.Tensor, w: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(x @ w.t(), labels)


def arguments(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(11)
    x = torch.randn((ROWS, WIDTH), generator=generator, dtype=dtype, requires_grad=True)
    w = (torch.randn((WORDS, WIDTH), generator=generator, dtype=dtype) / 8).requires_grad_()
    return x, w, torch.randint(0, WORDS, (ROWS,), generator=generator)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_over_saved_scores(dtype: torch.dtype) -> None:
    x, w, labels = arguments(dtype)
    run = torch.compile(loss, backend=strict)
    for _ in range(3):
        found = torch.autograd.grad(run(x, w, labels), (x, w))
        torch.testing.assert_close(found, torch.autograd.grad(loss(x, w, labels), (x, w)), rtol=1e-4, atol=1e-5)
    (backward,) = torch_backend.compiled_parts("backward")
    assert backward.program.spec.overwritten, "some gradient lies where the scores did"


def test_a_second_backward_finds_the_saved_values_unchanged() -> None:
    """Torch forbids it where buffers are donated. Without that check, the memory is copied before it is overwritten."""
    import torch._functorch.config as config

    x, w, labels = arguments(torch.float32)
    run = torch.compile(loss, backend=strict)
    torch.autograd.grad(run(x, w, labels), (x, w))
    (backward,) = torch_backend.compiled_parts("backward")
    assert backward.program.spec.overwritten
    with config.patch(donated_buffer=False):
        value = run(x, w, labels)
        first = torch.autograd.grad(value, (x, w), retain_graph=True)
        second = torch.autograd.grad(value, (x, w))
    assert all(map(torch.equal, first, second))


def test_scores_that_the_caller_receives_stay() -> None:
    def both(x: torch.Tensor, w: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores = x @ w.t()
        return F.cross_entropy(scores, labels), scores

    x, w, labels = arguments(torch.float32)
    value, scores = torch.compile(both, backend=strict)(x, w, labels)
    before = scores.detach().clone()
    torch.autograd.grad(value, (x, w))
    assert torch.equal(scores, before)


def test_values_of_one_memory_are_not_overwritten() -> None:
    """Two saved values that are windows onto one product."""
    def gated(x: torch.Tensor, w: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        first, second = (x @ w.t()).chunk(2, -1)
        return (first.sigmoid() * second.tanh() * first).square().sum()

    x, w, labels = arguments(torch.float64)
    found = torch.autograd.grad(torch.compile(gated, backend=strict)(x, w, labels), (x, w))
    torch.testing.assert_close(found, torch.autograd.grad(gated(x, w, labels), (x, w)), rtol=1e-9, atol=1e-9)
