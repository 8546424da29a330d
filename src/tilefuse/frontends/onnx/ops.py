"""The ONNX operators' lowerings, by theme; importing the modules fills `call.ONNX_OPS`."""

from __future__ import annotations

import importlib

LOWERING_MODULES = (
    "ops_elementwise",
    "ops_layout",
    "ops_gather",
    "ops_reduce",
    "ops_neural",
    "ops_resample",
    "ops_regions",
    "ops_product",
    "ops_attention",
    "ops_recurrent",
    "ops_quantise",
    "ops_random",
    "ops_control",
)


def load_all_lowerings() -> None:
    """Imports every module of lowerings, once."""
    for name in LOWERING_MODULES:
        importlib.import_module(f"tilefuse.frontends.onnx.{name}")
