"""Training through torch.compile: forward and backward are compiled; losses agree with eager torch step by step."""
from __future__ import annotations

import copy

import torch
import torch.nn.functional as F


class Classifier(torch.nn.Module):
    """A small network with a norm, a GELU and a softmax loss."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = torch.nn.Linear(32, 64), torch.nn.LayerNorm(64), torch.nn.Linear(64, 10)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.last(F.gelu(self.norm(self.first(x)))), target)


def train(model: torch.nn.Module, step: torch.nn.Module, steps: int = 5) -> list[float]:
    """Losses of a few steps of gradient descent on fixed data."""
    generator = torch.Generator().manual_seed(1)
    x, target = torch.randn(48, 32, generator=generator), torch.randint(0, 10, (48,), generator=generator)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for _ in range(steps):
        optimiser.zero_grad()
        loss = step(x, target)
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    """Train twice from the same weights and print both courses."""
    torch.manual_seed(0)
    eager = Classifier()
    ours = copy.deepcopy(eager)
    expected = train(eager, eager)
    got = train(ours, torch.compile(ours, backend="tilefuse"))
    for number, (a, b) in enumerate(zip(expected, got)):
        print(f"step {number}: eager {a:.6f}  tilefuse {b:.6f}")
    if max(abs(a - b) for a, b in zip(expected, got)) > 1e-4:
        raise SystemExit("the losses differ")


if __name__ == "__main__":
    main()
