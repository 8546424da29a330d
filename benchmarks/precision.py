"""Arithmetic of f32 products for a measurement: torch's setting, which eager, torch.compile and tilefuse all follow."""
from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def products_in(dtype: str) -> Iterator[None]:
    """Within, torch may multiply f32 matrices in tf32 on a GPU if `dtype` is "tf32", and may not if it is "f32".

    Other types leave the setting alone. JAX has a precision for each product instead (`benchmarks/products/jax_products.py`).
    """
    settings = torch.backends.cuda.matmul
    before = settings.allow_tf32
    if dtype in ("tf32", "f32"):
        settings.allow_tf32 = dtype == "tf32"
    try:
        yield
    finally:
        settings.allow_tf32 = before
