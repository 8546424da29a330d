"""The ONNX operators' lowerings, by theme; importing the modules fills `onnx_call.ONNX_OPS`."""

from __future__ import annotations

import importlib

LOWERING_MODULES = (
    "onnx_ops_elementwise",
    "onnx_ops_layout",
    "onnx_ops_gather",
    "onnx_ops_reduce",
    "onnx_ops_neural",
    "onnx_ops_resample",
    "onnx_ops_regions",
    "onnx_ops_product",
    "onnx_ops_attention",
    "onnx_ops_recurrent",
    "onnx_ops_quantise",
    "onnx_ops_random",
    "onnx_ops_control",
)


def load_all_lowerings() -> None:
    """Imports every module of lowerings, once."""
    for name in LOWERING_MODULES:
        importlib.import_module(f"tilefuse.frontends.{name}")
