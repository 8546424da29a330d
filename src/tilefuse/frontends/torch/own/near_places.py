"""The gradient of a max pooling from places that count within their windows: an operator of torch, for the backward part of a step.

    place 5 of a window of 3 x 3: its row 1, column 2

It asks for the image's shape alone. `driver/torch/pool_places.py` puts it into joint graphs; `frontends/torch/ops_pool.py` lowers it.
Torch's own operators run it where a part is not compiled.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

# Places that 8 bits tell apart.
MOST_PLACES = 256


@dataclass(frozen=True, slots=True)
class Windows:
    """Geometry of a pooling, one entry a dimension: extents of image and window, steps, padding, distances within a window."""

    image: tuple[int, ...]
    size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]


def as_list(value: int | Sequence[int], rank: int) -> tuple[int, ...]:
    """One number for each dimension; torch allows one, or a list of one, for all."""
    listed = [value] if isinstance(value, int) else list(value)
    return tuple(listed * rank if len(listed) == 1 else listed)


def places_in_image(near: torch.Tensor, windows: Windows) -> torch.Tensor:
    """Places in the image of places in windows. Shapes: near [..., *numbers of windows], u8; the result has the same, i64."""
    rank = len(windows.image)
    rest, places = near.long(), torch.zeros_like(near, dtype=torch.int64)
    for dim in range(rank):
        below = prod(windows.size[dim + 1:])
        step, rest = rest // below, rest % below
        first = torch.arange(near.shape[dim - rank], device=near.device).mul(windows.stride[dim]).sub(windows.padding[dim])
        places = places * windows.image[dim] + step * windows.dilation[dim] + first.view(-1, *(1,) * (rank - dim - 1))
    return places


def _run(grad: torch.Tensor, near: torch.Tensor, shape: Sequence[int], size: Sequence[int], stride: Sequence[int], padding: Sequence[int],
         dilation: Sequence[int], ceil_mode: bool) -> torch.Tensor:
    rank = len(size)
    windows = Windows(tuple(shape[-rank:]), tuple(size), tuple(stride), tuple(padding), tuple(dilation))
    backward = torch.ops.aten.max_pool2d_with_indices_backward if rank == 2 else torch.ops.aten.max_pool3d_with_indices_backward
    last = torch.channels_last if rank == 2 else torch.channels_last_3d
    # Of the image torch looks at the shape and the memory format.
    turned = len(shape) == rank + 2 and grad.is_contiguous(memory_format=last) and not grad.is_contiguous()
    image = torch.empty(list(shape), dtype=grad.dtype, device=grad.device, memory_format=last if turned else torch.contiguous_format)
    gradient: torch.Tensor = backward(grad, image, size, stride, padding, dilation, ceil_mode, places_in_image(near, windows))
    return gradient


# Torch forgets the operators of a library object once it is freed.
_LIBRARY = torch.library.Library("tilefuse", "FRAGMENT")
_LIBRARY.define("max_pool_near_backward(Tensor grad, Tensor near, int[] shape, int[] size, int[] stride, int[] padding, int[] dilation, "
                "bool ceil_mode) -> Tensor")
_LIBRARY.impl("max_pool_near_backward", _run, "CompositeExplicitAutograd")
NEAR_BACKWARD: Any = torch.ops.tilefuse.max_pool_near_backward.default
