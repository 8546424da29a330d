"""Models of the workloads without recurrence, in plain torch: translation, recommendation, and four small ones.

Modules that are trained return the loss of a batch; the translator returns tokens and logits.
"""
from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    """Multi-head attention with keys and values that may be kept. Shapes: [batch, length, width]."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.pair, self.out = nn.Linear(width, width), nn.Linear(width, 2 * width), nn.Linear(width, width)

    def keys(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values, each [batch, heads, length, width of a head]."""
        batch, length, width = x.shape
        k, v = self.pair(x).view(batch, length, 2, self.heads, width // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        return k, v

    def forward(self, x: Tensor, k: Tensor, v: Tensor) -> Tensor:
        batch, length, width = x.shape
        q = self.query(x).view(batch, length, self.heads, width // self.heads).transpose(1, 2)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, length, width))


class TranslatorLayer(nn.Module):
    """A Transformer layer with norms after the sums; the decoder's also looks at the encoder's result."""

    def __init__(self, width: int, heads: int, inner: int, decodes: bool) -> None:
        super().__init__()
        self.itself, self.other = Attention(width, heads), Attention(width, heads) if decodes else None
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3 if decodes else 2))

    def forward(self, x: Tensor, kept: tuple[Tensor, Tensor], source: tuple[Tensor, Tensor] | None = None) -> Tensor:
        x = self.norms[0](x + self.itself(x, *kept))
        if self.other is not None and source is not None:
            x = self.norms[2](x + self.other(x, *source))
        return self.norms[1](x + self.down(F.relu(self.up(x))))


class Translator(nn.Module):
    """A Transformer that reads a sentence and writes `steps` words greedily, keys and values kept from word to word.

    Shapes: words [batch, length] -> tokens [batch, steps], logits [batch, steps, words]. With `forced` tokens it scores those instead.
    Source: Vaswani et al. 2017, the base model; one matrix embeds and classifies.
    """

    def __init__(self, words: int, width: int, heads: int, inner: int, layers: int, length: int, steps: int) -> None:
        super().__init__()
        self.steps = steps
        self.embed = nn.Embedding(words, width)
        self.places = nn.Parameter(torch.randn(length, width) * 0.02)
        self.encoder = nn.ModuleList(TranslatorLayer(width, heads, inner, False) for _ in range(layers))
        self.decoder = nn.ModuleList(TranslatorLayer(width, heads, inner, True) for _ in range(layers))

    def forward(self, words: Tensor, forced: Tensor | None = None) -> tuple[Tensor, Tensor]:
        x = self.embed(words) + self.places
        for layer in self.encoder:
            x = layer(x, layer.itself.keys(x))
        source = [layer.other.keys(x) for layer in self.decoder]
        kept: list[tuple[Tensor, Tensor]] = []
        token = torch.zeros_like(words[:, 0])
        tokens, logits = [], []
        for step in range(self.steps):
            y = (self.embed(token) + self.places[step])[:, None]
            for number, layer in enumerate(self.decoder):
                k, v = layer.itself.keys(y)
                if step:
                    k, v = torch.cat([kept[number][0], k], 2), torch.cat([kept[number][1], v], 2)
                kept[number:number + 1] = [(k, v)]
                y = layer(y, (k, v), source[number])
            logits.append(F.linear(y[:, 0], self.embed.weight))
            token = logits[-1].argmax(-1) if forced is None else forced[:, step]
            tokens.append(token)
        return torch.stack(tokens, 1), torch.stack(logits, 1)


class MultiInterest(nn.Module):
    """A recommender that draws several interests from what a user clicked and is trained to find the next item within the batch.

    Clicked items look at each other (batched products, softmax), a second softmax gathers them into interests, the target picks the
    interest nearest to it. Shapes: items [batch, length], target [batch], user features [batch, features] -> a number.
    Source: the kind of Covington et al. 2016 and of Cen et al. 2020 (self-attentive interests).
    """

    def __init__(self, items: int, width: int, length: int, interests: int, features: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(items, width)
        self.places = nn.Parameter(torch.randn(length, width) * 0.02)
        self.query, self.key = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.mix, self.gather = nn.Linear(width, 4 * width), nn.Linear(4 * width, interests, bias=False)
        self.user, self.join, self.last = nn.Linear(features, width), nn.Linear(2 * width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, items: Tensor, target: Tensor, features: Tensor) -> Tensor:
        clicked = self.embed(items) + self.places
        scores = torch.bmm(self.query(clicked), self.key(clicked).transpose(1, 2)) * clicked.shape[-1] ** -0.5
        scores = scores - 100 * torch.eye(scores.shape[-1], dtype=scores.dtype, device=scores.device)  # an item does not look at itself
        clicked = clicked + torch.bmm(torch.softmax(scores, -1), clicked)
        weights = torch.softmax(self.gather(torch.tanh(self.mix(clicked))), 1)
        interests = torch.bmm(weights.transpose(1, 2), clicked)
        wanted = self.embed(target)
        nearest = torch.softmax(torch.bmm(interests, wanted[:, :, None]), 1)
        picked = (nearest * interests).sum(1)
        joined = self.last(F.relu(self.join(torch.cat([picked, F.relu(self.user(features))], 1))))
        places = torch.arange(target.shape[0], device=target.device)
        return F.cross_entropy(joined @ wanted.T, places)


class Logistic(nn.Module):
    """Logistic regression of images. Shapes: [batch, pixels], classes [batch] -> a number."""

    def __init__(self, pixels: int, classes: int) -> None:
        super().__init__()
        self.classify = nn.Linear(pixels, classes)

    def forward(self, x: Tensor, classes: Tensor) -> Tensor:
        return F.cross_entropy(self.classify(x), classes)


class Perceptron(nn.Module):
    """Two hidden layers. Shapes: [batch, pixels], classes [batch] -> a number."""

    def __init__(self, pixels: int, width: int, classes: int) -> None:
        super().__init__()
        self.first, self.second, self.classify = nn.Linear(pixels, width), nn.Linear(width, width), nn.Linear(width, classes)

    def forward(self, x: Tensor, classes: Tensor) -> Tensor:
        return F.cross_entropy(self.classify(F.relu(self.second(F.relu(self.first(x))))), classes)


class VariationalEncoder(nn.Module):
    """A variational autoencoder with one hidden layer a side; the noise is an input.

    Shapes: [batch, pixels], [batch, latent] -> a number.
    """

    def __init__(self, pixels: int, width: int, latent: int) -> None:
        super().__init__()
        self.into, self.mean, self.spread = nn.Linear(pixels, width), nn.Linear(width, latent), nn.Linear(width, latent)
        self.grow, self.out = nn.Linear(latent, width), nn.Linear(width, pixels)

    def forward(self, x: Tensor, noise: Tensor) -> Tensor:
        hidden = torch.tanh(self.into(x))
        mean, spread = self.mean(hidden), self.spread(hidden)
        y = torch.sigmoid(self.out(torch.tanh(self.grow(mean + torch.exp(spread / 2) * noise))))
        seen = -(x * torch.log(1e-10 + y) + (1 - x) * torch.log(1e-10 + 1 - y)).sum(1)
        away = -0.5 * (1 + spread - mean.square() - torch.exp(spread)).sum(1)
        return (seen + away).mean()


def sampled_loss(centre: Tensor, context: Tensor, bias: Tensor, others: Tensor, other_bias: Tensor) -> Tensor:
    """Noise-contrastive loss of word pairs against the same sampled words for the whole batch.

    Shapes: centre and context [batch, width], bias [batch], others [samples, width], other_bias [samples] -> a number.
    Source: Mikolov et al. 2013, negative sampling.
    """
    true = (centre * context).sum(1) + bias
    false = centre @ others.T + other_bias
    return (F.softplus(-true) + F.softplus(false).sum(1)).mean()
