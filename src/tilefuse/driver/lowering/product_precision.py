"""Precision of f32 products: the option and the framework's settings choose the pass that records it in a graph.

Kernels compute products in the recorded precision. Convolutions run in the framework, in the layout that is fast for its arithmetic.
"""
from __future__ import annotations

import sys

from tilefuse.ir.graph import Graph
from tilefuse.passes.manager import PassContext
from tilefuse.passes.precision import StatePrecision

# Attribute `precision` of a product, by the option `float32_products`; for half-precision products kernels have one precision.
PRECISION_BY_OPTION = {"split": "default", "threads": "f32", "tf32": "tf32"}


def stated_precision(option: str) -> StatePrecision:
    """The pass that records the precision of products from the option, and that of convolutions from the framework."""
    products = PRECISION_BY_OPTION[framework_products() if option == "auto" else option]
    return StatePrecision(products, framework_convolutions())


def with_precision(graph: Graph, option: str) -> Graph:
    """The graph with the option's precision for f32 products that have none; the same object if nothing changes.

    f32 convolutions get the framework's precision.
    """
    return stated_precision(option).run(graph, PassContext())


def framework_products() -> str:
    """"tf32" where torch may use it for its own matrix products on a GPU, else "split"."""
    torch = sys.modules.get("torch")
    if torch is None:
        return "split"
    settings = torch.backends.cuda.matmul
    # `allow_tf32` must not be read after the newer setting was written.
    allowed = settings.fp32_precision == "tf32" if hasattr(settings, "fp32_precision") else settings.allow_tf32
    return "tf32" if allowed else "split"


def framework_convolutions() -> str:
    """"f32" where torch may not use tf32 for its convolutions on a GPU, else "default"."""
    torch = sys.modules.get("torch")
    if torch is None:
        return "default"
    settings = torch.backends.cudnn
    # As in `framework_products`; the newer settings include one for convolutions.
    newer = getattr(getattr(settings, "conv", None), "fp32_precision", None)
    allowed = settings.allow_tf32 if newer is None else newer == "tf32"
    return "default" if allowed else "f32"
