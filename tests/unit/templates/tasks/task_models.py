"""Models whose plans consist of kernels that wait for each other: a decode step, a recurrence, a chain of small products."""
from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional


class RootMeanSquare(nn.Module):
    """A norm without mean."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(1 + torch.randn(width) / 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight


class DecoderLayer(nn.Module):
    """One layer of a small Llama-like model for one new position: norm, rotary attention over the cache, gated products."""

    def __init__(self, width: int, heads: int, groups: int, hidden: int) -> None:
        super().__init__()
        self.heads, self.groups, self.head = heads, groups, width // heads
        self.norms = nn.ModuleList(RootMeanSquare(width) for _ in range(2))
        sizes = {"q": (width, width), "k": (width, groups * self.head), "v": (width, groups * self.head), "o": (width, width),
                 "gate": (width, hidden), "up": (width, hidden), "down": (hidden, width)}
        self.products = nn.ModuleDict({name: nn.Linear(*size, bias=False) for name, size in sizes.items()})

    def turned(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """Rotary positions."""
        low, high = x.chunk(2, -1)
        return x * cos + torch.cat([-high, low], -1) * sin

    def forward(self, x: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, cos: torch.Tensor,
                sin: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        y, batch, p = self.norms[0](x), x.shape[0], self.products
        q = self.turned(p["q"](y).view(batch, self.heads, 1, self.head), cos, sin)
        k = self.turned(p["k"](y).view(batch, self.groups, 1, self.head), cos, sin)
        v = p["v"](y).view(batch, self.groups, 1, self.head)
        keys = torch.cat([keys, k], 2).repeat_interleave(self.heads // self.groups, 1)
        values = torch.cat([values, v], 2).repeat_interleave(self.heads // self.groups, 1)
        shares = torch.softmax(q @ keys.transpose(-1, -2) / math.sqrt(self.head), -1)
        x = x + p["o"]((shares @ values).transpose(1, 2).reshape(batch, 1, -1))
        y = self.norms[1](x)
        return x + p["down"](functional.silu(p["gate"](y)) * p["up"](y)), k, v


class Decoder(nn.Module):
    """A decode step of several layers."""

    def __init__(self, layers: int, width: int = 64, heads: int = 4, groups: int = 2, hidden: int = 176) -> None:
        super().__init__()
        self.layers = nn.ModuleList(DecoderLayer(width, heads, groups, hidden) for _ in range(layers))
        self.norm, self.head = RootMeanSquare(width), nn.Linear(width, 96, bias=False)

    def forward(self, x: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, cos: torch.Tensor,
                sin: torch.Tensor) -> tuple[torch.Tensor, ...]:
        new = []
        for n, layer in enumerate(self.layers):
            x, k, v = layer(x, keys[n], values[n], cos, sin)
            new += [k, v]
        return self.head(self.norm(x)), *new


class Recurrence(nn.Module):
    """LSTM steps, one after the other, of one sequence."""

    def __init__(self, steps: int, width: int = 48) -> None:
        super().__init__()
        self.steps, self.cell = steps, nn.LSTMCell(width, width)

    def forward(self, x: torch.Tensor, h: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        for n in range(self.steps):
            h, c = self.cell(x[n], (h, c))
        return h, c


class NormedChain(nn.Module):
    """Small products with a norm in front of each."""

    def __init__(self, products: int = 12, width: int = 64) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(products))
        self.products = nn.ModuleList(nn.Linear(width, width) for _ in range(products))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for norm, product in zip(self.norms, self.products, strict=True):
            x = functional.relu(product(norm(x)))
        return x


def decode_step(layers: int, positions: int = 24) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """A decode step and its inputs."""
    torch.manual_seed(1)
    caches = [torch.randn(layers, 1, 2, positions, 16) for _ in range(2)]
    return Decoder(layers).eval(), (torch.randn(1, 1, 64), *caches, torch.randn(16), torch.randn(16))


def recurrence(steps: int) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """A recurrence and its inputs."""
    torch.manual_seed(2)
    return Recurrence(steps).eval(), (torch.randn(steps, 1, 48), torch.randn(1, 48), torch.randn(1, 48))


def normed_chain(products: int = 12, rows: int = 1) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """A chain and its input."""
    torch.manual_seed(3)
    return NormedChain(products).eval(), (torch.randn(rows, 64),)
