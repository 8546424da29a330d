"""Operands of products: random matrices on the device, and the sizes of small versions."""
from __future__ import annotations

from collections.abc import Sequence

import torch

from benchmarks.case import DTYPES, Inputs

# Sizes up to this one stay as they are in small versions: rows of short products, batches.
SMALL_ENOUGH = 16


def sized(extents: Sequence[int], tiny: bool) -> tuple[int, ...]:
    """The extents, or those of the small version: up to about 70, different for each power of two, odd where they are odd."""
    return tuple(_small(n) if tiny else n for n in extents)


def _small(extent: int) -> int:
    return extent if extent <= SMALL_ENOUGH else 4 * extent.bit_length() + extent % 4


def text(extents: Sequence[int]) -> str:
    """Extents as a part of a case's name."""
    return "x".join(map(str, extents))


def normal(dtype: str, *shapes: tuple[int, ...], scales: Sequence[float] = ()) -> Inputs:
    """Normally distributed tensors, each times its scale (1 where `scales` is empty). Drawn in f32, where the inputs lie."""

    def draw(device: torch.device, generator: torch.Generator) -> list[torch.Tensor]:
        return [(torch.randn(shape, device=device, generator=generator) * (scales[n] if scales else 1.0)).to(DTYPES[dtype])
                for n, shape in enumerate(shapes)]

    return draw
