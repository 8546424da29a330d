"""Language models that read from left to right, in plain torch: GPT-2, and a model of Llama's kind. Random weights.

GPT-2 has the sizes of its smallest version. The other has rows of 2048 elements and eight layers, so that a training step fits one device.
"""
from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class CausalAttention(nn.Module):
    """Self-attention to the tokens before. Shapes: [batch, length, width] -> the same."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in self.qkv(x).split(width, 2))
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, width))


class Gpt2Layer(nn.Module):
    """A layer of GPT-2: norms before the blocks, GELU by tanh. Shapes: [batch, length, width] -> the same."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = CausalAttention(width, heads)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    """GPT-2; the head shares the weight of the embedding. Shapes: token numbers [batch, length] -> scores [batch, length, words]."""

    def __init__(self, layers: int = 12, width: int = 768, heads: int = 12, words: int = 50257, length: int = 1024) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList(Gpt2Layer(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        for table in (self.words, self.places):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for layer in self.layers:
            x = layer(x)
        return F.linear(self.norm(x), self.words.weight)


def rotated(x: Tensor, angles: Tensor) -> Tensor:
    """Rotary embedding: the halves of a row are turned by an angle for each place.

    Shapes: x: [..., length, width], angles: [length, width / 2]
    """
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


class GroupedAttention(nn.Module):
    """Causal attention whose heads share keys and values in groups. Shapes: [batch, length, width] -> the same."""

    def __init__(self, width: int, heads: int, groups: int) -> None:
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.q, self.out = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.k, self.v = (nn.Linear(width, groups * self.size, bias=False) for _ in range(2))

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        batch, length, width = x.shape
        q = rotated(self.q(x).view(batch, length, self.heads, self.size).transpose(1, 2), angles)
        k = rotated(self.k(x).view(batch, length, self.groups, self.size).transpose(1, 2), angles)
        v = self.v(x).view(batch, length, self.groups, self.size).transpose(1, 2)
        k, v = (t[:, :, None].expand(-1, -1, self.heads // self.groups, -1, -1).reshape(q.shape) for t in (k, v))
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, width))


class LlamaLayer(nn.Module):
    """A layer of Llama's kind: RMS norms before the blocks, a gated pair of products. Shapes: [batch, length, width] -> the same."""

    def __init__(self, width: int, heads: int, groups: int, hidden: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
        self.attention = GroupedAttention(width, heads, groups)
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor, angles: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x), angles)
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """A model of Llama's kind. Shapes: token numbers [batch, length] -> scores [batch, length, words]."""

    def __init__(self, layers: int = 8, width: int = 2048, heads: int = 16, groups: int = 4, hidden: int = 5632,
                 words: int = 32000) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.layers = nn.ModuleList(LlamaLayer(width, heads, groups, hidden) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(width, eps=1e-5), nn.Linear(width, words, bias=False)
        self.half = width // heads // 2

    def forward(self, tokens: Tensor) -> Tensor:
        rate = 10000.0 ** (-torch.arange(self.half, device=tokens.device) / self.half)
        angles = torch.arange(tokens.shape[1], device=tokens.device)[:, None] * rate
        x = self.words(tokens)
        for layer in self.layers:
            x = layer(x, angles)
        return self.head(self.norm(x))


class LlamaStep(nn.Module):
    """One new token of each sequence of a model of Llama's kind, with a cache of keys and values that it writes into.

    The sizes are those of Llama 3.2 1B: 1.24 billion parameters, whose words are also the head.
    Shapes: token numbers [batch, 1], place [1] -> scores [batch, words]
    """

    def __init__(self, batch: int = 1, length: int = 512, layers: int = 16, width: int = 2048, heads: int = 32, groups: int = 8,
                 hidden: int = 8192, words: int = 128256) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.layers = nn.ModuleList(LlamaLayer(width, heads, groups, hidden) for _ in range(layers))
        self.norm = nn.RMSNorm(width, eps=1e-5)
        self.half = width // heads // 2
        nn.init.normal_(self.words.weight, std=0.02)
        for n in range(layers):
            for kind in ("keys", "values"):
                self.register_buffer(f"{kind}{n}", torch.randn(batch, groups, length, width // heads), persistent=False)

    def forward(self, token: Tensor, place: Tensor) -> Tensor:
        x = self.words(token)
        batch, _, width = x.shape
        angles = place[:, None] * 500000.0 ** (-torch.arange(self.half, device=x.device) / self.half)
        seen = torch.arange(self.keys0.shape[2], device=x.device)[None, None, None] <= place
        for n, layer in enumerate(self.layers):
            keys, values = getattr(self, f"keys{n}"), getattr(self, f"values{n}")
            a, y = layer.attention, layer.norm1(x)
            q = rotated(a.q(y).view(batch, 1, a.heads, a.size).transpose(1, 2), angles)
            keys.index_copy_(2, place, rotated(a.k(y).view(batch, 1, a.groups, a.size).transpose(1, 2), angles))
            values.index_copy_(2, place, a.v(y).view(batch, 1, a.groups, a.size).transpose(1, 2))
            mixed = F.scaled_dot_product_attention(q, keys, values, attn_mask=seen, enable_gqa=True)
            x = x + a.out(mixed.transpose(1, 2).reshape(batch, 1, width))
            y = layer.norm2(x)
            x = x + layer.down(F.silu(layer.gate(y)) * layer.up(y))
        return F.linear(self.norm(x)[:, 0], self.words.weight)
