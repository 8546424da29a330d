"""The models of the suite `calls`: those of the suite `models`, third-party ones with random weights, a decode step, a stack of layers."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.architectures import ARCHITECTURES
from benchmarks.case import Tensors
from benchmarks.peers import NotApplicable

Built = tuple[nn.Module, Tensors]
Build = Callable[[int, bool, torch.device, torch.dtype], Built]


class Layers(nn.Module):
    """Fifty layers of linear, norm and relu: many small kernels. Shapes: [batch, width] -> the same."""

    def __init__(self, depth: int, width: int) -> None:
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        for linear, norm in zip(self.linears, self.norms):
            x = torch.relu(norm(linear(x)))
        return x


class DecodeStep(nn.Module):
    """One token of a language model with a cache of keys and values that it writes into.

    Shapes: token [batch, 1], place [1] -> [batch, words]
    """

    def __init__(self, layers: int, width: int, heads: int, length: int, words: int, batch: int) -> None:
        super().__init__()
        self.heads, self.words = heads, nn.Embedding(words, width)
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width, bias=False) for _ in range(layers))
        self.out = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(layers))
        self.up = nn.ModuleList(nn.Linear(width, 4 * width, bias=False) for _ in range(layers))
        self.down = nn.ModuleList(nn.Linear(4 * width, width, bias=False) for _ in range(layers))
        self.norms = nn.ModuleList(nn.RMSNorm(width, eps=1e-6) for _ in range(2 * layers + 1))
        self.register_buffer("cache", torch.zeros(layers, 2, batch, heads, length, width // heads), persistent=False)

    def forward(self, token: Tensor, place: Tensor) -> Tensor:
        x = self.words(token)
        batch, _, width = x.shape
        seen = torch.arange(self.cache.shape[4], device=x.device)[None, None, None] <= place
        for n, (qkv, out, up, down) in enumerate(zip(self.qkv, self.out, self.up, self.down)):
            q, k, v = qkv(self.norms[2 * n](x)).view(batch, 1, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
            self.cache[n, 0].index_copy_(2, place, k)
            self.cache[n, 1].index_copy_(2, place, v)
            mixed = F.scaled_dot_product_attention(q, self.cache[n, 0], self.cache[n, 1], attn_mask=seen)
            x = x + out(mixed.transpose(1, 2).reshape(batch, 1, width))
            x = x + down(F.silu(up(self.norms[2 * n + 1](x))))
        return F.linear(self.norms[-1](x)[:, 0], self.words.weight)


def _layers(batch: int, tiny: bool, device: torch.device, dtype: torch.dtype) -> Built:
    depth, width = (4, 32) if tiny else (50, 512)
    return Layers(depth, width).to(device, dtype).eval(), (torch.randn(8 * batch, width, device=device, dtype=dtype),)


def _decode(batch: int, tiny: bool, device: torch.device, dtype: torch.dtype) -> Built:
    layers, width, heads, length, words = (2, 32, 2, 16, 50) if tiny else (16, 1024, 16, 512, 32000)
    model = DecodeStep(layers, width, heads, length, words, batch).to(device, dtype).eval()
    return model, (torch.randint(0, words, (batch, 1), device=device), torch.tensor([length // 2], device=device))


def _suite(name: str) -> Build:
    def build(batch: int, tiny: bool, device: torch.device, dtype: torch.dtype) -> Built:
        made = ARCHITECTURES[name]
        generator = torch.Generator(device).manual_seed(0)
        return made.build(tiny).to(device, dtype).eval(), made.inputs(batch, tiny, device, dtype, generator)

    return build


def _timm(name: str) -> Build:
    def build(batch: int, tiny: bool, device: torch.device, dtype: torch.dtype) -> Built:
        timm = _package("timm")
        model = timm.create_model(name).to(device, dtype).eval()
        return model, (torch.randn(batch, *model.default_cfg["input_size"], device=device, dtype=dtype),)

    return build


def _googlenet(batch: int, tiny: bool, device: torch.device, dtype: torch.dtype) -> Built:
    models = _package("torchvision.models")
    model = models.googlenet(weights=None, aux_logits=False, init_weights=not tiny).to(device, dtype).eval()
    return model, (torch.randn(batch, 3, 224, 224, device=device, dtype=dtype),)


def _gpt2(batch: int, tiny: bool, device: torch.device, dtype: torch.dtype) -> Built:
    package = _package("transformers")
    sizes = {"n_layer": 2, "n_embd": 64, "n_head": 2, "vocab_size": 100} if tiny else {}
    made = package.GPT2LMHeadModel(package.GPT2Config(use_cache=False, **sizes)).to(device, dtype).eval()
    return Logits(made), (torch.randint(0, 100, (batch, 128), device=device),)


class Logits(nn.Module):
    """A model of transformers that gives its logits alone."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, tokens: Tensor) -> Tensor:
        found: Tensor = self.inner(tokens).logits
        return found


def _package(name: str) -> Any:
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise NotApplicable(f"{name} is not installed") from error


MODELS: dict[str, Build] = {
    "layers-50": _layers, "decode-16": _decode, **{name: _suite(name) for name in ARCHITECTURES},
    "mobilenetv2": _timm("mobilenetv2_100"), "efficientnet-b0": _timm("efficientnet_b0"), "efficientnet-b2": _timm("efficientnet_b2"),
    "mobilevit-s": _timm("mobilevit_s"), "resnet101": _timm("resnet101"), "regnet": _timm("regnety_016"),
    "googlenet": _googlenet, "swin": _timm("swin_tiny_patch4_window7_224"), "gpt2": _gpt2,
}
# Models that are called with a larger batch too: there the device takes about as long as the host of an uncompiled call.
LARGER = {"mobilevit-s": 64, "resnet50": 64, "bert-base": 64}
TRAINED = ("layers-50", "bert-base", "resnet50", "mobilenetv2")
