"""Losses over many classes: the logarithm of the softmax is not kept for the gradient, but computed again from the scores."""
from __future__ import annotations

import pytest
import torch

from tilefuse.driver.torch_backend import backend
from tilefuse.frontends.torch.decompositions import LARGE_LOG_SOFTMAX_BYTES

TOKENS, WORDS = 96, 50257
SETTINGS: dict[str, dict[str, object]] = {
    "mean": {}, "sum": {"reduction": "sum"}, "none": {"reduction": "none"}, "smoothed": {"label_smoothing": 0.1},
    "weighted": {"weight": True}, "ignored": {"ignore_index": 7},
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", SETTINGS)
def test_gradients_over_a_vocabulary(name: str) -> None:
    """Against f64, with labels that do not count; what is kept for the gradient is smaller than the logarithms."""
    assert TOKENS * WORDS * 4 >= LARGE_LOG_SOFTMAX_BYTES
    settings = dict(SETTINGS[name])
    if settings.pop("weight", False):
        settings["weight"] = torch.rand(WORDS) + 0.5
    head = torch.nn.Linear(24, WORDS, bias=False)
    x = torch.randn(TOKENS, 24, requires_grad=True)
    labels = torch.randint(0, WORDS, (TOKENS,))
    labels[::5] = settings.get("ignore_index", -100)  # type: ignore[call-overload]

    def loss(head: torch.nn.Module, x: torch.Tensor, labels: torch.Tensor, **given: object) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(head(x), labels, **given).sum()  # type: ignore[arg-type]

    torch._dynamo.reset()
    kept: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: (kept.append(t.numel() * t.element_size()), t)[1], lambda t: t):
        ours = torch.compile(loss, backend=backend)(head, x, labels, **settings)
    mine = torch.autograd.grad(ours, [x, head.weight])
    wide = {k: v.double() if isinstance(v, torch.Tensor) else v for k, v in settings.items()}
    exact_head, exact_x = torch.nn.Linear(24, WORDS, bias=False).double(), x.detach().double().requires_grad_()
    exact_head.weight = torch.nn.Parameter(head.weight.detach().double())
    exact = loss(exact_head, exact_x, labels, **wide)
    torch.testing.assert_close(ours.double(), exact, rtol=1e-5, atol=1e-5)
    for got, wanted in zip(mine, torch.autograd.grad(exact, [exact_x, exact_head.weight]), strict=True):
        torch.testing.assert_close(got.double(), wanted, rtol=1e-3, atol=1e-5 * float(wanted.abs().max()))
    if name == "mean":
        large = [n for n in kept if n >= LARGE_LOG_SOFTMAX_BYTES]
        assert len(large) == 1  # the scores


def test_a_small_loss_stays_whole() -> None:
    """Few classes keep the operator, whose gradient shares a kernel with it."""
    from tilefuse.frontends.torch.decompositions import decompositions_with_gradients

    x = torch.randn(4, 10)
    assert decompositions_with_gradients()[torch.ops.aten._log_softmax.default](x, 1, False) is NotImplemented
    args = (torch.tensor(1.0), x, torch.zeros(4, dtype=torch.int64), None, 1, -100, torch.tensor(4.0))
    assert decompositions_with_gradients()[torch.ops.aten.nll_loss_backward.default](*args) is NotImplemented
