"""Explanations of real models for tests of pages: the two of the demo, planned for a device that need not be present."""
from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch

import tilefuse


@functools.cache
def resnet() -> Any:
    """ResNet-50 as the onnx package ships it, planned for an H200: sources and explanation, no machine code."""
    path = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light" / "light_resnet50.onnx"
    return tilefuse.compile(str(path), target="h200")


@functools.cache
def encoder(layers: int = 2) -> Any:
    """A Transformer encoder, planned for an H200."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        layer = torch.nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, activation="gelu", batch_first=True)
        model = torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).eval()
        with torch.no_grad():
            return tilefuse.compile(model, [torch.zeros(2, 16, 64)], target="h200")
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


@functools.cache
def attention() -> Any:
    """Attention as the examples write it, planned for an H200: its kernels hand tiles on through shared memory."""
    return tilefuse.compile(str(Path(__file__).parents[3] / "examples" / "attention.txt"), target="h200")


def drawn_inputs(program: Any) -> list[np.ndarray[Any, Any]]:
    """Numbers for a program's inputs."""
    values = {v.name: v for v in program.spec.values}
    draw = np.random.default_rng(0)
    return [draw.standard_normal(values[name].shape).astype({"f16": np.float16}.get(values[name].dtype, np.float32))
            for name in program.spec.inputs]
