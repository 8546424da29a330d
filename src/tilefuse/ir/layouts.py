"""Layouts: where the elements of values lie in memory, as strides.

A value that a mapping of layouts does not name is dense row-major.
"""
from __future__ import annotations

from collections.abc import Mapping

from tilefuse.ir.affine import linearise, row_major_strides, simplify
from tilefuse.ir.graph import Graph, Node
from tilefuse.ir.scalar import Read

# Strides of values by name. Units: elements.
Layouts = Mapping[str, tuple[int, ...]]
# Dimensions of a batch of signals, and of batches of images and volumes: batch, channels, places.
SIGNAL_RANK, IMAGE_RANKS = 3, (4, 5)


def strides_of(graph: Graph, layouts: Layouts, value: str) -> tuple[int, ...]:
    """Strides of a value in memory. Units: elements."""
    strides = layouts.get(value)
    return row_major_strides(graph.type_of(value).shape) if strides is None else strides


def channels_last_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a tensor N, C, spatial... whose channels are neighbours in memory. Units: elements.

    Shapes: shape: [N, C, D1, ...] of rank 3 to 5.
    """
    order = (0, *range(2, len(shape)), 1)
    dense = row_major_strides(tuple(shape[d] for d in order))
    strides = [0] * len(shape)
    for place, d in enumerate(order):
        strides[d] = dense[place]
    return tuple(strides)


def is_channels_last(strides: tuple[int, ...] | None, shape: tuple[int, ...]) -> bool:
    """Whether the strides are those of channels last, and of no dense row-major tensor as well."""
    if strides is None or len(shape) not in IMAGE_RANKS:
        return False
    expected = channels_last_strides(shape)
    same = all(n == 1 or a == b for a, b, n in zip(strides, expected, shape, strict=True))
    return same and any(n > 1 and a != b for a, b, n in zip(expected, row_major_strides(shape), shape, strict=True))


def has_channels_last(shape: tuple[int, ...]) -> bool:
    """Whether channels last differs from row-major for a tensor of this shape."""
    return len(shape) in IMAGE_RANKS and is_channels_last(channels_last_strides(shape), shape)


def window_of(graph: Graph, node: Node, base_strides: tuple[int, ...]) -> tuple[int, tuple[int, ...]] | None:
    """(offset, strides) of a node as a strided window onto the one value it reads; None where it computes, guards or has a remainder.

    Units: elements of the base's memory.
    """
    if node.kind != "map" or not isinstance(node.body, Read):
        return None
    read = node.body
    if graph.type_of(read.value).dtype != node.type.dtype or node.type.num_elements == 0:
        return None
    extents = node.extents
    # Quotient and remainder of a reshape meet again in the flat offset.
    flat = simplify(linearise(read.index, base_strides), extents)
    if not flat.is_linear:
        return None
    strides = tuple(flat.coefficient(a) for a in node.axes)
    # torch has no negative strides; a flip is copied.
    if any(s < 0 for s in strides) or flat.axes() - set(extents):
        return None
    return flat.const, _tidy(strides, node.type.shape)


def _tidy(strides: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of dimensions with one element are free: they get the values of a dense tensor, as frameworks do."""
    tidy = list(strides)
    for d in reversed(range(len(shape))):
        if shape[d] == 1:
            tidy[d] = tidy[d + 1] * shape[d + 1] if d + 1 < len(shape) else 1
    return tuple(tidy)
