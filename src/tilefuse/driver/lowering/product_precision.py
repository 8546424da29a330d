"""Arithmetic of f32 products: how the option and the framework set the pass that states it in a graph.

Products are computed inside kernels as they say; convolutions are the framework's, and lie as is fast for its arithmetic.
"""
from __future__ import annotations

import sys

from tilefuse.ir.graph import Graph
from tilefuse.passes.manager import PassContext
from tilefuse.passes.precision import StatePrecision

# The attribute `precision` of a product by the option `float32_products`; products of halves are what kernels do by default.
PRECISION_BY_OPTION = {"split": "default", "threads": "f32", "tf32": "tf32"}


def stated_precision(option: str) -> StatePrecision:
    """The pass that states the precision of products as the option says, and that of convolutions as the framework says."""
    products = PRECISION_BY_OPTION[framework_products() if option == "auto" else option]
    return StatePrecision(products, framework_convolutions())


def with_precision(graph: Graph, option: str) -> Graph:
    """The graph with the precision of its f32 products as the option says, where they say none; the same object if nothing changes.

    That of its f32 convolutions is as the framework says.
    """
    return stated_precision(option).run(graph, PassContext())


def framework_products() -> str:
    """"tf32" where torch may use it for its own matrix products on a GPU, else "split"."""
    torch = sys.modules.get("torch")
    if torch is None:
        return "split"
    settings = torch.backends.cuda.matmul
    # `allow_tf32` may not be read any more where the newer setting was written.
    allowed = settings.fp32_precision == "tf32" if hasattr(settings, "fp32_precision") else settings.allow_tf32
    return "tf32" if allowed else "split"


def framework_convolutions() -> str:
    """"f32" where torch may not use tf32 for its convolutions on a GPU, else "default"."""
    torch = sys.modules.get("torch")
    if torch is None:
        return "default"
    settings = torch.backends.cudnn
    # As in `framework_products`; the newer setting has one for convolutions.
    newer = getattr(getattr(settings, "conv", None), "fp32_precision", None)
    allowed = settings.allow_tf32 if newer is None else newer == "tf32"
    return "default" if allowed else "f32"
