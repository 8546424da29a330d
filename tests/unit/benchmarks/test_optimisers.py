"""The in-place updates against torch's own optimizers."""
from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from benchmarks.optimisers import Optimiser, adam, momentum, rmsprop, sgd

STEPS = 3


@pytest.mark.parametrize(("ours", "theirs"), [
    (sgd(0.1), lambda p: torch.optim.SGD(p, lr=0.1)),
    (momentum(0.1), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
    (adam(0.1), lambda p: torch.optim.Adam(p, lr=0.1)),
], ids=["sgd", "momentum", "adam"])
def test_updates_are_those_of_torch(ours: Optimiser, theirs: Callable[[list[torch.Tensor]], torch.optim.Optimizer]) -> None:
    """Three steps from fresh slots, in double precision; Adam's placing of eps differs by less than the tolerance."""
    torch.manual_seed(5)
    given = [torch.randn(3, 4, dtype=torch.float64), torch.randn(5, dtype=torch.float64)]
    state = [[p.clone() for p in given], *ours.slots(given)]
    if ours.name == "adam":
        for slot in state[1] + state[2]:
            slot.zero_()
        for power in state[3]:
            power.fill_(1.0)
    watched = [p.clone().requires_grad_() for p in given]
    optimiser = theirs(watched)
    for _ in range(STEPS):
        gradients = [torch.randn_like(p) for p in given]
        for p, g in zip(watched, gradients):
            p.grad = g
        optimiser.step()
        ours.update(state, gradients)
    for p, q in zip(state[0], watched):
        torch.testing.assert_close(p, q.detach(), rtol=1e-6, atol=1e-6)


def test_rmsprop_divides_by_the_root_of_the_mean_square() -> None:
    """One step by hand."""
    optimiser = rmsprop(0.5, decay=0.75, eps=0.0)
    state = [[torch.tensor([1.0])], [torch.tensor([4.0])]]
    optimiser.update(state, [torch.tensor([2.0])])
    assert state[1][0].item() == pytest.approx(4.0)
    assert state[0][0].item() == pytest.approx(1.0 - 0.5 * 2.0 / 2.0)
