"""The models in plain torch: BERT, ViT, ResNet-50, a recommender, an LSTM language model, a convolutional VAE, an MLP-Mixer, the end of a
language model with its loss, and those of `decoders.py`. Random weights.

Written out here so that the benchmark needs nothing beside torch; sizes are those of the published models, `tiny` shrinks them.
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.decoders import Gpt2, Llama


class SelfAttention(nn.Module):
    """Multi-head self-attention. Shapes: [batch, length, width] -> the same."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


class EncoderLayer(nn.Module):
    """A Transformer layer; the norms stand after the residual sums (BERT) or before the blocks (ViT)."""

    def __init__(self, width: int, heads: int, norm_first: bool) -> None:
        super().__init__()
        self.norm_first = norm_first
        self.attention = SelfAttention(width, heads)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6)

    def mix(self, x: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(x)))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if self.norm_first:
            x = x + self.attention(self.norm1(x), mask)
            return x + self.mix(self.norm2(x))
        x = self.norm1(x + self.attention(x, mask))
        return self.norm2(x + self.mix(x))


class Bert(nn.Module):
    """BERT: three embeddings, encoder, pooler, classifier. Shapes: token numbers [batch, length] -> [batch, 2]."""

    def __init__(self, layers: int = 12, width: int = 768, heads: int = 12, words: int = 30522, length: int = 128) -> None:
        super().__init__()
        self.words, self.places, self.kinds = nn.Embedding(words, width), nn.Embedding(length, width), nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width, eps=1e-12)
        self.layers = nn.ModuleList(EncoderLayer(width, heads, norm_first=False) for _ in range(layers))
        self.pool, self.classify = nn.Linear(width, width), nn.Linear(width, 2)

    def forward(self, tokens: Tensor, kinds: Tensor) -> Tensor:
        place = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.norm(self.words(tokens) + self.places(place) + self.kinds(kinds))
        for layer in self.layers:
            x = layer(x)
        return self.classify(torch.tanh(self.pool(x[:, 0])))


class VisionTransformer(nn.Module):
    """ViT-B/16. Shapes: images [batch, 3, side, side] -> [batch, classes]."""

    def __init__(self, layers: int = 12, width: int = 768, heads: int = 12, side: int = 224, patch: int = 16, classes: int = 1000) -> None:
        super().__init__()
        self.cut = nn.Conv2d(3, width, patch, patch)
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(torch.randn(1, (side // patch) ** 2 + 1, width) * 0.02)
        self.layers = nn.ModuleList(EncoderLayer(width, heads, norm_first=True) for _ in range(layers))
        self.norm, self.classify = nn.LayerNorm(width, eps=1e-6), nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = self.cut(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.first.expand(x.shape[0], -1, -1), x], 1) + self.places
        for layer in self.layers:
            x = layer(x)
        return self.classify(self.norm(x[:, 0]))


class Bottleneck(nn.Module):
    """ResNet's bottleneck block."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        after = 4 * width
        self.conv1, self.norm1 = nn.Conv2d(before, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.norm2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.norm3 = nn.Conv2d(width, after, 1, bias=False), nn.BatchNorm2d(after)
        self.short = None
        if stride != 1 or before != after:
            self.short = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        y = F.relu(self.norm2(self.conv2(y)))
        y = self.norm3(self.conv3(y))
        return F.relu(y + (x if self.short is None else self.short(x)))


class ResNet(nn.Module):
    """ResNet-50 (blocks 3, 4, 6, 3). Shapes: images [batch, 3, side, side] -> [batch, classes]."""

    def __init__(self, blocks: tuple[int, ...] = (3, 4, 6, 3), width: int = 64, classes: int = 1000) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width)
        layers: list[nn.Module] = []
        before = width
        for stage, count in enumerate(blocks):
            inner = width * 2**stage
            for number in range(count):
                layers.append(Bottleneck(before, inner, 2 if stage and number == 0 else 1))
                before = 4 * inner
        self.layers, self.classify = nn.Sequential(*layers), nn.Linear(before, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.norm(self.conv(images))), 3, 2, 1)
        return self.classify(self.layers(x).mean((2, 3)))


class Recommender(nn.Module):
    """Dense features and embeddings meet in pairwise products. Shapes: [batch, 13] and numbers [batch, 26] -> [batch]."""

    def __init__(self, tables: int = 26, rows: int = 100_000, width: int = 64) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for _ in range(tables))
        self.bottom = nn.Sequential(nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, width), nn.ReLU())
        pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(nn.Linear(width + pairs, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 1))
        first, second = torch.tril_indices(tables + 1, tables + 1, -1).unbind(0)
        self.register_buffer("first", first)
        self.register_buffer("second", second)

    def forward(self, dense: Tensor, numbers: Tensor) -> Tensor:
        x = self.bottom(dense)
        features = torch.stack([x, *(table(numbers[:, i]) for i, table in enumerate(self.tables))], 1)
        products = torch.bmm(features, features.transpose(1, 2))[:, self.first, self.second]
        return torch.sigmoid(self.top(torch.cat([x, products], 1)))[:, 0]


class LstmLanguageModel(nn.Module):
    """A one-layer LSTM over words, its steps written out. Shapes: words [batch, length] -> [batch, length, words]."""

    def __init__(self, words: int = 10_000, width: int = 512) -> None:
        super().__init__()
        self.width = width
        self.embed = nn.Embedding(words, width)
        self.input, self.state = nn.Linear(width, 4 * width), nn.Linear(width, 4 * width, bias=False)
        self.classify = nn.Linear(width, words)

    def forward(self, words: Tensor) -> Tensor:
        x = self.input(self.embed(words))
        h = c = torch.zeros_like(x[:, 0, : self.width])
        states = []
        for step in range(words.shape[1]):
            i, f, g, o = (x[:, step] + self.state(h)).chunk(4, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            states.append(h)
        return self.classify(torch.stack(states, 1))


class ConvolutionalVae(nn.Module):
    """A convolutional variational autoencoder; the noise is an input. Shapes: images [batch, 3, 64, 64] -> images, mean, log variance."""

    def __init__(self, width: int = 64, latent: int = 128) -> None:
        super().__init__()
        down: list[nn.Module] = []
        up: list[nn.Module] = []
        sizes = [3, width, 2 * width, 4 * width, 8 * width]
        for before, after in zip(sizes, sizes[1:]):
            down += [nn.Conv2d(before, after, 4, 2, 1), nn.BatchNorm2d(after), nn.LeakyReLU(0.2)]
            up = [nn.ConvTranspose2d(after, before, 4, 2, 1), *([nn.BatchNorm2d(before), nn.ReLU()] if before > 3 else [nn.Sigmoid()]), *up]
        self.down, self.up, self.last = nn.Sequential(*down), nn.Sequential(*up), 8 * width
        self.mean, self.logvar = nn.Linear(16 * self.last, latent), nn.Linear(16 * self.last, latent)
        self.grow = nn.Linear(latent, 16 * self.last)

    def forward(self, images: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = self.down(images).flatten(1)
        mean, logvar = self.mean(x), self.logvar(x)
        z = mean + noise * torch.exp(0.5 * logvar)
        return self.up(self.grow(z).view(-1, self.last, 4, 4)), mean, logvar


class MixerLayer(nn.Module):
    """Mixes tokens, then channels. Shapes: [batch, tokens, width] -> the same."""

    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.across = nn.Sequential(nn.Linear(tokens, width // 2), nn.GELU(), nn.Linear(width // 2, tokens))
        self.along = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.across(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.along(self.norm2(x))


class Mixer(nn.Module):
    """MLP-Mixer S/16 (Tolstikhin and others 2021), whose 196 tokens are no multiple of 16 bytes. Shapes: images -> [batch, classes]"""

    def __init__(self, layers: int = 8, width: int = 512, side: int = 224, patch: int = 16, classes: int = 1000) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.layers = nn.Sequential(*(MixerLayer((side // patch) ** 2, width) for _ in range(layers)))
        self.norm, self.classify = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, images: Tensor) -> Tensor:
        return self.classify(self.norm(self.layers(self.patches(images).flatten(2).transpose(1, 2))).mean(1))


class VocabularyLoss(nn.Module):
    """The end of GPT-2: last norm, head over an odd number of words, cross entropy. Shapes: [tokens, width], [tokens] -> []"""

    def __init__(self, width: int = 768, words: int = 50257) -> None:
        super().__init__()
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        scores = self.head(self.norm(x))
        return F.cross_entropy(scores if scores.dtype == torch.float64 else scores.float(), labels)


@dataclass(frozen=True)
class Architecture:
    """How to make a model, its inputs for a batch, and a scalar loss of its results. `tiny` asks for a small version."""

    build: Callable[[bool], nn.Module]
    inputs: Callable[[int, bool, torch.device, torch.dtype, torch.Generator], tuple[Tensor, ...]]
    loss: Callable[..., Tensor]
    train: bool = False


def _tokens(batch: int, length: int, most: int, device: torch.device, generator: torch.Generator) -> Tensor:
    return torch.randint(0, most, (batch, length), device=device, generator=generator)


def _images(batch: int, side: int, device: torch.device, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    return torch.rand((batch, 3, side, side), device=device, generator=generator).to(dtype)


def _square(*results: Tensor) -> Tensor:
    return torch.stack([r.float().square().mean() for r in results]).sum()


def _first_class(logits: Tensor) -> Tensor:
    target = torch.zeros(logits.shape[0], dtype=torch.int64, device=logits.device)
    return F.cross_entropy(logits.float(), target)


def _first_word(scores: Tensor) -> Tensor:
    return _first_class(scores.flatten(0, 1))


def _vae_loss(images: Tensor, mean: Tensor, logvar: Tensor) -> Tensor:
    mean, logvar = mean.float(), logvar.float()
    return (images.float() - 0.5).square().mean() - 0.5 * (1 + logvar - mean.square() - logvar.exp()).mean()


ARCHITECTURES: dict[str, Architecture] = {
    "bert-base": Architecture(
        lambda tiny: Bert(2, 64, 4, 1000) if tiny else Bert(),
        lambda batch, tiny, device, dtype, g: (_tokens(batch, 128, 1000 if tiny else 30522, device, g), _tokens(batch, 128, 2, device, g)),
        _first_class, train=True),
    "vit-b": Architecture(
        lambda tiny: VisionTransformer(2, 64, 4, 32, 16, 10) if tiny else VisionTransformer(),
        lambda batch, tiny, device, dtype, g: (_images(batch, 32 if tiny else 224, device, dtype, g),), _first_class),
    "resnet50": Architecture(
        lambda tiny: ResNet((1, 1), 16, 10) if tiny else ResNet(),
        lambda batch, tiny, device, dtype, g: (_images(batch, 32 if tiny else 224, device, dtype, g),), _first_class, train=True),
    "recommender": Architecture(
        lambda tiny: Recommender(4, 100, 16) if tiny else Recommender(),
        lambda batch, tiny, device, dtype, g: (
            torch.randn((32 * batch, 13), device=device, generator=g).to(dtype),
            _tokens(32 * batch, 4 if tiny else 26, 100 if tiny else 100_000, device, g)), _square),
    "lstm-lm": Architecture(
        lambda tiny: LstmLanguageModel(100, 32) if tiny else LstmLanguageModel(),
        lambda batch, tiny, device, dtype, g: (_tokens(batch, 4 if tiny else 16, 100 if tiny else 10_000, device, g),), _square),
    "conv-vae": Architecture(
        lambda tiny: ConvolutionalVae(4, 8) if tiny else ConvolutionalVae(),
        lambda batch, tiny, device, dtype, g: (
            _images(batch, 64, device, dtype, g), torch.randn((batch, 8 if tiny else 128), device=device, generator=g).to(dtype)),
        _vae_loss),
    "mixer-s": Architecture(
        lambda tiny: Mixer(2, 32, 32, 8, 10) if tiny else Mixer(),
        lambda batch, tiny, device, dtype, g: (_images(batch, 32 if tiny else 224, device, dtype, g),), _first_class),
    "vocabulary": Architecture(
        lambda tiny: VocabularyLoss(32, 101) if tiny else VocabularyLoss(),
        lambda batch, tiny, device, dtype, g: (
            torch.randn((64 * batch, 32 if tiny else 768), device=device, generator=g).to(dtype),
            torch.randint(0, 101 if tiny else 50257, (64 * batch,), device=device, generator=g)),
        lambda loss: loss, train=True),
    "gpt2": Architecture(
        lambda tiny: Gpt2(2, 64, 4, 101, 32) if tiny else Gpt2(),
        lambda batch, tiny, device, dtype, g: (_tokens(batch, 16 if tiny else 128, 101 if tiny else 50257, device, g),),
        _first_word, train=True),
    "llama": Architecture(
        lambda tiny: Llama(2, 64, 4, 2, 96, 100) if tiny else Llama(),
        lambda batch, tiny, device, dtype, g: (_tokens(batch, 16 if tiny else 128, 100 if tiny else 32000, device, g),),
        _first_word, train=True),
}
