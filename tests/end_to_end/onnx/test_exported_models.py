"""Models as exporters write them (torch's, several opsets, static and dynamic batch), against onnxruntime."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tilefuse.ir.verify import check
from tilefuse.onnx_backend import PreparedModel

onnxruntime = pytest.importorskip("onnxruntime")


class LanguageModel(nn.Module):
    """A small causal transformer with learned positions."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(50, 32), nn.Embedding(16, 32)
        self.layers = nn.ModuleList(
            [nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, activation="gelu", norm_first=True) for _ in range(2)]
        )
        self.head = nn.Linear(32, 50)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.words(x) + self.places(torch.arange(x.shape[1]))
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        for layer in self.layers:
            h = layer(h, mask, is_causal=True)
        return F.log_softmax(self.head(h), -1)


class Segmenter(nn.Module):
    """Down, up by a transposed convolution and by interpolation, concatenation."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.SiLU())
        self.second = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU())
        self.up, self.out = nn.ConvTranspose2d(16, 8, 2, 2), nn.Conv2d(16, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = self.first(x)
        b = self.second(a)
        u = self.up(b) + F.interpolate(b[:, :8], scale_factor=2, mode="bilinear", align_corners=False)
        return torch.sigmoid(self.out(torch.cat([a, u], 1)))


class Recurrent(nn.Module):
    """Two bidirectional LSTM layers and a GRU."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 16)
        self.lstm, self.gru = nn.LSTM(16, 24, 2, bidirectional=True, batch_first=True), nn.GRU(48, 20, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.gru(self.lstm(self.words(x))[0])[0]


class ManyOperators(nn.Module):
    """One result for every operator that exporters spell in several ONNX nodes."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        top = x.view(x.shape[0], -1).topk(5, dim=-1)
        summed = torch.cumsum(x, -1)
        return (
            top.values,
            top.indices,
            summed,
            F.pad(x, (1, 2, 3, 0), mode="reflect"),
            torch.roll(x, 2, -1),
            torch.einsum("nchw,nkhw->nck", x, summed),
            F.adaptive_avg_pool2d(x, (2, 2)),
            x.flip(-1).argmax(-1),
            torch.where(x > 0, x, torch.exp(x) - 1).std(dim=(-1, -2)),
            F.pixel_shuffle(x, 2),
            F.interpolate(x, size=(5, 7), mode="bicubic"),
            torch.tril(x) @ x.transpose(-1, -2),
            F.instance_norm(x),
            x.unfold(-1, 3, 2),
            F.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
            F.max_pool2d(x, 3, 2, 1, ceil_mode=True),
        )


def words(batch: int, length: int) -> torch.Tensor:
    return torch.randint(0, 50, (batch, length), generator=torch.Generator().manual_seed(1))


def image(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(2))


MODELS: dict[str, tuple[Callable[[], nn.Module], torch.Tensor]] = {
    "language-model": (LanguageModel, words(2, 12)),
    "segmenter": (Segmenter, image(2, 3, 16, 16)),
    "recurrent": (Recurrent, words(3, 7)),
    "many-operators": (ManyOperators, image(2, 4, 8, 8)),
}


def exported(name: str, opset: int, dynamic: bool) -> tuple[bytes, np.ndarray]:
    """The model's file as torch writes it, and its input."""
    make, example = MODELS[name]
    torch.manual_seed(0)
    file = io.BytesIO()
    axes = {"x": {0: "batch"}} if dynamic else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            make().eval(), (example,), file, dynamo=False, opset_version=opset, input_names=["x"], dynamic_axes=axes, verbose=False
        )
    return file.getvalue(), example.numpy()


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic-batch"])
@pytest.mark.parametrize(("name", "opset"), [(n, o) for n in MODELS for o in (13, 17, 20) if o > 13 or n in ("segmenter", "recurrent")])
def test_exported_model(name: str, opset: int, dynamic: bool) -> None:
    """Within f32 rounding of onnxruntime: sums of at most 1000 terms, some tens of layers. Dynamic extents cost no node."""
    data, x = exported(name, opset, dynamic)
    prepared = PreparedModel(onnx.load_from_string(data), "interpret")
    imported, _ = prepared.specialise({"x": x})
    check(imported.graph, "import")
    results = prepared.run([x])
    expected = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    for result, wanted in zip(results, expected, strict=True):
        assert result.dtype == wanted.dtype
        scale = float(np.abs(wanted).max(initial=1)) if wanted.dtype.kind == "f" else 0.0
        np.testing.assert_allclose(result, wanted, rtol=0, atol=2.0**-24 * 1000 * scale)
